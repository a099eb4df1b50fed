"""Chips that are broken in one respect each, and the check of the conformance kit that must find it.

    python -m tests.chips.mutants      every mutant by its check: {"LeakingFree": ["failed", "allocation 9 of …"], …}

The healthy chip passes all of them (`test_conform`)."""

import ctypes
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "plugins" / "sim"))
sys.path.insert(0, str(Path(__file__).parents[2] / "plugins" / "conform"))

import torch

from smelt.chips import KernelModule, Launch, Target
from smelt_conform.check import FAILED
from smelt_sim import Sim

MEMORY = 256 << 20
SECONDS = 300.0  # for each check
ATTEMPTS = 3  # a race is lost in most runs, not in all: a busy machine may be late itself

CAUGHT_BY: dict[str, str] = {}
"""Mutant → check."""


class Small(Sim):
    """The healthy chip, with little memory, so that filling it takes no time."""

    def __init__(self) -> None:
        super().__init__(MEMORY)

    def _wait(self) -> None:
        """As synchronize, whatever a mutant makes of that."""
        done = threading.Event()
        self._later("record_event", done.set)
        done.wait()
        self._check()


def caught_by(check: str) -> Callable[[type[Sim]], type[Sim]]:
    def entered(mutant: type[Sim]) -> type[Sim]:
        CAUGHT_BY[mutant.__name__] = check
        return mutant

    return entered


# Memory.


@caught_by("memory.describe")
class UnknownDtype(Small):
    def describe(self) -> Target:
        return replace(super().describe(), dtypes=("float32", "float31"))


@caught_by("memory.describe")
class DtypesOfTorch(Small):
    def describe(self) -> Target:
        dtypes: Any = (torch.float32, torch.int64)
        return replace(super().describe(), dtypes=dtypes)


@caught_by("memory.describe")
class OtherNameOfADtype(Small):
    def describe(self) -> Target:
        return replace(super().describe(), dtypes=("float32", "int"))


@caught_by("memory.describe")
class NoVectors(Small):
    def describe(self) -> Target:
        return replace(super().describe(), vector_bits=0)


@caught_by("memory.describe")
class FormThatNobodyMakes(Small):
    def describe(self) -> Target:
        return replace(super().describe(), form="kernel")


@caught_by("memory.alignment")
class Misaligned(Small):
    def allocate(self, nbytes: int) -> int:
        return super().allocate(nbytes + 8) + 8

    def free(self, address: int) -> None:
        super().free(address - 8)


@caught_by("memory.apart")
class Overlapping(Small):
    """Every second allocation lies in the one before."""

    _inside = 0

    def allocate(self, nbytes: int) -> int:
        address, self._inside = self._inside, 0
        if not address:
            address = super().allocate(2 * nbytes + 200_000)
            self._inside = address + 64
        return address

    def free(self, address: int) -> None:
        if address in self._blocks:
            super().free(address)


@caught_by("memory.whole")
class LastByteLost(Small):
    def copy_in(self, address: int, data: memoryview) -> None:
        super().copy_in(address, data[:-1] if len(data) > 1 else data)


@caught_by("memory.inside")
class NoOffsets(Small):
    """Every address is that of its allocation."""

    def copy_in(self, address: int, data: memoryview) -> None:
        super().copy_in(max((start for start in self._starts if start <= address), default=address), data)


@caught_by("memory.free")
class LeakingFree(Small):
    def free(self, address: int) -> None:
        pass


@caught_by("memory.kept")
class FreesTheNext(Small):
    """Freeing clears the first bytes of another allocation too."""

    def free(self, address: int) -> None:
        after = [start for start in self._starts if start > address]
        super().free(address)
        if after:
            self.copy_in(after[0], memoryview(bytes(4)))


@caught_by("memory.freed_late")
class FreesAtOnce(Small):
    def free(self, address: int) -> None:
        nbytes, _ = self._blocks[address]
        ctypes.memset(self._pointer(address), 0xDD, nbytes)
        super().free(address)


# Copies.


@caught_by("copies.copy_in")
class CopyInTooLong(Small):
    def copy_in(self, address: int, data: memoryview) -> None:
        start = max(start for start in self._starts if start <= address)
        room = self._blocks[start][0] - (address - start) - len(data)
        super().copy_in(address, memoryview(bytes(data) + bytes(min(1, room))))


