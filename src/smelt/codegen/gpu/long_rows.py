"""Kernels whose rows do not fit in registers: staged values are recomputed, which costs one read instead of a write and
a read, and a maximum and its exponentials are computed in one pass.

    loop: m = reduce max x                      loop: m, s = a maximum and the sum of powers below it
    loop: store e[j] = exp(x - m), s = sum e  → loop: store y = exp(x - m) / s
    loop: store y = load e[j] / s
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from smelt.codegen.axes import Pure, dense_index, renamed
from smelt.codegen.cpu.online_softmax import Online, matched
from smelt.codegen.gpu.kernel_slices import leading_to
from smelt.ir.check_kernel import result
from smelt.ir.kernel import Access, Buffer, Gather, Instruction, Kernel, Load, Role, Stage, Store

_MOST_AGAIN = 32  # instructions that are recomputed rather than kept
_MOST_READ = 2  # arrays that are read again for that


def outputs_as_scratch(kernel: Kernel) -> Kernel:
    """Use scratch for values that a loop stages in an output until a later loop writes the result there."""
    for buffer in kernel.buffers:
        if buffer.role is Role.OUTPUT:
            kernel = _output_as_scratch(kernel, buffer)
    return kernel


def _output_as_scratch(kernel: Kernel, buffer: Buffer) -> Kernel:
    seen = [
        (place, number, i)
        for place, stage in enumerate(kernel.stages)
        for number, i in enumerate(stage.body)
        if isinstance(i, Access) and i.buffer == buffer.name
    ]
    puts = [(place, number) for place, number, i in seen if isinstance(i, Store)]
    alike = all(isinstance(i, Load | Store) and i.index == seen[0][2].index for _, _, i in seen)
    loops = all(kernel.stages[place].loop for place, _, _ in seen)
    names = {axis.name for axis in kernel.rows + kernel.cols}
    if len(puts) != 2 or puts[0] != seen[0][:2] or puts[0][0] == puts[1][0] or not alike or not loops:
        return kernel
    if seen[0][2].index.axes != names:
        return kernel  # several points write to one place
    scratch = Buffer(f"{buffer.name}.row", buffer.dtype, kernel.col_count, Role.SCRATCH)
    where = dense_index(kernel.cols)

    def moved(at: tuple[int, int], i: Instruction) -> Instruction:
        if isinstance(i, Load | Store) and i.buffer == buffer.name and at < puts[1]:
            return replace(i, buffer=scratch.name, index=where)
        return i

    stages = tuple(
        Stage(stage.loop, tuple(moved((place, number), i) for number, i in enumerate(stage.body)))
        for place, stage in enumerate(kernel.stages)
    )
    return replace(kernel, buffers=(*kernel.buffers, scratch), stages=stages)


def recomputed(kernel: Kernel) -> Kernel:
    """Recompute cheap values instead of staging them in scratch or in outputs."""
    changed = without_scratch(outputs_as_scratch(kernel))
    known = {buffer.name for buffer in kernel.buffers}
    # Values that must be staged stay in the output, which takes no extra memory.
    return changed if all(buffer.name in known for buffer in changed.buffers) else without_scratch(kernel)


def without_scratch(kernel: Kernel) -> Kernel:
    """Recompute values that a loop stages for a later one, where that is cheap."""
    for buffer in kernel.buffers:
        if buffer.role is Role.SCRATCH:
            kernel = _computed_again(kernel, buffer.name)
    return kernel


def _computed_again(kernel: Kernel, name: str) -> Kernel:
    puts = [(place, i) for place, stage in enumerate(kernel.stages) for i in stage.body if _stores(i, name)]
    uses = [i for i in kernel.instructions() if isinstance(i, Access) and i.buffer == name]
    if len(puts) != 1:
        return kernel
    place, put = puts[0]
    assert isinstance(put, Store)
    needed = leading_to(kernel.stages[place].body, [put.value])
    if not kernel.stages[place].loop or not _is_cheap(kernel, needed):
        return kernel
    if any(not isinstance(i, Load) or i.index != put.index for i in uses if i is not put):
        return kernel
    if any(isinstance(i, Load) and i.buffer == name for i in kernel.stages[place].body):
        return kernel
    stages = []
    for number, stage in enumerate(kernel.stages):
        body: list[Instruction] = []
        for i in stage.body:
            if isinstance(i, Load) and i.buffer == name:
                body += _again(needed, put.value, i.out)
            elif i is not put:
                body.append(i)
        if any(isinstance(i, Load) and i.buffer == name for i in stage.body) and not (stage.loop and number > place):
            return kernel
        stages.append(Stage(stage.loop, tuple(body)))
    buffers = tuple(each for each in kernel.buffers if each.name != name)
    return replace(kernel, buffers=buffers, stages=tuple(stages))


def _stores(instruction: Instruction, name: str) -> bool:
    return isinstance(instruction, Store) and instruction.buffer == name


def _is_cheap(kernel: Kernel, needed: Sequence[Instruction]) -> bool:
    read = {i.buffer for i in needed if isinstance(i, Load | Gather)}
    still = all(kernel.buffer(name).role is Role.INPUT for name in read)  # nobody writes there meanwhile
    pure = all(isinstance(i, Pure) for i in needed)
    return bool(needed) and pure and still and len(needed) <= _MOST_AGAIN and len(read) <= _MOST_READ


def _again(needed: Sequence[Instruction], value: str, out: str) -> list[Instruction]:
    """The same instructions under other names, the last of them under the name `out`."""
    names = {name: f"{out}.{name}" for i in needed if (name := result(i)) is not None}
    names[value] = out
    return [renamed(i, names.__getitem__, lambda name: names.get(name, name)) for i in needed]


def online_loops(kernel: Kernel) -> Online | None:
    """Two loops of a kernel that may run as one, if they store nothing."""
    loops = [place for place, stage in enumerate(kernel.stages) if stage.loop]
    for one, other in pairwise(loops):
        pair = matched(kernel, one, other)
        if pair is not None and not any(isinstance(i, Store) for i in pair.second.body):
            return pair
    return None
