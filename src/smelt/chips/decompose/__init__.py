"""Operators by others on a chip's tensors, where neither a kernel nor PyTorch's decompositions serve."""

from smelt.chips.decompose import bags, sized_by_data, without_elements  # noqa: F401  (they fill the table)
from smelt.chips.decompose.table import OURS

__all__ = ["OURS"]
