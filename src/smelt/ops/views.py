"""Records of views: where the elements of the result are in the memory of the argument.

    permute(layout (2, 3):(3, 1), [1, 0])  →  layout (3, 2):(1, 3)

A rule returns None where no strides describe the result (a `reshape` that must copy); the fuser then copies.
"""

from collections.abc import Callable, Sequence

import torch

from smelt.ops.record import OperandLayout, OpRecord, View
from smelt.ops.registry import register
from smelt.symbolic.shapes import Shape, Size, product
from smelt.symbolic.symsize import known_equal, same_sizes

aten = torch.ops.aten


def reshape(layout: OperandLayout, shape: Sequence[Size]) -> OperandLayout | None:
    """Strides of the same elements under another shape, if there are any."""
    shape = _without_minus_one(product(layout.shape), shape)
    if same_sizes(shape, layout.shape):
        return layout
    strides: list[Size] = [1] * len(shape)
    old = [(size, stride) for size, stride in zip(layout.shape, layout.stride, strict=True) if size != 1]
    dim = len(shape) - 1
    while old:
        run, stride = old.pop()
        while old and old[-1][1] == run * stride:
            run *= old.pop()[0]
        filled: Size = 1
        while dim >= 0 and (filled < run or shape[dim] == 1):
            strides[dim] = stride * filled
            filled *= shape[dim]
            dim -= 1
        if filled != run:
            return None
    return OperandLayout(shape, tuple(strides), layout.offset)


