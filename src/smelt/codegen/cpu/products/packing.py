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
from smelt.codegen.cpu.addresses import MINE
from smelt.codegen.cpu.entry_points import params
from smelt.codegen.cpu.products.numbers import RECORD, SIDE, read
from smelt.codegen.cpu.products.panel_copies import PanelCopy
from smelt.codegen.loops.arrays import Array
from smelt.codegen.loops.builder import TRUE, Builder, Term, param
from smelt.codegen.loops.scalars import VALUE_KINDS
from smelt.device import Target
from smelt.ir.loops import Function, Value
from smelt.ir.tensorspec import short_name

_CHUNK = 8  # steps of all panels before the next: rows of a matrix are pages, which a processor knows some of
_ALL = 1 << 40

FILL = "product.fill.{}"

_SIDE = param("side", "ptr")


@functools.cache
def fill(dtype: torch.dtype, target: Target) -> Function:
    """`(table, first, count, last, axes, how many, base)`: table[t] = base + Σ step · position along an axis, for the
    points first, first + 1, …, none above `last`. `axes` has the size and step of each."""
    name = FILL.format(VALUE_KINDS[dtype])
    b = Builder(target, name)
    taken = params("ptr table, i64 first, i64 count, i64 last, ptr axes, i64 axes.count, i64 base")
    table, first, count, last, axes, number, base = taken
    pairs = Array(b, axes, torch.int64)
    with b.loop(0, count, guard=True) as point:
        # From the last axis on; the first takes the remaining steps, however many.
        each = b.begin(1, number, 1, (base, b.smin(b.add(first, point), last)), guard=True)
        total, left = each.values
        place = b.shl(b.sub(number, each.index), 1)
        size, step = pairs.load(place), pairs.load(b.add(place, 1))
        total, left = each.end(b.add(total, b.mul(b.urem(left, size), step)), b.udiv(left, size))
        total = b.add(total, b.mul(left, pairs.load(1)))
        Array(b, table, dtype).store(b.convert("trunc", total, VALUE_KINDS[dtype]), point)
    return b.function(name, taken, "shared")


class Side:
    """The record of a factor that a function is given, and the indices behind it."""

    def __init__(self, b: Builder) -> None:
        self.b = b

    def number(self, name: str) -> Value:
        return read(self.b, _SIDE, SIDE, name)

    def array(self, name: str, dtype: torch.dtype) -> Array:
        """An array of the workspace."""
        return Array(self.b, self.b.element(MINE, "i8", self.number(name)), dtype)

    def index(self, place: Term) -> Array:
        """The record of the factor's own index, or behind it of one of its bounds."""
        return Array(self.b, _SIDE, torch.int64).at(len(SIDE)).at(self.b.mul(self.number("record"), place))

    def fill(self, table: Array, first: Value, counts: tuple[Value, Value], axes: tuple[Array, Value, Value]) -> None:
        """Offsets from `first` on: `counts` are how many, and the last there is; `axes` as `fill` takes them."""
        place, number, base = axes
        name = FILL.format(table.kind)
        self.b.call(name, table.pointer, first, *counts, place.pointer, number, base)

    def axes(self, record: Array, groups: Sequence[str], of: str, base: Value) -> tuple[Array, Value, Value]:
        """The axes `of` an index after those of `groups`, and what is added to them."""
        place = record.at(RECORD)
        for group in groups:
            place = place.at(self.b.shl(self.number(f"{group}_count"), 1))
        return place, self.number(f"{of}_count"), base


