"""Writes the loops of `online_softmax`: for each block a maximum, then the exponentials, then their running sum.

    b0: m = 3, s = Σ exp(v - 3)      b1: m = 5, s = s · exp(3 - 5) + Σ exp(v - 5)      …      s as a float32, at the end

The sum is a float64, and so is the factor that rescales it to a new maximum: it may be rescaled any number of times.
Blocks in which everything is -inf are relative to the lowest finite number, so that they add nothing.
"""

import math
from collections.abc import Callable
from functools import reduce

import torch

from smelt.codegen.cpu.addresses import MINE, Workspace
from smelt.codegen.cpu.entry_points import PART, KernelFunctions
from smelt.codegen.cpu.instructions import LoopReduction
from smelt.codegen.cpu.loop_nest import LoopNest
from smelt.codegen.cpu.online_softmax import FACTOR, REFERENCES, Online, block_of
from smelt.codegen.cpu.schedule import LoopSchedule, Split
from smelt.codegen.generator import EntryCode
from smelt.codegen.loops import reductions
from smelt.codegen.loops.arrays import Array
from smelt.codegen.loops.builder import BUFFERS, TRUE, param
from smelt.codegen.loops.math import FLOAT64, OF_NEGATIVE
from smelt.ir.kernel import Axis, Stage
from smelt.ir.loops import Value
from smelt.symbolic.symsize import greater, lesser

_LOWEST = torch.finfo(torch.float32).min

Write = Callable[[LoopReduction], None]  # a reduction loop, or the rest of it


