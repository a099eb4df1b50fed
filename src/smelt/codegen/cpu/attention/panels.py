"""Packs panels of an attention from matrices with any strides, and chooses the width of the tiles.

    panel of 12 queries, for e = 0, 1, …     q0 q1 … q11 (e=0)  q0 q1 … q11 (e=1)  …

Scores are summed in tiles of some keys by as many queries as a panel has. So the queries of a tile are contiguous, and
the tile is a panel that the values are multiplied by next. Points past the last one repeat it; their results are
ignored.
"""

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu.products.parts import params
from smelt.codegen.cpu.products.tile_shape import TileShape
from smelt.codegen.cpu.products.transposes import ACROSS, transposed
from smelt.codegen.loops.builder import Builder
from smelt.codegen.loops.scalars import VALUE_KINDS, cast, memory_kind
from smelt.device import Target
from smelt.ir.loops import Function, Value
from smelt.ir.tensorspec import short_name

# By the vectors of a panel of queries: the keys of a tile of scores and the vectors of one of values, and what a score
# takes compared with the widest.
_TILES = {3: (8, 2), 2: (8, 2), 1: (16, 4)}
_NARROWER = {3: 1.0, 2: 1.05, 1: 1.15}


@dataclass(frozen=True, slots=True)
class AttentionTiles:
    """How many queries are side by side, and tiles of sums that registers hold: keys × queries, queries × values."""

    queries: int
    lanes: int
    scores: TileShape
    values: TileShape

    @classmethod
    def of(cls, dtype: torch.dtype, target: Target, queries: int) -> "AttentionTiles":
        """Panels as wide as fits registers, or less where so many queries fill those better."""
        lanes = max(1, target.vector_bits // (8 * dtype.itemsize))
        if target.fma_by_lane:
            vectors = min((3, 2, 1), key=lambda each: -(-queries // (each * lanes)) * each * _NARROWER[each])
            wide, (keys, values) = vectors * lanes, _TILES[vectors]
            return cls(wide, lanes, TileShape(keys, wide, lanes), TileShape(wide, values * lanes, lanes))
        keys = 12 if target.vector_registers < 32 else 24
        return cls(lanes, lanes, TileShape(keys, lanes, lanes), TileShape(lanes, lanes, lanes))


@dataclass(frozen=True, slots=True)
class PanelForm:
    """Source and panel dtypes, points per panel, and the strides of points and steps."""

    source: torch.dtype
    dtype: torch.dtype
    width: int
    point: int
    step: int

    @property
    def how(self) -> str:
        """What is contiguous: steps of the sum, points of a panel, or neither."""
        if self.step == 1 and self.point != 1:
            return "along"
        return "across" if self.point == 1 else "any"


_FROM, _POINTS, _POINT, _STEPS, _STEP, _TO = params("ptr from, i64 points, i64 point, i64 steps, i64 step, ptr to")


def pack(form: PanelForm, target: Target) -> Function:
    """`(from, points, elements from one to the next, steps, elements from one to the next, to)`: panels of all points,
    one behind the other."""
    writer = _Packer(form, target)
    writer.write()
    return writer.b.function(writer.name, (_FROM, _POINTS, _POINT, _STEPS, _STEP, _TO), "shared")


def call_pack(
    b: Builder, helper: Function, form: PanelForm, source: Value, counts: tuple[Value, Value], to: Value
) -> None:
    """Of so many points and steps."""
    points, steps = counts
    b.call(helper.name, source, points, b.const("i64", form.point), steps, b.const("i64", form.step), to)


class _Packer:
    def __init__(self, form: PanelForm, target: Target) -> None:
        self.form = form
        kinds = f"{short_name(form.source)}.{short_name(form.dtype)}"
        self.name = f"attention.pack.{form.how}.{kinds}.{form.width}"
        self.b = Builder(target, self.name)
        self.memory = memory_kind(form.source)
        self.kind = self.memory if form.source is form.dtype else VALUE_KINDS[form.dtype]
        self.zero = self.b.const("i64", 0)

    def widened(self, raw: Value) -> Value:
        return cast(self.b, raw, self.form.source, self.form.dtype)

    def write(self) -> None:
        b, width = self.b, self.form.width
        panels = b.begin(self.zero, _POINTS, width, (), guard=True)
        self.begin = panels.index
        self.to = b.element(_TO, self.kind, b.mul(panels.index, _STEPS))
        if self.form.how == "along":
            self._along()
        elif self.form.how == "across":
            b.choice(b.icmp("sle", b.add(panels.index, width), _POINTS), self._across, self._one_by_one)
        else:
            self._one_by_one()
        panels.end()

    def _source(self, point: Value | int) -> Value:
        """Where the steps of a point of the panel begin."""
        b = self.b
        number = b.intrinsic("smin", b.add(self.begin, point), b.sub(_POINTS, 1))
        return b.element(_FROM, self.memory, b.mul(number, _POINT))

    def _one_by_one(self) -> None:
        b, width = self.b, self.form.width
        point = b.begin(self.zero, b.const("i64", width), 1, (), guard=False)
        source, to = self._source(point.index), b.element(self.to, self.kind, point.index)
        loop = b.begin(self.zero, _STEPS, 1, (), guard=True)
        raw = b.load(b.element(source, self.memory, b.mul(loop.index, _STEP)), self.memory)
        b.store(self.widened(raw), b.element(to, self.kind, b.mul(loop.index, width)))
        loop.end()
        point.end()

    def _across(self) -> None:
        b, width = self.b, self.form.width
        source = b.element(_FROM, self.memory, self.begin)
        loop = b.begin(self.zero, _STEPS, 1, (), guard=True)
        place = b.element(source, self.memory, b.mul(loop.index, _STEP))
        loaded = self.widened(b.load(place, self.memory, width))
        b.store(loaded, b.element(self.to, self.kind, b.mul(loop.index, width)))
        loop.end()

    def _along(self) -> None:
        """Transpose several steps of several points in registers."""
        b, width = self.b, self.form.width
        for first, count, points in ((0, width // ACROSS, ACROSS), (width // ACROSS * ACROSS, 1, width % ACROSS)):
            if not count or not points:
                continue
            group = b.begin(self.zero, b.const("i64", count), 1, (), guard=False)
            start = b.add(b.mul(group.index, ACROSS), first)
            sources = [self._source(b.add(start, n)) for n in range(points)]
            self._transpose(sources, b.element(self.to, self.kind, start))
            group.end()

    def _transpose(self, sources: list[Value], to: Value) -> None:
        b, width = self.b, self.form.width
        whole = b.and_(_STEPS, -ACROSS)
        loop = b.begin(self.zero, whole, ACROSS, (), guard=True)
        rows = [self.widened(b.load(b.element(each, self.memory, loop.index), self.memory, ACROSS)) for each in sources]
        place = b.element(to, self.kind, b.mul(loop.index, width))
        for step, column in enumerate(transposed(b, rows)):
            b.store(column, b.element(place, self.kind, step * width))
        loop.end()
        rest = b.begin(whole, _STEPS, 1, (), guard=True)
        place = b.element(to, self.kind, b.mul(rest.index, width))
        for number, each in enumerate(sources):
            raw = b.load(b.element(each, self.memory, rest.index), self.memory)
            b.store(self.widened(raw), b.element(place, self.kind, number))
        rest.end()
