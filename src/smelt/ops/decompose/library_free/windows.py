"""Pooling and resizing of any rank and size where no library may be called: elements read at places that are computed.

    max_pool3d(x, 3, 2, 1, ceil)   →  x[…, places] as [n, c, windows, elements], the greatest of each; -inf outside
    adaptive_max_pool2d(x, 3)      →  the same with windows from n·size/3 to (n + 1)·size/3
    upsample_nearest2d(x, [5, 4])  →  x[…, ⌊n · size / 5⌋, …]

Sizes may be dynamic. What `images` and `resampling` do with plain reads is left to them.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.ops.decompose import images, resampling, torch_decompositions  # noqa: F401  (they are asked first)
from smelt.ops.decompose.table import DECOMPOSITIONS, choose, widen
from smelt.ops.decompose.without_library import TABLE

Tensor = torch.Tensor
aten = torch.ops.aten


def _where_no_other_does(*ops: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Use the function where the usual decomposition does not apply. Results are laid out as images are."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        for op in ops:
            usual = DECOMPOSITIONS.get(op) or TABLE.get(op)

            def decomposition(x: Tensor, *args: Any, usual: Any = usual, **kwargs: Any) -> Any:
                found = NotImplemented if usual is None else usual(x, *args, **kwargs)
                if found is not NotImplemented or 0 in x.shape or not x.dtype.is_floating_point:
                    return found
                pixels_first = x.dim() == 4 and not x.is_contiguous()
                pixels_first = pixels_first and x.is_contiguous(memory_format=torch.channels_last)
                layout = torch.channels_last if pixels_first else torch.contiguous_format
                made = function(x, *args, **kwargs)
                alone = isinstance(made, Tensor)
                laid_out = [aten.clone.default(each, memory_format=layout) for each in ([made] if alone else made)]
                return laid_out[0] if alone else tuple(laid_out)

            TABLE[op] = decomposition
        return function

    return enter


@dataclass(frozen=True, slots=True)
class _Windows:
    """Windows along one dimension: `places` of their elements, [windows, elements], and which of those there are."""

    first: Tensor
    places: Tensor
    inside: Tensor
    divisor: Tensor
    """By how many elements each is divided for an average."""


def _regular(
    x: Tensor, dim: int, kernel: int, stride: int, pad: int, dilation: int, ceil: bool, with_pad: bool = True
) -> _Windows:
    size = x.shape[dim]
    count = (size + 2 * pad - dilation * (kernel - 1) - 1 + (stride - 1 if ceil else 0)) // stride + 1
    if ceil and (count - 1) * stride >= size + pad:
        count -= 1  # none begins beyond the edge
    first = torch.arange(count, device=x.device) * stride - pad
    places = aten.unsqueeze.default(first, 1) + torch.arange(kernel, device=x.device) * dilation
    inside = (places >= 0) & (places < size)
    divisor = (first + kernel).clamp_max(size + pad) - first if with_pad else inside.to(torch.int64).sum(1)
    return _Windows(first, places.clamp(0, size - 1), inside, divisor)


def _adaptive(x: Tensor, dim: int, count: int) -> _Windows:
    size = x.shape[dim]
    number = torch.arange(count, device=x.device)
    first, end = number * size // count, ((number + 1) * size + count - 1) // count
    longest = size if count == 1 else (size + count - 1) // count + 1
    places = aten.unsqueeze.default(first, 1) + torch.arange(longest, device=x.device)
    return _Windows(first, places.clamp(0, size - 1), places < aten.unsqueeze.default(end, 1), end - first)


def _gathered(x: Tensor, windows: Sequence[_Windows], outside: float) -> Tensor:
    """[…, windows of each dimension, elements of a window], in the order of rows."""
    first, rank = x.dim() - len(windows), len(windows)
    for place, each in enumerate(windows):
        count, kernel = each.places.shape
        dim = first + 2 * place
        x = aten.index_select.default(x, dim, each.places.reshape([count * kernel]))
        x = x.reshape([*x.shape[:dim], count, kernel, *x.shape[dim + 1 :]])
        after = x.dim() - dim - 2
        x = choose(aten.view.default(each.inside, [count, kernel] + [1] * after), x, outside)
    order = [*range(first), *(first + 2 * d for d in range(rank)), *(first + 2 * d + 1 for d in range(rank))]
    x = aten.permute.default(x, order)
    elements = math.prod(x.shape[first + rank :])
    return x.reshape([*x.shape[: first + rank], elements])


def _greatest(x: Tensor, windows: Sequence[_Windows], dilation: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The greatest of each window, the first of equals, and its number in the image."""
    values, chosen = aten.max.dim(_gathered(x, windows, -math.inf), -1)
    number: Any = 0
    rank, first = len(windows), x.dim() - len(windows)
    within = chosen
    parts = []
    for each in reversed(windows):
        kernel = each.places.shape[1]
        parts.append(within % kernel)
        within = within // kernel
    for place, (each, by) in enumerate(zip(windows, dilation, strict=True)):
        size = x.shape[first + place]
        start = aten.view.default(each.first, [each.first.shape[0]] + [1] * (rank - 1 - place))
        number = number * size + (start + parts[rank - 1 - place] * by).clamp(0, size - 1)
    return values, number


