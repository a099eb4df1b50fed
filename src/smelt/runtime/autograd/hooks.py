"""Hooks on results of a compiled graph: called when a gradient arrives for that result, as in eager.

    a, b = f(x); a.register_hook(h); b.sum().backward()      h is not called

A compiled graph is one node with several results. PyTorch calls the hooks of all of them when any gradient reaches the
node, with None for results that none arrived for; in eager each result has its own node, which is not reached.
"""

import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch


class Hooks(OrderedDict[int, Any]):
    """The hooks of one result, by the id of their handle."""

    def __setitem__(self, number: int, hook: Callable[[Any], Any]) -> None:
        super().__setitem__(number, _unless_none(hook))


def _unless_none(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The hook, not called with None. `register_multi_grad_hook` counts the nodes that are reached, so its hooks are
    always called."""
    if getattr(hook, "__module__", None) == "torch.autograd.graph":
        return hook

    @functools.wraps(hook)
    def called(gradient: Any) -> Any:
        return None if gradient is None else hook(gradient)

    return called


def _register_hook_dict(node: Any, tensor: torch.Tensor) -> None:
    """What `Tensor.register_hook` calls on a node for the first hook of a result."""
    tensor._backward_hooks = Hooks()
    torch._C._FunctionBase._register_hook_dict(node, tensor)


def skip_hooks_without_grad(function: Any) -> None:
    """Call hooks on results of an autograd function only when a gradient arrives for that result."""
    function._backward_cls._register_hook_dict = _register_hook_dict
