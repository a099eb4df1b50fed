"""Element by element, and products, where PyTorch's decompositions say nothing."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from smelt.chips.decompose.table import DoesNotApply, computes, wide

Tensor = torch.Tensor
aten = torch.ops.aten

# The integers that show a float's bits; how many of those are its fraction; what is taken from its exponent.
_BITS = {torch.float32: (torch.int32, 23, 126), torch.float64: (torch.int64, 52, 1022)}


@computes(aten.hardshrink_backward.default, aten.softshrink_backward.default)
def shrink_backward(grad: Tensor, x: Tensor, border: float) -> Tensor:
    return torch.where((x >= -border) & (x <= border), 0.0, grad)


@computes(aten.clamp_min.Tensor)
def clamp_min(x: Tensor, low: Tensor) -> Tensor:
    return torch.maximum(x, low)


@computes(aten.clamp_max.Tensor)
def clamp_max(x: Tensor, high: Tensor) -> Tensor:
    return torch.minimum(x, high)


@computes(aten.fill.Tensor)
def fill(x: Tensor, value: Tensor) -> Tensor:
    return torch.empty_like(x).copy_(value)


@computes(aten.hypot.default)
def hypot(x: Tensor, y: Tensor) -> Tensor:
    dtype = torch.result_type(x, y)
    one, other = wide(x.to(dtype)).abs(), wide(y.to(dtype)).abs()
    if one.dtype != dtype:
        found = (one * one + other * other).sqrt()
    else:
        high = torch.maximum(one, other)
        low = torch.minimum(one, other) / torch.where(high == 0.0, 1.0, high)
        found = high * (low * low + 1.0).sqrt()
    return torch.where((one == math.inf) | (other == math.inf), math.inf, found).to(dtype)


@computes(aten.angle.default)
def angle(x: Tensor) -> Tensor:
    if x.is_complex():
        raise DoesNotApply("complex numbers")
    real = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    return torch.where(real < 0.0, math.pi, torch.where(real.isnan(), real, 0.0))


@computes(aten.nextafter.default)
def nextafter(x: Tensor, y: Tensor) -> Tensor:
    x, y = (each.contiguous() for each in torch.broadcast_tensors(x, y))  # type: ignore[no-untyped-call]
    integer, _, _ = _BITS[x.dtype]
    bits = x.view(integer)
    away = (y > x) == (x > 0.0)
    smallest = torch.full([], 1, dtype=integer, device=x.device).view(x.dtype)
    found = torch.where(away, bits + 1, bits - 1).view(x.dtype)
    found = torch.where(x == 0.0, torch.where(y > 0.0, smallest, -smallest), found)
    return torch.where(x == y, y, torch.where(x.isnan() | y.isnan(), math.nan, found))


@computes(aten.frexp.Tensor)
def frexp(x: Tensor) -> tuple[Tensor, Tensor]:
    integer, fraction, bias = _BITS[x.dtype]
    small = x.abs() < torch.finfo(x.dtype).tiny
    scaled = torch.where(small, x * 2.0 ** (fraction + 1), x).contiguous()
    bits = scaled.view(integer)
    ones = (2 * bias + 3) << fraction
    exponent = (bits & ones) // (1 << fraction) - bias - torch.where(small, fraction + 1, 0)
    mantissa = ((bits & ~ones) | (bias << fraction)).view(x.dtype)
    plain = (x == 0.0) | ~x.isfinite()
    exponent = torch.where(plain, 0, exponent).to(torch.int32)
    return torch.where(plain, x, mantissa), exponent


@computes(aten.as_strided_scatter.default)
def as_strided_scatter(
    x: Tensor, source: Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> Tensor:
    made = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(x)
    if offset is not None:
        offset -= int(x.storage_offset())
    made.as_strided(size, stride, offset or 0).copy_(source)
    return made


# Products.


@computes(aten.addbmm.default)
def addbmm(x: Tensor, one: Tensor, other: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """One product: matrices side by side times matrices one below the other."""
    left = one.permute(1, 0, 2).reshape(one.shape[1], -1)
    return torch.addmm(x, left, other.reshape(-1, other.shape[2]), beta=beta, alpha=alpha)


@computes(aten._trilinear.default)
def trilinear(
    a: Tensor, b: Tensor, c: Tensor, expand_a: Sequence[int], expand_b: Sequence[int], expand_c: Sequence[int],
    summed: Sequence[int], unroll: int = 1,
) -> Tensor:  # fmt: skip
    for dim in expand_a:
        a = a.unsqueeze(dim)
    for dim in expand_b:
        b = b.unsqueeze(dim)
    for dim in expand_c:
        c = c.unsqueeze(dim)
    made = a * b * c
    return made.sum(list(summed)) if summed else made


@computes(aten._native_batch_norm_legit.default)
def batch_norm(
    x: Tensor, weight: Any, bias: Any, mean: Tensor, variance: Tensor, training: bool, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """By what was counted before: nothing is counted here, and nothing kept for gradients."""
    if training:
        raise DoesNotApply("a kernel does that")
    nothing = torch.zeros([0], dtype=mean.dtype, device=x.device)
    wide = torch.promote_types(x.dtype, torch.float32)
    mean, variance = mean.to(wide), variance.to(wide)
    factor = (variance + eps).rsqrt()
    factor = factor if weight is None else factor * weight.to(wide)
    shift = -mean * factor if bias is None else bias.to(wide) - mean * factor
    shape = [1, -1, *[1] * (x.dim() - 2)]
    return (x.to(wide) * factor.view(shape) + shift.view(shape)).to(x.dtype), nothing, nothing.clone()


@computes(aten._batch_norm_with_update.default)
def batch_norm_with_update(
    x: Tensor, weight: Any, bias: Any, mean: Tensor, variance: Tensor, momentum: float, eps: float
) -> Any:
    args = (x, weight, bias, mean, variance, True, momentum, eps)
    out, *saved = aten._native_batch_norm_legit.default(*args)
    return out, *[each.to(mean.dtype) for each in saved], torch.zeros([0], dtype=torch.uint8, device=x.device)
