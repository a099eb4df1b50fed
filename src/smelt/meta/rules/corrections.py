"""Specs of operators that PyTorch describes wrongly or not at all, as its CPU code returns them.

    aten._linalg_svd(f32[5, 3])                              → U and Vh column by column; PyTorch says Vh contiguous
    aten.multi_margin_loss_backward(f32[], f32[4, 5], …)     → f32[4, 5]
    aten._embedding_bag(f32[9, 4], i64[6], i64[2], …)        → f32[2, 4], i64[0], i64[2], i64[2]
    aten._cdist_forward(f16[5, 3], f16[4, 3], …)             → what PyTorch raises; its description returns f16[5, 4]
"""

from dataclasses import replace
from typing import Any

import torch

from smelt.ir.tensorspec import UnplacedSpec
from smelt.meta.rules.promotion import FLOATS
from smelt.meta.rules.specs import by_operator, laid_out_like, row_major
from smelt.symbolic.shapes import Shape, contiguous_stride


def _column_major(shape: Shape, dtype: torch.dtype) -> UnplacedSpec:
    *outer, rows, cols = shape
    *strides, by_col, by_row = contiguous_stride((*outer, cols, rows))
    return UnplacedSpec(shape, (*strides, by_row, by_col), dtype)


def _svd(value: Any, full: bool = False, vectors: bool = True, *, driver: str | None = None) -> Any:
    if value.dim() < 2:
        return NotImplemented
    *outer, rows, cols = value.shape
    fewer = min(rows, cols)
    singular = row_major((*outer, fewer), value.dtype.to_real() if value.dtype.is_complex else value.dtype)
    if not vectors:
        nothing = row_major((0,), value.dtype)
        return nothing, singular, nothing
    left = _column_major((*outer, rows, rows if full else fewer), value.dtype)
    right = _column_major((*outer, cols if full else fewer, cols), value.dtype)
    return left, singular, right


def _eig(value: Any) -> Any:
    if value.dim() < 2 or value.shape[-1] != value.shape[-2] or value.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    shape, dtype = tuple(value.shape), value.dtype.to_complex()
    return row_major(shape[:-1], dtype), _column_major(shape, dtype)


def _normal(mean: Any, std: Any, generator: Any = None) -> Any:
    """Contiguous, whatever the layouts of both."""
    if mean.shape != std.shape or mean.dtype is not std.dtype or not mean.dtype.is_floating_point:
        return NotImplemented
    return row_major(tuple(mean.shape), mean.dtype)


def gradient_of_second(gradient: Any, value: Any, *rest: Any, **options: Any) -> Any:
    """Backward functions whose result is the gradient of their second argument, contiguous."""
    return row_major(tuple(value.shape), value.dtype)


def _nonzero(value: Any, *, size: int, fill_value: int = -1) -> Any:
    """Row by row, as `nonzero` is not."""
    return row_major((size, value.dim()), torch.int64)


def _fake_quantized(value: Any, *rest: Any) -> Any:
    """The values, and which of them were in range, both laid out as they came."""
    rounded = laid_out_like(value)
    return rounded, replace(rounded, dtype=torch.bool)


def _is_in(elements: Any, among: Any, *, assume_unique: bool = False, invert: bool = False) -> Any:
    """Contiguous, whatever the layout of the elements; PyTorch's own description keeps their order."""
    kinds = [each.dtype for each in (elements, among) if isinstance(each, torch.Tensor)]
    if any(kind is torch.bool or kind.is_complex for kind in kinds):
        return NotImplemented
    return row_major(tuple(elements.shape) if isinstance(elements, torch.Tensor) else (), torch.bool)


def _distances(one: Any, other: Any, p: float, mode: int | None) -> Any:
    """PyTorch's own description knows no dtypes. Its kernel does, and many points are left to a matrix product."""
    by_product = p == 2 and (mode == 1 or (not mode and (one.shape[-2] > 25 or other.shape[-2] > 25)))
    if one.dtype in (torch.float16, torch.bfloat16) and not by_product and 0 not in (*one.shape, *other.shape):
        kind = "Half" if one.dtype is torch.float16 else "BFloat16"
        raise NotImplementedError(f"\"cdist\" not implemented for '{kind}'")
    return NotImplemented


def _embedding_bag(counts_all: bool) -> Any:
    """The sums, and what a backward needs. Of plain sums the table is read straight through, and no index is told its
    bag; `counts_all`: nor are sizes of bags counted, so that room for one more is left. PyTorch says other shapes."""

    def rule(
        table: Any,
        indices: Any,
        offsets: Any,
        by_frequency: bool = False,
        mode: int = 0,
        sparse: bool = False,
        weights: Any = None,
        last: bool = False,
        padding: int = -1,
    ) -> Any:
        fits = table.dim() == 2 and indices.dim() == offsets.dim() == 1 and indices.dtype is offsets.dtype
        if not fits or table.dtype not in FLOATS or mode not in (0, 1, 2) or (last and offsets.shape[0] == 0):
            return NotImplemented
        if weights is not None and (weights.dtype is not table.dtype or weights.shape != indices.shape):
            return NotImplemented
        bags = offsets.shape[0] - 1 if last else offsets.shape[0]
        counted = offsets.shape if counts_all and mode == 0 else (bags,)
        straight = mode == 0 and table.stride(1) == 1 and table.dtype is not torch.float64 and padding < 0
        straight = straight and (weights is None or weights.stride(0) == 1)
        largest = (bags, table.shape[1]) if mode == 2 else counted
        return (
            row_major((bags, table.shape[1]), table.dtype),
            *(row_major(tuple(s), indices.dtype) for s in ((0,) if straight else indices.shape, counted, largest)),
        )

    return rule


GRADIENTS_OF_SECOND = (
    "multi_margin_loss_backward multilabel_margin_loss_backward fractional_max_pool3d_backward "
    "_ctc_loss_backward _ctc_loss_backward.Tensor"
)
RULES = by_operator(
    (_embedding_bag(False), "_embedding_bag"),
    (_embedding_bag(True), "_embedding_bag_forward_only"),
    (_is_in, "isin.Tensor_Tensor isin.Tensor_Scalar isin.Scalar_Tensor"),
    (_distances, "_cdist_forward"),
    (_nonzero, "nonzero_static"),
    (_svd, "_linalg_svd"),
    (_eig, "linalg_eig"),
    (_normal, "normal.Tensor_Tensor"),
    (gradient_of_second, GRADIENTS_OF_SECOND),
    (
        _fake_quantized,
        "fake_quantize_per_tensor_affine_cachemask _fake_quantize_per_tensor_affine_cachemask_tensor_qparams "
        "fake_quantize_per_channel_affine_cachemask",
    ),
)
