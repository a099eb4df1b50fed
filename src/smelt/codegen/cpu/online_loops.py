"""Writes the loops of `online_softmax`: for each block a maximum, then the exponentials, then their running sum.

    b0: m = 3, s = Σ exp(v - 3)      b1: m = 5, s = s · exp(3 - 5) + Σ exp(v - 5)      …      s as a float32, at the end

The sum is a float64, and so is the factor that rescales it to a new maximum: it may be rescaled any number of times.
Blocks in which everything is -inf are relative to the lowest finite number, so that they add nothing.
"""

import math
from collections.abc import Callable
from typing import Protocol

import torch

from smelt.codegen.cpu.addresses import Addresses
from smelt.codegen.cpu.instructions import InstructionWriter
from smelt.codegen.cpu.loop_reductions import LoopReduction
from smelt.codegen.cpu.online_softmax import FACTOR, REFERENCES, Online, block_of
from smelt.codegen.cpu.schedule import SchedulePlan
from smelt.codegen.loops import reductions
from smelt.codegen.loops.builder import Builder
from smelt.codegen.loops.math import FLOAT64, OF_NEGATIVE
from smelt.ir.kernel import Instruction, Load, Reduce, Stage
from smelt.ir.loops import Value
from smelt.symbolic.shapes import Size

_LOWEST = torch.finfo(torch.float32).min


class LoopWriter(Protocol):
    """What writes the loops of a kernel, as far as the loops here need it."""

    b: Builder
    plan: SchedulePlan
    at: Addresses
    code: InstructionWriter
    prefetched: list[Load]
    before_block: Callable[[Value], None] | None

    def number(self, value: Size) -> Value: ...
    def enter(self, stage: Stage) -> list[Instruction]: ...
    def attend(self, stage: Stage, prefetch_by: int = 0) -> None: ...
    def loop_stage(self, stage: Stage) -> None: ...
    def start(self, instruction: Reduce) -> LoopReduction: ...
    def has_tail(self) -> bool: ...
    def run(
        self, inside: list[Instruction], name: str, first: Value, last: Value, started: list[LoopReduction]
    ) -> None: ...
    def tail(self, inside: list[Instruction], name: str, size: Size, started: list[LoopReduction]) -> None: ...


Write = Callable[[LoopReduction], None]  # a reduction loop, or the rest of it


class OnlineReductions:
    """The state of writing the loops of one row."""

    def __init__(self, body: LoopWriter, loops: Online) -> None:
        self.body = body
        self.loops = loops
        self.b: Builder = body.b
        self.block = block_of(body.plan.lanes)
        self.axis = body.plan.kernel.cols[0]
        self.largest = self.b.const("f32", -math.inf)
        self.sum = self.b.const("f64", 0.0)

    def write(self, stage: Stage) -> None:
        if stage is self.loops.first:
            self._both_loops()
        elif stage is self.loops.second:
            self._finish_sum()
        else:
            self.body.before_block = self._make_good
            self.body.loop_stage(stage)
            self.body.before_block = None

    @property
    def _full(self) -> Value:
        return self.body.number(self.axis.size // self.body.at.lanes * self.body.at.lanes)

    def _both_loops(self) -> None:
        body, b = self.body, self.b
        values, powers = body.enter(self.loops.first), body.enter(self.loops.second)
        b.open_loop()
        loop = b.begin(body.number(0), self._full, self.block, (self.largest, self.sum), guard=False)
        self.largest, self.sum = loop.values
        stop = b.intrinsic("smin", b.add(loop.index, self.block), self._full)
        body.attend(self.loops.first)
        body.prefetched = []  # it was prefetched while the powers of the block before were computed
        self._raise(lambda peak: body.run(values, self.axis.name, loop.index, stop, [peak]), loop.index)
        body.attend(self.loops.second, self.block)
        self._add(lambda total: body.run(powers, self.axis.name, loop.index, stop, [total]))
        self.largest, self.sum = loop.end(self.largest, self.sum)
        if body.has_tail():
            body.prefetched = []
            self._raise(lambda peak: body.tail(values, self.axis.name, self.axis.size, [peak]), self._full)
            self._add(lambda total: body.tail(powers, self.axis.name, self.axis.size, [total]))
        b.close_loop()
        body.code.values[self.loops.peak.out] = self.largest
        body.at.lanes = 1

    def _raise(self, fold: Write, column: Value) -> None:
        """Make the largest value so far what powers are relative to, those before too."""
        b, lanes = self.b, self.body.at.lanes
        peak, before = self.body.start(self.loops.peak), self.largest
        # From one number: a vector would lie in registers all through the powers.
        peak.partial = b.splat(self.largest, lanes)
        fold(peak)
        self.largest = reductions.reduce_lanes(b, "max", torch.float32, peak.partial)
        now = b.maximum(_LOWEST, self.largest)
        apart = b.fsub(b.convert("fpext", before, "f64"), b.convert("fpext", now, "f64"))
        self.sum = b.fmul(self.sum, OF_NEGATIVE["exp"](b, apart))
        self.body.code.values[self.loops.reference] = b.splat(now, lanes)
        if self.loops.third is not None:
            b.store(now, self._reference_of(column))

    def _add(self, fold: Write) -> None:
        total = self.body.start(self.loops.total)
        fold(total)
        narrow = reductions.reduce_lanes(self.b, "sum", torch.float32, total.partial)
        self.sum = self.b.fadd(self.sum, self.b.convert("fpext", narrow, "f64"))

    def _finish_sum(self) -> None:
        """The sum relative to the kernel's reference. An infinite maximum has one exponential only."""
        b, values = self.b, self.body.code.values
        peak, reference = (
            b.convert("fpext", values[name], "f64") for name in (self.loops.peak.out, self.loops.reference)
        )
        infinite = b.fcmp("oeq", b.fabs(peak), math.inf)
        total = b.fmul(b.select(infinite, 1.0, self.sum), FLOAT64["exp"](b, b.fsub(peak, reference)))
        values[self.loops.total.out] = b.convert("fptrunc", total, "f32")

    def _reference_of(self, column: Value) -> Value:
        """Where the reference of the block is kept that begins at `column`; the last vector is a block of its own."""
        number = self.b.binary("udiv", self.b.add(column, self.block - 1), self.block)
        return self.b.element(self.body.at.pointers[REFERENCES], "f32", number)

    def _make_good(self, column: Value) -> None:
        """The factor that makes the exponentials of a block relative to the maximum of the row."""
        b, peak = self.b, self.body.code.values[self.loops.peak.out]
        then = b.load(self._reference_of(column), "f32")
        apart = b.fsub(b.convert("fpext", then, "f64"), b.convert("fpext", peak, "f64"))
        factor = b.convert("fptrunc", FLOAT64["exp"](b, apart), "f32")
        self.body.code.values[FACTOR] = b.splat(factor, self.body.at.lanes)
