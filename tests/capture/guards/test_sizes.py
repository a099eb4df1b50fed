"""Sizes and numbers that change: one more compilation, not one per size; 0 and 1 apart; always eager's answer."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import smelt
from smelt.base.errors import SmeltWarning
from smelt.base.events import collect

BACKENDS = ("eager", "aot_eager", "llvm")


def rows(*sizes: int, columns: int = 4) -> list[tuple[torch.Tensor]]:
    return [(torch.randn(size, columns),) for size in sizes]


def follow(
    function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], backend: str = "eager", **options: Any
) -> tuple[int, int]:
    """Compiled equals plain at every call; how many graphs were captured and how often anew."""
    smelt.reset()
    compiled = smelt.compile(function, backend=backend, **options)
    for arguments in calls:
        wanted, got = function(*arguments), compiled(*arguments)
        assert type(got) is type(wanted)
        if isinstance(wanted, torch.Tensor):
            torch.testing.assert_close(got, wanted, equal_nan=True)
        else:
            assert got == wanted
    return smelt.counters["graphs"], smelt.counters["recompiles"]


def pointwise(x: torch.Tensor) -> torch.Tensor:
    return (x + 1).relu() * x.shape[0]


def arithmetic(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(x.shape[0] * 2 + 1) + x.sum()


def views(x: torch.Tensor) -> torch.Tensor:
    rows, columns = x.shape
    return x.t().reshape(columns, rows).softmax(-1).view(-1, rows * 2)


def shapes(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(x.shape[:-1] + (2, 2)).sum(-1)  # noqa: RUF005


def slices(x: torch.Tensor) -> torch.Tensor:
    return x[: x.shape[0] // 2] * (x.size(0) % 3) / x.shape.numel()


def functions(x: torch.Tensor) -> torch.Tensor:
    return x * math.sqrt(x.shape[0] + 1) + math.prod(x.shape) / (len(x) + 1) + torch.arange(x.shape[0])[:, None]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", [pointwise, arithmetic, views, shapes, slices, functions])
def test_a_size_that_changed_is_compiled_for_once_more(function: Callable[..., Any], backend: str) -> None:
    assert follow(function, rows(5, 7, 9, 12, 30, 7, 5), backend) == (2, 1)


def test_zero_and_one_are_compiled_apart() -> None:
    assert follow(pointwise, rows(5, 7, 1, 9, 0, 1, 12, 0)) == (4, 3)


def test_a_size_that_starts_at_one() -> None:
    assert follow(pointwise, rows(1, 5, 7, 1, 9)) == (2, 1)


def test_dynamic_from_the_start() -> None:
    assert follow(pointwise, rows(5, 7, 9), dynamic=True) == (1, 0)
    assert follow(lambda x, n: x * n, [(torch.ones(3), n) for n in (2, 3, 4)], dynamic=True) == (1, 0)


def test_never_dynamic() -> None:
    assert follow(pointwise, rows(5, 7, 9), dynamic=False) == (3, 2)


def test_a_marked_size_is_dynamic_from_the_start() -> None:
    first = torch.randn(5, 4)
    smelt.mark_dynamic(first, 0)
    assert follow(pointwise, [(first,), *rows(7, 9)]) == (1, 0)
    smelt.mark_dynamic(first, -1)
    assert follow(pointwise, [(first,), (torch.randn(3, 6),), *rows(7, 9)]) == (1, 0)


def test_marking_what_is_not_there() -> None:
    with pytest.raises(IndexError, match="no dimension 2"):
        smelt.mark_dynamic(torch.ones(2, 2), 2)
    with pytest.raises(TypeError, match="takes a tensor"):
        smelt.mark_dynamic([1], 0)  # type: ignore[arg-type]
    for bounds in ((3, None), (None, 1), (3, 1), (-1, 5)):
        with pytest.raises(ValueError, match="dimension 0 is 2, which is not from"):
            smelt.mark_dynamic(torch.ones(2, 2), 0, min=bounds[0], max=bounds[1])


def test_a_marked_size_that_is_relied_on_warns() -> None:
    def total(x: torch.Tensor) -> torch.Tensor:
        return sum((x[row] for row in range(x.shape[0])), torch.zeros(4))

    x = torch.randn(5, 4)
    smelt.mark_dynamic(x, 0)
    with pytest.warns(SmeltWarning, match=r"SM013: x.shape\[0\] is marked dynamic.*being 5"):
        follow(total, [(x,)])


def test_a_comparison_splits_the_sizes() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 6:
            return x * 2
        return x * 3

    assert follow(f, rows(5, 4, 3, 7, 8, 100, 6, 2)) == (3, 2)  # five; at most six; more


def test_a_loop_over_a_size_is_unrolled_for_each() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        total = x.sum()
        for row in range(x.shape[0]):
            total = total + x[row].sum()
        return total

    assert follow(f, rows(2, 3, 4, 2, 3, 4)) == (3, 2)


def test_two_sizes_that_must_agree_and_two_that_need_not() -> None:
    def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    pairs = [(torch.randn(n), torch.randn(n)) for n in (3, 4, 5, 6)]
    assert follow(added, pairs) == (2, 1)
    with pytest.raises(RuntimeError, match="must match"):
        smelt.compile(added, backend="eager")(torch.ones(3), torch.ones(4))

    def joined(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, y]) * 2

    sizes = ((3, 3), (4, 3), (4, 5), (6, 6), (8, 9))
    assert follow(joined, [(torch.randn(n), torch.randn(m)) for n, m in sizes]) == (3, 2)


def test_a_layout_that_other_strides_decide_is_no_guard() -> None:
    def rotated(x: torch.Tensor) -> torch.Tensor:
        return -x.transpose(1, 2)[..., 4:]  # contiguous only if 32 is 4 and 8 is 4 times the size

    x = torch.randn(1, 7, 4, 8)
    assert follow(rotated, [(x,), (x[:, :3].clone(),), (x[:, :2].clone(),)]) == (2, 1)


def test_broadcasting_is_not_agreement() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    sizes = ((3, 3), (4, 4), (5, 1), (1, 6), (1, 1), (7, 7), (8, 1))
    follow(f, [(torch.randn(n), torch.randn(m)) for n, m in sizes])


def test_strides_are_checked() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1) * torch.tensor(2.0) + x.stride(0)

    layouts = [torch.randn(n, 4) for n in (3, 5, 6)]
    layouts += [torch.randn(4, n).t() for n in (3, 5, 6)]
    layouts += [torch.randn(n, 8)[:, ::2] for n in (3, 5, 6)]
    layouts += [torch.randn(2 * n, 4)[::2] for n in (3, 5, 6)]
    layouts += [torch.randn(4).expand(n, 4) for n in (3, 5, 6)]
    follow(f, [(x,) for x in layouts])


def test_results_that_are_sizes() -> None:
    def f(x: torch.Tensor) -> Any:
        return x.numel(), x.shape, x.shape[0] * 3 - 1, x.stride(), x.dim(), [*x.shape], x.shape[0] // 2

    assert follow(f, rows(5, 7, 9, 12)) == (0, 1)


def test_text_of_a_size() -> None:
    def f(x: torch.Tensor) -> str:
        return f"{x.shape[0]} rows of {x.shape}"

    follow(f, rows(5, 7, 9))


def test_sizes_as_keys_and_members() -> None:
    def f(x: torch.Tensor) -> Any:
        return {x.shape[0]: "rows"}[x.shape[0]], x.shape[0] in (5, 7), x.shape == (7, 4), x.shape[0] is None

    follow(f, rows(5, 7, 9, 7))


@pytest.mark.parametrize("numbers", [(2, 3, 5, 9, 100), (0.1, 0.2, 0.3, 0.0, -1.0, math.inf)])
def test_a_number_that_changed_is_an_input(numbers: tuple[float, ...]) -> None:
    def f(x: torch.Tensor, n: float) -> torch.Tensor:
        return x * n + torch.add(x, x, alpha=n) - n

    assert follow(f, [(torch.randn(3), n) for n in numbers]) == (2, 1)


def test_integers_that_are_no_sizes() -> None:
    def f(x: torch.Tensor, n: int) -> torch.Tensor:
        return x * n

    follow(f, [(torch.randn(3), n) for n in (2, 3, -4, 0, 1, True, 2**40, 2**70 % 2**63, 5, 2.5)])


def test_an_attribute_that_counts() -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.steps += 1
            return x / self.steps

    plain, counted = Counting(), Counting()
    smelt.reset()
    compiled = smelt.compile(counted, backend="eager")
    x = torch.randn(4)
    for _ in range(12):
        torch.testing.assert_close(compiled(x), plain(x))
    assert counted.steps == 12
    assert smelt.counters["recompiles"] <= 3


def test_a_number_read_from_a_tensor_goes_on_as_an_input() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        scale = x.abs().max().item()
        return x / scale

    smelt.reset()
    compiled = smelt.compile(f, backend="eager")
    for _ in range(8):
        x = torch.randn(5)
        torch.testing.assert_close(compiled(x), f(x))
    assert smelt.counters["graphs"] <= 4


def test_sizes_after_a_break() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        smelt.graph_break()
        return y.view(-1, x.shape[0]) + y.shape[0]

    graphs, _ = follow(f, rows(4, 6, 8, 10))
    assert graphs == 4


@pytest.mark.parametrize("backend", BACKENDS)
def test_training_with_batches_of_any_size(backend: str) -> None:
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 3))
    twin = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 3))
    twin.load_state_dict(plain.state_dict())
    smelt.reset()
    compiled = smelt.compile(twin, backend=backend, fullgraph=True)
    for size in (4, 7, 7, 2, 9, 1, 4):
        x, target = torch.randn(size, 6), torch.randint(3, (size,))
        for model in (plain, compiled):
            torch.nn.functional.cross_entropy(model(x), target).backward()
    for mine, theirs in zip(twin.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)
    assert smelt.counters["graphs"] == 3


def test_the_reason_names_the_sizes() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] == y.shape[0] else y

    smelt.reset()
    compiled = smelt.compile(f, backend="eager")
    with collect() as events:
        for n, m in ((3, 3), (4, 4), (5, 6)):
            compiled(torch.ones(n), torch.ones(m))
    reasons = [event.subject.reason for event in events if event.channel == "recompiles"]  # type: ignore[attr-defined]
    assert reasons[1] == "expected x.shape[0] == y.shape[0], got x.shape[0] = 5, y.shape[0] = 6"


def descent(weight: torch.Tensor, gradient: torch.Tensor, rate: float, step: int) -> torch.Tensor:
    return (weight - rate * gradient) / step + weight * (1 - rate**2)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_numbers_stay_open_in_compiled_code(backend: str, requires_grad: bool) -> None:
    smelt.reset()
    compiled = smelt.compile(descent, backend=backend, fullgraph=True)
    for step in range(2, 9):
        weight, gradient = torch.randn(5, requires_grad=requires_grad), torch.randn(5)
        wanted, got = descent(weight, gradient, 0.1 / step, step), compiled(weight, gradient, 0.1 / step, step)
        torch.testing.assert_close(got, wanted)
        if requires_grad:
            (mine,) = torch.autograd.grad(got.square().sum(), weight)
            (theirs,) = torch.autograd.grad(wanted.square().sum(), weight)
            torch.testing.assert_close(mine, theirs)
    assert smelt.counters["graphs"] == 2
    assert smelt.counters["sizes_compiled"] == (0 if backend == "eager" else 1)


@pytest.mark.parametrize("backend", ["aot_eager", "llvm"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x, n: torch.add(x, x, alpha=n),
        lambda x, n: x.clamp(min=n),
        lambda x, n: torch.where(x > 0, x, n),
        lambda x, n: torch.nn.functional.leaky_relu(x, n),
        lambda x, n: x.sum() * n,
        lambda x, n: torch.arange(3) * n + x,
        lambda x, n: x.masked_fill(x > n, n),
        lambda x, n: x.abs() ** n,
        lambda x, n: n / (x.abs() + 1) - n,
        lambda x, n: torch.full((3,), n) + x,
        lambda x, n: torch.nn.functional.layer_norm(x, (3,), eps=n),
    ],
)
def test_a_float_wherever_an_operator_takes_one(function: Callable[..., Any], backend: str) -> None:
    follow(function, [(torch.randn(3), n) for n in (0.5, 0.25, 0.125, 1.0, 0.0625)], backend)


@pytest.mark.parametrize("backend", ["aot_eager", "llvm"])
def test_more_sizes_than_are_kept(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smelt.pipeline.sizes.dispatch.LIMIT", 3)
    monkeypatch.setattr("smelt.pipeline.sizes.dispatch.BOUND_LIMIT", 3)
    follow(pointwise, rows(2, 3, 4, 5, 6, 7, 3, 6), backend)
    monkeypatch.setattr("smelt.pipeline.sizes.dispatch.VERSIONS", 0)  # compiled for each size alone
    with pytest.warns(SmeltWarning, match="SM012"):
        follow(pointwise, rows(2, 3, 4, 5, 6, 7, 3, 6), backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_size_that_is_relied_on_after_it_was_computed_with(backend: str) -> None:
    def specialized(x: torch.Tensor) -> torch.Tensor:
        y = x * x.shape[0]
        return y + 1 if x.shape[0] == 4 else y

    def equal(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        y = x * (z.shape[0] + 1)
        return y + z

    follow(specialized, rows(3, 4, 5, 4, 6), backend)
    follow(equal, [(torch.randn(n), torch.randn(n)) for n in (3, 4, 5)], backend)


def test_a_tensor_that_is_a_key_is_named_by_its_shape() -> None:
    weight = torch.nn.Parameter(torch.randn(20, 30))
    state: dict[torch.Tensor, torch.Tensor] = {}

    def f(x: torch.Tensor) -> torch.Tensor:
        if weight not in state:
            state[weight] = torch.zeros(30)
        return x + state[weight]

    smelt.reset()
    compiled = smelt.compile(f, backend="eager")
    with collect() as events:
        for _ in range(2):
            compiled(torch.ones(30))
    texts = [event.text for event in events if event.channel in ("guards", "recompiles", "graph")]
    assert any("state[<Parameter of shape (20, 30)>]" in text for text in texts)
    (reason,) = (event.text for event in events if event.channel == "recompiles")
    assert reason.endswith("expected no key Parameter containing:..., found one")
