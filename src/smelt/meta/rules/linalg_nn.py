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
from smelt.meta.rules.promotion import FLOATS
from smelt.meta.rules.reduction import row_major
from smelt.meta.rules.strides import (
    broadcast,
    channels_last_stride,
    is_channels_last,
    like_stride,
    suggests_channels_last,
)
from smelt.symbolic.shapes import Shape, product


def _like(value: Any) -> UnplacedSpec:
    shape = tuple(value.shape)
    return UnplacedSpec(shape, like_stride(shape, value.stride()), value.dtype)


def _one_dtype(*tensors: Any) -> bool:
    first = tensors[0].dtype
    return first in FLOATS and all(tensor is None or tensor.dtype is first for tensor in tensors)


# matrix products


def _demand_one_dtype(a: Any, b: Any) -> None:
    """What all products demand, whether anybody uses them or not: PyTorch's own descriptions let it pass, some by
    version."""
    if a.dtype is not b.dtype:
        raise RuntimeError(f"mat1 and mat2 must have the same dtype, but got {a.dtype} and {b.dtype}")


def _mm(a: Any, b: Any) -> Any:
    _demand_one_dtype(a, b)
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0] or not _one_dtype(a, b):
        return NotImplemented
    return row_major((a.shape[0], b.shape[1]), a.dtype)


def _bmm(a: Any, b: Any) -> Any:
    _demand_one_dtype(a, b)
    if a.dim() != 3 or b.dim() != 3 or a.shape[0] != b.shape[0] or a.shape[2] != b.shape[1] or not _one_dtype(a, b):
        return NotImplemented
    return row_major((a.shape[0], a.shape[1], b.shape[2]), a.dtype)


def _mv(a: Any, b: Any) -> Any:
    _demand_one_dtype(a, b)
    if a.dim() != 2 or b.dim() != 1 or a.shape[1] != b.shape[0] or not _one_dtype(a, b):
        return NotImplemented
    return row_major((a.shape[0],), a.dtype)


def _addmm(bias: Any, a: Any, b: Any, **scales: Any) -> Any:
    spec = _mm(a, b)
    if spec is NotImplemented or bias.dtype is not a.dtype or broadcast((spec.shape, bias.shape)) != spec.shape:
        return NotImplemented
    return spec


def _baddbmm(bias: Any, a: Any, b: Any, **scales: Any) -> Any:
    spec = _bmm(a, b)
    if spec is NotImplemented or bias.dtype is not a.dtype or broadcast((spec.shape, bias.shape)) != spec.shape:
        return NotImplemented
    return spec


# normalization


def _layer_norm(value: Any, normalized: Sequence[int], weight: Any, bias: Any, eps: float) -> Any:
    inner = tuple(normalized)
    outer_rank = value.dim() - len(inner)
    shape = tuple(value.shape)
    fits = outer_rank >= 0 and inner and shape[outer_rank:] == inner
    for parameter in (weight, bias):
        fits = fits and (parameter is None or tuple(parameter.shape) == inner)
    moments_dtype = _parameter_dtype(value, weight, bias)
    if not fits or moments_dtype is None:
        return NotImplemented
    moments = row_major(shape[:outer_rank] + (1,) * len(inner), moments_dtype)
    return row_major(shape, value.dtype), moments, moments


def _parameter_dtype(value: Any, *parameters: Any) -> torch.dtype | None:
    """The dtype of moments and parameters: the input's, or float32 where 16-bit inputs meet float32 parameters."""
    dtypes = {parameter.dtype for parameter in parameters if parameter is not None} or {value.dtype}
    dtype = dtypes.pop()
    mixed = value.dtype in (torch.bfloat16, torch.float16) and dtype is torch.float32
    return dtype if not dtypes and value.dtype in FLOATS and (dtype is value.dtype or mixed) else None


def _layer_norm_backward(
    grad: Any, value: Any, normalized: Sequence[int], mean: Any, rstd: Any, weight: Any, bias: Any, mask: Sequence[bool]
) -> Any:
    inner = tuple(normalized)
    parameters = _parameter_dtype(value, weight, bias)
    if parameters is None or grad.dtype is not value.dtype or {mean.dtype, rstd.dtype} != {parameters}:
        return NotImplemented
    if grad.shape != value.shape or 0 in value.shape:
        return NotImplemented
    if tuple(value.shape[value.dim() - len(inner) :]) != inner:
        return NotImplemented
    parameter = row_major(inner, parameters)
    return (
        row_major(tuple(value.shape), value.dtype) if mask[0] else None,
        *(parameter if one else None for one in mask[1:]),
    )


