"""Packs the factors of a tiled product from buffers with any strides into panels in the order they are read.

    panel of 4 points x, for steps k = 0, 1, …     x0 x1 x2 x3 (k=0)  x0 x1 x2 x3 (k=1)  …

The position of an element in its buffer is the sum of two offsets, one for k and one for x. A helper fills tables of
both from the sizes and steps of the axes. So one function serves all layouts and all products of a module. Points past
the last one repeat it; their results are ignored.
"""

import functools
from collections.abc import Sequence

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu.products.numbers import RECORD, SIDE, read
from smelt.codegen.cpu.products.parts import MINE, params
from smelt.codegen.cpu.products.transposes import ACROSS, transposed
from smelt.codegen.loops.builder import TRUE, Builder, param
from smelt.codegen.loops.scalars import VALUE_KINDS, cast, memory_kind
from smelt.device import Target
from smelt.ir.loops import Function, Value
from smelt.ir.tensorspec import short_name

_CHUNK = 8  # steps of all panels before the next: rows of a matrix are pages, which a processor knows some of
_ALL = 1 << 40

FILL = "product.fill.{}"

_SIDE = param("side", "ptr")


@functools.cache
def fill(kind: str, target: Target) -> Function:
    """`(table, first, count, last, axes, how many, base)`: table[t] = base + Σ step · position along an axis, for the
    points first, first + 1, …, none above `last`. `axes` has the size and step of each."""
    name = FILL.format(kind)
    b = Builder(target, name)
    taken = params("ptr table, i64 first, i64 count, i64 last, ptr axes, i64 axes.count, i64 base")
    table, first, count, last, axes, number, base = taken
    one = b.begin(b.const("i64", 0), count, 1, (), guard=True)
    point = b.intrinsic("smin", b.add(first, one.index), last)
    # From the last axis on; the first takes what is left over, whatever its size.
    each = b.begin(b.const("i64", 1), number, 1, (base, point), guard=True)
    total, left = each.values
    place = b.shl(b.sub(number, each.index), 1)
    size = b.load(b.element(axes, "i64", place), "i64")
    step = b.load(b.element(axes, "i64", b.add(place, 1)), "i64")
    more = b.mul(b.binary("urem", left, size), step)
    total, left = each.end(b.add(total, more), b.binary("udiv", left, size))
    total = b.add(total, b.mul(left, b.load(b.element(axes, "i64", 1), "i64")))
    b.store(b.convert("trunc", total, kind), b.element(table, kind, one.index))
    one.end()
    return b.function(name, taken, "shared")


def _axes(b: Builder, record: Value, groups: Sequence[str]) -> Value:
    """The address of an index's axes after those of `groups`."""
    place = b.element(record, "i64", RECORD)
    for group in groups:
        place = b.element(place, "i64", b.shl(read(b, _SIDE, SIDE, f"{group}_count"), 1))
    return place


@functools.cache
def points(bounded: bool, target: Target) -> Function:
    """`(side, mine, first, count, outer)`: the offsets of so many points of a factor and, where it is `bounded`, their
    positions, at a point of the outer axes."""
    name = f"product.points{'.bounded' if bounded else ''}"
    b = Builder(target, name)
    first, number, outer = params("i64 first, i64 count, i64 outer")
    last = b.sub(read(b, _SIDE, SIDE, "points"), 1)
    xs = b.element(MINE, "i8", read(b, _SIDE, SIDE, "xs"))
    px = b.element(MINE, "i8", read(b, _SIDE, SIDE, "px"))
    length, records = read(b, _SIDE, SIDE, "length"), b.element(_SIDE, "i64", len(SIDE))

    def index(place: Value, kind: str, table: Value) -> None:
        record = b.element(records, "i64", b.mul(place, read(b, _SIDE, SIDE, "record")))
        offset = b.load(b.element(record, "i64", 1), "i64")
        beyond = (_axes(b, record, ()), read(b, _SIDE, SIDE, "outer_count"), offset)
        b.call(FILL.format("i64"), xs, outer, b.const("i64", 1), outer, *beyond)
        base = b.load(xs, "i64")
        within = (_axes(b, record, ("outer",)), read(b, _SIDE, SIDE, "point_count"), base)
        b.call(FILL.format(kind), table, first, number, last, *within)

    if bounded:
        loop = b.begin(b.const("i64", 0), read(b, _SIDE, SIDE, "bounds"), 1, (), guard=True)
        index(b.add(loop.index, 1), "i32", b.element(px, "i32", b.mul(loop.index, length)))
        loop.end()
    index(b.const("i64", 0), "i64", xs)
    return b.function(name, (_SIDE, MINE, first, number, outer), "shared")


