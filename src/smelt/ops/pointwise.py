"""Records of element-wise arithmetic and functions, and the helpers every element-wise family uses.

Each rule takes the call's arguments with tensors as scalars and writes the scalar code that gives what PyTorch gives:

    add(e, a, b, alpha=2)  →  v0 = mul b, 2 ; v1 = add a, v0

Arithmetic on narrow floats is done in f32 and rounded when it is stored.
"""

import math
from collections.abc import Callable

import torch
from torch import fx

from smelt.ir.tensorspec import tensor_spec
from smelt.ops.promote import in_range, widened
from smelt.ops.record import (
    CHEAP,
    ROOT,
    TRANSCENDENTAL,
    EmitRule,
    Emitter,
    Number,
    OpRecord,
    Pointwise,
    Scalar,
)
from smelt.ops.registry import argument, register

aten = torch.ops.aten
Operand = Scalar | Number
WhyNot = Callable[[fx.Node], str | None]
NOT_HELD = "puts a number into a dtype that cannot hold it"


def declare(
    *ops: torch._ops.OpOverload,
    emit: EmitRule,
    cost: int = CHEAP,
    why_not: WhyNot | None = None,
    template: bool = False,
    by_position: bool = False,
) -> None:
    """One record per overload, all with the same rule."""
    for op in ops:
        register(OpRecord(op, Pointwise(emit, template, by_position), cost, why_not))


def value(e: Emitter, operand: Operand, dtype: torch.dtype) -> Scalar:
    """A tensor's scalar converted to `dtype`, or a number as a constant of it."""
    return e.cast(operand, dtype) if isinstance(operand, Scalar) else e.const(operand, dtype)


def rounded(e: Emitter, operand: Operand, dtype: torch.dtype) -> Scalar:
    """The operand as PyTorch sees it in `dtype`, narrow floats rounded, then widened for computing."""
    return e.cast(value(e, operand, dtype), widened(dtype))


# Arithmetic.

_ON_BOOLS = {"add": "or", "mul": "and", "maximum": "or", "minimum": "and"}


def arithmetic(name: str) -> EmitRule:
    """A binary operation in the result's dtype; on bools its logical counterpart."""

    def emit(e: Emitter, a: Operand, b: Operand) -> Scalar:
        name_here = _ON_BOOLS[name] if e.result is torch.bool else name
        return e.op(name_here, _operand(e, a, name), _operand(e, b, name))

    return emit


def _operand(e: Emitter, operand: Operand, name: str) -> Scalar:
    """PyTorch rounds a number to the tensor's dtype first, except where it multiplies or divides."""
    if isinstance(operand, Scalar) or name in ("mul", "div", "floordiv", "truncdiv"):
        return value(e, operand, e.result)
    return rounded(e, operand, e.dtype)


def _scaled(e: Emitter, b: Operand, alpha: Number) -> Operand:
    if alpha == 1:
        return b
    name = "and" if e.result is torch.bool else "mul"
    return e.op(name, value(e, b, e.result), value(e, alpha, e.result))


def fused(e: Emitter, a: Operand, b: Operand, c: Operand) -> Scalar:
    """`a * b + c` of floats, rounded once: so do PyTorch's own loops where one operator multiplies and adds."""
    return e.op("fma", *(value(e, each, e.result) for each in (a, b, c)))


def _add_scaled(e: Emitter, a: Operand, b: Operand, alpha: Number) -> Scalar:
    """`a + alpha * b` of floats. PyTorch rounds all numbers to the tensor's dtype here."""
    return fused(e, *(_operand(e, each, "add") for each in (b, alpha, a)))


def _add(e: Emitter, a: Operand, b: Operand, alpha: Number = 1) -> Scalar:
    if alpha != 1 and e.result.is_floating_point:
        return _add_scaled(e, a, b, alpha)
    return arithmetic("add")(e, a, _scaled(e, b, alpha))


def _sub(e: Emitter, a: Operand, b: Operand, alpha: Number = 1) -> Scalar:
    if alpha != 1 and e.result.is_floating_point:
        return _add_scaled(e, a, b, -alpha)
    return arithmetic("sub")(e, a, _scaled(e, b, alpha))


