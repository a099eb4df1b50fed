"""Records of tensors made from nothing but numbers and positions.

    full([4], 2.0)     →  v0 = const 2.0
    arange(2, 10, 3)   →  v0 = position [j] ; v1 = mul v0, 3 ; v2 = add v1, 2
"""

from typing import Any

import torch
from torch import fx

from smelt.ir.tensorspec import tensor_spec
from smelt.ops.pointwise import declare
from smelt.ops.promote import in_range
from smelt.ops.record import Emitter, Number, Scalar

aten = torch.ops.aten


def _full(e: Emitter, size: Any, number: Number, **_: Any) -> Scalar:
    return e.cast(e.const(number, e.dtype), e.result)


def _full_new(e: Emitter, like: None, size: Any, number: Number, **_: Any) -> Scalar:
    return e.cast(e.const(number, e.dtype), e.result)


def _filled(number: int) -> Any:
    def emit(e: Emitter, *_: Any, **__: Any) -> Scalar:
        return e.const(number, e.result)

    return emit


def why_not_hold(number: object, dtype: torch.dtype) -> str | None:
    """A number the dtype cannot hold is PyTorch's to refuse or wrap."""
    if not isinstance(number, bool | int | float):
        return "is filled with a value that is no number"
    whole = not dtype.is_floating_point and dtype is not torch.bool
    if whole and isinstance(number, float) and not number.is_integer():
        return "is filled with a fraction"
    return None if in_range(number, dtype) else "is filled with a number its dtype cannot hold"


def _why_not_hold(position: int) -> Any:
    return lambda node: why_not_hold(node.args[position], tensor_spec(node).dtype)


declare(aten.full.default, emit=_full, why_not=_why_not_hold(1))
declare(aten.full_like.default, aten.fill.Scalar, template=True, emit=_full, why_not=_why_not_hold(1))
declare(aten.new_full.default, template=True, emit=_full_new, why_not=_why_not_hold(2))
declare(
    aten.scalar_tensor.default,
    emit=lambda e, number, **_: e.cast(e.const(number, e.dtype), e.result),
    why_not=_why_not_hold(0),
)
for _number, _name in enumerate(("zeros", "ones")):
    declare(getattr(aten, _name).default, emit=_filled(_number))
    for _like in (f"{_name}_like", f"new_{_name}"):
        declare(getattr(aten, _like).default, template=True, emit=_filled(_number))
declare(aten.zero.default, template=True, emit=_filled(0))


def _arange(e: Emitter, start: Number, step: Number) -> Scalar:
    """As PyTorch: integers in int64, floats in double, converted once at the end."""
    inner = torch.float64 if e.result.is_floating_point else torch.int64
    number = e.cast(e.position(0), inner)
    if step != 1:
        number = e.op("mul", number, e.const(step, inner))
    if start != 0:
        number = e.op("add", number, e.const(start, inner))
    return e.cast(number, e.result)


def _why_not_arange(node: fx.Node) -> str | None:
    numbers = [argument for argument in node.args if isinstance(argument, int | float)]
    if tensor_spec(node).dtype.is_floating_point:
        return None
    if any(isinstance(number, float) for number in numbers):
        return "counts integers by fractions"
    return "counts in bool" if tensor_spec(node).dtype is torch.bool else None


declare(aten.arange.default, emit=lambda e, end, **_: _arange(e, 0, 1), why_not=_why_not_arange, by_position=True)
declare(
    aten.arange.start,
    emit=lambda e, start, end, **_: _arange(e, start, 1),
    why_not=_why_not_arange,
    by_position=True,
)
declare(
    aten.arange.start_step,
    emit=lambda e, start, end, step=1, **_: _arange(e, start, step),
    why_not=_why_not_arange,
    by_position=True,
)


def _triangle(comparison: str) -> Any:
    """Keep where col - row compares with `diagonal`, zero elsewhere."""

    def emit(e: Emitter, x: Scalar, diagonal: int = 0) -> Scalar:
        rank = len(e.shape)
        apart = e.op("sub", e.position(rank - 1), e.position(rank - 2))
        kept = e.op(comparison, apart, e.const(diagonal, torch.int64))
        return e.op("where", kept, e.cast(x, e.result), e.const(0, e.result))

    return emit


declare(aten.triu.default, emit=_triangle("ge"), cost=2, by_position=True)
declare(aten.tril.default, emit=_triangle("le"), cost=2, by_position=True)


def _eye(e: Emitter, *_: Any, **__: Any) -> Scalar:
    return e.cast(e.op("eq", e.position(0), e.position(1)), e.result)


declare(aten.eye.default, aten.eye.m, emit=_eye, cost=2, by_position=True)