FROM, FIRST, _STEPS, PANELS = params("ptr from, i64 first, i64 steps, i64 panels")


@dataclass(frozen=True, slots=True)
class PanelForm:
    """Source and panel dtypes, and points per panel."""

    source: torch.dtype
    dtype: torch.dtype
    width: int


class PackerFrame:
    """A packing function being written: its arguments, read from the record of its side, and its filled tables of
    steps. `to` is where the panel being packed begins."""

    to: Value

    def __init__(self, name: str, form: PanelForm, target: Target, *, bounds: int = 0, at_once: bool = False) -> None:
        self.source, self.dtype, self.width = form.source, form.dtype, form.width
        self.name = f"product.{name}.{short_name(self.source)}.{short_name(self.dtype)}.{self.width}"
        self.b = Builder(target, self.name)
        self.kind, self.memory = VALUE_KINDS[self.dtype], memory_kind(self.source)
        self.zero, self.steps = self.b.const("i64", 0), _STEPS
        self.ks, self.all_xs, panels = (self.array(each) for each in ("ks", "xs", "panels"))
        # Panels of one block of the sum after the other, where they are kept.
        before = self.b.mul(FIRST, self.number("apart"))
        self.panels = self.b.element(panels, self.kind, before)
        records = self.b.element(_SIDE, "i64", len(SIDE))
        self._fill_steps("i64", self.ks, records, self.b.const("i64", 1) if at_once else self.steps)
        self.bounds = [self._bound(records, number) for number in range(bounds)]

    def number(self, name: str) -> Value:
        return read(self.b, _SIDE, SIDE, name)

    def array(self, name: str) -> Value:
        """An array of the workspace."""
        return self.b.element(MINE, "i8", self.number(name))

    def _fill_steps(self, kind: str, table: Value, record: Value, number: Value) -> None:
        b = self.b
        axes = (_axes(b, record, ("outer", "point")), self.number("step_count"), self.zero)
        b.call(FILL.format(kind), table, FIRST, number, b.sub(self.number("steps"), 1), *axes)

    def _bound(self, records: Value, number: int) -> tuple[Value, Value, Value]:
        """Positions of steps and of all points for a bound, and its extent."""
        b = self.b
        record = b.element(records, "i64", b.mul(self.number("record"), number + 1))
        pk, px = (
            b.element(self.array(name), "i32", b.mul(self.number(stride), number))
            for name, stride in (("pk", "depth"), ("px", "length"))
        )
        self._fill_steps("i32", pk, record, self.steps)
        return pk, px, b.convert("trunc", b.load(record, "i64"), "i32")

    def offset_of_step(self, step: Value) -> Value:
        return self.b.load(self.b.element(self.ks, "i64", step), "i64")

    def at(self, step: Value) -> Value:
        """Where a step of the panel is to be."""
        return self.b.element(self.to, self.kind, self.b.mul(step, self.width))

    def function(self) -> Function:
        return self.b.function(self.name, (_SIDE, MINE, FROM, FIRST, _STEPS, PANELS), "shared")


