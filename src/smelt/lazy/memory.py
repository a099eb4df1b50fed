"""What is behind the storage of a lazy tensor: numbers on the real device, or a place in what is recorded.

    empty       nobody has written anything yet: no numbers, no place
    pending     its numbers are a value of the current recording
    real        `real` is a tensor of the real device with the layout of the whole storage
    lost        the run that should have computed it failed; whoever asks gets that error
"""

from typing import Any

import torch

from smelt import _native
from smelt.dispatch.tensors import Layout

Memory = _native.LazyMemory
"""One storage. It knows which values of the recording `serial` are views of it, by their layouts."""


def view_of(memory: Memory, layout: Layout) -> torch.Tensor:
    """The numbers of a memory as a tensor of the real device with a layout."""
    real: torch.Tensor = memory.real
    if layout == memory.layout:
        return real
    shape, stride, offset, dtype = layout
    # By a tensor over the whole storage: a view of another dtype may not be a view of `real`.
    whole = torch.empty(0, dtype=dtype, device=real.device)
    return whole.set_(real.untyped_storage(), offset + _offset_of(real, dtype), shape, stride)


def _offset_of(real: torch.Tensor, dtype: torch.dtype) -> int:
    return int(real.storage_offset()) * real.dtype.itemsize // dtype.itemsize


def layout_of_real(real: torch.Tensor) -> Layout:
    """The layout of a storage whose numbers are all those of `real`."""
    return real.shape, real.stride(), 0, real.dtype


def owned(real: Any) -> Memory:
    """The memory of a tensor that nobody else writes."""
    return Memory(layout_of_real(real), real)


def adopted(real: Any, memory: Memory) -> torch.Tensor:
    """A result with the layout that was told to the program when it was recorded."""
    shape, stride, _, dtype = memory.layout
    tensor: torch.Tensor = real
    if tensor.shape != shape or tensor.dtype != dtype:
        raise RuntimeError(f"a result is {tensor.dtype} {tuple(tensor.shape)}, recorded as {dtype} {tuple(shape)}")
    if tensor.storage_offset():  # recorded views count from the beginning of their memory
        tensor = tensor.clone()
    if tensor.stride() == stride:
        return tensor
    if all(one == other or size < 2 for one, other, size in zip(tensor.stride(), stride, shape, strict=True)):
        return tensor.as_strided(shape, stride)
    return torch.empty_strided(shape, stride, dtype=dtype, device=tensor.device).copy_(tensor)
