"""Tensors whose autograd graph was freed: they require grad, and a backward through them raises.

    as_freed(loss).backward()   →   RuntimeError: Trying to backward through the graph a second time …
"""

from collections.abc import Callable
from typing import Any

import torch

from smelt import _native
from smelt.base.coexist import leave_alone
from smelt.runtime.autograd.saved_tensors import raise_freed


@leave_alone
class _FreedNode(torch.autograd.Function):
    """Returns the tensor in the list, with a node whose backward raises."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, tensor: list[torch.Tensor]) -> torch.Tensor:
        return tensor[0]

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> tuple[Any, None]:
        raise_freed()


# `Function.apply` without its preparations for `torch.func`, which is not on here.
_apply: Callable[..., Any] = super(torch.autograd.Function, _FreedNode).apply


def as_freed(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, with a `grad_fn` whose backward raises that the graph was freed."""
    freed: torch.Tensor = _native.recorded(_apply, torch.empty(0, requires_grad=True), [tensor])
    return freed
