"""Training by derivatives of derivatives, eagerly and through compiled models, over twenty steps: the same losses."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from examples import second_derivatives


@pytest.fixture
def double() -> Iterator[None]:
    """In float32 a Newton step magnifies that gradients are summed in another order."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def compiled_with(backend: str) -> Callable[[nn.Module], Any]:
    return lambda model: smelt.compile(model, backend=backend, fullgraph=True)


@pytest.mark.parametrize("backend", ["aot_eager", "llvm"])
@pytest.mark.parametrize("name", second_derivatives.TRAININGS)
def test_twenty_steps(name: str, backend: str, double: None) -> None:
    smelt.reset()
    mine = second_derivatives.run(name, compiled_with(backend))
    assert smelt.counters["joint_graphs"] > 0 and smelt.counters["eager_graphs"] == 0
    assert (smelt.counters["kernels"] > 0) == (backend == "llvm")
    assert mine == pytest.approx(second_derivatives.run(name, lambda model: model), rel=1e-8)


@pytest.mark.parametrize("backend", ["aot_eager", "llvm"])
def test_derivatives_taken_inside_what_is_compiled(backend: str) -> None:
    """The loss function, its gradients of first and second order included, as the compiled function."""

    def losses(compiled: Callable[..., Any]) -> list[float]:
        torch.manual_seed(0)
        net = second_derivatives.mlp(1, 16, 1).double()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

        def residual(x: torch.Tensor) -> torch.Tensor:
            u = net(x)
            (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
            (curvature,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
            return (curvature + u.sin()).square().mean()

        run = compiled(residual)
        return [
            second_derivatives.stepped(optimizer, run(torch.rand(8, 1, dtype=torch.float64).requires_grad_()))
            for _ in range(10)
        ]

    mine = losses(lambda function: smelt.compile(function, backend=backend))
    assert mine == pytest.approx(losses(lambda function: function), rel=1e-9)


@pytest.mark.parametrize("backend", ["aot_eager", "llvm"])
@pytest.mark.parametrize("create_graph", [False, True])
def test_many_tangents_at_once(backend: str, create_graph: bool) -> None:
    """`is_grads_batched`, which vectorized Jacobians use: kernels would read memory that such tangents do not have."""
    function = lambda x, w: (torch.tanh(x) * x.sum() * w, w.exp())  # noqa: E731
    compiled = smelt.compile(function, backend=backend, fullgraph=True)
    found = []
    for call in (function, compiled):
        x = torch.linspace(-1, 1, 4, dtype=torch.float64).requires_grad_()
        w = torch.linspace(1, 2, 4, dtype=torch.float64).requires_grad_()
        first, second = call(x, w)
        tangents = torch.eye(4, dtype=torch.float64)
        settings = {"is_grads_batched": True, "create_graph": create_graph, "retain_graph": True}
        rows = torch.autograd.grad(first, (x, w), tangents, **settings)
        both = torch.autograd.grad((first, second), (x, w), (tangents, tangents.flip(0)), **settings)
        assert all(each.requires_grad is create_graph for each in (*rows, *both))
        jacobian = torch.autograd.functional.jacobian(lambda x, w=w, call=call: call(x, w)[0], x, vectorize=True)
        found.append([*rows, *both, jacobian])
    for mine, theirs in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(mine, theirs)
