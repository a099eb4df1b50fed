"""Marks on the user's functions and tensors that capture reads."""

from collections.abc import Callable, Hashable, Iterable
from typing import Any
from weakref import ref

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.symbolic.expressions import LARGEST

DISABLED = "_smelt_disable"
"""Functions with this attribute are called by Python, never captured."""

_ENTERED = "_smelt_entered"
DYNAMIC = "_smelt_dynamic"
"""Tensors with this attribute are compiled for any size along the dimensions it names."""

BOUNDS = "_smelt_bounds"
"""Of those dimensions some have bounds, which an export checks at each call: the least and the most by dimension."""

OPEN_SIZES = "_smelt_open_sizes"
"""Those of them that differ from state to state of one call, of a tensor that stands for what export will compute."""

SMALL_SIZES = "_smelt_small_sizes"
"""Those of them that may also be 0 or 1."""


@dataclass(frozen=True, slots=True)
class Entered:
    """What a compiled function calls, and how that is compiled. A compiled method calls the same of another object:
    which one, given its own, `function` says."""

    by: "ref[Any]"  # wrappers copy the mark, and are functions of their own
    function: Callable[..., Any]
    settings: Hashable
    fullgraph: bool
    of_method: bool = False


def mark_entered(
    compiled: Any, function: Callable[..., Any], settings: Hashable, fullgraph: bool, of_method: bool = False
) -> None:
    """Mark a compiled function: one compiled alike that calls it goes on inside it."""
    compiled.__dict__[_ENTERED] = Entered(ref(compiled), function, settings, fullgraph, of_method)


def entered_by(function: Any) -> Entered | None:
    """What a compiled function calls; None for any other."""
    mark: Entered | None = function.__dict__.get(_ENTERED)
    return mark if mark is not None and mark.by() is function else None


def is_compiling() -> bool:
    """True in code that smelt is capturing, otherwise False."""
    return False


def graph_break() -> None:
    """Ends the captured graph where it is called; does nothing else."""


def defer(function: Callable[..., None], *args: Any) -> None:
    """Calls a function now; captured code calls it when its graph has run and all its writes are done.

    For what depends on what the graph computes and nothing captured looks at any more.
    """
    function(*args)


def nothing_deferred(for_what: Any) -> bool:
    """Whether nothing that has been captured is to be called `defer` with an object: in Python, always."""
    return True


def unsupported(what: str) -> None:
    """Ends the captured graph where it is called: `what` comes next, and cannot be captured."""


def mark_dynamic(
    tensor: torch.Tensor, dim: int | Iterable[int], *, min: int | None = None, max: int | None = None
) -> None:
    """Compile for any size of `tensor` along `dim` (one or several), from the first call on.

    `min` and `max` are bounds for `smelt.export`: the artifact refuses other sizes. `smelt.compile` ignores them.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"mark_dynamic takes a tensor, not {type(tensor).__name__}")
    least, most = 1 if min is None else min, LARGEST if max is None else max
    marked = set(tensor.__dict__.get(DYNAMIC, ()))
    bounds = dict(tensor.__dict__.get(BOUNDS, {}))
    for each in (dim,) if isinstance(dim, int) else dim:
        if not -tensor.dim() <= each < tensor.dim():
            raise IndexError(f"a tensor of {tensor.dim()} dimensions has no dimension {each}")
        place = each % tensor.dim()
        if (min, max) != (None, None):
            if not 0 <= least <= tensor.shape[place] <= most:
                raise ValueError(f"dimension {each} is {tensor.shape[place]}, which is not from {least} to {most}")
            bounds[place] = (least, most)
        marked.add(place)
    tensor.__dict__[DYNAMIC] = frozenset(marked)
    if bounds:
        tensor.__dict__[BOUNDS] = bounds
