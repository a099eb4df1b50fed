"""How the steps of a sum move through a bounded factor: convolutions repeat the positions of a window for each channel.

    (c:64, i:3, j:3), x[… 3136*c + 56*i + j] where i and j are bounded   →   positions repeat after 9 steps
    (i:3, j:3, c:64), x[… 3584*i + 64*j + c]                             →   64 steps side by side have one position
"""

from collections.abc import Sequence
from itertools import takewhile

from smelt.codegen.axes import strides_ascend
from smelt.codegen.cpu.products.problem import ProductAxis, count
from smelt.ir.kernel import Factor
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import known_at_least, known_equal

MOST_PLACES = 64  # of a window


def table_bytes(width: int) -> int:
    """What packing windows keeps: for each place of a window offsets, masks, and how many are in bounds."""
    return MOST_PLACES * (16 * width + 8)


def _is_bounded(factor: Factor, axis: ProductAxis) -> bool:
    return any(position.stride(axis.name) for position, _ in factor.bounds)


def period(factor: Factor, k: Sequence[ProductAxis]) -> int:
    """The number of steps after which bounded positions repeat while addresses move on; 0 if never or after many."""
    inner = tuple(takewhile(lambda axis: _is_bounded(factor, axis), reversed(k)))
    outer = k[: len(k) - len(inner)]
    moves_on = not any(_is_bounded(factor, axis) for axis in outer) and _never_goes_back(factor, outer)
    places = count(inner)
    return int(places) if inner and outer and moves_on and known_at_least(MOST_PLACES, places) else 0


def _never_goes_back(factor: Factor, axes: Sequence[ProductAxis]) -> bool:
    """Whether no step along the axes, the last one fastest, goes to a lower address: out-of-bounds elements are read at
    the beginning of the buffer, plus the distance that the sum has moved since its block began."""
    return strides_ascend([(factor.index.stride(axis.name), axis.size) for axis in reversed(axes)], 0)


def run(factor: Factor, k: Sequence[ProductAxis]) -> Size:
    """How many steps are side by side with one position in bounds; 0 if none."""
    length: Size = 1
    for axis in reversed(k):
        if _is_bounded(factor, axis) or not known_equal(factor.index.stride(axis.name), length):
            break
        length *= axis.size
    return length if known_at_least(length, 2) else 0
