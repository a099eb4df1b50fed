"""`VulkanChip`: any device with Vulkan 1.2 or later, as a chip of smelt.

    chip = VulkanChip()              opens the device that `SMELT_VULKAN_DEVICE` names, or the likeliest
    smelt.register_chip("vk", chip)      PyTorch keeps the name "vulkan" for a device of its own

Addresses are the device's own. Kernels reach memory by them, so nothing is described to the driver at a launch but a
few numbers.
"""

import ctypes
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from smelt.device import Chip, ChipLost, KernelModule, Launch, Target
from smelt_vulkan import api
from smelt_vulkan.device import NoVulkan, OpenDevice, chosen, load, make_instance, physical_devices
from smelt_vulkan.memory import Heap
from smelt_vulkan.pipelines import Pipelines
from smelt_vulkan.queue import Queue

_DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")


def why_not() -> str | None:
    """Why nothing computes here by Vulkan; None if something does."""
    try:
        vulkan = load()
        instance = make_instance(vulkan)
        chosen(physical_devices(vulkan, instance))
    except NoVulkan as error:
        return str(error)
    vulkan("vkDestroyInstance", instance, None)
    return None


class VulkanChip(Chip):
    """A device. `counters` has what was asked of it: launches, copies_in, copies_out, copies_within, compiled."""

    def __init__(self, wanted: str | None = None) -> None:
        vulkan = load()
        self._instance = make_instance(vulkan)
        self.device = OpenDevice(vulkan, chosen(physical_devices(vulkan, self._instance), wanted))
        self.queue = Queue(self.device)
        self.heap = Heap(self.device)
        self.pipelines = Pipelines(self.device, self.queue.layout)
        self.counters: Counter[str] = Counter()
        self._lost: str | None = None
        self._lock = threading.RLock()

    def describe(self) -> Target:
        physical = self.device.physical
        features = list(physical.controls)
        if physical.shuffles:
            features.append("+shuffle")
        return Target(
            name="vk",
            triple="spirv64-unknown-vulkan1.2-compute",
            cpu="",
            features=",".join(features),
            vector_bits=32,
            vector_registers=128,
            has_fma=False,  # Vulkan lets a device round twice
            fma_clobbers_addend=False,
            prefetch_next_row=False,
            prefetch_distance=0,
            pairs_rows=False,
            cheap_interleave=False,
            has_narrowing_add=False,
            has_nan_minmax=False,
            transpose_tile_bytes=(0, 0),
            warp_size=physical.subgroup,
            has_half=False,
            form="spirv",
            dtypes=_DTYPES,
            memory_bytes=max(physical.heaps),
        )

    @contextmanager
    def _asked(self, what: str = "") -> Iterator[None]:
        """One at a time; a device that is gone stays so."""
        with self._lock:
            if self._lost is not None:
                raise ChipLost(self._lost)
            if what:
                self.counters[what] += 1
            try:
                yield
            except api.VulkanError as error:
                if error.code == api.DEVICE_LOST:
                    self._lost = f"{self.device.physical.name} is lost: {error}"
                    raise ChipLost(self._lost) from error
                if error.code in (api.OUT_OF_DEVICE_MEMORY, api.OUT_OF_HOST_MEMORY):
                    raise MemoryError(f"{self.device.physical.name}: {error}") from error
                raise

    # Memory.

    def allocate(self, nbytes: int) -> int:
        with self._asked():
            return self.heap.allocate(nbytes)

    def free(self, address: int) -> None:
        with self._lock:
            self.heap.free(address)

    def copy_in(self, address: int, data: memoryview) -> None:
        with self._asked("copies_in"), _bytes_at(data, writable=False) as at:
            self.queue.copy_in(self.heap.find(address), at, data.nbytes)

    def copy_out(self, address: int, data: memoryview) -> None:
        with self._asked("copies_out"), _bytes_at(data, writable=True) as at:
            self.queue.copy_out(self.heap.find(address), at, data.nbytes)

    def copy_within(self, address: int, source: int, nbytes: int) -> None:
        with self._asked("copies_within"):
            self.queue.copy(self.heap.find(source), self.heap.find(address), nbytes)

    # The queue.

    def synchronize(self) -> None:
        with self._asked():
            self.queue.wait(self.queue.submit())

    def record_event(self) -> int:
        with self._asked():
            return self.queue.submit()

    def wait_event(self, event: int) -> None:
        with self._asked():
            self.queue.wait(event)

    def query_event(self, event: int) -> bool:
        with self._asked():
            return self.queue.reached() >= event

    # Kernels.

    def compile(self, module: KernelModule) -> dict[str, int]:
        """A pipeline for each function."""
        with self._asked("compiled"):
            codes = zip(module.symbols, module.code, strict=True)
            return {symbol: self.pipelines.of(code, symbol) for symbol, code in codes}

    def launch(self, handle: Any, launch: Launch) -> None:
        with self._asked("launches"):
            mask = 2**64 - 1
            buffers = list(launch.buffers)
            for place, bits in launch.numbers:
                buffers[place] = bits
            parameters = (*buffers, launch.workspace, *(size & mask for size in launch.sizes))
            self.queue.dispatch(handle[launch.symbol], parameters, launch.grid.blocks)

    def close(self) -> None:
        """Give everything back. The chip is not to be used any more."""
        with self._lock:
            self.queue.close()
            self.pipelines.close()
            self.heap.close()
            self.device.close()
            self.device.vulkan("vkDestroyInstance", self._instance, None)
            self._lost = "it was closed"


@contextmanager
def _bytes_at(data: memoryview, *, writable: bool) -> Iterator[int]:
    """Where a view's bytes are."""
    whole = data.cast("B") if data.format != "B" or data.ndim != 1 else data
    if whole.readonly:
        assert not writable
        kept = ctypes.create_string_buffer(whole.tobytes(), whole.nbytes)
        yield ctypes.addressof(kept)
        return
    kept = (ctypes.c_char * whole.nbytes).from_buffer(whole)
    yield ctypes.addressof(kept)
