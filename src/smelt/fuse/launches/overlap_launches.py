"""Lets each launch of a chain of short ones begin before the one before it has ended, and read its weights meanwhile.

    launch k4(x, w, y), launch k5(y, v, z)   →   k4 early(in1), k5 early(in1): w and v are written by no step

Generating text by a GPU is such a chain: products of few rows, which wait for nothing but memory, with small kernels
between them. Only programs with products of our own have it. Kernels wait for earlier launches before they read
anything that a step of the program writes, and before they write.
"""

from collections.abc import Callable
from dataclasses import replace

from smelt.device.fusion_limits import Limits
from smelt.ir.kernel import Contract, Kernel, Role
from smelt.ir.program import Launch, Place, Program, Step, writes


def overlap_launches(program: Program, limits_of: Callable[[str], Limits]) -> Program:
    """The program, with kernels that may begin early if it has products by kernels."""
    kernels = {id(kernel): kernel for kernel in program.kernels if isinstance(kernel, Kernel)}
    mine = [kernel for kernel in kernels.values() if limits_of(kernel.target).overlaps_launches]
    if not any(isinstance(i, Contract) for kernel in mine for i in kernel.instructions()):
        return program
    written = {name for step in program.steps for name in writes(step)}
    given = {buffer.name for buffer in program.buffers if buffer.place in (Place.INPUT, Place.CONSTANT)} - written
    early = {id(kernel): {buffer.name for buffer in kernel.parameters if _is_read(kernel, buffer.name)} for kernel in mine}
    for step in program.steps:
        if isinstance(step, Launch) and id(step.kernel) in early:
            names = zip(step.kernel.parameters, step.args, strict=True)
            early[id(step.kernel)] &= {buffer.name for buffer, name in names if name in given}
    changed = {id(kernel): replace(kernel, early=tuple(sorted(early[id(kernel)]))) for kernel in mine}

    def overlapping(step: Step) -> Step:
        changes = isinstance(step, Launch) and id(step.kernel) in changed
        return replace(step, kernel=changed[id(step.kernel)]) if changes else step

    return replace(program, steps=tuple(map(overlapping, program.steps)))


def _is_read(kernel: Kernel, name: str) -> bool:
    return kernel.buffer(name).role is Role.INPUT
