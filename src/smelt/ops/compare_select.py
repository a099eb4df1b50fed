"""Records of comparisons, choice, logic, conversions and copies.

    gt(e, x, 0.1) on bf16  →  v0 = const 0.10009765625 ; v1 = gt x, v0

Comparisons round narrow floats first, so that a value meets its own stored copy as an equal.
"""

import math
from typing import Any

import torch
from torch import fx

from smelt.ir.tensorspec import TensorSpec, spec_of, tensor_spec
from smelt.ops.pointwise import NOT_HELD, Operand, declare, function, rounded, value, why_not_bool
from smelt.ops.promote import in_range, promoted
from smelt.ops.record import EmitRule, Emitter, Scalar

aten = torch.ops.aten


def truth(e: Emitter, operand: Scalar) -> Scalar:
    """Whether the operand is not zero."""
    return e.cast(operand, torch.bool)


def _numbers(node: fx.Node) -> list[Any]:
    """The call's operands for promotion: specs of tensors, and numbers."""
    operands: list[Any] = []
    for argument in node.args:
        spec = spec_of(argument) if isinstance(argument, fx.Node) else argument
        if isinstance(spec, TensorSpec | bool | int | float):
            operands.append(spec)
    return operands


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
    declare(getattr(aten, _name).Tensor, emit=comparison(_name))
    declare(getattr(aten, _name).Scalar, emit=comparison(_name), why_not=_why_not_compare)


def _where(e: Emitter, condition: Scalar, a: Operand, b: Operand) -> Scalar:
    return e.op("where", truth(e, condition), value(e, a, e.result), value(e, b, e.result))


def _masked_fill(e: Emitter, x: Scalar, mask: Scalar, filler: Operand) -> Scalar:
    return e.op("where", truth(e, mask), value(e, filler, e.result), value(e, x, e.result))


def _fit(node: fx.Node, numbers: list[Any]) -> str | None:
    """Numbers that the result's dtype cannot hold are PyTorch's to refuse or wrap."""
    dtype = tensor_spec(node).dtype
    for number in numbers:
        if isinstance(number, fx.Node) or number is None:
            continue
        fraction = isinstance(number, float) and not dtype.is_floating_point
        if fraction or (dtype is torch.bool and not isinstance(number, bool)) or not in_range(number, dtype):
            return NOT_HELD
    return None


declare(aten.where.self, emit=_where)
declare(aten.masked_fill.Scalar, emit=_masked_fill, why_not=lambda node: _fit(node, [node.args[2]]))
declare(aten.masked_fill.Tensor, emit=_masked_fill)


def _clamp(e: Emitter, x: Scalar, min: Operand | None = None, max: Operand | None = None) -> Scalar:
    """Between numbers as the tensor's dtype has them: what is too small for that is a zero. They come first: which of
    two zeros is taken is the processor's choice, on x86 the second operand, and there eager keeps the element."""
    bounded = value(e, x, e.result)
    if min is not None:
        bounded = e.op("maximum", rounded(e, min, e.dtype), bounded)
    if max is not None:
        bounded = e.op("minimum", rounded(e, max, e.dtype), bounded)
    return bounded


def _clamp_to_tensors(e: Emitter, x: Scalar, min: Scalar | None = None, max: Scalar | None = None) -> Scalar:
    """Between elements of tensors, which come second: of two zeros eager takes the limit's on x86."""
    bounded = value(e, x, e.result)
    if min is not None:
        bounded = e.op("maximum", bounded, value(e, min, e.result))
    if max is not None:
        bounded = e.op("minimum", bounded, value(e, max, e.result))
    return bounded


def _why_not_clamp(node: fx.Node) -> str | None:
    limits = [*node.args[1:], *node.kwargs.values()]
    if any(isinstance(limit, float) and math.isnan(limit) for limit in limits):
        return "clamps to NaN"
    return why_not_bool(node) or _fit(node, limits)


