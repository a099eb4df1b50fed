"""Convolutions as others that kernels compute faster, where no library does: without strides, contiguous, by sums.

    the gradient to an image at stride 2   →  four convolutions without strides, of every other element of the kernel in
                                              each direction; their points interleaved are the image
    each channel by itself                 →  of a contiguous image; the kernel's gradient as a sum for each element

An image at a stride meets at point `stride·a + r` only elements of the kernel that are `stride` apart, and which ones
depends on r alone. What is not listed here is left whole, and one contraction (`fuse/lowering/convolutions.py`).
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
else:
    from smelt.base.torch_originals import pristine as torch

Tensor = torch.Tensor
aten = torch.ops.aten

TAPS = 64  # elements of a kernel for which there is a sum each
_PARTS = 16  # convolutions that one is made of, at most


def is_by_channel(x: Tensor, weight: Tensor, groups: int) -> bool:
    return groups == x.shape[1] == weight.shape[0] and weight.shape[1] == 1


def convolution(
    x: Tensor, weight: Tensor, stride: Sequence[int], rest: tuple[Any, ...], transposed: bool, groups: int
) -> Any:
    """Without a bias; `rest`: padding, dilation, and padding of the result."""
    padding, dilation, beyond = rest
    if not transposed:
        if x.dim() != 4 or x.is_contiguous() or not is_by_channel(x, weight, groups):
            return NotImplemented
        return aten.convolution.default(
            x.contiguous(), weight.contiguous(), None, stride, padding, dilation, False, beyond, groups
        )
    rank = x.dim() - 2
    stride, padding, dilation, beyond = (_each(sizes, rank) for sizes in (stride, padding, dilation, beyond))
    extent = [
        (size - 1) * step - 2 * pad + apart * (taps - 1) + more + 1
        for size, step, pad, apart, taps, more in zip(
            x.shape[2:], stride, padding, dilation, weight.shape[2:], beyond, strict=True
        )
    ]
    return to_image(x, weight, extent, (stride, padding, dilation), groups)


def to_image(
    grad: Tensor, weight: Tensor, extent: Sequence[int], steps: tuple[Sequence[int], ...], groups: int
) -> Any:
    """The image of so many points that a convolution at a stride has this gradient, or image, of."""
    stride, padding, dilation = (_each(numbers, len(extent)) for numbers in steps)
    sizes = (*grad.shape, *weight.shape, *extent)
    if set(stride) == {1} or set(dilation) != {1} or any(not isinstance(size, int) for size in sizes):
        return NotImplemented
    if math.prod(stride) > _PARTS or min(padding) < 0:
        return NotImplemented
    points = [-(-size // step) for size, step in zip(extent, stride, strict=True)]

    def part(residues: tuple[int, ...]) -> Tensor:
        """The points `stride·a + r` for all a."""
        taken, crop = weight, []
        for dim, (r, step, pad, length) in enumerate(zip(residues, stride, padding, points, strict=True)):
            first, before = (r + pad) % step, (r + pad) // step
            taken = aten.slice.Tensor(taken, 2 + dim, first, weight.shape[2 + dim], step)
            points_out = grad.shape[2 + dim] + taken.shape[2 + dim] - 1
            crop += [(-before, before + length - points_out)]
        if 0 in taken.shape:
            kept = weight.shape[1] * groups
            zeros: Tensor = aten.full.default([len(grad), kept, *points], 0.0, dtype=grad.dtype, device=grad.device)
            return zeros
        one, none = [1] * len(points), [0] * len(points)
        filters = aten.clone.default(taken, memory_format=torch.contiguous_format)
        image = aten.convolution.default(grad.contiguous(), filters, None, one, none, one, True, none, groups)
        return _cropped(image, crop)

    whole = _interleaved(part, stride, points)
    for dim, size in enumerate(extent):
        whole = aten.slice.Tensor(whole, 2 + dim, 0, size)
    return whole


def _cropped(image: Tensor, crop: Sequence[tuple[int, int]]) -> Tensor:
    """Points taken away at the beginning and the end of each dim, or zeros put there."""
    for dim, (before, after) in enumerate(crop, 2):
        image = aten.slice.Tensor(image, dim, max(-before, 0), image.shape[dim] + min(after, 0))
    pads = [max(each, 0) for pair in reversed(crop) for each in pair]
    return aten.constant_pad_nd.default(image, pads, 0.0) if any(pads) else image


def _interleaved(part: Callable[[tuple[int, ...]], Tensor], stride: Sequence[int], points: Sequence[int]) -> Tensor:
    """Point `a` of part `r` is point `stride·a + r`."""
    parts = [part(residues) for residues in itertools.product(*(range(step) for step in stride))]
    for dim in reversed(range(len(stride))):
        step = stride[dim]
        groups = [parts[first : first + step] for first in range(0, len(parts), step)]
        parts = [aten.stack.default(group, 3 + dim) if step > 1 else group[0] for group in groups]
        shape = list(parts[0].shape)
        if step > 1:
            shape[2 + dim : 4 + dim] = [points[dim] * step]
            parts = [aten.view.default(each.contiguous(), shape) for each in parts]
    return parts[0]


def _each(sizes: Sequence[int], rank: int) -> list[int]:
    """One number may stand for all dims."""
    return [*sizes] * rank if len(sizes) == 1 else [*sizes]
