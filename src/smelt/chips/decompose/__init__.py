"""Operators by others on a chip's tensors, where neither a kernel nor PyTorch's decompositions serve."""

from smelt.chips.decompose import (  # noqa: F401  (they fill the table)
    bags,
    distances,
    grids,
    histograms,
    losses,
    ordering,
    pointwise,
    polynomials,
    resampling,
    series,
    sized_by_data,
    windows,
    without_elements,
)
from smelt.chips.decompose.table import OURS

__all__ = ["OURS"]
