"""Hooks on results of a compiled graph: called when a gradient arrives for that result, as in eager.

    a, b = f(x); a.register_hook(h); b.sum().backward()      h is not called

A compiled graph is one node with several results. PyTorch calls the hooks of all of them when any gradient reaches the
node, with None for results that none arrived for; in eager those have a node of their own, which is not reached.
"""

import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch


class Hooks(OrderedDict[int, Any]):
    """The hooks of one result. PyTorch puts them in under the number of their handle."""

    def __setitem__(self, number: int, hook: Callable[[Any], Any]) -> None:
        super().__setitem__(number, _when_something_arrives(hook))


def _when_something_arrives(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """One that waits for several gradients (`register_multi_grad_hook`) counts nodes that are reached, and is to hear
    of each."""
    if getattr(hook, "__module__", None) == "torch.autograd.graph":
        return hook

    @functools.wraps(hook)
    def called(gradient: Any) -> Any:
        return None if gradient is None else hook(gradient)

    return called


def _register_hook_dict(node: Any, tensor: torch.Tensor) -> None:
    """What `Tensor.register_hook` calls of a node with its first hook on a result."""
    tensor._backward_hooks = Hooks()
    torch._C._FunctionBase._register_hook_dict(node, tensor)


def call_for_own_gradients(function: Any) -> None:
    """Have hooks on results of an autograd function called for their own gradients only."""
    function._backward_cls._register_hook_dict = _register_hook_dict
