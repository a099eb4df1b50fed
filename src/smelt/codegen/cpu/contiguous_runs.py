"""Vectorizes gathers whose indices are positions, and selections by position.

    gather x[64*i] by 1*p below 56, p = j - 3, 8 lanes    →    one load of a vector, x[64*i + j - 3] and what follows

At the edges some lanes are outside the row. Their values do not matter, because the code selects something else there.
So a vector is read lane by lane only where it would reach past the ends of the whole buffer, and not read at all where
all lanes are outside. Selections by position are done by spans of lanes, with one comparison each.
"""

from collections.abc import Mapping

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.loops.arrays import Array
from smelt.codegen.loops.builder import Builder
from smelt.ir.loops import Value
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import is_symsize

FAR = 1 << 29  # what is further away than this is further than any lane; twice as much is a number of 32 bits too


def near(b: Builder, number: Value) -> Value:
    """A number as one of 32 bits, no further from 0 than `FAR`."""
    held = b.smin(b.smax(number, -FAR), FAR)
    return b.convert("trunc", held, "i32")


@dataclass(frozen=True, slots=True)
class Run:
    """Lanes at the places `first`, `first + pace`, …, each `stride` elements from the next in memory; places count from
    0 to below `extent`."""

    first: Value
    pace: int
    stride: int
    extent: Size

    @classmethod
    def of(cls, name: str, stride: Size, extent: Size, iotas: Mapping[str, tuple[Value, int]]) -> "Run | None":
        """The run of a value that is a position; None if adjacent lanes are not adjacent in memory."""
        if name not in iotas or is_symsize(stride):
            return None
        first, pace = iotas[name]
        return cls(first, pace, stride, extent) if abs(pace * stride) == 1 else None

    def read(self, array: Array, size: Size, base: Value, mask: Value | None, lanes: int) -> Value:
        """The elements of an array of `size`, if `mask` is true; place 0 is its element `base`."""
        b = array.b
        last = b.add(self.first, (lanes - 1) * self.pace)
        low, high = (self.first, last) if self.pace > 0 else (last, self.first)
        some = b.and_(b.icmp("sge", high, 0), b.icmp("slt", low, self.extent))
        start = self.first if self.pace * self.stride == 1 else last
        lowest = b.add(base, b.mul(start, self.stride))
        fits = b.and_(b.icmp("sge", lowest, 0), b.icmp("sle", lowest, size - lanes))

        def together() -> list[Value]:
            loaded = array.load(lowest, lanes)
            return [loaded if start is self.first else b.reverse(loaded)]

        def apart() -> list[Value]:
            numbers = [b.add(base, b.mul(self._held(b, lane), self.stride)) for lane in range(lanes)]
            return [b.gathered([array.load(number) for number in numbers])]

        needed = some if mask is None else b.and_(some, mask)
        zeros = b.const(array.kind, 0, lanes)
        (elements,) = b.choice(needed, lambda: b.choice(fits, together, apart), lambda: [zeros])
        return elements

    def _held(self, b: Builder, lane: int) -> Value:
        """The place of a lane: for one outside, which as an unsigned number is above the last, that."""
        return b.umin(b.add(self.first, lane * self.pace), self.extent - 1)


@dataclass(frozen=True, slots=True)
class Span:
    """Lanes from `low` to below `high`, numbers of 32 bits: where a position compares with a number as it should."""

    low: Value
    high: Value

    @classmethod
    def of(cls, b: Builder, op: str, apart: Value) -> "Span | None":
        """Lanes that are less than `apart`, or not; None where they are no span."""
        far, further = b.const("i32", FAR), b.add(apart, 1)
        match op:
            case "lt":
                return cls(b.const("i32", -FAR), apart)
            case "le":
                return cls(b.const("i32", -FAR), further)
            case "ge":
                return cls(apart, far)
            case "gt":
                return cls(further, far)
        return None

    def both(self, b: Builder, other: "Span") -> "Span":
        return Span(b.smax(self.low, other.low), b.smin(self.high, other.high))

    def where(self, b: Builder, condition: Value) -> "Span":
        """All of it or nothing."""
        return Span(self.low, b.select(condition, self.high, self.low))

    def mask(self, b: Builder, lanes: int) -> Value:
        """One comparison: a lane below the first is above all others, as an unsigned number."""
        long = b.smax(b.sub(self.high, self.low), 0)
        number = b.sub(b.iota("i32", range(lanes)), b.splat(self.low, lanes))
        return b.icmp("ult", number, b.splat(long, lanes))
