"""Modules that move to a device of our own, or from it, keep their parameters.

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.to("lazy")                     the optimizer trains what has moved, and tied weights stay tied

PyTorch gives a parameter new data if both devices are its own. Otherwise it makes new parameters, unless
`torch.__future__` sets swapping. That setting applies to all modules of a process and refuses some, so it is on only
during such moves.

Some trainers choose their device from a list and move the model away from ours. A warning says so.
"""

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from smelt.base.errors import warn

_METHODS = ("to", "cpu", "cuda")
_TRAINERS = ("accelerate.accelerator", "transformers.trainer")
"""Modules that move models by themselves, to a device that a variable of the environment names."""

_TAKEN = (
    "{trainer} takes the model from the device {name!r}: it does not choose that device by itself. Set "
    "ACCELERATE_TORCH_DEVICE={name}:0 in the environment before it is made"
)


def keep_parameters(name: str) -> None:
    """Of all modules that move to or from the device of this name."""
    for method in _METHODS:
        setattr(nn.Module, method, _swapping(getattr(nn.Module, method), name))


def _swapping(move: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(move)
    def moved(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not any(_is_on(name, each) for each in (*args, *kwargs.values())):
            if not _has(module, name):
                return move(module, *args, **kwargs)
            _warn_of_trainers(name)
        before = torch.__future__.get_swap_module_params_on_conversion()
        waiting = _waiting(module)
        for held, key, kind in waiting:
            held[key].__class__ = kind.cls_to_become
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            return move(module, *args, **kwargs)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(before)
            for held, key, kind in waiting:
                held[key].__class__ = kind

    return moved


def _warn_of_trainers(name: str) -> None:
    """Where a trainer, and not the program, moves a model from the device."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and (trainer := frame.f_globals.get("__name__", "")) not in _TRAINERS:
        frame = frame.f_back
    if frame is not None:
        warn(_TAKEN.format(trainer=trainer.partition(".")[0], name=name))


def _is_on(name: str, argument: object) -> bool:
    """Whether an argument of `to` names the device, or is on it."""
    if isinstance(argument, str):
        return argument.partition(":")[0] == name
    device = argument.device if isinstance(argument, torch.Tensor) else argument
    return isinstance(device, torch.device) and device.type == name


def _has(module: nn.Module, name: str) -> bool:
    return any(each.device.type == name for each in (*module.parameters(), *module.buffers()))


def _waiting(module: nn.Module) -> list[tuple[dict[str, Any], str, Any]]:
    """Lazy parameters and buffers, which get their sizes at the first call. They move as plain empty ones."""
    parts: list[Any] = list(module.modules())
    held: list[dict[str, Any]] = [each for part in parts for each in (part._parameters, part._buffers)]
    return [(each, key, type(value)) for each in held for key, value in each.items() if is_lazy(value)]
