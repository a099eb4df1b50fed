"""Specs of operators on devices beside the CPU: rules where they differ from the CPU's, and which of those hold too.

    aten._native_batch_norm_legit_functional(bf16[4, 8, 9, 9], …)   → statistics of the batch in float32, running ones
                                                                      in their own dtype; PyTorch says float32 of both
    aten.multi_margin_loss_backward(f32[], f32[4, 5], …)            → f32[4, 5]; PyTorch does not say
    aten.native_layer_norm(bf16[4, 8], [8], …)                      → moments in float32

PyTorch's own descriptions are in Python, and load its compiler, which takes seconds: what models do has rules here.
"""

from typing import Any

import torch

from smelt.ir.tensorspec import UnplacedSpec
from smelt.meta.rules.corrections import gradient_of_second
from smelt.meta.rules.promotion import FLOATS
from smelt.meta.rules.reduction import row_major
from smelt.meta.rules.strides import like_stride
from smelt.symbolic.shapes import Shape

_WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}

# Operators made of others, or whose code for every device allocates the results in the same way. Those that PyTorch
# calls structured need not be here: one function of theirs describes the results on every device.
SHARED: frozenset[str] = frozenset(
    {
        "convolution.default",
        "convolution_backward.default",
        "embedding.default",
        "embedding_dense_backward.default",
        "constant_pad_nd.default",
        "slice_backward.default",
        "_unsafe_index.Tensor",
        "index_put.default",
        "_unsafe_index_put.default",
        "index_select.default",
        "repeat.default",
        "flip.default",
        "unbind.int",
        "diagonal.default",
        "unfold.default",
        "diag_embed.default",
        "eye.default",
        "eye.m",
        "roll.default",
        "native_batch_norm_backward.default",
    }
)


def _like(value: Any) -> UnplacedSpec:
    shape = tuple(value.shape)
    return UnplacedSpec(shape, like_stride(shape, value.stride()), value.dtype)


def _tokens_first(shape: Shape, dtype: torch.dtype) -> UnplacedSpec:
    """`[batch, heads, tokens, width]`, stored as `[batch, tokens, heads, width]`."""
    _, heads, tokens, width = shape
    return UnplacedSpec(shape, (tokens * heads * width, width, heads * width, 1), dtype)


def _one_float_dtype(*values: Any) -> bool:
    dtypes = {value.dtype for value in values if value is not None}
    return len(dtypes) == 1 and dtypes <= set(FLOATS)


def _layer_norm(value: Any, normalized: Any, weight: Any, bias: Any, eps: float) -> Any:
    inner, shape = tuple(normalized), tuple(value.shape)
    outer = len(shape) - len(inner)
    fits = outer >= 0 and inner and shape[outer:] == inner and 0 not in shape
    fits = fits and all(each is None or tuple(each.shape) == inner for each in (weight, bias))
    if not fits or not _one_float_dtype(value, weight, bias):
        return NotImplemented
    moments = row_major(shape[:outer] + (1,) * len(inner), _WIDE.get(value.dtype, value.dtype))
    return row_major(shape, value.dtype), moments, moments


def _layer_norm_backward(
    grad: Any, value: Any, normalized: Any, mean: Any, rstd: Any, weight: Any, bias: Any, mask: Any
) -> Any:
    inner, shape = tuple(normalized), tuple(value.shape)
    if not _one_float_dtype(grad, value, weight, bias) or grad.shape != value.shape or 0 in shape:
        return NotImplemented
    if shape[len(shape) - len(inner) :] != inner:
        return NotImplemented
    parameter = row_major(inner, value.dtype)
    return row_major(shape, value.dtype) if mask[0] else None, *(parameter if one else None for one in mask[1:])


# Attention: how many dropped numbers were drawn where is kept in tensors of integers.


def _attends(query: Any, key: Any, value: Any) -> bool:
    ranks = query.dim() == key.dim() == value.dim() == 4
    return ranks and _one_float_dtype(query, key, value) and 0 not in (*query.shape, *key.shape, *value.shape)


