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


WITHOUT_DOUBLE: set[str] = set()
"""Devices that do not compute in float64."""


def has_double(x: torch.Tensor) -> bool:
    return x.device.type not in WITHOUT_DOUBLE


def wide(x: torch.Tensor) -> torch.Tensor:
    """16-bit floats as float32, float32 as float64 where there is that: what is summed up is rounded once."""
    if x.dtype in (torch.float16, torch.bfloat16):
        return x.to(torch.float32)
    return x.to(torch.float64) if x.dtype is torch.float32 and has_double(x) else x


def in_double(x: torch.Tensor) -> torch.Tensor:
    """For what nothing less will do."""
    if x.is_complex() or not has_double(x):
        raise DoesNotApply("complex numbers, or a chip without float64")
    return x.to(torch.float64)
