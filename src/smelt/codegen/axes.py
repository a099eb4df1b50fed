"""Rewrites a kernel's axes without changing its meaning, for the schedules of every target.

    rows(b:8, h:4, one:1) cols(i:16, j:64)   all accesses contiguous
    → without_unit_axes   rows(b:8, h:4) cols(i:16, j:64)
    → flattened           rows() cols(j:32768)
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from smelt.ir.kernel import (
    Access,
    Accumulate,
    Axis,
    Cast,
    Compute,
    Const,
    Contract,
    Element,
    Factor,
    Gather,
    Index,
    Instruction,
    Kernel,
    Load,
    Position,
    Quantized,
    Reduce,
    Role,
    Scan,
    Scatter,
    Stage,
    Store,
    WeightedSum,
    indices_of,
)
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import hint, known_at_least, known_equal

# Instructions that only compute a value: where their operands are the same, so is it.
Pure = Const | Load | Gather | Position | Compute | Cast


def scanned(kernel: Kernel) -> frozenset[str]:
    """The axes that something is reduced along."""
    return frozenset(i.axis for i in kernel.instructions() if isinstance(i, Scan))


def reduce_rows_first(kernel: Kernel) -> Kernel:
    """`accumulate sum b[0] = v` in a loop → `t = reduce sum v`, then `accumulate sum b[0] = t` once a row."""
    cols = {axis.name for axis in kernel.cols}
    stages: list[Stage] = []
    for stage in kernel.stages:
        body: list[Instruction] = []
        after: list[Instruction] = []
        for instruction in stage.body:
            if stage.loop and isinstance(instruction, Accumulate) and not instruction.index.axes & cols:
                out = f"{instruction.buffer}.{instruction.value}"
                body.append(Reduce(out, instruction.op, instruction.value))
                after.append(replace(instruction, value=out))
            else:
                body.append(instruction)
        stages.append(Stage(stage.loop, tuple(body)))
        if after:
            stages.append(Stage(False, tuple(after)))
    return replace(kernel, stages=tuple(stages))


def rewritten(kernel: Kernel, change: Callable[[Instruction], Iterable[Instruction]]) -> Kernel:
    """With other instructions in the place of each."""
    stages = [Stage(stage.loop, tuple(new for old in stage.body for new in change(old))) for stage in kernel.stages]
    return replace(kernel, stages=tuple(stages))


def reindexed(instruction: Instruction, change: Callable[[Index], Index]) -> Instruction:
    """An instruction with every index that it has changed."""
    if isinstance(instruction, Access | Position):
        return replace(instruction, index=change(instruction.index))
    if isinstance(instruction, Contract):
        left, right = (_factor_reindexed(each, change) for each in instruction.factors)
        return replace(instruction, left=left, right=right)
    if isinstance(instruction, WeightedSum):
        factor = _factor_reindexed(instruction.factor, change)
        return replace(instruction, index=change(instruction.index), factor=factor)
    return instruction


def _factor_reindexed(factor: Factor, change: Callable[[Index], Index]) -> Factor:
    bounds = tuple((change(position), extent) for position, extent in factor.bounds)
    return Factor(factor.buffer, change(factor.index), bounds, quantized_reindexed(factor.quantized, change))


def quantized_reindexed(quantized: Quantized | None, change: Callable[[Index], Index]) -> Quantized | None:
    """With every index changed."""
    if quantized is None:
        return None

    def moved(element: Element | None) -> Element | None:
        return None if element is None else Element(element.buffer, change(element.index))

    scale = Element(quantized.scale.buffer, change(quantized.scale.index))
    return replace(quantized, scale=scale, zero=moved(quantized.zero), low=moved(quantized.low))


def renamed(instruction: Instruction, out: Callable[[str], str], operand: Callable[[str], str]) -> Instruction:
    """An instruction with other names for what it defines, and for the values that it uses."""
    rules: dict[str, Callable[[Any], Any]] = {
        "out": out,
        "value": operand,
        "args": lambda args: tuple(map(operand, args)),
        "by": lambda by: tuple((operand(value), stride, extent) for value, stride, extent in by),
    }
    if isinstance(instruction, Const):
        return replace(instruction, out=out(instruction.out))
    changed = {name: rule(getattr(instruction, name)) for name, rule in rules.items() if hasattr(instruction, name)}
    return replace(instruction, **changed)


def strides_ascend(steps: Iterable[tuple[Size, Size]], apart: int) -> bool:
    """Whether the stride of each axis, given with its size, is longer by `apart` than all axes before it reach."""
    reach: Size = 0
    for stride, size in steps:
        if not known_at_least(stride, reach + apart):
            return False
        reach += stride * (size - 1)
    return True


def strides_keep_apart(steps: Iterable[tuple[Size, Size]]) -> bool:
    """Whether a position determines the index along each of these axes: each stride exceeds the combined reach of the
    smaller ones."""
    return strides_ascend(sorted(steps, key=lambda each: hint(each[0])), 1)


def without_axes(kernel: Kernel, gone: set[str], rows: Iterable[Axis], cols: Iterable[Axis]) -> Kernel:
    """`kernel` with new axes; index terms of those that are gone are dropped."""

    def fixed(index: Index) -> Index:
        return Index(tuple(term for term in index.terms if term[0] not in gone), index.offset)

    return replace(rewritten(kernel, lambda i: [reindexed(i, fixed)]), rows=tuple(rows), cols=tuple(cols))


def without_unit_axes(kernel: Kernel) -> Kernel:
    gone = {axis.name for axis in kernel.rows + kernel.cols if axis.size == 1} - scanned(kernel)
    rows = [axis for axis in kernel.rows if axis.name not in gone]
    cols = [axis for axis in kernel.cols if axis.name not in gone]
    return without_axes(kernel, gone, rows, cols) if gone else kernel


def forward_scans(kernel: Kernel) -> Kernel:
    """The same kernel without scans that run in reverse."""
    reversed_axes = {i.axis for i in kernel.instructions() if isinstance(i, Scan) and i.backwards}
    if not reversed_axes:
        return kernel
    sizes = {axis.name: axis.size for axis in kernel.cols}

    def reversed_index(index: Index) -> Index:
        terms = tuple((name, -step if name in reversed_axes else step) for name, step in index.terms)
        further = sum((step * (sizes[name] - 1) for name, step in index.terms if name in reversed_axes), index.offset)
        return Index(terms, further)

    def change(instruction: Instruction) -> list[Instruction]:
        if isinstance(instruction, Scan):
            return [replace(instruction, backwards=False)]
        return [reindexed(instruction, reversed_index)]

    return rewritten(kernel, change)


def dense_index(axes: Sequence[Axis]) -> Index:
    """Of an array that has an element for each point of the axes, the last one fastest."""
    terms: list[tuple[str, Size]] = []
    stride: Size = 1
    for axis in reversed(axes):
        terms.insert(0, (axis.name, stride))
        stride *= axis.size
    return Index(tuple(terms))


def indices(kernel: Kernel) -> list[Index]:
    return [index for instruction in kernel.instructions() for index in indices_of(instruction)]


def walked_as_one(outer: Axis, inner: Axis, walked_by: Iterable[Index]) -> bool:
    """Whether a step along one axis is as far as all of the next one, in every index."""
    steps = [(index.stride(outer.name), index.stride(inner.name) * inner.size) for index in walked_by]
    return all(known_equal(*each) for each in steps)


def merged_axes(axes: Sequence[Axis], walked_by: Sequence[Index], alone: frozenset[str] = frozenset()) -> list[Axis]:
    """Neighbours that every index walks as one axis become one, under the inner name; not those `alone`."""
    merged = list(axes)
    for place in range(len(axes) - 2, -1, -1):
        outer, inner = merged[place : place + 2]
        if walked_as_one(outer, inner, walked_by) and not alone & {outer.name, inner.name}:
            merged[place : place + 2] = [Axis(inner.name, outer.size * inner.size)]
    return merged


def merged(kernel: Kernel, *, cols: bool) -> Kernel:
    """With neighbouring axes of rows, or of cols, merged."""
    before = kernel.cols if cols else kernel.rows
    axes = merged_axes(before, indices(kernel), scanned(kernel))
    if len(axes) == len(before):
        return kernel
    gone = {axis.name for axis in before} - {axis.name for axis in axes}
    return without_axes(kernel, gone, kernel.rows if cols else axes, axes if cols else kernel.cols)


_FOLDS = (Reduce, Scan, Accumulate, Scatter, Contract, WeightedSum)


def is_pointwise(kernel: Kernel) -> bool:
    """One loop, no reductions, no scratch: every point on its own, in any order."""
    return (
        len(kernel.stages) == 1
        and kernel.stages[0].loop
        and not any(isinstance(i, _FOLDS) for i in kernel.instructions())
        and not any(buffer.role is Role.SCRATCH for buffer in kernel.buffers)
        and all(axis.size > 0 for axis in kernel.rows + kernel.cols)
    )


def flattened(kernel: Kernel) -> Kernel:
    """A pointwise kernel with its axes in the order memory is written, merged, the last of them as its cols."""
    store = next((i for i in kernel.instructions() if isinstance(i, Store)), None)
    axes = list(kernel.rows + kernel.cols)
    if store is not None:
        axes.sort(key=lambda axis: -abs(hint(store.index.stride(axis.name))))
    kernel = merged(replace(kernel, rows=tuple(axes), cols=()), cols=False)
    return replace(kernel, rows=kernel.rows[:-1], cols=kernel.rows[-1:])


def ordered(kernel: Kernel) -> Kernel:
    """Cols with the axis most accesses walk by single steps last; neighbours merged."""
    kernel = merged(merged(kernel, cols=False), cols=True)
    if len(kernel.cols) < 2 or any(isinstance(i, Scatter) for i in kernel.instructions()):
        return kernel  # points that write to one place do so in the order given

    def steps(axis: Axis) -> int:
        return sum(index.stride(axis.name) in (1, -1) for index in indices(kernel)) if axis.size > 1 else -1

    last = max(reversed(kernel.cols), key=steps)
    rest = tuple(axis for axis in kernel.cols if axis is not last)
    return replace(kernel, cols=(*rest, last))
