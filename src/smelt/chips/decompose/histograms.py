"""Histograms: the bin of each element by the edges up to it, then counted."""

import math
from collections.abc import Sequence

import torch

from smelt.chips.decompose.table import DoesNotApply, computes

Tensor = torch.Tensor
aten = torch.ops.aten


def _range(low: float, high: float) -> tuple[float, float]:
    if not (math.isfinite(low) and math.isfinite(high)) or low > high:
        raise ValueError("the range is not finite")
    return (low - 0.5, high + 0.5) if low == high else (low, high)


def _edges(points: Tensor, bins: Sequence[int], limits: Sequence[float] | None) -> list[Tensor]:
    """For each column of points."""
    if limits is None:
        lows, highs = points.amin(0).tolist(), points.amax(0).tolist()
    else:
        lows, highs = list(limits[::2]), list(limits[1::2])
    ranges = [_range(low, high) for low, high in zip(lows, highs, strict=True)]
    return [
        torch.linspace(low, high, count + 1, dtype=points.dtype, device=points.device)
        for count, (low, high) in zip(bins, ranges, strict=True)
    ]


def _counts(points: Tensor, edges: Sequence[Tensor], weight: Tensor | None, density: bool) -> Tensor:
    inside = torch.ones([points.shape[0]], dtype=torch.bool, device=points.device)
    number = torch.zeros([points.shape[0]], dtype=torch.int64, device=points.device)
    for dim, border in enumerate(edges):
        x, count = points[:, dim].contiguous(), border.numel() - 1
        place = aten.searchsorted.Tensor(border, x, right=True) - 1
        place = torch.where(x == border[-1], count - 1, place)  # which belongs to the last
        inside = inside & (x >= border[0]) & (x <= border[-1])
        number = number * count + place.clamp(0, count - 1)
    shape = [border.numel() - 1 for border in edges]
    each = inside.to(points.dtype)
    each = each if weight is None else torch.where(inside, weight.reshape(-1).to(points.dtype), 0.0)
    found = torch.zeros([math.prod(shape)], dtype=points.dtype, device=points.device).scatter_add(0, number, each)
    found = found.view(shape)
    if density:
        found = found / found.sum()
        for dim, border in enumerate(edges):
            found = found / border.diff().view([-1 if d == dim else 1 for d in range(len(shape))])
    return found


def _column(x: Tensor) -> Tensor:
    if not x.numel():
        raise DoesNotApply("no elements")
    return x.reshape(-1, 1)


@computes(aten.histogram.bin_ct)
def histogram(
    x: Tensor, bins: int = 100, *, range: Sequence[float] | None = None, weight: Tensor | None = None,
    density: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    points = _column(x)
    edges = _edges(points, [bins], range)
    return _counts(points, edges, weight, density), edges[0]


@computes(aten.histogram.bins_tensor)
def histogram_of_bins(
    x: Tensor, bins: Tensor, *, weight: Tensor | None = None, density: bool = False
) -> tuple[Tensor, Tensor]:
    return _counts(_column(x), [bins], weight, density), bins.clone()


def _points(x: Tensor) -> Tensor:
    if not x.numel():
        raise DoesNotApply("no elements")
    return x.reshape(-1, x.shape[-1])


@computes(aten._histogramdd_bin_edges.default)
def bin_edges(
    x: Tensor, bins: Sequence[int], *, range: Sequence[float] | None = None, weight: Tensor | None = None,
    density: bool = False,
) -> list[Tensor]:  # fmt: skip
    return _edges(_points(x), bins, range)


@computes(aten._histogramdd_from_bin_cts.default)
def histogramdd(
    x: Tensor, bins: Sequence[int], *, range: Sequence[float] | None = None, weight: Tensor | None = None,
    density: bool = False,
) -> Tensor:  # fmt: skip
    return _counts(_points(x), _edges(_points(x), bins, range), weight, density)


@computes(aten._histogramdd_from_bin_tensors.default)
def histogramdd_of_bins(
    x: Tensor, bins: Sequence[Tensor], *, weight: Tensor | None = None, density: bool = False
) -> Tensor:
    return _counts(_points(x), bins, weight, density)
