"""Training steps with gradients of gradients, all in one compiled function: one graph, and the numbers of eager."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from tests.targets import there

BACKENDS = ["eager", "aot_eager", "llvm"]
Step = Callable[[nn.Module, torch.optim.Optimizer, torch.Tensor, torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    smelt.reset()


def _loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), y)


def _norm_of_gradients(model: nn.Module, opt: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    opt.zero_grad()
    _loss(model, x, y).backward(create_graph=True)
    penalty: Any = sum(each.grad.square().sum() for each in model.parameters() if each.grad is not None)
    opt.zero_grad()
    loss: torch.Tensor = _loss(model, x, y) + penalty
    loss.backward()
    opt.step()
    return loss


def _added_up(model: nn.Module, opt: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    opt.zero_grad()
    for each in (x, x.sin()):
        _loss(model, each, y).backward(create_graph=True)
    norm = torch.stack([each.grad.norm() for each in model.parameters() if each.grad is not None]).norm()
    opt.zero_grad()
    norm.backward()
    opt.step()
    return norm  # type: ignore[no-any-return]


def _curvature_by_chance(model: nn.Module, opt: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> Any:
    """AdaHessian: the diagonal of the Hessian, estimated by a random vector; gradients keep their histories."""
    opt.zero_grad()
    loss = _loss(model, x, y)
    loss.backward(create_graph=True)
    weights = list(model.parameters())
    signs = [torch.where(each.detach() > 0, 1.0, -1.0) for each in weights]
    gradients: Any = [each.grad for each in weights]
    products = torch.autograd.grad(gradients, weights, grad_outputs=signs)
    with torch.no_grad():
        for weight, product, sign in zip(weights, products, signs, strict=True):
            assert weight.grad is not None
            weight.addcdiv_(weight.grad, (product * sign).abs() + 0.1, value=-0.05)
    return loss


def _left_with_histories(model: nn.Module, opt: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> Any:
    model.zero_grad()
    loss = _loss(model, x, y)
    loss.backward(create_graph=True)
    return loss


STEPS = [_norm_of_gradients, _added_up, _curvature_by_chance, _left_with_histories]


@there()
def _model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


@there()
def _batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(number)
    return torch.randn(5, 8), torch.randint(4, (5,))


def _trained(step: Step, wrap: Callable[[Step], Step]) -> list[Any]:
    model = _model()
    opt, call = torch.optim.SGD(model.parameters(), lr=0.1), wrap(step)
    told: list[Any] = []
    for number in range(4):
        told.append(call(model, opt, *_batch(number)).detach())
    for each in model.parameters():
        assert each.grad is not None
        told += [each.detach(), each.grad.detach().clone()]
    if step is _left_with_histories:
        curvature: Any = sum(each.grad.square().sum() for each in model.parameters() if each.grad is not None)
        told += torch.autograd.grad(curvature, list(model.parameters()))
    for each in model.parameters():
        each.grad = None  # which leads back to it
    return told


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("step", STEPS, ids=lambda each: each.__name__.strip("_"))
def test_a_step_with_gradients_of_gradients_is_one_graph(step: Step, backend: str) -> None:
    expected = _trained(step, lambda each: each)
    found = _trained(step, lambda each: smelt.compile(each, backend=backend, fullgraph=True))
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=1e-6)
    assert smelt.counters["graphs"] <= 2  # one where there are no gradients yet


@pytest.mark.filterwarnings("ignore:Using backward")
def test_hooks_under_create_graph_are_left_to_python() -> None:
    with there():
        weight, x = torch.ones(3, requires_grad=True), torch.arange(3.0)
    weight.register_hook(lambda gradient: gradient * 2)

    def f(x: torch.Tensor) -> Any:
        weight.grad = None
        (x * weight.exp()).sum().backward(create_graph=True)
        return weight.grad

    torch.testing.assert_close(smelt.compile(f)(x), f(x))
    assert smelt.explain(f, backend="eager")(x).break_reasons[0].code == "B026"
    weight.grad = None
