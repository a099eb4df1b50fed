"""Numbers that tensors hold which the captured code made of nothing but constants: known while it is captured.

    scale = 2 ** float(torch.tensor(0.25).log2().round())      tensor · log2 · round      →      -2.0, and no break

What leads to the number is run as PyTorch runs it, so it is eager's number to the last bit. The constants are guarded
where they came from; anything written, random, foreign or large on the way leaves the number to the graph.
"""

from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from smelt.base.torch_originals import BASE, method
from smelt.capture.model.values import Tensor
from smelt.device.host_library import on_host

_MAX_NODES = 24
_MAX_ELEMENTS = 256


def constant_item(value: Tensor, tensors: dict[int, Tensor], untracked: dict[int, Any], listed: bool = False) -> Any:
    """The number that a tensor of one element holds, or with `listed` what its `tolist()` is; NotImplemented if
    constants do not decide it.

    `tensors`: all of the graph, by the ids of their fake tensors; `untracked`: those written without a count.
    """
    if value.node.op == "placeholder" or not (listed or value.fake.numel() == 1):
        return NotImplemented
    steps = _steps(value.node)
    if steps is None:
        return NotImplemented
    tensors_by_node = {each.node: each for each in tensors.values() if each.node in steps}
    if len(tensors_by_node) != len(steps) or not all(
        _is_untouched(each, untracked) for each in tensors_by_node.values()
    ):
        return NotImplemented
    try:
        with _disable_current_modes(), torch.no_grad(), _OnlyConstant():  # type: ignore[no-untyped-call]
            result = _run([node for node in value.node.graph.nodes if node in steps])[value.node]
            if result.dtype is not value.fake.dtype:
                return NotImplemented
            return BASE.tolist(result) if listed else BASE.item(result)
    except Exception:  # what PyTorch refuses it refuses at the program's line
        return NotImplemented


def _steps(wanted: fx.Node) -> set[fx.Node] | None:
    """The nodes that lead to one; None if inputs do, or many nodes."""
    steps, pending = {wanted}, [wanted]
    while pending:
        for node in pending.pop().all_input_nodes:
            if node.op == "placeholder" or len(steps) > _MAX_NODES:
                return None
            if node not in steps:
                steps.add(node)
                pending.append(node)
    return steps


def _is_untouched(value: Tensor, untracked: dict[int, Any]) -> bool:
    """Whether a small tensor of the host still holds what the node that made it yielded."""
    fake: Any = value.fake
    if not on_host(fake.device) or not all(type(size) is int for size in fake.shape) or fake._version:
        return False
    whole = fake if fake._base is None else fake._base
    return fake.numel() <= _MAX_ELEMENTS and id(whole) not in untracked


def _run(steps: list[fx.Node]) -> dict[fx.Node, Any]:
    values: dict[fx.Node, Any] = {}
    for node in steps:
        args, kwargs = map_arg((node.args, dict(node.kwargs)), values.__getitem__)
        function: Any = method(str(node.target)) if node.op == "call_method" else node.target
        values[node] = function(*args, **kwargs)
    return values


class _OnlyConstant(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operators whose results are other ones each time, and those that are not PyTorch's."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Otherwise PyTorch wraps the handler below in a decorator that imports its compiler, seconds of it."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        uninitialized = "empty" in func.__name__ or "resize" in func.__name__
        if func.namespace != "aten" or uninitialized or torch.Tag.nondeterministic_seeded in func.tags:
            raise TypeError(f"{func} is no function of constants")
        return func(*args, **(kwargs or {}))
