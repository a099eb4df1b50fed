"""Names of what an artifact holds: parameters and buffers as `state_dict()` has them, other things by the way to them.

    target._modules['0']._parameters['weight']                →   0.weight
    model._modules['0'].weight, of a function over `model`    →   model.0.weight
    opt.state[<Parameter>]['exp_avg']                         →   opt.state[model.0.weight].exp_avg
"""

import inspect
import re
import types
from collections.abc import Callable
from typing import Any

import torch

from smelt.capture.replay.described import Given

_DEPTH = 2  # attributes of attributes
_WITHOUT_STATE = (type, types.ModuleType, types.FunctionType, types.MethodType)
_REGISTRIES = ("_modules", "_parameters", "_buffers", "__self__")


class StateNames:
    """Names for one function's tensors and numbers, each once."""

    def __init__(self, target: Callable[..., Any]) -> None:
        self._known: dict[int, str] = {}
        self._taken: set[str] = set()
        values = _values_of(target)
        for prefix, value in values:
            if isinstance(value, torch.nn.Module):
                self._learn_module(prefix, value)
        for prefix, value in values:
            self._learn(prefix, value, _DEPTH)

    def _learn_module(self, prefix: str, module: torch.nn.Module) -> None:
        for name, tensor in [*module.named_parameters(remove_duplicate=False), *module.named_buffers()]:
            self._known.setdefault(id(tensor), f"{prefix}{name}")

    def _learn(self, prefix: str, value: Any, depth: int) -> None:
        """A tensor, or those of an object's attributes."""
        if isinstance(value, torch.Tensor):
            self._known.setdefault(id(value), prefix.removesuffix("."))
        elif depth and hasattr(value, "__dict__") and not isinstance(value, _WITHOUT_STATE):
            for name, attribute in list(vars(value).items()):
                self._learn(f"{prefix}{name}.", attribute, depth - 1)

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


def _values_of(target: Callable[..., Any]) -> list[tuple[str, Any]]:
    """What a function has at hand, with how it is called there; of a module or a method, that object."""
    if isinstance(target, torch.nn.Module):
        return [("", target)]
    owner = getattr(target, "__self__", None)
    function = inspect.unwrap(getattr(target, "__func__", target))
    values = [] if owner is None else [("", owner)]
    if inspect.isfunction(function):
        seen = inspect.getclosurevars(function)
        values += [(f"{name}.", each) for name, each in {**seen.globals, **seen.nonlocals}.items()]
    if owner is not None and not isinstance(owner, torch.nn.Module):
        values += [(f"{name}.", each) for name, each in getattr(owner, "__dict__", {}).items()]
    return values