declare(aten.clamp.default, emit=_clamp, cost=2, why_not=_why_not_clamp)
declare(aten.clamp.Tensor, emit=_clamp_to_tensors, cost=2, why_not=why_not_bool)
declare(aten.clamp_min.default, emit=_clamp, why_not=_why_not_clamp)
declare(aten.clamp_max.default, emit=lambda e, x, limit: _clamp(e, x, None, limit), why_not=_why_not_clamp)


def _is_nan(e: Emitter, x: Scalar) -> Scalar:
    return e.op("isnan", x) if x.dtype.is_floating_point else e.const(False, torch.bool)


def _is_inf(e: Emitter, x: Scalar) -> Scalar:
    if not x.dtype.is_floating_point:
        return e.const(False, torch.bool)
    return e.op("eq", e.op("abs", x), e.const(math.inf, x.dtype))


def _is_negative(e: Emitter, x: Scalar) -> Scalar:
    """By its sign, which a zero has too."""
    if x.dtype in (torch.bool, torch.uint8):
        return e.const(False, torch.bool)
    number = rounded(e, x, e.common)
    return e.op("signbit", number) if number.dtype.is_floating_point else e.op("lt", number, e.const(0, number.dtype))


declare(aten.isnan.default, emit=_is_nan)
declare(aten.signbit.default, emit=_is_negative)
declare(aten.isinf.default, emit=lambda e, x: _is_inf(e, rounded(e, x, e.common)), cost=2)


# Bits and logic.

for _name in ("and", "or", "xor"):

    def _bitwise(e: Emitter, a: Operand, b: Operand, _name: str = _name) -> Scalar:
        return e.op(_name, value(e, a, e.result), value(e, b, e.result))

    def _logical(e: Emitter, a: Scalar, b: Scalar, _name: str = _name) -> Scalar:
        return e.op(_name, truth(e, a), truth(e, b))

    declare(getattr(aten, f"bitwise_{_name}").Tensor, emit=_bitwise)
    declare(
        getattr(aten, f"bitwise_{_name}").Scalar, emit=_bitwise, why_not=lambda node: _fit(node, [node.args[1]])
    )
    declare(getattr(aten, f"logical_{_name}").default, emit=_logical)
declare(aten.bitwise_not.default, emit=function("not"))


def _why_not_shift(node: fx.Node) -> str | None:
    """Shifts of floats multiply by powers of two, and PyTorch refuses those of bool."""
    dtype = tensor_spec(node).dtype
    if dtype.is_floating_point or dtype is torch.bool:
        return "shifts what is no integer"
    return None if isinstance(node.args[1], fx.Node) else _fit(node, [node.args[1]])


for _name, _op in (("left", "shl"), ("right", "shr")):

    def _shifted(e: Emitter, a: Operand, b: Operand, _op: str = _op) -> Scalar:
        return e.op(_op, value(e, a, e.result), value(e, b, e.result))

    declare(
        getattr(aten, f"bitwise_{_name}_shift").Tensor,
        getattr(aten, f"bitwise_{_name}_shift").Tensor_Scalar,
        getattr(aten, f"__{_name[0]}shift__").Tensor,
        getattr(aten, f"__{_name[0]}shift__").Scalar,
        emit=_shifted,
        why_not=_why_not_shift,
    )
declare(aten.logical_not.default, emit=lambda e, x: e.op("not", truth(e, x)))


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


def _same(e: Emitter, x: Scalar, **_: Any) -> Scalar:
    return x


def _copy(e: Emitter, target: None, source: Operand, non_blocking: bool = False) -> Scalar:
    if isinstance(source, bool | int | float):
        kind = torch.float64 if isinstance(source, float) else torch.int64
        source = e.const(source, kind)
    return e.cast(source, e.result)


declare(aten._to_copy.default, emit=_convert, why_not=_why_not_convert)
declare(aten.clone.default, emit=_same)
declare(aten.copy.default, aten.fill.Tensor, emit=_copy, template=True)