def _rms_norm(value: Any, normalized: Sequence[int], weight: Any, eps: float | None) -> Any:
    inner, shape = tuple(normalized), tuple(value.shape)
    outer = value.dim() - len(inner)
    if outer < 0 or not inner or shape[outer:] != inner or 0 in shape or value.dtype not in FLOATS:
        return NotImplemented
    if weight is not None and (tuple(weight.shape) != inner or weight.dtype is not value.dtype):
        return NotImplemented
    if suggests_channels_last(shape, value.stride()) or value.dim() == 5:
        return NotImplemented
    wide = torch.float32 if value.dtype.itemsize == 2 else value.dtype
    return row_major(shape, value.dtype), row_major(shape[:outer] + (1,) * len(inner), wide)


def _suggested(value: Any) -> UnplacedSpec:
    """Row-major, or channels-last where a library would take the input for that."""
    shape = tuple(value.shape)
    if suggests_channels_last(shape, value.stride()):
        return UnplacedSpec(shape, channels_last_stride(shape), value.dtype)
    return row_major(shape, value.dtype)


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
    return NotImplemented if specs is NotImplemented else (*specs, _like(mean), _like(var))


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
    if moments is None or not _one_dtype(grad, value) or grad.shape != value.shape:
        return NotImplemented
    alike = _suggested(grad).stride == _suggested(value).stride
    to_value = _normed(value, weight, grad) if alike else _suggested(value)
    return (to_value if mask[0] else None, *(moments if one else None for one in mask[1:]))


def _group_norm(value: Any, weight: Any, bias: Any, n: int, c: int, inner: int, groups: int, eps: float) -> Any:
    fits = value.dim() >= 2 and tuple(value.shape[:2]) == (n, c) and product(value.shape[2:]) == inner
    if not fits or not _one_dtype(value, weight, bias) or not value.is_contiguous() or c % groups:
        return NotImplemented
    moments = row_major((n, groups), value.dtype)
    return _suggested(value), moments, moments


def _group_norm_backward(
    grad: Any, value: Any, mean: Any, rstd: Any, weight: Any, n: int, c: int, inner: int, groups: int, mask: Any
) -> Any:
    forward = _group_norm(value, weight, None, n, c, inner, groups, 0.0)
    if forward is NotImplemented or not _one_dtype(value, grad, mean, rstd) or not grad.is_contiguous():
        return NotImplemented
    if grad.shape != value.shape:
        return NotImplemented
    per_channel = row_major((c,), value.dtype)
    return (forward[0] if mask[0] else None, *(per_channel if one else None for one in mask[1:]))


# convolution and pooling


def _spatial(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


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
    if transposed or rank not in (1, 2, 3) or weight.dim() != rank + 2 or not _one_dtype(value, weight, bias):
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
        _spatial(value.shape[2 + dim], weight.shape[2 + dim], steps[0][dim], steps[1][dim], steps[2][dim])
        for dim in range(rank)
    )
    if any(size < 1 for size in sizes):
        return NotImplemented
    return _laid_out((value.shape[0], weight.shape[0], *sizes), value.dtype, last)


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
    if last and not grad.is_contiguous() and not is_channels_last(tuple(grad.shape), tuple(grad.stride())):
        return NotImplemented
    if not last and not value.is_contiguous():  # the layout of the gradient that comes does not matter
        return NotImplemented
    return (
        _laid_out(tuple(value.shape), value.dtype, last) if mask[0] else None,
        _laid_out(tuple(weight.shape), value.dtype, last) if mask[1] else None,
        row_major((weight.shape[0],), value.dtype) if mask[2] else None,
    )


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
        _spatial(value.shape[dim - 2], kernels[dim], strides[dim], paddings[dim], dilations[dim]) for dim in (0, 1)
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
        not _one_dtype(grad, value)
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
    if query.dim() != 4 or key.dim() != 4 or key.shape != value.shape or not _one_dtype(query, key, value):
        return NotImplemented
    batch, heads, tokens, width = query.shape
    if (key.shape[0], key.shape[3]) != (batch, width) or 0 in (*query.shape, *key.shape) or heads % key.shape[1]:
        return NotImplemented  # several heads of queries may share one of keys
    if dropout != 0.0:
        return NotImplemented
    sums = torch.float64 if query.dtype is torch.float64 else torch.float32
    logsumexp = UnplacedSpec((batch, heads, tokens), (tokens * heads, 1, heads), sums)
    return _like(query), logsumexp


