"""Losses: the pointwise term, then a mean or a sum (reduction 0 is none, 1 mean, 2 sum).

mse_loss(x, y, 1)                        → d = x - y; mean(d·d)
nll_loss_backward(g, x, classes, …)      → where(class == classes, -g, 0)      nothing is scattered

Some results are contiguous whatever the operands are, of which PyTorch's meta kernels say that they keep the order of
dimensions.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from smelt.meta.rules.promotion import FLOATS
from smelt.meta.rules.specs import row_major
from smelt.meta.rules.strides import like_stride
from smelt.ops.decompose.table import choose, constant, decomposes, describes, left_whole, widen
from smelt.symbolic.shapes import product

if TYPE_CHECKING:
    import torch
else:
    from smelt.base.torch_originals import pristine as torch

Tensor = torch.Tensor
aten = torch.ops.aten
_MEAN, _SUM = 1, 2


# Shapes. Reduced losses are scalars; others are described for row-major operands of one shape.


def _fit(first: Any, *others: Any) -> bool:
    """Whether tensors have one float dtype and one shape, whatever their layouts; None is no tensor."""
    return first.dtype in FLOATS and all(
        one is None or (one.dtype is first.dtype and one.shape == first.shape) for one in others
    )


def _alike(*tensors: Any) -> bool:
    """Whether they fit and are row-major."""
    return _fit(*tensors) and all(one is None or one.is_contiguous() for one in tensors)


def _reduced_shape(value: Any, reduction: int) -> Any:
    return row_major(tuple(value.shape) if reduction == 0 else (), value.dtype)


def _loss_shape(value: Any, target: Any, reduction: int = 1, *options: Any) -> Any:
    return _reduced_shape(value, reduction) if _alike(value, target) else NotImplemented


def _loss_backward_shape(grad: Any, value: Any, target: Any, reduction: int, *options: Any) -> Any:
    """Contiguous, whatever the layouts of value and target."""
    incoming = tuple(value.shape) if reduction == 0 else ()
    if not _fit(value, target) or grad.dtype is not value.dtype or tuple(grad.shape) != incoming:
        return NotImplemented
    return row_major(tuple(value.shape), value.dtype)


def _cross_entropy_shape(value: Any, target: Any, weight: Any = None, reduction: int = 1) -> Any:
    return _reduced_shape(value, reduction) if _alike(value, target, weight) else NotImplemented


def _cross_entropy_backward_shape(grad: Any, value: Any, target: Any, weight: Any = None, reduction: int = 1) -> Any:
    if not _alike(value, target, weight) or not grad.is_contiguous():
        return NotImplemented
    spec = _loss_backward_shape(grad, value, target, reduction)
    return spec if spec is NotImplemented else replace(spec, stride=like_stride(spec.shape, value.stride()))


def _logits_shape(value: Any, target: Any, weight: Any = None, pos_weight: Any = None, reduction: int = 1) -> Any:
    return _reduced_shape(value, reduction) if _alike(value, target, weight, pos_weight) else NotImplemented


def _nll_loss_shape(value: Any, target: Any, weight: Any, reduction: int, ignore_index: int) -> Any:
    if not _nll_fits(value, target, weight):
        return NotImplemented
    scalar = row_major((), value.dtype)
    return (row_major(tuple(target.shape), value.dtype) if reduction == 0 and value.dim() == 2 else scalar), scalar


def _nll_fits(value: Any, target: Any, weight: Any) -> bool:
    fits = value.dim() in (1, 2) and value.dtype in FLOATS and target.dtype is torch.int64
    fits = fits and tuple(target.shape) == tuple(value.shape[:-1]) and 0 not in value.shape
    return fits and (weight is None or (weight.dtype is value.dtype and tuple(weight.shape) == (value.shape[-1],)))


def _nll_loss2d_shape(value: Any, target: Any, weight: Any, reduction: int, ignore_index: int) -> Any:
    fits = value.dim() == 4 and value.dtype in FLOATS and target.dtype is torch.int64 and target.dim() == 3
    if not fits or weight is not None or 0 in value.shape:
        return NotImplemented
    if any(a != b for a, b in zip(target.shape, (value.shape[0], *value.shape[2:]), strict=True)):
        return NotImplemented
    scalar = row_major((), value.dtype)
    return (row_major(tuple(target.shape), value.dtype) if reduction == 0 else scalar), scalar


def _nll_loss_backward_shape(
    grad: Any, value: Any, target: Any, weight: Any, reduction: int, ignore_index: int, total: Any
) -> Any:
    if not _nll_fits(value, target, weight) or grad.dtype is not value.dtype or not value.is_contiguous():
        return NotImplemented
    incoming = tuple(target.shape) if reduction == 0 else ()
    return row_major(tuple(value.shape), value.dtype) if tuple(grad.shape) in (incoming, ()) else NotImplemented


def _nll_loss2d_backward_shape(
    grad: Any, value: Any, target: Any, weight: Any, reduction: int, ignore_index: int, total: Any
) -> Any:
    if _nll_loss2d_shape(value, target, weight, reduction, ignore_index) is NotImplemented or not value.is_contiguous():
        return NotImplemented
    incoming = tuple(target.shape) if reduction == 0 else ()
    fits = grad.dtype is value.dtype and tuple(grad.shape) == incoming
    return row_major(tuple(value.shape), value.dtype) if fits else NotImplemented

# Sample calls.


def _pairs(dtype: torch.dtype) -> Iterator[tuple[Any, ...]]:
    x, target = (torch.linspace(*ends, 12).view(3, 4).to(dtype) for ends in ((-3, 3), (2, -2)))
    for reduction in (0, _MEAN, _SUM):
        yield x, target, reduction


# Decompositions.


def _reduced(term: Tensor, reduction: int) -> Tensor:
    if reduction == _MEAN:
        return torch.mean(term)
    return torch.sum(term) if reduction == _SUM else term


def _shared(grad: Tensor, like: Tensor, reduction: int) -> Tensor:
    """The gradient of each term, given that of the reduced loss."""
    wide = widen(grad)
    return wide if reduction != _MEAN or 0 in like.shape else wide * (1.0 / product(like.shape))


@decomposes(aten.mse_loss.default, shape=_loss_shape, samples=_pairs)
def mse_loss(x: Tensor, target: Tensor, reduction: int = _MEAN) -> Tensor:
    difference = widen(x) - widen(target)
    return _reduced(difference * difference, reduction).to(x.dtype)


@decomposes(aten.mse_loss_backward.default, shape=_loss_backward_shape)
def mse_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    difference = widen(x) - widen(target)
    return (difference * 2.0 * _shared(grad, x, reduction)).to(x.dtype)


@decomposes(aten.smooth_l1_loss.default, shape=_loss_shape, samples=_pairs)
def smooth_l1_loss(x: Tensor, target: Tensor, reduction: int = _MEAN, beta: float = 1.0) -> Tensor:
    distance = torch.abs(widen(x) - widen(target))
    if beta == 0.0:
        return _reduced(distance, reduction).to(x.dtype)
    near = distance * distance * 0.5 / beta
    return _reduced(choose(distance < beta, near, distance - 0.5 * beta), reduction).to(x.dtype)


@decomposes(aten.smooth_l1_loss_backward.default, shape=_loss_backward_shape)
def smooth_l1_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int, beta: float) -> Tensor:
    difference, share = widen(x) - widen(target), _shared(grad, x, reduction)
    if beta == 0.0:
        return (torch.sign(difference) * share).to(x.dtype)
    slope = choose(torch.abs(difference) >= beta, torch.sign(difference), difference / beta)
    return (slope * share).to(x.dtype)


@decomposes(aten.huber_loss.default, shape=_loss_shape, samples=_pairs)
def huber_loss(x: Tensor, target: Tensor, reduction: int = _MEAN, delta: float = 1.0) -> Tensor:
    distance = torch.abs(widen(x) - widen(target))
    far = (distance - 0.5 * delta) * delta
    return _reduced(choose(distance <= delta, distance * distance * 0.5, far), reduction).to(x.dtype)


@decomposes(aten.huber_loss_backward.default, shape=_loss_backward_shape)
def huber_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int, delta: float) -> Tensor:
    difference, share = widen(x) - widen(target), _shared(grad, x, reduction)
    slope = choose(torch.abs(difference) > delta, torch.sign(difference) * delta, difference)
    return (slope * share).to(x.dtype)


@decomposes(aten.binary_cross_entropy_with_logits.default, shape=_logits_shape)
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


@decomposes(aten.binary_cross_entropy_backward.default, shape=_cross_entropy_backward_shape)
def binary_cross_entropy_backward(
    grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = _MEAN
) -> Tensor:
    probability, wanted = widen(x), widen(target)
    bounded = torch.clamp_min((1.0 - probability) * probability, 1e-12)
    slope = _shared(grad, x, reduction) * (probability - wanted) / bounded
    if weight is not None:
        slope = slope * widen(weight)
    return slope.to(x.dtype)


def _at_class(x: Tensor, index: Tensor) -> Tensor:
    """The element of each point's class. `index` is within the classes, or is held there."""
    places: list[Tensor] = []
    for dim, size in enumerate(index.shape):
        ramp = aten.arange.default(size, dtype=torch.int64, device=x.device)
        places.append(ramp.view([-1 if each == dim else 1 for each in range(index.dim())]))
    places.insert(min(1, index.dim()), index)
    elements: Tensor = aten._unsafe_index.Tensor(x, places)
    return elements


