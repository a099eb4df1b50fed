"""Specs of what is done to images and signals: pooling by averages, resizing, padding with their own elements, windows.

    aten.avg_pool2d(f32[2, 3, 9, 9], [2, 2])                     → f32[2, 3, 4, 4]
    aten.upsample_nearest2d(f32[2, 3, 4, 4], [8, 8])             → f32[2, 3, 8, 8]
    aten.im2col(f32[2, 3, 5, 5], [2, 2], [1, 1], [0, 0], [1, 1]) → f32[2, 12, 16]
"""

from collections.abc import Sequence
from typing import Any

import torch

from smelt.meta.rules.promotion import FLOATS
from smelt.meta.rules.specs import by_operator, row_major, suggested
from smelt.symbolic.shapes import product


def _is_image(value: Any, rank: int) -> bool:
    """A batch of floats with elements, of so many dimensions behind the channels."""
    return value.dim() == rank + 2 and value.dtype in FLOATS and 0 not in value.shape


def _both(sizes: Sequence[int]) -> tuple[int, int]:
    return sizes[0], sizes[-1]


def pooled(size: int, kernel: int, stride: int, padding: int, dilation: int = 1, up: bool = False) -> int:
    """How many windows there are. The last one may reach over the end (`up`), but starts inside or in the padding."""
    span = size + 2 * padding - dilation * (kernel - 1) - 1
    count = (span + (stride - 1 if up else 0)) // stride + 1
    if up and (count - 1) * stride >= size + padding:
        count = count - 1
    return count


def _avg_pool2d(
    value: Any, kernel: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,), *rest: Any
) -> Any:
    up = bool(rest[0]) if rest else False
    if not _is_image(value, 2) or (len(rest) > 2 and rest[2] == 0):
        return NotImplemented
    kernels, paddings = _both(kernel), _both(padding)
    strides = _both(stride) if stride else kernels
    if any(each < 1 for each in (*kernels, *strides)) or any(pad < 0 for pad in paddings):
        return NotImplemented
    if any(2 * pad > each for pad, each in zip(paddings, kernels, strict=True)):
        return NotImplemented
    sizes = [pooled(value.shape[2 + dim], kernels[dim], strides[dim], paddings[dim], up=up) for dim in (0, 1)]
    return NotImplemented if any(size < 1 for size in sizes) else suggested((*value.shape[:2], *sizes), value)


def _adaptive_avg_pool2d(value: Any, size: Sequence[int]) -> Any:
    if not _is_image(value, 2) or len(size) != 2 or any(each < 1 for each in size):
        return NotImplemented
    return suggested((*value.shape[:2], *size), value)


def _adaptive_max_pool2d(value: Any, size: Sequence[int]) -> Any:
    values = _adaptive_avg_pool2d(value, size)
    return NotImplemented if values is NotImplemented else (values, suggested(values.shape, value, torch.int64))


def _resized(rank: int) -> Any:
    """`upsample_…(x, size, …)`."""

    def rule(value: Any, size: Sequence[int], *rest: Any) -> Any:
        if not _is_image(value, rank) or len(size) != rank or any(each < 1 for each in size):
            return NotImplemented
        if rank == 1:
            return row_major((*value.shape[:2], *size), value.dtype)
        return suggested((*value.shape[:2], *size), value)

    return rule


def _pooled_backward(grad: Any, value: Any, *rest: Any) -> Any:
    """`avg_pool2d_backward`, `_adaptive_avg_pool2d_backward`: laid out as the input seems to be."""
    if not _is_image(value, 2) or not _is_image(grad, 2) or grad.dtype is not value.dtype:
        return NotImplemented
    return suggested(tuple(value.shape), value)


def _resized_backward(rank: int, depends_on_layout: bool = True) -> Any:
    """`upsample_…_backward(gradient, size, input_size, …)`."""

    def rule(grad: Any, size: Sequence[int], input_size: Sequence[int], *rest: Any) -> Any:
        if not _is_image(grad, rank) or len(input_size) != rank + 2 or any(each < 1 for each in input_size):
            return NotImplemented
        if any(have != wanted for have, wanted in zip(grad.shape, (*input_size[:2], *size), strict=True)):
            return NotImplemented
        shape = tuple(input_size)
        return suggested(shape, grad) if depends_on_layout else row_major(shape, grad.dtype)

    return rule


