"""Memory of a device: big buffers with addresses, out of which allocations are cut.

    heap = Heap(device); at = heap.allocate(1000); heap.free(at)
    heap.find(at + 8)  →  (buffer, offset)       for copies, which name buffers

A device grants only a few thousand allocations, so each is large; what is given back is cut from again, and a block
that is all free goes back to the device when memory is short.
"""

import bisect
import ctypes
from ctypes import byref, c_void_p
from dataclasses import dataclass, field

from smelt_vulkan import api
from smelt_vulkan.device import OpenDevice

ALIGNMENT = 256
_BLOCK_BYTES = 64 << 20
_GUARD = 16  # bytes behind each allocation: a thread may read the whole word around its last byte
_USAGE = api.STORAGE_BUFFER | api.TRANSFER_SOURCE | api.TRANSFER_TARGET | api.DEVICE_ADDRESS


class DeviceBuffer:
    """A buffer with memory of its own. `mapped`: where the host sees it; 0 where it does not."""

    def __init__(self, device: OpenDevice, size: int, wanted: int, rather: int = 0) -> None:
        self.device, self.size = device, size
        create = api.BufferCreate(api.BUFFER_CREATE, None, 0, size, _USAGE, 0, 0, None)
        self.handle = device.made("vkCreateBuffer", create)
        needs = api.MemoryRequirements()
        device("vkGetBufferMemoryRequirements", self.handle, byref(needs))
        flags = api.AllocateFlags(api.ALLOCATE_FLAGS, None, 2, 0)  # with an address
        kind = device.memory_type(needs.memoryTypeBits, wanted, rather)
        info = api.MemoryAllocate(api.MEMORY_ALLOCATE, ctypes.addressof(flags), needs.size, kind)
        try:
            self.memory = device.made("vkAllocateMemory", info)
        except api.VulkanError:
            device("vkDestroyBuffer", self.handle, None)
            raise
        device("vkBindBufferMemory", self.handle, self.memory, 0)
        about = api.BufferAddress(api.BUFFER_ADDRESS, None, self.handle)
        self.address: int = device("vkGetBufferDeviceAddress", byref(about))
        self.mapped = 0
        if wanted & api.HOST_VISIBLE:
            where = c_void_p()
            device("vkMapMemory", self.memory, 0, size, 0, byref(where))
            self.mapped = where.value or 0

    def close(self) -> None:
        self.device("vkDestroyBuffer", self.handle, None)
        self.device("vkFreeMemory", self.memory, None)


@dataclass
class _Block:
    """A buffer, and what of it is free: begin → length, both in bytes."""

    buffer: DeviceBuffer
    free: dict[int, int] = field(default_factory=dict)

    def take(self, size: int) -> int | None:
        """The begin of the smallest piece that is large enough."""
        fitting = [(length, begin) for begin, length in self.free.items() if length >= size]
        if not fitting:
            return None
        length, begin = min(fitting)
        del self.free[begin]
        if length > size:
            self.free[begin + size] = length - size
        return begin

    def give(self, begin: int, size: int) -> None:
        """Pieces side by side become one."""
        behind = self.free.pop(begin + size, 0)
        size += behind
        before = next((at for at, length in self.free.items() if at + length == begin), None)
        if before is None:
            self.free[begin] = size
        else:
            self.free[before] += size

    @property
    def is_free(self) -> bool:
        return self.free.get(0) == self.buffer.size


class Heap:
    """All memory of a device that programs see."""

    def __init__(self, device: OpenDevice) -> None:
        self.device = device
        self._blocks: list[_Block] = []  # by address
        self._firsts: list[int] = []
        self._sizes: dict[int, int] = {}  # of what is allocated, by address

    @property
    def allocations(self) -> int:
        return len(self._sizes)

    @property
    def allocated_bytes(self) -> int:
        return sum(self._sizes.values())

    def allocate(self, nbytes: int) -> int:
        size = -(-(nbytes + _GUARD) // ALIGNMENT) * ALIGNMENT
        for block in self._blocks:
            begin = block.take(size)
            if begin is not None:
                return self._taken(block, begin, size)
        block = self._add_block(size)
        begin = block.take(size)
        assert begin is not None
        return self._taken(block, begin, size)

    def _taken(self, block: _Block, begin: int, size: int) -> int:
        address = block.buffer.address + begin
        self._sizes[address] = size
        return address

    def _add_block(self, size: int) -> _Block:
        try:
            buffer = self._buffer(max(size, _BLOCK_BYTES))
        except MemoryError:
            self.release()
            buffer = self._buffer(size)
        block = _Block(buffer, {0: buffer.size})
        place = bisect.bisect(self._firsts, buffer.address)
        self._firsts.insert(place, buffer.address)
        self._blocks.insert(place, block)
        return block

    def _buffer(self, size: int) -> DeviceBuffer:
        try:
            return DeviceBuffer(self.device, size, api.DEVICE_LOCAL)
        except api.VulkanError as error:
            if error.code in (api.OUT_OF_DEVICE_MEMORY, api.OUT_OF_HOST_MEMORY):
                raise MemoryError(f"{self.device.physical.name} has no {size:,} bytes left") from error
            raise

    def release(self) -> None:
        """Give blocks of which nothing is used back to the device. Nothing may be under way that uses them."""
        self.device("vkDeviceWaitIdle")
        for place in reversed(range(len(self._blocks))):
            if self._blocks[place].is_free:
                self._blocks[place].buffer.close()
                del self._blocks[place], self._firsts[place]

    def free(self, address: int) -> None:
        size = self._sizes.pop(address, None)
        if size is None:
            raise ValueError(f"{address:#x} is not allocated")
        block, offset = self._block(address)
        block.give(offset, size)

    def _block(self, address: int) -> tuple[_Block, int]:
        place = bisect.bisect(self._firsts, address) - 1
        block = self._blocks[place]
        if place < 0 or address - block.buffer.address >= block.buffer.size:
            raise ValueError(f"{address:#x} is no address of {self.device.physical.name}")
        return block, address - block.buffer.address

    def find(self, address: int) -> tuple[int, int]:
        """The buffer that an address is in, and where."""
        block, offset = self._block(address)
        return block.buffer.handle, offset

    def close(self) -> None:
        for block in self._blocks:
            block.buffer.close()
        self._blocks, self._firsts = [], []
        self._sizes = {}


