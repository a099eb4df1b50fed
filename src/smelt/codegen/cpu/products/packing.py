"""Packing: what a tiled product multiplies, out of buffers with any strides into panels that lie as they are read.

    panel of 4 points x, for steps k = 0, 1, …     x0 x1 x2 x3 (k=0)  x0 x1 x2 x3 (k=1)  …

A point's place in a factor's buffer is the sum of two offsets, one for k and one for x, which are tables that a helper
fills from the sizes and steps of the axes; so a function serves all layouts, and it is one for all products of a
module. Points past the last repeat it: what is computed of them is not looked at. Steps past the last are zero.
"""

import torch

from smelt.codegen.cpu.entry_points import function_text
from smelt.codegen.cpu.products.micro_kernel import Helper
from smelt.codegen.llvm.builder import Builder, LlvmValue
from smelt.codegen.llvm.scalars import VALUE_KINDS, cast, memory_kind
from smelt.device import Target
from smelt.ir.tensorspec import short_name

_ACROSS = 4  # steps that are read at once where they lie side by side


def offsets(target: Target, kind: str) -> Helper:
    """`(table, first, count, last, axes, how many, base)`: table[t] = base + Σ step · position along an axis, for the
    points first, first + 1, …, none above `last`. `axes` has the size and step of each."""
    name = f"product.offsets.{kind}"
    b = Builder(target, name)
    one = b.begin(b.const("i64", 0), LlvmValue("%count", "i64"), 1, (), guard=True)
    point = b.intrinsic("llvm.smin", b.add(LlvmValue("%first", "i64"), one.index), LlvmValue("%last", "i64"))
    # From the last axis on; the first takes what is left over, whatever its size.
    start = (LlvmValue("%base", "i64"), point)
    each = b.begin(b.const("i64", 1), LlvmValue("%axes.count", "i64"), 1, start, guard=True)
    total, left = each.values
    place = b.shl(b.sub(LlvmValue("%axes.count", "i64"), each.index), 1)
    size = b.load(b.element("%axes", "i64", place), "i64")
    step = b.load(b.element("%axes", "i64", b.add(place, 1)), "i64")
    more = b.mul(b.binary("urem", left, size), step)
    total, left = each.end(b.add(total, more), b.binary("udiv", left, size))
    step = b.load(b.element("%axes", "i64", 1), "i64")
    total = b.add(total, b.mul(left, step))
    b.store(b.convert("trunc", total, kind) if kind != "i64" else total, b.element("%table", kind, one.index))
    one.end()
    b.emit("ret void")
    numbers = "i64 %first, i64 %count, i64 %last"
    signature = f"internal void @{name}(ptr %table, {numbers}, ptr %axes, i64 %axes.count, i64 %base)"
    return Helper(name, function_text(signature, b), frozenset(b.declared))


_ARGUMENTS = "ptr %to, ptr %from, ptr %ks, ptr %xs, i64 %steps, i64 %padded, i64 %panels"


