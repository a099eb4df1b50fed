"""Carries reductions through loops: partial results in lanes, and f64 sums of long rows.

    %sum = phi <8 x float> …      one partial result per lane; every few hundred elements they are added to a double
"""

from collections.abc import Sequence

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.loops import reductions
from smelt.codegen.loops.builder import Builder, Loop
from smelt.ir.kernel import Reduce, Scan
from smelt.ir.loops import Value


@dataclass(slots=True)
class LoopReduction:
    """A reduction in progress: partial results in lanes, and the float64 they are added to now and then, if any. Or a
    scan along lanes: its running value."""

    instruction: Reduce | Scan
    dtype: torch.dtype
    partial: Value
    f64_accumulator: Value | None = None


def carried(started: list[LoopReduction]) -> list[Value]:
    """The values that a loop passes from one iteration to the next."""
    sums = [fold.f64_accumulator for fold in started if fold.f64_accumulator is not None]
    return [fold.partial for fold in started] + sums


def assign(started: list[LoopReduction], values: Sequence[Value]) -> None:
    left = list(values)
    for fold in started:
        fold.partial = left.pop(0)
    for fold in started:
        if fold.f64_accumulator is not None:
            fold.f64_accumulator = left.pop(0)


def begin(b: Builder, first: Value, last: Value, step: int, started: list[LoopReduction]) -> Loop:
    loop = b.begin(first, last, step, carried(started), guard=False)
    assign(started, loop.values)
    return loop


def end(loop: Loop, started: list[LoopReduction]) -> None:
    assign(started, loop.end(*carried(started)))


def flush(b: Builder, lanes: int, started: list[LoopReduction]) -> None:
    """Add partial f32 sums to their f64 accumulators."""
    for fold in started:
        if fold.f64_accumulator is not None:
            total = reductions.reduce_lanes(b, "sum", fold.dtype, fold.partial)
            fold.f64_accumulator = b.fadd(fold.f64_accumulator, b.convert("fpext", total, "f64"))
            fold.partial = reductions.start(b, "sum", fold.dtype, lanes)


def finish(b: Builder, fold: LoopReduction) -> Value:
    """The result of a reduction, once its loops are done."""
    assert isinstance(fold.instruction, Reduce)
    total = reductions.reduce_lanes(b, fold.instruction.op, fold.dtype, fold.partial)
    if fold.f64_accumulator is None:
        return total
    whole = b.fadd(fold.f64_accumulator, b.convert("fpext", total, "f64"))
    return b.convert("fptrunc", whole, "f32")
