"""Packing: what a tiled product multiplies, out of buffers with any strides into panels that lie as they are read.

    panel of 4 points x, for steps k = 0, 1, …     x0 x1 x2 x3 (k=0)  x0 x1 x2 x3 (k=1)  …

A point's place in a factor's buffer is the sum of two offsets, one for k and one for x, which are tables that a helper
fills from the sizes and steps of the axes; so a function serves all layouts, and it is one for all products of a
module. Points past the last repeat it: what is computed of them is not looked at.
"""

from collections.abc import Callable

import torch

from smelt.codegen.cpu.entry_points import function_text
from smelt.codegen.cpu.products.micro_kernel import Helper
from smelt.codegen.llvm.builder import Builder, LlvmValue
from smelt.codegen.llvm.scalars import VALUE_KINDS, cast, memory_kind
from smelt.device import Target
from smelt.ir.tensorspec import short_name

ACROSS = 4  # steps that are read at once where they lie side by side
_CHUNK = 8  # steps of all panels before the next: rows of a matrix are pages, which a processor knows some of
_ALL = 1 << 40


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


ARGUMENTS = "ptr %to, ptr %from, ptr %ks, ptr %xs, i64 %steps, i64 %panels, i1 %ascending"


class _Packer:
    """One packing function being written: a loop over panels, and in it over steps."""

    def __init__(
        self, name: str, source: torch.dtype, dtype: torch.dtype, width: int, target: Target, chunk: int = _CHUNK
    ) -> None:
        self.name = f"product.{name}.{short_name(source)}.{short_name(dtype)}.{width}"
        self.source, self.dtype, self.width = source, dtype, width
        self.b = Builder(target, self.name)
        self.kind, self.memory = VALUE_KINDS[dtype], memory_kind(source)
        self.zero, self.steps = self.b.const("i64", 0), LlvmValue("%steps", "i64")
        self.chunk = self.b.begin(self.zero, self.steps, chunk, (), guard=True)
        self.stop = self.b.intrinsic("llvm.smin", self.b.add(self.chunk.index, chunk), self.steps)
        self.panel = self.b.begin(self.zero, LlvmValue("%panels", "i64"), 1, (), guard=True)
        self.begin = self.b.mul(self.panel.index, width)  # the panel's first point
        self.xs = self.b.element("%xs", "i64", self.begin)
        self.to = self.b.element("%to", self.kind, self.b.mul(self.begin, self.steps))

    def widened(self, raw: LlvmValue) -> LlvmValue:
        return cast(self.b, raw, self.source, self.dtype)

    def end(self, more: str = "") -> Helper:
        self.panel.end()
        self.chunk.end()
        self.b.emit("ret void")
        signature = f"internal void @{self.name}({ARGUMENTS}{more})"
        return Helper(self.name, function_text(signature, self.b), frozenset(self.b.declared))

    def at(self, step: LlvmValue) -> str:
        return self.b.element(self.to, self.kind, self.b.mul(step, self.width))

    def offset_of_step(self, step: LlvmValue) -> LlvmValue:
        return self.b.load(self.b.element("%ks", "i64", step), "i64")

    def source_of(self, point: LlvmValue | int) -> str:
        """Where what a point of the panel is, but for the step."""
        return self.b.element("%from", self.memory, self.b.load(self.b.element(self.xs, "i64", point), "i64"))

    def side_by_side(self) -> tuple[LlvmValue, LlvmValue]:
        """Whether the panel's points are, of which each lies behind the one before; and where the first one is."""
        b = self.b
        first, last = b.load(self.xs, "i64"), b.load(b.element(self.xs, "i64", self.width - 1), "i64")
        together = b.icmp("eq", b.sub(last, first), self.width - 1)
        return b.and_(LlvmValue("%ascending", "i1"), together), first

    def either(self, condition: LlvmValue, yes: Callable[[], None], no: Callable[[], None]) -> None:
        b = self.b
        labels = [b.new_label(stem) for stem in ("yes", "no", "after")]
        b.branch(condition, labels[0], labels[1])
        for label, write in zip(labels, (yes, no), strict=False):
            b.label(label)
            write()
            b.jump(labels[2])
        b.label(labels[2])


def pack(source: torch.dtype, dtype: torch.dtype, width: int, target: Target) -> Helper:
    """`(to, from, ks, xs, steps, panels, ascending)`: points of any layout; whole vectors where they lie side by side,
    if each is known to lie behind the one before."""
    packer = _Packer("pack", source, dtype, width, target)
    b = packer.b
    together, first = packer.side_by_side()

    def vectors() -> None:
        begin = b.element("%from", packer.memory, first)
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

    packer.either(together, vectors, one_by_one)
    return packer.end()


def pack_along(source: torch.dtype, dtype: torch.dtype, width: int, target: Target) -> Helper:
    """The same where steps lie side by side: several are read at once, and transposed in registers. `ks` has the first
    step's offset alone."""
    packer = _Packer("pack_along", source, dtype, width, target, _ALL)
    b = packer.b
    begin = b.load("%ks", "i64")
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


