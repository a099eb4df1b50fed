"""`Tensor.data`: the same memory without a history, whose writes no version counts."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import smelt

BACKENDS = ["eager", "aot_eager", "llvm"]
Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    smelt.reset()


def _parameter() -> nn.Parameter:
    return nn.Parameter(torch.arange(1.0, 5.0))


def _linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def _what_a_backward_saved_changes(wrap: Wrap) -> list[Any]:
    def f(p: torch.Tensor, x: torch.Tensor) -> Any:
        y = (p * x).exp() * p
        p.data.mul_(0.5)
        return torch.autograd.grad(y.sum(), [p, x])

    p, x = _parameter(), torch.full((4,), 3.0, requires_grad=True)
    return [*wrap(f)(p, x), p.detach(), p._version]


def _what_a_later_backward_saved_changes(wrap: Wrap) -> list[Any]:
    def f(p: torch.Tensor, x: torch.Tensor) -> Any:
        y = (p * x).sin() * p
        p.data.mul_(0.5)
        return y

    p, x = _parameter(), torch.full((4,), 3.0, requires_grad=True)
    y = wrap(f)(p, x)
    y.sum().backward()
    return [p.grad, x.grad, p.detach(), p._version, y.detach()]


def _what_an_earlier_backward_saved_changes(wrap: Wrap) -> list[Any]:
    def f(p: torch.Tensor) -> Any:
        p.data.mul_(2)
        return p.sum()

    p, x = _parameter(), torch.ones(4, requires_grad=True)
    loss = (p * x).sin().sum()
    wrap(f)(p)
    loss.backward()
    return [p.grad, x.grad, p.detach()]


def _versions(wrap: Wrap) -> list[Any]:
    def f(p: torch.Tensor) -> Any:
        p.data.add_(1)
        p.data.data.view(2, 2)[0].fill_(7.0)
        return p * 2

    p = _parameter()
    y = wrap(f)(p)
    return [p.detach(), p._version, y.detach()]


def _of_what_is_computed(wrap: Wrap) -> list[Any]:
    def f(p: torch.Tensor) -> Any:
        y = p.exp()
        y.data.add_(1)
        return y, (y * 2).sum()

    p = _parameter()
    y, z = wrap(f)(p)
    z.backward()
    return [p.grad, y.detach(), z.detach(), y._version]


def _returned(wrap: Wrap) -> list[Any]:
    p = _parameter()
    data, y = wrap(lambda p: (p.data, p * 2))(p)
    data.add_(1)
    return [p.detach(), data, data.requires_grad, data.is_leaf, y.requires_grad]


def _by_two_names(wrap: Wrap) -> list[Any]:
    def f(p: torch.Tensor, q: torch.Tensor) -> Any:
        p.data.mul_(2)
        return q + 1, p + 1

    p = _parameter()
    a, b = wrap(f)(p, p.detach())
    return [p.detach(), a, b.detach()]


def _updates(wrap: Wrap) -> list[Any]:
    model = _linear()

    def f(x: torch.Tensor) -> Any:
        model.zero_grad()
        loss = model(x).pow(2).sum()
        loss.backward()
        for p in model.parameters():
            assert p.grad is not None
            p.data -= 0.1 * p.grad.data
        return loss

    call = wrap(f)
    losses = [call(torch.ones(2, 3)).detach() for _ in range(3)]
    return [*losses, model.weight.detach(), model.weight._version, model.weight.grad]


def _gradients_set_to_zero(wrap: Wrap) -> list[Any]:
    model = _linear()

    def f(x: torch.Tensor) -> Any:
        loss = model(x).pow(2).sum()
        loss.backward()
        for p in model.parameters():
            assert p.grad is not None
            p.data.add_(p.grad.data, alpha=-0.1)
            p.grad.data.zero_()
        return loss

    call = wrap(f)
    losses = [call(torch.ones(2, 3)).detach() for _ in range(3)]
    return [*losses, model.weight.detach(), model.weight._version, model.weight.grad]


def _of_a_buffer(wrap: Wrap) -> list[Any]:
    def f(b: torch.Tensor) -> Any:
        b.data.copy_(b + 1)
        return b * 2

    buffer, call = torch.zeros(3), wrap(f)
    return [*(call(buffer) for _ in range(3)), buffer, buffer._version]


PROGRAMS = [
    _what_a_backward_saved_changes,
    _what_a_later_backward_saved_changes,
    _what_an_earlier_backward_saved_changes,
    _versions,
    _of_what_is_computed,
    _returned,
    _by_two_names,
    _updates,
    _gradients_set_to_zero,
    _of_a_buffer,
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_data_is_captured(program: Callable[[Wrap], list[Any]], backend: str) -> None:
    ours = program(lambda f: smelt.compile(f, backend=backend, fullgraph=True))
    for one, other in zip(ours, program(lambda f: f), strict=True):
        torch.testing.assert_close(one, other)


def test_other_memory_is_a_break() -> None:
    def f(p: torch.Tensor) -> Any:
        p.data = torch.zeros(4)
        return p + 1

    p = _parameter()
    torch.testing.assert_close(smelt.compile(f)(p), torch.ones(4, requires_grad=True) * 1)
    assert smelt.counters["graph_breaks"] == 1
