"""Computes a maximum and the sum of exponentials below it in one pass, for rows too long for the caches near the core.

    loop: m = reduce max v                       of every block of a few thousand elements, while it is close:
    loop: s = reduce sum exp(v - m)          →     n = max(m, the block's), s = s · exp(m - n) + Σ exp(v - n), m = n

The exponentials that the second loop stages for a third are relative to the maximum so far. That maximum is kept for
every block, and corrected when the third loop reads the block:

    loop: e = load p, store y = e / s        →   of every block, that was relative to n: e = load p · exp(n - m)
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.axes import Pure
from smelt.codegen.loops.sign_analysis import equal_values
from smelt.ir.check_kernel import operands, value_dtypes
from smelt.ir.kernel import (
    Accumulate,
    Compute,
    Const,
    Gather,
    Instruction,
    Kernel,
    Load,
    Reduce,
    Role,
    Scatter,
    Stage,
    Store,
)
from smelt.symbolic.symsize import hint

BLOCK = 4096  # elements, of which three arrays stay in the first cache
WORTH = 2 * BLOCK
REFERENCES = "online.references"  # an array: what each block of a row was computed relative to
FACTOR = "online.factor"  # a value: what makes that good in the block being read


@dataclass(frozen=True, slots=True)
class Online:
    """Two loops of a kernel that run as one."""

    first: Stage
    second: Stage
    peak: Reduce
    total: Reduce
    distance: str  # the value whose powers are summed
    reference: str  # what it is a distance from: the maximum, or what takes its place where it is infinite
    third: Stage | None = None  # a loop that reads the exponentials, staged relative to each block's maximum


def block_of(lanes: int) -> int:
    """How many elements a block has, in whole vectors."""
    return BLOCK // lanes * lanes


def online(kernel: Kernel) -> tuple[Kernel, Online | None]:
    """The kernel, changed where that takes it, and which of its loops run as one."""
    if len(kernel.cols) != 1 or hint(kernel.col_count) <= WORTH:
        return kernel, None
    loops = [place for place, stage in enumerate(kernel.stages) if stage.loop]
    for one, other in pairwise(loops):
        pair = matched(kernel, one, other)
        if pair is None or not kernel.col_count > WORTH:  # whatever the sizes are: no row is empty
            continue
        put = next((i for i in pair.second.body if isinstance(i, Store)), None)
        return (kernel, pair) if put is None else _with_staged_powers(kernel, pair, put)
    return kernel, None


def matched(kernel: Kernel, one: int, other: int) -> Online | None:
    """The loops at two places of a kernel, if they find a maximum and sum the powers below it and nothing else."""
    first, between, second = kernel.stages[one], kernel.stages[one + 1 : other], kernel.stages[other]
    peaks, totals = _effects(first.body), _effects(second.body)
    sums = [i for i in totals if isinstance(i, Reduce)]
    if len(peaks) != 1 or len(sums) != 1 or len(totals) > 2:
        return None
    (peak,), (total,) = peaks, sums
    if not isinstance(peak, Reduce) or peak.op != "max" or total.op != "sum":
        return None
    if any(not isinstance(i, Reduce) and (not isinstance(i, Store) or i.value != total.value) for i in totals):
        return None
    power = _maker(second.body, total.value, "exp")
    apart = power and _maker(second.body, power.args[0], "sub")
    if power is None or apart is None or value_dtypes(kernel)[total.value] is not torch.float32:
        return None
    value, reference = apart.args
    numbers = equal_values(kernel)
    if numbers[value] != numbers[peak.value] or not _stands_for(peak.out, reference, between):
        return None
    late = {peak.out, *(i.out for stage in between for i in stage.body if isinstance(i, Pure))}
    if any(late & set(operands(i)) for i in second.body if i is not apart) or value in late:
        return None
    return Online(first, second, peak, total, apart.out, reference)


def _effects(body: Iterable[Instruction]) -> list[Instruction]:
    return [i for i in body if not isinstance(i, Pure)]


def _maker(body: Iterable[Instruction], value: str, op: str) -> Compute | None:
    return next((i for i in body if isinstance(i, Compute) and i.out == value and i.op == op), None)


def _stands_for(peak: str, reference: str, between: Sequence[Stage]) -> bool:
    """Whether a distance from `reference` is one from the maximum, or from another number that is chosen instead."""
    chosen = (_maker(stage.body, reference, "where") for stage in between)
    return reference == peak or any(choice is not None and peak in choice.args[1:] for choice in chosen)


def _with_staged_powers(kernel: Kernel, pair: Online, put: Store) -> tuple[Kernel, Online | None]:
    """With a third loop that reads what the second stages; None if anything else may read that."""
    seen = [
        (place, i)
        for place, stage in enumerate(kernel.stages)
        for i in stage.body
        if isinstance(i, Load | Gather | Store | Scatter | Accumulate) and i.buffer == put.buffer
    ]
    if pair.reference != pair.peak.out or len(seen) < 2 or seen[0][1] is not put:
        return kernel, None
    (place, load), later = seen[1], seen[2:]
    third = kernel.stages[place]
    if not isinstance(load, Load) or not third.loop or third is pair.second:
        return kernel, None
    if not _covers(later[0][1], put) if later else kernel.buffer(put.buffer).role is not Role.SCRATCH:
        return kernel, None  # they would be left behind
    raw = replace(load, out=f"{load.out}.raw")
    good = Compute(load.out, "mul", (raw.out, FACTOR), torch.float32)
    third = Stage(True, tuple(each for i in third.body for each in ((raw, good) if i is load else (i,))))
    nothing = Stage(False, (Const(FACTOR, 1.0, torch.float32),))  # the loops set its value
    stages = (*kernel.stages[:place], nothing, third, *kernel.stages[place + 1 :])
    return replace(kernel, stages=stages), replace(pair, third=third)


def _covers(instruction: Instruction, put: Store) -> bool:
    return isinstance(instruction, Store) and instruction.index == put.index
