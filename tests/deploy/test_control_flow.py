"""Exported control flow, run by the C runtime, against eager."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from smelt.base.errors import SmeltError
from smelt.deploy.artifact import export
from tests.capture.explore import programs
from tests.capture.explore.comparing import same
from tests.capture.explore.test_branches import Counting, Gate, UseDropout, UseRelu, both, early, nested, sign
from tests.deploy.c_runtime import RuntimeFailure, Session
from tests.deploy.programs import built, run


def leaves(result: Any) -> list[torch.Tensor]:
    if isinstance(result, dict):
        return leaves(list(result.values()))
    if isinstance(result, tuple | list):
        return [each for item in result for each in leaves(item)]
    if isinstance(result, torch.Tensor):
        return [result]
    number = isinstance(result, bool | int | float)
    return [torch.tensor(result, dtype=torch.float64 if isinstance(result, float) else None)] if number else []


def in_c(tmp_path: Path, function: Callable[..., Any], *inputs: tuple[Any, ...], **options: Any) -> Session:
    """Export with the first of the inputs, and compare in C on all of them. Numbers that are always the same are known
    to Python alone."""
    artifact = export(function, inputs[0], **options)
    session = Session(artifact.save(tmp_path / "model.smelt"))
    for args in inputs:
        copies = [each.clone() if isinstance(each, torch.Tensor) else each for each in args]
        with torch.no_grad():
            expected = leaves(function(*copies))
        found = [each for each in session.run([_given(artifact, each) for each in args]) if each is not None]
        tensors = [each for each in expected if each.dim() or len(found) == len(expected)]
        assert len(found) == len(tensors)
        for ours, theirs in zip(found, tensors, strict=True):
            assert ours.dtype is theirs.dtype
            torch.testing.assert_close(ours, theirs)
    return session


def _given(artifact: Any, value: Any) -> Any:
    if isinstance(value, str):
        choices = next(each.choices for each in artifact.machine.arguments if value in each.choices)
        return choices.index(value)
    return value


def x() -> torch.Tensor:
    return torch.tensor([0.5, -0.25, 0.125])


UP, DOWN, MIXED = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([4.0, -2.0, 1.0])


def test_the_seeds_examples_keep_both_branches(tmp_path: Path) -> None:
    torch.manual_seed(0)
    image = torch.randn(1, 3, 8, 8)
    in_c(tmp_path, UseRelu().eval(), (image, True), (image, False))
    in_c(tmp_path, UseDropout().eval(), (UP, True), (DOWN, False))


@pytest.mark.parametrize("function", [sign, nested, both, early], ids=lambda function: function.__name__)
def test_branches(tmp_path: Path, function: Callable[..., Any]) -> None:
    in_c(tmp_path, function, (UP,), (DOWN,), (MIXED,), (torch.zeros(3),))


def test_a_branch_that_chooses_a_module(tmp_path: Path) -> None:
    torch.manual_seed(0)
    in_c(tmp_path, Gate(), (UP,), (DOWN,), (MIXED,))


def test_a_while_loop_of_no_one_and_fifty_rounds(tmp_path: Path) -> None:
    in_c(tmp_path, programs.halves, (x(),), (x() * 4,), (x() * 2.0**50,))


def test_a_while_loop_in_a_process_without_python(tmp_path: Path) -> None:
    path = export(programs.halves, (x(),)).save(tmp_path / "halves.smelt")
    program = built("examples/deploy/infer.c", tmp_path)
    given, made = tmp_path / "x.bin", tmp_path / "y.bin"
    for scale in (1, 4, 2.0**50):
        given.write_bytes((x() * scale).numpy().tobytes())
        run(program, path, made, given)
        found = torch.frombuffer(bytearray(made.read_bytes()), dtype=torch.float32)
        assert torch.equal(found, programs.halves(x() * scale))


@pytest.mark.parametrize(
    "function",
    [
        programs.counts,
        programs.counts_down,
        programs.ranges,
        programs.steps_down,
        programs.swaps,
        programs.nested_loops,
        programs.keeps_old,
    ],
    ids=lambda function: function.__name__,
)
def test_counted_loops(tmp_path: Path, function: Callable[..., Any]) -> None:
    in_c(tmp_path, function, *[(x(), torch.tensor(count)) for count in (0, 1, 2, 7, 50)])


@pytest.mark.parametrize("function", [programs.fixed_range, programs.continues, programs.recursive])
def test_loops_of_a_fixed_length(tmp_path: Path, function: Callable[..., Any]) -> None:
    in_c(tmp_path, function, (x() * 20,), (x(),), (-x() * 100,), (x() * 1000,))


def test_loops_in_modules(tmp_path: Path) -> None:
    torch.manual_seed(0)
    in_c(tmp_path, programs.Refining(), (x(), 5), (x() * 30, 20), (x(), 0))
    in_c(tmp_path, programs.Indexing(), (x(),), (x() * 30,))


def test_generation_by_concatenation(tmp_path: Path) -> None:
    torch.manual_seed(0)
    table, prompt = torch.randn(9, 4), torch.tensor([[1, 2, 3]])
    in_c(tmp_path, programs.generates, (prompt, table, 9), (prompt, table, 3), (prompt, table, 60))


def test_generation_with_a_cache(tmp_path: Path) -> None:
    torch.manual_seed(1)
    first = torch.tensor([4])
    in_c(tmp_path, programs.CachedGenerator(), (first, 8, 100), (first, 0, 3), (first, 30, 3), (first, 100, 100))


def test_generation_with_a_cache_that_grows(tmp_path: Path) -> None:
    torch.manual_seed(0)
    prompt = torch.tensor([[1, 2, 5, 4]])
    in_c(tmp_path, programs.Generator(), (prompt, 8, 3), (prompt, 2, 3), (prompt, 1, 3), (prompt, 50, 100))


def test_exceptions(tmp_path: Path) -> None:
    session = in_c(tmp_path, programs.checked, (MIXED,))
    with pytest.raises(RuntimeFailure, match="too small"):
        session.run([DOWN])
    with pytest.raises(RuntimeFailure, match="too large"):
        session.run([UP])


def doubles(x: torch.Tensor, n: int) -> torch.Tensor:
    total = 0
    for _ in range(n):
        total = total + 2
    return torch.tensor(total) + x


def fibonacci(x: torch.Tensor, n: int) -> torch.Tensor:
    one, other = 0, 1
    for _ in range(n):
        one, other = other, one + other
    return torch.tensor([one, n, 3]) + x


def halves(x: torch.Tensor, n: int) -> torch.Tensor:
    share = 1.0
    for _ in range(n):
        share = share / 2
    return torch.tensor(share) * torch.as_tensor(n) + x


@pytest.mark.parametrize("function", [doubles, fibonacci, halves])
@pytest.mark.parametrize("example", [3, 7])
def test_numbers_of_loops_that_become_tensors(tmp_path: Path, function: Callable[..., Any], example: int) -> None:
    in_c(tmp_path, function, *[(x(), n) for n in (example, -2, 0, 1, 2, 3, 7, 20)])


def filled(x: torch.Tensor, n: int) -> Any:
    return torch.full((2,), n), torch.full_like(x, n // 2), torch.add(x, n), x.clamp(max=n % 3), n


def first_of(x: torch.Tensor, n: int) -> Any:
    return x[n], x[n % 3], n * 2


def last_of(x: torch.Tensor, n: int) -> Any:
    return x[-n:], x[:n]


def written(x: torch.Tensor, n: int) -> torch.Tensor:
    y = x.clone()
    y[n] = 5.0
    part = y[n:]
    part += 1
    return y


def after_a_branch(x: torch.Tensor, n: int) -> torch.Tensor:
    while x.sum() < 100:
        x = x.abs() * 2 + x[n]
    return x[n] - 1


@pytest.mark.parametrize("function", [filled, first_of, last_of, written, after_a_branch])
def test_numbers_that_may_be_negative(tmp_path: Path, function: Callable[..., Any]) -> None:
    in_c(tmp_path, function, *[(MIXED, n) for n in (2, -3, -2, -1, 0, 1)])


def test_slices_by_numbers_of_any_sign() -> None:
    def part(x: torch.Tensor, first: int, last: int) -> torch.Tensor:
        return x[first:last]

    given, ends = torch.arange(5.0), (-7, -5, -2, -1, 0, 1, 2, 4, 5, 99)
    artifact = export(part, (given, 2, 4))
    for first, last in itertools.product(ends, ends):
        assert torch.equal(artifact(given, first, last), part(given, first, last)), (first, last)


def test_numbers_without_code_are_warned_of() -> None:
    def narrow(x: torch.Tensor, n: int) -> torch.Tensor:
        return torch.tensor(n, dtype=torch.uint8) * x

    with pytest.warns(UserWarning, match="narrow: it has code for some numbers only: a call with n = 7 stops"):
        export(narrow, (UP, 3))


def by_mode(x: torch.Tensor, mode: str, scale: float) -> torch.Tensor:
    x = x * 2 if mode == "double" else x / 2
    return x + scale if scale > 1 else x


def test_strings_from_a_set_and_numbers(tmp_path: Path) -> None:
    inputs = [(UP, "double", 0.5), (UP, "half", 1.5), (DOWN, "half", 2.0)]
    in_c(tmp_path, by_mode, *inputs, dynamic={"mode": ["double", "half"]})


def test_results_of_several_forms() -> None:
    artifact = export(early, (UP,))
    for given in (UP, DOWN, MIXED * 2, torch.zeros(3)):
        same(artifact(given), early(given), 1e-6)


def test_state_in_branches() -> None:
    model = Counting()
    artifact = export(model, (UP,))
    for given in (UP, DOWN, MIXED, UP):
        same(artifact(given), model(given), 1e-6)


def test_what_cannot_be_exported_names_the_line() -> None:
    def prints(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            print(x)
        return x

    with pytest.raises(SmeltError) as caught:
        export(prints, (UP,))
    line = prints.__code__.co_firstlineno + 2
    assert caught.value.code == "SM060" and f"test_control_flow.py:{line}" in caught.value.where


class Account:
    """A plain object with tensors that a method writes."""

    def __init__(self) -> None:
        self.sum = torch.zeros(())
        self.inner: Any = None

    def add(self, value: torch.Tensor) -> torch.Tensor:
        self.sum.add_(1)
        if value.sum() > 0:
            self.inner.sum.add_(value.sum())
        return value


def test_state_has_the_names_that_the_program_has_for_it() -> None:
    account = Account()
    account.inner = Account()
    assert list(export(account.add, (UP,)).state_dict()) == ["sum", "inner.sum"]
    total = torch.zeros(3)

    def accumulate(value: torch.Tensor) -> torch.Tensor:
        total.add_(value)
        if value.sum() > 0:
            total.zero_()
        return value

    assert list(export(accumulate, (UP,)).state_dict()) == ["total"]
