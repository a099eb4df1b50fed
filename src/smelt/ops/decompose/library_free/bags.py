"""Bags of embeddings and their gradients: rows of a table, added up by the bag that each belongs to.

    embedding_bag(w, indices, offsets)   →   zeros[bags].index_add(0, bag, w[indices]), bag: how many begin up to each
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from smelt.ops.decompose.table import choose, decomposes, expected_of, widen
from smelt.ops.decompose.without_library import TABLE

Tensor = torch.Tensor
aten = torch.ops.aten

_MEAN, _MAX = 1, 2
_NONE = 2**62  # more than any place


def _column(x: Tensor) -> Tensor:
    column: Tensor = aten.unsqueeze.default(x, 1)
    return column


def _bag_of_each(offsets: Tensor, count: Any, bags: Any) -> Tensor:
    starts = aten.slice.Tensor(offsets, 0, 0, bags)
    begun = _column(starts) <= torch.arange(count, device=offsets.device)
    return begun.to(torch.int64).sum(0) - 1


def _is_counted(indices: Tensor, padding: int, rows: int) -> Tensor | None:
    return None if padding == -1 else indices != padding % rows


def _without(padded: Tensor | None, rows: Tensor, instead: float = 0.0) -> Tensor:
    return rows if padded is None else choose(_column(padded), rows, instead)


def embedding_bag(
    op: Any, table: Tensor, indices: Tensor, offsets: Tensor, by_frequency: bool = False, mode: int = 0,
    sparse: bool = False, weights: Tensor | None = None, last: bool = False, padding: int = -1,
) -> Any:  # fmt: skip
    """What a backward needs beside the sums has the operator's shapes: nothing, where it needs nothing."""
    expected = expected_of(op, (table, indices, offsets, by_frequency, mode, sparse, weights, last, padding), {})
    if expected is NotImplemented:
        return NotImplemented
    count, bags = indices.shape[0], offsets.shape[0] - 1 if last else offsets.shape[0]
    bag, counted = _bag_of_each(offsets, count, bags), _is_counted(indices, padding, table.shape[0])
    rows = widen(aten.embedding.default(table, indices))
    each_counts = torch.ones_like(bag) if counted is None else counted.to(torch.int64)
    sizes = torch.zeros([bags], dtype=torch.int64, device=table.device).index_add(0, bag, each_counts)
    chosen = sizes
    if mode == _MAX:
        sums, chosen = _greatest(rows, indices, bag, counted, bags)
    else:
        rows = rows if weights is None else rows * _column(widen(weights))
        zeros = torch.zeros([bags, table.shape[1]], dtype=rows.dtype, device=table.device)
        sums = zeros.index_add(0, bag, _without(counted, rows))
        if mode == _MEAN:
            sums = sums / _column(sizes.clamp_min(1)).to(sums.dtype)
    kept = [
        value.to(spec.dtype)
        if tuple(value.shape) == spec.shape
        else torch.zeros(list(spec.shape), dtype=spec.dtype, device=table.device)
        for value, spec in zip((bag, sizes, chosen), expected[1:], strict=True)
    ]
    return sums.to(table.dtype), *kept


def _greatest(rows: Tensor, indices: Tensor, bag: Tensor, counted: Tensor | None, bags: Any) -> tuple[Tensor, Tensor]:
    """The greatest of each bag, and the row of the table that it is from; 0 where there is nothing."""
    shape = [bags, rows.shape[1]]
    low = _without(counted, rows, -math.inf)
    into = aten.expand.default(_column(bag), list(rows.shape))
    lowest = torch.full(shape, -math.inf, dtype=rows.dtype, device=rows.device)
    best = lowest.scatter_reduce(0, into, low, "amax")
    fits = low == aten.index_select.default(best, 0, bag)
    fits = fits if counted is None else fits & _column(counted)
    place = torch.arange(rows.shape[0], device=rows.device)
    none = torch.full(shape, _NONE, dtype=torch.int64, device=rows.device)
    first = none.scatter_reduce(0, into, choose(fits, _column(place), _NONE), "amin")
    is_empty = first == _NONE
    row = aten.index.Tensor(indices, [choose(is_empty, 0, first)])
    return choose(is_empty, 0.0, best), choose(is_empty, 0, row)


for _op in (aten._embedding_bag.default, aten._embedding_bag_forward_only.default):
    decomposes(_op, table=TABLE)(partial(embedding_bag, _op))


def _gradient(op: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """No rule describes these results: they are contiguous."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        TABLE[op] = function
        return function

    return enter


@_gradient(aten._embedding_bag_backward.default)
def backward(
    grad: Tensor, indices: Tensor, offsets: Tensor, bag: Tensor, sizes: Tensor, chosen: Tensor, rows: Any,
    by_frequency: bool, mode: int, sparse: bool, weights: Tensor | None, padding: int = -1,
) -> Any:  # fmt: skip
    if sparse or by_frequency or 0 in indices.shape or 0 in grad.shape:
        return NotImplemented
    bag = _bag_of_each(offsets, indices.shape[0], grad.shape[0]) if 0 in bag.shape else bag
    wide = widen(grad)
    zeros = torch.zeros([rows, grad.shape[1]], dtype=wide.dtype, device=grad.device)
    if mode == _MAX:
        return zeros.scatter_add(0, chosen, choose(_column(sizes) > 0, wide, 0.0)).to(grad.dtype)
    each = aten.index_select.default(wide, 0, bag)
    if mode == _MEAN:
        each = each / _column(aten.index_select.default(sizes.clamp_min(1), 0, bag)).to(wide.dtype)
    each = each if weights is None else each * _column(widen(weights))
    return zeros.index_add(0, indices, _without(_is_counted(indices, padding, rows), each)).to(grad.dtype)


@_gradient(aten._embedding_bag_per_sample_weights_backward.default)
def weights_backward(
    grad: Tensor, table: Tensor, indices: Tensor, offsets: Tensor, bag: Tensor, mode: int, padding: int = -1
) -> Any:
    if 0 in indices.shape or 0 in grad.shape:
        return NotImplemented
    bag = _bag_of_each(offsets, indices.shape[0], grad.shape[0]) if 0 in bag.shape else bag
    products = aten.index_select.default(widen(grad), 0, bag) * widen(aten.embedding.default(table, indices))
    sums, counted = products.sum(1), _is_counted(indices, padding, table.shape[0])
    return (sums if counted is None else choose(counted, sums, 0.0)).to(grad.dtype)
