"""Lets each launch of a chain of short ones begin before the one before it has ended, and read its weights meanwhile.

    launch k4(x, w, y), launch k5(y, v, z)   →   k4 early(in1), k5 early(in1): w and v are written by no step

Generating text by a GPU is such a chain: products of few rows, which wait for nothing but memory, with small kernels
between them. Only programs with products of our own have it. Kernels wait for earlier launches before they read
anything that a step of the program writes, and before they write.
"""

from collections.abc import Callable
from dataclasses import replace

from smelt.device.fusion_limits import Limits
from smelt.ir.kernel import Contract, Kernel, KernelGroup, Role, WeightedSum, members
from smelt.ir.program import Launch, Place, Program, Step, writes
from smelt.symbolic.shapes import product
from smelt.symbolic.symsize import hint

_MOST_ROWS = 16
# Of weights: what more of them take to be read is more than what overlapping saves (H200: 16 × 1024 1.10 times as fast,
# 1 B with all launches overlapping 0.96).
_MOST_BYTES = 16 << 20


def overlap_launches(program: Program, limits_of: Callable[[str], Limits]) -> Program:
    """The program, with kernels that may begin early if it has products by kernels."""
    known = {id(kernel): kernel for launched in program.kernels for kernel in members(launched)}
    mine = {number: kernel for number, kernel in known.items() if limits_of(kernel.target).overlaps_launches}
    if not any(map(is_few_rows, mine.values())):
        return program
    written = {name for step in program.steps for name in writes(step)}
    constants = {buffer.name for buffer in program.buffers if buffer.place in (Place.INPUT, Place.CONSTANT)} - written
    early = {number: _inputs(kernel) for number, kernel in mine.items()}
    for step in program.steps:
        for kernel, args in step.parts if isinstance(step, Launch) else ():
            if id(kernel) in early:
                names = zip(kernel.parameters, args, strict=True)
                early[id(kernel)] &= {buffer.name for buffer, name in names if name in constants}
    changed = {
        number: replace(kernel, early=tuple(sorted(early[number])))
        for number, kernel in mine.items()
        if not is_few_rows(kernel) or _weight_bytes(kernel) <= _MOST_BYTES
    }
    groups: dict[int, KernelGroup] = {}

    def overlapping(step: Step) -> Step:
        if not isinstance(step, Launch):
            return step
        if isinstance(step.kernel, Kernel):
            return replace(step, kernel=changed.get(id(step.kernel), step.kernel))
        kernels = tuple(changed.get(id(kernel), kernel) for kernel in step.kernel.kernels)
        group = groups.setdefault(id(step.kernel), replace(step.kernel, kernels=kernels))
        return replace(step, kernel=group)

    return replace(program, steps=tuple(map(overlapping, program.steps)))


def _inputs(kernel: Kernel) -> set[str]:
    return {buffer.name for buffer in kernel.parameters if buffer.role is Role.INPUT}


def is_few_rows(kernel: Kernel) -> bool:
    """Whether a kernel is a product of few rows, which waits for nothing but its weights."""
    folds = [i for i in kernel.instructions() if isinstance(i, Contract | WeightedSum)]
    if len(folds) != 1 or not isinstance(folds[0], Contract):
        return False
    sizes = {axis.name: hint(axis.size) for axis in kernel.rows + kernel.cols}
    reads = [factor.index.axes & sizes.keys() for factor in folds[0].factors]
    own = [product(sizes[name] for name in one - other) for one, other in (reads, reads[::-1])]
    return not reads[0] & reads[1] and min(map(int, own)) <= _MOST_ROWS


def _weight_bytes(kernel: Kernel) -> int:
    return max(hint(buffer.size) * buffer.dtype.itemsize for buffer in kernel.parameters if buffer.role is Role.INPUT)
