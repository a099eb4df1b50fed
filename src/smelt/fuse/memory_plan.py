"""Assigns arena offsets to buffers by their lifetimes, so that memory is reused as soon as it is free.

    a: steps 0–1, b: steps 1–2, c: steps 2–3, each 1 KiB   →   a@0, b@1024, c@0

Offsets are multiples of 64 bytes. A buffer goes to the smallest free gap that fits, the lowest among equals.

The arena has the size of its peak. In a training step the peak is at the start of the backward. Gradients leave the
program, so they are allocated elsewhere while the arena empties. So `plan_step` allocates the values that are live at
the peak one by one and frees each after its last read: the gradients reuse that memory. Short-lived buffers stay in the
arena, whose pages are already mapped.
"""

from dataclasses import replace

from smelt.ir.program import Library, Place, Program, ProgramBuffer, Step, arena_bytes, operands_in, reads, touches
from smelt.meta.effects import is_collective
from smelt.symbolic.shapes import Size

ALIGNMENT = 64
_LARGE = 1 << 16  # bytes; an allocation is nothing beside the work on that many
_SHORT = 8  # steps; what is read that soon is temporary
Lives = dict[str, tuple[int, int]]

_LESS = 0.95  # how much smaller the peak must be to allocate at each call


def plan(program: Program, lives: Lives | None = None) -> Program:
    """Give every buffer its offset. `lives`: its lifetimes, where somebody knows them."""
    return plan_step(program) if program.has_backward else plan_memory(program, lives)


def plan_step(program: Program) -> Program:
    """For a program that holds much and hands out much, at different times."""
    planned = plan_memory(program)
    lives = lifetimes(program)
    sizes = {buffer.name: arena_bytes(buffer) for buffer in program.buffers if buffer.place is Place.ARENA}
    fullest, _ = _fullest({name: lives[name] for name in sizes if name in lives}, sizes)
    held = {name for name in sizes if sizes[name] >= _LARGE and name in lives and _spans(lives[name], fullest)}
    buffers = [replace(each, place=Place.FRESH) if each.name in held else each for each in program.buffers]
    one_by_one = plan_memory(replace(program, buffers=tuple(buffers)))
    return one_by_one if peak(one_by_one) < _LESS * peak(planned) else planned


def peak(program: Program) -> Size:
    """The most bytes that are in use at one step: the arena, and what is allocated by then and still needed."""
    leaving = {operand.buffer for operand in operands_in(program.outputs)}
    sizes = {each.name: arena_bytes(each) for each in program.buffers if each.place in (Place.FRESH, Place.LIBRARY)}
    lives = {name: life for name, life in lifetimes(program).items() if name in sizes}
    lives |= {name: (lives[name][0], len(program.steps)) for name in leaving if name in lives}
    return program.arena_bytes + _fullest(lives, sizes)[1]


def _fullest(lives: dict[str, tuple[int, int]], sizes: dict[str, Size]) -> tuple[int, Size]:
    """The step at which most is in use, and how much that is."""
    change: dict[int, Size] = {}
    for name, (start, end) in lives.items():
        change[start] = change.get(start, 0) + sizes[name]
        change[end + 1] = change.get(end + 1, 0) - sizes[name]
    now: Size = 0
    most: tuple[int, Size] = (0, 0)
    for step in sorted(change):
        now += change[step]
        if now > most[1]:
            most = (step, now)
    return most


def _spans(life: tuple[int, int], step: int) -> bool:
    return life[0] <= step <= life[1] and life[1] - life[0] > _SHORT


def plan_memory(program: Program, lives: Lives | None = None) -> Program:
    """Give every arena buffer its offset."""
    program = _keep_aliased(program)
    lives = lifetimes(program) if lives is None else lives
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


def lifetimes(program: Program) -> Lives:
    """First and last step at which each buffer's memory is in use, views that library calls made of it included."""
    lives = touches(program)
    for step in reversed(program.steps):
        for view in aliases(step):
            for base in reads(step):
                if view in lives and base in lives:
                    lives[base] = (lives[base][0], max(lives[base][1], lives[view][1]))
    return lives


def aliases(step: Step) -> tuple[str, ...]:
    """Results of a library call that may be views of its arguments, or that come to be while those are read: a
    collective reads them until somebody has waited for it."""
    if not isinstance(step, Library) or step.into:
        return ()
    returns = step.op._schema.returns
    if not any(result.alias_info is not None for result in returns) and not is_collective(step.op):
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