@caught_by("copies.copy_in_keeps_nothing")
class CopyInKeepsReference(Small):
    def copy_in(self, address: int, data: memoryview) -> None:
        held = data

        def work() -> None:
            kept = bytes(held)
            ctypes.memmove(self._pointer(address, len(kept)), kept, len(kept))

        self._later("copy_in", work)


@caught_by("copies.copy_out")
class CopyOutTooLong(Small):
    def copy_out(self, address: int, data: memoryview) -> None:
        first = ctypes.addressof((ctypes.c_char * len(data)).from_buffer(data))
        more = 1 if len(data) == 20 else 0
        self._later("copy_out", lambda: ctypes.memmove(first, self._pointer(address), len(data) + more) and None)
        self._wait()


@caught_by("copies.copy_out_is_done")
class CopyOutEarly(Small):
    def copy_out(self, address: int, data: memoryview) -> None:
        held = (ctypes.c_char * len(data)).from_buffer(data)
        self._later("copy_out", lambda: ctypes.memmove(held, self._pointer(address), len(data)) and None)


@caught_by("copies.copy_within")
class CopyWithinByWords(Small):
    """It copies multiples of eight bytes."""

    def copy_within(self, address: int, source: int, nbytes: int) -> None:
        start = max(start for start in self._starts if start <= address)
        room = self._blocks[start][0] - (address - start)
        super().copy_within(address, source, min(nbytes + -nbytes % 8, room))


@caught_by("copies.within_one")
class CopyWithinBackwards(Small):
    """From an allocation to itself it copies the other way."""

    def copy_within(self, address: int, source: int, nbytes: int) -> None:
        one, other = (max(start for start in self._starts if start <= each) for each in (address, source))
        super().copy_within(*((source, address) if one == other else (address, source)), nbytes)


# The queue.


class RightCopies(Small):
    """Copies to the host wait, whatever else does not."""

    def copy_out(self, address: int, data: memoryview) -> None:
        held = (ctypes.c_char * len(data)).from_buffer(data)
        self._later("copy_out", lambda: ctypes.memmove(held, self._pointer(address), len(data)) and None)
        self._wait()


@caught_by("queue.synchronize")
class SynchronizeEarly(RightCopies):
    def synchronize(self) -> None:
        self._check()


@caught_by("queue.wait_event")
class WaitEventEarly(RightCopies):
    def wait_event(self, event: threading.Event) -> None:
        self._check()

    def synchronize(self) -> None:
        self._wait()


@caught_by("queue.event_waits")
class EventsAtOnce(RightCopies):
    def record_event(self) -> threading.Event:
        event = threading.Event()
        event.set()
        return event

    def synchronize(self) -> None:
        self._wait()


@caught_by("queue.events_happen")
class EventsNeedWaiting(Small):
    """They happen only when somebody waits."""

    def query_event(self, event: Any) -> bool:
        return getattr(event, "waited", False)

    def wait_event(self, event: Any) -> None:
        super().wait_event(event)
        event.waited = True


@caught_by("queue.order_of_copies")
class CopiesOvertake(Small):
    def copy_in(self, address: int, data: memoryview) -> None:
        self._check()
        kept = bytes(data)
        ctypes.memmove(self._pointer(address, len(kept)), kept, len(kept))


@caught_by("queue.order_of_launches")
class LaunchesSwapped(Small):
    """Two launches, one after the other, are done the other way round."""

    _first: tuple[Any, Launch] | None = None

    def launch(self, handle: Any, launch: Launch) -> None:
        if self._first is None:
            self._first = handle, launch
            return
        super().launch(handle, launch)
        self._flush()

    def _flush(self) -> None:
        first, self._first = self._first, None
        if first is not None:
            super().launch(*first)

    def _later(self, method: str, work: Callable[[], None]) -> None:
        if method != "launch":
            self._flush()
        super()._later(method, work)


@caught_by("queue.mixed")
class LaunchesOvertakeCopies(Small):
    """Launches are done at once, in order; copies before them may still be pending."""

    def _later(self, method: str, work: Callable[[], None]) -> None:
        if method == "launch":
            work()
        else:
            super()._later(method, work)