def _repeated_edge(rank: int, reflect: bool) -> Any:
    """`reflection_pad…`, `replication_pad…`."""

    def rule(value: Any, padding: Sequence[int]) -> Any:
        if not _is_image(value, rank) or len(padding) != 2 * rank or any(each < 0 for each in padding):
            return NotImplemented
        shape = list(value.shape)
        for place in range(rank):
            low, high = padding[2 * place : 2 * place + 2]
            size = shape[-1 - place]
            if reflect and (low >= size or high >= size):
                return NotImplemented
            shape[-1 - place] = size + low + high
        return suggested(tuple(shape), value)

    return rule


def _windows(
    value: Any, kernel: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]
) -> Any:
    """`im2col`."""
    count = _count(value.shape[2:], kernel, dilation, padding, stride) if _is_image(value, 2) else None
    if count is None:
        return NotImplemented
    return row_major((value.shape[0], value.shape[1] * product(_both(kernel)), count), value.dtype)


def _from_windows(
    value: Any,
    size: Sequence[int],
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Any:
    """`col2im`."""
    if not _is_image(value, 1) or value.shape[1] % product(_both(kernel)) or min(size) < 1:
        return NotImplemented
    if _count(_both(size), kernel, dilation, padding, stride) != value.shape[2]:
        return NotImplemented
    return row_major((value.shape[0], value.shape[1] // product(_both(kernel)), *_both(size)), value.dtype)


def _count(
    size: Sequence[int], kernel: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]
) -> int | None:
    """How many windows an image has; None for what PyTorch refuses."""
    positive = (*_both(stride), *_both(kernel), *_both(dilation))
    if any(each < 1 for each in positive) or any(each < 0 for each in padding):
        return None
    each = zip(size, _both(kernel), _both(stride), _both(padding), _both(dilation), strict=True)
    counts = [pooled(*one) for one in each]
    return None if any(count < 1 for count in counts) else product(counts)


def _pixel_shuffle(value: Any, factor: int) -> Any:
    if not _is_image(value, 2) or factor < 1 or value.shape[1] % (factor * factor) != 0:
        return NotImplemented
    batch, channels, height, width = value.shape
    return suggested((batch, channels // (factor * factor), height * factor, width * factor), value)


def _channel_shuffle(value: Any, groups: int) -> Any:
    """PyTorch's own description overlooks channels-last."""
    if value.dim() < 3 or 0 in value.shape or groups < 1 or value.shape[1] % groups != 0:
        return NotImplemented
    return suggested(tuple(value.shape), value)


def _grid_sampler(value: Any, grid: Any, *rest: Any) -> Any:
    if not _is_image(value, 2) or grid.dim() != 4 or grid.dtype is not value.dtype or 0 in grid.shape:
        return NotImplemented
    if grid.shape[0] != value.shape[0] or grid.shape[3] != 2:
        return NotImplemented
    return row_major((*value.shape[:2], grid.shape[1], grid.shape[2]), value.dtype)


RULES = by_operator(
    (_avg_pool2d, "avg_pool2d"),
    (_adaptive_avg_pool2d, "_adaptive_avg_pool2d"),
    (_adaptive_max_pool2d, "adaptive_max_pool2d"),
    (_resized(1), "upsample_linear1d upsample_nearest1d"),
    (_resized(2), "upsample_nearest2d upsample_bilinear2d upsample_bicubic2d"),
    (_pooled_backward, "avg_pool2d_backward _adaptive_avg_pool2d_backward"),
    (_resized_backward(1, False), "upsample_linear1d_backward upsample_nearest1d_backward"),
    (_resized_backward(2), "upsample_nearest2d_backward upsample_bilinear2d_backward"),
    (_resized_backward(2, False), "upsample_bicubic2d_backward"),
    (_repeated_edge(1, True), "reflection_pad1d"),
    (_repeated_edge(2, True), "reflection_pad2d"),
    (_repeated_edge(1, False), "replication_pad1d"),
    (_repeated_edge(2, False), "replication_pad2d"),
    (_windows, "im2col"),
    (_from_windows, "col2im"),
    (_pixel_shuffle, "pixel_shuffle"),
    (_channel_shuffle, "channel_shuffle native_channel_shuffle"),
    (_grid_sampler, "grid_sampler_2d"),
)
