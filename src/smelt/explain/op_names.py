"""Operators by the names people call them by.

    <built-in method addmm of type object at 0x…>  →  torch.addmm          "view", a method  →  Tensor.view
"""

import operator
from typing import Any

import torch
from torch import fx

# Where people find an operator, the first that has it; some are called `fft_fft` there inside.
_HOMES: dict[str, Any] = {
    "torch": torch,
    "torch.nn.functional": torch.nn.functional,
    "operator": operator,
    "torch.linalg": torch.linalg,
    "torch.fft": torch.fft,
    "torch.special": torch.special,
}


def op_name(node: fx.Node) -> str:
    """The name of what a node calls, with the module it is found in."""
    target = node.target
    if isinstance(target, str):
        return f"Tensor.{target}" if node.op == "call_method" else target
    if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return str(target)
    name = short_name(target)
    for home, module in _HOMES.items():
        for public in (name, name.removeprefix(f"{home.rpartition('.')[2]}_")):
            if getattr(module, public, None) is target:
                return f"{home}.{public}"
    qualified = getattr(target, "__qualname__", name)
    if getattr(torch.Tensor, name, None) is target:
        return f"Tensor.{name}"
    module_name = getattr(target, "__module__", None)
    has_module = isinstance(module_name, str) and module_name != "builtins"
    return f"{module_name}.{qualified}" if has_module else str(qualified)


def short_name(target: Any) -> str:
    """The name alone; of an object that has none, that of its class."""
    if isinstance(target, str):
        return target
    return str(getattr(target, "__name__", None) or type(target).__name__).removesuffix(".default")
