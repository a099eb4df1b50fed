"""`ChipDevice`: a registered chip, asked one thing at a time; its memory as objects, its errors in plain words.

The collector may drop memory anywhere: in a thread of the chip's own that another one waits for, or half way through
one of its methods. So what is dropped is only noted, and given back between two calls of the chip.
"""

import ctypes
import gc
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from smelt.base import events
from smelt.base.errors import ChipFailed, SmeltError
from smelt.device import Chip, ChipLost, KernelModule, Launch, Target
from smelt.device.host_library import HOST
from smelt.dispatch import tensors
from smelt.dispatch.tensors import layout_of, memory_of


class ChipMemory:
    """Memory of a chip, which is given back when nobody has this object any more."""

    __slots__ = ("__weakref__", "address", "device", "nbytes")

    def __init__(self, device: "ChipDevice", nbytes: int) -> None:
        self.device = device
        self.nbytes = nbytes
        self.address = 0  # should allocating raise
        self.address = device.allocate(nbytes) if nbytes else 0

    def __del__(self) -> None:
        if self.address:
            self.device.free(self.address)


class ChipDevice:
    """One chip under its name. Any thread may ask."""

    def __init__(self, name: str, chip: Chip) -> None:
        self.name = name
        self.chip = chip
        self.lock = threading.RLock()
        self.lost: str | None = None  # in the chip's words; the error itself would hold on to who met it
        self.allocations = 0  # that are not given back yet
        self.bytes = 0
        self.peak_bytes = 0
        self._sizes: dict[int, int] = {}
        self._dropped: deque[int] = deque()  # addresses to be given back
        self._inside = 0  # how many calls deep the thread is that has the lock
        self._late: Exception | None = None  # met where nobody could be told
        self._scratch: ChipMemory | None = None
        self.target: Target = self.ask(chip.describe)

    def __repr__(self) -> str:
        return f"<chip {self.name!r}: {self.bytes} bytes in {self.allocations} allocations, at most {self.peak_bytes}>"

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No other thread is here, and no memory is given back; that follows."""
        try:
            with self.lock:
                self._inside += 1
                try:
                    yield
                finally:
                    self._inside -= 1
        finally:
            self._free_dropped()

    def ask(self, method: Callable[..., Any], *args: Any) -> Any:
        """Call a method of the chip. Errors that are neither ours nor of memory say where they come from."""
        return self._ask(method, args, ChipFailed)

    def _ask(self, method: Callable[..., Any], args: tuple[Any, ...], kind: type[SmeltError]) -> Any:
        with self._alone():
            if self.lost is not None:
                raise ChipLost(self.lost)
            try:
                if kind is ChipFailed:
                    self._raise_late()
                return method(*args)
            except ChipLost as lost:
                self.lost = lost.message
                raise
            except (MemoryError, SmeltError):
                raise
            except Exception as error:
                what = f"{method.__name__} of the chip {self.name!r} raised {type(error).__name__}: {error}"
                raise kind("SM071", what) from error

    def _raise_late(self) -> None:
        late, self._late = self._late, None
        if late is not None:
            raise late

    # Memory.

    def allocate(self, nbytes: int) -> int:
        try:
            address = self.ask(self.chip.allocate, nbytes)
        except MemoryError:
            gc.collect()  # what only cycles hold
            try:
                self.synchronize()
                address = self.ask(self.chip.allocate, nbytes)
            except MemoryError as error:
                raise self._out_of_memory(nbytes, error) from None
        with self._alone():
            self.allocations += 1
            self.bytes += nbytes
            self.peak_bytes = max(self.peak_bytes, self.bytes)
            self._sizes[address] = nbytes
        return int(address)

    def _out_of_memory(self, nbytes: int, error: MemoryError) -> torch.OutOfMemoryError:
        held = f"{self.allocations} allocations of {self.bytes} bytes are in use"
        text = f"the chip {self.name!r} has no room for {nbytes} bytes; {held}"
        return torch.OutOfMemoryError(f"{text} ({error})" if str(error) else text)

    def free(self, address: int) -> None:
        """Give memory back: now, or when the chip has done what it was asked."""
        self._dropped.append(address)
        self._free_dropped()

    def _free_dropped(self) -> None:
        # A thread that has the lock comes here when it leaves it, so that nobody has to wait.
        while self._dropped and self.lock.acquire(blocking=False):
            try:
                if self._inside:
                    return
                self._inside += 1
                try:
                    self._free_next()
                finally:
                    self._inside -= 1
            finally:
                self.lock.release()

    def _free_next(self) -> None:
        try:
            address = self._dropped.popleft()
        except IndexError:  # another thread was quicker
            return
        self.allocations -= 1
        self.bytes -= self._sizes.pop(address, 0)
        if self.lost is not None:
            return
        try:
            self.chip.free(address)
        except ChipLost as lost:
            self.lost = lost.message
        except Exception as error:  # of something before: the next who asks is told
            self._late = self._late or error

    def scratch(self, nbytes: int) -> int:
        """The address of memory that a launch may use while it runs: launches run one after the other."""
        with self._alone():
            if self._scratch is None or self._scratch.nbytes < nbytes:
                self._scratch = ChipMemory(self, max(nbytes, 1 << 16))
            return self._scratch.address

    def release(self) -> None:
        """Give back what is kept for later."""
        with self._alone():
            self._scratch = None

    # Tensors.

    def new(self, shape: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
        size = tensors.bytes_of(shape, stride, 0, dtype)
        memory = ChipMemory(self, size)
        return tensors.make(tuple(shape), tuple(stride), dtype, memory, size, memory.address)

    def address_of(self, tensor: torch.Tensor) -> int:
        """Of a tensor's first element; 0 for one without elements."""
        address: int = memory_of(tensor).address
        return address + int(tensor.storage_offset()) * tensor.element_size() if address else 0

    def is_ours(self, value: object) -> bool:
        return isinstance(value, torch.Tensor) and value.device.type == self.name

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the host, laid out as the tensor is."""
        shape, stride, _, dtype = layout_of(tensor)
        size = tensors.bytes_of(shape, stride, 0, dtype)
        whole = torch.empty(size, dtype=torch.uint8, device=HOST)
        if size:
            events.count("chip_copies_out")
            self.ask(self.chip.copy_out, self.address_of(tensor), _bytes(whole, size))
        copy = whole.view(dtype).as_strided(shape, stride)
        copy = copy.conj() if tensor.is_conj() else copy
        return copy._neg_view() if tensor.is_neg() else copy

    def to_chip(self, host: torch.Tensor) -> torch.Tensor:
        """A tensor of the chip with the numbers of one of the host's, whose memory has no gaps."""
        on_chip = self.new(host.shape, host.stride(), host.dtype)
        self.write(on_chip, host)
        return on_chip

    def write(self, tensor: torch.Tensor, host: torch.Tensor) -> None:
        """All that a tensor of the host's reaches over, into the memory of one that is laid out the same."""
        size = tensors.bytes_of(host.shape, host.stride(), 0, host.dtype)
        if size:
            events.count("chip_copies_in")
            self.ask(self.chip.copy_in, self.address_of(tensor), _bytes(host, size))

    def copy_within(self, address: int, source: int, size: int) -> None:
        self.ask(self.chip.copy_within, address, source, size)

    def stage(self, host: torch.Tensor) -> ChipMemory:
        """A number of the host's, or a few, for one launch."""
        dense = host.contiguous()
        size = dense.numel() * dense.element_size()
        memory = ChipMemory(self, size)
        if size:
            events.count("chip_copies_in")
            self.ask(self.chip.copy_in, memory.address, _bytes(dense, size))
        return memory

    # Kernels.

    def compile(self, module: KernelModule) -> Any:
        """A handle for a module.

        Who compiles tries in another way where that fails. An error of an earlier launch must not end there, unheard:
        it is waited for, and told to the next who asks for something else.
        """
        with self._alone():
            try:
                self.synchronize()
            except ChipLost:
                raise
            except Exception as error:
                self._late = self._late or error
            return self._ask(self.chip.compile, (module,), SmeltError)

    def launch(self, handle: Any, launch: Launch) -> None:
        events.count("chip_launches")
        self.ask(self.chip.launch, handle, launch)

    def begin_in_fork(self) -> None:
        """The parent's driver, queue and threads are not here: what would ask them is refused."""
        self.lock.release()
        if not getattr(self.chip, "survives_fork", False):
            self.lost = f"a forked process has no chip {self.name!r}: begin it by spawn, or give it the host's tensors"

    def synchronize(self) -> None:
        self.ask(self.chip.synchronize)


def _bytes(host: torch.Tensor, size: int) -> memoryview:
    """The memory of a host's tensor from its first element on."""
    return memoryview((ctypes.c_char * size).from_address(host.data_ptr())).cast("B")
