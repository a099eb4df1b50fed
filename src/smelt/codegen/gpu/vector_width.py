"""Chooses how many adjacent points a thread takes, so that it reads and writes sixteen bytes in one access.

    x: bf16[4096*i + j], y: f32[4096*i + j]     →  8 along j: one access of x, two of y
    x: f32[33*i + j]                            →  1: every other row begins between two multiples of four
    x: f32[36*i + j], 33 cols, a sum of them    →  4: what is read behind them is left out

For dynamic shapes, a size counts as a multiple if it is one in the example and the axes are long; a guard checks it.
"""

import math
from collections.abc import Sequence

from smelt.ir.kernel import Access, Accumulate, Axis, Gather, Index, Kernel, Load, Role, Scan, Scatter
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import hint, is_symsize, known_equal

_BYTES = 16  # of one access
_MOST = 8
_WORTH_RELYING = 256  # points of an axis whose size varies: shorter ones are not worth code of their own


def is_multiple(size: Size, of: int) -> bool:
    """Whatever the symbols are."""
    return known_equal(size % of, 0)


def vector_width(kernel: Kernel, axis: Axis | None, extents: Sequence[Size]) -> int:
    """Along `axis`. `extents` must be multiples of it, so that a thread has all of its points or none."""
    if axis is None:
        return 1
    moved = _moved(kernel, axis)
    if not moved:
        return 1
    most = min(_MOST, _BYTES // max(2, min(size for _, size, _ in moved)))
    widths = [width for width in (8, 4, 2) if width <= most and not any(hint(extent) % width for extent in extents)]
    best, score = 1, _score(moved, axis, 1)
    for width in widths:
        reached = _score(moved, axis, width)
        if reached > score:
            best, score = width, reached
    return best if _relied_on(moved, axis, extents, best) else 1


def padded_width(kernel: Kernel, axis: Axis | None) -> int:
    """Along the only col of rows whose length is no multiple of it: what is read behind their ends is padding.

        rows(i:8192) cols(j:50257), x: bf16[50264*i + j]     →  8: the last vector of a row has one point

    1 unless rows are reduced and nothing else, from inputs that are padded so.
    """
    if axis is None or kernel.cols != (axis,) or is_symsize(axis.size) or axis.size < _WORTH_RELYING:
        return 1
    if any(isinstance(i, Gather | Scan | Scatter | Accumulate) for i in kernel.instructions()):
        return 1
    width = vector_width(kernel, axis, ())
    accesses = [i for i in kernel.instructions() if isinstance(i, Access) and axis.name in i.index.axes]
    return width if all(_is_padded(kernel, axis, i, width) for i in accesses) else 1


def _is_padded(kernel: Kernel, axis: Axis, access: Access, width: int) -> bool:
    """Whether whole vectors can be read where rows end."""
    buffer, index = kernel.buffer(access.buffer), access.index
    if not isinstance(access, Load) or buffer.role is not Role.INPUT or not known_equal(index.stride(axis.name), 1):
        return False
    last: Size = index.offset - (-axis.size // width) * width
    for row in kernel.rows:
        last = last + index.stride(row.name) * (row.size - 1)
    strides = [stride for name, stride in index.terms if name != axis.name]
    sizes = (index.offset, *strides, last, buffer.size)
    if any(is_symsize(size) or size < 0 for size in sizes):
        return False
    return last <= buffer.size and not any(size % width for size in (index.offset, *strides))


def _moved(kernel: Kernel, axis: Axis) -> list[tuple[Index, int, int]]:
    """The accesses that are contiguous along the axis: the index, the bytes of an element, the bytes in all."""
    sizes = {each.name: hint(each.size) for each in kernel.rows + kernel.cols}
    accesses = []
    for i in kernel.instructions():
        if isinstance(i, Access) and not isinstance(i, Gather) and _is_one(i.index.stride(axis.name)):
            size = kernel.buffer(i.buffer).dtype.itemsize
            accesses.append((i.index, size, size * math.prod(sizes[name] for name in i.index.axes)))
    return accesses


def _is_one(stride: Size) -> bool:
    return known_equal(stride, 1) or known_equal(stride, -1)


def _steps(index: Index, axis: Axis, width: int) -> list[Size]:
    """The strides that must be multiples of the width. Reversed accesses start at their last element."""
    first = index.offset if index.stride(axis.name) == 1 else index.offset + 1 - width
    return [first, *(stride for name, stride in index.terms if name != axis.name)]


def _score(moved: Sequence[tuple[Index, int, int]], axis: Axis, width: int) -> float:
    """The bytes per access, weighted by the bytes moved. An unaligned access is one of single elements, which are
    further apart between threads."""
    total = 0.0
    for index, size, whole in moved:
        aligned = not any(hint(step) % width for step in _steps(index, axis, width))
        total += whole * (min(_BYTES, size * width) if aligned else size / 2)
    return total


def _relied_on(moved: Sequence[tuple[Index, int, int]], axis: Axis, extents: Sequence[Size], width: int) -> bool:
    """That extents are multiples, and whole lines where they are in the example; False where that is not worth it."""
    asked = [*extents]
    for index, _, _ in moved:
        steps = _steps(index, axis, width)
        if not any(hint(step) % width for step in steps):
            asked += steps
    unknown = [size for size in asked if not is_multiple(size, width)]
    if unknown and (hint(axis.size) < _WORTH_RELYING or width * min(size for _, size, _ in moved) < _BYTES):
        return False
    return all(size % width == 0 for size in unknown)