def _flash_attention(
    query: Any,
    key: Any,
    value: Any,
    dropout: float = 0.0,
    causal: bool = False,
    debug: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    if debug or not _attends(query, key, value):
        return NotImplemented
    batch, heads, tokens, _ = query.shape
    sums = row_major((batch, heads, tokens), torch.float32)
    drawn = row_major((2,), torch.uint64), row_major((), torch.uint64)
    return _like(query), sums, None, None, tokens, key.shape[2], *drawn, row_major((0,), query.dtype)


def _cudnn_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any,
    with_sums: bool,
    dropout: float = 0.0,
    causal: bool = False,
    debug: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    if debug or not _attends(query, key, value) or value.shape[-1] != query.shape[-1]:
        return NotImplemented
    batch, heads, tokens, _ = query.shape
    sums, drawn = row_major((batch, heads, tokens, 1), torch.float32), row_major((), torch.int64)
    return _like(query), sums, None, None, tokens, key.shape[2], drawn, drawn, None


def _efficient_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any,
    with_sums: bool,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    if not _attends(query, key, value):
        return NotImplemented
    batch, heads, tokens, _ = query.shape
    attended = _tokens_first((batch, heads, tokens, value.shape[3]), query.dtype)
    sums = row_major((batch, heads, -(-tokens // 32) * 32 if with_sums else 0), torch.float32)
    drawn = row_major((), torch.int64)
    return attended, sums, drawn, drawn


def _attention_backward(grad: Any, query: Any, key: Any, value: Any, *rest: Any, **options: Any) -> Any:
    return (_like(query), _like(key), _like(value)) if _attends(query, key, value) else NotImplemented


def _rms_norm(value: Any, normalized: Any, weight: Any, eps: float | None) -> Any:
    """Contiguous, whatever the layout of the input."""
    inner, shape = tuple(normalized), tuple(value.shape)
    outer = value.dim() - len(inner)
    fits = outer >= 0 and inner and shape[outer:] == inner and 0 not in shape and value.dtype in FLOATS
    if not fits or (weight is not None and (tuple(weight.shape), weight.dtype) != (inner, value.dtype)):
        return NotImplemented
    kept = row_major(shape[:outer] + (1,) * len(inner), _WIDE.get(value.dtype, value.dtype))
    return row_major(shape, value.dtype), kept


def _batch_norm(
    value: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool, *rest: Any
) -> Any:
    if not training or value.dim() < 2 or running_mean is None or running_var is None or 0 in value.shape:
        return NotImplemented
    channels = (value.shape[1],)
    parameters = [each for each in (weight, bias, running_mean, running_var) if each is not None]
    if any(tuple(each.shape) != channels for each in parameters) or running_mean.dtype is not running_var.dtype:
        return NotImplemented
    of_batch = row_major(channels, _WIDE.get(value.dtype, value.dtype))
    running = row_major(channels, running_mean.dtype)
    return _like(value), of_batch, of_batch, running, running


def _batch_norm_no_stats(value: Any, weight: Any, bias: Any, training: bool, *rest: Any) -> Any:
    channels = (value.shape[1],) if value.dim() > 1 else ()
    parameters = [each for each in (weight, bias) if each is not None]
    if not training or not channels or 0 in value.shape or any(tuple(each.shape) != channels for each in parameters):
        return NotImplemented
    moments = row_major(channels, _WIDE.get(value.dtype, value.dtype))
    return _like(value), moments, moments


def _batch_norm_writing(
    value: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool, *rest: Any
) -> Any:
    """The running statistics are written, and are no results."""
    if running_mean is None and running_var is None:
        return _batch_norm_no_stats(value, weight, bias, training)
    specs = _batch_norm(value, weight, bias, running_mean, running_var, training)
    return NotImplemented if specs is NotImplemented else specs[:3]


def _cudnn_batch_norm(
    value: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool, *rest: Any
) -> Any:
    """Which PyTorch chooses for float32. Evaluation keeps no statistics; of the reserve, only cuDNN knows the size."""
    if value.dim() < 2 or 0 in value.shape or tuple(weight.shape) != (value.shape[1],):
        return NotImplemented
    kept = row_major((value.shape[1],) if training else (0,), weight.dtype)
    return _like(value), kept, kept, row_major((0,), torch.uint8)


def _cudnn_batch_norm_backward(value: Any, grad: Any, weight: Any, *rest: Any) -> Any:
    if value.shape != grad.shape or 0 in value.shape:
        return NotImplemented
    parameter = row_major(tuple(weight.shape), weight.dtype)
    return _like(value), parameter, parameter


RULES: dict[str, Any] = {
    "cudnn_batch_norm.default": _cudnn_batch_norm,
    "cudnn_batch_norm_backward.default": _cudnn_batch_norm_backward,
    "native_batch_norm.default": _batch_norm_writing,
    "_native_batch_norm_legit.default": _batch_norm_writing,
    "_native_batch_norm_legit.no_stats": _batch_norm_no_stats,
    "native_layer_norm.default": _layer_norm,
    "native_layer_norm_backward.default": _layer_norm_backward,
    "_fused_rms_norm.default": _rms_norm,
    "_scaled_dot_product_flash_attention.default": _flash_attention,
    "_scaled_dot_product_cudnn_attention.default": _cudnn_attention,
    "_scaled_dot_product_efficient_attention.default": _efficient_attention,
    "_scaled_dot_product_flash_attention_backward.default": _attention_backward,
    "_scaled_dot_product_cudnn_attention_backward.default": _attention_backward,
    "_native_batch_norm_legit_functional.default": _batch_norm,
    "multi_margin_loss_backward.default": gradient_of_second,
    "multilabel_margin_loss_backward.default": gradient_of_second,
    "fractional_max_pool3d_backward.default": gradient_of_second,
    "_ctc_loss_backward.default": gradient_of_second,
    "_ctc_loss_backward.Tensor": gradient_of_second,
}
