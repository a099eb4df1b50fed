"""Layer, RMS, group and batch normalization and their gradients: two-pass moments, then one multiply and add.

    native_layer_norm(x, [n], w, b, eps) → mean = mean(x); c = x - mean; rstd = rsqrt(mean(c·c) + eps); c · rstd · w + b

The gradient, with c = x - mean, x̂ = c · rstd and h = grad · w, is rstd · (h - mean(h) - x̂ · mean(h · x̂)), written so
that a point takes two multiply-adds:  h · rstd + (c · -rstd²·mean(h · x̂) - rstd · mean(h)).

Moments and gradients of parameters come out as wide as they were computed, and are rounded to what the operator
returns.

RMS norm is such an operator on CUDA alone (`_fused_rms_norm`). Elsewhere PyTorch takes it apart before autograd, which
is done below on CUDA: its own parts write in place, and what is recorded must not.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from smelt.device.host_library import on_host
from smelt.ops.decompose.table import choose, decomposes, rewrites, widen
from smelt.symbolic.shapes import product

if TYPE_CHECKING:
    import torch
else:
    from smelt.base.torch_originals import pristine as torch

Tensor = torch.Tensor
aten = torch.ops.aten


def _moments(x: Tensor, dims: list[int], eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(mean, x - mean, variance, 1 / √(variance + eps)), keeping the dims, all in the dtype of `x`."""
    mean = torch.mean(x, dims, True)
    centered = x - mean
    variance = torch.mean(centered * centered, dims, True)
    return mean, centered, variance, torch.rsqrt(variance + eps)


