"""Pooling and resizing of any rank and size where no library may be called: elements read at places that are computed.

    max_pool3d(x, 3, 2, 1, ceil)   →  x[…, places] as [n, c, windows, elements], the greatest of each; -inf outside
    adaptive_max_pool2d(x, 3)      →  the same with windows from n·size/3 to (n + 1)·size/3
    avg_pool3d_backward(g, x, 3)   →  g, divided, added to each place of its window along one dimension after the other
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


def _where_no_other_does(*ops: Any, like: int = 0) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Use the function where the usual decomposition does not apply. Results are laid out as argument `like` is."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        for op in ops:
            usual = DECOMPOSITIONS.get(op) or TABLE.get(op)

            def decomposition(*args: Any, usual: Any = usual, **kwargs: Any) -> Any:
                usual_result, x = NotImplemented if usual is None else usual(*args, **kwargs), args[like]
                if usual_result is not NotImplemented or 0 in x.shape or not x.dtype.is_floating_point:
                    return usual_result
                pixels_first = x.dim() == 4 and not x.is_contiguous()
                pixels_first = pixels_first and x.is_contiguous(memory_format=torch.channels_last)
                layout = torch.channels_last if pixels_first else torch.contiguous_format
                result = function(*args, **kwargs)
                alone = isinstance(result, Tensor)
                laid_out = [aten.clone.default(each, memory_format=layout) for each in ([result] if alone else result)]
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


def _divided(total: Tensor, windows: Sequence[_Windows], override: int | None) -> Tensor:
    if override is not None:
        return total / override
    for place, each in enumerate(windows):
        after = len(windows) - 1 - place
        total = total / aten.view.default(each.divisor, [each.divisor.shape[0]] + [1] * after).to(total.dtype)
    return total


def _averaged(x: Tensor, windows: Sequence[_Windows], override: int | None = None) -> Tensor:
    return _divided(_gathered(widen(x), windows, 0.0).sum(-1), windows, override).to(x.dtype)


def _averaged_backward(grad: Tensor, x: Tensor, windows: Sequence[_Windows], override: int | None = None) -> Tensor:
    """The gradient of each window, divided as its sum is, added to its elements along one dimension after the other."""
    grad = _divided(widen(grad), windows, override)
    for dim, each in enumerate(windows, x.dim() - len(windows)):
        count, kernel = each.places.shape
        before, after = list(grad.shape[:dim]), list(grad.shape[dim + 1 :])
        inside = aten.view.default(each.inside, [count, kernel] + [1] * len(after))
        shares = aten.expand.default(aten.unsqueeze.default(grad, dim + 1), [*before, count, kernel, *after])
        shares = choose(inside, shares, 0.0).reshape([*before, count * kernel, *after])
        zeros = torch.zeros([*before, x.shape[dim], *after], dtype=grad.dtype, device=x.device)
        grad = zeros.index_add(dim, each.places.reshape([count * kernel]), shares)
    return grad.to(x.dtype)


def _greatest_backward(grad: Tensor, x: Tensor, indices: Tensor, rank: int) -> Tensor:
    """The gradient of each window, added to the element that it chose."""
    first = x.dim() - rank
    outer, count = list(x.shape[:first]), math.prod(grad.shape[first:])
    zeros = torch.zeros([*outer, math.prod(x.shape[first:])], dtype=grad.dtype, device=x.device)
    return zeros.scatter_add(first, indices.reshape([*outer, count]), grad.reshape([*outer, count])).reshape(x.shape)


def _each(sizes: Sequence[int], rank: int) -> list[int]:
    return list(sizes) if len(sizes) == rank else [sizes[0]] * rank


def _pools(rank: int) -> None:
    greatest, average = f"max_pool{rank}d_with_indices", f"avg_pool{rank}d"
    adaptive_greatest, adaptive_average = f"adaptive_max_pool{rank}d", f"_adaptive_avg_pool{rank}d"
    dims = range(-rank, 0)

    def gradient(name: str) -> Any:
        return getattr(aten, f"{name}_backward").default

    def regular(x: Tensor, kernel: Any, stride: Any, padding: Any, ceil: bool, with_pad: bool) -> list[_Windows]:
        sizes = [_each(each, rank) for each in (kernel, stride or kernel, padding)]
        return [_regular(x, d, k, s, p, 1, ceil, with_pad) for d, k, s, p in zip(dims, *sizes, strict=True)]

    def adaptive(x: Tensor, size: Sequence[int]) -> list[_Windows]:
        return [_adaptive(x, dim, count) for dim, count in zip(dims, _each(size, rank), strict=True)]

    @_where_no_other_does(getattr(aten, greatest).default)
    def max_pool(
        x: Tensor, kernel: Any, stride: Any = (), padding: Any = (0,), dilation: Any = (1,), ceil: bool = False
    ) -> Any:
        sizes = [_each(each, rank) for each in (kernel, stride or kernel, padding, dilation)]
        windows = [_regular(x, d, k, s, p, by, ceil) for d, k, s, p, by in zip(dims, *sizes, strict=True)]
        return _greatest(x, windows, sizes[3])

    @_where_no_other_does(getattr(aten, average).default)
    def average_pool(
        x: Tensor, kernel: Any, stride: Any = (), padding: Any = (0,), ceil: bool = False, with_pad: bool = True,
        override: int | None = None,
    ) -> Any:  # fmt: skip
        return _averaged(x, regular(x, kernel, stride, padding, ceil, with_pad), override)

    @_where_no_other_does(getattr(aten, adaptive_greatest).default)
    def adaptive_max_pool(x: Tensor, size: Sequence[int]) -> Any:
        return _greatest(x, adaptive(x, size), [1] * rank)

    @_where_no_other_does(getattr(aten, adaptive_average).default)
    def adaptive_average_pool(x: Tensor, size: Sequence[int]) -> Any:
        return _averaged(x, adaptive(x, size))

    @_where_no_other_does(gradient(average), like=1)
    def average_pool_backward(
        grad: Tensor, x: Tensor, kernel: Any, stride: Any, padding: Any, ceil: bool, with_pad: bool,
        override: int | None,
    ) -> Any:  # fmt: skip
        return _averaged_backward(grad, x, regular(x, kernel, stride, padding, ceil, with_pad), override)

    @_where_no_other_does(gradient(adaptive_average), like=1)
    def adaptive_average_pool_backward(grad: Tensor, x: Tensor) -> Any:
        return _averaged_backward(grad, x, adaptive(x, grad.shape[-rank:]))

    @_where_no_other_does(gradient(greatest), gradient(adaptive_greatest), like=1)
    def max_pool_backward(grad: Tensor, x: Tensor, *others: Any) -> Any:
        return _greatest_backward(grad, x, others[-1], rank)


_pools(2)
_pools(3)


# Resizing. Places are computed in float32, as PyTorch does.


def _ratio(small: int, large: int, scale: float | None, like: Tensor) -> Tensor:
    if scale is not None and scale > 0:
        return torch.full([], 1 / scale, dtype=torch.float32, device=like.device)
    whole, part = (torch.full([], size, dtype=torch.float32, device=like.device) for size in (small, large))
    return whole / part


def _nearest(offset: float) -> Callable[..., Any]:
    def resize(x: Tensor, size: Sequence[int], *scales: Any, **named: Any) -> Any:
        scale_of_each = [*scales, *named.values()] or [None] * len(size)
        for dim, (large, scale) in enumerate(zip(size, scale_of_each, strict=True), 2):
            number = torch.arange(large, device=x.device).to(torch.float32) + offset
            places = (number * _ratio(x.shape[dim], large, scale, x)).to(torch.int64)
            x = aten.index_select.default(x, dim, places.clamp_max(x.shape[dim] - 1))
        return x

    return resize


def _linear(x: Tensor, size: Sequence[int], corners: bool, *scales: Any, **named: Any) -> Any:
    scale_of_each, resized = [*scales, *named.values()] or [None] * len(size), widen(x)
    for dim, (large, scale) in enumerate(zip(size, scale_of_each, strict=True), 2):
        small = x.shape[dim]
        number = torch.arange(large, device=x.device).to(torch.float32)
        if corners:
            real = number * _ratio(small - 1, max(large - 1, 1), None, x)
        else:
            real = ((number + 0.5) * _ratio(small, large, scale, x) - 0.5).clamp_min(0)
        low = real.to(torch.int64).clamp_max(small - 1)
        high = (low + 1).clamp_max(small - 1)
        after = [1] * (x.dim() - 1 - dim)
        share = aten.view.default((real - low.to(torch.float32)).clamp(0, 1), [large, *after]).to(resized.dtype)
        resized = (
            aten.index_select.default(resized, dim, low) * (1 - share)
            + aten.index_select.default(resized, dim, high) * share
        )
    return resized.to(x.dtype)


for _rank, _name in ((1, "linear1d"), (2, "bilinear2d"), (3, "trilinear3d")):
    _where_no_other_does(getattr(aten, f"upsample_{_name}").default)(_linear)
    _where_no_other_does(getattr(aten, f"upsample_nearest{_rank}d").default)(_nearest(0.0))
    _where_no_other_does(getattr(aten, f"_upsample_nearest_exact{_rank}d").default)(_nearest(0.5))
