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

from smelt.base.fast_dataclass import dataclass
from smelt.ir.check_kernel import operands, result, value_dtypes
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
from smelt.symbolic.symsize import hint


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


def dense(axes: Sequence[Axis], names: Iterable[str] | None = None) -> Index:
    """Where a point of `axes` is in an array of them all, or of those named."""
    wanted = None if names is None else set(names)
    terms: list[tuple[str, Size]] = []
    stride: Size = 1
    for axis in reversed(axes):
        if wanted is None or axis.name in wanted:
            terms.append((axis.name, stride))
            stride = stride * axis.size
    return Index(tuple(reversed(terms)))


def with_buffers(kernel: Kernel, stages: Sequence[Stage], extra: Iterable[Buffer], name: str) -> Kernel:
    """A kernel of other stages, with the buffers they touch."""
    touched = {i.buffer for stage in stages for i in stage.body if isinstance(i, Access)}
    written = {i.buffer for stage in stages for i in stage.body if isinstance(i, Store | Scatter)}
    known = {buffer.name: buffer for buffer in (*kernel.buffers, *extra)}
    buffers = []
    for each in known.values():
        if each.name in touched:
            reads_only = each.role is not Role.SCRATCH and each.name not in written
            buffers.append(replace(each, role=Role.INPUT) if reads_only else each)
    return replace(kernel, name=name, buffers=tuple(buffers), stages=tuple(stages))


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
    if any(isinstance(i, Reduce | Scan) for i in loops[0].body):
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
    if any(isinstance(i, Reduce | Scan | Scatter) for i in kernel.instructions()):
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
    order = rows + cols
    stages = (
        Stage(True, tuple(in_order(i, order) for i in body)),
        Stage(False, tuple(in_order(i, order) for i in after)),
    )
    return replace(kernel, rows=rows, cols=cols, stages=stages)


def _stored(kernel: Kernel, fold: Accumulate, out: str) -> list[Instruction]:
    """The end of a reduction: rounds once, if its buffer is narrower."""
    want, have = kernel.buffer(fold.buffer).dtype, value_dtypes(kernel)[fold.value]
    if want is have:
        return [Store(fold.buffer, fold.index, out)]
    return [Cast(f"{out}.rounded", out, want), Store(fold.buffer, fold.index, f"{out}.rounded")]


def in_order(instruction: Instruction, axes: Sequence[Axis]) -> Instruction:
    """Its index with terms in the order of `axes`."""
    if not isinstance(instruction, Access | Position):
        return instruction
    index = instruction.index
    terms = tuple((axis.name, index.stride(axis.name)) for axis in axes if axis.name in index.axes)
    return replace(instruction, index=Index(terms, index.offset))


def staged_in_memory(kernel: Kernel) -> list[Kernel]:
    """Store each operand of a reduction over rows in the workspace, where a separate kernel reduces it."""
    dtypes = value_dtypes(kernel)
    stages: list[Stage] = []
    extra: list[Buffer] = []
    more: list[Kernel] = []
    for stage in kernel.stages:
        body: list[Instruction] = []
        for instruction in stage.body:
            if not isinstance(instruction, Accumulate):
                body.append(instruction)
                continue
            axes = kernel.rows + (kernel.cols if stage.loop else ())
            dtype = dtypes[instruction.value]
            staged = Buffer(f"{instruction.buffer}.staged", dtype, product(axis.size for axis in axes), Role.OUTPUT)
            extra.append(staged)
            body.append(Store(staged.name, dense(axes), instruction.value))
            more.append(_fold_of(kernel, instruction, staged, axes))
        stages.append(Stage(stage.loop, tuple(body)))
    return [with_buffers(kernel, stages, extra, kernel.name), *more]


