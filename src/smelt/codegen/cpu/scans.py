"""Scans: running reductions along an axis, whose loop runs in order and carries the running value.

    cumsum along the last of [64, 1000]      →  each row in vectors, added up lane by lane in f64
    cumsum along the first of [1000, 256]    →  a line of 256 sums in f64, to which each line of the input is added;
                                                in blocks of columns, which threads share out

For a reverse scan every index counts the axis from the other end; the loop is the same.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import dropwhile

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.axes import dense_index, reindexed, rewritten, scanned
from smelt.codegen.loops import reductions
from smelt.codegen.loops.builder import Builder
from smelt.ir.kernel import Accumulate, Axis, Index, Kernel, Reduce, Role, Running, Scan, neutral
from smelt.ir.loops import Value
from smelt.symbolic.shapes import Size, product
from smelt.symbolic.symsize import is_symsize

_BLOCK = (64, 512)  # columns of a block: enough for vectors, few enough for their sums to stay in the nearest cache
_ROWS = 16  # with as many rows, threads have enough to share out


def scans(kernel: Kernel) -> list[Scan]:
    return [instruction for instruction in kernel.instructions() if isinstance(instruction, Scan)]


@dataclass(frozen=True, slots=True)
class State:
    """The private array of running values of one scan: an element for each point of the axes inside its own."""

    name: str
    dtype: torch.dtype
    index: Index
    size: Size

    @classmethod
    def of(cls, scan: Scan, dtype: torch.dtype, cols: tuple[Axis, ...]) -> "State":
        inside = list(dropwhile(lambda axis: axis.name != scan.axis, cols))[1:]
        size = product(axis.size for axis in inside)
        return cls(f"{scan.out}.scan", reductions.fold_dtype(scan.op, dtype), dense_index(inside), size)


# Rewrites that keep the kernel's meaning.


def in_blocks(kernel: Kernel) -> Kernel:
    """The innermost axis cut into blocks, which are rows of their own, where there are few rows otherwise."""
    if not scans(kernel) or kernel.cols[-1].name in scanned(kernel) or kernel.row_count >= _ROWS:
        return kernel
    if any(isinstance(i, Reduce | Accumulate) for i in kernel.instructions()):
        return kernel
    if any(buffer.role is Role.SCRATCH for buffer in kernel.buffers) or not all(stage.loop for stage in kernel.stages):
        return kernel
    inner = kernel.cols[-1]
    if is_symsize(inner.size):
        return kernel
    sides = [side for side in range(_BLOCK[0], min(_BLOCK[1], inner.size // 2) + 1) if inner.size % side == 0]
    if not sides:
        return kernel
    block = Axis(f"{inner.name}.block", inner.size // max(sides))

    def cut(index: Index) -> Index:
        if inner.name not in index.axes:
            return index
        return Index(((block.name, index.stride(inner.name) * max(sides)), *index.terms), index.offset)

    cols = (*kernel.cols[:-1], Axis(inner.name, max(sides)))
    cut_kernel = rewritten(kernel, lambda i: [reindexed(i, cut)])
    return replace(cut_kernel, rows=(*kernel.rows, block), cols=cols)


# Code.


def run_lanes(
    b: Builder, op: Running, dtype: torch.dtype, before: Value, value: Value
) -> tuple[Value, Value]:
    """Along the lanes: the running value of each lane, and that of the last.

    Each lane is combined with the one before it, then with the two before that, and so on; what comes before all is
    waited for only at the end.
    """
    if op == "logaddexp":
        return _run_logs(b, before, value)
    first = -0.0 if op == "sum" and dtype.is_floating_point else neutral(op, dtype)  # nothing is added to -0.0
    for step in _steps(value):
        value = reductions.run_on(b, op, dtype, _behind(b, value, step, first), value)
    after = reductions.run_on(b, op, dtype, before, b.extract(value, value.lanes - 1))
    return reductions.run_on(b, op, dtype, b.splat(before, value.lanes), value), after


def _steps(value: Value) -> Iterator[int]:
    step = 1
    while step < value.lanes:
        yield step
        step *= 2


def _behind(b: Builder, value: Value, step: int, first: float | bool) -> Value:
    """Every lane moved on by `step`, with `first` in those before."""
    nothing = b.const(value.kind, first, value.lanes)
    order = [lane - step if lane >= step else value.lanes for lane in range(value.lanes)]
    return b.permute(value, order, nothing)


def _run_logs(b: Builder, before: Value, value: Value) -> tuple[Value, Value]:
    """Log-sum-exps, as pairs until the end: the maximum, and the sum of the other exponentials relative to it."""
    most, rest = value, b.const(value.kind, 0.0, value.lanes)
    for step in _steps(value):
        most, rest = reductions.merge(b, most, rest, _behind(b, most, step, -math.inf), _behind(b, rest, step, -1.0))
    most, rest = reductions.merge(b, most, rest, b.splat(before, value.lanes), b.const(value.kind, 0.0, value.lanes))
    logs = reductions.log_of_sum(b, most, rest)
    return logs, b.extract(logs, value.lanes - 1)
