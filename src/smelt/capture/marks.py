"""Marks that the user's program carries and capture heeds."""

from collections.abc import Callable, Iterable
from typing import Any

import torch

DISABLED = "_smelt_disable"
"""Functions with this attribute are called by Python, never captured."""

DYNAMIC = "_smelt_dynamic"
"""Tensors with this attribute are compiled for any size along the dimensions it names."""


def graph_break() -> None:
    """Ends the captured graph where it is called; does nothing else."""


def afterwards(function: Callable[..., None], *args: Any) -> None:
    """Calls a function now; captured code calls it when its graph has run and all its writes are done.

    For what depends on what the graph computes and nothing captured looks at any more.
    """
    function(*args)


def nothing_waits() -> bool:
    """Whether nothing that has been captured is to be called `afterwards`: in Python, always."""
    return True


def mark_dynamic(tensor: torch.Tensor, dim: int | Iterable[int]) -> None:
    """Compile for any size of `tensor` along `dim` (one or several), from the first call on."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"mark_dynamic takes a tensor, not {type(tensor).__name__}")
    marked = set(getattr(tensor, DYNAMIC, ()))
    for each in (dim,) if isinstance(dim, int) else dim:
        if not -tensor.dim() <= each < tensor.dim():
            raise IndexError(f"a tensor of {tensor.dim()} dimensions has no dimension {each}")
        marked.add(each % tensor.dim())
    setattr(tensor, DYNAMIC, frozenset(marked))
