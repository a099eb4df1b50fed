"""Tensors of our device: a shape, strides and a dtype over a storage without data, which refers to the owner's memory.

    tensor = make((2, 3), (3, 1), torch.float32, memory)      tensor.device is ours, tensor.data_ptr() is 0
    memory_of(view(tensor, (3,), (1,), 3)) is memory          views share a storage, and so its memory

The owner knows the numbers. PyTorch keeps a storage's Python object as long as the storage, so the memory is an
attribute of it: `.data`, `detach()`, saved tensors and views have the same memory, which dies with the last tensor."""

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from smelt import _native
from smelt.symbolic.shapes import span
from smelt.torch_abi.aoti_shims import connect
from smelt.torch_abi.storage_layout import describe, storages_keep_memory
from smelt.torch_abi.tensor_layout import install_tensor_layout

_META = torch._C.DispatchKey.Meta

# PyTorch's own code for tensors without data, which asks nothing of the device of those it is given.
_set_storage = torch.ops.aten.set_.source_Storage_storage_offset
_as_strided = torch.ops.aten.as_strided.default

Layout = tuple[torch.Size, tuple[int, ...], int, torch.dtype]
"""Shape, strides, storage offset and dtype."""


def make(
    shape: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
    memory: Any,
    size: int | None = None,
    address: int = 0,
) -> torch.Tensor:
    """A new tensor over a storage of its own; `size`: its bytes, where they are known; `address`: what PyTorch is told
    as `data_ptr()`. Whether tensors share memory is seen by that, so no two memories overlap there."""
    tensor: torch.Tensor = torch._C._acc.create_empty_tensor(tuple(shape), dtype)
    storage: Any = tensor.untyped_storage()
    storage.smelt_memory = memory
    if size is None:
        size = bytes_of(shape, stride, 0, dtype)
    # The memory's own address where it can be found by that (`_native.DeviceMemory`), else that of the storage.
    known = id(memory) if isinstance(memory, _native.DeviceMemory) else address or storage._cdata
    if address:
        _by_address[address] = memory
    if not describe(storage, size, known) or stride != tensor.stride():
        # Where a storage cannot be told its size, this does it too: PyTorch checks views and writes files by it.
        _set_storage._op_dk(_META, tensor, storage, 0, shape, stride)
    return tensor


def give_memory(storage: Any, memory: Any, size: int, address: int) -> None:
    """Other memory for a storage of `make`'s."""
    storage.smelt_memory = memory
    is_found = isinstance(memory, _native.DeviceMemory)  # by its own address
    if describe(storage, size, id(memory) if is_found else address or storage._cdata) and address and not is_found:
        _by_address[address] = memory


_by_address: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()


def create_function() -> Any:
    """What C makes tensors with, as `make` does; None where it cannot look into them."""
    install_tensor_layout()
    return torch._C._acc.create_empty_tensor if connect() and storages_keep_memory() else None


def bytes_of(shape: Sequence[int], stride: Sequence[int], offset: int, dtype: torch.dtype) -> int:
    """How far a layout reaches."""
    reach = span(tuple(shape), tuple(stride))
    return (offset + reach) * dtype.itemsize if reach else 0


def view(tensor: torch.Tensor, shape: Sequence[int], stride: Sequence[int], offset: int) -> torch.Tensor:
    """A tensor over the same storage."""
    viewed: torch.Tensor = _as_strided._op_dk(_META, tensor, shape, stride, offset)
    return viewed


def view_as(tensor: torch.Tensor, dtype: torch.dtype, shape: Sequence[int], stride: Sequence[int], offset: int) -> Any:
    """A tensor of another dtype over the same storage."""
    viewed = torch._C._acc.create_empty_tensor((0,), dtype)
    _set_storage._op_dk(_META, viewed, tensor.untyped_storage(), offset, shape, stride)
    return viewed


def set_layout(
    tensor: torch.Tensor, storage: torch.UntypedStorage, offset: int, shape: Sequence[int], stride: Sequence[int]
) -> None:
    """Let `tensor` be another view, of another storage perhaps. A storage that is too small grows."""
    _set_storage._op_dk(_META, tensor, storage, offset, shape, stride)


def layout_of(tensor: torch.Tensor) -> Layout:
    offset: Any = tensor.storage_offset()
    return tensor.shape, tensor.stride(), offset, tensor.dtype


def memory_of(tensor: torch.Tensor) -> Any:
    """What `make` was given for the storage of this tensor. `AttributeError` for a tensor of another device."""
    memory = _native.device_memory_of(tensor)
    if memory is not None:
        return memory
    storage: Any = tensor.untyped_storage()
    try:
        return storage.smelt_memory
    except AttributeError:
        if storage.device.type != torch._C._get_privateuse1_backend_name() or not storage.data_ptr():
            raise
        # PyTorch has made a second storage over the address of one of ours: it writes old files so.
        memory = _native.device_memory_at(storage.data_ptr()) or _by_address.get(storage.data_ptr())
        if memory is not None:
            return memory
        ours: Any = torch.UntypedStorage._new_with_weak_ptr(storage.data_ptr())
        return ours.smelt_memory


def on_meta(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor on PyTorch's device without data, laid out as this one."""
    shape, stride, offset, dtype = layout_of(tensor)
    return torch.empty(0, dtype=dtype, device="meta").as_strided(shape, stride, offset)
