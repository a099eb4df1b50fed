"""Specs of reductions, running sums and normalizations along dimensions. Their results are always row-major.

aten.sum.dim_IntList(f32[4, 8], [1], True)  → f32[4, 1]
aten.argmax(f32[4, 8], 1)                   → i64[4]
aten._softmax(f32[4, 8]:(1, 4), 1, False)   → f32[4, 8]
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.ir.tensorspec import UnplacedSpec
from smelt.meta.rules.promotion import FLOATS, KNOWN
from smelt.symbolic.shapes import Shape, contiguous_stride


def row_major(shape: Shape, dtype: torch.dtype) -> UnplacedSpec:
    return UnplacedSpec(shape, contiguous_stride(shape), dtype)


def reduced_shape(shape: Sequence[int], dims: Any, keepdim: bool) -> Shape | None:
    """The shape without `dims` (None or empty: all of them); None for dims that are out of range or twice there."""
    rank = len(shape)
    wanted = (dims,) if isinstance(dims, int) else tuple(dims or range(rank))
    if rank == 0:
        return () if all(dim in (0, -1) for dim in wanted) and len(wanted) < 2 else None
    axes = {dim + rank if dim < 0 else dim for dim in wanted}
    if len(axes) != len(wanted) or not all(0 <= axis < rank for axis in axes):
        return None
    if keepdim:
        return tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    return tuple(size for axis, size in enumerate(shape) if axis not in axes)


def _sum_dtype(dtype: torch.dtype) -> torch.dtype | None:
    if dtype not in KNOWN:
        return None
    return dtype if dtype in FLOATS else torch.int64


def _float_dtype(dtype: torch.dtype) -> torch.dtype | None:
    return dtype if dtype in FLOATS else None


def _known_dtype(dtype: torch.dtype) -> torch.dtype | None:
    return dtype if dtype in KNOWN else None


def _truth_dtype(dtype: torch.dtype) -> torch.dtype | None:
    if dtype not in KNOWN:
        return None
    return torch.uint8 if dtype is torch.uint8 else torch.bool


DtypeRule = Callable[[torch.dtype], "torch.dtype | None"]


def _reduction(dtype_rule: DtypeRule, *, needs_elements: bool = False) -> Any:
    """`op(x, dim=None, keepdim=False, *, dtype=None)`; `needs_elements`: nothing comes of an empty reduction."""

    def rule(value: Any, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
        summed = dtype_rule(dtype or value.dtype) if dtype is None else (dtype if dtype_rule(dtype) is dtype else None)
        if summed is None or (needs_elements and 0 in value.shape):
            return NotImplemented
        shape = reduced_shape(value.shape, dim, keepdim)
        return NotImplemented if shape is None else row_major(shape, summed)

    return rule


def _whole(dtype_rule: DtypeRule, *, needs_elements: bool = False) -> Any:
    """`op(x, *, dtype=None)`, over everything."""
    rule = _reduction(dtype_rule, needs_elements=needs_elements)

    def whole(value: Any, *, dtype: torch.dtype | None = None) -> Any:
        return rule(value, dtype=dtype)

    return whole


def _variance(value: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    if value.dtype not in FLOATS:
        return NotImplemented
    shape = reduced_shape(value.shape, dim, keepdim)
    return NotImplemented if shape is None else row_major(shape, value.dtype)


def _variance_mean(value: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    spec = _variance(value, dim, correction=correction, keepdim=keepdim)
    return NotImplemented if spec is NotImplemented else (spec, spec)


def _count(value: Any, dim: int | None = None) -> Any:
    return row_major((), torch.int64) if dim is None and value.dtype in KNOWN else NotImplemented


def _position(value: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """`argmax`, `argmin`."""
    if value.dtype not in KNOWN - {torch.bool} or 0 in value.shape:
        return NotImplemented
    if dim is None:
        shape: Shape | None = (1,) * value.dim() if keepdim else ()
    else:
        shape = reduced_shape(value.shape, dim, keepdim)
    return NotImplemented if shape is None else row_major(shape, torch.int64)


def _value_and_position(value: Any, dim: int, keepdim: bool = False) -> Any:
    """`max.dim`, `min.dim`."""
    if value.dtype not in KNOWN or 0 in value.shape:
        return NotImplemented
    shape = reduced_shape(value.shape, dim, keepdim)
    return NotImplemented if shape is None else (row_major(shape, value.dtype), row_major(shape, torch.int64))


def _log_sum_exp(value: Any, dim: Any, keepdim: bool = False) -> Any:
    if value.dtype not in FLOATS:
        return NotImplemented
    shape = reduced_shape(value.shape, dim, keepdim)
    return NotImplemented if shape is None else row_major(shape, value.dtype)


def _vector_norm(
    value: Any, order: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    if value.dtype not in FLOATS or dtype not in (None, value.dtype) or 0 in value.shape:
        return NotImplemented
    shape = reduced_shape(value.shape, dim, keepdim)
    return NotImplemented if shape is None else row_major(shape, value.dtype)


def _running(value: Any, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    """`cumsum`, `cumprod`."""
    result_dtype = dtype or _sum_dtype(value.dtype)
    if result_dtype not in KNOWN or reduced_shape(value.shape, dim, True) is None:
        return NotImplemented
    return row_major(tuple(value.shape), result_dtype)


def _running_extreme(value: Any, dim: int) -> Any:
    """`cummax`, `cummin`."""
    if value.dtype not in KNOWN or reduced_shape(value.shape, dim, True) is None:
        return NotImplemented
    return row_major(tuple(value.shape), value.dtype), row_major(tuple(value.shape), torch.int64)


def _log_cum_sum_exp(value: Any, dim: int) -> Any:
    return _running(value, dim) if value.dtype in FLOATS else NotImplemented


def _check_dim(value: Any, dim: int) -> None:
    """The meta kernels let a wrong dim pass here."""
    rank = max(value.dim(), 1)
    if not -rank <= dim < rank:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {dim})")


def _softmax(value: Any, dim: int, half_to_float: bool) -> Any:
    _check_dim(value, dim)
    if value.dtype not in FLOATS or half_to_float or reduced_shape(value.shape, dim, True) is None:
        return NotImplemented
    return row_major(tuple(value.shape), value.dtype)


def _safe_softmax(value: Any, dim: int, dtype: torch.dtype | None = None) -> Any:
    return _softmax(value, dim, False) if dtype in (None, value.dtype) and 0 not in value.shape else NotImplemented


def _softmax_backward(grad: Any, output: Any, dim: int, input_dtype: torch.dtype) -> Any:
    _check_dim(grad, dim)
    same = grad.dtype is output.dtype is input_dtype and grad.shape == output.shape
    if not same or input_dtype not in FLOATS or reduced_shape(grad.shape, dim, True) is None:
        return NotImplemented
    return row_major(tuple(grad.shape), input_dtype)


RULES: dict[str, Any] = {
    "sum.default": _whole(_sum_dtype),
    "sum.dim_IntList": _reduction(_sum_dtype),
    "prod.default": _whole(_sum_dtype),
    "prod.dim_int": _reduction(_sum_dtype),
    "mean.default": _whole(_float_dtype),
    "mean.dim": _reduction(_float_dtype),
    "amax.default": _reduction(_known_dtype, needs_elements=True),
    "amin.default": _reduction(_known_dtype, needs_elements=True),
    "max.default": _whole(_known_dtype, needs_elements=True),
    "min.default": _whole(_known_dtype, needs_elements=True),
    "any.default": _whole(_truth_dtype),
    "any.dim": _reduction(_truth_dtype),
    "any.dims": _reduction(_truth_dtype),
    "all.default": _whole(_truth_dtype),
    "all.dim": _reduction(_truth_dtype),
    "all.dims": _reduction(_truth_dtype),
    "var.correction": _variance,
    "std.correction": _variance,
    "var_mean.correction": _variance_mean,
    "std_mean.correction": _variance_mean,
    "count_nonzero.default": _count,
    "argmax.default": _position,
    "argmin.default": _position,
    "max.dim": _value_and_position,
    "min.dim": _value_and_position,
    "logsumexp.default": _log_sum_exp,
    "linalg_vector_norm.default": _vector_norm,
    "cumsum.default": _running,
    "cumprod.default": _running,
    "logcumsumexp.default": _log_cum_sum_exp,
    "cummax.default": _running_extreme,
    "cummin.default": _running_extreme,
    "_softmax.default": _softmax,
    "_safe_softmax.default": _safe_softmax,
    "_log_softmax.default": _softmax,
    "_softmax_backward_data.default": _softmax_backward,
    "_log_softmax_backward_data.default": _softmax_backward,
}
