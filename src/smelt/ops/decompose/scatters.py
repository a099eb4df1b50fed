"""Scattering one element a row, and by masks: compared or chosen into place. Scatters that are several in one.

    scatter(zeros(3, 5), 1, i64[3, 1], 1.0)  →  where(column == index, 1.0, zeros)       a one-hot; nothing is scattered
    index_put(x, [mask], 0.0)                →  where(mask, 0.0, x)
    scatter_reduce(x, 0, i, s, "mean")       →  scatter_add(x, 0, i, s) / (1 + how many came)

No two elements meet then, so it is the same whatever the indices are. The operator itself stays in the graph beside it,
unread: it raises for an index out of range, and is called only then.
"""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from smelt.ops.decompose.table import choose, constant, decomposes, left_whole

if TYPE_CHECKING:
    import torch
else:
    from smelt.base.torch_originals import pristine as torch

Tensor = torch.Tensor
aten = torch.ops.aten

_ADDING = frozenset({aten.scatter_add.default})


def _scattered(op: Any) -> Callable[..., Any]:
    def scatter(x: Tensor, dim: int, index: Tensor, source: Any) -> Any:
        if x.dim() == 0 or index.shape[dim] != 1 or isinstance(source, float) > x.dtype.is_floating_point:
            return NotImplemented
        apart = [size for each, size in enumerate(x.shape) if each != dim % x.dim()]
        if apart != [size for each, size in enumerate(index.shape) if each != dim % x.dim()]:
            return NotImplemented
        if isinstance(source, Tensor) and (source.shape != index.shape or source.dtype is not x.dtype):
            return NotImplemented
        left_whole(op, x, dim, index, source)
        # In 32 bits, if they can number the places: twice as many are compared at a time.
        number = torch.int32 if x.shape[dim] < 2**31 else torch.int64
        across = [-1 if each == dim % x.dim() else 1 for each in range(x.dim())]
        places = aten.arange.default(x.shape[dim], dtype=number, device=x.device).view(across)
        put = source if isinstance(source, Tensor) else constant(source, x)
        return torch.where(places == index.to(number), x + put if op in _ADDING else put, x)

    return scatter


@decomposes(aten.index_put.default, aten._index_put_impl.default)
def index_put(
    x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False, unsafe: bool = False
) -> Any:
    """By one mask, if one element goes everywhere: how many places there are does not matter then."""
    indexed_dims = [dim for dim, index in enumerate(indices) if index is not None]
    mask = indices[indexed_dims[0]] if len(indexed_dims) == 1 else None
    if mask is None or mask.dtype is not torch.bool or values.numel() != 1 or values.dtype is not x.dtype:
        return NotImplemented
    if mask.dim() == 0 or tuple(x.shape[indexed_dims[0] : indexed_dims[0] + mask.dim()]) != tuple(mask.shape):
        return NotImplemented
    after = x.dim() - indexed_dims[0] - mask.dim()
    element = values.reshape(())
    return torch.where(mask.reshape(*mask.shape, *([1] * after)), x + element if accumulate else element, x)


@decomposes(aten.scatter_reduce.two)
def scatter_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    """What was there is put out of the way first, where it does not count; a mean is a sum and a count."""
    if x.dtype is torch.bool or x.dim() == 0 or index.numel() == 0 or (include_self and reduce != "mean"):
        return NotImplemented
    if not include_self:
        x = aten.scatter.value(x, dim, index, _nothing(reduce, x.dtype))
    if reduce != "mean":
        return aten.scatter_reduce.two(x, dim, index, source, reduce)
    ones = aten.full.default(list(index.shape), 1, dtype=x.dtype, device=x.device)
    none = aten.full.default(list(x.shape), int(include_self), dtype=x.dtype, device=x.device)
    count = aten.scatter_add.default(none, dim, index, ones)
    total = aten.scatter_add.default(x, dim, index, source)
    count = choose(count == 0, 1, count)
    return total / count if x.dtype.is_floating_point else torch.div(total, count, rounding_mode="floor")


def _nothing(reduce: str, dtype: torch.dtype) -> float:
    """What a fold of nothing gives."""
    if reduce in ("sum", "mean", "prod"):
        return int(reduce == "prod")
    if dtype.is_floating_point:
        return -math.inf if reduce == "amax" else math.inf
    limits = torch.iinfo(dtype)
    return limits.min if reduce == "amax" else limits.max


for _op in (aten.scatter.src, aten.scatter.value, aten.scatter_add.default):
    decomposes(_op)(_scattered(_op))