class _Packer(PackerFrame):
    """With loops over chunks of steps, and over panels; in them a loop over the steps of a chunk."""

    def __init__(self, name: str, form: PanelForm, target: Target, *, chunk: int = _CHUNK, bounds: int = 0) -> None:
        super().__init__(name, form, target, bounds=bounds, at_once=chunk == _ALL)
        self.ascending = self.b.icmp("ne", self.number("ascending"), 0)
        self.chunk = self.b.begin(self.zero, self.steps, chunk, (), guard=True)
        self.stop = self.b.intrinsic("smin", self.b.add(self.chunk.index, chunk), self.steps)
        self.panel = self.b.begin(self.zero, PANELS, 1, (), guard=True)
        self.begin = self.b.mul(self.panel.index, self.width)  # the panel's first point
        self.xs = self.b.element(self.all_xs, "i64", self.begin)
        self.to = self.b.element(self.panels, self.kind, self.b.mul(self.begin, self.steps))

    def widened(self, raw: Value) -> Value:
        return cast(self.b, raw, self.source, self.dtype)

    def end(self) -> Function:
        self.panel.end()
        self.chunk.end()
        return self.function()

    def source_of(self, point: Value | int) -> Value:
        """The address of a point of the panel, without the step."""
        return self.b.element(FROM, self.memory, self.b.load(self.b.element(self.xs, "i64", point), "i64"))

    def side_by_side(self) -> tuple[Value, Value]:
        """Whether the panel's points are contiguous, given that addresses ascend; and the address of the first. A
        partial panel ends with its last point twice, and may extend as far as a whole one."""
        b = self.b
        first, almost, last = (
            b.load(b.element(self.xs, "i64", place), "i64") for place in (0, self.width - 2, self.width - 1)
        )
        together = b.and_(b.icmp("eq", b.sub(last, first), self.width - 1), b.icmp("ne", almost, last))
        return b.and_(self.ascending, together), first


@functools.cache
def pack(form: PanelForm, target: Target) -> Function:
    """`(side, mine, from, first, steps, panels)`: points of any layout; whole vectors where they are contiguous, if
    addresses are known to ascend."""
    packer = _Packer("pack", form, target)
    b, width = packer.b, form.width
    together, first = packer.side_by_side()

    def vectors() -> None:
        begin = b.element(FROM, packer.memory, first)
        loop = b.begin(packer.chunk.index, packer.stop, 1, (), guard=True)
        place = b.element(begin, packer.memory, packer.offset_of_step(loop.index))
        b.store(packer.widened(b.load(place, packer.memory, width)), packer.at(loop.index))
        loop.end()

    def one_by_one() -> None:
        point = b.begin(packer.zero, b.const("i64", width), 1, (), guard=False)
        begin, to = packer.source_of(point.index), b.element(packer.to, packer.kind, point.index)
        loop = b.begin(packer.chunk.index, packer.stop, 1, (), guard=True)
        raw = b.load(b.element(begin, packer.memory, packer.offset_of_step(loop.index)), packer.memory)
        b.store(packer.widened(raw), b.element(to, packer.kind, b.mul(loop.index, width)))
        loop.end()
        point.end()

    b.choice(together, vectors, one_by_one)
    return packer.end()


