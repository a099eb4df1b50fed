"""Specs of operators that make tensors from numbers, copy one, or make another like it.

aten.zeros([2, 3])                                  → f32[2, 3]
aten.arange(0, 10, 3)                               → i64[4]
aten._to_copy(f32[2, 3]:(1, 2), dtype=float64)      → f64[2, 3]:(1, 2)
"""

import math
from collections.abc import Sequence
from typing import Any

import torch

from smelt.ir.tensorspec import TensorSpec, UnplacedSpec
from smelt.meta.rules.promotion import FLOATS, KNOWN, number_dtype, result_dtype
from smelt.meta.rules.specs import by_operator, row_major
from smelt.meta.rules.strides import channels_last_stride, formatted_stride, is_dense, suggests_channels_last
from smelt.symbolic.shapes import Shape, contiguous_stride


def _plain(layout: Any) -> bool:
    return layout is None or layout is torch.strided


def _contiguous(shape: Sequence[int], dtype: torch.dtype | None) -> Any:
    sizes = tuple(shape)
    if any(size < 0 for size in sizes):
        return NotImplemented
    return row_major(sizes, dtype or torch.get_default_dtype())


def _sized(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    memory_format: torch.memory_format | None = None,
    **rest: Any,
) -> Any:
    if not _plain(layout) or memory_format not in (None, torch.contiguous_format):
        return NotImplemented
    return _contiguous(size, dtype)


def _random_sized(size: Sequence[int], *, dtype: torch.dtype | None = None, layout: Any = None, **rest: Any) -> Any:
    if dtype is not None and dtype not in FLOATS:
        return NotImplemented
    return _sized(size, dtype=dtype, layout=layout)


def _full(size: Sequence[int], fill: Any, *, dtype: torch.dtype | None = None, layout: Any = None, **rest: Any) -> Any:
    dtype = dtype or number_dtype(fill)
    return NotImplemented if dtype is None or not _plain(layout) else _contiguous(size, dtype)


def _empty_strided(
    size: Sequence[int], stride: Sequence[int], *, dtype: torch.dtype | None = None, layout: Any = None, **rest: Any
) -> Any:
    if not _plain(layout) or len(size) != len(stride) or any(n < 0 for n in (*size, *stride)):
        return NotImplemented
    return UnplacedSpec(tuple(size), tuple(stride), dtype or torch.get_default_dtype())


def _scalar_tensor(value: Any, *, dtype: torch.dtype | None = None, layout: Any = None, **rest: Any) -> Any:
    return _contiguous((), dtype) if _plain(layout) else NotImplemented