@caught_by("queue.pending")
class ForgetsWhatIsMuch(Small):
    """More than a thousand pending launches are dropped."""

    def launch(self, handle: Any, launch: Launch) -> None:
        if self._queue.qsize() < 1000:
            super().launch(handle, launch)


# Kernels.


class Rewritten(Small):
    """The code of kernels is not run as it is."""

    PATTERN, BY = "", ""

    def compile(self, module: KernelModule) -> Any:
        return super().compile(replace(module, code=re.sub(self.PATTERN, self.BY, module.code)))


@caught_by("elementwise.sizes")
class LastBlockLost(Rewritten):
    PATTERN = r"  call void %part\(ptr %buffers, ptr %workspace, i64 0, i64 %extent, i1 true\)"
    BY = """  %less = sub i64 %extent, 1
  call void %part(ptr %buffers, ptr %workspace, i64 0, i64 %less, i1 true)"""


@caught_by("elementwise.broadcast")
class BuffersSwapped(Small):
    def launch(self, handle: Any, launch: Launch) -> None:
        first, second, *rest = (*launch.buffers, 0, 0)[: max(2, len(launch.buffers))]
        swapped = (second, first, *rest) if len(launch.buffers) > 2 else launch.buffers
        super().launch(handle, replace(launch, buffers=swapped))


@caught_by("elementwise.scalars")
class StaleNumbers(Small):
    """A number that comes with a launch is the first one that ever came."""

    _first: int | None = None

    def launch(self, handle: Any, launch: Launch) -> None:
        if launch.numbers:
            self._first = self._first or launch.numbers[0][1]
            numbers = tuple((place, self._first) for place, _ in launch.numbers)
            launch = replace(launch, numbers=numbers)
        super().launch(handle, launch)


@caught_by("elementwise.special")
class IgnoresNaN(Small):
    """The maximum of a number and NaN is the number."""

    def compile(self, module: KernelModule) -> Any:
        text = re.sub(r"llvm\.vector\.reduce\.f(max|min)imum", r"llvm.vector.reduce.f\1", module.code)
        return super().compile(replace(module, code=re.sub(r"llvm\.(max|min)imum", r"llvm.\1num", text)))


@caught_by("reductions.nan")
class ReducesWithoutNaN(IgnoresNaN):
    pass


@caught_by("elementwise.comparisons")
class UnorderedComparisons(Rewritten):
    """NaN is less than anything."""

    PATTERN, BY = r"fcmp olt", "fcmp ult"


@caught_by("elementwise.signs")
class NegatesBySubtracting(Rewritten):
    """-0.0 is lost."""

    PATTERN, BY = r"fneg float (%\w+)", r"fsub float 0.0, \1"  # one by one, as of few elements


@caught_by("elementwise.math")
class CoarseConstants(Rewritten):
    """Coefficients of polynomials have twelve bits."""

    PATTERN, BY = r"(float 0x3F\w{3})\w{11}\b", r"\g<1>00000000000"


@caught_by("elementwise.rounding")
class RoundsHalfUp(Rewritten):
    PATTERN, BY = r"llvm\.roundeven", "llvm.round"


@caught_by("elementwise.int8")
class UnsignedIntegers(Rewritten):
    PATTERN, BY = r"\bsitofp\b", "uitofp"


@caught_by("reductions.rows")
class ReductionWithoutTail(Rewritten):
    """The last elements of a row, which fill no vector, are left out."""

    PATTERN = r"select (<\d+ x i1>) %\w+, (<\d+ x float> %\w+, <\d+ x float> splat \(float 0x0000000000000000\))"
    BY = r"select \1 zeroinitializer, \2"


@caught_by("products.matrices")
class ProductWithoutSums(Rewritten):
    """Multiply-adds forget what they add to."""

    FLOATS = r"(?:<\d+ x )?float>?"
    PATTERN = rf"call ({FLOATS}) @llvm\.fma\.\w+\({FLOATS} ([^,]+), {FLOATS} ([^,]+), [^\n]*\)"
    BY = r"fmul \1 \2, \3"


@caught_by("indexing.out_of_range")
class FlagsUnseen(Small):
    """A single byte that is copied to the host is 1: the flag that an index is out of range is never seen."""

    def copy_out(self, address: int, data: memoryview) -> None:
        super().copy_out(address, data)
        if len(data) == 1:
            data[:] = b"\x01"


