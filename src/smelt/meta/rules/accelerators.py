"""Specs of operators on devices beside the CPU: rules where they differ from the CPU's, and which of those hold too.

    aten._native_batch_norm_legit_functional(bf16[4, 8, 9, 9], …)   → statistics of the batch in float32, running ones
                                                                      in their own dtype; PyTorch says float32 of both
    aten.multi_margin_loss_backward(f32[], f32[4, 5], …)            → f32[4, 5]; PyTorch does not say
    aten.native_layer_norm(bf16[4, 8], [8], …)                      → moments in float32

PyTorch's own descriptions are in Python, and load its compiler, which takes seconds: what models do has rules here.
"""

from typing import Any

import torch

from smelt.meta.rules.corrections import GRADIENTS_OF_SECOND, gradient_of_second
from smelt.meta.rules.linalg_nn import WIDE, normed_rows, normed_rows_backward, rms_norm
from smelt.meta.rules.specs import by_operator, have_one_float_dtype, laid_out_like, row_major, tokens_first

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


def _layer_norm(value: Any, normalized: Any, weight: Any, bias: Any, eps: float) -> Any:
    fits = 0 not in value.shape and have_one_float_dtype(value, weight, bias)
    moments_dtype = WIDE.get(value.dtype, value.dtype) if fits else None
    specs = normed_rows(value, normalized, moments_dtype, weight, bias)
    return NotImplemented if specs is None else (*specs, specs[1])


def _layer_norm_backward(
    grad: Any, value: Any, normalized: Any, mean: Any, rstd: Any, weight: Any, bias: Any, mask: Any
) -> Any:
    fits = have_one_float_dtype(grad, value, weight, bias)
    return normed_rows_backward(grad, value, normalized, mask, value.dtype if fits else None)


# Attention: how many dropped numbers were drawn where is kept in tensors of integers.


def _attends(query: Any, key: Any, value: Any) -> bool:
    ranks = query.dim() == key.dim() == value.dim() == 4
    return ranks and have_one_float_dtype(query, key, value) and 0 not in (*query.shape, *key.shape, *value.shape)


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
    return laid_out_like(query), sums, None, None, tokens, key.shape[2], *drawn, row_major((0,), query.dtype)


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
    return laid_out_like(query), sums, None, None, tokens, key.shape[2], drawn, drawn, None


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
    attended = tokens_first((batch, heads, tokens, value.shape[3]), query.dtype)
    sums = row_major((batch, heads, -(-tokens // 32) * 32 if with_sums else 0), torch.float32)
    drawn = row_major((), torch.int64)
    return attended, sums, drawn, drawn


def _attention_backward(grad: Any, query: Any, key: Any, value: Any, *rest: Any, **options: Any) -> Any:
    return tuple(map(laid_out_like, (query, key, value))) if _attends(query, key, value) else NotImplemented


def _of_batch(value: Any, training: bool, *parameters: Any) -> Any:
    """What training keeps of each channel of a batch; None if there is none, or parameters do not fit."""
    channels = tuple(value.shape[1:2])
    fits = training and channels and 0 not in value.shape
    if not fits or any(each is not None and tuple(each.shape) != channels for each in parameters):
        return None
    return row_major(channels, WIDE.get(value.dtype, value.dtype))


def _batch_norm(
    value: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool, *rest: Any
) -> Any:
    moments = _of_batch(value, training, weight, bias, running_mean, running_var)
    if moments is None or running_mean is None or running_var is None or running_mean.dtype is not running_var.dtype:
        return NotImplemented
    running = row_major(moments.shape, running_mean.dtype)
    return laid_out_like(value), moments, moments, running, running


def _batch_norm_no_stats(value: Any, weight: Any, bias: Any, training: bool, *rest: Any) -> Any:
    moments = _of_batch(value, training, weight, bias)
    return NotImplemented if moments is None else (laid_out_like(value), moments, moments)


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
    return laid_out_like(value), kept, kept, row_major((0,), torch.uint8)


def _cudnn_batch_norm_backward(value: Any, grad: Any, weight: Any, *rest: Any) -> Any:
    if value.shape != grad.shape or 0 in value.shape:
        return NotImplemented
    parameter = row_major(tuple(weight.shape), weight.dtype)
    return laid_out_like(value), parameter, parameter


RULES = by_operator(
    (_cudnn_batch_norm, "cudnn_batch_norm"),
    (_cudnn_batch_norm_backward, "cudnn_batch_norm_backward"),
    (_batch_norm_writing, "native_batch_norm _native_batch_norm_legit"),
    (_batch_norm_no_stats, "_native_batch_norm_legit.no_stats"),
    (_batch_norm, "_native_batch_norm_legit_functional"),
    (_layer_norm, "native_layer_norm"),
    (_layer_norm_backward, "native_layer_norm_backward"),
    (rms_norm, "_fused_rms_norm"),
    (_flash_attention, "_scaled_dot_product_flash_attention"),
    (_cudnn_attention, "_scaled_dot_product_cudnn_attention"),
    (_efficient_attention, "_scaled_dot_product_efficient_attention"),
    (
        _attention_backward,
        "_scaled_dot_product_flash_attention_backward _scaled_dot_product_cudnn_attention_backward",
    ),
    (gradient_of_second, GRADIENTS_OF_SECOND),
)
