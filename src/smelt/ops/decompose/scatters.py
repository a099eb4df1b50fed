"""Scattering one element a row: compared into place, where every row has one index.

    scatter(zeros(3, 5), 1, i64[3, 1], 1.0)  →  where(column == index, 1.0, zeros)       a one-hot; nothing is scattered

No two elements meet then, so it is the same whatever the indices are. The operator itself stays in the graph beside it,
unread: it raises for an index out of range, and is called only then.
"""

from collections.abc import Callable
from typing import Any

import torch

from smelt.ops.decompose.table import constant, decomposes, left_whole

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


for _op in (aten.scatter.src, aten.scatter.value, aten.scatter_add.default):
    decomposes(_op)(_scattered(_op))
