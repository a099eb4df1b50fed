"""Specs of reductions, running sums and normalizations along dimensions. Their results are always row-major.

aten.sum.dim_IntList(f32[4, 8], [1], True)  → f32[4, 1]
aten.argmax(f32[4, 8], 1)                   → i64[4]
aten._softmax(f32[4, 8]:(1, 4), 1, False)   → f32[4, 8]
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.meta.rules.promotion import FLOATS, KNOWN
from smelt.meta.rules.specs import by_operator, row_major
from smelt.symbolic.shapes import Shape


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


def _reduced(value: Any, dims: Any, keepdim: bool, dtype: torch.dtype) -> Any:
    shape = reduced_shape(value.shape, dims, keepdim)
    return NotImplemented if shape is None else row_major(shape, dtype)


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
    """`op(x, dim=None, keepdim=False, *, dtype=None)`; `needs_elements`: no dim that is reduced is empty."""

    def rule(value: Any, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
        summed = dtype_rule(dtype or value.dtype) if dtype is None else (dtype if dtype_rule(dtype) is dtype else None)
        if summed is None:
            return NotImplemented
        kept = reduced_shape(value.shape, dim, True) if needs_elements else None
        if kept is not None and kept.count(0) < tuple(value.shape).count(0):
            return NotImplemented
        return _reduced(value, dim, keepdim, summed)

    return rule


def _whole(dtype_rule: DtypeRule) -> Any:
    """`op(x, *, dtype=None)`, over everything."""
    rule = _reduction(dtype_rule)

    def whole(value: Any, *, dtype: torch.dtype | None = None) -> Any:
        return rule(value, dtype=dtype)

    return whole


def _whole_extreme(name: str) -> Any:
    """`max`, `min` over everything. The meta kernels let an empty tensor pass here."""

    def rule(value: Any) -> Any:
        if value.dtype not in KNOWN:
            return NotImplemented
        if 0 in value.shape:
            raise RuntimeError(
                f"{name}(): Expected reduction dim to be specified for input.numel() == 0. "
                "Specify the reduction dim with the 'dim' argument."
            )
        return row_major((), value.dtype)

    return rule


def _variance(value: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return _reduced(value, dim, keepdim, value.dtype) if value.dtype in FLOATS else NotImplemented


def _variance_mean(value: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    spec = _variance(value, dim, correction=correction, keepdim=keepdim)
    return NotImplemented if spec is NotImplemented else (spec, spec)


def _count(value: Any, dim: int | None = None) -> Any:
    return row_major((), torch.int64) if dim is None and value.dtype in KNOWN else NotImplemented


def _position(value: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """`argmax`, `argmin`."""
    if value.dtype not in KNOWN - {torch.bool} or 0 in value.shape:
        return NotImplemented
    return _reduced(value, dim, keepdim, torch.int64)


def _value_and_position(name: str) -> Any:
    """`max.dim`, `min.dim`, `median.dim`, `nanmedian.dim`, `mode`. The meta kernels let an empty dim pass here."""

    def rule(value: Any, dim: int = -1, keepdim: bool = False) -> Any:
        if value.dtype not in KNOWN:
            return NotImplemented
        shape = reduced_shape(value.shape, dim, keepdim)
        if shape is None:
            return NotImplemented
        if value.shape and value.shape[dim] == 0:
            raise IndexError(f"{name}(): Expected reduction dim {dim % len(value.shape)} to have non-zero size.")
        return row_major(shape, value.dtype), row_major(shape, torch.int64)

    return rule


def _log_sum_exp(value: Any, dim: Any, keepdim: bool = False) -> Any:
    return _variance(value, dim, keepdim=keepdim)


def _vector_norm(
    value: Any, order: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    if value.dtype not in FLOATS or dtype not in (None, value.dtype) or 0 in value.shape:
        return NotImplemented
    return _reduced(value, dim, keepdim, value.dtype)


def _norm(value: Any, order: Any, dim: Any, keepdim: bool = False) -> Any:
    return _vector_norm(value, order, dim, keepdim)


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


RULES = by_operator(
    (_whole(_sum_dtype), "sum prod"),
    (_reduction(_sum_dtype), "sum.dim_IntList prod.dim_int"),
    (_whole(_float_dtype), "mean"),
    (_reduction(_float_dtype), "mean.dim"),
    (_reduction(_known_dtype, needs_elements=True), "amax amin"),
    (_whole_extreme("max"), "max"),
    (_whole_extreme("min"), "min"),
    (_whole(_truth_dtype), "any all"),
    (_reduction(_truth_dtype), "any.dim any.dims all.dim all.dims"),
    (_variance, "var.correction std.correction"),
    (_variance_mean, "var_mean.correction std_mean.correction"),
    (_count, "count_nonzero"),
    (_position, "argmax argmin"),
    (_value_and_position("max"), "max.dim"),
    (_value_and_position("min"), "min.dim"),
    (_value_and_position("median"), "median.dim nanmedian.dim"),
    (_value_and_position("mode"), "mode"),
    (_log_sum_exp, "logsumexp"),
    (_vector_norm, "linalg_vector_norm"),
    (_norm, "norm.ScalarOpt_dim"),
    (_running, "cumsum cumprod"),
    (_log_cum_sum_exp, "logcumsumexp"),
    (_running_extreme, "cummax cummin"),
    (_softmax, "_softmax _log_softmax"),
    (_safe_softmax, "_safe_softmax"),
    (_softmax_backward, "_softmax_backward_data _log_softmax_backward_data"),
)
