"""Which strides PyTorch gives a new tensor.

Element-wise operators lay their output out after their inputs. Equal dense layouts are kept; otherwise the dimensions
are sorted by the inputs' strides, earlier inputs first, and packed:

    f32[2, 3]:(1, 2) + f32[2, 3]:(1, 2) → (1, 2)        both column-major: kept
    f32[2, 3]:(1, 2) + f32[3]           → (1, 2)        the first input decides, broadcast dimensions have no say
    f32[2, 3, 1, 1]  + f32[2, 3, 1, 1]  → contiguous    ambiguous: row-major wins

`like_stride` is the same question for one tensor (`empty_like`, `clone`, `to`).
"""

from collections.abc import Sequence

import torch

from smelt.symbolic import shapes as sizes
from smelt.symbolic.shapes import Shape, contiguous_stride

# (shape, stride) of an input that takes part in laying out the output.
Layout = tuple[Shape, Shape]


def same_shape(shape: Shape, other: Shape) -> bool:
    """Rank first: Python compares tuples of different lengths item by item, which would decide about symbols."""
    return len(shape) == len(other) and shape == other


def broadcast(shapes: Sequence[Shape]) -> Shape | None:
    """The common shape, or None where there is none: `broadcast([(3, 1), (4,)]) == (3, 4)`."""
    common = shapes[0]
    for shape in shapes[1:]:
        if same_shape(shape, common) or not shape:
            continue
        if len(shape) > len(common):
            common, shape = shape, common
        merged = list(common)
        offset = len(common) - len(shape)
        for position, size in enumerate(shape):
            have = merged[offset + position]
            if have == size or size == 1:
                continue
            if have != 1:
                return None
            merged[offset + position] = size
        common = tuple(merged)
    return tuple(common)


def is_contiguous(shape: Shape, stride: Shape) -> bool:
    """Row-major and dense. Extents of one may have any stride, and an empty tensor is always contiguous."""
    expected = 1
    matches = True
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if size == 0:
            return True
        if size != 1:
            matches = matches and step == expected
            expected *= size
    return matches


def is_channels_last(shape: Shape, stride: Shape) -> bool:
    """Four dimensions stored as N, H, W, C."""
    if len(shape) != 4:
        return False
    expected = 1
    for dim in (1, 3, 2, 0):
        if shape[dim] != 1:
            if stride[dim] != expected:
                return False
            expected *= shape[dim]
    return True


def suggests_channels_last(shape: Shape, stride: Shape) -> bool:
    """Whether a library would take the tensor for channels-last: by the order of its strides, ambiguous ones not."""
    if len(shape) not in (4, 5) or stride[1] == 0:
        return False
    least = 0
    for dim in (1, *range(len(shape) - 1, 1, -1), 0):
        if shape[dim] == 0 or stride[dim] < least or (dim == 0 and least == stride[1]):
            return False
        least = stride[dim] * max(shape[dim], 1)
    return True


def channels_last_stride(shape: Shape) -> Shape:
    """Strides of N, H, W, C storage (or N, D, H, W, C) for a shape written N, C, …."""
    strides = [1] * len(shape)
    step = 1
    for dim in (1, *range(len(shape) - 1, 1, -1), 0):
        strides[dim] = step
        step *= shape[dim]  # a zero extent makes the outer strides zero
    return tuple(strides)


def is_dense(shape: Shape, stride: Shape) -> bool:
    """Every element of the span is used exactly once, in whatever order of dimensions; or there are none."""
    return 0 in shape or sizes.is_dense(shape, stride)


def like_stride(shape: Shape, stride: Shape) -> Shape:
    """Strides of `empty_like`: kept where dense, otherwise packed in the same order of dimensions."""
    if is_dense(shape, stride):
        return tuple(stride)
    order = _order(shape, (stride,))
    strides = [0] * len(shape)
    step = 1
    for dim in order:
        strides[dim] = step
        step *= max(shape[dim], 1)
    return tuple(strides)


def formatted_stride(shape: Shape, stride: Shape, memory_format: torch.memory_format | None) -> Shape | None:
    """Strides under a given `memory_format=` (None: preserve); None comes back for a format that does not fit."""
    if memory_format is None or memory_format is torch.preserve_format:
        return like_stride(shape, stride)
    if memory_format is torch.contiguous_format:
        return contiguous_stride(shape)
    if memory_format is torch.channels_last and len(shape) == 4:
        return channels_last_stride(shape)
    if memory_format is torch.channels_last_3d and len(shape) == 5:
        return channels_last_stride(shape)
    return None


def iterator_stride(shape: Shape, inputs: Sequence[Layout], *, scalars: bool = False) -> Shape:
    """Strides of an element-wise operator's output of `shape`; `scalars` says whether numbers took part."""
    if not scalars and all(same_shape(have, shape) for have, _ in inputs):
        if all(is_contiguous(shape, stride) for _, stride in inputs):
            return contiguous_stride(shape)
        if all(is_channels_last(shape, stride) for _, stride in inputs):
            return channels_last_stride(shape)
        first = inputs[0][1]
        if all(stride == first for _, stride in inputs) and is_dense(shape, first):
            return tuple(first)
    rank = len(shape)
    if rank < 2:
        return (1,) * rank
    aligned = [_aligned(shape, have, stride) for have, stride in inputs]
    order = _order(shape, aligned)
    if order == list(range(rank - 1, -1, -1)):
        return contiguous_stride(shape)
    strides = [0] * rank
    step = 1
    for dim in order:
        strides[dim] = step
        step *= shape[dim]  # a zero extent makes the outer strides zero, as PyTorch does here
    return tuple(strides)


def _aligned(shape: Shape, have: Shape, stride: Shape) -> Shape:
    """Strides over the broadcast shape: zero where the input is repeated."""
    if same_shape(have, shape):
        return stride
    offset = len(shape) - len(have)
    own = [
        0 if size == 1 and shape[offset + dim] != 1 else step
        for dim, (size, step) in enumerate(zip(have, stride, strict=True))
    ]
    return (0,) * offset + tuple(own)


def _order(shape: Shape, strides: Sequence[Shape]) -> list[int]:
    """Dimensions from the fastest to the slowest: an insertion sort that leaves undecided neighbours where they are."""
    rank = len(shape)
    order = list(range(rank - 1, -1, -1))
    for start in range(1, rank):
        moving = start
        for other in range(start - 1, -1, -1):
            verdict = _compare(shape, strides, order[other], order[moving])
            if verdict > 0:
                order[other], order[moving] = order[moving], order[other]
                moving = other
            elif verdict < 0:
                break
    return order


def _compare(shape: Shape, strides: Sequence[Shape], inner: int, outer: int) -> int:
    """1 if `inner` should be the slower of the two, -1 if it should not, 0 if no input can tell."""
    for stride in strides:
        step, other = stride[inner], stride[outer]
        if step == 0 or other == 0:
            continue
        if step != other:
            return -1 if step < other else 1
        if shape[inner] > shape[outer]:
            return 1
    return 0