class OnlineNest(LoopNest):
    """The loops of a kernel some of whose stages run as one. Of the row being written: the maximum so far, and the sum
    of exponentials relative to it."""

    __slots__ = ("largest", "sum")

    largest: Value
    sum: Value

    @property
    def _online(self) -> Online:
        assert self.plan.online is not None
        return self.plan.online

    @property
    def _axis(self) -> Axis:
        return self.plan.kernel.cols[0]

    @property
    def _block(self) -> int:
        return block_of(self.plan.lanes)

    @property
    def _full(self) -> Value:
        return self.number(self._axis.size // self.at.lanes * self.at.lanes)

    def stages(self) -> None:
        self.largest, self.sum = self.b.const("f32", -math.inf), self.b.const("f64", 0.0)
        super().stages()

    def stage(self, stage: Stage) -> None:
        if stage is self._online.first:
            self._both_loops()
        elif stage is self._online.second:
            self._finish_sum()
        else:
            self.in_blocks = stage is self._online.third
            super().stage(stage)
            self.in_blocks = False

    def _both_loops(self) -> None:
        b, online, name, size = self.b, self._online, self._axis.name, self._axis.size
        values, powers = self.enter(online.first), self.enter(online.second)
        b.open_loop()
        loop = b.begin(0, self._full, self._block, (self.largest, self.sum))
        self.largest, self.sum = loop.values
        stop = b.smin(b.add(loop.index, self._block), self._full)
        self.attend(online.first)
        self.prefetched = []  # it was prefetched while the powers of the block before were computed
        self._raise(lambda peak: self.run(values, name, loop.index, stop, [peak]), loop.index)
        self.attend(online.second, self._block)
        self._add(lambda total: self.run(powers, name, loop.index, stop, [total]))
        self.largest, self.sum = loop.end(self.largest, self.sum)
        if self.has_tail():
            self.prefetched = []
            self._raise(lambda peak: self.tail(values, name, size, [peak]), self._full)
            self._add(lambda total: self.tail(powers, name, size, [total]))
        b.close_loop()
        self.code.values[online.peak.out] = self.largest
        self.at.lanes = 1

    def _raise(self, fold: Write, column: Value) -> None:
        """Make the largest value so far what powers are relative to, those before too."""
        b, lanes = self.b, self.at.lanes
        peak, before = self.start(self._online.peak), self.largest
        # From one number: a vector would lie in registers all through the powers.
        peak.partial = b.splat(self.largest, lanes)
        fold(peak)
        self.largest = reductions.reduce_lanes(b, "max", torch.float32, peak.partial)
        now = b.maximum(_LOWEST, self.largest)
        apart = b.fsub(b.convert("fpext", before, "f64"), b.convert("fpext", now, "f64"))
        self.sum = b.fmul(self.sum, OF_NEGATIVE["exp"](b, apart))
        self.code.values[self._online.reference] = b.splat(now, lanes)
        if self._online.third is not None:
            self._reference_of(column).store(now)

    def _add(self, fold: Write) -> None:
        total = self.start(self._online.total)
        fold(total)
        narrow = reductions.reduce_lanes(self.b, "sum", torch.float32, total.partial)
        self.sum = self.b.fadd(self.sum, self.b.convert("fpext", narrow, "f64"))

    def _finish_sum(self) -> None:
        """The sum relative to the kernel's reference. An infinite maximum has one exponential only."""
        b, values, online = self.b, self.code.values, self._online
        peak, reference = (b.convert("fpext", values[name], "f64") for name in (online.peak.out, online.reference))
        infinite = b.fcmp("oeq", b.fabs(peak), math.inf)
        total = b.fmul(b.select(infinite, 1.0, self.sum), FLOAT64["exp"](b, b.fsub(peak, reference)))
        values[online.total.out] = b.convert("fptrunc", total, "f32")

    def _reference_of(self, column: Value) -> Array:
        """Where the reference of the block is kept that begins at `column`; the last vector is a block of its own."""
        number = self.b.udiv(self.b.add(column, self._block - 1), self._block)
        return self.at.arrays[REFERENCES].at(number)

    def begin_block(self, column: Value) -> None:
        """The factor that makes the exponentials of a block relative to the maximum of the row."""
        b, peak = self.b, self.code.values[self._online.peak.out]
        then = self._reference_of(column).load()
        apart = b.fsub(b.convert("fpext", then, "f64"), b.convert("fpext", peak, "f64"))
        factor = b.convert("fptrunc", FLOAT64["exp"](b, apart), "f32")
        self.code.values[FACTOR] = b.splat(factor, self.at.lanes)


def write(code: KernelFunctions, loops: LoopSchedule) -> EntryCode:
    """The functions of a kernel that is computed by loops; the entry launches the first part whose extents are long
    enough."""
    variants = [loops]
    while (fallback := variants[-1].fallback) is not None:
        variants.append(fallback)
    names = [code.symbol, *(f"{code.symbol}.variant{number}" for number in range(1, len(variants)))]
    workspaces = [Workspace.of_loops(each) for each in variants]
    size = reduce(greater, [each.size for each in workspaces])
    for name, each, workspace in zip(names, variants, workspaces, strict=True):
        b = code.begin(name)
        (OnlineNest if each.online else LoopNest).of(b, each, workspace).write()
        code.functions.append(b.function(f"{name}.part", PART))
    combines = loops.split in (Split.ROWS, Split.SCATTER_BUCKETS) and bool(loops.accumulators)
    if combines:
        finish, chunks = code.begin(), param("chunks")
        LoopNest.of(finish, loops, workspaces[0]).finish((chunks, size))
        code.add(finish, "finish", (BUFFERS, MINE, chunks))
    entry = code.begin()

    def launched(place: int) -> list[Value]:
        """The part, the maximum number of threads, and what they share out."""
        each = variants[place]
        most = entry.const("i64", lesser(each.threads, each.extent))
        return [Value(f"@{names[place]}.part", "ptr"), most, entry.const("i64", each.extent)]

    launch = launched(len(variants) - 1)
    for place in reversed(range(len(variants) - 1)):
        fits = TRUE
        for extent, least in variants[place].needs:
            fits = entry.and_(fits, entry.icmp("sge", entry.const("i64", extent), least))
        launch = [entry.select(fits, one, other) for one, other in zip(launched(place), launch, strict=True)]
    part, most, units = launch
    return code.end(most, units, size, b=entry, part=part, finish=combines)
