"""Specs of the commonest views. They keep the memory and change only how it is walked.

aten.permute(f32[2, 3], [1, 0])     → f32[3, 2]:(1, 3)
aten.expand(f32[3], [2, 3])         → f32[2, 3]:(0, 1)
"""

import sys
from collections.abc import Sequence
from typing import Any

from smelt.ir.tensorspec import UnplacedSpec
from smelt.meta.rules.specs import axis_of, by_operator, laid_out_like
from smelt.symbolic.shapes import product


def view_of(value: Any, shape: Sequence[int], stride: Sequence[int], step: int = 0) -> UnplacedSpec:
    return UnplacedSpec(tuple(shape), tuple(stride), value.dtype, value.storage_offset() + step)


def _same(value: Any) -> Any:
    """`detach`, `alias`, `lift_fresh`."""
    return view_of(value, value.shape, value.stride())


def _permute(value: Any, dims: Sequence[int]) -> Any:
    rank = value.dim()
    order = [dim + rank if dim < 0 else dim for dim in dims]
    if sorted(order) != list(range(rank)):
        return NotImplemented
    shape, stride = value.shape, value.stride()
    return view_of(value, [shape[dim] for dim in order], [stride[dim] for dim in order])


def _transpose(value: Any, first: int, second: int) -> Any:
    rank = value.dim()
    if not (-rank <= first < rank and -rank <= second < rank):
        return NotImplemented
    shape, stride = list(value.shape), list(value.stride())
    shape[first], shape[second] = shape[second], shape[first]
    stride[first], stride[second] = stride[second], stride[first]
    return view_of(value, shape, stride)


def _t(value: Any) -> Any:
    return _transpose(value, 0, 1) if value.dim() == 2 else NotImplemented


def _expand(value: Any, size: Sequence[int], *, implicit: bool = False) -> Any:
    new = len(size) - value.dim()
    if new < 0 or any(extent < 0 for extent in size[:new]):
        return NotImplemented
    shape, stride = list(size), [0] * len(size)
    for dim, (have, step) in enumerate(zip(value.shape, value.stride(), strict=True)):
        wanted = size[new + dim]
        if wanted in (-1, have):
            shape[new + dim], stride[new + dim] = have, step
        elif have != 1 or wanted < 0:
            return NotImplemented
    _expand_new_strides(shape, stride, new)
    return view_of(value, shape, stride)


def _expand_new_strides(shape: list[int], stride: list[int], new: int) -> None:
    """A new leading dimension of extent one is laid out as if it were stored; a repeated one has stride zero."""
    if new == len(shape):
        return  # a scalar, repeated
    for dim in range(new - 1, -1, -1):
        if shape[dim] == 1:
            stride[dim] = shape[dim + 1] * stride[dim + 1]


def _unsqueeze(value: Any, dim: int) -> Any:
    rank = value.dim() + 1
    if not -rank <= dim < rank:
        return NotImplemented
    at = dim % rank
    shape, stride = list(value.shape), list(value.stride())
    step = shape[at] * stride[at] if at < rank - 1 else 1
    return view_of(value, (*shape[:at], 1, *shape[at:]), (*stride[:at], step, *stride[at:]))


def _select(value: Any, dim: int, index: int) -> Any:
    at, shape, stride = axis_of(value, dim), list(value.shape), list(value.stride())
    if at is None or not -shape[at] <= index < shape[at]:
        return NotImplemented
    step = (index + shape[at] if index < 0 else index) * stride[at]
    return view_of(value, shape[:at] + shape[at + 1 :], stride[:at] + stride[at + 1 :], step)


