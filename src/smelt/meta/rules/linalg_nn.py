"""Specs of operators that stay library calls: matrix products, convolution, pooling, normalization, attention, lookup.

    aten.addmm(f32[8], f32[4, 16], f32[16, 8])          → f32[4, 8]
    aten.native_layer_norm(f32[4, 8], [8], w, b, eps)   → f32[4, 8], f32[4, 1], f32[4, 1]

These describe the CPU's implementations. A rule answers only for layouts it knows (row-major, mostly) and for shapes
it has checked; for all others it says `NotImplemented`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from smelt.ir.tensorspec import UnplacedSpec
from smelt.meta.rules.data_movement import backward_of_view
from smelt.meta.rules.images import pooled
from smelt.meta.rules.promotion import FLOATS
from smelt.meta.rules.specs import (
    Rule,
    axis_of,
    by_operator,
    gradients,
    have_one_float_dtype,
    laid_out_like,
    row_major,
    suggested,
    tokens_first,
)
from smelt.meta.rules.strides import broadcast, channels_last_stride, is_channels_last, suggests_channels_last
from smelt.symbolic.shapes import Shape, product

WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}  # the dtypes that moments are computed in


# matrix products


def _demand_one_dtype(a: Any, b: Any) -> None:
    """What all products demand, whether anybody uses them or not: PyTorch's own descriptions let it pass, some by
    version."""
    if a.dtype is not b.dtype:
        raise RuntimeError(f"mat1 and mat2 must have the same dtype, but got {a.dtype} and {b.dtype}")


def _product(left_rank: int, right_rank: int) -> Rule:
    """Of matrices, batches of them, or a matrix and a vector."""
    summed = max(0, right_rank - 2)

    def rule(a: Any, b: Any) -> Any:
        _demand_one_dtype(a, b)
        if a.dim() != left_rank or b.dim() != right_rank or not have_one_float_dtype(a, b):
            return NotImplemented
        if a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[summed]:
            return NotImplemented
        return row_major((*a.shape[:-1], *b.shape[summed + 1 :]), a.dtype)

    return rule


def _added_product(rank: int) -> Rule:
    product = _product(rank, rank)

    def rule(bias: Any, a: Any, b: Any, **scales: Any) -> Any:
        spec = product(a, b)
        if spec is NotImplemented or bias.dtype is not a.dtype or broadcast((spec.shape, bias.shape)) != spec.shape:
            return NotImplemented
        return spec

    return rule


# normalization


def normed_rows(value: Any, normalized: Sequence[int], dtype: torch.dtype | None, *parameters: Any) -> Any:
    """What has the shape of the input, and a moment of `dtype` for each row; None if parameters do not fit."""
    inner, shape = tuple(normalized), tuple(value.shape)
    outer = len(shape) - len(inner)
    fits = outer >= 0 and inner and shape[outer:] == inner
    if dtype is None or not fits or any(each is not None and tuple(each.shape) != inner for each in parameters):
        return None
    return row_major(shape, value.dtype), row_major(shape[:outer] + (1,) * len(inner), dtype)


def normed_rows_backward(
    grad: Any, value: Any, normalized: Sequence[int], mask: Sequence[bool], dtype: torch.dtype | None
) -> Any:
    """The gradients of the input, and of parameters of `dtype`."""
    inner, shape = tuple(normalized), tuple(value.shape)
    if dtype is None or grad.shape != value.shape or 0 in shape or shape[len(shape) - len(inner) :] != inner:
        return NotImplemented
    parameter = row_major(inner, dtype)
    return gradients(mask, row_major(shape, value.dtype), parameter, parameter)


def _layer_norm(value: Any, normalized: Sequence[int], weight: Any, bias: Any, eps: float) -> Any:
    specs = normed_rows(value, normalized, _parameter_dtype(value, weight, bias), weight, bias)
    return NotImplemented if specs is None else (*specs, specs[1])


def _parameter_dtype(value: Any, *parameters: Any) -> torch.dtype | None:
    """The dtype of moments and parameters: the input's, or float32 where 16-bit inputs meet float32 parameters."""
    dtypes = {parameter.dtype for parameter in parameters if parameter is not None} or {value.dtype}
    dtype = dtypes.pop()
    mixed = value.dtype in (torch.bfloat16, torch.float16) and dtype is torch.float32
    return dtype if not dtypes and value.dtype in FLOATS and (dtype is value.dtype or mixed) else None