def _arange(*numbers: Any, dtype: torch.dtype | None = None, layout: Any = None, **rest: Any) -> Any:
    """Of an end, or of a start, an end and perhaps a step."""
    start, end, step = numbers = (0, *numbers, 1) if len(numbers) == 1 else (*numbers, 1)[:3]
    whole = all(type(number) in (int, torch.SymInt) for number in numbers)
    if not whole and any(type(number) not in (int, float) or not math.isfinite(number) for number in numbers):
        return NotImplemented
    if step == 0 or (end - start) * step < 0 or not _plain(layout):
        return NotImplemented
    dtype = dtype or (torch.int64 if whole else torch.get_default_dtype())
    if dtype not in KNOWN - {torch.bool} or (not whole and dtype not in FLOATS):
        return NotImplemented
    count = -((start - end) // step) if whole else math.ceil((end - start) / step)
    return _contiguous((count,), dtype)


def _like(
    value: Any,
    *fill: Any,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    memory_format: torch.memory_format | None = None,
    **rest: Any,
) -> Any:
    """`empty_like` and family, `clone`, `_to_copy`."""
    shape = tuple(value.shape)
    stride = formatted_stride(shape, value.stride(), memory_format)
    if stride is None or not _plain(layout) or not _plain(value.layout):
        return NotImplemented
    return UnplacedSpec(shape, stride, dtype or value.dtype)


def _random_like(value: Any, *, dtype: torch.dtype | None = None, **rest: Any) -> Any:
    return _like(value, dtype=dtype, **rest) if (dtype or value.dtype) in FLOATS else NotImplemented


def _bernoulli(value: Any, *rest: Any, **options: Any) -> Any:
    return _contiguous(value.shape, value.dtype) if value.dtype in FLOATS else NotImplemented


def _new(
    value: Any, size: Sequence[int], *fill: Any, dtype: torch.dtype | None = None, layout: Any = None, **rest: Any
) -> Any:
    return _contiguous(size, dtype or value.dtype) if _plain(layout) else NotImplemented


def _new_strided(
    value: Any,
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    **rest: Any,
) -> Any:
    return _empty_strided(size, stride, dtype=dtype or value.dtype, layout=layout)


def _triangle(value: Any, *diagonal: Any) -> Any:
    return _contiguous(value.shape, value.dtype) if value.dim() >= 2 and value.is_contiguous() else NotImplemented


def _copy(value: Any, source: Any, *rest: Any) -> Any:
    """`source`, a number or a tensor, written over all of `value`, as a new tensor laid out like `value`."""
    shape = tuple(value.shape)
    source_shape = tuple(source.shape) if isinstance(source, torch.Tensor | TensorSpec) else ()
    if len(source_shape) > len(shape) or value.dtype not in KNOWN or getattr(source, "dtype", value.dtype) not in KNOWN:
        return NotImplemented
    for size, have in zip(reversed(shape), reversed(source_shape), strict=False):
        if have not in (1, size):
            return NotImplemented
    if not is_dense(shape, value.stride()):
        return NotImplemented
    return UnplacedSpec(shape, value.stride(), value.dtype)


def _cat(tensors: Sequence[Any], dim: int = 0) -> Any:
    """Row-major, unless every tensor is channels-last."""
    first = tensors[0] if tensors else None
    dtype = result_dtype(tensors)
    if first is None or dtype is None or first.dim() == 0 or not -first.dim() <= dim < first.dim():
        return NotImplemented
    axis = dim % first.dim()
    shape: Shape = tuple(first.shape)
    total = 0
    for tensor in tensors:
        have = tuple(tensor.shape)
        if len(have) != len(shape) or have[:axis] != shape[:axis] or have[axis + 1 :] != shape[axis + 1 :]:
            return NotImplemented
        total += have[axis]
    out = (*shape[:axis], total, *shape[axis + 1 :])
    channels_last = all(suggests_channels_last(tensor.shape, tensor.stride()) for tensor in tensors)
    stride = channels_last_stride(out) if channels_last else contiguous_stride(out)
    return UnplacedSpec(out, stride, dtype)


def _stack(tensors: Sequence[Any], dim: int = 0) -> Any:
    """Row-major; where channels-last could be meant, PyTorch is asked."""
    dtype = result_dtype(tensors)
    if not tensors or dtype is None:
        return NotImplemented
    shape: Shape = tuple(tensors[0].shape)
    if any(tuple(tensor.shape) != shape for tensor in tensors) or not -len(shape) - 1 <= dim <= len(shape):
        return NotImplemented
    if len(shape) > 2 and any(tensor.stride() != contiguous_stride(shape) or 1 in shape for tensor in tensors):
        return NotImplemented
    axis = dim % (len(shape) + 1)
    out = (*shape[:axis], len(tensors), *shape[axis:])
    return row_major(out, dtype)


RULES = by_operator(
    (_sized, "empty.memory_format zeros ones"),
    (_random_sized, "rand randn"),
    (_full, "full"),
    (_empty_strided, "empty_strided"),
    (_scalar_tensor, "scalar_tensor"),
    (_arange, "arange arange.start arange.start_step"),
    (_like, "empty_like zeros_like ones_like full_like clone _to_copy"),
    (_random_like, "rand_like randn_like"),
    (_bernoulli, "bernoulli bernoulli.p"),
    (_copy, "copy"),
    (_new, "new_empty new_zeros new_ones new_full"),
    (_new_strided, "new_empty_strided"),
    (_triangle, "tril triu"),
    (_cat, "cat"),
    (_stack, "stack"),
)
