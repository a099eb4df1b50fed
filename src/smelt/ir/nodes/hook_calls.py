"""Hooks as nodes of a captured backward: Python functions that capture follows into the user's.

call_hook(hook, gradient)    →    what the hook makes of the gradient, or the gradient itself
"""

from collections.abc import Callable
from typing import Any

import torch

from smelt.symbolic.shapes import Shape


def laid_out(tensor: torch.Tensor, stride: Shape) -> torch.Tensor:
    """The same values in memory of these strides, which the code that follows was traced with."""
    if tensor.stride() == stride:
        return tensor
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def call_hook(hook: Callable[..., Any], gradient: torch.Tensor, *, stride: Shape, hook_type: str) -> torch.Tensor:
    """Run a hook on one gradient. It may give another in its place, of that size and dtype, as PyTorch says."""
    result = hook(gradient)
    return laid_out(gradient if result is None else _checked(hook, result, gradient), stride)


def call_hook_on_all(
    hook: Callable[..., Any],
    gradients: tuple[torch.Tensor | None, ...],
    others: tuple[torch.Tensor | None, ...] | None,
    *,
    strides: tuple[Shape | None, ...],
    hook_type: str,
) -> tuple[Any, ...]:
    """Run a hook of a node: a pre-hook gets what came in, a post-hook what goes out and what came in."""
    result = hook(gradients) if others is None else hook(gradients, others)
    if result is None:
        result = gradients
    elif not isinstance(result, tuple):
        result = (result,)
    if len(result) != len(gradients):
        raise RuntimeError(f"hook '{_name(hook)}' has returned an incorrect number of values")
    results = []
    for value, before, stride in zip(result, gradients, strides, strict=True):
        if (value is None) != (stride is None):
            raise RuntimeError(
                f"hook '{_name(hook)}' returned a gradient where there was none, or none where there was one: "
                "leave what it is on out of compiled autograd"
            )
        results.append(None if stride is None else laid_out(_checked(hook, value, before), stride))
    return tuple(results)


def _checked(hook: Callable[..., Any], value: Any, before: Any) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"expected Variable, but hook returned '{type(value).__name__}'")
    if value.shape != before.shape:
        raise RuntimeError(f"hook '{_name(hook)}' has changed the size of value")
    if value.dtype != before.dtype:
        raise RuntimeError(f"hook '{_name(hook)}' has changed the type of value")
    return value


def _name(hook: Any) -> str:
    return str(getattr(hook, "__name__", "<unknown>"))
