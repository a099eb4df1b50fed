"""Operators decomposed where no library may be called, many as PyTorch's own tables do: windows, grids, diagonals.

    pixel_shuffle(x, 2)      →  view, permute, clone
    grid_sampler_2d(x, g, …) →  index of each corner, weighted

Kernels read one element at a place that is computed; the library does some of these faster.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch._decomp import decomposition_table

from smelt.ops.decompose.sorting import sort
from smelt.ops.decompose.table import choose, decomposes
from smelt.ops.decompose.without_library import TABLE

Tensor = torch.Tensor
aten = torch.ops.aten

Function = TypeVar("Function", bound=Callable[..., Any])
_takes_apart = partial(decomposes, table=TABLE)

_NAMES = (
    "_adaptive_avg_pool2d", "channel_shuffle", "diag_embed", "grid_sampler_2d", "im2col", "index_fill", "pixel_shuffle",
    "upsample_bicubic2d",
)  # fmt: skip
_ROW_BY_ROW = ("affine_grid_generator", "pixel_unshuffle")


def _tabled(names: tuple[str, ...]) -> list[Any]:
    """The overloads of operators that PyTorch takes apart."""
    ops = [getattr(getattr(aten, name), each) for name in names for each in getattr(aten, name).overloads()]
    return [op for op in ops if op in decomposition_table and "out" not in op._overloadname]


def _own(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of its own, whose name can be set."""

    def decomposed(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return decomposed


for _op in _tabled(_NAMES):
    _takes_apart(_op)(_own(decomposition_table[_op]))


@_takes_apart(aten.flip.default)
def flip(x: Tensor, dims: list[int]) -> Any:
    if not dims:
        return NotImplemented
    for dim in dims:
        size = x.shape[dim]
        x = aten.index_select.default(x, dim, size - 1 - torch.arange(size, device=x.device))
    return x


# Operators of which nothing here knows how they lay out results: PyTorch does it row by row.


def _row_by_row(op: Any) -> Callable[[Function], Function]:
    def enter(function: Function) -> Function:
        def decomposition(*args: Any, **kwargs: Any) -> Any:
            if any(isinstance(each, Tensor) and (0 in each.shape or each.is_complex()) for each in args):
                return NotImplemented
            results = function(*args, **kwargs)
            if results is NotImplemented or isinstance(results, Tensor):
                return results if results is NotImplemented else results.contiguous()
            return tuple(each.contiguous() for each in results)

        TABLE[op] = decomposition
        return function

    return enter


for _op in _tabled(_ROW_BY_ROW):
    _row_by_row(_op)(decomposition_table[_op])


@_row_by_row(aten.linspace.default)
def linspace(
    start: float,
    end: float,
    steps: int,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Any:
    """From both ends to the middle, as PyTorch does."""
    dtype = dtype or torch.get_default_dtype()
    if steps < 2 or dtype not in (torch.float32, torch.float64) or layout not in (None, torch.strided) or pin_memory:
        return NotImplemented
    place = torch.arange(steps, dtype=dtype, device=device)
    step = (float(end) - float(start)) / (steps - 1)
    return torch.where(place < steps // 2, start + place * step, end - (steps - 1 - place) * step)


@_row_by_row(aten._cdist_forward.default)
def cdist(one: Tensor, other: Tensor, p: float, mode: int | None) -> Any:
    """Differences are not made of products: those of near points are as right as others."""
    apart = (aten.unsqueeze.default(one, -2) - aten.unsqueeze.default(other, -3)).abs()
    if p == 0:
        return (apart != 0).to(apart.dtype).sum(-1)
    if p == float("inf"):
        return aten.amax.default(apart, [-1])
    return apart.sum(-1) if p == 1 else (apart * apart).sum(-1).sqrt() if p == 2 else (apart**p).sum(-1) ** (1 / p)


@_row_by_row(aten.trace.default)
def trace(x: Tensor) -> Any:
    return aten.diagonal.default(x, 0, 0, 1).sum()


@_row_by_row(aten.linalg_cross.default)
def cross(one: Tensor, other: Tensor, *, dim: int = -1) -> Any:
    shape = list(torch.broadcast_shapes(one.shape, other.shape))  # type: ignore[no-untyped-call]
    one, other = (aten.expand.default(each, shape) for each in (one, other))
    place = torch.arange(3, device=one.device)
    first, second = (aten.remainder.Scalar(place + by, 3) for by in (1, 2))

    def moved(x: Tensor, by: Tensor) -> Any:
        return aten.index_select.default(x, dim, by)

    return moved(one, first) * moved(other, second) - moved(one, second) * moved(other, first)


@_row_by_row(aten.searchsorted.Tensor)
def searchsorted(
    borders: Tensor,
    x: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Any:
    """As many borders as come before each element, counted."""
    if sorter is not None:
        borders = aten.gather.default(borders, -1, sorter)
    each, borders = aten.unsqueeze.default(x, -1), borders if borders.dim() == 1 else borders.unsqueeze(-2)
    before = ~(borders > each) if right or side == "right" else ~(borders >= each)
    return before.to(torch.int64).sum(-1).to(torch.int32 if out_int32 else torch.int64)


@_row_by_row(aten.bucketize.Tensor)
def bucketize(x: Tensor, borders: Tensor, *, out_int32: bool = False, right: bool = False) -> Any:
    return searchsorted(borders, x, out_int32=out_int32, right=right)


@_row_by_row(aten.kthvalue.default)
def kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    if x.dim() == 0 or not isinstance(k, int):
        return NotImplemented
    value_and_number = [aten.slice.Tensor(each, dim, k - 1, k) for each in sort(x, dim)]
    return tuple(value_and_number) if keepdim else tuple(aten.squeeze.dim(each, dim) for each in value_and_number)


@_row_by_row(aten.median.dim)
def median(x: Tensor, dim: int = -1, keepdim: bool = False) -> Any:
    """The lower of two in the middle; where there is what is not a number, the first of that."""
    if x.dim() == 0:
        return NotImplemented
    values, numbers = (aten.transpose.int(each, dim, -1) for each in sort(x, dim))
    length = values.shape[-1]
    place = torch.full([*values.shape[:-1], 1], (length - 1) // 2, dtype=torch.int64, device=x.device)
    if x.is_floating_point():
        strange = (values != values).to(torch.int64).sum(-1, keepdim=True)
        place = choose(strange > 0, length - strange, place)
    value_and_number = [aten.transpose.int(aten.gather.default(each, -1, place), dim, -1) for each in (values, numbers)]
    return tuple(value_and_number) if keepdim else tuple(aten.squeeze.dim(each, dim) for each in value_and_number)


@_row_by_row(aten.median.default)
def median_of_all(x: Tensor) -> Any:
    return median(x.reshape([-1]), 0)[0]


@_row_by_row(aten.soft_margin_loss_backward.default)
def soft_margin_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Any:
    """As PyTorch computes it on the CPU. Its decomposition takes 1 from what is nearly 1."""
    slope = -target * grad * torch.sigmoid(-target * x)
    return slope / x.numel() if reduction == 1 else slope
