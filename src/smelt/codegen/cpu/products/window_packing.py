"""Packs panels of convolution windows, with zeros where they reach past an image's edge.

    panel of pixels, 3×3 window: (c=0: 9 steps) (c=1: 9 steps) …     in bounds or not is the same in every channel

Whether an element is in bounds depends on the point and on the position in the window, but not on the channel. So it is
computed once per panel for each window position, and channels are read without a check: by `pack_windows` where window
positions are the innermost steps, by `pack_channels` where channels are, contiguous in memory.
"""

import functools

import torch

from smelt.codegen.cpu.products.packing import FIRST, PANELS, PackerFrame, PanelForm
from smelt.codegen.cpu.products.panel_copies import ACROSS, store_transposed
from smelt.codegen.loops.arrays import Array
from smelt.codegen.loops.scalars import cast
from smelt.device import Target
from smelt.ir.loops import BITS, Function, Value

# What a window position of a panel is: all points in bounds and side by side, none in bounds, or side by side without
# all of them in bounds. Other positions are read point by point.
_ALL, _NONE, _SOME = 1, 2, 3


class _WindowPacker(PackerFrame):
    """Inside its loop over panels."""

    def __init__(self, name: str, form: PanelForm, bounds: int, target: Target) -> None:
        super().__init__(f"{name}{bounds}", form, target, bounds=bounds)
        b, width = self.b, self.width
        self.panel = b.begin(0, PANELS, guard=True)
        first = b.mul(self.panel.index, width)
        self.to = self.panels.at(b.mul(first, self.steps))
        self.places = self.all_xs.load(first, width)
        self.positions = [px.load(first, width) for _, px, _ in self.bounds]

    def end(self) -> Function:
        self.panel.end()
        return self.function()

    def offsets(self, step: Value, inside: Value) -> Value:
        """Where the points are; for those out of bounds the first of the buffer, which may be read as well."""
        b = self.b
        return b.select(inside, b.add(self.places, b.splat(self.offset_of_step(step), self.width)), 0)

    def mask(self, inside: Value) -> Value:
        return self.b.convert("sext", inside, f"i{BITS[self.to.kind]}")

    def masked(self, value: Value, mask: Value) -> Value:
        return self.b.from_bits(self.b.and_(self.b.bits(value), mask))


