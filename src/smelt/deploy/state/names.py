"""Names of what an artifact holds: parameters and buffers as `state_dict()` has them, other things by the way to them.

    target._modules['0']._parameters['weight']                →   0.weight
    model._modules['0'].weight, of a function over `model`    →   model.0.weight
    opt.state[<Parameter>]['exp_avg']                         →   opt.state[model.0.weight].exp_avg
"""

import inspect
import re
from collections.abc import Callable
from typing import Any

import torch

from smelt.capture.replay.described import Given

_REGISTRIES = ("_modules", "_parameters", "_buffers", "__self__")


class StateNames:
    """Names for one function's tensors and numbers, each once."""

    def __init__(self, target: Callable[..., Any]) -> None:
        self._known: dict[int, str] = {}
        self._taken: set[str] = set()
        for prefix, module in _modules_of(target):
            self._learn(prefix, module)

    def _learn(self, prefix: str, module: torch.nn.Module) -> None:
        for name, tensor in [*module.named_parameters(remove_duplicate=False), *module.named_buffers()]:
            self._known.setdefault(id(tensor), f"{prefix}{name}")

    def of(self, origin: Given) -> str:
        """The name of something from outside; none is given twice."""
        name = self._known.get(id(origin.real)) if isinstance(origin.real, torch.Tensor) else None
        name = name or self._by_path(origin) or origin.text
        unique, copies = name, 1
        while unique in self._taken:
            copies += 1
            unique = f"{name}#{copies}"
        self._taken.add(unique)
        return unique

    def _by_path(self, origin: Given) -> str:
        text = ""
        if any(accessor[0] == "closure" for accessor in origin.path):
            text = re.split(r"\W", origin.text, maxsplit=1)[0]  # a cell has no name, the variable has
        for accessor in origin.path if origin.path[0][0] != "slot" else origin.path[1:]:
            if len(accessor) < 2 or accessor[0] in ("value", "globals", "closure") or accessor[1] in _REGISTRIES:
                continue
            key = accessor[1]
            if isinstance(key, torch.Tensor):
                text += f"[{self._known.get(id(key), tuple(key.shape))}]"
            elif isinstance(key, str):
                text += f".{key}" if text else key
            else:
                text += f"[{key}]"
        return text


def _modules_of(target: Callable[..., Any]) -> list[tuple[str, torch.nn.Module]]:
    """Modules that a function has at hand, with how they are called there; of a module itself, itself."""
    if isinstance(target, torch.nn.Module):
        return [("", target)]
    owner = getattr(target, "__self__", None)
    function = inspect.unwrap(getattr(target, "__func__", target))
    values: dict[str, Any] = {}
    if inspect.isfunction(function):
        seen = inspect.getclosurevars(function)
        values |= {**seen.globals, **seen.nonlocals}
    if isinstance(owner, torch.nn.Module):
        values[""] = owner
    elif owner is not None:
        values |= vars(owner) if hasattr(owner, "__dict__") else {}
    named = [(f"{name}." if name else "", each) for name, each in values.items() if isinstance(each, torch.nn.Module)]
    return named
