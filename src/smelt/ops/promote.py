"""Dtypes in kernels: what operands are promoted to, and what kernels compute in.

    f16[3] * f64[] → f16       i32[3] * 2.5 → default float       computing dtype of bf16 → f32
"""

import math
from collections.abc import Iterable

import torch

from smelt.ir.tensorspec import TensorSpec
from smelt.meta.rules.promotion import KNOWN as KERNEL_DTYPES
from smelt.meta.rules.promotion import result_dtype
from smelt.symbolic.symsize import varies

__all__ = ["KERNEL_DTYPES", "in_range", "promoted", "widened"]


def widened(dtype: torch.dtype) -> torch.dtype:
    """What values of `dtype` are computed in inside a kernel."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def in_range(number: bool | int | float, dtype: torch.dtype) -> bool:
    """Whether a number is in the range of a dtype, which PyTorch asks where it converts one, and refuses it if not.
    One that is given at each call is taken for one that is."""
    if varies(number) or dtype is torch.bool:
        return True
    if dtype.is_floating_point:
        return not math.isfinite(number) or abs(number) <= torch.finfo(dtype).max
    return torch.iinfo(dtype).min <= number <= torch.iinfo(dtype).max


def promoted(operands: Iterable[TensorSpec | bool | int | float]) -> torch.dtype:
    """The dtype PyTorch computes in; the default float dtype where no operand has a say."""
    return result_dtype(operands) or torch.get_default_dtype()
