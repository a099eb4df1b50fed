"""Specs of operators that move elements about: repeat, pad, flip, sort, scatter, diagonals, windows.

    aten.repeat(f32[2, 3], [4, 1, 2])            → f32[4, 2, 6]
    aten.constant_pad_nd(f32[2, 3], [1, 2])      → f32[2, 6]
    aten.unfold(f32[7, 3], 0, 2, 1)              → f32[6, 3, 2]:(3, 1, 3)

PyTorch's own descriptions of these are written in Python, import sympy, or rely on the sizes they are asked about.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from smelt.ir.tensorspec import UnplacedSpec
from smelt.meta.rules.indexing import index_of
from smelt.meta.rules.promotion import FLOATS, KNOWN
from smelt.meta.rules.specs import axis_of, by_operator, laid_out_like, row_major, suggested
from smelt.meta.rules.strides import broadcast, iterator_stride, like_stride
from smelt.meta.rules.views import put_into, view_of


def _size(value: Any) -> Any:
    return list(value.shape)


def _flip(value: Any, dims: Sequence[int]) -> Any:
    places = [axis_of(value, dim) for dim in dims]
    return laid_out_like(value) if None not in places and len(set(places)) == len(places) else NotImplemented


def _drawn(value: Any, *rest: Any, **options: Any) -> Any:
    """Filled at random in place: the tensor itself. Integers and booleans are PyTorch's business."""
    return view_of(value, value.shape, value.stride()) if value.dtype in FLOATS else NotImplemented


def _prelu(value: Any, weight: Any) -> Any:
    if value.dtype not in FLOATS or weight.dtype is not value.dtype or weight.dim() != value.dim():
        return NotImplemented
    fits = all(have in (1, size) for have, size in zip(weight.shape, value.shape, strict=True))
    return laid_out_like(value) if fits else NotImplemented


def _filled(value: Any, fill: Any) -> Any:
    if isinstance(fill, torch.Tensor) and fill.dim() > 0:
        return NotImplemented
    return view_of(value, value.shape, value.stride())


def _put(
    value: Any, indices: Sequence[Any], values: Any, accumulate: bool = False, unsafe: bool = False
) -> Any:
    """By integers, or by one mask if it is one element that goes everywhere."""
    known = values.dtype is value.dtype and value.dtype in KNOWN and len(indices) <= value.dim()
    if not known or 0 in value.shape:
        return NotImplemented
    indexed = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    if len(indexed) == 1 and indexed[0][1].dtype is torch.bool:
        dim, mask = indexed[0]
        fits = mask.dim() > 0 and tuple(value.shape[dim : dim + mask.dim()]) == tuple(mask.shape)
        return laid_out_like(value) if fits and values.numel() == 1 and values.dim() <= value.dim() else NotImplemented
    points = index_of(value, indices)
    if points is NotImplemented:
        return NotImplemented
    fits = values.dim() <= len(points.shape) and broadcast([points.shape, tuple(values.shape)]) == points.shape
    return laid_out_like(value) if fits else NotImplemented


def _repeat(value: Any, repeats: Sequence[int]) -> Any:
    new = len(repeats) - value.dim()
    if new < 0 or any(times < 0 for times in repeats):
        return NotImplemented
    shape = (*[1] * new, *value.shape)
    return row_major(tuple(size * times for size, times in zip(shape, repeats, strict=True)), value.dtype)


def _pad(value: Any, pad: Sequence[int], fill: Any = 0) -> Any:
    """Padding that only crops copies what is left; the rest is laid out anew."""
    rank, count = value.dim(), len(pad) // 2
    if len(pad) % 2 or count > rank:
        return NotImplemented
    shape = list(value.shape)
    for place in range(count):
        size = shape[-1 - place]
        low, high = pad[2 * place], pad[2 * place + 1]
        if (low < 0 and low + size < 0) or (high < 0 and high + size < 0) or low + high + size < 0:
            return NotImplemented
        shape[-1 - place] = size + low + high
    if all(each <= 0 for each in pad):
        return UnplacedSpec(tuple(shape), like_stride(tuple(shape), value.stride()), value.dtype)
    return suggested(tuple(shape), value)


