"""Packs panels of convolution windows, with zeros where they reach past an image's edge.

    panel of pixels, 3×3 window: (c=0: 9 steps) (c=1: 9 steps) …     in bounds or not is the same in every channel

Whether an element is in bounds depends on the point and on the position in the window, but not on the channel. So it is
computed once per panel for each window position, and channels are read without a check: by `pack_windows` where window
positions are the innermost steps, by `pack_channels` where channels are, contiguous in memory.
"""

import functools

from smelt.codegen.cpu.products.packing import FIRST, FROM, PANELS, PackerFrame, PanelForm
from smelt.codegen.cpu.products.transposes import ACROSS, transposed
from smelt.codegen.loops.scalars import cast
from smelt.device import Target
from smelt.ir.loops import BITS, Function, Value

_ALL, _NONE = 1, 2  # of a panel's points are in bounds, the former side by side


class _WindowPacker(PackerFrame):
    """Inside its loop over panels."""

    def __init__(self, name: str, form: PanelForm, bounds: int, target: Target) -> None:
        super().__init__(f"{name}{bounds}", form, target, bounds=bounds)
        b, width = self.b, self.width
        self.panel = b.begin(self.zero, PANELS, 1, (), guard=True)
        first = b.mul(self.panel.index, width)
        self.to = b.element(self.panels, self.kind, b.mul(first, self.steps))
        self.places = b.load(b.element(self.all_xs, "i64", first), "i64", width)
        self.positions = [b.load(b.element(px, "i32", first), "i32", width) for _, px, _ in self.bounds]

    def end(self) -> Function:
        self.panel.end()
        return self.function()

    def inside(self, step: Value) -> Value:
        """Which points are in all bounds."""
        b, width = self.b, self.width
        in_bounds = b.const("i1", True, width)
        for position, (pk, _, extent) in zip(self.positions, self.bounds, strict=True):
            further = b.splat(b.load(b.element(pk, "i32", step), "i32"), width)
            in_bounds = b.and_(in_bounds, b.icmp("ult", b.add(position, further), b.splat(extent, width)))
        return in_bounds

    def offsets(self, step: Value, inside: Value) -> Value:
        """Where the points are; for those out of bounds the first of the buffer, which may be read as well."""
        b = self.b
        return b.select(inside, b.add(self.places, b.splat(self.offset_of_step(step), self.width)), 0)

    def mask(self, inside: Value) -> Value:
        return self.b.convert("sext", inside, f"i{BITS[self.kind]}")

    def load(self, pointer: Value, lanes: int = 1) -> Value:
        return cast(self.b, self.b.load(pointer, self.memory, lanes), self.source, self.dtype)

    def masked(self, value: Value, mask: Value) -> Value:
        return self.b.from_bits(self.b.and_(self.b.bits(value), mask))


