"""Operators of the program's own whose derivatives look at data: one graph, with the derivative as one call."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import smelt
from smelt.base.errors import SmeltError
from smelt.base.options import config


@pytest.fixture(autouse=True)
def raise_errors() -> Iterator[None]:
    config.suppress_errors = False
    yield
    config.suppress_errors = True


@torch.library.custom_op("smelt_test_opaque::by_group", mutates_args=())
def by_group(x: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor, scale: float) -> torch.Tensor:
    made = x.new_zeros(x.shape[0], weights.shape[2])
    start = 0
    for number, end in enumerate(ends.tolist()):
        made[start:end] = x[start:end] @ weights[number] * scale
        start = end
    return made


@by_group.register_fake
def _(x: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor, scale: float) -> torch.Tensor:
    return x.new_empty(x.shape[0], weights.shape[2])


def _setup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, weights, ends, scale = inputs
    ctx.save_for_backward(x, weights)
    ctx.rest = {"ends": [ends], "scale": scale}


def _backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    x, weights = ctx.saved_tensors
    scale, ends = ctx.rest["scale"], ctx.rest["ends"][0]
    to_x, to_weights = torch.zeros_like(x), torch.zeros_like(weights)
    start = 0
    for number, end in enumerate(ends.tolist()):
        to_x[start:end] = gradient[start:end] @ weights[number].T * scale
        to_weights[number] = x[start:end].T @ gradient[start:end] * scale
        start = end
    return (to_x if ctx.needs_input_grad[0] else None), to_weights, None, None


by_group.register_autograd(_backward, setup_context=_setup)


def by_name(x: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    made = torch.ops.smelt_test_opaque.by_group(x.sin(), weights, ends, 0.5)
    return torch.tanh(made).sum()


def by_object(x: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return torch.tanh(by_group(x.sin(), weights, ends, 0.5)).sum()


@pytest.mark.parametrize("function", [by_name, by_object])
def test_one_graph_whatever_the_sizes(function: Callable[..., torch.Tensor]) -> None:
    smelt.reset()
    compiled = smelt.compile(function, fullgraph=True)
    for rows, first in ((6, 2), (6, 5), (8, 0), (9, 3), (12, 12)):
        x, weights = torch.randn(rows, 4, requires_grad=True), torch.randn(3, 4, 5, requires_grad=True)
        ends = torch.tensor([first, first, rows])
        wanted = torch.autograd.grad(function(x, weights, ends), (x, weights))
        found = torch.autograd.grad(compiled(x, weights, ends), (x, weights))
        torch.testing.assert_close(found, wanted)
    assert smelt.counters["graphs"] == 2 and smelt.counters["sizes_traced"] == 1  # the first sizes, then any
    assert smelt.counters["eager_graphs"] == smelt.counters["sizes_refused"] == 0


def test_gradients_of_some_arguments() -> None:
    smelt.reset()
    compiled = smelt.compile(by_name)
    x, weights, ends = torch.randn(6, 4), torch.randn(3, 4, 5, requires_grad=True), torch.tensor([1, 4, 6])
    (wanted,) = torch.autograd.grad(by_name(x, weights, ends), weights)
    (found,) = torch.autograd.grad(compiled(x, weights, ends), weights)
    torch.testing.assert_close(found, wanted)
    assert smelt.counters["eager_graphs"] == 0


@torch.library.custom_op("smelt_test_opaque::halved", mutates_args=())
def halved(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x + y) / 2


@halved.register_fake
def _(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


def test_a_gradient_that_is_missing_is_told() -> None:
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, None]:
        return gradient * (0.5 if gradient.sum().item() > 0 else 0.25), None

    halved.register_autograd(backward)
    x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    result = smelt.compile(lambda x, y: torch.ops.smelt_test_opaque.halved(x, y).sum())(x, y)
    with pytest.raises(SmeltError, match=r"SM023.*returns no gradient"):
        result.backward()


@torch.library.custom_op("smelt_test_opaque::through_numpy", mutates_args=())
def through_numpy(x: torch.Tensor, by: str) -> torch.Tensor:
    return x.sin()


@through_numpy.register_fake
def _(x: torch.Tensor, by: str) -> torch.Tensor:
    return torch.empty_like(x)


def _cosine(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
    x = ctx.saved_tensors[0].detach().cpu()
    array = {"numpy": lambda: x.numpy(), "asarray": lambda: np.asarray(x), "dlpack": lambda: np.from_dlpack(x)}[ctx.by]
    return gradient * torch.from_numpy(np.cos(array())).to(gradient.device), None


def _keep(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.by = inputs[1]


through_numpy.register_autograd(_cosine, setup_context=_keep)


@pytest.mark.parametrize("backend", ["aot_eager", "llvm"])
@pytest.mark.parametrize("by", ["numpy", "asarray", "dlpack"])
def test_a_derivative_through_numpy_reads_no_memory_that_is_not_there(by: str, backend: str) -> None:
    def gradient(x: torch.Tensor) -> torch.Tensor:
        (found,) = torch.autograd.grad(torch.ops.smelt_test_opaque.through_numpy(x * 2, by).sum(), x)
        return found

    def value(x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = torch.ops.smelt_test_opaque.through_numpy(x * 2, by)
        return made

    inside, outside = smelt.compile(gradient, backend=backend), smelt.compile(value, backend=backend)
    for _ in range(2):
        x = torch.randn(5, requires_grad=True)
        torch.testing.assert_close(inside(x), (2 * x).cos() * 2)
        torch.testing.assert_close(torch.autograd.grad(outside(x).sum(), x)[0], (2 * x).cos() * 2)
