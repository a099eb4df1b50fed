"""The values that products read, and the operations on their sums, as readings of values.

Copies that only lay out a factor are read through, and copies of a product are computed directly: see `factor_views`.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache

import torch

from smelt.fuse.lowering import index_exprs
from smelt.fuse.lowering.factor_views import copied, moved, read_through
from smelt.fuse.lowering.matrix_products import ProductCall
from smelt.fuse.lowering.rules import ContractRule, PointRule, Slot
from smelt.fuse.lowering.values import FusionKind, FusionRead, FusionValue, Ref
from smelt.ir.check_kernel import SMALL_INTEGERS
from smelt.ir.tensorspec import TensorSpec
from smelt.ops.record import EmitRule, OperandLayout, Pointwise
from smelt.ops.registry import record_of
from smelt.symbolic.shapes import is_dense
from smelt.symbolic.symsize import hint, known_equal


def through_copies(
    call: ProductCall, sources: list[FusionValue], is_right: Callable[[ProductCall, list[FusionValue]], bool]
) -> tuple[ProductCall, list[FusionValue]]:
    """The sources of a product's factors, looking through copies, and the product that reads them. If the product of
    the copies `is_right`, they are looked through only as far as it stays so."""
    depths = [_copies_before(source) for source in sources]
    if not any(depths) or not is_right(call, sources):
        return _read_through(call, sources, depths)
    fewer = itertools.product(*(range(depth, -1, -1) for depth in depths))
    for tried in sorted(fewer, key=sum, reverse=True):
        direct, originals = _read_through(call, sources, tried)
        if is_right(direct, originals):
            break
    return direct, originals


def _read_through(
    call: ProductCall, sources: list[FusionValue], depths: Sequence[int]
) -> tuple[ProductCall, list[FusionValue]]:
    originals = list(sources)
    for number, depth in enumerate(depths):
        call, originals[number] = _through_copies(call, number, originals[number], depth)
    return call, originals


def through_copy(ref: Ref) -> Ref:
    """The base of a view, looking through a copy."""
    while is_copy(ref.value) and ref.value.readings[0].value.spec.dtype.is_floating_point:
        reading, spec = ref.value.readings[0], ref.value.spec
        layout = moved(ref.layout, spec.stride, OperandLayout(spec.shape, reading.stride, reading.offset))
        if layout is None:
            break
        ref = Ref(reading.value, layout)
    return ref


def read_factors(call: ProductCall, sources: Sequence[FusionValue]) -> tuple[FusionRead, ...]:
    """The readings of a product's factors and their scales, which must be in memory."""
    readings = []
    for factor, source in zip(call.rule.reads, sources, strict=True):
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


def finishes_product(value: FusionValue) -> bool:
    """Whether a library does it to the sums of a product: scale and add as a call does (`finished`), add a vector, or
    round once."""
    if not isinstance(value.rule, PointRule):
        return False
    emit, full = value.rule.lowering.emit, [reading for reading in value.readings if reading.identity_read]
    if emit is index_exprs.scaled_sum:
        return True
    if len(full) != 1 or any(reading.indirect for reading in value.readings):
        return False
    vectors = [reading for reading in value.readings if not reading.identity_read]
    is_narrower = value.spec.dtype.itemsize < full[0].value.spec.dtype.itemsize
    if not vectors:
        return is_narrower and any(emit is each for each in _copies())
    is_sum = emit is _addition() and value.rule.args == (Slot(0), Slot(1)) and not value.rule.kwargs
    return is_sum and len(vectors) == 1 and sum(not known_equal(step, 0) for step in vectors[0].stride) == 1


def _copies_before(source: FusionValue) -> int:
    """How many copies a value is of, one of the other."""
    count = 0
    while is_copy(source):
        reading = source.readings[0]
        if reading.value.kind is FusionKind.PRODUCT and reading.value.users == [source]:
            break  # the product may be computed as the copy, which costs nothing
        count, source = count + 1, reading.value
    return count


def _through_copies(
    call: ProductCall, number: int, source: FusionValue, depth: int
) -> tuple[ProductCall, FusionValue]:
    """The source of a factor, looking through so many copies, and the product that reads it."""
    for _ in range(depth):
        reading, spec = source.readings[0], source.spec
        layout = OperandLayout(spec.shape, reading.stride, reading.offset)
        direct = read_through(call, number, spec.stride, layout)
        if direct is None:
            break
        call, source = direct, reading.value
    return call, source


Cycles = Callable[[ContractRule, Sequence[TensorSpec], TensorSpec], float | str]
ForLibrary = Callable[[ContractRule, Sequence[TensorSpec], TensorSpec], bool]
CYCLES_TO_COPY = 4  # an element, to a place further from its neighbours


def compute_copies(values: Iterable[FusionValue], cycles: Cycles, is_for_library: ForLibrary) -> None:
    """Compute products that are only copied directly in the copy's layout, unless that is slower than both: depthwise
    convolutions run along image rows, and libraries have no such layout."""
    for value in values:
        if not is_copy(value) or value.readings[0].identity_read:
            continue
        reading = value.readings[0]
        product, spec = reading.value, value.spec
        if not isinstance(product.rule, ContractRule) or product.needed or product.users != [value]:
            continue
        if any(factor.quantized is not None for factor in product.rule.factors):
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
        if product.by_library and not is_for_library(at_copy.rule, factors, there):
            continue
        allowed = CYCLES_TO_COPY * hint(spec.numel)
        if isinstance(takes[1], str) or (not isinstance(takes[0], str) and takes[1] > takes[0] + allowed):
            continue
        for factor in product.readings:
            factor.value.users.remove(product)
            factor.value.users.append(value)
        product.users = []
        value.kind, value.rule, value.cost, value.why = FusionKind.PRODUCT, at_copy.rule, product.cost, product.why
        value.spec, value.by_library = there, product.by_library
        value.readings = tuple(
            replace(old, stride=factor.stride, offset=factor.offset)
            for old, factor in zip(product.readings, at_copy.rule.factors, strict=True)
        )


def is_copy(value: FusionValue) -> bool:
    """Whether a value is a copy of another, in a different layout or as floats that represent it exactly."""
    if not isinstance(value.rule, PointRule) or len(value.readings) != 1:
        return False
    emit, have, want = value.rule.lowering.emit, value.readings[0].value.spec.dtype, value.spec.dtype
    if value.readings[0].indirect or not any(emit is each for each in _copies()):
        return False
    is_exact = have in SMALL_INTEGERS or (have.is_floating_point and have.itemsize < want.itemsize)
    return have is want or (is_exact and want.is_floating_point)


@cache
def _addition() -> EmitRule:
    lowering = record_of(torch.ops.aten.add.Tensor).lowering
    assert isinstance(lowering, Pointwise)
    return lowering.emit


@cache
def _copies() -> tuple[EmitRule, ...]:
    """The rules of operators that copy."""
    lowerings = [record_of(op).lowering for op in (torch.ops.aten.clone.default, torch.ops.aten._to_copy.default)]
    return (index_exprs.itself, *(each.emit for each in lowerings if isinstance(each, Pointwise)))