@functools.cache
def pack_windows(form: PanelForm, bounds: int, target: Target) -> Function:
    """Like `pack_bounded`, where positions repeat after a period of steps, and addresses do not decrease from one
    period to the next. For the table see `step_runs.table_bytes`."""
    packer = _WindowPacker("pack_windows", form, bounds, target)
    b, width, period, table = packer.b, form.width, packer.number("period"), packer.array("table")
    first = b.extract(packer.places, 0)
    row = b.add(b.splat(first, width), b.iota("i64", range(width)))
    together = b.reduce_lanes("and", b.icmp("eq", packer.places, row))
    masks = b.element(table, "i64", b.mul(period, width))
    flags = b.element(masks, "i64", b.mul(period, width))
    kind = f"i{BITS[packer.kind]}"

    place = b.begin(packer.zero, b.intrinsic("smin", period, packer.steps), 1, (), guard=True)
    inside = packer.inside(place.index)
    b.store(packer.offsets(place.index, inside), b.element(table, "i64", b.mul(place.index, width)))
    b.store(packer.mask(inside), b.element(masks, kind, b.mul(place.index, width)))
    some = b.select(b.reduce_lanes("or", inside), b.const("i64", 0), b.const("i64", _NONE))
    every = b.and_(b.reduce_lanes("and", inside), together)
    b.store(b.select(every, b.const("i64", _ALL), some), b.element(flags, "i64", place.index))
    place.end()

    step = b.begin(packer.zero, packer.steps, 1, [packer.zero], guard=True)
    (number,) = step.values
    further = packer.offset_of_step(step.index)
    flag = b.load(b.element(flags, "i64", number), "i64")

    # Each way has an address of its own: LLVM would merge stores to the same one, and move vectors there in registers.
    def whole() -> None:
        b.store(packer.load(b.element(FROM, packer.memory, b.add(first, further)), width), packer.at(step.index))

    def none() -> None:
        b.store(b.const(packer.kind, 0.0, width), packer.at(step.index))

    def scattered() -> None:
        base = b.element(FROM, packer.memory, b.sub(further, packer.offset_of_step(number)))
        offsets = b.element(table, "i64", b.mul(number, width))
        each = [b.load(b.element(offsets, "i64", lane), "i64") for lane in range(width)]
        raw = b.gathered([b.load(b.element(base, packer.memory, offset), packer.memory) for offset in each])
        mask = b.load(b.element(masks, kind, b.mul(number, width)), kind, width)
        b.store(packer.masked(cast(b, raw, form.source, form.dtype), mask), packer.at(step.index))

    def other() -> None:
        b.choice(b.icmp("eq", flag, _NONE), none, scattered)

    b.choice(b.icmp("eq", flag, _ALL), whole, other)
    following = b.add(number, 1)
    step.end(b.select(b.icmp("eq", following, period), 0, following))
    return packer.end()


@functools.cache
def pack_channels(form: PanelForm, bounds: int, target: Target) -> Function:
    """As `pack_bounded`, where runs of steps after each other have one position and are side by side in memory. Of the
    first run some steps may have been done already."""
    packer = _WindowPacker("pack_channels", form, bounds, target)
    b, width, memory, kind = packer.b, form.width, packer.memory, packer.kind
    run = packer.number("period")
    phase = b.binary("urem", FIRST, run)
    count = b.binary("udiv", b.add(b.add(packer.steps, phase), b.sub(run, 1)), run)
    runs = b.begin(packer.zero, count, 1, (), guard=True)
    begin = b.sub(b.mul(runs.index, run), phase)
    first = b.intrinsic("smax", begin, packer.zero)
    length = b.sub(b.intrinsic("smin", b.add(begin, run), packer.steps), first)
    inside = packer.inside(first)

    def some() -> None:
        offsets, mask = packer.offsets(first, inside), packer.mask(inside)
        points = [b.element(FROM, memory, b.extract(offsets, lane)) for lane in range(width)]
        masks = [b.extract(mask, lane) for lane in range(width)]
        wide = [b.splat(each, ACROSS) for each in masks]
        to, whole = packer.at(first), b.and_(length, -ACROSS)
        loop = b.begin(packer.zero, whole, ACROSS, (), guard=True)
        for lane in range(0, width, ACROSS):
            group = range(lane, min(lane + ACROSS, width))
            rows = [packer.load(b.element(points[each], memory, loop.index), ACROSS) for each in group]
            rows = [packer.masked(row, wide[each]) for row, each in zip(rows, group, strict=True)]
            here = b.element(to, kind, b.add(b.mul(loop.index, width), lane))
            for step, column in enumerate(transposed(b, rows)):
                b.store(column, b.element(here, kind, step * width))
        loop.end()
        rest = b.begin(whole, length, 1, (), guard=True)
        here = b.element(to, kind, b.mul(rest.index, width))
        for lane, (point, each) in enumerate(zip(points, masks, strict=True)):
            element = packer.masked(packer.load(b.element(point, memory, rest.index)), each)
            b.store(element, b.element(here, kind, lane))
        rest.end()

    def none() -> None:
        zeros = b.begin(first, b.add(first, length), 1, (), guard=True)
        b.store(b.const(kind, 0.0, width), packer.at(zeros.index))
        zeros.end()

    # A run that no point has is not read: the buffer may be shorter than it, or nothing.
    b.choice(b.reduce_lanes("or", inside), some, none)
    runs.end()
    return packer.end()
