"""Deep copies of tensors of our device: tensors that share memory share it in the copy, as on the CPU.

    x, row = copy.deepcopy((x, x[1]))         row is a part of the new x

PyTorch copies tensors of some devices one by one, and storages by an allocator, which a device written in Python does
not have. Parameters are copied one by one on every device.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from smelt.dispatch import tensors


def keep_sharing(name: str) -> None:
    """In copies of tensors and storages of the device of this name."""
    tensor: Any = torch.Tensor
    storage: Any = torch.UntypedStorage
    tensor.__deepcopy__ = _copying(torch.Tensor.__deepcopy__, name)
    storage.clone = _cloning(torch.UntypedStorage.clone, name)
    storage.__new__ = _making(torch.UntypedStorage.__new__, name)


def _making(make: Callable[..., Any], name: str) -> Callable[..., Any]:
    """`torch.UntypedStorage(8, device=name)`: PyTorch needs an allocator in C++ for it and aborts without one."""

    @functools.wraps(make)
    def making(kind: type, *args: Any, device: Any = None, **others: Any) -> Any:
        if device is None:
            return make(kind, *args, **others)
        if torch.device(device).type != name:
            return make(kind, *args, device=device, **others)
        size = args[0] if args else 0
        if not isinstance(size, int):
            return torch.tensor(list(size), dtype=torch.uint8, device=device).untyped_storage()
        return torch.empty(size, dtype=torch.uint8, device=device).untyped_storage()

    return making


def _copying(copied: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(copied)
    def copying(tensor: torch.Tensor, memo: dict[int, Any]) -> Any:
        is_known = id(tensor) in memo
        copy = copied(tensor, memo)
        if is_known or tensor.device.type != name or tensor.is_conj() or tensor.is_neg():
            return copy
        storage: Any = tensor.untyped_storage()
        shared = memo.get(storage._cdata)
        if shared is None:
            is_whole = tensors.bytes_of(*tensors.layout_of(tensor)) == storage.nbytes() and not tensor.storage_offset()
            if is_whole and copy.stride() == tensor.stride():
                memo[storage._cdata] = copy.untyped_storage()
                return copy
            shared = memo[storage._cdata] = storage.clone()
        offset: Any = tensor.storage_offset()
        tensors.set_layout(copy, shared, offset, tensor.shape, tensor.stride())
        return copy

    return copying


def _cloning(cloned: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(cloned)
    def cloning(storage: torch.UntypedStorage) -> torch.UntypedStorage:
        if storage.device.type != name:
            clone: torch.UntypedStorage = cloned(storage)
            return clone
        with torch.no_grad():
            whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
            return whole.clone().untyped_storage()

    return cloning
