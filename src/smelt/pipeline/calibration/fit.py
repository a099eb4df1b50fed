"""Fits the constants of the cost model to measured points, so that no point that lost to the library is chosen.

    costs_of(points of "float32 few rows along")  →  ProductCosts(3_100, 0.11, 0.4, 0.0, lateness=1.4, launch=2_000)

Costs of the library and of kernels are sums of terms; no constant is negative. Where the kernel of a point was slower
than the library, lateness grows until the model does not choose it.
"""

import itertools
from collections.abc import Iterable, Sequence

import torch

from smelt.device.product_costs import AttentionCosts, ProductCosts
from smelt.pipeline.calibration.measure import MeasuredPoint

_MARGIN = 1.05  # of what kernels take: between sizes that were measured, costs are off by some percent
LEAST_POINTS = 4  # of a kind, for constants
_CLEARLY = 0.97  # of the library's time, which a kernel must take less than


LibraryConstants = tuple[float, float, float, float]


def fitted(rows: Sequence[Sequence[float]], seconds: Sequence[float]) -> tuple[float, ...]:
    """Constants, none negative, that make the squares of relative errors least: the best of all choices of terms. A
    product of 64³ counts as much as one of 1024³."""
    scaled = torch.tensor(rows, dtype=torch.float64) / torch.tensor(seconds, dtype=torch.float64)[:, None]
    units = scaled.norm(dim=0).clamp_min(1e-300)
    ones = torch.ones(len(seconds), 1, dtype=torch.float64)
    best, least = (0.0,) * len(rows[0]), float("inf")
    for count in range(1, len(rows[0]) + 1):
        for kept in itertools.combinations(range(len(rows[0])), count):
            columns = (scaled / units)[:, list(kept)]
            solution = torch.linalg.lstsq(columns, ones, driver="gelsd").solution[:, 0]
            error = float((columns @ solution - ones[:, 0]).square().sum())
            if bool((solution >= 0).all()) and error < least * (1 - 1e-9):
                values = dict(zip(kept, (solution / units[list(kept)]).tolist(), strict=True))
                best, least = tuple(values.get(place, 0.0) for place in range(len(rows[0]))), error
    return best


def product_costs(points: Sequence[MeasuredPoint], byte_after: float) -> ProductCosts:
    """The costs of a kind of products or convolutions."""
    terms = [ProductCosts.terms(each.point.sizes, each.point.itemsize) for each in points]  # type: ignore[arg-type]
    library, launch, lateness = _constants(points, terms)
    return ProductCosts(*library, lateness=lateness, byte_after=byte_after, launch=launch)


def attention_costs(points: Sequence[MeasuredPoint]) -> AttentionCosts:
    """The costs of attention, or of its gradients."""
    terms = [AttentionCosts.terms(each.point.sizes) for each in points]  # type: ignore[arg-type]
    library, launch, lateness = _constants(points, terms)
    return AttentionCosts(*library, launch=launch, lateness=lateness)


def _constants(
    points: Sequence[MeasuredPoint], terms: Sequence[Sequence[float]]
) -> tuple[LibraryConstants, float, float]:
    """Of the library; then a launch of a kernel, and each cycle that is estimated of it."""
    call, second, third, fourth = fitted(terms, [each.library for each in points])
    library = call, second, third, fourth
    launch, lateness = fitted([(1.0, each.estimate) for each in points], [each.kernel for each in points])
    margin = _MARGIN
    for each, term in zip(points, terms, strict=True):
        theirs, ours = _sum(library, term), launch + lateness * each.estimate
        if each.kernel > each.library:
            margin = max(margin, theirs / ours)
    return library, launch * margin, lateness * margin


def is_chosen(each: MeasuredPoint, costs: ProductCosts | AttentionCosts) -> bool:
    """Whether the costs say that the kernel of a point is clearly faster."""
    return costs.launch + costs.lateness * each.estimate < _CLEARLY * _library(each, costs)


def _library(each: MeasuredPoint, costs: ProductCosts | AttentionCosts) -> float:
    if isinstance(costs, AttentionCosts):
        return costs.cycles(each.point.sizes)  # type: ignore[arg-type]
    return costs.cycles(each.point.sizes, each.point.itemsize)  # type: ignore[arg-type]


def _sum(constants: Iterable[float], terms: Iterable[float]) -> float:
    return sum(constant * term for constant, term in zip(constants, terms, strict=True))
