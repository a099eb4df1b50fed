"""`sim`: a device that this processor plays, with memory of its own, a queue, and errors on demand: a chip's template.

    sim = Sim()
    smelt.register_chip("sim", sim)
    x = torch.randn(3, device="sim")

Addresses are no pointers: using one as such ends the process. What is asked for is done by a thread, later. Memory that
nobody has written reads as NaN. `sim.fail("launch", ...)` makes something go wrong, `sim.delay` makes everything slow.
"""

import bisect
import ctypes
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm

from smelt.chips import Chip, ChipLost, KernelModule, Launch, Target, host_target

FIRST = 1 << 60  # no process has memory there
ALIGNMENT = 64
ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)


class Sim(Chip):
    """The device. `memory`: how many bytes it has."""

    survives_fork = True  # it is all in this process, and a new thread plays on

    def __init__(self, memory: int = 1 << 30) -> None:
        self.memory = memory
        self.used = 0
        self.delay = 0.0  # seconds that each thing takes longer
        self._blocks: dict[int, tuple[int, Any]] = {}  # address → bytes, and the host's memory that plays it
        self._starts: list[int] = []
        self._next = FIRST
        self._failing: dict[str, list[Exception | None]] = {}
        self._error: Exception | None = None
        self._is_lost = False
        self._queue: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._worker: threading.Thread | None = None
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()

    def describe(self) -> Target:
        return host_target("sim", memory_bytes=self.memory)

    # Faults.

    def fail(self, method: str, error: Exception, after: int = 0, times: int = 1) -> None:
        """Calls of `method` after so many others raise; for `launch` and copies that is when it is done."""
        self._failing[method] = [None] * after + [error] * times

    def lose(self) -> None:
        """From now on the device does not answer."""
        self._is_lost = True

    def _meet(self, method: str) -> None:
        planned = self._failing.get(method)
        if planned and (error := planned.pop(0)) is not None:
            raise error

    # The queue.

    def _check(self) -> None:
        if self._is_lost:
            raise ChipLost("the simulated device was lost")
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _later(self, method: str, work: Callable[[], None]) -> None:
        self._check()
        self._put(method, work)

    def _put(self, method: str, work: Callable[[], None]) -> None:
        def do() -> None:
            if self.delay:
                time.sleep(self.delay)
            try:
                self._meet(method)
                work()
            except Exception as error:
                self._error = self._error or error

        if self._worker is None or not self._worker.is_alive():  # the first time, and in a forked process
            self._queue = queue.SimpleQueue()
            self._worker = threading.Thread(target=self._work, args=(self._queue,), daemon=True, name="sim")
            self._worker.start()
        self._queue.put(do)

    @staticmethod
    def _work(tasks: "queue.SimpleQueue[Callable[[], None]]") -> None:
        while True:
            tasks.get()()

    def record_event(self) -> threading.Event:
        event = threading.Event()
        self._later("record_event", event.set)
        return event

    def wait_event(self, event: threading.Event) -> None:
        while not event.wait(0.1):
            if self._is_lost:
                break
        self._check()

    def query_event(self, event: threading.Event) -> bool:
        self._check()
        return event.is_set()

    def synchronize(self) -> None:
        self.wait_event(self.record_event())

    # Memory.

    def allocate(self, nbytes: int) -> int:
        self._check()
        self._meet("allocate")
        if self.used + nbytes > self.memory:
            raise MemoryError(f"{nbytes} bytes were asked for, and {self.memory - self.used} of {self.memory} are free")
        block = (ctypes.c_char * (nbytes + ALIGNMENT))()
        ctypes.memset(block, 0xFF, len(block))
        address = self._next
        self._next += (nbytes // ALIGNMENT + 2) * ALIGNMENT  # a gap, so that what is beyond the end is no other's
        self._blocks[address] = (nbytes, block)
        self._starts.append(address)
        self.used += nbytes
        return address

    def free(self, address: int) -> None:
        nbytes, _ = self._blocks[address]  # an address that was never given out is a mistake
        self.used -= nbytes

        def work() -> None:
            del self._blocks[address]
            del self._starts[bisect.bisect_left(self._starts, address)]

        if not self._is_lost:
            self._put("free", work)  # an error of something before is for who waits for that

    def _pointer(self, address: int, nbytes: int = 0) -> int:
        """Where the host has what is at an address."""
        if not address:
            return 0
        place = bisect.bisect_right(self._starts, address) - 1
        start = self._starts[place] if place >= 0 else 0
        size, block = self._blocks.get(start, (0, None))
        if block is None or address - start + nbytes > size:
            raise ValueError(f"{nbytes} bytes at address {address:#x} are not the device's")
        first = ctypes.addressof(block)
        return first + -first % ALIGNMENT + address - start

    def copy_in(self, address: int, data: memoryview) -> None:
        kept = bytes(data)
        self._later("copy_in", lambda: ctypes.memmove(self._pointer(address, len(kept)), kept, len(kept)) and None)

    def copy_out(self, address: int, data: memoryview) -> None:
        held = (ctypes.c_char * len(data)).from_buffer(data)
        self._later("copy_out", lambda: ctypes.memmove(held, self._pointer(address, len(data)), len(data)) and None)
        self.synchronize()

    def copy_within(self, address: int, source: int, nbytes: int) -> None:
        def work() -> None:
            ctypes.memmove(self._pointer(address, nbytes), self._pointer(source, nbytes), nbytes)

        self._later("copy_within", work)

    # Kernels.

    def compile(self, module: KernelModule) -> Any:
        self._check()
        self._meet("compile")
        machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2, jit=True
        )
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(module.code), machine)
        engine.finalize_object()
        return engine, {symbol: ENTRY(engine.get_function_address(symbol)) for symbol in module.symbols}

    def launch(self, handle: Any, launch: Launch) -> None:
        def work() -> None:
            _, functions = handle  # whose code is gone with the engine: nobody else may have it by now
            pointers = [self._pointer(each) for each in launch.buffers]
            numbers = {place: ctypes.c_uint64(bits) for place, bits in launch.numbers}
            for place, number in numbers.items():
                pointers[place] = ctypes.addressof(number)
            sizes = (ctypes.c_int64 * len(launch.sizes))(*launch.sizes)
            if launch.sizes:
                pointers.append(ctypes.addressof(sizes))
            buffers = (ctypes.c_void_p * len(pointers))(*pointers)
            functions[launch.symbol](buffers, 1, self._pointer(launch.workspace))

        self._later("launch", work)
