"""Bags of embeddings with what their gradients need, and the gradients.

    embedding_bag(w, indices, offsets)   →   w[indices], added up by the bag of each: how many bags begin up to it
"""

import math
from typing import Any

import torch

from smelt.chips.decompose.table import DoesNotApply, computes

Tensor = torch.Tensor
aten = torch.ops.aten

_SUM, _MEAN, _MAX = 0, 1, 2


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
    if sparse or scale_by_freq:
        raise DoesNotApply("sparse tensors, or gradients scaled by frequency")
    bag = bag if bag.numel() else _bags(offsets, indices.numel(), grad.shape[0])
    indices = indices.to(torch.int64)
    made = torch.zeros([rows, grad.shape[1]], dtype=grad.dtype, device=grad.device)
    if mode == _MAX:
        return made.scatter_add(0, chosen, torch.where(sizes.unsqueeze(1) > 0, grad, 0.0))
    each = grad[bag]
    if mode == _MEAN:
        each = each / sizes.clamp(min=1).to(grad.dtype)[bag].unsqueeze(1)
    if weights is not None:
        each = each * weights.unsqueeze(1)
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