def _attention_backward(grad: Any, query: Any, key: Any, value: Any, out: Any, *rest: Any, **options: Any) -> Any:
    if (
        not _one_dtype(grad, query, key, value)
        or query.dim() != 4
        or grad.shape != query.shape
        or key.shape != value.shape
    ):
        return NotImplemented
    if 0 in (*query.shape, *key.shape):
        return NotImplemented
    return _tokens_first(query), _tokens_first(key), _tokens_first(key)


def _tokens_first(value: Any) -> UnplacedSpec:
    """`[batch, heads, tokens, width]`, stored as `[batch, tokens, heads, width]`."""
    _, heads, tokens, width = value.shape
    return UnplacedSpec(tuple(value.shape), (tokens * heads * width, width, heads * width, 1), value.dtype)


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
    rank = value.dim()
    if index.dtype is not torch.int64 or index.dim() != rank or rank == 0 or not -rank <= dim < rank:
        return NotImplemented
    axis = dim % rank
    if any(have > size for d, (have, size) in enumerate(zip(index.shape, value.shape, strict=True)) if d != axis):
        return NotImplemented
    return row_major(tuple(index.shape), value.dtype)


def _index_select(value: Any, dim: int, index: Any) -> Any:
    rank = value.dim()
    if index.dim() != 1 or index.dtype not in (torch.int64, torch.int32) or rank == 0 or not -rank <= dim < rank:
        return NotImplemented
    axis = dim % rank
    shape = tuple(value.shape)
    return row_major((*shape[:axis], index.shape[0], *shape[axis + 1 :]), value.dtype)


def _padded(grad: Any, sizes: Sequence[int], *rest: Any) -> Any:
    """`slice_backward`, `select_backward`: zeros of the whole, with the gradient in its place."""
    return row_major(tuple(sizes), grad.dtype)


def _roll(value: Any, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    """Pieces joined again, and so laid out as a join of them is; PyTorch's own description overlooks channels-last."""
    shape = tuple(value.shape)
    once = len(dims) == len(shifts) == 1 and -len(shape) <= dims[0] < len(shape) and 0 not in shape
    if once and value.is_contiguous() and not suggests_channels_last(shape, value.stride()):
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
    shape = (*value.shape[:-2], *size)
    if suggests_channels_last(tuple(value.shape), value.stride()):
        return UnplacedSpec(shape, channels_last_stride(shape), value.dtype)
    return row_major(shape, value.dtype)


RULES: dict[str, Any] = {
    "mm.default": _mm,
    "mv.default": _mv,
    "bmm.default": _bmm,
    "addmm.default": _addmm,
    "baddbmm.default": _baddbmm,
    "native_layer_norm.default": _layer_norm,
    "native_layer_norm_backward.default": _layer_norm_backward,
    "_fused_rms_norm.default": _rms_norm,
    "native_batch_norm.default": _batch_norm,
    "_native_batch_norm_legit.default": _batch_norm,
    "_native_batch_norm_legit.no_stats": _batch_norm_no_stats,
    "_native_batch_norm_legit_functional.default": _batch_norm_functional,
    "native_batch_norm_backward.default": _batch_norm_backward,
    "native_group_norm.default": _group_norm,
    "native_group_norm_backward.default": _group_norm_backward,
    "convolution.default": _convolution,
    "convolution_backward.default": _convolution_backward,
    "max_pool2d_with_indices.default": _max_pool2d,
    "max_pool2d_with_indices_backward.default": _max_pool2d_backward,
    "max_unpool2d.default": _max_unpool2d,
    "roll.default": _roll,
    "_scaled_dot_product_flash_attention_for_cpu.default": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward.default": _attention_backward,
    "embedding.default": _embedding,
    "embedding_dense_backward.default": _embedding_backward,
    "native_dropout.default": _dropout,
    "native_dropout_backward.default": _dropout_backward,
    "gather.default": _gather,
    "index_select.default": _index_select,
    "slice_backward.default": _padded,
    "select_backward.default": _padded,
}
