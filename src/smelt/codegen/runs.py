"""Reads whose places are positions: lanes side by side in memory, except at the edges of what is read.

    gather x[64*i] by 1*p below 56, p = j - 3, 8 lanes    →    j = 0: lane by lane · j = 8 … 48: one load of a vector

So a tensor among padding, rolled round or turned back is read as fast as any other, but for a vector or two of a row.
Where all lanes lie beyond the same end they read one element: a place outside is taken for the last.
"""

from collections.abc import Mapping

from smelt.base.data import dataclass
from smelt.base.sizes import Size
from smelt.base.varying import is_varying
from smelt.codegen.builder import Builder, Value


@dataclass(frozen=True, slots=True)
class Run:
    """Lanes at the places `first`, `first + pace`, …, each `stride` elements from the next in memory; places count from
    0 to below `extent`."""

    first: Value
    pace: int
    stride: int
    extent: Size

    @classmethod
    def of(cls, name: str, stride: Size, extent: Size, ramps: Mapping[str, tuple[Value, int]]) -> "Run | None":
        """The run of a value that is a position; None where neighbouring lanes do not lie side by side."""
        if name not in ramps or is_varying(stride):
            return None
        first, pace = ramps[name]
        return cls(first, pace, stride, extent) if abs(pace * stride) == 1 else None

    def read(self, b: Builder, base: str, kind: str, lanes: int) -> Value:
        """The elements, whatever the places are; `base` is where place 0 lies."""
        last = b.add(self.first, (lanes - 1) * self.pace)
        low, high = (self.first, last) if self.pace > 0 else (last, self.first)
        whole, apart, beyond, edge, done = (b.new_label(stem) for stem in ("whole", "apart", "beyond", "edge", "done"))
        b.branch(b.and_(b.icmp("sge", low, 0), b.icmp("slt", high, self.extent)), whole, apart)
        b.label(whole)
        found = {whole: self._side_by_side(b, base, kind, lanes, last)}
        b.jump(done)
        b.label(apart)
        b.branch(b.or_(b.icmp("slt", high, 0), b.icmp("sge", low, self.extent)), beyond, edge)
        b.label(beyond)
        found[beyond] = b.splat(b.load(self._at(b, base, kind, b.const("i64", self.extent - 1)), kind), lanes)
        b.jump(done)
        b.label(edge)
        found[edge] = b.gathered([b.load(self._at(b, base, kind, self._place(b, lane)), kind) for lane in range(lanes)])
        b.jump(done)
        b.label(done)
        sources = ", ".join(f"[ {value.name}, %{label} ]" for label, value in found.items())
        return b.op(f"phi {found[whole].type} {sources}", kind, lanes)

    def _side_by_side(self, b: Builder, base: str, kind: str, lanes: int, last: Value) -> Value:
        forwards = self.pace * self.stride == 1
        loaded = b.load(self._at(b, base, kind, self.first if forwards else last), kind, lanes)
        return loaded if forwards else b.backwards(loaded)

    def _place(self, b: Builder, lane: int) -> Value:
        """That of one lane: the last, for one outside, which as an unsigned number is above it."""
        place = b.add(self.first, lane * self.pace)
        return b.intrinsic("llvm.umin", place, b.const("i64", self.extent - 1))

    def _at(self, b: Builder, base: str, kind: str, place: Value) -> str:
        return b.element(base, kind, b.mul(place, self.stride))
