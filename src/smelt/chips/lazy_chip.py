"""`smelt.lazy.enable(on="sim")`: a chip's own device records what it is asked for, and runs it when a value is needed.

    smelt.register_chip("sim", Sim())
    smelt.lazy.enable(on="sim")
    x = torch.randn(1000, device="sim")
    y = (x + 1) * 2                  recorded
    print(y)                         one kernel runs on the chip

PyTorch has room for one device that is not its own, so tensors that record and tensors of the chip's memory are both on
it. They differ in what is behind their storage: a recorder's `Memory`, whose numbers are a tensor of the chip, or the
chip's memory itself. What runs a recording asks for the chip's own operators (`on_chip`).
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from smelt.chips.runtime import ChipDevice, ChipMemory
from smelt.dispatch import tensors
from smelt.dispatch.tensors import memory_of
from smelt.ir.graph import GraphCompiler
from smelt.lazy.memory import Memory, owned
from smelt.lazy.owner import LazyOwner
from smelt.lazy.real_device import RealDevice
from smelt.meta.devices import tensors_in

_thread = threading.local()


@contextmanager
def on_chip() -> Iterator[None]:
    """Within, operators on the chip's tensors run at once."""
    before = getattr(_thread, "runs", False)
    _thread.runs = True
    try:
        yield
    finally:
        _thread.runs = before


class ChipRealDevice(RealDevice):
    """The chip, whose own operators run whatever was recorded."""

    def __init__(self, device: ChipDevice) -> None:
        super().__init__(torch.device(device.name, 0))
        self._chip = device

    def working(self) -> AbstractContextManager[None]:
        return on_chip()

    def selected(self) -> AbstractContextManager[None]:
        return on_chip()

    def synchronize(self) -> None:
        self._chip.synchronize()

    def empty_cache(self) -> None:
        self._chip.release()


class LazyChip:
    """Records what is asked of a chip."""

    def __init__(self, device: ChipDevice, compiler: GraphCompiler) -> None:
        self._device = device
        self.owner = LazyOwner(device.name, ChipRealDevice(device), compiler)

    def takes(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether a call is recorded: all are but those that run a recording."""
        if not getattr(_thread, "runs", False):
            return True
        return any(self._records(each) for each in tensors_in((*args, *kwargs.values())))

    def call(self, operator: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        for each in tensors_in((*args, *kwargs.values())):
            if self._device.is_ours(each) and not self._records(each):
                self._adopt(each)
        return self.owner.call(operator, args, kwargs)

    def _records(self, tensor: torch.Tensor) -> bool:
        return self._device.is_ours(tensor) and isinstance(memory_of(tensor), Memory)

    def _adopt(self, tensor: torch.Tensor) -> None:
        """Let a tensor that was there before, and all views of it, be recorded: its memory becomes an input."""
        storage: Any = tensor.untyped_storage()
        memory: ChipMemory = memory_of(tensor)
        size = storage.nbytes()
        dtype = tensor.dtype if size % tensor.dtype.itemsize == 0 else torch.uint8
        shape: tuple[int, ...] = (size // dtype.itemsize,)
        stride: tuple[int, ...] = (1,)
        is_whole = not tensor.storage_offset() and tensors.bytes_of(*tensors.layout_of(tensor)) == size
        if is_whole and not _repeats(tensor):
            shape, stride = tuple(tensor.shape), tuple(tensor.stride())
        real = tensors.make(shape, stride, dtype, memory, size, memory.address)
        lazy = owned(real)
        tensors.give_memory(storage, lazy, size, 0)


def _repeats(tensor: torch.Tensor) -> bool:
    return tensor.numel() * tensor.element_size() != tensor.untyped_storage().nbytes()
