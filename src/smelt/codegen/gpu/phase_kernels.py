"""Splits a kernel that one grid cannot run into several: reductions over rows, and few long rows that many blocks
share.

    rows(i:4096) cols(j:1024)   accumulate sum db[j] = v
    → transposed   rows(j:1024) cols(i:4096)          reduce sum v, then store db[j]
    → split    rows(j:1024, i.part:32) cols(i:128)   reduce sum v, then store partial[32*j + i.part]
               rows(j:1024) cols(i.part:32)          reduce sum partial, then store db[j]

The result is in the kernel form. Kernels pass values to the next one in buffers of the workspace. The order of
additions never differs from run to run.
"""

from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from itertools import takewhile

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.axes import dense_index, reindexed, rewritten
from smelt.codegen.gpu.kernel_slices import has, in_order, leading_to, with_axes, with_buffers
from smelt.ir.check_kernel import operands, value_dtypes
from smelt.ir.kernel import (
    Access,
    Accumulate,
    Axis,
    Buffer,
    Cast,
    Index,
    Instruction,
    Kernel,
    Load,
    Position,
    Reduce,
    Role,
    Scan,
    Scatter,
    Stage,
    Store,
)
from smelt.symbolic.shapes import Size, product
from smelt.symbolic.symsize import hint, known_equal


@dataclass(frozen=True, slots=True)
class Bound:
    """Of a split axis: points with `chunk * part + inner >= size` are none."""

    part: str
    inner: str
    chunk: Size
    size: Size


@dataclass(frozen=True, slots=True)
class PhaseKernel:
    """A kernel that one grid runs. Buffers the original does not have are in the workspace."""

    kernel: Kernel
    bounds: tuple[Bound, ...] = ()


