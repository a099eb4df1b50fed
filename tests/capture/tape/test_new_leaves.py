"""Leaves that a compiled function makes: factories with `requires_grad=True`, and `requires_grad_()`."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt

BACKENDS = ["eager", "aot_eager", "llvm"]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    smelt.reset()


def _about(value: Any) -> Any:
    """All that a program can see of a result."""
    if isinstance(value, tuple):
        return tuple(map(_about, value))
    if not isinstance(value, torch.Tensor):
        return value
    gradient = None if not value.is_leaf or value.grad is None else value.grad.tolist()
    return value.requires_grad, value.is_leaf, gradient, value.tolist()


def _made_and_used(x: torch.Tensor) -> Any:
    leaf = torch.zeros_like(x, requires_grad=True)
    return leaf, (x * leaf.exp()).sum()


def _made_and_gone_back_to(x: torch.Tensor) -> Any:
    leaf = (x * 2).requires_grad_()
    loss = (x * leaf.exp()).sum()
    loss.backward()
    return leaf, loss


def _gradient_read_and_dropped(x: torch.Tensor) -> Any:
    leaf = (x * 2).requires_grad_()
    (x * leaf.exp()).sum().backward()
    assert leaf.grad is not None
    gradient = leaf.grad * 2
    leaf.grad = None
    return leaf.detach(), gradient


def _gone_back_to_twice(x: torch.Tensor) -> Any:
    leaf = x.detach()
    leaf.requires_grad = True
    (x * leaf.exp()).sum().backward()
    (leaf * leaf).sum().backward()
    return leaf.grad


def _no_more(x: torch.Tensor) -> Any:
    leaf = x.detach().requires_grad_()
    y = leaf * 2
    leaf.requires_grad_(False)
    z = leaf * 3
    return y.requires_grad, z.requires_grad, leaf.requires_grad, leaf


def _asked_for(x: torch.Tensor) -> Any:
    leaf = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(leaf.pow(3).sum(), leaf, create_graph=True)
    (second,) = torch.autograd.grad(slope.sum(), leaf)
    return slope.detach(), second


PROGRAMS = [
    _made_and_used,
    _made_and_gone_back_to,
    _gradient_read_and_dropped,
    _gone_back_to_twice,
    _no_more,
    _asked_for,
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_leaves_are_those_of_eager(program: Callable[..., Any], backend: str) -> None:
    x = torch.ones(3)
    compiled = smelt.compile(program, backend=backend, fullgraph=True)
    for _ in range(2):
        assert _about(compiled(x)) == _about(program(x))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backward_outside_reaches_a_leaf_made_inside(backend: str) -> None:
    """Compiled code lost it: the loss did not require grad."""
    x = torch.ones(3)
    leaf, loss = smelt.compile(_made_and_used, backend=backend)(x)
    loss.backward()
    assert leaf.grad.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_leaf_lives_on_behind_a_break(backend: str) -> None:
    def f(x: torch.Tensor) -> Any:
        leaf = x.detach().requires_grad_()
        y = leaf.exp()
        smelt.graph_break()
        y.sum().backward()
        return leaf, leaf.grad

    assert _about(smelt.compile(f, backend=backend)(torch.ones(3))) == _about(f(torch.ones(3)))


def test_a_leaf_that_has_gone_leaves_the_graph_compiled() -> None:
    """Forces are slopes of an energy, and are trained themselves: where the atoms are is a leaf that nobody sees."""

    def train(wrap: Callable[..., Any]) -> list[Any]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))

        def forces(places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            places = places.clone().requires_grad_()
            energy = model(places).sum()
            return energy, -torch.autograd.grad(energy, places, create_graph=True)[0]

        energy, force = wrap(forces)(torch.ones(4, 3))
        (energy.pow(2) + force.pow(2).sum()).backward()
        return [energy.detach(), force.detach(), *(each.grad for each in model.parameters())]

    torch.testing.assert_close(train(lambda f: smelt.compile(f, fullgraph=True)), train(lambda f: f))
    assert smelt.counters["kernels"] > 0


def test_an_argument_is_the_callers() -> None:
    def f(x: torch.Tensor) -> Any:
        x.requires_grad_()
        return x * 2

    x = torch.ones(3)
    y = smelt.compile(f)(x)
    assert x.requires_grad and y.requires_grad and smelt.counters["graph_breaks"] == 1