@functools.cache
def points(bounded: bool, target: Target) -> Function:
    """`(side, mine, first, count, outer)`: the offsets of so many points of a factor and, where it is `bounded`, their
    positions, at a point of the outer axes."""
    name = f"product.points{'.bounded' if bounded else ''}"
    b = Builder(target, name)
    side, (first, number, outer) = Side(b), params("i64 first, i64 count, i64 outer")
    last = b.sub(side.number("points"), 1)
    xs, px = side.array("xs", torch.int64), side.array("px", torch.int32)
    length = side.number("length")

    def index(place: Term, table: Array) -> None:
        record = side.index(place)
        side.fill(xs, outer, (b.const("i64", 1), outer), side.axes(record, (), "outer", record.load(1)))
        side.fill(table, first, (number, last), side.axes(record, ("outer",), "point", xs.load()))

    if bounded:
        with b.loop(0, side.number("bounds"), guard=True) as bound:
            index(b.add(bound, 1), px.at(b.mul(bound, length)))
    index(0, xs)
    return b.function(name, (_SIDE, MINE, first, number, outer), "shared")


FROM, FIRST, _STEPS, PANELS = params("ptr from, i64 first, i64 steps, i64 panels")


@dataclass(frozen=True, slots=True)
class PanelForm:
    """Source and panel dtypes, and points per panel."""

    source: torch.dtype
    dtype: torch.dtype
    width: int


class PackerFrame(Side):
    """A packing function being written: its arguments, read from the record of its side, and its filled tables of
    steps. `to` is where the panel being packed begins."""

    to: Array

    def __init__(self, name: str, form: PanelForm, target: Target, *, bounds: int = 0, at_once: bool = False) -> None:
        self.dtype, self.width = form.dtype, form.width
        self.name = f"product.{name}.{short_name(form.source)}.{short_name(self.dtype)}.{self.width}"
        super().__init__(Builder(target, self.name))
        b = self.b
        self.zero, self.steps, self.factor = b.const("i64", 0), _STEPS, Array(b, FROM, form.source)
        self.ks, self.all_xs = self.array("ks", torch.int64), self.array("xs", torch.int64)
        # Panels of one block of the sum after the other, where they are kept.
        self.panels = self.array("panels", self.dtype).at(b.mul(FIRST, self.number("apart")))
        self._fill_steps(self.ks, self.index(0), b.const("i64", 1) if at_once else self.steps)
        self.bounds = [self._bound(number) for number in range(bounds)]

    def _fill_steps(self, table: Array, record: Array, number: Value) -> None:
        last = self.b.sub(self.number("steps"), 1)
        self.fill(table, FIRST, (number, last), self.axes(record, ("outer", "point"), "step", self.zero))

    def _bound(self, number: int) -> tuple[Array, Array, Value]:
        """Positions of steps and of all points for a bound, and its extent."""
        b, record = self.b, self.index(number + 1)
        pk, px = (
            self.array(name, torch.int32).at(b.mul(self.number(stride), number))
            for name, stride in (("pk", "depth"), ("px", "length"))
        )
        self._fill_steps(pk, record, self.steps)
        return pk, px, b.convert("trunc", record.load(), "i32")

    def inside(self, positions: Sequence[Value], step: Value) -> Value:
        """Which points, given their positions for each bound, are in all bounds at a step."""
        in_bounds = TRUE
        for position, (pk, _, extent) in zip(positions, self.bounds, strict=True):
            within = self.b.icmp("ult", self.b.add(position, pk.load(step)), extent)
            in_bounds = within if in_bounds is TRUE else self.b.and_(in_bounds, within)
        return in_bounds

    def offset_of_step(self, step: Value) -> Value:
        return self.ks.load(step)

    def at(self, step: Value) -> Array:
        """Where a step of the panel is to be."""
        return self.to.at(self.b.mul(step, self.width))

    def function(self) -> Function:
        return self.b.function(self.name, (_SIDE, MINE, FROM, FIRST, _STEPS, PANELS), "shared")


