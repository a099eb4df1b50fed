"""Where the buffers of an artifact's program lie in its arena, for plain sizes and for sizes in symbols.

With plain sizes it is `fuse.memory_plan`. In symbols, buffers that are never alive at once share a slot, which is as
large as the largest of them turns out to be:

    a: steps 0–1, 4*s0 bytes     b: steps 1–2, 8*s0     c: steps 2–3, 2*s0   →   b at 0, a and c at 8*s0
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from smelt.base.fast_dataclass import dataclass
from smelt.deploy.postfix import Postfix
from smelt.fuse.memory_plan import ALIGNMENT, Lives, lifetimes, plan_memory
from smelt.ir.program import Place, Program, arena_bytes, operands_in
from smelt.symbolic.postfix import Expression as Code
from smelt.symbolic.postfix import Op, apply, number
from smelt.symbolic.symsize import hint, is_symsize


@dataclass(frozen=True, slots=True)
class Arena:
    """Offsets by the names of buffers, and how many bytes there are."""

    offsets: dict[str, Code]
    bytes: Code


def planned(program: Program, outside: Collection[str], postfix: Postfix) -> Arena:
    """An arena for all buffers that a program makes, but for those `outside`, which have memory of their own."""
    places = {each.name: Place.FRESH if each.name in outside else Place.ARENA for each in program.buffers}
    own = (Place.ARENA, Place.FRESH)
    buffers = [replace(each, place=places[each.name]) if each.place in own else each for each in program.buffers]
    moved = replace(program, buffers=tuple(buffers), has_backward=False)
    # Results are copied to where they go when all steps have run.
    lives = lifetimes(moved)
    lives |= {each.buffer: (lives[each.buffer][0], len(program.steps)) for each in operands_in(program.outputs)
              if each.buffer in lives}  # fmt: skip
    if any(is_symsize(arena_bytes(each)) for each in buffers):
        return _in_symbols(moved, lives, postfix)
    fixed = plan_memory(replace(moved, outputs=()), lives)
    offsets = {each.name: number(int(each.offset)) for each in fixed.buffers if each.place is Place.ARENA}
    return Arena(offsets, number(int(fixed.arena_bytes)))


def _in_symbols(program: Program, lives: Lives, postfix: Postfix) -> Arena:
    slots = list[list[Any]]()
    wanted = [each for each in program.buffers if each.place is Place.ARENA and each.name in lives]
    for buffer in sorted(wanted, key=lambda each: -hint(arena_bytes(each))):
        first, last = lives[buffer.name]
        for slot in slots:
            if all(last < lives[each.name][0] or lives[each.name][1] < first for each in slot):
                slot.append(buffer)
                break
        else:
            slots.append([buffer])
    offsets, end = dict[str, Code](), number(0)
    for slot in slots:
        offsets |= {buffer.name: end for buffer in slot}
        end = _sum(end, _largest([postfix.size(arena_bytes(buffer)) for buffer in slot]))
    unused = [each for each in program.buffers if each.place is Place.ARENA and each.name not in lives]
    return Arena(offsets | {each.name: number(0) for each in unused}, end)


def _largest(sizes: list[Code]) -> Code:
    largest, *others = dict.fromkeys(sizes)
    for each in others:
        largest = apply(Op.MAX, largest, each)
    rounded = apply(Op.DIV, apply(Op.ADD, largest, number(ALIGNMENT - 1)), number(ALIGNMENT))
    return apply(Op.MUL, rounded, number(ALIGNMENT))


def _sum(left: Code, right: Code) -> Code:
    return right if left == number(0) else apply(Op.ADD, left, right)