# Threads, faults, memory pressure.


@caught_by("threads.another")
class OneThreadOnly(Small):
    """Copies work in the thread that came first: a driver's context belongs to it."""

    _thread: threading.Thread | None = None

    def copy_within(self, address: int, source: int, nbytes: int) -> None:
        self._thread = self._thread or threading.current_thread()
        if threading.current_thread() is not self._thread:
            raise RuntimeError("no context is current in this thread")
        super().copy_within(address, source, nbytes)


@caught_by("faults.bad_code")
class TakesAnyCode(Small):
    def compile(self, module: KernelModule) -> Any:
        try:
            return super().compile(module)
        except RuntimeError:
            return None, {}


@caught_by("faults.lost_error")
class LosesErrors(Small):
    def _check(self) -> None:
        self._error = None


@caught_by("faults.no_room")
class NullForNoRoom(Small):
    def allocate(self, nbytes: int) -> int:
        try:
            return super().allocate(nbytes)
        except MemoryError:
            return 0


@caught_by("pressure.out_of_memory")
class OtherErrorForNoRoom(Small):
    def allocate(self, nbytes: int) -> int:
        try:
            return super().allocate(nbytes)
        except MemoryError as error:
            raise RuntimeError("out of memory") from error


@caught_by("pressure.large")
class ShortOffsets(Small):
    """Offsets wrap at a megabyte."""

    def _pointer(self, address: int, nbytes: int = 0) -> int:
        place = max((start for start in tuple(self._starts) if start <= address), default=0)
        return super()._pointer(place + (address - place) % (1 << 20) if address else 0)


@caught_by("pressure.full")
class HalfGivenBack(Small):
    """Every second free does nothing."""

    _count = 0

    def free(self, address: int) -> None:
        self._count += 1
        if self._count % 2:
            super().free(address)


@caught_by("pressure.fragments")
class ReusesTooSmall(Small):
    """A freed place is given out again for whatever comes, also when it is too small: it reaches into the next."""

    def __init__(self) -> None:
        super().__init__()
        self._pool, self._spare, self._at = 0, [0][:0], 0

    def allocate(self, nbytes: int) -> int:
        self._pool = self._pool or super().allocate(MEMORY // 2)
        if self._spare:
            return self._spare.pop()
        self._at += nbytes + -nbytes % 64
        return self._pool + self._at - (nbytes + -nbytes % 64)

    def free(self, address: int) -> None:
        self._spare.append(address)


@caught_by("pressure.given_back")
class FreeRaises(Small):
    def free(self, address: int) -> None:
        raise RuntimeError("cannot free")


# What ends the process, or never ends.


@caught_by("memory.freed_late")
class Hangs(Small):
    def copy_within(self, address: int, source: int, nbytes: int) -> None:
        while True:
            time.sleep(1)


@caught_by("copies.within_one")
class Crashes(Small):
    def copy_within(self, address: int, source: int, nbytes: int) -> None:
        os.kill(os.getpid(), 11)


@caught_by("memory.whole")
class Raises(Small):
    def copy_out(self, address: int, data: memoryview) -> None:
        raise KeyError(address)


def main(names: list[str]) -> None:
    """What each mutant's check says of it, and what it says of the healthy chip."""
    import smelt
    from smelt_conform.processes import conform

    found = {}
    for name in names or CAUGHT_BY:
        seconds = 3.0 if name == "Hangs" else SECONDS
        made = f"tests.chips.mutants:{name}"
        for _ in range(ATTEMPTS):
            report = conform("sim", smelt.compile, made, [CAUGHT_BY[name]], seconds, with_speeds=False)
            (outcome,) = report.outcomes
            if outcome.status == FAILED:
                break
        found[name] = [outcome.status, outcome.reason, round(outcome.seconds, 1)]
    checks = list(dict.fromkeys(CAUGHT_BY[name] for name in names or CAUGHT_BY))
    healthy = conform("sim", smelt.compile, "tests.chips.mutants:Small", checks, SECONDS, with_speeds=False)
    found["Small"] = [[each.check, each.status, each.reason] for each in healthy.outcomes]
    json.dump(found, sys.stdout, indent=1)


if __name__ == "__main__":
    main(sys.argv[1:])
