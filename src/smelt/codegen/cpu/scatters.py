"""Writes at data-dependent places, and chooses the thread that does so.

    scatter sum y[j] by 64*p below 100 = v     p is the same in all lanes:  y[64*p + j …] += v, a vector at a time
                                               each lane has its own p:     one element after the other, in order

A point whose place is out of bounds, or a lane that does not count, writes to a private place that nothing reads. So
nothing outside the buffer is touched, and there is no branch.
"""

from collections.abc import Sequence

import torch

from smelt.codegen.cpu.schedule import BUCKETS
from smelt.codegen.loops import reductions
from smelt.codegen.loops.arrays import Array
from smelt.codegen.loops.builder import Builder
from smelt.codegen.loops.scalars import cast, from_memory, to_memory
from smelt.ir.kernel import Reduction
from smelt.ir.loops import Value
from smelt.symbolic.shapes import Size

_MIX = 0x9E3779B97F4A7C15  # odd, and its bits look random: neighbouring places fall into distant buckets


def nowhere(buffer: str) -> str:
    """The name of the private place that absorbs writes which must not reach `buffer`."""
    return f"{buffer}.nowhere"


def offset(b: Builder, by: Sequence[tuple[Value, Size]]) -> Value:
    """How far the places are from the buffer's beginning; each is (place, stride)."""
    total = b.const("i64", 0)
    for place, stride in by:
        total = b.add(total, b.mul(place, stride))
    return total


def bucket(b: Builder, by: Sequence[tuple[Value, Size]]) -> Value:
    """A number below `BUCKETS` that rows with the same places share."""
    return b.lshr(b.mul(offset(b, by), _MIX - (1 << 64)), 64 - (BUCKETS - 1).bit_length())


def put(
    op: Reduction | None, value: Value, dtype: torch.dtype, first: Array, step: Size, offset: Value, inside: Value,
    mask: Value | None, nowhere: Array,
) -> None:  # fmt: skip
    """Write a `value` of a `dtype`. `first` is the element of the first lane if all places are 0, `step` the stride to
    the next lane; `mask` says which lanes count."""
    b, lanes = first.b, value.lanes

    def one(value: Value, place: Array, counts: Value, mask: Value | None) -> None:
        where = Array(b, b.select(counts, place.pointer, nowhere.pointer), first.dtype)
        raw = where.load(0, value.lanes) if op is not None or mask is not None else None
        if op is not None and raw is not None:
            old = cast(b, from_memory(b, raw, first.dtype), first.dtype, dtype)
            value = reductions.combine(b, op, dtype, old, value)
            value = cast(b, value, dtype, first.dtype)
        new = to_memory(b, value, first.dtype)
        where.store(new if mask is None or raw is None else b.select(mask, new, raw))

    if lanes == 1 or (isinstance(step, int) and step == 1 and offset.lanes == inside.lanes == 1):
        one(value, first.at(offset), inside, mask)
        return
    for lane in range(lanes):
        place = first.at(b.const("i64", step * lane)).at(b.extract(offset, lane))
        counts = b.extract(inside, lane)
        if mask is not None:
            counts = b.and_(counts, b.extract(mask, lane))
        one(b.extract(value, lane), place, counts, None)
