"""Elements put together by number: bags of embeddings, segments, and what is written at indices.

    embedding_bag(w, indices, offsets)   →   w[indices], added up by the bag of each: how many bags begin up to it
    segment_reduce(x, "mean", lengths)   →   scatter_reduce by the segment of each
"""

import math
from collections.abc import Sequence
from typing import Any

import torch

from smelt.chips.decompose.table import DoesNotApply, computes

Tensor = torch.Tensor
aten = torch.ops.aten

_SUM, _MEAN, _MAX = 0, 1, 2


@computes(aten.put.default)
def put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    made: Tensor = aten.index_put.default(x.reshape(-1), [index.reshape(-1)], source.reshape(-1), accumulate)
    return made.view(x.shape)


@computes(aten.index_reduce.default)
def index_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    rows, given = (each if each.dim() else each.reshape(1) for each in (x, source))
    at = dim % rows.dim()
    index = index.reshape([-1 if d == at else 1 for d in range(rows.dim())]).expand(given.shape)
    return rows.scatter_reduce(at, index, given, reduce, include_self=include_self).view(x.shape)


@computes(aten.index_fill.int_Tensor)
def index_fill(x: Tensor, dim: int, index: Tensor, value: Tensor) -> Tensor:
    if value.dim():
        raise RuntimeError("the value has dimensions")
    rows = x if x.dim() else x.reshape(1)
    shape = list(rows.shape)
    shape[dim] = index.numel()
    return rows.index_copy(dim, index.reshape(-1), value.to(x.dtype).expand(shape)).view(x.shape)


# Bags.


def _bags(offsets: Tensor, count: int, bags: int) -> Tensor:
    """The bag of each of so many."""
    places = torch.arange(count, device=offsets.device)
    found: Tensor = aten.searchsorted.Tensor(offsets[:bags].to(torch.int64), places, right=True)
    return found - 1


def _counted(bag: Tensor, kept: Tensor, bags: int) -> Tensor:
    return torch.zeros([bags], dtype=torch.int64, device=bag.device).scatter_add(0, bag, kept.to(torch.int64))