def _unbind(value: Any, dim: int = 0) -> Any:
    at = axis_of(value, dim)
    if at is None:
        return NotImplemented
    shape, stride = list(value.shape), list(value.stride())
    count, step = int(shape[at]), stride[at]  # how many tensors come out is specialized
    del shape[at], stride[at]
    return [view_of(value, shape, stride, index * step) for index in range(count)]


def _diagonal(value: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    first, second = axis_of(value, dim1), axis_of(value, dim2)
    if first is None or second is None or first == second:
        return NotImplemented
    shape, stride = list(value.shape), list(value.stride())
    if offset >= 0:
        size, step = torch.sym_min(shape[first], shape[second] - offset), offset * stride[second]  # type: ignore[no-untyped-call]
    else:
        size, step = torch.sym_min(shape[first] + offset, shape[second]), -offset * stride[first]  # type: ignore[no-untyped-call]
    if size <= 0:
        return NotImplemented
    along = stride[first] + stride[second]
    kept = [dim for dim in range(len(shape)) if dim not in (first, second)]
    return view_of(value, [*(shape[dim] for dim in kept), size], [*(stride[dim] for dim in kept), along], step)


def _diag_embed(value: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    rank = value.dim() + 1
    if value.dim() == 0 or not (-rank <= dim1 < rank and -rank <= dim2 < rank) or dim1 % rank == dim2 % rank:
        return NotImplemented
    size = value.shape[-1] + (offset if offset >= 0 else -offset)
    shape = list(value.shape[:-1])
    for place in sorted((dim1 % rank, dim2 % rank)):
        shape.insert(place, size)
    return row_major(tuple(shape), value.dtype)


def _unfold(value: Any, dimension: int, size: int, step: int) -> Any:
    at = axis_of(value, dimension)
    if at is None or size < 0 or step < 1 or size > value.shape[at]:
        return NotImplemented
    shape, stride = list(value.shape), list(value.stride())
    inner = stride[at]
    shape[at], stride[at] = (shape[at] - size) // step + 1, inner * step
    return view_of(value, [*shape, size], [*stride, inner])


def backward_of_view(grad: Any, sizes: Sequence[int], *rest: Any) -> Any:
    """Zeros of the whole, with the gradient in its place."""
    return row_major(tuple(sizes), grad.dtype)


def _glu(value: Any, dim: int = -1) -> Any:
    at = axis_of(value, dim)
    if at is None or value.dtype not in FLOATS or value.shape[at] % 2 != 0:
        return NotImplemented
    shape = (*value.shape[:at], value.shape[at] // 2, *value.shape[at + 1 :])
    layout = (shape, tuple(value.stride()))
    return UnplacedSpec(shape, iterator_stride(shape, [layout, layout]), value.dtype)


def _sort(value: Any, dim: int = -1, descending: bool = False, *, stable: bool | None = None) -> Any:
    if axis_of(value, dim) is None or value.dtype not in KNOWN:
        return NotImplemented
    values = laid_out_like(value)
    return values, replace(values, dtype=torch.int64)


def _topk(value: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    at = axis_of(value, dim)
    if at is None or value.dtype not in KNOWN - {torch.bool} or k < 0 or k > value.shape[at]:
        return NotImplemented
    shape = (*value.shape[:at], k, *value.shape[at + 1 :])
    return row_major(shape, value.dtype), row_major(shape, torch.int64)


def _scatter(value: Any, dim: int, index: Any, source: Any, **options: Any) -> Any:
    """`scatter`, `scatter_add`: row-major."""
    at = axis_of(value, dim)
    if at is None or index.dtype is not torch.int64 or index.dim() != value.dim() or 0 in index.shape:
        return NotImplemented
    bounds = [tuple(value.shape)]
    if isinstance(source, torch.Tensor):
        if source.dtype is not value.dtype or source.dim() != value.dim():
            return NotImplemented
        bounds.append(tuple(source.shape))
    for place, bound in enumerate(bounds):
        if any(have > size for d, (have, size) in enumerate(zip(index.shape, bound, strict=True)) if d != at or place):
            return NotImplemented
    return row_major(tuple(value.shape), value.dtype)


def _index_add(value: Any, dim: int, index: Any, source: Any, *, alpha: Any = 1) -> Any:
    at = axis_of(value, dim)
    if at is None or index.dim() != 1 or index.dtype not in (torch.int64, torch.int32) or source.dim() != value.dim():
        return NotImplemented
    wanted = (*value.shape[:at], index.shape[0], *value.shape[at + 1 :])
    if source.dtype is not value.dtype or any(a != b for a, b in zip(source.shape, wanted, strict=True)):
        return NotImplemented
    return row_major(tuple(value.shape), value.dtype)


def _index_copy(value: Any, dim: int, index: Any, source: Any) -> Any:
    return _index_add(value, dim, index, source) if index.dtype is torch.int64 else NotImplemented


def _scatter_reduce(value: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True) -> Any:
    known = reduce in ("sum", "prod", "mean", "amax", "amin") and value.dtype in KNOWN - {torch.bool}
    return _scatter(value, dim, index, source) if known else NotImplemented


def _index_fill(value: Any, dim: int, index: Any, number: Any) -> Any:
    at = axis_of(value, dim)
    known = at is not None and index.dim() == 1 and index.dtype is torch.int64 and not isinstance(number, complex)
    return laid_out_like(value) if known else NotImplemented


def _eye(n: int, m: int | None = None, *, dtype: torch.dtype | None = None, layout: Any = None, **rest: Any) -> Any:
    shape = (n, n if m is None else m)
    if any(size < 0 for size in shape) or layout not in (None, torch.strided):
        return NotImplemented
    return row_major(shape, dtype or torch.get_default_dtype())


def _random_integers(*numbers: Any, dtype: torch.dtype | None = None, layout: Any = None, **rest: Any) -> Any:
    *bounds, size = numbers
    low, high = bounds if len(bounds) == 2 else (0, bounds[0])
    if layout not in (None, torch.strided) or any(each < 0 for each in size) or low >= high:
        return NotImplemented
    return row_major(tuple(size), torch.int64) if dtype in (None, torch.int64) else NotImplemented


def _linspace(start: Any, end: Any, steps: int, *, dtype: Any = None, layout: Any = None, **rest: Any) -> Any:
    if dtype is not None or layout not in (None, torch.strided) or {type(start), type(end)} - {int, float} or steps < 0:
        return NotImplemented
    return row_major((steps,), torch.get_default_dtype())


def _multinomial(value: Any, samples: int, replacement: bool = False, *, generator: Any = None) -> Any:
    if value.dim() not in (1, 2) or value.dtype not in FLOATS or samples < 1:
        return NotImplemented
    if not replacement and samples > value.shape[-1]:
        return NotImplemented
    return row_major((*value.shape[:-1], samples), torch.int64)


RULES = by_operator(
    (_size, "size"),
    (_flip, "flip"),
    (_repeat, "repeat"),
    (_pad, "constant_pad_nd"),
    (_unbind, "unbind.int"),
    (_diagonal, "diagonal"),
    (put_into(_diagonal), "diagonal_scatter"),
    (_diag_embed, "diag_embed"),
    (_unfold, "unfold"),
    (backward_of_view, "unfold_backward diagonal_backward"),
    (_glu, "glu"),
    (_sort, "sort sort.stable"),
    (_topk, "topk"),
    (_scatter, "scatter.src scatter.value scatter_add"),
    (_scatter_reduce, "scatter_reduce.two"),
    (_index_add, "index_add"),
    (_index_copy, "index_copy"),
    (_index_fill, "index_fill.int_Scalar"),
    (_eye, "eye eye.m"),
    (_linspace, "linspace"),
    (_filled, "fill_.Tensor fill_.Scalar"),
    (_put, "index_put _index_put_impl _unsafe_index_put"),
    (_random_integers, "randint randint.low"),
    (_multinomial, "multinomial"),
    (_prelu, "_prelu_kernel"),
    (_drawn, "exponential_ normal_ uniform_"),
)
