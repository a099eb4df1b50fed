"""Dtypes: what PyTorch promotes operands to, and what kernels compute in.

    f16[3] * f64[] → f16       i32[3] * 2.5 → default float       computing dtype of bf16 → f32
"""

from collections.abc import Iterable

import torch

from smelt.ir.tensorspec import TensorSpec

KERNEL_DTYPES = frozenset(
    {
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    }
)


def widened(dtype: torch.dtype) -> torch.dtype:
    """What values of `dtype` are computed in inside a kernel."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def number_dtype(value: bool | int | float) -> torch.dtype:
    """What a Python number counts as before it meets a tensor."""
    if isinstance(value, bool):
        return torch.bool
    return torch.int64 if isinstance(value, int) else torch.get_default_dtype()


def promoted(operands: Iterable[TensorSpec | bool | int | float]) -> torch.dtype:
    """The dtype PyTorch computes in: tensors outrank 0-dim tensors, which outrank numbers; lower ranks raise the
    kind (bool, integer, float) but never the width."""
    ranks: list[torch.dtype | None] = [None, None, None]
    for operand in operands:
        if isinstance(operand, TensorSpec):
            rank, dtype = (0 if operand.shape else 1), operand.dtype
        else:
            rank, dtype = 2, number_dtype(operand)
        have = ranks[rank]
        ranks[rank] = dtype if have is None else torch.promote_types(have, dtype)
    found = _outrank(ranks[0], _outrank(ranks[1], ranks[2]))
    return found if found is not None else torch.get_default_dtype()


def _outrank(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    if higher is None or lower is None:
        return higher if higher is not None else lower
    if higher.is_floating_point or higher.is_complex:
        return higher
    if higher is torch.bool or lower.is_floating_point or lower.is_complex:
        return torch.promote_types(higher, lower)
    return higher
