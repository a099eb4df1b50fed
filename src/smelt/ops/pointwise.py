"""Records of element-wise arithmetic, comparison, choice, logic and conversion.

Each rule takes the call's arguments with tensors as scalars and writes the scalar code that gives what PyTorch gives:

    add(e, a, b, alpha=2)  →  v0 = mul b, 2 ; v1 = add a, v0

Arithmetic on narrow floats is done in f32 and rounded when it is stored; comparisons round first, so that a value meets
its own stored copy as an equal.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from smelt.ir.tensorspec import TensorSpec, spec_of, tensor_spec
from smelt.ops import samples
from smelt.ops.promote import promoted, widened
from smelt.ops.record import CHEAP, ROOT, TRANSCENDENTAL, Emitter, EmitRule, Number, OpRecord, Pointwise, Samples, Scalar
from smelt.ops.registry import register

aten = torch.ops.aten
Operand = Scalar | Number
WhyNot = Callable[[fx.Node], str | None]


def declare(
    *ops: torch._ops.OpOverload,
    emit: EmitRule,
    cost: int = CHEAP,
    samples: Samples,
    why_not: WhyNot | None = None,
    template: bool = False,
) -> None:
    """One record per overload, all with the same rule."""
    for op in ops:
        register(OpRecord(op, Pointwise(emit, template), cost, samples, why_not))


def value(e: Emitter, operand: Operand, dtype: torch.dtype) -> Scalar:
    """A tensor's scalar converted to `dtype`, or a number as a constant of it."""
    return e.cast(operand, dtype) if isinstance(operand, Scalar) else e.const(operand, dtype)


def rounded(e: Emitter, operand: Operand, dtype: torch.dtype) -> Scalar:
    """The operand as PyTorch sees it in `dtype`, narrow floats rounded, then widened for computing."""
    return e.cast(value(e, operand, dtype), widened(dtype))


def truth(e: Emitter, operand: Scalar) -> Scalar:
    """Whether the operand is not zero."""
    return e.cast(operand, torch.bool)


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
    if isinstance(operand, Scalar) or name in ("mul", "div"):
        return value(e, operand, e.result)
    return rounded(e, operand, e.dtype)


def _scaled(e: Emitter, b: Operand, alpha: Number) -> Operand:
    if alpha == 1:
        return b
    if not isinstance(b, Scalar):
        return b * alpha
    name = "and" if e.result is torch.bool else "mul"
    return e.op(name, value(e, b, e.result), value(e, alpha, e.result))


def _add(e: Emitter, a: Operand, b: Operand, alpha: Number = 1) -> Scalar:
    return arithmetic("add")(e, a, _scaled(e, b, alpha))


def _sub(e: Emitter, a: Operand, b: Operand, alpha: Number = 1) -> Scalar:
    return arithmetic("sub")(e, a, _scaled(e, b, alpha))


def _rsub(e: Emitter, a: Operand, b: Operand, alpha: Number = 1) -> Scalar:
    return arithmetic("sub")(e, b, _scaled(e, a, alpha))


def _div(e: Emitter, a: Operand, b: Operand, rounding_mode: str | None = None) -> Scalar:
    name = {None: "div", "floor": "floordiv", "trunc": "truncdiv"}[rounding_mode]
    return arithmetic(name)(e, a, b)


def _numbers(node: fx.Node) -> list[Any]:
    """The call's operands for promotion: specs of tensors, and numbers."""
    found: list[Any] = []
    for argument in node.args:
        spec = spec_of(argument) if isinstance(argument, fx.Node) else argument
        if isinstance(spec, TensorSpec | bool | int | float):
            found.append(spec)
    return found


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
    """A fractional alpha on integers is an error that PyTorch should raise."""
    alpha = node.kwargs.get("alpha", 1)
    if isinstance(alpha, float) and not tensor_spec(node).dtype.is_floating_point:
        return "scales integers by a fraction"
    return None