class _Packer(PackerFrame):
    """With loops over chunks of steps, and over panels; in them a loop over the steps of a chunk."""

    def __init__(self, name: str, form: PanelForm, target: Target, *, chunk: int = _CHUNK, bounds: int = 0) -> None:
        super().__init__(name, form, target, bounds=bounds, at_once=chunk == _ALL)
        b = self.b
        self.ascending = b.icmp("ne", self.number("ascending"), 0)
        self.chunk = b.begin(0, self.steps, chunk, guard=True)
        self.stop = b.smin(b.add(self.chunk.index, chunk), self.steps)
        self.panel = b.begin(0, PANELS, guard=True)
        self.begin = b.mul(self.panel.index, self.width)  # the panel's first point
        self.xs = self.all_xs.at(self.begin)
        self.to = self.panels.at(b.mul(self.begin, self.steps))
        self.copy = PanelCopy(self.to, self.width, self.width, self.chunk.index, self.stop)

    def end(self) -> Function:
        self.panel.end()
        self.chunk.end()
        return self.function()

    def source_of(self, point: Value) -> Array:
        """The first step of a point of the panel."""
        return self.factor.at(self.xs.load(point))

    def side_by_side(self) -> tuple[Value, Value]:
        """Whether the panel's points are contiguous, given that addresses ascend; and the offset of the first. A
        partial panel ends with its last point twice, and may extend as far as a whole one."""
        b = self.b
        first, almost, last = (self.xs.load(place) for place in (0, self.width - 2, self.width - 1))
        together = b.and_(b.icmp("eq", b.sub(last, first), self.width - 1), b.icmp("ne", almost, last))
        return b.and_(self.ascending, together), first


@functools.cache
def pack(form: PanelForm, target: Target) -> Function:
    """`(side, mine, from, first, steps, panels)`: points of any layout; whole vectors where they are contiguous, if
    addresses are known to ascend."""
    packer = _Packer("pack", form, target)
    together, first = packer.side_by_side()
    packer.b.choice(
        together,
        lambda: packer.copy.vectors(packer.factor.at(first), packer.offset_of_step),
        lambda: packer.copy.one_by_one(packer.source_of, packer.offset_of_step),
    )
    return packer.end()


@functools.cache
def pack_along(form: PanelForm, target: Target) -> Function:
    """The same for contiguous steps. The table of steps has only the first offset."""
    packer = _Packer("pack_along", form, target, chunk=_ALL)
    begin = packer.ks.load()
    packer.copy.along(lambda point: packer.source_of(point).at(begin))
    return packer.end()


@functools.cache
def pack_bounded(form: PanelForm, bounds: int, target: Target) -> Function:
    """The same with bounds: elements at positions outside their extents are zero."""
    packer = _Packer(f"pack_bounded{bounds}", form, target, bounds=bounds)
    b, width, size = packer.b, form.width, packer.number("size")
    together, first = packer.side_by_side()
    enough = b.icmp("sge", size, width)
    points_of = [px.at(packer.begin) for _, px, _ in packer.bounds]

    def one_by_one(only: Value | None = None) -> None:
        """Of all steps, or of one."""
        with b.loop(0, width) as point:
            source, to = packer.source_of(point), packer.to.at(point)
            positions = [table.load(point) for table in points_of]
            with b.loop(only or packer.chunk.index, b.add(only, 1) if only else packer.stop, guard=True) as step:
                # What is outside is read in the workspace, to no effect: the buffer may have no element at all.
                there, place = packer.inside(positions, step), source.at(packer.offset_of_step(step)).pointer
                element = Array(b, b.select(there, place, MINE), form.source).load_as(form.dtype)
                to.store(b.select(there, element, to.zero()), b.mul(step, width))

    def vectors() -> None:
        positions = [table.load(0, width) for table in points_of]
        with b.loop(packer.chunk.index, packer.stop, guard=True) as step:
            place = b.add(first, packer.offset_of_step(step))

            def whole() -> None:
                elements = packer.factor.load_as(form.dtype, place, width)
                packer.at(step).store(b.select(packer.inside(positions, step), elements, packer.to.zero(width)))

            # A vector may reach past what is zero anyway, but not out of the buffer. What is below it is, as an
            # unsigned number, above every size.
            b.choice(b.icmp("ule", place, b.sub(size, width)), whole, lambda: one_by_one(step))

    b.choice(b.and_(together, enough), vectors, one_by_one)
    return packer.end()
