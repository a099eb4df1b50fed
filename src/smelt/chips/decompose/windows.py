"""Pooling and its gradients: sums of windows along one dimension after the other, the greatest by gathers."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch

from smelt.chips.decompose.table import computes, wide
from smelt.chips.decompose.taps import Rows, gathered, summed, turned
from smelt.device.host_library import HOST

Tensor = torch.Tensor
aten = torch.ops.aten


def _each(sizes: Sequence[int], rank: int) -> list[int]:
    return [*sizes] if len(sizes) == rank else [sizes[0]] * rank


def _count(size: int, kernel: int, stride: int, pad: int, dilation: int, ceil: bool) -> int:
    """How many windows there are: none begins beyond the edge."""
    found = (size + 2 * pad - dilation * (kernel - 1) - 1 + (stride - 1 if ceil else 0)) // stride + 1
    return found - 1 if ceil and (found - 1) * stride >= size + pad else found


# Averages.


def _averages(
    size: int, kernel: int, stride: int, pad: int, ceil: bool, with_pad: bool
) -> tuple[Rows, list[int]]:
    """Along one dimension: the elements of each window, and by how many it is divided."""
    rows, divisors = [], []
    for number in range(_count(size, kernel, stride, pad, 1, ceil)):
        start = number * stride - pad
        end = min(start + kernel, size + pad)
        inside = range(max(start, 0), min(end, size))
        rows.append(tuple((place, 1.0) for place in inside))
        divisors.append(end - start if with_pad else len(inside))
    return tuple(rows), divisors


def _divisor(divisors: Sequence[Sequence[int]], override: int | None, like: Tensor) -> Any:
    if override is not None:
        return override
    found = torch.ones([], dtype=torch.float64, device=HOST)
    for each in divisors:
        found = found.unsqueeze(-1) * torch.tensor(each, dtype=torch.float64, device=HOST)
    return found.to(like.dtype).to(like.device)


def _pools(rank: int, forward: Any, backward: Any) -> None:
    def plan(shape: Sequence[int], kernel: Any, stride: Any, padding: Any, ceil: bool, with_pad: bool) -> Any:
        kernel = _each(kernel, rank)
        stride, padding = _each(stride or kernel, rank), _each(padding, rank)
        sizes = zip(shape[-rank:], kernel, stride, padding, strict=True)
        return [_averages(*each, ceil, with_pad) for each in sizes]

    @computes(forward)
    def pool(
        x: Tensor, kernel: Any, stride: Any = (), padding: Any = (0,), ceil: bool = False, with_pad: bool = True,
        override: int | None = None,
    ) -> Tensor:  # fmt: skip
        plans = plan(x.shape, kernel, stride, padding, ceil, with_pad)
        made, first = wide(x), x.dim() - rank
        for dim, (rows, _) in enumerate(plans):
            made = summed(made, first + dim, rows)
        found: Tensor = (made / _divisor([each for _, each in plans], override, made)).to(x.dtype)
        return found

    @computes(backward)
    def pool_backward(
        grad: Tensor, x: Tensor, kernel: Any, stride: Any, padding: Any, ceil: bool, with_pad: bool,
        override: int | None,
    ) -> Tensor:  # fmt: skip
        plans = plan(x.shape, kernel, stride, padding, ceil, with_pad)
        made, first = wide(grad), x.dim() - rank
        made = made / _divisor([each for _, each in plans], override, made)
        for dim, (rows, _) in enumerate(plans):
            made = summed(made, first + dim, turned(rows, x.shape[first + dim]))
        return made.to(x.dtype)


_pools(2, aten.avg_pool2d.default, aten.avg_pool2d_backward.default)
_pools(3, aten.avg_pool3d.default, aten.avg_pool3d_backward.default)


def _adaptive(size: int, count: int) -> list[range]:
    return [range(n * size // count, -(-(n + 1) * size // count)) for n in range(count)]


def _means(size: int, count: int) -> Rows:
    return tuple(tuple((place, 1 / len(row)) for place in row) for row in _adaptive(size, count))


@computes(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default)
def adaptive_average(x: Tensor, size: Sequence[int]) -> Tensor:
    made, first = wide(x), x.dim() - len(size)
    for dim, count in enumerate(size, first):
        made = summed(made, dim, _means(x.shape[dim], count))
    return made.to(x.dtype)


@computes(aten._adaptive_avg_pool2d_backward.default)
def adaptive_average_2d_backward(grad: Tensor, x: Tensor) -> Tensor:
    return _adaptive_backward(grad, x, 2)


@computes(aten._adaptive_avg_pool3d_backward.default)
def adaptive_average_3d_backward(grad: Tensor, x: Tensor) -> Tensor:
    return _adaptive_backward(grad, x, 3)


def _adaptive_backward(grad: Tensor, x: Tensor, rank: int) -> Tensor:
    made = wide(grad)
    for dim in range(x.dim() - rank, x.dim()):
        made = summed(made, dim, turned(_means(x.shape[dim], grad.shape[dim]), x.shape[dim]))
    return made.to(x.dtype)


# The greatest.


def _greatest(x: Tensor, windows: Sequence[Sequence[Sequence[int]]]) -> tuple[Tensor, Tensor]:
    """The greatest of each window, and its number in its image; what is not a number is greater than all."""
    picked, numbers = gathered(x, x.dim() - len(windows), windows)
    values, chosen = picked.max(-1)
    return values, numbers.expand(picked.shape).gather(-1, chosen.unsqueeze(-1)).squeeze(-1)


@computes(aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default)
def adaptive_max(x: Tensor, size: Sequence[int]) -> tuple[Tensor, Tensor]:
    return _greatest(x, [_adaptive(x.shape[d], n) for d, n in enumerate(size, x.dim() - len(size))])


def _max_pool(rank: int, forward: Any) -> None:
    @computes(forward)
    def pool(
        x: Tensor, kernel: Any, stride: Any = (), padding: Any = (0,), dilation: Any = (1,), ceil: bool = False
    ) -> tuple[Tensor, Tensor]:
        kernel = _each(kernel, rank)
        stride, padding, dilation = _each(stride or kernel, rank), _each(padding, rank), _each(dilation, rank)
        windows = []
        for size, k, s, p, d in zip(x.shape[-rank:], kernel, stride, padding, dilation, strict=True):
            starts = [number * s - p for number in range(_count(size, k, s, p, d, ceil))]
            windows.append([[at for at in range(start, start + k * d, d) if 0 <= at < size] for start in starts])
        return _greatest(x, windows)


_max_pool(2, aten.max_pool2d_with_indices.default)
_max_pool(3, aten.max_pool3d_with_indices.default)


def _to_chosen(grad: Tensor, x: Tensor, indices: Tensor, rank: int) -> Tensor:
    """Gradients added up where their windows have chosen."""
    first = x.dim() - rank
    zeros = torch.zeros([*x.shape[:first], math.prod(x.shape[first:])], dtype=grad.dtype, device=x.device)
    return zeros.scatter_add(first, indices.flatten(first), grad.flatten(first)).view(x.shape)


@computes(aten.adaptive_max_pool2d_backward.default)
def adaptive_max_2d_backward(grad: Tensor, x: Tensor, indices: Tensor) -> Tensor:
    return _to_chosen(grad, x, indices, 2)


@computes(aten.adaptive_max_pool3d_backward.default)
def adaptive_max_3d_backward(grad: Tensor, x: Tensor, indices: Tensor) -> Tensor:
    return _to_chosen(grad, x, indices, 3)


@computes(aten.max_pool2d_with_indices_backward.default)
def max_2d_backward(
    grad: Tensor, x: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool, indices: Tensor
) -> Tensor:
    return _to_chosen(grad, x, indices, 2)


@computes(aten.max_pool3d_with_indices_backward.default)
def max_3d_backward(
    grad: Tensor, x: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool, indices: Tensor
) -> Tensor:
    return _to_chosen(grad, x, indices, 3)


# Windows that chance places.


def _fractional(x: Tensor, kernel: Sequence[int], size: Sequence[int], samples: Tensor) -> tuple[Tensor, Tensor]:
    """Where windows begin differs by image and channel: ⌊(n + u) · α⌋ - ⌊u · α⌋, the last at the edge."""
    rank = len(size)
    batched = x if x.dim() == rank + 2 else x.unsqueeze(0)
    images, channels = batched.shape[:2]
    number = torch.zeros([images, channels, *[1] * (2 * rank)], dtype=torch.int64, device=x.device)
    for dim, (extent, k, n) in enumerate(zip(batched.shape[2:], kernel, size, strict=True)):
        # Samples are of the last dimension first.
        u = samples[:, :, rank - 1 - dim].unsqueeze(-1).to(x.dtype)
        alpha = (extent - k) / (n - 1) if n > 1 else 0.0
        count = torch.arange(n, device=x.device)
        starts = ((count.to(x.dtype) + u) * alpha).to(torch.int64) - (u * alpha).to(torch.int64)
        starts = torch.where(count == n - 1, extent - k, starts)
        places = starts.unsqueeze(-1) + torch.arange(k, device=x.device)
        shape = [images, channels, *[1] * (2 * rank)]
        shape[2 + dim], shape[2 + rank + dim] = n, k
        number = number * extent + places.view(shape)
    flat = number.flatten(2 + rank)
    picked = batched.flatten(2).gather(2, flat.flatten(2)).view(flat.shape)
    values, chosen = picked.max(-1)
    found = flat.gather(-1, chosen.unsqueeze(-1)).squeeze(-1)
    return (values, found) if batched is x else (values.squeeze(0), found.squeeze(0))


@computes(aten.fractional_max_pool2d.default, aten.fractional_max_pool3d.default)
def fractional_max(x: Tensor, kernel: Any, size: Any, samples: Tensor) -> tuple[Tensor, Tensor]:
    return _fractional(x, kernel, size, samples)


@computes(aten.fractional_max_pool2d_backward.default)
def fractional_max_2d_backward(grad: Tensor, x: Tensor, kernel: Any, size: Any, indices: Tensor) -> Tensor:
    return _to_chosen(grad, x, indices, 2)


@computes(aten.fractional_max_pool3d_backward.default)
def fractional_max_3d_backward(grad: Tensor, x: Tensor, kernel: Any, size: Any, indices: Tensor) -> Tensor:
    return _to_chosen(grad, x, indices, 3)


# Windows side by side.


@computes(aten.col2im.default)
def col2im(
    x: Tensor, size: Sequence[int], kernel: Sequence[int], dilation: Sequence[int], padding: Sequence[int],
    stride: Sequence[int],
) -> Tensor:  # fmt: skip
    """Each element of an image is the sum of what it is in windows, along one dimension and then the other."""
    batched = x if x.dim() == 3 else x.unsqueeze(0)
    plans = list(zip(size, kernel, dilation, padding, stride, strict=True))
    counts = [(s + 2 * p - d * (k - 1) - 1) // t + 1 for s, k, d, p, t in plans]
    made = wide(batched).view(batched.shape[0], -1, *kernel, *counts).permute(0, 1, 2, 4, 3, 5)
    for dim, ((extent, k, d, p, t), n) in enumerate(zip(plans, counts, strict=True)):
        rows: list[list[tuple[int, float]]] = [[] for _ in range(extent)]
        for i, j in itertools.product(range(k), range(n)):
            if 0 <= (at := i * d + j * t - p) < extent:
                rows[at].append((i * n + j, 1.0))
        made = summed(made.flatten(2 + dim, 3 + dim), 2 + dim, tuple(map(tuple, rows)))
    made = made.to(x.dtype)
    return made if batched is x else made.squeeze(0)
