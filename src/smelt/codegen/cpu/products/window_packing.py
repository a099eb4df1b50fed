"""Packs panels of convolution windows, with zeros where they reach past an image's edge.

    panel of pixels, 3×3 window: (c=0: 9 steps) (c=1: 9 steps) …     in bounds or not is the same in every channel

Whether an element is in bounds depends on the point and on the position in the window, but not on the channel. So it is
computed once per panel for each window position, and channels are read without a check: by `pack_windows` where window
positions are the innermost steps, by `pack_channels` where channels are, contiguous in memory.
"""

import functools

from smelt.codegen.cpu.products.micro_kernel import Helper
from smelt.codegen.cpu.products.packing import PackerFrame, PanelForm
from smelt.codegen.cpu.products.transposes import ACROSS, transposed
from smelt.codegen.llvm.builder import BITS, LlvmValue
from smelt.codegen.llvm.scalars import cast
from smelt.device import Target

_ALL, _NONE = 1, 2  # of a panel's points are in bounds, the former side by side


class _WindowPacker(PackerFrame):
    """Inside its loop over panels."""

    def __init__(self, name: str, form: PanelForm, bounds: int, target: Target) -> None:
        super().__init__(f"{name}{bounds}", form, target, bounds=bounds)
        b, width = self.b, self.width
        self.panel = b.begin(self.zero, LlvmValue("%panels", "i64"), 1, (), guard=True)
        first = b.mul(self.panel.index, width)
        self.to = b.element(self.panels, self.kind, b.mul(first, self.steps))
        self.places = b.load(b.element(self.all_xs, "i64", first), "i64", width)
        self.positions = [b.load(b.element(px, "i32", first), "i32", width) for _, px, _ in self.bounds]

    def end(self) -> Helper:
        self.panel.end()
        return self.helper()

    def at(self, step: LlvmValue) -> str:
        return self.b.element(self.to, self.kind, self.b.mul(step, self.width))

    def inside(self, step: LlvmValue) -> LlvmValue:
        """Which points are in all bounds."""
        b, width = self.b, self.width
        in_bounds = LlvmValue("splat (i1 true)", "i1", width)
        for position, (pk, _, extent) in zip(self.positions, self.bounds, strict=True):
            further = b.splat(b.load(b.element(pk, "i32", step), "i32"), width)
            in_bounds = b.and_(in_bounds, b.icmp("ult", b.add(position, further), b.splat(extent, width)))
        return in_bounds

    def offsets(self, step: LlvmValue, inside: LlvmValue) -> LlvmValue:
        """Where the points are; for those out of bounds the first of the buffer, which may be read as well."""
        b = self.b
        return b.select(inside, b.add(self.places, b.splat(self.offset_of_step(step), self.width)), 0)

    def mask(self, inside: LlvmValue) -> LlvmValue:
        return self.b.convert("sext", inside, f"i{BITS[self.kind]}")

    def load(self, pointer: str, lanes: int = 1) -> LlvmValue:
        return cast(self.b, self.b.load(pointer, self.memory, lanes), self.source, self.dtype)

    def masked(self, value: LlvmValue, mask: LlvmValue) -> LlvmValue:
        return self.b.from_bits(self.b.and_(self.b.bits(value), mask))


@functools.cache
def pack_windows(form: PanelForm, bounds: int, target: Target) -> Helper:
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

    place = b.begin(packer.zero, b.intrinsic("llvm.smin", period, packer.steps), 1, (), guard=True)
    inside = packer.inside(place.index)
    b.store(packer.offsets(place.index, inside), b.element(table, "i64", b.mul(place.index, width)))
    b.store(packer.mask(inside), b.element(masks, kind, b.mul(place.index, width)))
    some = b.select(b.reduce_lanes("or", inside), b.const("i64", 0), b.const("i64", _NONE))
    every = b.and_(b.reduce_lanes("and", inside), together)
    b.store(b.select(every, b.const("i64", _ALL), some), b.element(flags, "i64", place.index))
    place.end()

    step = b.begin(packer.zero, packer.steps, 1, [packer.zero], guard=True)
    (number,) = step.values
    further, to = packer.offset_of_step(step.index), packer.at(step.index)
    flag = b.load(b.element(flags, "i64", number), "i64")
    whole, other, none, scattered, after = map(b.new_label, ("whole", "other", "none", "scattered", "after"))
    b.branch(b.icmp("eq", flag, _ALL), whole, other)
    b.label(whole)
    b.store(packer.load(b.element("%from", packer.memory, b.add(first, further)), width), to)
    b.jump(after)
    b.label(other)
    b.branch(b.icmp("eq", flag, _NONE), none, scattered)
    b.label(none)
    b.store(b.const(packer.kind, 0.0, width), to)
    b.jump(after)
    b.label(scattered)
    base = b.element("%from", packer.memory, b.sub(further, packer.offset_of_step(number)))
    offsets = b.element(table, "i64", b.mul(number, width))
    each = [b.load(b.element(offsets, "i64", lane), "i64") for lane in range(width)]
    raw = b.gathered([b.load(b.element(base, packer.memory, offset), packer.memory) for offset in each])
    mask = b.load(b.element(masks, kind, b.mul(number, width)), kind, width)
    b.store(packer.masked(cast(b, raw, form.source, form.dtype), mask), to)
    b.jump(after)
    b.label(after)
    following = b.add(number, 1)
    step.end(b.select(b.icmp("eq", following, period), 0, following))
    return packer.end()


@functools.cache
def pack_channels(form: PanelForm, bounds: int, target: Target) -> Helper:
    """As `pack_bounded`, where runs of steps after each other have one position and are side by side in memory. Of the
    first run some steps may have been done already."""
    packer = _WindowPacker("pack_channels", form, bounds, target)
    b, width, memory, kind = packer.b, form.width, packer.memory, packer.kind
    run = packer.number("period")
    phase = b.binary("urem", LlvmValue("%first", "i64"), run)
    count = b.binary("udiv", b.add(b.add(packer.steps, phase), b.sub(run, 1)), run)
    runs = b.begin(packer.zero, count, 1, (), guard=True)
    begin = b.sub(b.mul(runs.index, run), phase)
    first = b.intrinsic("llvm.smax", begin, packer.zero)
    length = b.sub(b.intrinsic("llvm.smin", b.add(begin, run), packer.steps), first)
    inside = packer.inside(first)
    # A run that no point has is not read: the buffer may be shorter than it, or nothing.
    some, none, after = map(b.new_label, ("some", "none", "after"))
    b.branch(b.reduce_lanes("or", inside), some, none)
    b.label(some)
    offsets, mask = packer.offsets(first, inside), packer.mask(inside)
    points = [b.element("%from", memory, b.extract(offsets, lane)) for lane in range(width)]
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
    b.jump(after)
    b.label(none)
    zeros = b.begin(first, b.add(first, length), 1, (), guard=True)
    b.store(b.const(kind, 0.0, width), packer.at(zeros.index))
    zeros.end()
    b.jump(after)
    b.label(after)
    runs.end()
    return packer.end()
