"""Results of a backward that has run already: they require grad, and what a second backward needs is gone.

    spent(loss).backward()   →   RuntimeError: Trying to backward through the graph a second time …
"""

from collections.abc import Callable
from typing import Any

import torch

from smelt import _native
from smelt.base.coexist import leave_alone
from smelt.runtime.autograd.saved_tensors import gone


@leave_alone
class _Spent(torch.autograd.Function):
    """Yields what it is told, as if computed from its argument, which no gradient can reach any more."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, tensor: list[torch.Tensor]) -> torch.Tensor:
        return tensor[0]

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> tuple[Any, None]:
        gone()


# `Function.apply` without its preparations for `torch.func`, which is not on here.
_apply: Callable[..., Any] = super(torch.autograd.Function, _Spent).apply


def spent(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, with a history that raises."""
    made: torch.Tensor = _native.recorded(_apply, torch.empty(0, requires_grad=True), [tensor])
    return made
