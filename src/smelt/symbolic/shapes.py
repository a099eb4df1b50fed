"""Sizes of tensors and loops.

Every extent, stride and offset in the compiler is a `Size`: a plain `int`, or where sizes differ from call to call a
`SymSize` (`symbolic.symsize`), which adds, multiplies and compares like one and keeps in mind what it was asked.
"""

from collections.abc import Iterable, Sequence

Size = int
Shape = tuple[Size, ...]


def product(sizes: Iterable[Size]) -> Size:
    """The number of elements a shape spans: `product((2, 3)) == 6`, `product(()) == 1`."""
    total = 1
    for size in sizes:
        total = total * size
    return total


def contiguous_stride(shape: Sequence[Size]) -> Shape:
    """Row-major strides: `contiguous_stride((2, 3, 4)) == (12, 4, 1)`. A zero extent counts as one, as PyTorch does."""
    strides: list[Size] = []
    step: Size = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * max(size, 1)
    return tuple(reversed(strides))


def span(shape: Shape, stride: Shape) -> Size:
    """Elements from the first to the last of a strided view, both counted; 0 for an empty one."""
    if any(size == 0 for size in shape):
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def is_dense(shape: Shape, stride: Shape) -> bool:
    """Whether each element has its own place and there are no gaps, in whatever order the dimensions are laid out."""
    expected: Size = 1
    extents = [(step, size) for step, size in zip(stride, shape, strict=True) if size != 1]
    for step, size in sorted(extents, key=lambda extent: extent[0]):  # of equal steps neither is dense
        if step != expected:
            return False
        expected *= size
    return True


def may_overlap(shape: Shape, stride: Shape) -> bool:
    """Whether an element may be shown more than once: a step does not lead past all that smaller ones reach."""
    reach: Size = 0
    extents = [(step, size) for step, size in zip(stride, shape, strict=True) if size != 1]
    for step, size in sorted(extents, key=lambda extent: extent[0]):
        if step <= reach:
            return True
        reach = reach + (size - 1) * step
    return False
