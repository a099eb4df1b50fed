"""Where each buffer of the arena lies: lifetimes, then offsets, so that memory is used again as soon as it is free.

    a: steps 0–1, b: steps 1–2, c: steps 2–3, each 1 KiB   →   a@0, b@1024, c@0

Offsets are multiples of 64 bytes. A free gap that fits best is taken, the lowest among equals.
"""

from dataclasses import replace

from smelt.base.sizes import Size
from smelt.ir.check_program import arena_bytes, operands_in, reads, writes
from smelt.ir.program import Library, Place, Program, ProgramBuffer, Step

ALIGNMENT = 64


def plan_memory(program: Program) -> Program:
    """Give every arena buffer its offset."""
    program = _keep_aliased(program)
    lives = lifetimes(program)
    starting: dict[int, list[ProgramBuffer]] = {}
    for buffer in program.buffers:
        if buffer.place is Place.ARENA and buffer.name in lives:
            starting.setdefault(lives[buffer.name][0], []).append(buffer)
    taken: list[tuple[Size, Size, int]] = []  # (offset, end, last step), by offset
    offsets: dict[str, Size] = {}
    top: Size = 0
    for step in range(len(program.steps)):
        if step not in starting:
            continue
        taken = [block for block in taken if block[2] >= step]
        for buffer in starting[step]:
            size = -(-arena_bytes(buffer) // ALIGNMENT) * ALIGNMENT
            offset = _best_gap(taken, size)
            offsets[buffer.name] = offset
            taken.append((offset, offset + size, lives[buffer.name][1]))
            taken.sort()
            top = max(top, offset + size)
    buffers = tuple(
        replace(buffer, offset=offsets[buffer.name]) if buffer.name in offsets else buffer for buffer in program.buffers
    )
    return replace(program, buffers=buffers, arena_bytes=top)


def _best_gap(taken: list[tuple[Size, Size, int]], size: Size) -> Size:
    """The offset of the smallest gap between taken blocks that holds `size`, or the end."""
    best: tuple[Size, Size] | None = None
    end: Size = 0
    for offset, upto, _ in taken:
        gap = offset - end
        if gap >= size and (best is None or gap < best[0]):
            best = (gap, end)
        end = max(end, upto)
    return end if best is None else best[1]


def lifetimes(program: Program) -> dict[str, tuple[int, int]]:
    """First and last step at which each buffer's memory is in use, views that library calls made of it included."""
    found: dict[str, tuple[int, int]] = {}
    for number, step in enumerate(program.steps):
        for name in reads(step) + writes(step):
            found[name] = (found.get(name, (number, number))[0], number)
    for step in reversed(program.steps):
        for view in aliases(step):
            for base in reads(step):
                if view in found and base in found:
                    found[base] = (found[base][0], max(found[base][1], found[view][1]))
    return found


def aliases(step: Step) -> tuple[str, ...]:
    """Results of a library call that may be views of its arguments."""
    if not isinstance(step, Library) or step.into:
        return ()
    returns = step.op._schema.returns
    if not any(result.alias_info is not None for result in returns):
        return ()
    return tuple(name for name in step.outs if name is not None)


def _keep_aliased(program: Program) -> Program:
    """A buffer of which a returned tensor may be a view must outlive the call."""
    leaving = {operand.buffer for operand in operands_in(program.outputs)}
    for step in reversed(program.steps):
        if any(view in leaving for view in aliases(step)):
            leaving.update(reads(step))
    buffers = tuple(
        replace(buffer, place=Place.FRESH) if buffer.name in leaving and buffer.place is Place.ARENA else buffer
        for buffer in program.buffers
    )
    return replace(program, buffers=buffers)


