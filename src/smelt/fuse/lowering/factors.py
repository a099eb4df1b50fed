"""The values that products read, and the operations on their sums, as readings of values.

Copies that only lay out a factor are read through, and copies of a product are computed directly: see `factor_views`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache

import torch

from smelt.fuse.lowering import index_exprs
from smelt.fuse.lowering.factor_views import copied, moved, read_through
from smelt.fuse.lowering.matrix_products import ProductCall
from smelt.fuse.lowering.rules import ContractRule, PointRule, Slot
from smelt.fuse.lowering.values import FusionKind, FusionRead, FusionValue, Ref
from smelt.ir.tensorspec import TensorSpec
from smelt.ops.record import EmitRule, OperandLayout, Pointwise
from smelt.ops.registry import record_of
from smelt.symbolic.shapes import is_dense
from smelt.symbolic.symsize import hint


def through_copies(call: ProductCall, sources: Sequence[FusionValue]) -> tuple[ProductCall, list[FusionValue]]:
    """The sources of a product's factors, looking through copies, and the product that reads them."""
    originals = list(sources)
    for number in range(len(originals)):
        call, originals[number] = _through_copies(call, number, originals[number])
    return call, originals


def through_copy(ref: Ref) -> Ref:
    """The base of a view, looking through a copy."""
    while _is_copy(ref.value):
        reading, spec = ref.value.readings[0], ref.value.spec
        layout = moved(ref.layout, spec.stride, OperandLayout(spec.shape, reading.stride, reading.offset))
        if layout is None:
            break
        ref = Ref(reading.value, layout)
    return ref


def read_factors(call: ProductCall, sources: Sequence[FusionValue]) -> tuple[FusionRead, ...]:
    """The readings of a product's factors, which must be in memory."""
    readings = []
    for factor, source in zip(call.rule.factors, sources, strict=True):
        source.needed = True
        readings.append(FusionRead(source, factor.stride, factor.offset, identity_read=False, indirect=True))
    return tuple(readings)


def finished(
    call: ProductCall, sums: FusionValue, added: FusionValue | None
) -> tuple[tuple[FusionRead, ...], PointRule]:
    """The operations of a call on its sums: the readings, and the rule."""
    readings = [FusionRead.of(sums, OperandLayout(call.shape, call.stride), call.stride)]
    if added is not None and call.added is not None:
        layout = OperandLayout(call.shape, call.added.stride, call.added.offset)
        readings.append(FusionRead.of(added, layout, call.stride))
    beta = 0.0 if call.added is None else call.added.beta
    args = (call.alpha, beta, *map(Slot, range(len(readings))))
    return tuple(readings), PointRule(Pointwise(index_exprs.scaled_sum), args, {}, sums.spec.dtype)


def _through_copies(call: ProductCall, number: int, source: FusionValue) -> tuple[ProductCall, FusionValue]:
    """The source of a factor, looking through copies, and the product that reads it."""
    while _is_copy(source):
        reading, spec = source.readings[0], source.spec
        if reading.value.kind is FusionKind.PRODUCT and reading.value.users == [source]:
            break  # the product may be computed as the copy, which costs nothing
        layout = OperandLayout(spec.shape, reading.stride, reading.offset)
        direct = read_through(call, number, spec.stride, layout)
        if direct is None:
            break
        call, source = direct, reading.value
    return call, source


Cycles = Callable[[ContractRule, Sequence[TensorSpec], TensorSpec], float | str]
CYCLES_TO_COPY = 4  # an element, to a place further from its neighbours


def compute_copies(values: Iterable[FusionValue], cycles: Cycles) -> None:
    """Compute products that are only copied directly in the copy's layout, unless that is slower than both: depthwise
    convolutions run along image rows."""
    for value in values:
        if not _is_copy(value) or value.readings[0].identity_read:
            continue
        reading = value.readings[0]
        product, spec = reading.value, value.spec
        if not isinstance(product.rule, ContractRule) or product.needed or product.users != [value]:
            continue
        if product.spec.dtype is not spec.dtype or not is_dense(spec.shape, spec.stride):
            continue
        layout = OperandLayout(product.spec.shape, product.spec.stride)
        at_copy = copied(product.rule, layout, spec.stride, OperandLayout(spec.shape, reading.stride, reading.offset))
        if at_copy is None:
            continue
        there = TensorSpec(at_copy.shape, at_copy.stride, spec.dtype, spec.device)
        factors = [factor.value.spec for factor in product.readings]
        takes = cycles(product.rule, factors, product.spec), cycles(at_copy.rule, factors, there)
        allowed = CYCLES_TO_COPY * hint(spec.numel)
        if isinstance(takes[1], str) or (not isinstance(takes[0], str) and takes[1] > takes[0] + allowed):
            continue
        for factor in product.readings:
            factor.value.users.remove(product)
            factor.value.users.append(value)
        product.users = []
        value.kind, value.rule, value.cost, value.why = FusionKind.PRODUCT, at_copy.rule, product.cost, product.why
        value.spec = there
        value.readings = tuple(
            replace(old, stride=factor.stride, offset=factor.offset)
            for old, factor in zip(product.readings, at_copy.rule.factors, strict=True)
        )


def _is_copy(value: FusionValue) -> bool:
    """Whether a value is a copy of another, in a different layout or as wider floats."""
    if not isinstance(value.rule, PointRule) or len(value.readings) != 1:
        return False
    emit, have, want = value.rule.lowering.emit, value.readings[0].value.spec.dtype, value.spec.dtype
    if value.readings[0].indirect or not any(emit is each for each in _copies()):
        return False
    return have is want or (have.is_floating_point and have.itemsize < want.itemsize and want.is_floating_point)


@cache
def _copies() -> tuple[EmitRule, ...]:
    """The rules of operators that copy."""
    lowerings = [record_of(op).lowering for op in (torch.ops.aten.clone.default, torch.ops.aten._to_copy.default)]
    return (index_exprs.itself, *(each.emit for each in lowerings if isinstance(each, Pointwise)))
