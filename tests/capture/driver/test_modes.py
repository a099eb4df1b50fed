"""Modes that watch operators see those of compiled functions too, and may change what they yield."""

from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import smelt
from smelt.base.events import collect
from smelt.capture import BreakRecord


class Dispatched(TorchDispatchMode):
    """Adds to every product, below autograd."""

    def __init__(self, amount: int) -> None:
        super().__init__()
        self.amount = amount

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result + self.amount if func is torch.ops.aten.mul.Tensor else result


class Called(TorchFunctionMode):
    """Adds to every product, where it is called."""

    def __init__(self, amount: int) -> None:
        super().__init__()
        self.amount = amount

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result + self.amount if func is torch.mul else result


def product(x: torch.Tensor) -> torch.Tensor:
    y = torch.mul(x, 2)
    smelt.graph_break()
    return torch.mul(y, 3) - 1


@pytest.mark.parametrize("mode", [Dispatched, Called])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "llvm"])
@pytest.mark.parametrize("warm", [False, True])
def test_a_mode_changes_a_compiled_function_as_it_does_python(mode: Any, backend: str, warm: bool) -> None:
    compiled = smelt.compile(product, backend=backend)
    x = torch.ones(3)
    if warm:
        compiled(x)
    for amount in (10, 100):
        with mode(amount):
            expected, got = product(x), compiled(x)
        assert torch.equal(got, expected)
    assert torch.equal(compiled(x), torch.full((3,), 5.0))


def test_what_was_first_met_under_a_mode_is_compiled_later() -> None:
    smelt.reset()
    compiled = smelt.compile(product, backend="eager")
    with Called(1):
        compiled(torch.ones(3))
    assert smelt.counters["graphs"] == 0 and smelt.counters["calls_under_modes"] == 1
    compiled(torch.ones(3))
    assert smelt.counters["graphs"] == 2


class EntersAMode(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.mul(x, 2)
        with Called(10):
            y = torch.mul(y, 3)
        return torch.mul(y, 4)


def test_a_mode_entered_inside() -> None:
    model, x = EntersAMode(), torch.ones(2)
    compiled = smelt.compile(model)
    for _ in range(2):
        assert torch.equal(compiled(x), model(x))


@pytest.mark.parametrize("backend", ["eager", "llvm"])
@pytest.mark.parametrize("known", [False, True], ids=["cold", "warm"])
def test_transforms_see_every_operator(backend: str, known: bool) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * 2).sum(0) + x.size(0)

    x, compiled = torch.randn(3, 4), smelt.compile(f, backend=backend)
    if known:
        compiled(x[0])
    for transformed in (torch.vmap, torch.func.grad, lambda g: torch.vmap(torch.func.grad(g))):
        given = x[0] if transformed is torch.func.grad else x
        torch.testing.assert_close(transformed(compiled)(given), transformed(f)(given))
    for one, other in zip(*(torch.func.jvp(g, (x,), (x + 1,)) for g in (compiled, f)), strict=True):
        torch.testing.assert_close(one, other)


def test_transforms_inside_are_captured() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        gradient = torch.func.grad(lambda y: (y**2).sum())
        return gradient(x * 2) + torch.vmap(lambda y: y * 3)(x)

    compiled = smelt.compile(f, backend="eager")
    with collect() as events:
        torch.testing.assert_close(compiled(torch.ones(2, 3)), f(torch.ones(2, 3)))
    assert [event.subject.code for event in events if isinstance(event.subject, BreakRecord)] == []
