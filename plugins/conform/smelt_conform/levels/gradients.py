"""Level `autograd`: gradients of the levels before, of second order, and through views and in-place writes."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from smelt.device.host_library import HOST
from smelt_conform.bench import Bench, compared, numbers
from smelt_conform.check import Check, Level
from smelt_conform.programs.functions import normed_product

Function = Callable[..., torch.Tensor]


def _gradients(device: str, function: Function, *shapes: tuple[int, ...]) -> Any:
    inputs = [numbers(device, *shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes)]
    return torch.autograd.grad(function(*inputs).square().sum(), inputs)


def _elementwise(device: str) -> Any:
    return _gradients(device, lambda x, y: F.gelu(x) * y.sigmoid() + (x * y).tanh(), (6, 9), (9,))


def _reductions(device: str) -> Any:
    return _gradients(device, lambda x: F.layer_norm(x, (9,)).softmax(-1) + x.mean(0) + x.amax(1, keepdim=True), (6, 9))


def _products(device: str) -> Any:
    return _gradients(device, lambda x, w, b: F.linear(x, w, b) @ w, (5, 6), (7, 6), (7,))


def _convolutions(device: str) -> Any:
    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(F.conv2d(x, w, b, padding=1), 2)

    return _gradients(device, function, (2, 3, 8, 8), (4, 3, 3, 3), (4,))


def _indexing(device: str) -> Any:
    rows = torch.tensor([1, 3, 3, 9]).to(device)
    return _gradients(device, lambda x: F.embedding(rows, x) + x[rows], (10, 4))


def _losses(device: str) -> Any:
    classes = torch.tensor([0, 3, 2, -100, 1]).to(device)
    return _gradients(device, lambda x: F.cross_entropy(x, classes) + F.mse_loss(x, x.detach() + 1), (5, 4))


def _attention(device: str) -> Any:
    return _gradients(device, lambda q: F.scaled_dot_product_attention(q, q * 2, q * 3, is_causal=True), (2, 2, 5, 8))


def _second(device: str) -> Any:
    x = numbers(device, 5).requires_grad_()
    (first,) = torch.autograd.grad(x.sin().sum(), [x], create_graph=True)
    return torch.autograd.grad(first.square().sum(), [x])


def _views(device: str) -> Any:
    x = numbers(device, 6, 4).requires_grad_()
    y = x * 2
    y[1:3].mul_(3)
    y.t()[0].add_(y.t()[1].detach())
    return torch.autograd.grad(y.square().sum(), [x])


def _accumulated(device: str) -> Any:
    layer = torch.nn.Linear(4, 3)
    with torch.no_grad():
        layer.weight.copy_(numbers(HOST.type, 3, 4))
        layer.bias.zero_()
    layer.to(device)
    seen = []
    weight: Any = layer.weight
    weight.register_hook(lambda grad: seen.append(grad.detach().clone()))
    for seed in range(3):
        checkpoint(layer, numbers(device, 5, 4, seed=seed), use_reentrant=False).square().sum().backward()
    return layer.weight.grad, layer.bias.grad, *seen


def _autocast(device: str) -> Any:
    x, w = numbers(device, 6, 8).requires_grad_(), numbers(device, 8, 5, seed=1).requires_grad_()
    with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
        loss = (x @ w).float().square().mean()
    return [grad / 4 for grad in torch.autograd.grad(loss, [x, w])]


def _compiled(bench: Bench) -> None:
    def program(device: str) -> Any:
        return _gradients(device, bench.compiled_on(device, normed_product), (6, 9), (9, 7))

    bench.agrees(program)


_AS_FORWARD = "the level that computes the same forward, first"

LEVEL = Level(
    "autograd",
    "Autograd",
    (
        Check("elementwise", "gradients of element-wise functions", _AS_FORWARD, compared(_elementwise)),
        Check("reductions", "gradients of norms, softmax and means", _AS_FORWARD, compared(_reductions)),
        Check("products", "gradients of products", _AS_FORWARD, compared(_products)),
        Check(
            "convolutions",
            "gradients of convolutions and pooling",
            _AS_FORWARD,
            compared(_convolutions, rtol=1e-4, atol=1e-4),
        ),
        Check(
            "indexing", "gradients of rows of a table", "compile(): atomic additions", compared(_indexing, torch.int64)
        ),
        Check("losses", "gradients of losses", _AS_FORWARD, compared(_losses, torch.int64)),
        Check("attention", "gradients of attention", _AS_FORWARD, compared(_attention, rtol=1e-4, atol=1e-4)),
        Check("second", "derivatives of second order", _AS_FORWARD, compared(_second)),
        Check("views", "gradients through views and writes in place", "level copies: views, writes", compared(_views)),
        Check(
            "accumulated", "gradients that accumulate, hooks, checkpoints", "level queue: order", compared(_accumulated)
        ),
        Check(
            "autocast",
            "gradients in mixed precision",
            "Target.dtypes: bfloat16",
            compared(_autocast, torch.bfloat16, rtol=3e-2, atol=3e-2),
        ),
        Check("compiled", "gradients of a compiled function", _AS_FORWARD, _compiled),
    ),
)