declare(aten.add.Tensor, emit=_add, samples=samples.chain(samples.binary, samples.call(tensors=2, alpha=3)), why_not=_why_not_alpha)
declare(aten.add.Scalar, emit=_add, samples=samples.with_numbers(2, 0.1, True), why_not=_why_not_alpha)
declare(
    aten.sub.Tensor,
    emit=_sub,
    samples=samples.chain(samples.binary, samples.call(tensors=2, alpha=3)),
    why_not=lambda node: why_not_bool(node) or _why_not_alpha(node),
)
declare(aten.sub.Scalar, emit=_sub, samples=samples.with_numbers(2, 0.1), why_not=why_not_bool)
declare(aten.rsub.Tensor, emit=_rsub, samples=samples.binary, why_not=why_not_bool)
declare(aten.rsub.Scalar, emit=_rsub, samples=samples.with_numbers(2, 0.1), why_not=why_not_bool)
declare(aten.mul.Tensor, emit=arithmetic("mul"), samples=samples.binary)
declare(aten.mul.Scalar, emit=arithmetic("mul"), samples=samples.with_numbers(2, 0.1, True))
declare(aten.div.Tensor, emit=_div, cost=ROOT, samples=samples.binary)
declare(aten.div.Scalar, emit=_div, cost=ROOT, samples=samples.with_numbers(2, 0.1))
declare(
    aten.div.Tensor_mode,
    emit=_div,
    cost=ROOT,
    samples=samples.chain(
        samples.call(tensors=2, rounding_mode="floor"),
        samples.call(tensors=2, rounding_mode="trunc"),
        samples.call(tensors=2, rounding_mode=None),
    ),
    why_not=_why_not_divide,
)
declare(
    aten.div.Scalar_mode,
    emit=_div,
    cost=ROOT,
    samples=samples.chain(samples.call(3, rounding_mode="floor"), samples.call(-2, rounding_mode="trunc")),
    why_not=_why_not_divide,
)
declare(
    aten.floor_divide.default, emit=arithmetic("floordiv"), cost=ROOT, samples=samples.binary, why_not=_why_not_divide
)
for _name in ("remainder", "fmod"):
    declare(getattr(aten, _name).Tensor, emit=arithmetic(_name), cost=ROOT, samples=samples.binary, why_not=_why_not_divide)
    declare(
        getattr(aten, _name).Scalar,
        emit=arithmetic(_name),
        cost=ROOT,
        samples=samples.with_numbers(3, -2, 0.7),
        why_not=_why_not_divide,
    )
for _name in ("maximum", "minimum"):
    declare(getattr(aten, _name).default, emit=arithmetic(_name), samples=samples.binary)


def _skipping_nan(name: str) -> EmitRule:
    """`fmax` and `fmin`: the other operand where one is NaN."""

    def emit(e: Emitter, a: Scalar, b: Scalar) -> Scalar:
        left, right = value(e, a, e.result), value(e, b, e.result)
        if not e.result.is_floating_point:
            return arithmetic(name)(e, a, b)
        best = e.op("where", e.op("isnan", right), left, e.op(name, left, right))
        return e.op("where", e.op("isnan", left), right, best)

    return emit


declare(aten.fmax.default, emit=_skipping_nan("maximum"), cost=2, samples=samples.binary)
declare(aten.fmin.default, emit=_skipping_nan("minimum"), cost=2, samples=samples.binary)


def _addcmul(e: Emitter, x: Scalar, a: Scalar, b: Scalar, value: Number = 1) -> Scalar:
    product = arithmetic("mul")(e, a, b)
    return arithmetic("add")(e, x, product if value == 1 else arithmetic("mul")(e, product, value))


def _addcdiv(e: Emitter, x: Scalar, a: Scalar, b: Scalar, value: Number = 1) -> Scalar:
    top = a if value == 1 else arithmetic("mul")(e, a, value)
    return arithmetic("add")(e, x, arithmetic("div")(e, top, b))


