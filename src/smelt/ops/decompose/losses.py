"""Losses: the pointwise term, then a mean or a sum (reduction 0 is none, 1 mean, 2 sum).

mse_loss(x, y, 1) → d = x - y; mean(d·d)
"""

import torch

from smelt.base.sizes import product
from smelt.ops.decompose.table import choose, decomposes, widen

Tensor = torch.Tensor
aten = torch.ops.aten
_MEAN, _SUM = 1, 2


def _reduced(term: Tensor, reduction: int) -> Tensor:
    if reduction == _MEAN:
        return torch.mean(term)
    return torch.sum(term) if reduction == _SUM else term


def _shared(grad: Tensor, like: Tensor, reduction: int) -> Tensor:
    """The gradient of each term, given that of the reduced loss."""
    wide = widen(grad)
    return wide * (1.0 / product(like.shape)) if reduction == _MEAN else wide


@decomposes(aten.mse_loss.default)
def mse_loss(x: Tensor, target: Tensor, reduction: int = _MEAN) -> Tensor:
    difference = widen(x) - widen(target)
    return _reduced(difference * difference, reduction).to(x.dtype)


@decomposes(aten.mse_loss_backward.default)
def mse_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    difference = widen(x) - widen(target)
    return (difference * 2.0 * _shared(grad, x, reduction)).to(x.dtype)


@decomposes(aten.smooth_l1_loss.default)
def smooth_l1_loss(x: Tensor, target: Tensor, reduction: int = _MEAN, beta: float = 1.0) -> Tensor:
    distance = torch.abs(widen(x) - widen(target))
    if beta == 0.0:
        return _reduced(distance, reduction).to(x.dtype)
    near = distance * distance * 0.5 / beta
    return _reduced(choose(distance < beta, near, distance - 0.5 * beta), reduction).to(x.dtype)


@decomposes(aten.smooth_l1_loss_backward.default)
def smooth_l1_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int, beta: float) -> Tensor:
    difference, share = widen(x) - widen(target), _shared(grad, x, reduction)
    if beta == 0.0:
        return (torch.sign(difference) * share).to(x.dtype)
    slope = choose(torch.abs(difference) < beta, difference / beta, torch.sign(difference))
    return (slope * share).to(x.dtype)


@decomposes(aten.huber_loss.default)
def huber_loss(x: Tensor, target: Tensor, reduction: int = _MEAN, delta: float = 1.0) -> Tensor:
    distance = torch.abs(widen(x) - widen(target))
    far = (distance - 0.5 * delta) * delta
    return _reduced(choose(distance <= delta, distance * distance * 0.5, far), reduction).to(x.dtype)


@decomposes(aten.huber_loss_backward.default)
def huber_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int, delta: float) -> Tensor:
    difference, share = widen(x) - widen(target), _shared(grad, x, reduction)
    slope = choose(torch.abs(difference) <= delta, difference, torch.sign(difference) * delta)
    return (slope * share).to(x.dtype)


@decomposes(aten.binary_cross_entropy_with_logits.default)
def binary_cross_entropy_with_logits(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: int = _MEAN,
) -> Tensor:
    logit, wanted = widen(x), widen(target)
    softplus_of_minus = torch.log1p(torch.exp(-torch.abs(logit))) - torch.clamp_max(logit, 0.0)
    if pos_weight is not None:
        softplus_of_minus = softplus_of_minus * (1.0 + (widen(pos_weight) - 1.0) * wanted)
    term = (1.0 - wanted) * logit + softplus_of_minus
    if weight is not None:
        term = term * widen(weight)
    return _reduced(term, reduction).to(x.dtype)


@decomposes(aten.binary_cross_entropy_backward.default)
def binary_cross_entropy_backward(
    grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = _MEAN
) -> Tensor:
    probability, wanted = widen(x), widen(target)
    bounded = torch.clamp_min((1.0 - probability) * probability, 1e-12)
    slope = _shared(grad, x, reduction) * (probability - wanted) / bounded
    if weight is not None:
        slope = slope * widen(weight)
    return slope.to(x.dtype)
