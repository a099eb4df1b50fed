"""What rules are made of: the layouts that results have, the place of a dimension, and tables of rules by operator.

    row_major((2, 3), f32)      → f32[2, 3]:(3, 1)
    laid_out_like(f32[2, 3]:(1, 2))   → f32[2, 3]:(1, 2)
    by_operator((rule, "sum prod.dim_int"))   → {"sum.default": rule, "prod.dim_int": rule}
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.ir.tensorspec import UnplacedSpec
from smelt.meta.rules.promotion import FLOATS
from smelt.meta.rules.strides import channels_last_stride, like_stride, suggests_channels_last
from smelt.symbolic.shapes import Shape, contiguous_stride

Rule = Callable[..., Any]


def row_major(shape: Shape, dtype: torch.dtype) -> UnplacedSpec:
    return UnplacedSpec(shape, contiguous_stride(shape), dtype)


def laid_out_like(value: Any, *rest: Any, **options: Any) -> UnplacedSpec:
    """A new tensor in the layout of another: `empty_like`."""
    shape = tuple(value.shape)
    return UnplacedSpec(shape, like_stride(shape, value.stride()), value.dtype)


def suggested(shape: Shape, like: Any, dtype: torch.dtype | None = None) -> UnplacedSpec:
    """Row-major, or channels-last where the tensor it is made from seems to be."""
    if suggests_channels_last(tuple(like.shape), like.stride()):
        return UnplacedSpec(shape, channels_last_stride(shape), dtype or like.dtype)
    return row_major(shape, dtype or like.dtype)


def tokens_first(shape: Shape, dtype: torch.dtype) -> UnplacedSpec:
    """`[batch, heads, tokens, width]`, stored as `[batch, tokens, heads, width]`."""
    _, heads, tokens, width = shape
    return UnplacedSpec(shape, (tokens * heads * width, width, heads * width, 1), dtype)


def gradients(mask: Sequence[bool], *specs: UnplacedSpec) -> tuple[UnplacedSpec | None, ...]:
    """Those that a backward is asked for."""
    return tuple(spec if is_wanted else None for is_wanted, spec in zip(mask, specs, strict=True))


def have_one_float_dtype(first: Any, *others: Any) -> bool:
    """Whether all tensors, of which others may be None, have the same dtype, and it is a float's."""
    return first.dtype in FLOATS and all(other is None or other.dtype is first.dtype for other in others)


def axis_of(value: Any, dim: int) -> int | None:
    """The place of a dimension, which may be counted from the last; None if there is no such dimension."""
    rank = value.dim()
    return dim % rank if rank > 0 and -rank <= dim < rank else None


def by_operator(*rows: tuple[Rule, str]) -> dict[str, Rule]:
    """A table of rules: each row has a rule and the operators it describes, with an overload where it is not the
    default."""
    return {name if "." in name else f"{name}.default": rule for rule, names in rows for name in names.split()}