class _Packer:
    """One packing function being written: a loop over panels, and in it over steps."""

    def __init__(self, name: str, source: torch.dtype, dtype: torch.dtype, width: int, target: Target) -> None:
        self.name = f"product.{name}.{short_name(source)}.{short_name(dtype)}.{width}"
        self.source, self.dtype, self.width = source, dtype, width
        self.b = Builder(target, self.name)
        self.kind, self.memory = VALUE_KINDS[dtype], memory_kind(source)
        self.steps, self.panels = LlvmValue("%steps", "i64"), LlvmValue("%panels", "i64")

    def widened(self, raw: LlvmValue) -> LlvmValue:
        return cast(self.b, raw, self.source, self.dtype)

    def begin(self) -> None:
        b = self.b
        self.panel = b.begin(b.const("i64", 0), self.panels, 1, (), guard=True)
        self.xs = b.element("%xs", "i64", b.mul(self.panel.index, self.width))
        length = b.mul(LlvmValue("%padded", "i64"), self.width)
        self.to = b.element("%to", self.kind, b.mul(self.panel.index, length))

    def end(self, more: str = "") -> Helper:
        b = self.b
        rest = b.begin(self.steps, LlvmValue("%padded", "i64"), 1, (), guard=True)
        b.store(b.const(self.kind, 0.0, self.width), self.at(rest.index))
        rest.end()
        self.panel.end()
        b.emit("ret void")
        signature = f"internal void @{self.name}({_ARGUMENTS}{more})"
        return Helper(self.name, function_text(signature, b), frozenset(b.declared))

    def at(self, step: LlvmValue) -> str:
        return self.b.element(self.to, self.kind, self.b.mul(step, self.width))

    def offset_of_step(self, step: LlvmValue) -> LlvmValue:
        return self.b.load(self.b.element("%ks", "i64", step), "i64")

    def run(self, first: str) -> None:
        """Steps whose points lie side by side."""
        b = self.b
        loop = b.begin(b.const("i64", 0), self.steps, 1, (), guard=True)
        place = b.element(first, self.memory, self.offset_of_step(loop.index))
        b.store(self.widened(b.load(place, self.memory, self.width)), self.at(loop.index))
        loop.end()

    def points(self) -> list[str]:
        b = self.b
        found = [b.load(b.element(self.xs, "i64", point), "i64") for point in range(self.width)]
        return [b.element("%from", self.memory, each) for each in found]

    def scattered(self, first: LlvmValue, offset_of_step: bool = True) -> None:
        """Steps from `first` on, point by point."""
        b = self.b
        points = self.points()
        loop = b.begin(first, self.steps, 1, (), guard=True)
        further = self.offset_of_step(loop.index) if offset_of_step else loop.index
        raw = [b.load(b.element(point, self.memory, further), self.memory) for point in points]
        place = self.at(loop.index)
        for number, each in enumerate(raw):
            b.store(self.widened(each), b.element(place, self.kind, number))
        loop.end()

    def side_by_side(self) -> tuple[LlvmValue, LlvmValue]:
        """Whether the panel's points are, and where the first one is."""
        b = self.b
        places = b.load(self.xs, "i64", self.width)
        first = b.extract(places, 0)
        wanted = b.add(b.splat(first, self.width), b.iota("i64", range(self.width)))
        return b.fold_lanes("and", b.icmp("eq", places, wanted)), first


def pack(source: torch.dtype, dtype: torch.dtype, width: int, target: Target) -> Helper:
    """`(to, from, ks, xs, steps, padded, panels)`: points of any layout; whole vectors where they lie side by side."""
    packer = _Packer("pack", source, dtype, width, target)
    packer.begin()
    b = packer.b
    together, first = packer.side_by_side()
    run, scattered, after = (b.new_label(stem) for stem in ("run", "scattered", "after"))
    b.branch(together, run, scattered)
    b.label(run)
    packer.run(b.element("%from", packer.memory, first))
    b.jump(after)
    b.label(scattered)
    packer.scattered(b.const("i64", 0))
    b.jump(after)
    b.label(after)
    return packer.end()


def pack_along(source: torch.dtype, dtype: torch.dtype, width: int, target: Target) -> Helper:
    """The same where steps lie side by side: several are read at once, and transposed in registers. `ks` has the first
    step's offset alone."""
    packer = _Packer("pack_along", source, dtype, width, target)
    packer.begin()
    b = packer.b
    points = packer.points()
    begin = b.load("%ks", "i64")
    points = [b.element(point, packer.memory, begin) for point in points]
    whole = b.and_(packer.steps, -_ACROSS)
    loop = b.begin(b.const("i64", 0), whole, _ACROSS, (), guard=True)
    to = packer.at(loop.index)
    for first in range(0, width, _ACROSS):
        group = points[first : first + _ACROSS]
        rows = [packer.widened(b.load(b.element(p, packer.memory, loop.index), packer.memory, _ACROSS)) for p in group]
        for step, column in enumerate(_transposed(b, rows)):
            b.store(column, b.element(to, packer.kind, step * width + first))
    loop.end()
    rest = b.begin(whole, packer.steps, 1, (), guard=True)
    place = packer.at(rest.index)
    for number, point in enumerate(points):
        raw = b.load(b.element(point, packer.memory, rest.index), packer.memory)
        b.store(packer.widened(raw), b.element(place, packer.kind, number))
    rest.end()
    return packer.end()