@decomposes(aten.nll_loss_forward.default, shape=_nll_loss_shape, raises=True)
@decomposes(aten.nll_loss2d_forward.default, shape=_nll_loss2d_shape, raises=True)
def nll_loss_forward(
    x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    operator = aten.nll_loss2d_forward.default if x.dim() == 4 else aten.nll_loss_forward.default
    # What the targets must be depends on the shape of x alone, which need not be in memory for that.
    like_x = constant(0.0, x).expand(x.shape)
    left_whole(operator, like_x, target, weight, reduction, ignore_index)
    kept = target != ignore_index
    index = choose(kept, target, 0)
    term, share = -widen(_at_class(x, index)), torch.ones((), dtype=widen(x).dtype, device=x.device)
    if weight is not None:
        share = widen(aten._unsafe_index.Tensor(weight, [index]))
        term = term * share
    term = choose(kept, term, 0.0)
    total = torch.sum(choose(kept, share, 0.0))
    if reduction == _MEAN:
        return (torch.sum(term) / total).to(x.dtype), total.to(x.dtype)
    if reduction == _SUM or x.dim() == 1:
        return torch.sum(term).to(x.dtype), total.to(x.dtype)
    return term.to(x.dtype), torch.zeros((), dtype=x.dtype, device=x.device)


@decomposes(aten.nll_loss_backward.default, shape=_nll_loss_backward_shape)
@decomposes(aten.nll_loss2d_backward.default, shape=_nll_loss2d_backward_shape)
def nll_loss_backward(
    grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int, total: Tensor
) -> Any:
    if x.dim() == 1:
        return NotImplemented
    operator = aten.nll_loss2d_forward.default if x.dim() == 4 else aten.nll_loss_forward.default
    # What the targets must be depends on the shape of x alone.
    like_x = (grad.unsqueeze(1) if grad.dim() else grad).expand(x.shape)
    left_whole(operator, like_x, target, weight, reduction, ignore_index)
    share = widen(grad) / widen(total) if reduction == _MEAN else widen(grad)
    share = -(share.unsqueeze(1) if share.dim() else share)
    across = [-1, *([1] * (x.dim() - 2))]
    if weight is not None:
        share = share * widen(weight).view(across)
    # In 32 bits, if they can number the classes: twice as many are compared at a time.
    number = torch.int32 if x.shape[1] < 2**31 else torch.int64
    classes = aten.arange.default(x.shape[1], dtype=number, device=x.device).view(across)
    wanted = choose(target != ignore_index, target, -1).to(number).unsqueeze(1)
    return choose(wanted == classes, share, 0.0).to(x.dtype)


# Losses that the library computes.

describes(aten.binary_cross_entropy.default, shape=_cross_entropy_shape, raises=True)
describes(aten.multi_margin_loss.default, aten.multilabel_margin_loss_forward.default, raises=True)