def _layer_norm_backward(
    grad: Any, value: Any, normalized: Sequence[int], mean: Any, rstd: Any, weight: Any, bias: Any, mask: Sequence[bool]
) -> Any:
    parameters = _parameter_dtype(value, weight, bias)
    fits = grad.dtype is value.dtype and {mean.dtype, rstd.dtype} == {parameters}
    return normed_rows_backward(grad, value, normalized, mask, parameters if fits else None)


def rms_norm(value: Any, normalized: Sequence[int], weight: Any, eps: float | None) -> Any:
    """Contiguous, whatever the layout of the input."""
    fits = 0 not in value.shape and have_one_float_dtype(value, weight)
    moments_dtype = WIDE.get(value.dtype, value.dtype) if fits else None
    return normed_rows(value, normalized, moments_dtype, weight) or NotImplemented


def _rms_norm(value: Any, normalized: Sequence[int], weight: Any, eps: float | None) -> Any:
    seems_channels_last = suggests_channels_last(tuple(value.shape), value.stride()) or value.dim() == 5
    return NotImplemented if seems_channels_last else rms_norm(value, normalized, weight, eps)


def _suggested(value: Any) -> UnplacedSpec:
    return suggested(tuple(value.shape), value)


def _normed(value: Any, *others: Any) -> UnplacedSpec:
    """What has the shape of the input: row-major where all are, though extents of one let it seem to be either."""
    if all(each is None or each.is_contiguous() for each in (value, *others)):
        return row_major(tuple(value.shape), value.dtype)
    return _suggested(value)


def _per_channel(value: Any, *parameters: Any, dtype: torch.dtype | None = None) -> UnplacedSpec | None:
    """A number for each channel of an input whose parameters all fit them, and are of its dtype or of this one."""
    dtype = dtype or value.dtype
    if value.dim() < 2 or value.dtype not in FLOATS or 0 in value.shape:
        return None
    if any(parameter is not None and parameter.dtype is not dtype for parameter in parameters):
        return None
    channels = (value.shape[1],)
    if any(parameter is not None and tuple(parameter.shape) != channels for parameter in parameters):
        return None
    return row_major(channels, dtype)


def _batch_norm(value: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *rest: Any) -> Any:
    # An evaluation in a narrow dtype may have statistics of float32, in which its other results are then.
    narrow = not training and mean is not None and value.dtype.itemsize == 2
    dtype = torch.float32 if narrow and mean.dtype is torch.float32 else value.dtype
    moments = _per_channel(value, weight, bias, mean, var, dtype=dtype)
    if moments is None or (not training and mean is None):
        return NotImplemented
    saved = moments if training else row_major((0,), moments.dtype)
    return _normed(value, weight, bias, mean, var), saved, saved


def _batch_norm_functional(value: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *rest: Any) -> Any:
    specs = _batch_norm(value, weight, bias, mean, var, training, *rest)
    return NotImplemented if specs is NotImplemented else (*specs, laid_out_like(mean), laid_out_like(var))


def _batch_norm_no_stats(value: Any, weight: Any, bias: Any, training: bool, *rest: Any) -> Any:
    return _batch_norm(value, weight, bias, None, None, training) if training else NotImplemented


def _batch_norm_backward(
    grad: Any,
    value: Any,
    weight: Any,
    mean: Any,
    var: Any,
    saved: Any,
    inverse: Any,
    training: bool,
    eps: float,
    mask: Any,
) -> Any:
    moments = _per_channel(value, weight, mean, var)
    if moments is None or not have_one_float_dtype(grad, value) or grad.shape != value.shape:
        return NotImplemented
    alike = _suggested(grad).stride == _suggested(value).stride
    to_value = _normed(value, weight, grad) if alike else _suggested(value)
    return gradients(mask, to_value, moments, moments)


def _group_norm(value: Any, weight: Any, bias: Any, n: int, c: int, inner: int, groups: int, eps: float) -> Any:
    fits = value.dim() >= 2 and tuple(value.shape[:2]) == (n, c) and product(value.shape[2:]) == inner
    if not fits or not have_one_float_dtype(value, weight, bias) or not value.is_contiguous() or c % groups:
        return NotImplemented
    moments = row_major((n, groups), value.dtype)
    return _suggested(value), moments, moments


