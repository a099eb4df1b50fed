"""Computes the random words of four adjacent points from one counter, once instead of four times.

    q = shr p, 2; w = and p, 3; … ; r = philox seed, thread, counter, w          p: the number of the point
    →  for points 4n to 4n + 3: thread and counter once, philox once; its four words are theirs in order

Values are equal for four such points if they are constants, do not depend on the point, or depend on it only through
`shr p, 2` or a larger shift.
"""

from collections.abc import Callable, Iterable

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.ir.kernel import Cast, Compute, Const, Index, Instruction, Load, Position

QUAD = 4
_SHIFT = 2  # bits that count within a quad


@dataclass(frozen=True, slots=True)
class Quads:
    """Of a kernel whose vectors are whole quads: values that four points share, and words that follow each other."""

    same: frozenset[str] = frozenset()
    words: frozenset[str] = frozenset()


def quads(body: Iterable[Instruction], is_in_row: Callable[[Index], bool], is_same: Callable[[Index], bool]) -> Quads:
    """`is_in_row`: four points side by side have positions 4n to 4n + 3 there; `is_same`: they have one position."""
    numbers: dict[str, object] = {}
    points: set[str] = set()  # positions themselves
    inside: set[str] = set()  # and of those, which of four they are
    same: set[str] = set()
    words: set[str] = set()
    for i in body:
        match i:
            case Const(out, value):
                numbers[out] = value
                same.add(out)
            case Load(out, _, index):
                same.update({out} if is_same(index) else ())
            case Position(out, index):
                same.update({out} if is_same(index) else ())
                points.update({out} if is_in_row(index) else ())
            case Cast(out, value):
                for each in (points, inside, same):
                    each.update({out} if value in each else ())
            case Compute(out, "shr", (value, by)) if value in points:
                distance = numbers.get(by)
                same.update({out} if isinstance(distance, int) and distance >= _SHIFT else ())
            case Compute(out, "and", (value, by)) if value in points:
                inside.update({out} if numbers.get(by) == QUAD - 1 else ())
            case Compute(out, "philox", (*counter, word), torch.int64) if word in inside and same.issuperset(counter):
                words.add(out)
            case Compute(out, _, args):
                same.update({out} if same.issuperset(args) else ())
    return Quads(frozenset(same), frozenset(words)) if words else Quads()
