"""Writes at data-dependent places, and chooses the thread that does so.

    scatter sum y[j] by 64*p below 100 = v     p is the same in all lanes:  y[64*p + j …] += v, a vector at a time
                                               each lane has its own p:     one element after the other, in order

A point whose place is out of bounds, or a lane that does not count, writes to a private place that nothing reads. So
nothing outside the buffer is touched, and there is no branch.
"""

from collections.abc import Sequence

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu.schedule import BUCKETS
from smelt.codegen.loops import reductions
from smelt.codegen.loops.builder import Builder
from smelt.codegen.loops.scalars import cast, from_memory, memory_kind, to_memory
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


@dataclass(frozen=True, slots=True)
class ScatterPut:
    """A write: `first` is the address of the first lane if all places are 0, `step` the stride to the next lane."""

    op: Reduction | None
    dtype: torch.dtype  # of the buffer
    value_dtype: torch.dtype
    value: Value
    first: Value
    step: Size
    offset: Value
    inside: Value
    mask: Value | None  # lanes that count
    nowhere: Value

    def write(self, b: Builder) -> None:
        lanes = self.value.lanes
        together = isinstance(self.step, int) and self.step == 1 and self.offset.lanes == self.inside.lanes == 1
        if lanes == 1 or together:
            where = self._chosen(b, self._element(b, self.first, self.offset), self.inside)
            self._put(b, self.value, where, lanes, self.mask)
            return
        for lane in range(lanes):
            further = b.const("i64", self.step * lane)
            place = self._element(b, self._element(b, self.first, further), b.extract(self.offset, lane))
            counts = b.extract(self.inside, lane)
            if self.mask is not None:
                counts = b.and_(counts, b.extract(self.mask, lane))
            self._put(b, b.extract(self.value, lane), self._chosen(b, place, counts), 1, None)

    def _element(self, b: Builder, base: Value, further: Value) -> Value:
        return b.element(base, memory_kind(self.dtype), further)

    def _chosen(self, b: Builder, place: Value, counts: Value) -> Value:
        return b.select(counts, place, self.nowhere)

    def _put(self, b: Builder, value: Value, where: Value, lanes: int, mask: Value | None) -> None:
        kind = memory_kind(self.dtype)
        raw = b.load(where, kind, lanes) if self.op is not None or mask is not None else None
        if self.op is not None and raw is not None:
            old = cast(b, from_memory(b, raw, self.dtype), self.dtype, self.value_dtype)
            value = cast(b, reductions.combine(b, self.op, self.value_dtype, old, value), self.value_dtype, self.dtype)
        new = to_memory(b, value, self.dtype)
        if mask is not None and raw is not None:
            new = b.select(mask, new, raw)
        b.store(new, where)
