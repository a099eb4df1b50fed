"""Specs of operators that PyTorch describes wrongly or not at all, as its CPU code yields them.

    aten._linalg_svd(f32[5, 3])                              → U and Vh column by column; PyTorch says Vh row by row
    aten.multi_margin_loss_backward(f32[], f32[4, 5], …)     → f32[4, 5]
"""

from dataclasses import replace
from typing import Any

import torch

from smelt.base.sizes import Shape, contiguous_stride
from smelt.ir.specrules.layout import like_stride
from smelt.ir.specrules.reduction import row_major
from smelt.ir.tensorspec import TensorSpec

CPU = torch.device("cpu")


def _column_major(shape: Shape, dtype: torch.dtype) -> TensorSpec:
    *outer, rows, cols = shape
    *strides, by_col, by_row = contiguous_stride((*outer, cols, rows))
    return TensorSpec(shape, (*strides, by_row, by_col), dtype, CPU)


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


def _gradient_of_second(gradient: Any, value: Any, *rest: Any, **options: Any) -> Any:
    """Backward functions whose result is the gradient of their second argument, row by row."""
    return row_major(tuple(value.shape), value.dtype)


def _nonzero(value: Any, *, size: int, fill_value: int = -1) -> Any:
    """Row by row, as `nonzero` is not."""
    return row_major((size, value.dim()), torch.int64)


def _fake_quantized(value: Any, *rest: Any) -> Any:
    """The values, and which of them were in range, both laid out as they came."""
    shape = tuple(value.shape)
    rounded = TensorSpec(shape, like_stride(shape, value.stride()), value.dtype, CPU)
    return rounded, replace(rounded, dtype=torch.bool)


RULES: dict[str, Any] = {
    "nonzero_static.default": _nonzero,
    "_linalg_svd.default": _svd,
    "multi_margin_loss_backward.default": _gradient_of_second,
    "multilabel_margin_loss_backward.default": _gradient_of_second,
    "fractional_max_pool3d_backward.default": _gradient_of_second,
    "_ctc_loss_backward.default": _gradient_of_second,
    "_ctc_loss_backward.Tensor": _gradient_of_second,
    "fake_quantize_per_tensor_affine_cachemask.default": _fake_quantized,
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default": _fake_quantized,
    "fake_quantize_per_channel_affine_cachemask.default": _fake_quantized,
}
