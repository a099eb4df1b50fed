"""Activations and their gradients, in arithmetic, `exp`, `log1p`, `tanh`, `sigmoid` and `where`.

    silu_backward(g, x) → g · s · (x · (1 - s) + 1), s = sigmoid(x)

The formulas keep to the order of operations of PyTorch's CPU kernels where infinities and overflow would tell.
"""

import ctypes
from typing import TYPE_CHECKING, Any

from smelt.device.host_library import on_host
from smelt.ir.tensorspec import UnplacedSpec
from smelt.meta.rules.promotion import FLOATS
from smelt.meta.rules.specs import row_major
from smelt.meta.rules.strides import like_stride
from smelt.ops.decompose.table import choose, constant, decomposes, widen

if TYPE_CHECKING:
    import torch
else:
    from smelt.base.torch_originals import pristine as torch

Tensor = torch.Tensor
aten = torch.ops.aten


def _less_square(x: Tensor) -> Tensor:
    """1 - x², rounded once: near ±1 a square rounded apart leaves little."""
    less: Tensor = aten.addcmul.default(constant(1.0, x), x, x, value=-1)
    return less


@decomposes(aten.silu_backward.default)
def silu_backward(grad: Tensor, x: Tensor) -> Tensor:
    wide = widen(x)
    gate = torch.sigmoid(wide)
    return (widen(grad) * gate * (wide * (1.0 - gate) + 1.0)).to(x.dtype)


@decomposes(aten.hardsigmoid.default)
def hardsigmoid(x: Tensor) -> Any:
    """Left whole in float64 on GPUs, where PyTorch's 1/6 is that of float32."""
    if x.dtype is torch.float64 and not on_host(x.device):
        return NotImplemented
    return (torch.clamp(widen(x) + 3.0, 0.0, 6.0) / 6.0).to(x.dtype)


@decomposes(aten.hardsigmoid_backward.default)
def hardsigmoid_backward(grad: Tensor, x: Tensor) -> Any:
    """Left whole in float64, where PyTorch's 1/6 is that of float32."""
    if grad.dtype is torch.float64:
        return NotImplemented
    wide = widen(x)
    inside = torch.logical_and(wide > -3.0, wide < 3.0)
    return choose(inside, widen(grad) * (1.0 / 6.0), 0.0).to(x.dtype)


@decomposes(aten.hardswish.default)
def hardswish(x: Tensor) -> Any:
    """Left whole in float64 on GPUs, where PyTorch's 1/6 is that of float32."""
    if x.dtype is torch.float64 and not on_host(x.device):
        return NotImplemented
    wide = widen(x)
    return (wide * torch.clamp(wide + 3.0, 0.0, 6.0) / 6.0).to(x.dtype)


@decomposes(aten.hardswish_backward.default)
def hardswish_backward(grad: Tensor, x: Tensor) -> Tensor:
    wide, incoming = widen(x), widen(grad)
    middle = incoming * (wide / 3.0 + 0.5)
    return choose(wide <= -3.0, 0.0, choose(wide >= 3.0, incoming, middle)).to(x.dtype)


