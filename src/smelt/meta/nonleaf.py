"""Stand-ins that autograd takes for computed, not for leaves: only those may be written in place.

    x = computed(leaf, make)      x.mul_(2) is allowed, and the gradient of what comes of it reaches `leaf`

An input of a graph is traced as a leaf, whatever it will be when the graph runs. Where it is written it must not be.
"""

from collections.abc import Callable
from typing import Any

import torch

from smelt.base.coexist import leave_alone


@leave_alone
class _Computed(torch.autograd.Function):
    """Returns what it is given, as if computed from its argument."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        return make()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> tuple[Any, None]:
        return gradient, None


# `Function.apply` without its preparations for `torch.func`, which is not on here.
_apply: Callable[..., Any] = super(torch.autograd.Function, _Computed).apply


def computed(leaf: torch.Tensor, make: Callable[[], torch.Tensor]) -> torch.Tensor:
    """The tensor that `make` returns, its gradient handed on to `leaf`."""
    with torch.enable_grad():
        tensor: torch.Tensor = _apply(leaf, make)
    return tensor