def _transpose(packer: _Packer, sources: list[str], to: str) -> None:
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


def transposed(b: Builder, rows: list[LlvmValue]) -> list[LlvmValue]:
    """Of four numbers each, one to four rows → four columns."""
    kind, count = rows[0].kind, len(rows)

    def mixed(left: LlvmValue, right: LlvmValue, order: list[int]) -> LlvmValue:
        return b.op(f"shufflevector {left}, {right}, {b.iota('i32', order)}", kind, len(order))

    if count == 1:
        return [b.extract(rows[0], lane) for lane in range(ACROSS)]
    if count == 2:
        return [mixed(rows[0], rows[1], [lane, ACROSS + lane]) for lane in range(ACROSS)]
    if count == 3:
        pairs = [mixed(rows[0], rows[1], [lane, 4 + lane, lane, lane]) for lane in range(ACROSS)]
        return [mixed(pair, rows[2], [0, 1, 4 + lane]) for lane, pair in enumerate(pairs)]
    low = [mixed(rows[0], rows[1], [0, 4, 1, 5]), mixed(rows[2], rows[3], [0, 4, 1, 5])]
    high = [mixed(rows[0], rows[1], [2, 6, 3, 7]), mixed(rows[2], rows[3], [2, 6, 3, 7])]
    return [mixed(half[0], half[1], order) for half in (low, high) for order in ([0, 1, 4, 5], [2, 3, 6, 7])]


def pack_bounded(source: torch.dtype, dtype: torch.dtype, width: int, bounds: int, target: Target) -> Helper:
    """The same with positions that must lie within their extents, or else the element is zero. Positions are tables
    too, of each bound in turn: `pk` of steps, `px` of points. `size`: elements there are to read."""
    packer = _Packer(f"pack_bounded{bounds}", source, dtype, width, target)
    b, size = packer.b, LlvmValue("%size", "i64")
    together, first = packer.side_by_side()
    enough = b.icmp("sge", size, width)
    steps_of = [b.element("%pk", "i32", b.mul(LlvmValue("%steps.stride", "i64"), each)) for each in range(bounds)]
    points_of = [
        b.element("%px", "i32", b.add(packer.begin, b.mul(LlvmValue("%points.stride", "i64"), each)))
        for each in range(bounds)
    ]
    extents = [b.load(b.element("%extents", "i32", each), "i32") for each in range(bounds)]

    def inside(positions: list[LlvmValue], step: LlvmValue) -> LlvmValue:
        found = LlvmValue("true", "i1")
        for position, table, extent in zip(positions, steps_of, extents, strict=True):
            at = b.add(position, b.load(b.element(table, "i32", step), "i32"))
            within = b.icmp("ult", at, b.splat(extent, position.lanes))
            found = within if found.name == "true" else b.and_(found, within)
        return found

    def one_by_one(only: LlvmValue | None = None) -> None:
        """Of all steps, or of one."""
        point = b.begin(packer.zero, b.const("i64", width), 1, (), guard=False)
        begin, to = packer.source_of(point.index), b.element(packer.to, packer.kind, point.index)
        positions = [b.load(b.element(table, "i32", point.index), "i32") for table in points_of]
        loop = b.begin(only or packer.chunk.index, b.add(only, 1) if only else packer.stop, 1, (), guard=True)
        # What is outside is read at the buffer's first element, to no effect.
        there = inside(positions, loop.index)
        place = b.element(begin, packer.memory, packer.offset_of_step(loop.index))
        place = b.op(f"select {there}, ptr {place}, ptr %from", "ptr", 1).name
        raw = packer.widened(b.load(place, packer.memory))
        found = b.select(there, raw, b.const(packer.kind, 0.0))
        b.store(found, b.element(to, packer.kind, b.mul(loop.index, width)))
        loop.end()
        point.end()

    def vectors() -> None:
        positions = [b.load(table, "i32", width) for table in points_of]
        loop = b.begin(packer.chunk.index, packer.stop, 1, (), guard=True)
        place = b.add(first, packer.offset_of_step(loop.index))

        def whole() -> None:
            raw = packer.widened(b.load(b.element("%from", packer.memory, place), packer.memory, width))
            there = inside(positions, loop.index)
            b.store(b.select(there, raw, b.const(packer.kind, 0.0, width)), packer.at(loop.index))

        # A vector may reach past what is zero anyway, but not out of the buffer. What is below it is, as an unsigned
        # number, above every size.
        packer.either(b.icmp("ule", place, b.sub(size, width)), whole, lambda: one_by_one(loop.index))
        loop.end()

    packer.either(b.and_(together, enough), vectors, one_by_one)
    return packer.end(", ptr %pk, i64 %steps.stride, ptr %px, i64 %points.stride, ptr %extents, i64 %size")
