"""Distances between points, and their gradients: by differences, each of a pair in memory."""

import math
from typing import Any

import torch

from smelt.chips.decompose.table import computes
from smelt.device.host_library import HOST

Tensor = torch.Tensor
aten = torch.ops.aten


def _slopes(apart: Tensor, distance: Tensor, grad: Tensor, p: float) -> Tensor:
    """What a distance's gradient is for each difference; where there is no distance, nothing."""
    size = apart.abs()
    if p == 0:
        return torch.zeros_like(apart)
    if p == 1:
        return grad * apart.sign()
    if p == math.inf:
        return grad * apart.sign() * (size == distance).to(grad.dtype)
    safe = torch.where(distance == 0.0, 1.0, distance)
    if p == 2:
        found = grad * apart / safe
    elif p < 2:
        found = apart.sign() * size.pow(p - 1) * grad / safe.pow(p - 1)
        found = torch.where((apart == 0.0) & torch.full_like(apart, p < 1, dtype=torch.bool), 0.0, found)
    else:
        found = apart * size.pow(p - 2) * grad / safe.pow(p - 1)
    return torch.where(distance == 0.0, 0.0, found)


@computes(aten._cdist_backward.default)
def cdist_backward(grad: Tensor, one: Tensor, other: Tensor, p: float, distance: Tensor) -> Tensor:
    apart = one.unsqueeze(-2) - other.unsqueeze(-3)
    return _slopes(apart, distance.unsqueeze(-1), grad.unsqueeze(-1), p).sum(-2)


def _pairs(count: int, device: Any) -> tuple[Tensor, Tensor]:
    found = [torch.triu_indices(count, count, 1, device=HOST)[n].to(device) for n in (0, 1)]
    return found[0], found[1]


@computes(aten._pdist_forward.default)
def pdist(x: Tensor, p: float = 2) -> Tensor:
    first, second = _pairs(x.shape[0], x.device)
    size = (x[first] - x[second]).abs()
    if p == 0:
        return (size != 0.0).to(x.dtype).sum(-1)
    if p == math.inf:
        return size.amax(-1)
    return size.sum(-1) if p == 1 else (size * size).sum(-1).sqrt() if p == 2 else size.pow(p).sum(-1).pow(1 / p)


@computes(aten._pdist_backward.default)
def pdist_backward(grad: Tensor, x: Tensor, p: float, distance: Tensor) -> Tensor:
    first, second = _pairs(x.shape[0], x.device)
    found = _slopes(x[first] - x[second], distance.unsqueeze(-1), grad.unsqueeze(-1), p)
    return torch.zeros_like(x).index_add(0, first, found).index_add(0, second, -found)