def _without_minus_one(count: Size, shape: Sequence[Size]) -> Shape:
    if not any(known_equal(size, -1) for size in shape):
        return tuple(shape)
    known = product(size for size in shape if size != -1)
    return tuple(count // known if size == -1 else size for size in shape)


def permute(layout: OperandLayout, dims: Sequence[int]) -> OperandLayout:
    rank = len(layout.shape)
    order = [dim % rank for dim in dims]
    return OperandLayout(tuple(layout.shape[d] for d in order), tuple(layout.stride[d] for d in order), layout.offset)


def transpose(layout: OperandLayout, first: int, second: int) -> OperandLayout:
    rank = len(layout.shape)
    if rank == 0:
        return layout
    order = list(range(rank))
    order[first], order[second] = order[second % rank], order[first % rank]
    return permute(layout, order)


def transpose_matrix(layout: OperandLayout) -> OperandLayout:
    return transpose(layout, 0, 1) if len(layout.shape) == 2 else layout


def expand(layout: OperandLayout, shape: Sequence[Size], implicit: bool = False) -> OperandLayout:
    added = len(shape) - len(layout.shape)
    sizes, strides = list(shape), [0] * len(shape)
    for dim, (size, stride) in enumerate(zip(layout.shape, layout.stride, strict=True), start=added):
        if size != 1 or known_equal(sizes[dim], -1) or known_equal(sizes[dim], 1):
            sizes[dim], strides[dim] = size, stride  # what is no single element has the size it is spread to
    return OperandLayout(tuple(sizes), tuple(strides), layout.offset)


def unsqueeze(layout: OperandLayout, dim: int) -> OperandLayout:
    rank = len(layout.shape)
    dim %= rank + 1
    stride = layout.shape[dim] * layout.stride[dim] if dim < rank else 1
    shape = (*layout.shape[:dim], 1, *layout.shape[dim:])
    return OperandLayout(shape, (*layout.stride[:dim], stride, *layout.stride[dim:]), layout.offset)


def squeeze(layout: OperandLayout, dims: int | Sequence[int] | None = None) -> OperandLayout:
    rank = len(layout.shape)
    if dims is None:
        dims = range(rank)
    elif isinstance(dims, int):
        dims = [dims]
    gone = {dim % rank for dim in dims if layout.shape[dim] == 1} if rank else set()
    kept = [dim for dim in range(rank) if dim not in gone]
    return OperandLayout(tuple(layout.shape[d] for d in kept), tuple(layout.stride[d] for d in kept), layout.offset)


def select(layout: OperandLayout, dim: int, index: int) -> OperandLayout:
    dim %= len(layout.shape)
    index %= layout.shape[dim]
    offset = layout.offset + index * layout.stride[dim]
    return OperandLayout(
        layout.shape[:dim] + layout.shape[dim + 1 :], layout.stride[:dim] + layout.stride[dim + 1 :], offset
    )


def cut(
    layout: OperandLayout, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> OperandLayout:
    """`slice`: Python's own rules for negative and overlong bounds."""
    dim %= len(layout.shape)
    extent = layout.shape[dim]
    first, last = bound(start, 0, extent), bound(end, extent, extent)
    size = (last - first + step - 1) // step if last > first else 0
    shape = (*layout.shape[:dim], size, *layout.shape[dim + 1 :])
    stride = (*layout.stride[:dim], layout.stride[dim] * step, *layout.stride[dim + 1 :])
    return OperandLayout(shape, stride, layout.offset + first * layout.stride[dim])


def bound(signed_bound: int | None, default: Size, extent: Size) -> Size:
    """A bound of a slice as a position between the ends."""
    if signed_bound is None:
        return default
    at = signed_bound + extent if signed_bound < 0 else signed_bound
    return 0 if at < 0 else extent if at > extent else at


def diagonal(layout: OperandLayout, offset: int = 0, dim1: int = 0, dim2: int = 1) -> OperandLayout:
    rank = len(layout.shape)
    dim1, dim2 = dim1 % rank, dim2 % rank
    rows, cols = layout.shape[dim1] + min(offset, 0), layout.shape[dim2] - max(offset, 0)
    start = layout.offset + max(offset, 0) * layout.stride[dim2] + max(-offset, 0) * layout.stride[dim1]
    kept = [dim for dim in range(rank) if dim not in (dim1, dim2)]
    shape = (*(layout.shape[d] for d in kept), max(0, min(rows, cols)))
    stride = (*(layout.stride[d] for d in kept), layout.stride[dim1] + layout.stride[dim2])
    return OperandLayout(shape, stride, start)


def unfold(layout: OperandLayout, dim: int, size: Size, step: Size) -> OperandLayout:
    """Windows along a dim, which overlap where they are longer than the steps between them."""
    if not layout.shape:
        return OperandLayout((size,), (1,), layout.offset)
    dim %= len(layout.shape)
    count = (layout.shape[dim] - size) // step + 1
    shape = (*layout.shape[:dim], count, *layout.shape[dim + 1 :], size)
    stride = (*layout.stride[:dim], layout.stride[dim] * step, *layout.stride[dim + 1 :], layout.stride[dim])
    return OperandLayout(shape, stride, layout.offset)


def restride(
    layout: OperandLayout, shape: Sequence[Size], stride: Sequence[Size], offset: int | None = None
) -> OperandLayout:
    """`as_strided`, its offset as given: counted from the start of the storage."""
    return OperandLayout(tuple(shape), tuple(stride), layout.offset if offset is None else offset)


def unchanged(layout: OperandLayout) -> OperandLayout:
    return layout


_MOVES: dict[torch._ops.OpOverload, Callable[..., OperandLayout | None]] = {
    aten.view.default: reshape,
    aten._unsafe_view.default: reshape,
    aten.permute.default: permute,
    aten.t.default: transpose_matrix,
    aten.transpose.int: transpose,
    aten.expand.default: expand,
    aten.unsqueeze.default: unsqueeze,
    aten.squeeze.default: squeeze,
    aten.squeeze.dim: squeeze,
    aten.squeeze.dims: squeeze,
    aten.select.int: select,
    aten.slice.Tensor: cut,
    aten.diagonal.default: diagonal,
    aten.unfold.default: unfold,
    aten.as_strided.default: restride,
    aten.alias.default: unchanged,
    aten.detach.default: unchanged,
}

for _op, _move in _MOVES.items():
    register(OpRecord(_op, View(_move), 0))
