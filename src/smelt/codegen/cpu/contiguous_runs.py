"""Vectorizes gathers whose indices are positions, and selections by position.

    gather x[64*i] by 1*p below 56, p = j - 3, 8 lanes    →    one load of a vector, x[64*i + j - 3] and what follows

At the edges some lanes are outside the row. Their values do not matter, because the code selects something else there.
So a vector is read lane by lane only where it would reach past the ends of the whole buffer, and not read at all where
all lanes are outside. Selections by position are done by spans of lanes, with one comparison each.
"""

from collections.abc import Mapping

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.llvm.builder import Builder, LlvmValue
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import is_symsize

FAR = 1 << 29  # what is further away than this is further than any lane; twice as much is a number of 32 bits too


def near(b: Builder, number: LlvmValue) -> LlvmValue:
    """A number as one of 32 bits, no further from 0 than `FAR`."""
    held = b.intrinsic("llvm.smin", b.intrinsic("llvm.smax", number, b.const("i64", -FAR)), b.const("i64", FAR))
    return b.convert("trunc", held, "i32")


@dataclass(frozen=True, slots=True)
class Run:
    """Lanes at the places `first`, `first + pace`, …, each `stride` elements from the next in memory; places count from
    0 to below `extent`."""

    first: LlvmValue
    pace: int
    stride: int
    extent: Size

    @classmethod
    def of(cls, name: str, stride: Size, extent: Size, iotas: Mapping[str, tuple[LlvmValue, int]]) -> "Run | None":
        """The run of a value that is a position; None if adjacent lanes are not adjacent in memory."""
        if name not in iotas or is_symsize(stride):
            return None
        first, pace = iotas[name]
        return cls(first, pace, stride, extent) if abs(pace * stride) == 1 else None

    def read(self, b: Builder, memory: "RunMemory", wanted: LlvmValue | None, lanes: int) -> LlvmValue:
        """The elements, if any is `wanted`; place 0 is `memory`'s first."""
        last = b.add(self.first, (lanes - 1) * self.pace)
        low, high = (self.first, last) if self.pace > 0 else (last, self.first)
        some = b.and_(b.icmp("sge", high, 0), b.icmp("slt", low, self.extent))
        start = self.first if self.pace * self.stride == 1 else last
        lowest = b.add(memory.base, b.mul(start, self.stride))
        fits = b.and_(b.icmp("sge", lowest, 0), b.icmp("sle", lowest, memory.size - lanes))
        before = b.block
        inside, whole, edge, done = (b.new_label(stem) for stem in ("inside", "whole", "edge", "done"))
        b.branch(some if wanted is None else b.and_(some, wanted), inside, done)
        b.label(inside)
        b.branch(fits, whole, edge)
        b.label(whole)
        loaded = b.load(b.element(memory.buffer, memory.kind, lowest), memory.kind, lanes)
        together = loaded if start is self.first else b.reverse(loaded)
        b.jump(done)
        b.label(edge)
        numbers = [b.add(memory.base, b.mul(self._held(b, lane), self.stride)) for lane in range(lanes)]
        apart = b.gathered([b.load(b.element(memory.buffer, memory.kind, each), memory.kind) for each in numbers])
        b.jump(done)
        b.label(done)
        incoming = f"[ zeroinitializer, %{before} ], [ {together.name}, %{whole} ], [ {apart.name}, %{edge} ]"
        return b.op(f"phi {loaded.type} {incoming}", memory.kind, lanes)

    def _held(self, b: Builder, lane: int) -> LlvmValue:
        """The place of a lane: for one outside, which as an unsigned number is above the last, that."""
        return b.intrinsic("llvm.umin", b.add(self.first, lane * self.pace), b.const("i64", self.extent - 1))


@dataclass(frozen=True, slots=True)
class RunMemory:
    """The memory of a run: a buffer of `size` elements, counted from element `base`."""

    buffer: str
    kind: str
    size: Size
    base: LlvmValue


@dataclass(frozen=True, slots=True)
class Span:
    """Lanes from `low` to below `high`, numbers of 32 bits: where a position compares with a number as it should."""

    low: LlvmValue
    high: LlvmValue

    @classmethod
    def of(cls, b: Builder, op: str, apart: LlvmValue) -> "Span | None":
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
        low, high = b.intrinsic("llvm.smax", self.low, other.low), b.intrinsic("llvm.smin", self.high, other.high)
        return Span(low, high)

    def where(self, b: Builder, condition: LlvmValue) -> "Span":
        """All of it or nothing."""
        return Span(self.low, b.select(condition, self.high, self.low))

    def mask(self, b: Builder, lanes: int) -> LlvmValue:
        """One comparison: a lane below the first is above all others, as an unsigned number."""
        long = b.intrinsic("llvm.smax", b.sub(self.high, self.low), b.const("i32", 0))
        number = b.sub(b.iota("i32", range(lanes)), b.splat(self.low, lanes))
        return b.icmp("ult", number, b.splat(long, lanes))
