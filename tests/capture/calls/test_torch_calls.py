"""Calls of torch that are more than an operator: `out=`, functions made on demand, weights behind weak references."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.base.events import collect
from smelt.capture import BreakRecord
from tests.capture.programs import compare


def breaks_of(function: Callable[..., Any], *args: Any) -> int:
    with collect() as events:
        function(*args)
    return sum(isinstance(event.subject, BreakRecord) for event in events)


@pytest.mark.parametrize("backend", ["eager", "llvm"])
@pytest.mark.parametrize(
    ("out", "breaks"),
    [
        (torch.zeros(3, 4), 0),
        (torch.zeros(4, 3).t(), 0),
        (torch.zeros(3, 8)[:, ::2], 0),
        (torch.zeros(3, 4, dtype=torch.float64), 1),
        (torch.zeros(0), 1),
    ],
    ids=["alike", "transposed", "strided", "wider", "empty"],
)
def test_out_is_written(out: torch.Tensor, breaks: int, backend: str) -> None:
    def function(x: torch.Tensor, out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, bool]:
        made = torch.add(x, 1, out=out)
        return made * 2, out + 1, made is out

    x, mine, theirs = torch.randn(3, 4), out.clone(), out.clone()
    compiled = smelt.compile(function, backend=backend)
    assert breaks_of(compiled, x, out.clone()) == breaks
    result, eager = compiled(x, mine), function(x, theirs)
    assert result[2] and eager[2]
    for one, other in zip((*result[:2], mine), (*eager[:2], theirs), strict=True):
        assert torch.equal(one, other) and one.stride() == other.stride()


def test_out_with_gradients_is_refused_as_ever() -> None:
    x = torch.randn(3, requires_grad=True)
    for function in (torch.sin, smelt.compile(lambda x, out: torch.sin(x, out=out))):
        with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
            function(x, out=torch.zeros(3))


def test_modules_that_answer_on_demand() -> None:
    def function(x: torch.Tensor) -> tuple[Any, ...]:
        here = hasattr(torch._VF, "tanh"), hasattr(torch._VF, "no_such_function")
        return torch._VF.tanh(x), *here, torch._VF.__name__

    x = torch.randn(3)
    result = smelt.compile(function, backend="eager")(x)
    assert torch.equal(result[0], x.tanh()) and result[1:] == (True, False, "torch._VF")


def test_recurrent_weights_that_are_replaced() -> None:
    torch.manual_seed(0)
    layer, x = torch.nn.GRU(3, 4), torch.randn(5, 2, 3)
    compiled = smelt.compile(layer, backend="eager")
    assert torch.equal(compiled(x)[0], layer(x)[0])
    layer.weight_ih_l0 = torch.nn.Parameter(torch.randn(12, 3))
    assert torch.equal(compiled(x)[0], layer(x)[0])
    given = {"weight_hh_l0": torch.randn(12, 4)}
    assert torch.equal(
        torch.func.functional_call(compiled, given, x)[0], torch.func.functional_call(layer, given, x)[0]
    )
    assert torch.equal(compiled(x)[0], layer(x)[0])


@pytest.mark.parametrize("backend", ["eager", "llvm"])
def test_a_draw_that_cannot_change_the_branch(backend: str) -> None:
    def function(x: torch.Tensor, p: float) -> torch.Tensor:
        for scale in (2.0, 3.0):
            drawn = torch.rand([])
            if drawn < p or drawn >= 1.5 or 2 < drawn:  # noqa: SIM300
                continue
            x = x * scale + torch.rand_like(x)
        return x

    x = torch.randn(3)
    compiled = smelt.compile(function, backend=backend)
    for p, breaks in ((0.0, 0), (-1.0, 0), (1.5, 0), (0.5, 4), (1.0, 4)):
        for call in range(4):
            torch.manual_seed(call)
            expected, following = function(x, p), torch.rand(2)
            torch.manual_seed(call)
            assert torch.equal(compiled(x, p), expected)
            assert torch.equal(torch.rand(2), following), "the generator stands where eager leaves it"
        assert breaks_of(smelt.compile(function, backend=backend), x, p) <= breaks
        if not breaks:
            assert breaks_of(smelt.compile(function, backend=backend), x, p) == 0


def test_a_draw_that_was_written_over_decides_nothing() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        drawn = torch.rand(1)
        view = drawn[0]
        view.sub_(5)
        return x + 1 if drawn < 0.0 else x - 1

    compiled = smelt.compile(function, backend="eager")
    assert breaks_of(compiled, torch.zeros(2)) == 1
    assert torch.equal(compiled(torch.zeros(2)), torch.ones(2))


@torch.jit.script
def scripted(x: torch.Tensor, scale: int) -> torch.Tensor:
    if x.size(0) > 2:
        return x * torch.sqrt(torch.tensor(x.size(0), dtype=torch.float) * scale)
    return x - scale


def test_scripted_functions_and_notes_of_types_are_followed() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        sizes = torch.jit.annotate(list[int], [2, 3])
        assert isinstance(sizes, list | tuple)
        return scripted(x, sizes[1])

    compiled = smelt.compile(function, backend="eager", fullgraph=True)
    for x in (torch.randn(3), torch.randn(2)):
        assert torch.equal(compiled(x), function(x))
    fits = dict[str, tuple[int, ...]]
    assert smelt.compile(lambda x: dict[str, tuple[int, ...]], backend="eager")(torch.ones(1)) == fits


def test_a_function_known_by_its_name_is_guarded() -> None:
    def function(x: torch.Tensor, ask: Callable[[], bool]) -> torch.Tensor:
        return x + 1 if ask() else x - 1

    compiled = smelt.compile(function, backend="eager")
    assert compiled(torch.zeros(1), torch.compiler.is_compiling) == 1
    assert compiled(torch.zeros(1), lambda: False) == -1
    assert compiled(torch.zeros(1), torch.compiler.is_exporting) == -1
    assert compiled(torch.zeros(1), lambda: True) == 1


@pytest.mark.parametrize("backend", ["eager", "llvm"])
def test_numbers_drawn_for_nobody_are_drawn(backend: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        torch.rand(3)
        return x

    x = torch.ones(2)
    torch.manual_seed(0)
    function(x)
    following = torch.rand(2)
    torch.manual_seed(0)
    assert smelt.compile(function, backend=backend)(x) is x
    assert torch.equal(torch.rand(2), following)


def test_a_torch_function_that_is_given_python_is_followed():
    """It is no operator: what it calls leads to some."""
    seen = []

    def distance(a, b):
        seen.append(1)
        return (a - b).abs().sum(1)

    def program(a, b, c):
        return torch.nn.functional.triplet_margin_with_distance_loss(a, b, c, distance_function=distance, swap=True)

    inputs = [torch.randn(3, 4) for _ in range(3)]
    assert not compare(program, *inputs).breaks
    assert len(seen) == 18


def test_questions_about_dtypes_are_answered_while_capturing() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        with torch.no_grad():
            wider = torch.promote_types(x.dtype, y.dtype)
            result = x.to(wider) + y, torch.can_cast(y.dtype, x.dtype), torch.is_grad_enabled()
        return result, torch.is_grad_enabled()

    x, y = torch.ones(3, dtype=torch.float16), torch.ones(3, requires_grad=True)
    found, enabled = smelt.compile(function, fullgraph=True, backend="eager")(x, y)
    wanted, _ = function(x, y)
    assert torch.equal(found[0], wanted[0]) and found[1:] == wanted[1:] and enabled and torch.is_grad_enabled()
