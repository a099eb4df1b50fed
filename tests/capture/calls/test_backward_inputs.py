"""A backward inside of a compiled function to leaves that are named: several times, by two names, or in vain."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt

BACKENDS = ["eager", "aot_eager", "llvm"]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    smelt.reset()


def _method(p: Any, q: Any) -> Any:
    (p * q * p).sum().backward(inputs=[p, p])


def _function(p: Any, q: Any) -> Any:
    torch.autograd.backward([(p * q * p).sum()], inputs=(p, p, q, p))


def _outputs_too(p: Any, q: Any) -> Any:
    loss = (p * q * p).sum()
    torch.autograd.backward([loss, loss], inputs=(p, p))


def _retained(p: Any, q: Any) -> Any:
    loss = (p * q * p).sum()
    loss.backward(inputs=[p, p], retain_graph=True)
    loss.backward(inputs=[q, p, q])


def _with_a_graph(p: Any, q: Any) -> Any:
    (p * q * p).sum().backward(inputs=[p, p], create_graph=True)
    return (p.grad * 2).detach()


def _own_leaf(p: Any, q: Any) -> Any:
    leaf = torch.ones(3, requires_grad=True)
    (leaf * p.detach()).sum().backward(inputs=[leaf, leaf])
    return leaf.grad


def _gradients(p: Any, q: Any) -> Any:
    y = p * 2
    return torch.autograd.grad((y * q * p).sum(), [p, p, y, q, y])


FUNCTIONS = [_method, _function, _outputs_too, _retained, _with_a_graph, _own_leaf, _gradients]


def outcome(call: Callable[..., Any], make: Callable[[], tuple[torch.Tensor, torch.Tensor]]) -> list[Any]:
    found: list[Any] = []
    p, q = make()
    for _ in range(3):
        found.append(call(p, q))
        found += [None if each.grad is None else each.grad.clone() for each in (p, q)]
    return found


def _two() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.nn.Parameter(torch.arange(3.0)), torch.nn.Parameter(torch.arange(2.0, 5.0))


def _one_by_two_names() -> tuple[torch.Tensor, torch.Tensor]:
    p = torch.nn.Parameter(torch.arange(3.0))
    return p, p


def _with_hooks() -> tuple[torch.Tensor, torch.Tensor]:
    p, q = _two()
    p.register_hook(lambda gradient: gradient * 3)  # type: ignore[no-untyped-call]
    return p, q


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("make", [_two, _one_by_two_names, _with_hooks])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_each_leaf_gets_its_gradient_once(function: Any, make: Any, backend: str) -> None:
    found = outcome(smelt.compile(function, backend=backend), make)
    torch.testing.assert_close(found, outcome(function, make))


def _written_since(x: torch.Tensor) -> Any:
    w = x.detach().requires_grad_()
    out = w.sin().sum()
    with torch.no_grad():
        w.mul_(2)
    return torch.autograd.grad(out, w, allow_unused=True)


def _written_since_backward(x: torch.Tensor) -> Any:
    w = x.detach().requires_grad_()
    out = w.sin().sum()
    with torch.no_grad():
        w.mul_(2)
    out.backward(inputs=[w])
    return w.grad


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", [_written_since, _written_since_backward])
def test_a_backward_that_fails_is_not_taken_for_done(function: Any, backend: str) -> None:
    """Where it fails while it is captured, Python runs it; what it goes through must still be there."""
    compiled = smelt.compile(function, backend=backend)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            compiled(torch.randn(3))
    assert torch.is_grad_enabled()