def _transposed(b: Builder, rows: list[LlvmValue]) -> list[LlvmValue]:
    """Of four numbers each, one to four rows → four columns."""
    kind, count = rows[0].kind, len(rows)

    def mixed(left: LlvmValue, right: LlvmValue, order: list[int]) -> LlvmValue:
        return b.op(f"shufflevector {left}, {right}, {b.iota('i32', order)}", kind, len(order))

    if count == 1:
        return [b.extract(rows[0], lane) for lane in range(_ACROSS)]
    if count == 2:
        return [mixed(rows[0], rows[1], [lane, _ACROSS + lane]) for lane in range(_ACROSS)]
    if count == 3:
        pairs = [mixed(rows[0], rows[1], [lane, 4 + lane, lane, lane]) for lane in range(_ACROSS)]
        return [mixed(pair, rows[2], [0, 1, 4 + lane]) for lane, pair in enumerate(pairs)]
    low = [mixed(rows[0], rows[1], [0, 4, 1, 5]), mixed(rows[2], rows[3], [0, 4, 1, 5])]
    high = [mixed(rows[0], rows[1], [2, 6, 3, 7]), mixed(rows[2], rows[3], [2, 6, 3, 7])]
    return [mixed(half[0], half[1], order) for half in (low, high) for order in ([0, 1, 4, 5], [2, 3, 6, 7])]


def pack_bounded(source: torch.dtype, dtype: torch.dtype, width: int, bounds: int, target: Target) -> Helper:
    """The same with positions that must lie within their extents, or else the element is zero. Positions are tables
    too, of each bound in turn: `pk` of steps, `px` of points. `size`: elements there are to read."""
    packer = _Packer(f"pack_bounded{bounds}", source, dtype, width, target)
    packer.begin()
    b = packer.b
    together, first = packer.side_by_side()
    points = packer.points()
    begin = b.mul(packer.panel.index, width)
    at = [b.add(begin, b.mul(LlvmValue("%points.stride", "i64"), number)) for number in range(bounds)]
    positions = [b.load(b.element("%px", "i32", place), "i32", width) for place in at]
    extents = [b.load(b.element("%extents", "i32", number), "i32") for number in range(bounds)]
    loop = b.begin(b.const("i64", 0), packer.steps, 1, (), guard=True)
    further = packer.offset_of_step(loop.index)
    inside = LlvmValue("splat (i1 true)", "i1", width)
    for number in range(bounds):
        row = b.element("%pk", "i32", b.mul(LlvmValue("%steps.stride", "i64"), number))
        step = b.splat(b.load(b.element(row, "i32", loop.index), "i32"), width)
        within = b.icmp("ult", b.add(positions[number], step), b.splat(extents[number], width))
        inside = b.and_(inside, within)
    to = packer.at(loop.index)
    # A vector may reach past what is zero anyway, but not out of the buffer.
    place = b.add(first, further)
    there = b.icmp("ule", place, b.sub(LlvmValue("%size", "i64"), width))
    run, scattered, after = (b.new_label(stem) for stem in ("run", "scattered", "after"))
    # What wraps below zero is above every size, unless the buffer is shorter than a vector.
    enough = b.icmp("sge", LlvmValue("%size", "i64"), width)
    b.branch(b.and_(b.and_(together, enough), there), run, scattered)
    b.label(run)
    raw = packer.widened(b.load(b.element("%from", packer.memory, place), packer.memory, width))
    b.store(b.select(inside, raw, b.const(packer.kind, 0.0, width)), to)
    b.jump(after)
    b.label(scattered)
    for number, point in enumerate(points):
        reading, zero, done = (b.new_label(stem) for stem in ("reading", "zero", "done"))
        target_place = b.element(to, packer.kind, number)
        b.branch(b.extract(inside, number), reading, zero)
        b.label(reading)
        raw = b.load(b.element(point, packer.memory, further), packer.memory)
        b.store(packer.widened(raw), target_place)
        b.jump(done)
        b.label(zero)
        b.store(b.const(packer.kind, 0.0), target_place)
        b.jump(done)
        b.label(done)
    b.jump(after)
    b.label(after)
    loop.end()
    return packer.end(", ptr %pk, i64 %steps.stride, ptr %px, i64 %points.stride, ptr %extents, i64 %size")