@functools.cache
def pack_along(form: PanelForm, target: Target) -> Function:
    """The same for contiguous steps: several are loaded together and transposed in registers. The table of steps has
    only the first offset."""
    packer = _Packer("pack_along", form, target, chunk=_ALL)
    b, width = packer.b, form.width
    begin = b.load(packer.ks, "i64")
    groups = [(0, width // ACROSS, ACROSS), (width // ACROSS * ACROSS, 1, width % ACROSS)]
    for first, count, points in groups:
        if not count or not points:
            continue
        group = b.begin(packer.zero, b.const("i64", count), 1, (), guard=False)
        start = b.add(b.mul(group.index, ACROSS), first)
        sources = [b.element(packer.source_of(b.add(start, n)), packer.memory, begin) for n in range(points)]
        to = b.element(packer.to, packer.kind, start)
        _transpose(packer, sources, to)
        group.end()
    return packer.end()


def _transpose(packer: _Packer, sources: list[Value], to: Value) -> None:
    """All steps of a few points."""
    b, memory, kind, width = packer.b, packer.memory, packer.kind, packer.width
    whole = b.and_(packer.stop, -ACROSS)
    loop = b.begin(packer.chunk.index, whole, ACROSS, (), guard=True)
    rows = [packer.widened(b.load(b.element(each, memory, loop.index), memory, ACROSS)) for each in sources]
    place = b.element(to, kind, b.mul(loop.index, width))
    for step, column in enumerate(transposed(b, rows)):
        b.store(column, b.element(place, kind, step * width))
    loop.end()
    rest = b.begin(whole, packer.stop, 1, (), guard=True)
    place = b.element(to, kind, b.mul(rest.index, width))
    for number, each in enumerate(sources):
        b.store(packer.widened(b.load(b.element(each, memory, rest.index), memory)), b.element(place, kind, number))
    rest.end()


@functools.cache
def pack_bounded(form: PanelForm, bounds: int, target: Target) -> Function:
    """The same with bounds: elements at positions outside their extents are zero."""
    packer = _Packer(f"pack_bounded{bounds}", form, target, bounds=bounds)
    b, width = packer.b, form.width
    size = packer.number("size")
    together, first = packer.side_by_side()
    enough = b.icmp("sge", size, width)
    steps_of = [pk for pk, _, _ in packer.bounds]
    points_of = [b.element(px, "i32", packer.begin) for _, px, _ in packer.bounds]
    extents = [extent for _, _, extent in packer.bounds]

    def inside(positions: list[Value], step: Value) -> Value:
        in_bounds = TRUE
        for position, table, extent in zip(positions, steps_of, extents, strict=True):
            at = b.add(position, b.load(b.element(table, "i32", step), "i32"))
            within = b.icmp("ult", at, b.splat(extent, position.lanes))
            in_bounds = within if in_bounds is TRUE else b.and_(in_bounds, within)
        return in_bounds

    def one_by_one(only: Value | None = None) -> None:
        """Of all steps, or of one."""
        point = b.begin(packer.zero, b.const("i64", width), 1, (), guard=False)
        begin, to = packer.source_of(point.index), b.element(packer.to, packer.kind, point.index)
        positions = [b.load(b.element(table, "i32", point.index), "i32") for table in points_of]
        loop = b.begin(only or packer.chunk.index, b.add(only, 1) if only else packer.stop, 1, (), guard=True)
        # What is outside is read in the workspace, to no effect: the buffer may have no element at all.
        there = inside(positions, loop.index)
        place = b.element(begin, packer.memory, packer.offset_of_step(loop.index))
        raw = packer.widened(b.load(b.select(there, place, MINE), packer.memory))
        element = b.select(there, raw, b.const(packer.kind, 0.0))
        b.store(element, b.element(to, packer.kind, b.mul(loop.index, width)))
        loop.end()
        point.end()

    def vectors() -> None:
        positions = [b.load(table, "i32", width) for table in points_of]
        loop = b.begin(packer.chunk.index, packer.stop, 1, (), guard=True)
        place = b.add(first, packer.offset_of_step(loop.index))

        def whole() -> None:
            raw = packer.widened(b.load(b.element(FROM, packer.memory, place), packer.memory, width))
            there = inside(positions, loop.index)
            b.store(b.select(there, raw, b.const(packer.kind, 0.0, width)), packer.at(loop.index))

        # A vector may reach past what is zero anyway, but not out of the buffer. What is below it is, as an unsigned
        # number, above every size.
        b.choice(b.icmp("ule", place, b.sub(size, width)), whole, lambda: one_by_one(loop.index))
        loop.end()

    b.choice(b.and_(together, enough), vectors, one_by_one)
    return packer.end()