@functools.cache
def pack_windows(form: PanelForm, bounds: int, target: Target) -> Function:
    """Like `pack_bounded`, where positions repeat after a period of steps, and addresses do not decrease from one
    period to the next. For the table see `step_runs.table_bytes`."""
    packer = _WindowPacker("pack_windows", form, bounds, target)
    b, width, period, table = packer.b, form.width, packer.number("period"), packer.array("table", torch.int64)
    first, size = b.extract(packer.places, 0), packer.number("size")
    row = b.add(b.splat(first, width), b.iota("i64", range(width)))
    together = b.reduce_lanes("and", b.icmp("eq", packer.places, row))
    # A partial panel ends with its last point several times, where any element may be: their results are ignored.
    partial_row = b.binary("smin", row, b.splat(b.extract(packer.places, width - 1), width))
    ascending = b.and_(b.icmp("ne", packer.number("ascending"), 0), b.icmp("sge", size, width))
    adjacent = b.and_(ascending, b.reduce_lanes("and", b.icmp("eq", packer.places, partial_row)))
    after = table.at(b.mul(period, width))
    masks = Array(b, after.pointer, torch.int64 if BITS[packer.to.kind] == 64 else torch.int32)
    flags = after.at(b.mul(period, width))

    with b.loop(0, b.smin(period, packer.steps), guard=True) as place:
        inside = packer.inside(packer.positions, place)
        table.store(packer.offsets(place, inside), b.mul(place, width))
        masks.store(packer.mask(inside), b.mul(place, width))
        some = b.select(adjacent, b.const("i64", _SOME), 0)
        some = b.select(b.reduce_lanes("or", inside), some, _NONE)
        every = b.and_(b.reduce_lanes("and", inside), together)
        flags.store(b.select(every, b.const("i64", _ALL), some), place)

    step = b.begin(0, packer.steps, 1, [packer.zero], guard=True)
    (number,) = step.values
    further = packer.offset_of_step(step.index)
    flag = flags.load(number)

    # Each way has an address of its own: LLVM would merge stores to the same one, and move vectors there in registers.
    def whole() -> None:
        packer.at(step.index).store(packer.factor.load_as(form.dtype, b.add(first, further), width))

    def none() -> None:
        packer.at(step.index).store(packer.to.zero(width))

    def scattered() -> None:
        base, offsets = packer.factor.at(b.sub(further, packer.offset_of_step(number))), table.at(b.mul(number, width))
        each = [offsets.load(lane) for lane in range(width)]
        raw = b.gathered([base.load(offset) for offset in each])
        mask = masks.load(b.mul(number, width), width)
        packer.at(step.index).store(packer.masked(cast(b, raw, form.source, form.dtype), mask))

    # A vector may reach past what is zero anyway, but not out of the buffer. An address below the buffer is, as an
    # unsigned number, above every size.
    within = b.icmp("ule", b.add(first, further), b.sub(size, width))

    def masked() -> None:
        elements = packer.factor.load_as(form.dtype, b.add(first, further), width)
        packer.at(step.index).store(packer.masked(elements, masks.load(b.mul(number, width), width)))

    def partial() -> None:
        b.choice(b.and_(within, b.icmp("eq", flag, _SOME)), masked, scattered)

    def other() -> None:
        b.choice(b.icmp("eq", flag, _NONE), none, partial)

    b.choice(b.icmp("eq", flag, _ALL), whole, other)
    following = b.add(number, 1)
    step.end(b.select(b.icmp("eq", following, period), 0, following))
    return packer.end()


@functools.cache
def pack_channels(form: PanelForm, bounds: int, target: Target) -> Function:
    """As `pack_bounded`, where runs of steps after each other have one position and are side by side in memory. Of the
    first run some steps may have been done already."""
    packer = _WindowPacker("pack_channels", form, bounds, target)
    b, width, run = packer.b, form.width, packer.number("period")
    phase = b.urem(FIRST, run)
    count = b.udiv(b.add(b.add(packer.steps, phase), b.sub(run, 1)), run)
    with b.loop(0, count, guard=True) as number:
        begin = b.sub(b.mul(number, run), phase)
        first = b.smax(begin, 0)
        length = b.sub(b.smin(b.add(begin, run), packer.steps), first)
        inside = packer.inside(packer.positions, first)

        def some() -> None:
            offsets, mask = packer.offsets(first, inside), packer.mask(inside)
            points = [packer.factor.at(b.extract(offsets, lane)) for lane in range(width)]
            masks = [b.extract(mask, lane) for lane in range(width)]
            wide = [b.splat(each, ACROSS) for each in masks]
            to, whole = packer.at(first), b.and_(length, -ACROSS)
            with b.loop(0, whole, ACROSS, guard=True) as step:
                for lane in range(0, width, ACROSS):
                    group = range(lane, min(lane + ACROSS, width))
                    rows = [packer.masked(points[n].load_as(form.dtype, step, ACROSS), wide[n]) for n in group]
                    store_transposed(rows, to.at(b.add(b.mul(step, width), lane)), width)
            with b.loop(whole, length, guard=True) as step:
                here = to.at(b.mul(step, width))
                for lane, (point, each) in enumerate(zip(points, masks, strict=True)):
                    here.store(packer.masked(point.load_as(form.dtype, step), each), lane)

        def none() -> None:
            with b.loop(first, b.add(first, length), guard=True) as step:
                packer.at(step).store(packer.to.zero(width))

        # A run that no point has is not read: the buffer may be shorter than it, or nothing.
        b.choice(b.reduce_lanes("or", inside), some, none)
    return packer.end()