@dataclass(frozen=True, slots=True)
class AxisParts:
    """An axis in parts, which are an axis of their own."""

    axis: Axis
    parts: Axis
    chunk: Size  # points of a part

    @classmethod
    def of(cls, axis: Axis, count: Size, multiple: int = 1) -> "AxisParts":
        """At most `count` parts, each of a `multiple` of points."""
        chunk = -(-axis.size // count)
        chunk = -(-chunk // multiple) * multiple if multiple > 1 else chunk
        return cls(axis, Axis(f"{axis.name}.part", -(-axis.size // chunk)), chunk)

    @property
    def inner(self) -> Axis:
        return Axis(self.axis.name, self.chunk)

    @property
    def bound(self) -> Bound:
        return Bound(self.parts.name, self.axis.name, self.chunk, self.axis.size)

    def change(self, instruction: Instruction, order: Sequence[Axis]) -> Instruction:
        """With the axis as `chunk * part + inner`, and terms in this order."""

        def split(index: Index) -> Index:
            stride = index.stride(self.axis.name)
            if known_equal(stride, 0):
                return index
            return Index((*index.terms, (self.parts.name, stride * self.chunk)), index.offset)

        return in_order(reindexed(instruction, split), order)


def in_one_loop(kernel: Kernel) -> Kernel:
    """Compute scalars before the only loop of a kernel at every point instead: that is cheaper than sharing a row
    between threads. Unchanged if that would change the result."""
    loops = [stage for stage in kernel.stages if stage.loop]
    once = [i for stage in kernel.stages if not stage.loop for i in stage.body]
    if len(loops) != 1 or not once or kernel.stages[-1] is not loops[0]:
        return kernel
    if any(isinstance(i, Access | Position) and i.index.axes for i in once):
        return kernel  # they differ from row to row
    if any(isinstance(i, Store | Accumulate | Scatter) for i in once):
        return kernel
    if has(kernel, Reduce, Scan):
        return kernel
    written = {i.buffer for i in loops[0].body if isinstance(i, Store | Accumulate | Scatter)}
    if any(isinstance(i, Access) and i.buffer in written for i in once):
        return kernel  # some points would find what others stored
    return replace(kernel, stages=(Stage(True, (*once, *loops[0].body)),))


# Reductions over rows.


def transposed(kernel: Kernel) -> Kernel | None:
    """Rows for the axes that reductions keep, cols for the reduced ones; None if they differ or rows are whole."""
    folds = [i for i in kernel.instructions() if isinstance(i, Accumulate)]
    kept = folds[0].index.axes
    loops = [stage for stage in kernel.stages if stage.loop]
    if any(fold.index.axes != kept for fold in folds) or len(loops) > 1:
        return None
    if any(buffer.role is Role.SCRATCH for buffer in kernel.buffers):
        return None
    if has(kernel, Reduce, Scan, Scatter):
        return None  # rows cannot be split
    once = [i for stage in kernel.stages if not stage.loop for i in stage.body]
    if loops and any(isinstance(i, Store | Accumulate) for i in once):
        return None
    axes = kernel.rows + (kernel.cols if loops else ())
    rows = tuple(axis for axis in axes if axis.name in kept)
    cols = tuple(axis for axis in axes if axis.name not in kept)
    body: list[Instruction] = []
    after: list[Instruction] = []
    for instruction in kernel.instructions():
        if not isinstance(instruction, Accumulate):
            body.append(instruction)
            continue
        out = f"{instruction.buffer}.{instruction.value}"
        body.append(Reduce(out, instruction.op, instruction.value))
        after += _stored(kernel, instruction, out)
    return with_axes(replace(kernel, stages=(Stage(True, tuple(body)), Stage(False, tuple(after)))), rows, cols)


def _stored(kernel: Kernel, fold: Accumulate, out: str) -> list[Instruction]:
    """The end of a reduction: rounds once, if its buffer is narrower."""
    want, have = kernel.buffer(fold.buffer).dtype, value_dtypes(kernel)[fold.value]
    if want is have:
        return [Store(fold.buffer, fold.index, out)]
    return [Cast(f"{out}.rounded", out, want), Store(fold.buffer, fold.index, f"{out}.rounded")]


def staged_in_memory(kernel: Kernel) -> list[Kernel]:
    """Store each operand of a reduction over rows in the workspace, where a separate kernel reduces it."""
    dtypes = value_dtypes(kernel)
    extra: list[Buffer] = []
    more: list[Kernel] = []
    of_loops = [i for stage in kernel.stages if stage.loop for i in stage.body]

    def change(instruction: Instruction) -> list[Instruction]:
        if not isinstance(instruction, Accumulate):
            return [instruction]
        axes = kernel.rows + (kernel.cols if any(i is instruction for i in of_loops) else ())
        size, dtype = product(axis.size for axis in axes), dtypes[instruction.value]
        extra.append(Buffer(f"{instruction.buffer}.staged", dtype, size, Role.OUTPUT))
        more.append(reducing(kernel, [(instruction, extra[-1])], axes, instruction.buffer))
        return [Store(extra[-1].name, dense_index(axes), instruction.value)]

    changed = rewritten(kernel, change)
    return [with_buffers(changed, changed.stages, extra, kernel.name), *more]


def reducing(
    kernel: Kernel, folds: Sequence[tuple[Accumulate, Buffer]], axes: Sequence[Axis], name: str, *, wide: bool = False
) -> Kernel:
    """A kernel that reduces operands, which are dense along `axes` in a buffer for each of `folds`. These keep the same
    axes. `wide`: sums of float32 are added up in float64."""
    kept = folds[0][0].index.axes
    rows, cols = [axis for axis in axes if axis.name in kept], [axis for axis in axes if axis.name not in kept]
    body: list[Instruction] = []
    after: list[Instruction] = []
    for fold, buffer in folds:
        value, out = f"{buffer.name}.value", f"{buffer.name}.fold"
        body.append(Load(value, buffer.name, dense_index(axes)))
        if wide and fold.op == "sum" and buffer.dtype is torch.float32:
            body += [Cast(f"{value}.wide", value, torch.float64), Reduce(f"{out}.wide", fold.op, f"{value}.wide")]
            after.append(Cast(out, f"{out}.wide", torch.float32))
        else:
            body.append(Reduce(out, fold.op, value))
        after += _stored(kernel, fold, out)
    stages = (Stage(True, tuple(body)), Stage(False, tuple(after)))
    inputs = [replace(buffer, role=Role.INPUT) for _, buffer in folds]
    buffers = [*inputs, *(kernel.buffer(fold.buffer) for fold, _ in folds)]
    kernel = replace(kernel, name=f"{kernel.name}.{name}", buffers=tuple(buffers), stages=stages)
    return with_axes(kernel, rows, cols)


# Long rows, shared by many blocks.


@dataclass(slots=True)
class _Split:
    """A kernel being written as one kernel for each of its loops."""

    kernel: Kernel
    parts: AxisParts  # of the col axis that is split
    kernels: list[PhaseKernel] = field(default_factory=list)
    extra: list[Buffer] = field(default_factory=list)
    row_code: list[Instruction] = field(default_factory=list)  # what every later kernel computes again, once a row

    def add(self, of: Kernel, stages: Sequence[Stage], more: Iterable[Buffer], bounds: tuple[Bound, ...] = ()) -> None:
        """A kernel with the axes `of` one, and first the row values that its stages use."""
        needed = leading_to(self.row_code, (name for stage in stages for i in stage.body for name in operands(i)))
        stages = [Stage(False, tuple(needed)), *stages] if needed else stages
        kernel = with_buffers(of, stages, (*self.extra, *more), f"{of.name}.{len(self.kernels)}")
        self.kernels.append(PhaseKernel(kernel, bounds))


def split_rows(kernel: Kernel, parts: Size) -> list[PhaseKernel] | None:
    """A kernel for each loop, in which blocks share the rows' longest axis, each with a kernel that reduces the
    partials of the blocks; None if that is impossible. Expects no reductions over rows."""
    once = [i for stage in kernel.stages if not stage.loop for i in stage.body]
    rewritten = {i.buffer for i in once if isinstance(i, Store)}
    if any(isinstance(i, Load) and i.buffer in rewritten for i in kernel.instructions()):
        return None  # later kernels would find what earlier ones stored
    if has(kernel, Scan, Scatter):
        return None
    axis = max(kernel.cols, key=lambda each: hint(each.size))
    split = _Split(scratch_in_memory(kernel), AxisParts.of(axis, parts))
    stages = list(split.kernel.stages)
    before = list(takewhile(lambda stage: not stage.loop, stages))
    split.row_code += [i for stage in before for i in stage.body if not isinstance(i, Store)]
    if any(isinstance(i, Store) for stage in before for i in stage.body):
        only_rows = with_buffers(split.kernel, before, (), f"{kernel.name}.rows")
        split.kernels.append(PhaseKernel(replace(only_rows, cols=())))
    for place, stage in enumerate(stages):
        if stage.loop:
            after = takewhile(lambda later: not later.loop, stages[place + 1 :])
            _add_loop(split, stage, [i for later in after for i in later.body])
    return split.kernels


def scratch_in_memory(kernel: Kernel) -> Kernel:
    """Scratch buffers as outputs, a part of them for each row."""
    scratch = {buffer.name: buffer for buffer in kernel.buffers if buffer.role is Role.SCRATCH}
    if not scratch:
        return kernel

    def moved(instruction: Instruction) -> list[Instruction]:
        if not isinstance(instruction, Load | Store) or instruction.buffer not in scratch:
            return [instruction]
        size = scratch[instruction.buffer].size
        rows = tuple((name, stride * size) for name, stride in dense_index(kernel.rows).terms)
        return [replace(instruction, index=Index(rows + instruction.index.terms, instruction.index.offset))]

    rows = kernel.row_count
    buffers = tuple(
        replace(each, role=Role.OUTPUT, size=each.size * rows) if each.name in scratch else each
        for each in kernel.buffers
    )
    return replace(rewritten(kernel, moved), buffers=buffers)


def _add_loop(split: _Split, stage: Stage, after: list[Instruction]) -> None:
    """A kernel of parts of rows, then one that reduces the parts and computes the row values that follow."""
    kernel, parts, dtypes = split.kernel, split.parts, value_dtypes(split.kernel)
    rows = (*kernel.rows, parts.parts)
    cols = tuple(parts.inner if each is parts.axis else each for each in kernel.cols)
    folds = [i for i in stage.body if isinstance(i, Reduce)]
    count = product(each.size for each in rows)
    partials = [Buffer(f"{i.out}.partial", dtypes[i.out], count, Role.OUTPUT) for i in folds]
    wholes = [Buffer(f"{i.out}.whole", dtypes[i.out], kernel.row_count, Role.OUTPUT) for i in folds]
    stages = [Stage(True, tuple(parts.change(i, rows + cols) for i in stage.body))]
    if folds:
        leave = [Store(partial.name, dense_index(rows), i.out) for i, partial in zip(folds, partials, strict=True)]
        stages.append(Stage(False, tuple(leave)))
    split.add(replace(kernel, rows=rows, cols=cols), stages, (*partials, *wholes), (parts.bound,))
    pure = [i for i in after if not isinstance(i, Store)]
    if folds or len(pure) < len(after):
        body: list[Instruction] = []
        for fold, partial in zip(folds, partials, strict=True):
            value = f"{fold.out}.value"
            body += [Load(value, partial.name, dense_index(rows)), Reduce(fold.out, fold.op, value)]
        stores = [Store(whole.name, dense_index(kernel.rows), i.out) for i, whole in zip(folds, wholes, strict=True)]
        stages = [Stage(True, tuple(body)), Stage(False, (*stores, *after))]
        split.add(replace(kernel, cols=(parts.parts,)), stages, (*partials, *wholes))
    split.extra += wholes
    at = dense_index(kernel.rows)
    split.row_code += [Load(i.out, whole.name, at) for i, whole in zip(folds, wholes, strict=True)]
    split.row_code += pure