def _rsub(e: Emitter, a: Operand, b: Operand, alpha: Number = 1) -> Scalar:
    return _sub(e, b, a, alpha)


def _div(e: Emitter, a: Operand, b: Operand, rounding_mode: str | None = None) -> Scalar:
    name = {None: "div", "floor": "floordiv", "trunc": "truncdiv"}[rounding_mode]
    return arithmetic(name)(e, a, b)


def _why_not_divide(node: fx.Node) -> str | None:
    """Integers: eager raises on a zero divisor, which a kernel cannot."""
    if tensor_spec(node).dtype.is_floating_point:
        return None
    divisor = node.args[1]
    if isinstance(divisor, fx.Node) or divisor in (0, -1):
        return "divides integers by what may be zero or overflow"
    return None


def why_not_bool(node: fx.Node) -> str | None:
    return "computes on bool" if tensor_spec(node).dtype is torch.bool else None


def _why_not_alpha(node: fx.Node) -> str | None:
    """A fractional alpha on integers, a bool on others and one out of range are errors that PyTorch should raise."""
    alpha, dtype = argument(node, 2, "alpha", 1), tensor_spec(node).dtype
    if isinstance(alpha, fx.Node):
        return None
    if isinstance(alpha, float) and not dtype.is_floating_point:
        return "scales integers by a fraction"
    if isinstance(alpha, bool) and dtype is not torch.bool:
        return "scales numbers by a bool"
    return None if in_range(alpha, dtype) else NOT_HELD


declare(aten.add.Tensor, aten.add.Scalar, emit=_add, why_not=_why_not_alpha)
for _op, _emit in ((aten.sub, _sub), (aten.rsub, _rsub)):
    declare(_op.Tensor, _op.Scalar, emit=_emit, why_not=lambda node: why_not_bool(node) or _why_not_alpha(node))
declare(aten.mul.Tensor, aten.mul.Scalar, emit=arithmetic("mul"))
declare(aten.div.Tensor, aten.div.Scalar, emit=_div, cost=ROOT)
declare(aten.div.Tensor_mode, aten.div.Scalar_mode, emit=_div, cost=ROOT, why_not=_why_not_divide)
declare(aten.floor_divide.default, emit=arithmetic("floordiv"), cost=ROOT, why_not=_why_not_divide)
for _op in (aten.remainder, aten.fmod):
    declare(_op.Tensor, _op.Scalar, emit=arithmetic(_op.__name__), cost=ROOT, why_not=_why_not_divide)
for _op in (aten.maximum, aten.minimum):
    declare(_op.default, emit=arithmetic(_op.__name__))


def _skipping_nan(name: str) -> EmitRule:
    """`fmax` and `fmin`: the other operand where one is NaN."""

    def emit(e: Emitter, a: Scalar, b: Scalar) -> Scalar:
        left, right = value(e, a, e.result), value(e, b, e.result)
        if not e.result.is_floating_point:
            return arithmetic(name)(e, a, b)
        best = e.op("where", e.op("isnan", right), left, e.op(name, left, right))
        return e.op("where", e.op("isnan", left), right, best)

    return emit


declare(aten.fmax.default, emit=_skipping_nan("maximum"), cost=2)
declare(aten.fmin.default, emit=_skipping_nan("minimum"), cost=2)


def _addcmul(e: Emitter, x: Scalar, a: Scalar, b: Scalar, value: Number = 1) -> Scalar:
    scaled = a if value == 1 else arithmetic("mul")(e, a, value)  # first, as eager: it may keep the product in range
    return fused(e, scaled, b, x)


def _addcdiv(e: Emitter, x: Scalar, a: Scalar, b: Scalar, value: Number = 1) -> Scalar:
    top = a if value == 1 else arithmetic("mul")(e, a, value)
    return arithmetic("add")(e, x, arithmetic("div")(e, top, b))


def why_not_integer(node: fx.Node) -> str | None:
    return None if tensor_spec(node).dtype.is_floating_point else "computes on integers"


