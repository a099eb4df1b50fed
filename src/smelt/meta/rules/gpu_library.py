"""Specs of operators that only GPUs have, in symbols too, which PyTorch's own descriptions do not know.

    aten._scaled_dot_product_efficient_attention(f32[2, 4, s, 64], …, True) → f32[2, 4, s, 64], f32[2, 4, ⌈s/32⌉·32], …
"""

from typing import Any

import torch

from smelt.ir.tensorspec import UnplacedSpec
from smelt.meta.rules.promotion import FLOATS
from smelt.meta.rules.reduction import row_major
from smelt.symbolic.shapes import contiguous_stride

_LINES = 32  # what is kept of each row of the scores is stored in whole lines


def _efficient_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any,
    keeps: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    """Heads are beside each other in memory, as they come out of a projection."""
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4 or query.dtype not in FLOATS or torch.version.hip:
        return NotImplemented
    batch, heads, rows, _ = query.shape
    width = value.shape[3]
    by_batch, by_row, by_head, by_column = contiguous_stride((batch, rows, heads, width))
    made = UnplacedSpec((batch, heads, rows, width), (by_batch, by_head, by_row, by_column), query.dtype)
    kept = (rows + _LINES - 1) // _LINES * _LINES if keeps else 0
    number = row_major((), torch.int64)
    return made, row_major((batch, heads, kept), torch.float32), number, number


RULES: dict[str, Any] = {"_scaled_dot_product_efficient_attention.default": _efficient_attention}
