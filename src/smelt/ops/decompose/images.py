"""Pooling and enlarging of images where every window is the same arithmetic.

    avg_pool2d(x, 2)                 → (x[…, ::2, ::2] + x[…, ::2, 1::2] + x[…, 1::2, ::2] + x[…, 1::2, 1::2]) / 4
    upsample_nearest2d(x, twice)     → x as [n, c, h, 1, w, 1], spread over [n, c, h, 2, w, 2]

What is read then is a sum of strides, so that it fuses with what comes before and after. Windows that reach over the
edge, or are large, stay library calls.
"""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from smelt.device.host_library import on_host
from smelt.ops.decompose.table import choose, decomposes, widen
from smelt.symbolic.shapes import product

if TYPE_CHECKING:
    import torch
else:
    from smelt.base.torch_originals import pristine as torch

Tensor = torch.Tensor
aten = torch.ops.aten

_MOST = 9  # elements of a window: each is a read of its own
_TIMES = (1, 2, 4, 8)  # as a fraction each is exact, so that places are what PyTorch computes


def _pair(sizes: Sequence[int]) -> tuple[int, int]:
    return (sizes[0], sizes[-1])


def _windows(
    x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], ceil: bool
) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Extents of windows and the steps between them; None where one reaches over the edge, or is large."""
    size = _pair(kernel)
    step = _pair(stride) if stride else size
    if x.dim() != 4 or any(padding) or product(size) > _MOST:
        return None
    # Rounding up makes a difference only where something is left over.
    if ceil and any((extent - k) % s for extent, k, s in zip(x.shape[2:], size, step, strict=True)):
        return None
    return size, step


@decomposes(aten.avg_pool2d.default)
def avg_pool2d(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0),
    ceil: bool = False,
    count_pad: bool = True,
    divisor: int | None = None,
) -> Any:
    above, before = _pair(padding)
    if above or before:
        if not count_pad and divisor is None:
            return NotImplemented
        x = aten.constant_pad_nd.default(x, [before, before, above, above], 0.0)
    windows = _windows(x, kernel, stride, (), ceil)
    if windows is None or not x.dtype.is_floating_point:
        return NotImplemented
    parts = [widen(part) for _, _, part in _parts(x, *windows)]
    return (sum(parts[1:], parts[0]) / (divisor or product(windows[0]))).to(x.dtype)


@decomposes(aten.avg_pool2d_backward.default)
def avg_pool2d_backward(
    grad: Tensor,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil: bool,
    count_pad: bool,
    divisor: int | None,
) -> Any:
    windows = _windows(x, kernel, stride, padding, ceil)
    if windows is None or windows[0] != windows[1] or any(e % k for e, k in zip(x.shape[2:], windows[0], strict=True)):
        return NotImplemented
    return _spread(widen(grad) / (divisor or product(windows[0])), windows[0]).to(x.dtype)


def _spread(x: Tensor, times: tuple[int, int]) -> Tensor:
    """Each element of an image as a block of so many rows and columns."""
    n, c, h, w = x.shape
    blocks = x.view(n, c, h, 1, w, 1) if x.is_contiguous() else x.unsqueeze(4).unsqueeze(3)
    return blocks.expand(n, c, h, times[0], w, times[1]).reshape(n, c, h * times[0], w * times[1])


def _times(small: Sequence[int], large: Sequence[int], scales: Sequence[float | None]) -> tuple[int, int] | None:
    """How often each row and column is repeated; None where that is no whole number, or a scale says otherwise."""
    times = tuple(big // little for little, big in zip(small, large, strict=True))
    for little, big, number, scale in zip(small, large, times, scales, strict=True):
        if number not in _TIMES or little * number != big or scale not in (None, number):
            return None
    return times[0], times[1]


@decomposes(aten.upsample_nearest2d.default)
def upsample_nearest2d(
    x: Tensor, size: Sequence[int], down: float | None = None, along: float | None = None
) -> Any:
    times = _times(x.shape[2:], size, (down, along))
    return NotImplemented if times is None else _spread(x, times)


@decomposes(aten.upsample_nearest2d_backward.default)
def upsample_nearest2d_backward(
    grad: Tensor, size: Sequence[int], whole: Sequence[int], down: float | None = None, along: float | None = None
) -> Any:
    times = _times(whole[2:], size, (down, along))
    if times is None or product(times) > _MOST:
        return NotImplemented
    parts = [widen(grad[:, :, i :: times[0], j :: times[1]]) for i in range(times[0]) for j in range(times[1])]
    return sum(parts[1:], parts[0]).to(grad.dtype)


@decomposes(aten.max_pool2d_with_indices.default)
def max_pool2d_with_indices(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    ceil: bool = False,
) -> Any:
    """The greatest of each window, the first of equals, and where in the image it stands. NaN is greater than all."""
    edges = above, before = _pair(padding)
    size, step = _pair(kernel), _pair(stride or kernel)
    if any(number != 1 for number in dilation) or product(size) > _MOST:
        return NotImplemented
    if x.dim() != 4 or not x.dtype.is_floating_point:
        return NotImplemented
    # Rounding up makes a difference only where something is left over.
    extents = [extent + 2 * edge - k for extent, edge, k in zip(x.shape[2:], edges, size, strict=True)]
    if ceil and any(extent % s for extent, s in zip(extents, step, strict=True)):
        return NotImplemented
    if any(edges) and (on_host(x.device) or not all(type(extent) is int for extent in x.shape)):
        parts = _parts(_padded(x, edges, edges), size, step)
    else:
        parts = _parts_at_edges(x, size, step, edges) if any(edges) else _parts(x, size, step)
    best: Any = None
    down: Any = None  # from the window's first row
    along: Any = None
    for i, j, part in parts:
        i, j = (aten.full.default([], number, dtype=torch.int32, device=x.device) for number in (i, j))
        better = (part > best) | (part != part) if best is not None else None
        best, down, along = (
            new if better is None else torch.where(better, new, old)
            for new, old in ((part, best), (i, down), (j, along))
        )
    starts = zip(best.shape[2:], step, edges, strict=True)
    rows, cols = (_ramp(count, each, x) - edge for count, each, edge in starts)
    # Where all is -inf, what stands beyond the edge is first: PyTorch begins with the first element within.
    inside = ((rows[:, None] + down, above), (cols + along, before))
    row, col = (place.clamp_min(0) if edge else place for place, edge in inside)
    places = row * x.shape[3] + col
    return (best.clone(), places.expand(best.shape).clone()) if product(size) == 1 else (best, places)


def _parts(x: Tensor, size: tuple[int, int], step: tuple[int, int]) -> Iterator[tuple[int, int, Tensor]]:
    """The elements of all windows, one of each at a time, with its place there."""
    rows, cols = ((extent - k) // s for extent, k, s in zip(x.shape[2:], size, step, strict=True))
    for i in range(size[0]):
        for j in range(size[1]):
            yield i, j, x[:, :, i : i + rows * step[0] + 1 : step[0], j : j + cols * step[1] + 1 : step[1]]


def _padded(x: Tensor, first: tuple[int, int], last: tuple[int, int]) -> Tensor:
    padded: Tensor = aten.constant_pad_nd.default(x, [first[1], last[1], first[0], last[0]], -math.inf)
    return padded


def _parts_at_edges(
    x: Tensor, size: tuple[int, int], step: tuple[int, int], edges: tuple[int, int]
) -> Iterator[tuple[int, int, Tensor]]:
    """`_parts` of a padded image that is never in memory: each part has its own padding."""
    for i in range(size[0]):
        for j in range(size[1]):
            part, before, behind = x, [0, 0], [0, 0]
            for dim, (place, k, s, edge) in enumerate(zip((i, j), size, step, edges, strict=True)):
                extent, first = x.shape[2 + dim], place - edge
                count = (extent + 2 * edge - k) // s + 1
                low = min(count, max(0, -(first // s)))
                high = max(low, min(count, (extent - 1 - first) // s + 1))
                begin = low * s + first if high > low else 0
                part = aten.slice.Tensor(part, 2 + dim, begin, begin + (high - low - 1) * s + 1 if high > low else 0, s)
                before[dim], behind[dim] = low, count - high
            yield i, j, _padded(part, (before[0], before[1]), (behind[0], behind[1])) if any(before + behind) else part


def _ramp(count: int, step: int, like: Tensor) -> Tensor:
    ramp: Tensor = aten.arange.start_step(0, count * step, step, dtype=torch.int64, device=like.device)
    return ramp


@decomposes(aten.max_pool2d_with_indices_backward.default)
def max_pool2d_with_indices_backward(
    grad: Tensor,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil: bool,
    indices: Tensor,
) -> Any:
    """Where every element belongs to one window, it gets its gradient if it is the one that was chosen there. Otherwise
    each window adds its gradient to the one it chose."""
    windows = _windows(x, kernel, stride, padding, ceil)
    if windows is None or windows[0] != windows[1] or any(number != 1 for number in dilation):
        return _to_chosen(grad, x, indices)
    if any(e % k for e, k in zip(x.shape[2:], windows[0], strict=True)):
        return _to_chosen(grad, x, indices)
    here = _ramp(x.shape[2], x.shape[3], x).unsqueeze(1) + _ramp(x.shape[3], 1, x)
    return choose(_spread(indices, windows[0]) == here, _spread(grad, windows[0]), 0.0)


def _to_chosen(grad: Tensor, x: Tensor, indices: Tensor) -> Any:
    """The gradients of windows, added up at places that count the elements of an image in rows. On a GPU, each
    element looks at its windows instead (`ops/pool_gradients.py`), which is faster than atomic additions."""
    if x.dim() != 4 or not x.dtype.is_floating_point:
        return NotImplemented
    if not on_host(x.device):
        return NotImplemented
    n, c, h, w = x.shape
    if grad.is_contiguous() and indices.is_contiguous():
        return _zeros([n, c, h * w], x).scatter_add(2, indices.view(n, c, -1), grad.view(n, c, -1)).view(n, c, h, w)
    last = [each.permute(0, 2, 3, 1) for each in (grad, indices)]
    if not all(each.is_contiguous() for each in last):
        return NotImplemented
    grad, indices = (each.view(n, -1, c) for each in last)
    return _zeros([n, h * w, c], x).scatter_add(1, indices, grad).view(n, h, w, c).permute(0, 3, 1, 2)


def _zeros(shape: list[int], like: Tensor) -> Tensor:
    zeros: Tensor = aten.full.default(shape, 0, dtype=like.dtype, device=like.device)
    return zeros