declare(aten.addcmul.default, emit=_addcmul, cost=2, why_not=why_not_integer)
declare(aten.addcdiv.default, emit=_addcdiv, cost=ROOT, why_not=why_not_integer)


# Functions of one operand.


def function(name: str) -> EmitRule:
    """A scalar operation on the operand in the result's dtype (integers have become floats by then)."""

    def emit(e: Emitter, x: Scalar) -> Scalar:
        return e.op(name, value(e, x, e.result))

    return emit


def _kept_on_integers(name: str) -> EmitRule:
    """Rounding: integers and bools are whole already."""

    def emit(e: Emitter, x: Scalar) -> Scalar:
        return function(name)(e, x) if e.result.is_floating_point else value(e, x, e.result)

    return emit


for _name in ("neg", "abs", "sign"):
    declare(getattr(aten, _name).default, emit=function(_name), why_not=why_not_bool)
declare(aten.sgn.default, emit=function("sign"), why_not=why_not_bool)
for _name in ("floor", "ceil", "round", "trunc"):
    declare(getattr(aten, _name).default, emit=_kept_on_integers(_name))
for _name in ("sqrt", "rsqrt", "reciprocal"):
    declare(getattr(aten, _name).default, emit=function(_name), cost=ROOT)
for _name in ("exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "tanh", "sigmoid", "erf"):
    declare(getattr(aten, _name).default, emit=function(_name), cost=TRANSCENDENTAL)


def _log10(e: Emitter, x: Scalar) -> Scalar:
    return e.op("mul", e.op("log", value(e, x, e.result)), e.const(1 / math.log(10), e.result))


declare(aten.log10.default, emit=_log10, cost=TRANSCENDENTAL)


# Powers.


def _pow_number(e: Emitter, x: Scalar, exponent: Number) -> Scalar:
    """The exponents PyTorch itself treats apart, the same way; others through `pow`, rounded to the tensor's dtype."""
    base = value(e, x, e.result)
    if exponent in (0.5, -0.5) and e.dtype is not torch.float16:  # as PyTorch: f16 takes the general way here
        return e.op("sqrt" if exponent > 0 else "rsqrt", base)
    if exponent == -1:
        return e.op("reciprocal", base)
    if exponent == -2:
        return e.op("reciprocal", e.op("mul", base, base))
    if exponent == int(exponent) and 0 <= exponent <= 3:
        return _multiplied(e, base, int(exponent))
    if not e.result.is_floating_point:
        return _multiplied(e, base, int(exponent))
    return e.op("pow", base, rounded(e, float(exponent), e.dtype))


def _multiplied(e: Emitter, base: Scalar, times: int) -> Scalar:
    if times == 0:
        return e.const(1, e.result)
    power: Scalar | None = None
    square = base
    while times:
        if times & 1:
            power = square if power is None else e.op("mul", power, square)
        times >>= 1
        if times:
            square = e.op("mul", square, square)
    assert power is not None
    return power


def _why_not_pow(node: fx.Node) -> str | None:
    dtype = tensor_spec(node).dtype
    if dtype.is_floating_point:
        exponent = node.args[1]
        if not isinstance(exponent, int | float):
            return None
        if not math.isfinite(exponent):
            return "raises to an infinite power"
        return None if in_range(exponent, dtype) else NOT_HELD
    exponent = node.args[1]
    if dtype is torch.bool or isinstance(exponent, fx.Node) or not 0 <= exponent <= 64:  # type: ignore[operator]
        return "raises integers to powers not known to be small"
    return None


def _pow(e: Emitter, x: Operand, exponent: Operand) -> Scalar:
    return e.op("pow", _operand(e, x, "pow"), _operand(e, exponent, "pow"))


declare(aten.pow.Tensor_Scalar, emit=_pow_number, cost=TRANSCENDENTAL, why_not=_why_not_pow)
declare(aten.pow.Tensor_Tensor, aten.pow.Scalar, emit=_pow, cost=TRANSCENDENTAL, why_not=why_not_integer)