def why_not_integer(node: fx.Node) -> str | None:
    return None if tensor_spec(node).dtype.is_floating_point else "computes on integers"


declare(
    aten.addcmul.default, emit=_addcmul, cost=2, samples=samples.call(tensors=3, value=2), why_not=why_not_integer
)
declare(
    aten.addcdiv.default, emit=_addcdiv, cost=ROOT, samples=samples.call(tensors=3, value=2), why_not=why_not_integer
)


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
    declare(getattr(aten, _name).default, emit=function(_name), samples=samples.unary, why_not=why_not_bool)
declare(aten.sgn.default, emit=function("sign"), samples=samples.unary, why_not=why_not_bool)
for _name in ("floor", "ceil", "round", "trunc"):
    declare(getattr(aten, _name).default, emit=_kept_on_integers(_name), samples=samples.unary)
for _name in ("sqrt", "rsqrt", "reciprocal"):
    declare(getattr(aten, _name).default, emit=function(_name), cost=ROOT, samples=samples.unary)
for _name in ("exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "tanh", "sigmoid", "erf"):
    declare(getattr(aten, _name).default, emit=function(_name), cost=TRANSCENDENTAL, samples=samples.unary)


# Powers.


def _pow_number(e: Emitter, x: Scalar, exponent: Number) -> Scalar:
    """The exponents PyTorch itself treats apart, the same way; others through `pow`."""
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
    return e.op("pow", base, e.const(float(exponent), e.result))


def _multiplied(e: Emitter, base: Scalar, times: int) -> Scalar:
    if times == 0:
        return e.const(1, e.result)
    found: Scalar | None = None
    square = base
    while times:
        if times & 1:
            found = square if found is None else e.op("mul", found, square)
        times >>= 1
        if times:
            square = e.op("mul", square, square)
    assert found is not None
    return found


def _why_not_pow(node: fx.Node) -> str | None:
    dtype = tensor_spec(node).dtype
    if dtype.is_floating_point:
        exponent = node.args[1]
        huge = isinstance(exponent, int | float) and not math.isfinite(exponent)
        return "raises to an infinite power" if huge else None
    exponent = node.args[1]
    if dtype is torch.bool or isinstance(exponent, fx.Node) or not 0 <= exponent <= 64:  # type: ignore[operator]
        return "raises integers to powers not known to be small"
    return None


def _pow(e: Emitter, x: Operand, exponent: Operand) -> Scalar:
    return e.op("pow", value(e, x, e.result), value(e, exponent, e.result))


declare(
    aten.pow.Tensor_Scalar,
    emit=_pow_number,
    cost=TRANSCENDENTAL,
    samples=samples.with_numbers(2, 3, 0.5, -0.5, -1, -2, 0, 1, 5, 2.5, -3),
    why_not=_why_not_pow,
)
for _op in (aten.pow.Tensor_Tensor, aten.pow.Scalar):
    declare(
        _op,
        emit=_pow,
        cost=TRANSCENDENTAL,
        samples=samples.binary if _op is aten.pow.Tensor_Tensor else lambda d: (
            samples.Sample((base, samples.tensor(d))) for base in (2, 0.5)
        ),
        why_not=why_not_integer,
    )


# Comparisons and choice.


def comparison(name: str) -> EmitRule:
    """Both sides in their common dtype, rounded to it."""

    def emit(e: Emitter, a: Operand, b: Operand) -> Scalar:
        dtype = e.common
        if dtype is torch.bool and name not in ("eq", "ne"):
            dtype = torch.uint8
            return e.op(name, e.cast(value(e, a, torch.bool), dtype), e.cast(value(e, b, torch.bool), dtype))
        return e.op(name, rounded(e, a, dtype), rounded(e, b, dtype))

    return emit


def _why_not_compare(node: fx.Node) -> str | None:
    """A number outside the range of the integers it meets is compared by its value, which a constant cannot hold."""
    operands = _numbers(node)
    dtype = promoted(operands)
    for operand in operands:
        if isinstance(operand, int) and not dtype.is_floating_point and dtype is not torch.bool:
            limits = torch.iinfo(dtype)
            if not limits.min <= operand <= limits.max:
                return "compares with a number outside the dtype's range"
    return None


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    declare(getattr(aten, _name).Tensor, emit=comparison(_name), samples=samples.binary)
    declare(
        getattr(aten, _name).Scalar,
        emit=comparison(_name),
        samples=samples.with_numbers(0, 2, 0.1, True),
        why_not=_why_not_compare,
    )


def _where(e: Emitter, condition: Scalar, a: Operand, b: Operand) -> Scalar:
    return e.op("where", truth(e, condition), value(e, a, e.result), value(e, b, e.result))


def _masked_fill(e: Emitter, x: Scalar, mask: Scalar, filler: Operand) -> Scalar:
    return e.op("where", truth(e, mask), value(e, filler, e.result), value(e, x, e.result))


def _fit(node: fx.Node, numbers: list[Any]) -> str | None:
    """Numbers that the result's integer dtype cannot hold are PyTorch's to refuse or wrap."""
    dtype = tensor_spec(node).dtype
    if dtype.is_floating_point:
        return None
    for number in numbers:
        if isinstance(number, fx.Node) or number is None:
            continue
        if isinstance(number, float) or (dtype is torch.bool and not isinstance(number, bool)):
            return "puts a number into a dtype that cannot hold it"
        if dtype is not torch.bool and not torch.iinfo(dtype).min <= number <= torch.iinfo(dtype).max:
            return "puts a number into a dtype that cannot hold it"
    return None


def where_samples(dtype: torch.dtype) -> Any:
    mask = samples.tensor(torch.bool)
    yield samples.Sample((mask, samples.tensor(dtype), samples.tensor(dtype, turn=4)))
    yield samples.Sample((mask[:1], samples.tensor(dtype, (2, 1)), samples.tensor(torch.float32, (), 2)))
    yield samples.Sample((mask, samples.tensor(torch.uint8), samples.tensor(dtype, (8,))))


def masked_samples(dtype: torch.dtype) -> Any:
    yield samples.Sample((samples.tensor(dtype), samples.tensor(torch.bool), 3))
    yield samples.Sample((samples.tensor(dtype), samples.tensor(torch.bool, (8,)), True))


declare(aten.where.self, emit=_where, samples=where_samples)
declare(
    aten.masked_fill.Scalar, emit=_masked_fill, samples=masked_samples, why_not=lambda node: _fit(node, [node.args[2]])
)
declare(
    aten.masked_fill.Tensor,
    emit=_masked_fill,
    samples=lambda d: iter([samples.Sample((samples.tensor(d), samples.tensor(torch.bool), samples.tensor(d, (), 3)))]),
)


def _clamp(e: Emitter, x: Scalar, min: Operand | None = None, max: Operand | None = None) -> Scalar:
    found = value(e, x, e.result)
    if min is not None:
        found = e.op("maximum", found, value(e, min, e.result))
    if max is not None:
        found = e.op("minimum", found, value(e, max, e.result))
    return found


def _why_not_clamp(node: fx.Node) -> str | None:
    limits = [*node.args[1:], *node.kwargs.values()]
    if any(isinstance(limit, float) and math.isnan(limit) for limit in limits):
        return "clamps to NaN"
    return why_not_bool(node) or _fit(node, limits)


declare(
    aten.clamp.default,
    emit=_clamp,
    cost=2,
    samples=samples.chain(samples.call(1, 3), samples.call(None, 2), samples.call(-0.5, 0.75), samples.call(max=0)),
    why_not=_why_not_clamp,
)
declare(
    aten.clamp.Tensor,
    emit=_clamp,
    cost=2,
    samples=samples.chain(samples.call(tensors=3), samples.call(tensors=2)),
    why_not=why_not_bool,
)
declare(aten.clamp_min.default, emit=_clamp, samples=samples.with_numbers(1, -0.5), why_not=_why_not_clamp)
declare(
    aten.clamp_max.default,
    emit=lambda e, x, limit: _clamp(e, x, None, limit),
    samples=samples.with_numbers(1, -0.5),
    why_not=_why_not_clamp,
)


def _is_nan(e: Emitter, x: Scalar) -> Scalar:
    return e.op("isnan", x) if x.dtype.is_floating_point else e.const(False, torch.bool)


def _is_inf(e: Emitter, x: Scalar) -> Scalar:
    if not x.dtype.is_floating_point:
        return e.const(False, torch.bool)
    return e.op("eq", e.op("abs", x), e.const(math.inf, x.dtype))


def _is_finite(e: Emitter, x: Scalar) -> Scalar:
    if not x.dtype.is_floating_point:
        return e.const(True, torch.bool)
    return e.op("lt", e.op("abs", x), e.const(math.inf, x.dtype))


declare(aten.isnan.default, emit=_is_nan, samples=samples.unary)
declare(aten.isinf.default, emit=lambda e, x: _is_inf(e, rounded(e, x, e.common)), cost=2, samples=samples.unary)
declare(aten.isfinite.default, emit=lambda e, x: _is_finite(e, rounded(e, x, e.common)), cost=2, samples=samples.unary)


# Bits and logic.

for _name in ("and", "or", "xor"):

    def _bitwise(e: Emitter, a: Operand, b: Operand, _name: str = _name) -> Scalar:
        return e.op(_name, value(e, a, e.result), value(e, b, e.result))

    def _logical(e: Emitter, a: Scalar, b: Scalar, _name: str = _name) -> Scalar:
        return e.op(_name, truth(e, a), truth(e, b))

    declare(getattr(aten, f"bitwise_{_name}").Tensor, emit=_bitwise, samples=samples.binary)
    declare(
        getattr(aten, f"bitwise_{_name}").Scalar,
        emit=_bitwise,
        samples=samples.with_numbers(3, True),
        why_not=lambda node: _fit(node, [node.args[1]]),
    )
    declare(getattr(aten, f"logical_{_name}").default, emit=_logical, samples=samples.binary)
declare(aten.bitwise_not.default, emit=function("not"), samples=samples.unary)
declare(aten.logical_not.default, emit=lambda e, x: e.op("not", truth(e, x)), samples=samples.unary)


# Conversion and copies.


def _convert(e: Emitter, x: Scalar, **_: Any) -> Scalar:
    """An explicit conversion rounds, narrow floats included: who asks for bf16 wants its values."""
    return e.cast(e.cast(x, e.dtype), e.result)


def _why_not_convert(node: fx.Node) -> str | None:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    layout = node.kwargs.get("layout")
    if layout not in (None, torch.strided):
        return f"changes the layout to {layout}"
    narrow_integer = not tensor_spec(node).dtype.is_floating_point and tensor_spec(source).dtype.is_floating_point
    return "turns floats into uint8, which wraps differently by machine" if (
        narrow_integer and tensor_spec(node).dtype is torch.uint8
    ) else None


def _convert_samples(dtype: torch.dtype) -> Any:
    for target in (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.bool):
        yield samples.Sample((samples.finite(dtype),), {"dtype": target})
    yield samples.Sample((samples.finite(dtype),))


def _same(e: Emitter, x: Scalar, **_: Any) -> Scalar:
    return x


def _copy(e: Emitter, target: None, source: Scalar, non_blocking: bool = False) -> Scalar:
    return e.cast(source, e.result)


def _copy_samples(dtype: torch.dtype) -> Any:
    yield samples.Sample((samples.finite(dtype), samples.finite(torch.float32, (4,))))


declare(aten._to_copy.default, emit=_convert, samples=_convert_samples, why_not=_why_not_convert)
declare(aten.clone.default, emit=_same, samples=samples.unary)
declare(aten.copy.default, emit=_copy, template=True, samples=_copy_samples)