def _slice(value: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Any:
    at, shape, stride = axis_of(value, dim), list(value.shape), list(value.stride())
    if at is None or step < 1:
        return NotImplemented
    first, last = _clamped(start, 0, shape[at]), _clamped(end, shape[at], shape[at])
    move = first * stride[at]
    shape[at] = max(0, (last - first + step - 1) // step)
    stride[at] *= step
    return view_of(value, shape, stride, move)


def put_into(view: Any) -> Any:
    """The rule of an operator that writes a view of a copy, which is laid out as what is copied is. It refuses what
    PyTorch's description lets pass. Of a tensor that shows an element more than once, as gradients of sums do, the copy
    shows each once: PyTorch before 2.13 says that it is laid out as that tensor is, which nobody could write to."""

    def rule(value: Any, source: Any, *where: Any, **named: Any) -> Any:
        part = view(value, *where, **named)
        if part is not NotImplemented and tuple(part.shape) != tuple(source.shape):
            sizes = f"src size = {list(source.shape)}, slice size = {list(part.shape)}"
            raise RuntimeError(f"expected src to have a size equal to the slice of self. {sizes}")
        if 0 not in value.stride():
            return NotImplemented if value.storage_offset() else _same(value)
        shape, stride = tuple(value.shape), tuple(value.stride())
        if 0 in shape or all(step != 0 or size == 1 for size, step in zip(shape, stride, strict=True)):
            return NotImplemented
        return laid_out_like(value)

    return rule


def _put_at(value: Any, source: Any, dim: int, index: int) -> Any:
    """`select_scatter`."""
    if -value.dim() <= dim < value.dim() and not -value.shape[dim] <= index < value.shape[dim]:
        where = f"of size {list(value.shape)} at dimension {dim}"
        raise IndexError(f"select(): index {index} out of range for tensor {where}")
    return put_into(_select)(value, source, dim, index)


def _clamped(place: int | None, otherwise: int, size: int) -> int:
    """A bound of a slice as a place from 0 to `size`."""
    if place is None or (type(place) is int and place == sys.maxsize):
        return otherwise if place is None else size
    if place < 0:
        place = place + size
    return 0 if place < 0 else size if place > size else place


def _squeeze(value: Any, dim: int) -> Any:
    at = axis_of(value, dim)
    if at is None:
        return NotImplemented
    return _select(value, at, 0) if value.shape[at] == 1 else _same(value)


def _view(value: Any, size: Sequence[int]) -> Any:
    """Of a tensor with elements; PyTorch knows about the rest, and what to say where no view is possible."""
    shape, old = list(size), tuple(value.shape)
    if 0 in old:
        return NotImplemented
    count = product(old)
    if shape.count(-1) == 1:
        known = -product(shape)
        if known <= 0 or count % known:
            return NotImplemented
        shape[shape.index(-1)] = count // known
    if any(extent < 0 for extent in shape) or product(shape) != count:
        return NotImplemented
    stride = strides_of_view(old, tuple(value.stride()), shape)
    return NotImplemented if stride is None else view_of(value, shape, stride)


def strides_of_view(old: Sequence[int], stride: Sequence[int], new: Sequence[int]) -> list[int] | None:
    """Dimensions that are contiguous with each other form a block; each block is split anew on its own."""
    strides: list[int] = [1] * len(new)
    if not old:
        return strides
    place = len(new) - 1
    step, elements, covered = stride[-1], 1, 1
    for dim in range(len(old) - 1, -1, -1):
        elements = elements * old[dim]
        if dim > 0 and (old[dim - 1] == 1 or stride[dim - 1] == elements * step):
            continue
        while place >= 0 and (covered < elements or new[place] == 1):
            strides[place] = covered * step
            covered = covered * new[place]
            place -= 1
        if covered != elements:
            return None
        if dim > 0:
            step, elements, covered = stride[dim - 1], 1, 1
    return strides if place < 0 else None


def _reshape_alias(value: Any, size: Sequence[int], stride: Sequence[int]) -> Any:
    return view_of(value, list(size), list(stride))


def _split_with_sizes(value: Any, sizes: Sequence[int], dim: int = 0) -> Any:
    at, shape, stride = axis_of(value, dim), list(value.shape), list(value.stride())
    if at is None or any(size < 0 for size in sizes) or sum(sizes) != shape[at]:
        return NotImplemented
    parts, start = [], 0
    for size in sizes:
        parts.append(view_of(value, [*shape[:at], size, *shape[at + 1 :]], stride, start * stride[at]))
        start = start + size
    return parts


def _split(value: Any, size: int, dim: int = 0) -> Any:
    if axis_of(value, dim) is None or size < 1:
        return NotImplemented
    extent = value.shape[dim]
    count = int((extent + size - 1) // size)  # how many tensors come out is specialized
    if count == 0:
        return NotImplemented
    return _split_with_sizes(value, [*[size] * (count - 1), extent - size * (count - 1)], dim)


RULES = by_operator(
    (_same, "detach alias lift_fresh"),
    (_permute, "permute"),
    (_transpose, "transpose.int"),
    (_t, "t"),
    (_expand, "expand"),
    (_unsqueeze, "unsqueeze"),
    (_select, "select.int"),
    (_slice, "slice.Tensor"),
    (_put_at, "select_scatter"),
    (put_into(_slice), "slice_scatter"),
    (_split, "split.Tensor"),
    (_split_with_sizes, "split_with_sizes"),
    (_squeeze, "squeeze.dim"),
    (_view, "view _unsafe_view"),
    (_reshape_alias, "_reshape_alias"),
)
