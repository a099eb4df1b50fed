"""Reductions over rows in the pass that computes their operands: every block goes through many rows with its own
partials.

    rows(i:8192) cols(j:1024)   …, s = reduce sum …, store dx, accumulate sum dw[j] = v        a norm's backward
    → rows(i:8192) cols(j:1024)    264 blocks, each through every 264th row; then each leaves dw.parts[1024*part + j]
      rows(j:1024) cols(part:264)  reduce sum dw.parts, then store dw[j]

Rows that a reduction keeps form groups: a block has rows of one group.
"""

from dataclasses import replace

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.axes import dense_index, rewritten
from smelt.codegen.gpu.kernel_slices import has, updated_in_place, with_axes
from smelt.codegen.gpu.phase_kernels import reducing
from smelt.ir.check_kernel import value_dtypes
from smelt.ir.kernel import (
    Accumulate,
    Axis,
    Buffer,
    Index,
    Instruction,
    Kernel,
    Load,
    Role,
    Scan,
    Scatter,
    Store,
)
from smelt.symbolic.shapes import Size, product

_PART = "part"


@dataclass(frozen=True, slots=True)
class OnePass:
    """A kernel that stores partials, each in a buffer with room for one part; and the original kernel."""

    original: Kernel
    kernel: Kernel
    groups: tuple[Axis, ...]

    @property
    def folds(self) -> tuple[Accumulate, ...]:
        return tuple(i for i in self.kernel.instructions() if isinstance(i, Accumulate))


def in_one_pass(kernel: Kernel) -> OnePass | None:
    """The kernel if it has reductions over rows and its blocks may go through rows in sequence; else None."""
    if not has(kernel, Accumulate) or has(kernel, Scan, Scatter):
        return None
    kept = {name for i in kernel.instructions() if isinstance(i, Accumulate) for name in i.index.axes}
    groups = tuple(axis for axis in kernel.rows if axis.name in kept)
    folded = tuple(axis for axis in kernel.rows if axis.name not in kept)
    if not folded:
        return None
    dtypes = value_dtypes(kernel)
    partials: list[Buffer] = []

    def change(instruction: Instruction) -> list[Instruction]:
        if not isinstance(instruction, Accumulate):
            return [instruction]
        axes = groups + (kernel.cols if _spans_cols(kernel, instruction) else ())
        size = product(axis.size for axis in axes)
        partials.append(Buffer(f"{instruction.buffer}.parts", dtypes[instruction.value], size, Role.OUTPUT))
        return [replace(instruction, buffer=partials[-1].name, index=dense_index(axes))]

    changed = with_axes(rewritten(kernel, change), groups + folded, kernel.cols)
    gone = {i.buffer for i in kernel.instructions() if isinstance(i, Accumulate)}
    buffers = (*(each for each in kernel.buffers if each.name not in gone), *partials)
    return OnePass(kernel, replace(changed, buffers=buffers), groups)


def _spans_cols(kernel: Kernel, fold: Accumulate) -> bool:
    return bool(fold.index.axes & {axis.name for axis in kernel.cols})


def with_room(kernel: Kernel, parts: Size) -> Kernel:
    """Enlarge the buffers of partials to hold all parts, one after the other."""
    partial = {i.buffer for i in kernel.instructions() if isinstance(i, Accumulate)}
    buffers = tuple(replace(each, size=each.size * parts) if each.name in partial else each for each in kernel.buffers)
    return replace(kernel, buffers=buffers)


def finishing(one_pass: OnePass, parts: Size) -> list[Kernel]:
    """Kernels that reduce the parts: one for all reductions that keep the same axes."""
    kernel = one_pass.original
    alike: dict[tuple[frozenset[str], bool], list[Accumulate]] = {}
    for fold in (i for i in kernel.instructions() if isinstance(i, Accumulate)):
        alike.setdefault((fold.index.axes, _spans_cols(kernel, fold)), []).append(fold)
    kernels = []
    for number, folds in enumerate(alike.values()):
        axes = one_pass.groups + (kernel.cols if _spans_cols(kernel, folds[0]) else ())
        partials = [one_pass.kernel.buffer(f"{fold.buffer}.parts") for fold in folds]
        buffers = [replace(each, size=each.size * parts) for each in partials]
        both = list(zip(folds, buffers, strict=True))
        kernels.append(reducing(kernel, both, (Axis(_PART, parts), *axes), f"parts{number}", wide=True))
    return kernels


def preloadable(kernel: Kernel, groups: int) -> list[Load]:
    """Loads of loops that are the same in all rows of a group, which the first so many row axes number."""
    folded = {axis.name for axis in kernel.rows[groups:]}
    loads = {(i.buffer, i.index): i for stage in kernel.stages if stage.loop for i in stage.body if isinstance(i, Load)}
    return [load for load in loads.values() if not load.index.axes & folded]


def row_reads(kernel: Kernel, groups: int = 0, *, loop: bool = True) -> list[Load]:
    """Loads of loops, or of what runs once a row, that differ from row to row, before anybody writes there."""
    folded, own = {axis.name for axis in kernel.rows[groups:]}, updated_in_place(kernel)
    loads: dict[tuple[str, Index], Load] = {}
    written: set[str] = set()
    for stage in kernel.stages:
        for i in stage.body:
            if isinstance(i, Load) and stage.loop == loop and i.index.axes & folded:
                if kernel.buffer(i.buffer).role is Role.INPUT or i.buffer in own - written:
                    loads.setdefault((i.buffer, i.index), i)
            elif isinstance(i, Store):
                written.add(i.buffer)
    return list(loads.values())