def _fold_of(kernel: Kernel, fold: Accumulate, staged: Buffer, axes: Sequence[Axis]) -> Kernel:
    kept = fold.index.axes
    rows = tuple(axis for axis in axes if axis.name in kept)
    cols = tuple(axis for axis in axes if axis.name not in kept)
    value, out = f"{staged.name}.value", f"{staged.name}.fold"
    where = in_order(Load(value, staged.name, dense(axes)), rows + cols)
    loop = Stage(True, (where, Reduce(out, fold.op, value)))
    want = kernel.buffer(fold.buffer)
    after: list[Instruction] = [Store(fold.buffer, fold.index, out)]
    if want.dtype is not staged.dtype:
        after = [Cast(f"{out}.rounded", out, want.dtype), Store(fold.buffer, fold.index, f"{out}.rounded")]
    stages = (loop, Stage(False, tuple(in_order(i, rows) for i in after)))
    buffers = (replace(staged, role=Role.INPUT), want)
    return replace(kernel, name=f"{kernel.name}.{fold.buffer}", rows=rows, cols=cols, buffers=buffers, stages=stages)


# Long rows, shared by many blocks.


@dataclass(slots=True)
class _Split:
    """A kernel being written as one kernel for each of its loops."""

    kernel: Kernel
    axis: Axis  # the col axis that is split
    parts: Size
    chunk: Size
    kernels: list[PhaseKernel] = field(default_factory=list)
    extra: list[Buffer] = field(default_factory=list)
    row_code: list[Instruction] = field(default_factory=list)  # what every later kernel computes again, once a row

    @property
    def part(self) -> str:
        return f"{self.axis.name}.part"


