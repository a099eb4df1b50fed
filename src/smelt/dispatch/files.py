"""Saves and loads tensors of our device: files name the device of each storage, and PyTorch asks who can restore it.

    torch.save({"x": x}, file)      the numbers, and the name of the device
    torch.load(file)                tensors of the device; with map_location="cpu" of the CPU, where smelt is not needed
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import serialization

_PRIORITY = 1  # before PyTorch's own, which would ask the device for memory


def register_files(name: str, bring: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """`bring` makes a tensor of the device from one of the CPU that nobody else uses."""

    def tag(storage: Any) -> str | None:
        return f"{name}:0" if storage.device.type == name else None

    def put(storage: Any, location: str) -> Any:
        if location.partition(":")[0] != name:
            return None
        whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        return bring(whole).untyped_storage()

    serialization.register_package(_PRIORITY, tag, put)
