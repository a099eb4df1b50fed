"""Bags of embeddings where no library may be called: rows of a table, added up by the bag that each belongs to.

    embedding_bag(w, indices, offsets)   →   zeros[bags].index_add(bag of each, w[indices])
"""

import math
from typing import Any

import torch

from smelt.ops.decompose.table import choose, decomposes, expected_of, widen
from smelt.ops.decompose.without_library import TABLE

Tensor = torch.Tensor
aten = torch.ops.aten

_MEAN, _MAX = 1, 2


def embedding_bag(
    op: Any, table: Tensor, indices: Tensor, offsets: Tensor, by_frequency: bool = False, mode: int = 0,
    sparse: bool = False, weights: Tensor | None = None, last: bool = False, padding: int = -1,
) -> Any:  # fmt: skip
    """The bag of an index is how many bags begin up to it. What a backward needs beside the result is not computed."""
    if padding >= 0 or by_frequency:
        return NotImplemented
    count, bags = indices.shape[0], offsets.shape[0] - 1 if last else offsets.shape[0]
    starts = aten.slice.Tensor(offsets, 0, 0, bags)
    begun = aten.unsqueeze.default(starts, 1) <= torch.arange(count, device=table.device)
    bag = begun.to(torch.int64).sum(0) - 1
    rows = widen(aten.embedding.default(table, indices))
    if mode == _MAX:
        mine = aten.unsqueeze.default(bag, 0) == aten.unsqueeze.default(torch.arange(bags, device=table.device), 1)
        found = choose(aten.unsqueeze.default(mine, 2), aten.unsqueeze.default(rows, 0), -math.inf).amax(1)
        found = choose(aten.unsqueeze.default(mine.to(torch.int64).sum(1) == 0, 1), 0.0, found)
    else:
        rows = rows if weights is None else rows * aten.unsqueeze.default(widen(weights), 1)
        zeros = torch.zeros([bags, table.shape[1]], dtype=rows.dtype, device=table.device)
        found = zeros.index_add(0, bag, rows)
        if mode == _MEAN:
            sizes = torch.zeros([bags], dtype=torch.int64, device=table.device).index_add(0, bag, torch.ones_like(bag))
            found = found / aten.unsqueeze.default(sizes.clamp_min(1), 1).to(found.dtype)
    given = table, indices, offsets, by_frequency, mode, sparse, weights, last, padding
    others = expected_of(op, given, {})
    if others is NotImplemented:
        return NotImplemented
    made = [torch.zeros(list(each.shape), dtype=each.dtype, device=table.device) for each in others[1:]]
    return found.to(table.dtype), *made


@decomposes(aten._embedding_bag_forward_only.default, table=TABLE)
def forward_only(*given: Any) -> Any:
    return embedding_bag(aten._embedding_bag_forward_only.default, *given)
