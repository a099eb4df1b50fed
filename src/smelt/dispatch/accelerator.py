"""Answers questions that PyTorch asks accelerators in C++, for a device written in Python.

    torch.accelerator.synchronize()          asks the device's module
    DataLoader(data, pin_memory=True)        pins for the device that does the work; memory of the host needs no pinning
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from smelt.device.host_library import on_host

_FUNCTIONS = ("synchronize", "empty_cache", "memory_allocated", "max_memory_allocated")
"""Of `torch.accelerator`: the device's module may have them under the same names."""


def answer_for_accelerator(name: str, module: Any, real: torch.device) -> list[Any]:
    """For the device of this name, whose operators run on `real`. Ends when the returned registrations die."""
    accelerator: Any = torch.accelerator
    for function in _FUNCTIONS:
        if hasattr(accelerator, function) and hasattr(module, function):  # not all are there in every PyTorch
            setattr(accelerator, function, _answered(getattr(accelerator, function), name, getattr(module, function)))
    library: Any = torch.library.Library  # untyped
    aten = library("aten", "IMPL")
    aten.impl("_pin_memory", _pinning(name, real), "CPU")
    return [aten]


def _answered(asked: Callable[..., Any], name: str, answer: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(asked)
    def answered(*args: Any, **kwargs: Any) -> Any:
        current = torch.accelerator.current_accelerator()
        return (answer if current is not None and current.type == name else asked)(*args, **kwargs)

    return answered


def _pinning(name: str, real: torch.device) -> Callable[..., torch.Tensor]:
    pytorchs = torch._C.DispatchKey.CompositeExplicitAutograd

    def pin(tensor: torch.Tensor, device: torch.device | None = None) -> torch.Tensor:
        if device is None:
            device = torch.accelerator.current_accelerator()
        if device is not None and device.type == name:
            device = real
        if device is not None and on_host(device):
            return tensor.clone()
        copy: torch.Tensor = torch.ops.aten._pin_memory.default._op_dk(pytorchs, tensor, device)
        return copy

    return pin