def _exact_moments(operand: Tensor, dims: list[int], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """(mean, x - mean, 1 / √(variance + eps)) with what is left beside the mean added to it: of equal numbers the mean
    is that number then, as eager's is, and not one a little beside it, of which `1 / √eps` would make a result.

    What is left of float32 is rounding itself, more than in the one mean that eager moves from element to element on
    GPUs. There float64 is added up as fast as memory comes, and its mean needs no second look."""
    x = widen(operand)
    if operand.dtype is torch.float32 and not on_host(operand.device):
        mean = torch.mean(x.to(torch.float64), dims, True).to(torch.float32)
        centered = x - mean
        return mean, centered, torch.rsqrt(torch.mean(centered * centered, dims, True) + eps)
    rough = torch.mean(x, dims, True)
    beside = x - rough
    rest = torch.mean(beside, dims, True)
    variance = torch.mean(beside * beside, dims, True) - rest * rest
    mean = rough + rest
    return mean, x - mean, torch.rsqrt(variance + eps)


def _one_pass_moments(x: Tensor, dims: list[int]) -> tuple[Tensor, Tensor]:
    """(mean, variance) of memory that is read once, where reading it again takes longer than computing: sums of what is
    beside one of the values, which is no farther from the mean than others, so that little cancels."""
    one = x
    for dim in dims:
        one = one.narrow(dim, 0, 1)
    beside = x - one
    rest = torch.mean(beside, dims, True)
    variance = torch.mean(beside * beside, dims, True) - rest * rest
    return one + rest, choose(variance < 0.0, 0.0, variance)


def _input_gradient(scaled: Tensor, centered: Tensor, rstd: Tensor, dims: list[int]) -> Tensor:
    if all(scaled.shape[dim] == 1 for dim in dims):  # its own mean: rounded once, a product less its rounded self stays
        return (scaled - scaled) * rstd
    minus = -rstd
    along = torch.mean(scaled * (centered * rstd), dims, True) * rstd * minus
    less = aten.addcmul.default(torch.mean(scaled, dims, True) * minus, centered, along)
    return aten.addcmul.default(less, scaled, rstd)  # type: ignore[no-any-return]


def _from_sums(
    incoming: Tensor, centered: Tensor, factor: Tensor, along: Tensor, total: Tensor, count: int
) -> Tensor:
    """The gradient of a norm's input where statistics and weight are per channel. What is added up needs no weight, so
    that the gradients of weight and bias are the same sums."""
    if count == 1:
        return (incoming - incoming) * factor
    minus = -factor
    less = aten.addcmul.default(total / count * minus, centered, along / count * minus)
    return aten.addcmul.default(less, incoming, factor)  # type: ignore[no-any-return]


def _affine(value: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """`value` · weight + bias, rounded once where there are both."""
    if weight is not None and bias is not None:
        return aten.addcmul.default(widen(bias), value, widen(weight))  # type: ignore[no-any-return]
    if weight is not None:
        return value * widen(weight)
    return value if bias is None else value + widen(bias)


@decomposes(aten.native_layer_norm.default)
def layer_norm(
    x: Tensor, normalized: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    dims = list(range(x.dim() - len(normalized), x.dim()))
    mean, centered, rstd = _exact_moments(x, dims, eps)
    return _affine(centered * rstd, weight, bias).to(x.dtype), mean, rstd


@decomposes(aten.native_layer_norm_backward.default)
def layer_norm_backward(
    grad: Tensor,
    x: Tensor,
    normalized: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    outer = x.dim() - len(normalized)
    dims = list(range(outer, x.dim()))
    incoming, inverse = widen(grad), widen(rstd)
    centered = widen(x) - widen(mean)
    scaled = incoming if weight is None else incoming * widen(weight)
    to_x = _input_gradient(scaled, centered, inverse, dims).to(x.dtype) if mask[0] else None
    by_weight = incoming * (centered * inverse)
    to_weight = _over(by_weight, outer).to((weight if weight is not None else x).dtype) if mask[1] else None
    to_bias = _over(incoming, outer).to((bias if bias is not None else x).dtype) if mask[2] else None
    return to_x, to_weight, to_bias


def _over(value: Tensor, outer: int) -> Tensor:
    """Summed over the leading `outer` dims."""
    return torch.sum(value, list(range(outer))) if outer else value


_VECTOR = 4
_LONGEST_ROW_OF_VECTORS = 1 << 24


def _takes_moments(x: Tensor, normalized: Sequence[int]) -> bool:
    """Whether PyTorch's kernel computes the mean square of a row from its mean and variance, which are NaN for a row
    with an infinity. On a GPU it sums squares where it reads float32 or less in whole vectors."""
    if x.device.type != "cuda" or not all(type(size) is int for size in normalized):
        return False
    length = math.prod(normalized)
    return x.dtype is torch.float64 or length % _VECTOR != 0 or length > _LONGEST_ROW_OF_VECTORS


@decomposes(aten._fused_rms_norm.default)
def rms_norm(x: Tensor, normalized: Sequence[int], weight: Tensor | None, eps: float | None) -> Any:
    if not x.is_floating_point():
        return NotImplemented
    wide = widen(x)
    dims = list(range(x.dim() - len(normalized), x.dim()))
    squares = wide * wide
    if _takes_moments(x, normalized):
        squares = squares + (wide - wide)  # NaN for an infinity
    rstd = torch.rsqrt(torch.mean(squares, dims, True) + (torch.finfo(wide.dtype).eps if eps is None else eps))
    normed = wide * rstd
    return (normed if weight is None else normed * widen(weight)).to(x.dtype), rstd


@rewrites(aten._fused_rms_norm_backward.default)  # no check against PyTorch's own description: it imports sympy
def rms_norm_backward(
    grad: Tensor, x: Tensor, normalized: Sequence[int], rstd: Tensor, weight: Tensor | None, mask: Sequence[bool]
) -> Any:
    """Like that of layer norm, with a mean of zero. Both results are contiguous."""
    if 0 in x.shape or not x.is_floating_point():
        return NotImplemented
    outer = x.dim() - len(normalized)
    incoming, wide, inverse = widen(grad), widen(x), rstd.view(*x.shape[:outer], *(1 for _ in normalized))
    scaled = incoming if weight is None else incoming * widen(weight)
    to_x = to_weight = None
    if mask[0]:
        along = torch.mean(scaled * (wide * inverse), list(range(outer, x.dim())), True) * inverse * -inverse
        to_x = aten.addcmul.default(wide * along, scaled, inverse).to(x.dtype).contiguous()
    if mask[1] and weight is not None:
        to_weight = _over(incoming * (wide * inverse), outer).to(weight.dtype).contiguous()
    return to_x, to_weight


def _per_channel(x: Tensor, value: Tensor) -> Tensor:
    return widen(value).view([1, x.shape[1]] + [1] * (x.dim() - 2))


def _affine_by_channel(x: Tensor, value: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """`_affine` with a number for each channel of `x`, in its dtype."""
    scale, shift = (None if each is None else _per_channel(x, each) for each in (weight, bias))
    return _affine(value, scale, shift).to(x.dtype)


@decomposes(aten.native_group_norm.default)
def group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, c: int, inner: int, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    mean, centered, rstd = _exact_moments(x.view(n, groups, c // groups * inner), [2], eps)
    result = _affine_by_channel(x, (centered * rstd).view(x.shape), weight, bias)
    return result, mean.view(n, groups), rstd.view(n, groups)


@decomposes(aten.native_group_norm_backward.default)
def group_norm_backward(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    n: int,
    c: int,
    inner: int,
    groups: int,
    mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Seen as [n, groups, channels of a group, pixels]."""
    grid = (n, groups, c // groups, inner)
    inverse = widen(rstd).view(n, groups, 1, 1)
    centered = widen(x).view(grid) - widen(mean).view(n, groups, 1, 1)
    incoming = widen(grad).view(grid)
    scaled = incoming if weight is None else incoming * widen(weight).view(1, groups, c // groups, 1)
    to_x = _input_gradient(scaled, centered, inverse, [2, 3]).view(x.shape).to(x.dtype) if mask[0] else None
    to_weight = torch.sum(incoming * (centered * inverse), [0, 3]).view(c) if mask[1] else None
    to_bias = torch.sum(incoming, [0, 3]).view(c) if mask[2] else None
    return to_x, to_weight, to_bias


def _batch_norm_training(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(result, mean, 1/√(variance + eps), variance), the last three per channel and not rounded to 16 bits."""
    channels = x.shape[1]
    dims = [0, *range(2, x.dim())]
    wide = widen(x)
    if on_host(x.device):  # as PyTorch adds them up
        mean, _, variance, rstd = (moment.to(wide.dtype) for moment in _moments(wide.to(torch.float64), dims, eps))
    else:
        mean, variance = _one_pass_moments(wide, dims)
        rstd = torch.rsqrt(variance + eps)
    if eps == 0.0:  # of what does not vary it is nothing, not infinite
        rstd = choose(variance == 0.0, 0.0, rstd)
    result = _affine_by_channel(x, (wide - mean) * rstd, weight, bias)
    return result, mean.view(channels), rstd.view(channels), variance.view(channels)


def _batch_norm_evaluation(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    rstd = torch.rsqrt(_per_channel(x, var) + eps)
    normal = (widen(x) - _per_channel(x, mean)) * rstd
    result = _affine_by_channel(x, normal, weight, bias)
    if on_host(x.device):
        nothing = torch.zeros([0], dtype=x.dtype, device=x.device)
        return result, nothing, nothing
    return result, widen(mean).clone(), rstd.view(x.shape[1])  # elsewhere what it computed with comes out


@decomposes(aten.native_batch_norm.default, aten._native_batch_norm_legit.default)
def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """In training with running statistics the operator writes them, and is left whole."""
    if training:
        return NotImplemented if running_mean is not None else batch_norm_no_stats(x, weight, bias, True, 0.0, eps)
    if running_mean is None or running_var is None:
        return NotImplemented
    return _batch_norm_evaluation(x, weight, bias, running_mean, running_var, eps)


@decomposes(aten._native_batch_norm_legit.no_stats)
def batch_norm_no_stats(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> Any:
    if not training:
        return NotImplemented
    result, mean, rstd, _ = _batch_norm_training(x, weight, bias, eps)
    return result, mean, rstd


@decomposes(aten._native_batch_norm_legit_functional.default)
def batch_norm_functional(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """The new running statistics come out as results four and five."""
    if not training:
        results = _batch_norm_evaluation(x, weight, bias, running_mean, running_var, eps)
        return (*results, running_mean.clone(), running_var.clone())
    result, mean, rstd, variance = _batch_norm_training(x, weight, bias, eps)
    count = product(x.shape) // x.shape[1]
    if count < 2:
        return NotImplemented  # the unbiased variance of one value
    unbiased = variance * (count / (count - 1))
    new_mean = widen(running_mean) * (1.0 - momentum) + mean * momentum
    new_var = widen(running_var) * (1.0 - momentum) + unbiased * momentum
    return result, mean, rstd, new_mean.to(running_mean.dtype), new_var.to(running_var.dtype)


@decomposes(aten.native_batch_norm_backward.default)
def batch_norm_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_invstd: Tensor | None,
    training: bool,
    eps: float,
    mask: Sequence[bool],
) -> Any:
    mean, rstd = (save_mean, save_invstd) if training else (running_mean, None)
    if mean is None or (training and rstd is None) or (not training and running_var is None):
        return NotImplemented
    dims = [0, *range(2, x.dim())]
    inverse = _per_channel(x, rstd) if rstd is not None else torch.rsqrt(_per_channel(x, running_var) + eps)  # type: ignore[arg-type]
    incoming = widen(grad)
    centered = widen(x) - _per_channel(x, mean)
    factor = inverse if weight is None else inverse * _per_channel(x, weight)
    along = torch.sum(incoming * centered, dims, True) * inverse if (mask[0] and training) or mask[1] else None
    total = torch.sum(incoming, dims, True) if (mask[0] and training) or mask[2] else None
    to_x = None
    if mask[0] and training and along is not None and total is not None:
        to_x = _from_sums(incoming, centered, factor, along * inverse, total, product(x.shape) // x.shape[1])
    elif mask[0]:
        to_x = incoming * factor
    to_weight = None if along is None or not mask[1] else along.view(x.shape[1])
    to_bias = None if total is None or not mask[2] else total.view(x.shape[1])
    return to_x if to_x is None else to_x.to(x.dtype), to_weight, to_bias
