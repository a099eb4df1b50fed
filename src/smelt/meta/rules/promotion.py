"""Which dtype comes out of a mix of tensors and numbers, as `torch.result_type` answers.

Tensors with dimensions outrank tensors without, which outrank Python numbers; a lower rank only raises the kind
(bool → integer → float), never the width within a kind:

    f16[3] * f64[]  → f16        f16[3] * 2.5 → f16        i32[3] * 2.5 → the default float dtype
"""

from collections.abc import Iterable
from functools import cache
from typing import Any

import torch

from smelt.ir.tensorspec import TensorSpec
from smelt.symbolic.symsize import SymScalar, SymSize

FLOATS = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})
# The dtypes these rules speak about; anything else (complex, quantized, 8-bit floats) is left to PyTorch.
KNOWN = FLOATS | {torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool}


def result_dtype(operands: Iterable[Any]) -> torch.dtype | None:
    """The common dtype of tensors (or specs) and Python numbers, or None where something outside `KNOWN` is met."""
    with_dims: torch.dtype | None = None
    without_dims: torch.dtype | None = None
    number: torch.dtype | None = None
    for value in operands:
        if isinstance(value, torch.Tensor | TensorSpec):
            dtype = value.dtype
            if dtype not in KNOWN:
                return None
            if value.shape:
                with_dims = dtype if with_dims is None or with_dims is dtype else _promote(with_dims, dtype)
            else:
                without_dims = dtype if without_dims is None else _promote(without_dims, dtype)
        else:
            own_dtype = number_dtype(value)
            if own_dtype is None:
                return None
            number = own_dtype if number is None else _promote(number, own_dtype)
    result = _combine(with_dims, _combine(without_dims, number))
    return result if result in KNOWN else None


def number_dtype(value: Any) -> torch.dtype | None:
    """What a Python number counts as: bool, int64, or the default float dtype."""
    kind = type(value)
    if kind is float or kind is torch.SymFloat or kind is SymScalar:
        return torch.get_default_dtype()
    if kind is bool:
        return torch.bool
    if kind is int or kind is torch.SymInt or kind is SymSize:
        return torch.int64
    return None


def float_result(dtype: torch.dtype) -> torch.dtype:
    """What `sin`, `exp`, true division make of `dtype`: floats stay, integers become the default float dtype."""
    return dtype if dtype.is_floating_point else torch.get_default_dtype()


_promote = cache(torch.promote_types)


def _combine(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    if higher is None or lower is None:
        return higher or lower
    if higher.is_floating_point:
        return higher
    if higher is torch.bool or lower.is_floating_point:
        return _promote(higher, lower)
    return higher