def split_rows(kernel: Kernel, parts: Size) -> list[PhaseKernel] | None:
    """A kernel for each loop, in which blocks share the rows' longest axis, each with a kernel that reduces the
    partials of the blocks; None if that is impossible. Expects no reductions over rows."""
    once = [i for stage in kernel.stages if not stage.loop for i in stage.body]
    rewritten = {i.buffer for i in once if isinstance(i, Store)}
    if any(isinstance(i, Load) and i.buffer in rewritten for i in kernel.instructions()):
        return None  # later kernels would find what earlier ones stored
    if any(isinstance(i, Scan | Scatter) for i in kernel.instructions()):
        return None
    axis = max(kernel.cols, key=lambda each: hint(each.size))
    chunk = -(-axis.size // parts)
    split = _Split(scratch_in_memory(kernel), axis, -(-axis.size // chunk), chunk)
    stages = list(split.kernel.stages)
    before = list(takewhile(lambda stage: not stage.loop, stages))
    split.row_code += [i for stage in before for i in stage.body if not isinstance(i, Store)]
    if any(isinstance(i, Store) for stage in before for i in stage.body):
        only_rows = with_buffers(split.kernel, before, (), f"{kernel.name}.rows")
        split.kernels.append(PhaseKernel(replace(only_rows, cols=())))
    for place, stage in enumerate(stages):
        if stage.loop:
            after: list[Instruction] = []
            for later in stages[place + 1 :]:
                if later.loop:
                    break
                after += later.body
            _add_loop(split, stage, after)
    return split.kernels


def scratch_in_memory(kernel: Kernel) -> Kernel:
    """Scratch buffers as outputs, a part of them for each row."""
    scratch = {buffer.name: buffer for buffer in kernel.buffers if buffer.role is Role.SCRATCH}
    if not scratch:
        return kernel

    def moved(instruction: Instruction) -> Instruction:
        if not isinstance(instruction, Load | Store) or instruction.buffer not in scratch:
            return instruction
        size = scratch[instruction.buffer].size
        rows = tuple((name, stride * size) for name, stride in dense(kernel.rows).terms)
        return replace(instruction, index=Index(rows + instruction.index.terms, instruction.index.offset))

    rows = kernel.row_count
    buffers = tuple(
        replace(each, role=Role.OUTPUT, size=each.size * rows) if each.name in scratch else each
        for each in kernel.buffers
    )
    stages = tuple(Stage(stage.loop, tuple(map(moved, stage.body))) for stage in kernel.stages)
    return replace(kernel, buffers=buffers, stages=stages)


def _add_loop(split: _Split, stage: Stage, after: list[Instruction]) -> None:
    kernel, axis = split.kernel, split.axis
    dtypes = value_dtypes(kernel)
    rows = (*kernel.rows, Axis(split.part, split.parts))
    cols = tuple(Axis(axis.name, split.chunk) if each is axis else each for each in kernel.cols)
    folds = [i for i in stage.body if isinstance(i, Reduce)]
    partials = {
        i.out: Buffer(f"{i.out}.partial", dtypes[i.out], product(each.size for each in rows), Role.OUTPUT)
        for i in folds
    }
    wholes = {i.out: Buffer(f"{i.out}.whole", dtypes[i.out], kernel.row_count, Role.OUTPUT) for i in folds}
    order = rows + cols
    loop = Stage(True, tuple(in_order(_in_parts(i, split), order) for i in stage.body))
    stages = [loop]
    needed = _needed(split.row_code, stages)
    if needed:
        stages.insert(0, Stage(False, tuple(needed)))
    if folds:
        stages.append(Stage(False, tuple(Store(partials[i.out].name, dense(rows), i.out) for i in folds)))
    extra = [*split.extra, *partials.values(), *wholes.values()]
    part = replace(kernel, rows=rows, cols=cols)
    name = f"{kernel.name}.{len(split.kernels)}"
    bound = Bound(split.part, axis.name, split.chunk, axis.size)
    split.kernels.append(PhaseKernel(with_buffers(part, stages, extra, name), (bound,)))
    pure = [i for i in after if not isinstance(i, Store)]
    if folds or len(pure) < len(after):
        whole = replace(kernel, cols=(Axis(split.part, split.parts),))
        _add_finish(split, whole, folds, (partials, wholes), after, rows)
    split.extra += wholes.values()
    split.row_code += [Load(i.out, wholes[i.out].name, dense(kernel.rows)) for i in folds]
    split.row_code += pure


def _add_finish(
    split: _Split,
    whole: Kernel,
    folds: Sequence[Reduce],
    kept: tuple[dict[str, Buffer], dict[str, Buffer]],
    after: list[Instruction],
    rows: Sequence[Axis],
) -> None:
    """A kernel that reduces the parts of each row, and computes the row values that follow."""
    partials, wholes = kept
    body: list[Instruction] = []
    for fold in folds:
        value = f"{fold.out}.value"
        body += [Load(value, partials[fold.out].name, dense(rows)), Reduce(fold.out, fold.op, value)]
    stores = [Store(wholes[fold.out].name, dense(whole.rows), fold.out) for fold in folds]
    stages = [Stage(True, tuple(body)), Stage(False, (*stores, *after))]
    needed = _needed(split.row_code, stages)
    if needed:
        stages.insert(0, Stage(False, tuple(needed)))
    extra = [*split.extra, *partials.values(), *wholes.values()]
    name = f"{whole.name}.{len(split.kernels)}"
    split.kernels.append(PhaseKernel(with_buffers(whole, stages, extra, name)))


def _needed(code: Sequence[Instruction], stages: Sequence[Stage]) -> list[Instruction]:
    """Those instructions whose values the stages use, and what these need."""
    wanted = {name for stage in stages for i in stage.body for name in operands(i)}
    needed: list[Instruction] = []
    for instruction in reversed(code):
        if result(instruction) in wanted:
            wanted.update(operands(instruction))
            needed.insert(0, instruction)
    return needed


def _in_parts(instruction: Instruction, split: _Split) -> Instruction:
    """With the split axis as `chunk * part + inner`."""
    if not isinstance(instruction, Access | Position):
        return instruction
    index = instruction.index
    stride = index.stride(split.axis.name)
    if isinstance(stride, int) and not stride:
        return instruction
    return replace(instruction, index=Index((*index.terms, (split.part, stride * split.chunk)), index.offset))