def _averaged(x: Tensor, windows: Sequence[_Windows], override: int | None = None) -> Tensor:
    wide = widen(x)
    total = _gathered(wide, windows, 0.0).sum(-1)
    if override is not None:
        return (total / override).to(x.dtype)
    for place, each in enumerate(windows):
        after = len(windows) - 1 - place
        total = total / aten.view.default(each.divisor, [each.divisor.shape[0]] + [1] * after).to(wide.dtype)
    return total.to(x.dtype)


def _each(sizes: Sequence[int], rank: int) -> list[int]:
    return list(sizes) if len(sizes) == rank else [sizes[0]] * rank


def _pools(rank: int, greatest: Any, average: Any, adaptive: Sequence[Any]) -> None:
    @_where_no_other_does(greatest)
    def max_pool(
        x: Tensor, kernel: Any, stride: Any = (), padding: Any = (0,), dilation: Any = (1,), ceil: bool = False
    ) -> Any:
        sizes = [_each(each, rank) for each in (kernel, stride or kernel, padding, dilation)]
        windows = [
            _regular(x, d, k, s, p, by, ceil) for d, k, s, p, by in zip(range(-rank, 0), *sizes, strict=True)
        ]
        return _greatest(x, windows, sizes[3])

    @_where_no_other_does(average)
    def average_pool(
        x: Tensor, kernel: Any, stride: Any = (), padding: Any = (0,), ceil: bool = False, with_pad: bool = True,
        override: int | None = None,
    ) -> Any:  # fmt: skip
        sizes = [_each(each, rank) for each in (kernel, stride or kernel, padding)]
        windows = [
            _regular(x, d, k, s, p, 1, ceil, with_pad) for d, k, s, p in zip(range(-rank, 0), *sizes, strict=True)
        ]
        return _averaged(x, windows, override)

    @_where_no_other_does(adaptive[0])
    def adaptive_max_pool(x: Tensor, size: Sequence[int]) -> Any:
        windows = [_adaptive(x, dim, count) for dim, count in zip(range(-rank, 0), _each(size, rank), strict=True)]
        return _greatest(x, windows, [1] * rank)

    @_where_no_other_does(adaptive[1])
    def adaptive_average_pool(x: Tensor, size: Sequence[int]) -> Any:
        sizes = zip(range(-rank, 0), _each(size, rank), strict=True)
        return _averaged(x, [_adaptive(x, dim, count) for dim, count in sizes])


_pools(
    2, aten.max_pool2d_with_indices.default, aten.avg_pool2d.default,
    (aten.adaptive_max_pool2d.default, aten._adaptive_avg_pool2d.default),
)  # fmt: skip
_pools(
    3, aten.max_pool3d_with_indices.default, aten.avg_pool3d.default,
    (aten.adaptive_max_pool3d.default, aten._adaptive_avg_pool3d.default),
)  # fmt: skip


# Resizing. Places are computed in float32, as PyTorch does.


def _ratio(small: int, large: int, scale: float | None, like: Tensor) -> Tensor:
    if scale is not None and scale > 0:
        return torch.full([], 1 / scale, dtype=torch.float32, device=like.device)
    whole, part = (torch.full([], size, dtype=torch.float32, device=like.device) for size in (small, large))
    return whole / part


def _nearest(offset: float) -> Callable[..., Any]:
    def resize(x: Tensor, size: Sequence[int], *scales: Any, **named: Any) -> Any:
        given = [*scales, *named.values()] or [None] * len(size)
        for dim, (large, scale) in enumerate(zip(size, given, strict=True), 2):
            number = torch.arange(large, device=x.device).to(torch.float32) + offset
            places = (number * _ratio(x.shape[dim], large, scale, x)).to(torch.int64)
            x = aten.index_select.default(x, dim, places.clamp_max(x.shape[dim] - 1))
        return x

    return resize


def _linear(x: Tensor, size: Sequence[int], corners: bool, *scales: Any, **named: Any) -> Any:
    given, made = [*scales, *named.values()] or [None] * len(size), widen(x)
    for dim, (large, scale) in enumerate(zip(size, given, strict=True), 2):
        small = x.shape[dim]
        number = torch.arange(large, device=x.device).to(torch.float32)
        if corners:
            real = number * _ratio(small - 1, max(large - 1, 1), None, x)
        else:
            real = ((number + 0.5) * _ratio(small, large, scale, x) - 0.5).clamp_min(0)
        low = real.to(torch.int64).clamp_max(small - 1)
        high = (low + 1).clamp_max(small - 1)
        after = [1] * (x.dim() - 1 - dim)
        share = aten.view.default((real - low.to(torch.float32)).clamp(0, 1), [large, *after]).to(made.dtype)
        made = (
            aten.index_select.default(made, dim, low) * (1 - share)
            + aten.index_select.default(made, dim, high) * share
        )
    return made.to(x.dtype)


for _rank, _name in ((1, "linear1d"), (2, "bilinear2d"), (3, "trilinear3d")):
    _where_no_other_does(getattr(aten, f"upsample_{_name}").default)(_linear)
    _where_no_other_does(getattr(aten, f"upsample_nearest{_rank}d").default)(_nearest(0.0))
    _where_no_other_does(getattr(aten, f"_upsample_nearest_exact{_rank}d").default)(_nearest(0.5))