@decomposes(aten.hardtanh.default)
def hardtanh(x: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    return torch.clamp(x, min_val, max_val)


@decomposes(aten.elu.default)
def elu(x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Tensor:
    wide = widen(x)
    curved = torch.expm1(wide * float(input_scale)) * (float(alpha) * float(scale))
    return choose(wide < 0.0, curved, wide * float(scale)).to(x.dtype)


@decomposes(aten.elu_backward.default)
def elu_backward(
    grad: Tensor, alpha: float, scale: float, input_scale: float, is_result: bool, saved: Tensor
) -> Tensor:
    wide, incoming = widen(saved), widen(grad)
    factor = float(alpha) * float(scale)
    if is_result:
        curved = incoming * float(input_scale) * (wide + factor)
    else:
        curved = incoming * (float(input_scale) * factor) * torch.exp(wide * float(input_scale))
    return choose(wide > 0.0, incoming * float(scale), curved).to(grad.dtype)


@decomposes(aten.softplus.default)
def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    wide = widen(x)
    scaled = wide * float(beta)
    return choose(scaled > float(threshold), wide, torch.log1p(torch.exp(scaled)) / float(beta)).to(x.dtype)


@decomposes(aten.softplus_backward.default)
def softplus_backward(grad: Tensor, x: Tensor, beta: float, threshold: float) -> Tensor:
    scaled, incoming = widen(x) * float(beta), widen(grad)
    grown = torch.exp(scaled)
    return choose(scaled > float(threshold), incoming, incoming * grown / (grown + 1.0)).to(grad.dtype)


@decomposes(aten.mish.default)
def mish(x: Tensor) -> Tensor:
    wide = widen(x)
    return (wide * torch.tanh(torch.log1p(torch.exp(wide)))).to(x.dtype)


@decomposes(aten.mish_backward.default)
def mish_backward(grad: Tensor, x: Tensor) -> Tensor:
    wide = widen(x)
    gate = torch.sigmoid(wide)
    curve = torch.tanh(torch.log1p(torch.exp(wide)))
    return (widen(grad) * (curve + wide * gate * _less_square(curve))).to(x.dtype)


def _log_sigmoid_shape(value: Any) -> Any:
    """Contiguous, whatever the layout of the value."""
    spec = row_major(tuple(value.shape), value.dtype)
    return (spec, spec) if value.dtype in FLOATS else NotImplemented


@decomposes(aten.log_sigmoid_forward.default, shape=_log_sigmoid_shape)
def log_sigmoid(x: Tensor) -> tuple[Tensor, Tensor]:
    """The second result is the kernel's own memory of exp(-|x|), which the gradient reads."""
    wide = widen(x)
    decay = torch.exp(-torch.abs(wide))
    result = torch.clamp_max(wide, 0.0) - torch.log1p(decay)
    return result.to(x.dtype), decay.to(x.dtype)


def _log_sigmoid_backward_shape(grad: Any, value: Any, buffer: Any) -> Any:
    shape = tuple(grad.shape)
    fits = grad.dtype in FLOATS and value.dtype is grad.dtype and tuple(value.shape) == shape
    return UnplacedSpec(shape, like_stride(shape, grad.stride()), grad.dtype) if fits else NotImplemented


@decomposes(aten.log_sigmoid_backward.default, shape=_log_sigmoid_backward_shape)
def log_sigmoid_backward(grad: Tensor, x: Tensor, buffer: Tensor) -> Tensor:
    wide = widen(x)
    decay = torch.exp(-torch.abs(wide))
    share = decay / (decay + 1.0)
    slope = choose(wide < 0.0, 1.0 - share, share)
    return (widen(grad) * slope).to(grad.dtype)


@decomposes(aten.softshrink.default)
def softshrink(x: Tensor, lambd: float = 0.5) -> Any:
    """A nan stays one: it is neither above nor below. A width out of range is PyTorch's to refuse."""
    if not isinstance(lambd, torch.SymFloat) and not 0 <= lambd <= torch.finfo(x.dtype).max:
        return NotImplemented
    wide, width = widen(x), float(lambd)
    inside = choose(wide == wide, 0.0, wide)
    return choose(wide > width, wide - width, choose(wide < -width, wide + width, inside)).to(x.dtype)


@decomposes(aten.lerp.Scalar)
def lerp_number(start: Tensor, end: Tensor, weight: float) -> Tensor:
    low, high = widen(start), widen(end)
    if isinstance(weight, torch.SymFloat):  # which of the two it is turns out when the number is there
        return lerp(start, end, constant(1.0, low) * weight)
    if low.dtype in (torch.float32, torch.complex64):
        weight = ctypes.c_float(weight).value  # PyTorch chooses between two formulas by the rounded weight
    if abs(weight) < 0.5:
        return torch.add(low, high - low, alpha=float(weight)).to(start.dtype)
    return torch.sub(high, high - low, alpha=1.0 - float(weight)).to(start.dtype)


@decomposes(aten.lerp.Tensor)
def lerp(start: Tensor, end: Tensor, weight: Tensor) -> Tensor:
    low, high, share = widen(start), widen(end), widen(weight)
    span = high - low
    from_low = aten.addcmul.default(low, span, share)
    from_high = aten.addcmul.default(high, span, 1.0 - share, value=-1)
    return choose(torch.abs(share) < 0.5, from_low, from_high).to(start.dtype)