def _group_norm_backward(
    grad: Any, value: Any, mean: Any, rstd: Any, weight: Any, n: int, c: int, inner: int, groups: int, mask: Any
) -> Any:
    forward = _group_norm(value, weight, None, n, c, inner, groups, 0.0)
    if forward is NotImplemented or not have_one_float_dtype(value, grad, mean, rstd) or not grad.is_contiguous():
        return NotImplemented
    if grad.shape != value.shape:
        return NotImplemented
    per_channel = row_major((c,), value.dtype)
    return gradients(mask, forward[0], per_channel, per_channel)


# convolution and pooling


def _convolution(
    value: Any,
    weight: Any,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    _demand_one_dtype(value, weight)
    rank = value.dim() - 2
    if transposed and value.device.type == "cuda":
        return _transposed_on_gpu(value, weight, bias, (stride, padding, dilation, output_padding), groups)
    if transposed or rank not in (1, 2, 3) or weight.dim() != rank + 2 or not have_one_float_dtype(value, weight, bias):
        return NotImplemented
    last = _convolves_channels_last(value, weight)
    if last is NotImplemented:
        return NotImplemented
    if 0 in value.shape or value.shape[1] != weight.shape[1] * groups or weight.shape[0] % groups:
        return NotImplemented
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        return NotImplemented
    steps = [tuple(step) * rank if len(step) == 1 else tuple(step) for step in (stride, padding, dilation)]
    if any(len(step) != rank for step in steps) or any(step < 1 for step in (*steps[0], *steps[2])):
        return NotImplemented
    sizes = tuple(
        pooled(value.shape[2 + dim], weight.shape[2 + dim], steps[0][dim], steps[1][dim], steps[2][dim])
        for dim in range(rank)
    )
    if any(size < 1 for size in sizes):
        return NotImplemented
    return _laid_out((value.shape[0], weight.shape[0], *sizes), value.dtype, last)


def _transposed_on_gpu(value: Any, weight: Any, bias: Any, steps: Any, groups: int) -> Any:
    """Of images. PyTorch's rule does not know that cuDNN's result is channels-last where the image or the weight is."""
    pairs = [tuple(each) * 2 if len(each) == 1 else tuple(each) for each in steps]
    is_image = value.dim() == weight.dim() == 4 and all(len(pair) == 2 for pair in pairs)
    if not is_image or not have_one_float_dtype(value, weight, bias) or 0 in value.shape or 0 in weight.shape:
        return NotImplemented
    channels = weight.shape[1] * groups
    if value.shape[1] != weight.shape[0] or (bias is not None and tuple(bias.shape) != (channels,)):
        return NotImplemented
    sizes = tuple(
        (value.shape[2 + dim] - 1) * stride - 2 * padding + dilation * (weight.shape[2 + dim] - 1) + more + 1
        for dim, (stride, padding, dilation, more) in enumerate(zip(*pairs, strict=True))
    )
    ordinary = all(0 <= more < stride and dilation > 0 for stride, _, dilation, more in zip(*pairs, strict=True))
    if not ordinary or any(size < 1 for size in sizes):
        return NotImplemented
    last = any(suggests_channels_last(each.shape, each.stride()) for each in (value, weight))
    return _laid_out((value.shape[0], channels, *sizes), value.dtype, last)


def _convolves_channels_last(value: Any, weight: Any) -> Any:
    """Whether images come out channels-last: if either is given so. Signals and volumes only where neither is: with
    which library, and so in which layout, those are computed differs by machine."""
    last = any(suggests_channels_last(each.shape, each.stride()) for each in (value, weight))
    if last and value.dim() == 4:
        return True
    signal = value.dim() == 3 and not value.is_contiguous()  # computed as an image, whose layout may seem channels-last
    return NotImplemented if last or signal or not weight.is_contiguous() else False


def _laid_out(shape: Shape, dtype: torch.dtype, last: bool) -> UnplacedSpec:
    rows = row_major(shape, dtype)
    return replace(rows, stride=channels_last_stride(shape)) if last else rows


def _convolution_backward(
    grad: Any,
    value: Any,
    weight: Any,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    *rest: Any,
) -> Any:
    output_padding, groups, mask = rest
    forward = _convolution(value, weight, None, stride, padding, dilation, transposed, output_padding, groups)
    if forward is NotImplemented or forward.shape != tuple(grad.shape):
        return NotImplemented
    last = _convolves_channels_last(value, weight)
    if last is NotImplemented:
        return NotImplemented
    if last and not grad.is_contiguous() and not is_channels_last(tuple(grad.shape), tuple(grad.stride())):
        return NotImplemented
    if not last and not value.is_contiguous():  # the layout of the gradient that comes does not matter
        return NotImplemented
    to_value, to_weight = (_laid_out(tuple(each.shape), value.dtype, last) for each in (value, weight))
    return gradients(mask, to_value, to_weight, row_major((forward.shape[1],), value.dtype))


def _max_pool2d(
    value: Any,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:
    if value.dim() not in (3, 4) or value.dtype not in FLOATS or ceil_mode or not value.is_contiguous():
        return NotImplemented
    if 0 in value.shape or suggests_channels_last(value.shape, value.stride()):
        return NotImplemented
    kernels, paddings, dilations = _pair(kernel), _pair(padding), _pair(dilation)
    strides = _pair(stride) if stride else kernels
    if (
        any(2 * pad > size for pad, size in zip(paddings, kernels, strict=True))
        or min(*strides, *dilations, *kernels) < 1
    ):
        return NotImplemented
    sizes = tuple(
        pooled(value.shape[dim - 2], kernels[dim], strides[dim], paddings[dim], dilations[dim]) for dim in (0, 1)
    )
    if any(size < 1 for size in sizes) or min(paddings) < 0:
        return NotImplemented
    shape: Shape = (*value.shape[:-2], *sizes)
    return row_major(shape, value.dtype), row_major(shape, torch.int64)


def _pair(sizes: Any) -> tuple[int, int]:
    values = (sizes,) if isinstance(sizes, int | torch.SymInt) else tuple(sizes)
    return (values[0], values[-1])


def _max_pool2d_backward(grad: Any, value: Any, *rest: Any) -> Any:
    if (
        not have_one_float_dtype(grad, value)
        or not value.is_contiguous()
        or suggests_channels_last(value.shape, value.stride())
        or grad.dim() != value.dim()
    ):
        return NotImplemented
    return row_major(tuple(value.shape), value.dtype)


# attention


def _attention(
    query: Any,
    key: Any,
    value: Any,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    attn_mask: Any = None,
    scale: Any = None,
) -> Any:
    if query.dim() != 4 or key.dim() != 4 or key.shape != value.shape or not have_one_float_dtype(query, key, value):
        return NotImplemented
    batch, heads, tokens, width = query.shape
    if (key.shape[0], key.shape[3]) != (batch, width) or 0 in (*query.shape, *key.shape) or heads % key.shape[1]:
        return NotImplemented  # several heads of queries may share one of keys
    if dropout != 0.0:
        return NotImplemented
    sums = torch.float64 if query.dtype is torch.float64 else torch.float32
    logsumexp = UnplacedSpec((batch, heads, tokens), (tokens * heads, 1, heads), sums)
    return laid_out_like(query), logsumexp


def _attention_backward(grad: Any, query: Any, key: Any, value: Any, out: Any, *rest: Any, **options: Any) -> Any:
    if (
        not have_one_float_dtype(grad, query, key, value)
        or query.dim() != 4
        or grad.shape != query.shape
        or key.shape != value.shape
    ):
        return NotImplemented
    if 0 in (*query.shape, *key.shape):
        return NotImplemented
    return tuple(tokens_first(tuple(each.shape), each.dtype) for each in (query, key, key))


# lookup


def _embedding(table: Any, indices: Any, *rest: Any) -> Any:
    if table.dim() != 2 or indices.dtype not in (torch.int64, torch.int32):
        return NotImplemented
    return row_major((*indices.shape, table.shape[1]), table.dtype)


def _embedding_backward(grad: Any, indices: Any, rows: int, padding: int, by_frequency: bool) -> Any:
    if grad.dtype not in FLOATS or indices.dtype not in (torch.int64, torch.int32) or grad.shape[:-1] != indices.shape:
        return NotImplemented
    return row_major((rows, grad.shape[-1]), grad.dtype)


def _dropout(value: Any, probability: float, train: bool | None) -> Any:
    if value.dtype not in FLOATS or not 0.0 <= probability <= 1.0 or not value.is_contiguous():
        return NotImplemented
    shape = tuple(value.shape)
    return row_major(shape, value.dtype), row_major(shape, torch.bool)


def _dropout_backward(grad: Any, mask: Any, scale: float) -> Any:
    """As on a GPU too, as long as both are contiguous."""
    both = grad.is_contiguous() and mask.is_contiguous()
    if grad.dtype not in FLOATS or mask.dtype is not torch.bool or grad.shape != mask.shape or not both:
        return NotImplemented
    return row_major(tuple(grad.shape), grad.dtype)


def _gather(value: Any, dim: int, index: Any, *, sparse_grad: bool = False) -> Any:
    axis = axis_of(value, dim)
    if axis is None or index.dtype is not torch.int64 or index.dim() != value.dim():
        return NotImplemented
    if any(have > size for d, (have, size) in enumerate(zip(index.shape, value.shape, strict=True)) if d != axis):
        return NotImplemented
    return row_major(tuple(index.shape), value.dtype)


def _index_select(value: Any, dim: int, index: Any) -> Any:
    axis, shape = axis_of(value, dim), tuple(value.shape)
    if axis is None or index.dim() != 1 or index.dtype not in (torch.int64, torch.int32):
        return NotImplemented
    return row_major((*shape[:axis], index.shape[0], *shape[axis + 1 :]), value.dtype)


def _roll(value: Any, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    """Pieces joined again, and so laid out as a join of them is; PyTorch's own description overlooks channels-last."""
    shape = tuple(value.shape)
    known = 0 < len(dims) == len(shifts) and all(-len(shape) <= dim < len(shape) for dim in dims) and 0 not in shape
    if known and value.is_contiguous() and not suggests_channels_last(shape, value.stride()):
        return row_major(shape, value.dtype)
    if not dims or any(size < 2 for size in shape) or not suggests_channels_last(shape, value.stride()):
        return NotImplemented
    if len(shifts) != len(dims) or not all(shift % shape[dim] for shift, dim in zip(shifts, dims, strict=True)):
        return NotImplemented
    return UnplacedSpec(shape, channels_last_stride(shape), value.dtype)


def _max_unpool2d(value: Any, indices: Any, size: Sequence[int]) -> Any:
    """PyTorch's own description of it overlooks channels-last."""
    if value.dim() not in (3, 4) or indices.shape != value.shape or indices.dtype is not torch.int64 or len(size) != 2:
        return NotImplemented
    return suggested((*value.shape[:-2], *size), value)


RULES = by_operator(
    (_product(2, 2), "mm"),
    (_product(2, 1), "mv"),
    (_product(1, 1), "dot"),
    (_product(3, 3), "bmm"),
    (_added_product(2), "addmm"),
    (_added_product(3), "baddbmm"),
    (_layer_norm, "native_layer_norm"),
    (_layer_norm_backward, "native_layer_norm_backward"),
    (_rms_norm, "_fused_rms_norm"),
    (_batch_norm, "native_batch_norm _native_batch_norm_legit"),
    (_batch_norm_no_stats, "_native_batch_norm_legit.no_stats"),
    (_batch_norm_functional, "_native_batch_norm_legit_functional"),
    (_batch_norm_backward, "native_batch_norm_backward"),
    (_group_norm, "native_group_norm"),
    (_group_norm_backward, "native_group_norm_backward"),
    (_convolution, "convolution"),
    (_convolution_backward, "convolution_backward"),
    (_max_pool2d, "max_pool2d_with_indices"),
    (_max_pool2d_backward, "max_pool2d_with_indices_backward"),
    (_max_unpool2d, "max_unpool2d"),
    (_roll, "roll"),
    (_attention, "_scaled_dot_product_flash_attention_for_cpu"),
    (_attention_backward, "_scaled_dot_product_flash_attention_for_cpu_backward"),
    (_embedding, "embedding"),
    (_embedding_backward, "embedding_dense_backward"),
    (_dropout, "native_dropout"),
    (_dropout_backward, "native_dropout_backward"),
    (_gather, "gather"),
    (_index_select, "index_select"),
    (backward_of_view, "slice_backward select_backward"),
)
