"""Records of activations and their gradients that autograd writes as one operator each.

    threshold_backward(g, x, 0)  →  where x <= 0 then 0 else g
"""

import math

import torch
from torch import fx

from smelt.ir.tensorspec import tensor_spec
from smelt.ops.pointwise import NOT_HELD, declare, fused, rounded, value, why_not_bool, why_not_integer
from smelt.ops.promote import in_range, widened
from smelt.ops.record import TRANSCENDENTAL, Emitter, Number, Scalar
from smelt.ops.registry import argument

aten = torch.ops.aten


def _relu(e: Emitter, x: Scalar) -> Scalar:
    operand = value(e, x, e.result)
    return e.op("maximum", operand, e.const(0, e.result))


def _leaky_relu(e: Emitter, x: Scalar, negative_slope: Number = 0.01) -> Scalar:
    sloped = e.op("mul", x, e.const(negative_slope, e.result))
    return e.op("where", e.op("gt", x, e.const(0, e.result)), x, sloped)


def _leaky_relu_backward(e: Emitter, grad: Scalar, x: Scalar, negative_slope: Number, self_is_result: bool) -> Scalar:
    left = value(e, grad, e.result)
    sloped = e.op("mul", left, e.const(negative_slope, e.result))
    return e.op("where", e.op("gt", rounded(e, x, e.common), e.const(0, x.dtype)), left, sloped)


def _compared(e: Emitter, how: str, x: Scalar, bound: Number) -> Scalar:
    """The element as it is stored, with the bound itself: PyTorch does not round a bound to 16 bits."""
    return e.op(how, rounded(e, x, e.common), e.const(bound, widened(e.common)))


def _threshold(e: Emitter, x: Scalar, threshold: Number, filler: Number) -> Scalar:
    return e.op("where", _compared(e, "le", x, threshold), rounded(e, filler, e.dtype), value(e, x, e.result))


def _threshold_backward(e: Emitter, grad: Scalar, x: Scalar, threshold: Number) -> Scalar:
    blocked = _compared(e, "le", x, threshold)
    return e.op("where", blocked, e.const(0, e.result), value(e, grad, e.result))


def _hardtanh_backward(e: Emitter, grad: Scalar, x: Scalar, low: Number, high: Number) -> Scalar:
    inside = e.op("and", _compared(e, "gt", x, low), _compared(e, "lt", x, high))
    return e.op("where", inside, value(e, grad, e.result), e.const(0, e.result))


def _why_not_threshold(node: fx.Node) -> str | None:
    """What is put in the place of small elements must fit; what they are compared with need not."""
    filler = argument(node, 2, "value")
    held = isinstance(filler, fx.Node) or in_range(filler, tensor_spec(node).dtype)
    return why_not_integer(node) or (None if held else NOT_HELD)


def _sigmoid_backward(e: Emitter, grad: Scalar, y: Scalar) -> Scalar:
    rest = e.op("sub", e.const(1, e.result), value(e, y, e.result))
    return e.op("mul", e.op("mul", value(e, grad, e.result), rest), value(e, y, e.result))


def _tanh_backward(e: Emitter, grad: Scalar, y: Scalar) -> Scalar:
    slope = fused(e, e.op("neg", value(e, y, e.result)), y, 1)  # near ±1 a square rounded apart leaves little
    return e.op("mul", value(e, grad, e.result), slope)


declare(aten.relu.default, emit=_relu, why_not=why_not_bool)
declare(aten.leaky_relu.default, emit=_leaky_relu, cost=2, why_not=why_not_integer)
declare(aten.leaky_relu_backward.default, emit=_leaky_relu_backward, cost=2, why_not=why_not_integer)
declare(aten.threshold.default, emit=_threshold, why_not=_why_not_threshold)
declare(aten.threshold_backward.default, emit=_threshold_backward, why_not=why_not_integer)
declare(aten.hardtanh_backward.default, emit=_hardtanh_backward, cost=2, why_not=why_not_integer)
declare(aten.sigmoid_backward.default, emit=_sigmoid_backward, cost=3, why_not=why_not_integer)
declare(aten.tanh_backward.default, emit=_tanh_backward, cost=3, why_not=why_not_integer)


def _silu(e: Emitter, x: Scalar) -> Scalar:
    return e.op("mul", x, e.op("sigmoid", x))


declare(aten.silu.default, emit=_silu, cost=TRANSCENDENTAL, why_not=why_not_integer)


_ROOT_TWO_OVER_PI = math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715
_NOTHING_LEFT = -55 * math.log(2)  # from here down 1 + tanh(u / 2) is zero in float64


def _gelu(e: Emitter, x: Scalar, approximate: str = "none") -> Scalar:
    """x · Φ(x). By tanh, ½ + ½ tanh u is the sigmoid of 2u, which keeps the digits that the sum loses below zero; where
    nothing is left of the sum in float64 either, it is zero."""
    if approximate == "none":
        return e.op("mul", x, e.op("ndtr", x))
    bent = fused(e, e.op("mul", e.op("mul", x, x), x), e.const(_CUBIC, e.result), x)
    twice = e.op("mul", bent, e.const(2 * _ROOT_TWO_OVER_PI, e.result))
    anything = e.op("gt", twice, e.const(_NOTHING_LEFT, e.result))
    return e.op("mul", x, e.op("where", anything, e.op("sigmoid", twice), e.const(0, e.result)))


def _gelu_backward(e: Emitter, grad: Scalar, x: Scalar, *, approximate: str = "none") -> Scalar:
    """By tanh in the steps PyTorch takes."""
    left, x = value(e, grad, e.result), value(e, x, e.result)
    if approximate == "none":
        return e.op("mul", left, e.op("gelu_slope", x))
    half, root = e.const(0.5, e.result), e.const(_ROOT_TWO_OVER_PI, e.result)
    square = e.op("mul", x, x)
    slope = e.op("tanh", e.op("mul", fused(e, e.op("mul", square, x), e.const(_CUBIC, e.result), x), root))
    inner = e.op("mul", fused(e, square, e.const(3.0 * _CUBIC, e.result), 1), root)
    distance = fused(e, e.op("neg", slope), slope, 1)  # near ±1 a square rounded apart leaves little
    bend = e.op("mul", e.op("mul", e.op("mul", x, half), distance), inner)
    return e.op("mul", left, fused(e, e.op("add", slope, e.const(1, e.result)), half, bend))


declare(aten.gelu.default, emit=_gelu, cost=TRANSCENDENTAL, why_not=why_not_integer)
declare(aten.gelu_backward.default, emit=_gelu_backward, cost=2 * TRANSCENDENTAL, why_not=why_not_integer)
