"""The table of operators that a chip computes by others, and how one gets into it.

    @computes(aten.nonzero.default)
    def nonzero(x): ...              runs on the chip's tensors, an operator at a time; it may read a number out

A rule that raises leaves the call to the host, which computes it or raises in PyTorch's words.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])

OURS: dict[torch._ops.OpOverload, Callable[..., Any]] = {}


def computes(*ops: torch._ops.OpOverload) -> Callable[[Function], Function]:
    def enter(function: Function) -> Function:
        for op in ops:
            OURS[op] = function
        return function

    return enter


class DoesNotApply(NotImplementedError):
    """A rule is for other arguments than these: PyTorch's own is asked, or the host."""