@computes(aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
def embedding_bag(
    weight: Tensor, indices: Tensor, offsets: Tensor, scale_by_freq: bool = False, mode: int = _SUM,
    sparse: bool = False, weights: Tensor | None = None, include_last: bool = False, padding: int = -1,
) -> Any:  # fmt: skip
    indices = indices.to(torch.int64)
    count, bags = indices.numel(), offsets.numel() - include_last
    if not count or not bags:
        raise DoesNotApply("no elements")
    if bool(((indices < 0) | (indices >= weight.shape[0])).any().item()):
        raise IndexError("an index is out of range")
    bag = _bags(offsets, count, bags)
    kept = indices != padding % weight.shape[0] if padding != -1 else torch.ones_like(indices, dtype=torch.bool)
    sizes = _counted(bag, kept, bags)
    each = weight[indices]
    chosen = torch.zeros([bags, weight.shape[1]] if mode == _MAX else [bags], dtype=torch.int64, device=weight.device)
    if mode == _MAX:
        found, chosen = _greatest(each, indices, bag, kept, bags)
    else:
        each = each if weights is None else each * weights.unsqueeze(1)
        each = torch.where(kept.unsqueeze(1), each, 0.0)
        zeros = torch.zeros([bags, weight.shape[1]], dtype=weight.dtype, device=weight.device)
        found = zeros.index_add(0, bag, each)
        if mode == _MEAN:
            found = found / sizes.clamp(min=1).to(weight.dtype).unsqueeze(1)
    # What PyTorch does at once, and says nothing of bags then.
    fast = mode == _SUM and padding < 0 and weight.stride(1) == 1 and (weights is None or weights.stride(0) == 1)
    return found, bag[:0] if fast else bag, sizes, chosen if mode == _MAX else sizes


def _greatest(
    each: Tensor, indices: Tensor, bag: Tensor, kept: Tensor, bags: int
) -> tuple[Tensor, Tensor]:
    """The greatest of each bag, and the row of the embeddings that it is from; 0 where there is nothing."""
    shape = [bags, each.shape[1]]
    low = torch.where(kept.unsqueeze(1), each, -math.inf)
    where = bag.unsqueeze(1).expand(each.shape)
    lowest = torch.full(shape, -math.inf, dtype=each.dtype, device=each.device)
    best = lowest.scatter_reduce(0, where, low, "amax")
    count = indices.numel()
    place = torch.arange(count, device=each.device).unsqueeze(1)
    fits = (low == best[bag]) & kept.unsqueeze(1)
    none = torch.full(shape, count, dtype=torch.int64, device=each.device)
    first = none.scatter_reduce(0, where, torch.where(fits, place, count), "amin")
    empty = first == count
    return torch.where(empty, 0.0, best), torch.where(empty, 0, indices[first.clamp(max=count - 1)])


@computes(aten._embedding_bag_backward.default)
def embedding_bag_backward(
    grad: Tensor, indices: Tensor, offsets: Tensor, bag: Tensor, sizes: Tensor, chosen: Tensor, rows: int,
    scale_by_freq: bool, mode: int, sparse: bool, weights: Tensor | None, padding: int = -1,
) -> Tensor:  # fmt: skip
    if sparse:
        raise DoesNotApply("sparse tensors")
    bag = bag if bag.numel() else _bags(offsets, indices.numel(), grad.shape[0])
    indices = indices.to(torch.int64)
    return _dense_backward(grad, indices, bag, sizes, chosen, rows, scale_by_freq, mode, weights, padding)


@computes(aten._embedding_bag_dense_backward.default)
def _dense_backward(
    grad: Tensor, indices: Tensor, bag: Tensor, sizes: Tensor, chosen: Tensor, rows: int, scale_by_freq: bool,
    mode: int, weights: Tensor | None, padding: int = -1,
) -> Tensor:  # fmt: skip
    made = torch.zeros([rows, grad.shape[1]], dtype=grad.dtype, device=grad.device)
    if mode == _MAX:
        return made.scatter_add(0, chosen, torch.where(sizes.unsqueeze(1) > 0, grad, 0.0))
    each = grad[bag]
    if mode == _MEAN:
        each = each / sizes.clamp(min=1).to(grad.dtype)[bag].unsqueeze(1)
    if weights is not None:
        each = each * weights.unsqueeze(1)
    if scale_by_freq:
        often = torch.zeros([rows], dtype=torch.int64, device=grad.device)
        often = often.scatter_add(0, indices, torch.ones_like(indices))
        each = each / often[indices].to(grad.dtype).unsqueeze(1)
    if padding != -1:
        each = torch.where((indices != padding % rows).unsqueeze(1), each, 0.0)
    return made.index_add(0, indices, each)


@computes(aten._embedding_bag_per_sample_weights_backward.default)
def weights_backward(
    grad: Tensor, weight: Tensor, indices: Tensor, offsets: Tensor, bag: Tensor, mode: int, padding: int = -1
) -> Tensor:
    bag = bag if bag.numel() else _bags(offsets, indices.numel(), grad.shape[0])
    found = (grad[bag] * weight[indices]).sum(1)
    return found if padding == -1 else torch.where(indices != padding % weight.shape[0], found, 0.0)


# Segments.


_STARTS = {"sum": 0.0, "mean": 0.0, "max": -math.inf, "min": math.inf, "prod": 1.0}
_REDUCTIONS = {"sum": "sum", "mean": "sum", "max": "amax", "min": "amin", "prod": "prod"}


def _segments(x: Tensor, lengths: Tensor | None, offsets: Tensor | None, axis: int) -> tuple[Tensor, Tensor]:
    """How long each segment is, and the segment of each element."""
    if lengths is None:
        if offsets is None:
            raise RuntimeError("neither lengths nor offsets")
        lengths = offsets.diff(dim=-1)
    ends = lengths.to(torch.int64).cumsum(axis)
    places = torch.arange(x.shape[axis], device=x.device).expand([*x.shape[:axis], -1]).contiguous()
    number: Tensor = aten.searchsorted.Tensor(ends, places, right=True)
    return lengths, number


def _beside(table: Tensor, x: Tensor) -> Tensor:
    """A table for the first dims, for all there are."""
    return table.view([*table.shape, *[1] * (x.dim() - table.dim())])


@computes(aten.segment_reduce.default)
def segment_reduce(
    x: Tensor, reduce: str, *, lengths: Tensor | None = None, indices: Any = None, offsets: Tensor | None = None,
    axis: int = 0, unsafe: bool = False, initial: Any = None,
) -> Tensor:  # fmt: skip
    lengths, number = _segments(x, lengths, offsets, axis)
    count = lengths.shape[axis]
    if not unsafe and bool((lengths.sum(axis) != x.shape[axis]).any().item()):
        raise RuntimeError("the segments are not all there is")
    start = _STARTS[reduce] if initial is None else float(initial)
    shape: Sequence[int] = [*x.shape[:axis], count + 1, *x.shape[axis + 1 :]]
    made = torch.full(shape, start, dtype=x.dtype, device=x.device)
    made = made.scatter_reduce(axis, _beside(number, x).expand(x.shape), x, _REDUCTIONS[reduce]).narrow(axis, 0, count)
    if reduce == "mean":
        long = _beside(lengths, made).to(x.dtype)
        made = torch.where(long > 0.0, made / long.clamp(min=1.0), math.nan if initial is None else made)
    return made.contiguous()


@computes(aten._segment_reduce_backward.default)
def segment_reduce_backward(
    grad: Tensor, out: Tensor, x: Tensor, reduce: str, *, lengths: Tensor | None = None,
    offsets: Tensor | None = None, axis: int = 0, initial: Any = None,
) -> Tensor:  # fmt: skip
    lengths, number = _segments(x, lengths, offsets, axis)
    inside = _beside(number < lengths.shape[axis], x)
    where = _beside(number.clamp(max=lengths.shape[axis] - 1), x).expand(x.shape)
    found = grad.gather(axis, where)
    if reduce == "mean":
        found = found / _beside(lengths, grad).expand(grad.shape).to(x.dtype).gather(axis, where)
    elif reduce in ("max", "min"):
        chosen = ((x == out.gather(axis, where)) | x.isnan()).to(x.dtype)
        often = torch.zeros_like(out).scatter_add(axis, where, chosen)
        found = found * chosen / often.gather(axis, where).clamp(min=1.0)
    elif reduce == "prod":
        if bool((x == 0.0).any().item()):
            raise DoesNotApply("a factor is zero")
        found = found * out.gather(axis, where) / x
    return torch.where(inside, found, 0.0)
