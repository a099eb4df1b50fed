"""Times the points of a calibration: the kernel and the library's call alternate, the shortest time of each counts."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch

from smelt import _native, codegen
from smelt.base.fast_dataclass import dataclass
from smelt.base.options import Options
from smelt.device import contraction_cycles
from smelt.device.host_costs import CYCLE_SECONDS
from smelt.device.host_library import HOST
from smelt.ir.kernel import Kernel
from smelt.pipeline.calibration.points import Point, kernel_of
from smelt.symbolic.shapes import Size

_ROUNDS = 5
_SAMPLE_SECONDS = 0.5e-3  # of calls in a row, which a clock resolves well
_BATCH = 24  # kernels that are compiled together
_CONVERTED = 1 << 18  # elements


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """Times in cycles (`CYCLE_SECONDS`): what the schedule estimates of the kernel, and what both took."""

    point: Point
    threads: int
    estimate: float
    kernel: float
    library: float


@dataclass(frozen=True, slots=True)
class ReadyPoint:
    """A point with the code of its kernel."""

    point: Point
    kernel: Kernel
    estimate: float
    launcher: _native.Launcher

    def measured(self, threads: int) -> MeasuredPoint:
        buffers = [_numbers(buffer.size, buffer.dtype) for buffer in self.kernel.parameters]
        library = self.point.call(*(_numbers(spec.numel, spec.dtype).view(spec.shape) for spec in self.point.inputs))
        ways = (lambda: self.launcher(threads, *buffers), library)
        ours, theirs = (each / CYCLE_SECONDS for each in shortest(ways, threads))
        return MeasuredPoint(self.point, threads, self.estimate, ours, theirs)


def measured(points: Sequence[Point], threads: Sequence[int], seconds: float) -> Iterator[MeasuredPoint]:
    """Each point with each number of threads. Kernels and one thread get three quarters of the processor time
    that `seconds` are, other numbers of threads what is left by the clock; points that come too late are left out."""
    first, *others = threads
    ready: list[ReadyPoint] = []
    began = time.process_time()
    for each in _ready(points):
        if time.process_time() - began > seconds * 3 / 4:
            break
        ready.append(each)
        yield each.measured(first)
    left = max(seconds - (time.process_time() - began), seconds / 4)
    for count in others:
        began = time.monotonic()
        for each in ready:
            if time.monotonic() - began > left / len(others):
                break
            yield each.measured(count)


def _ready(points: Sequence[Point]) -> Iterator[ReadyPoint]:
    """Points whose kernels have code, which are compiled some at a time."""
    for first in range(0, len(points), _BATCH):
        kernels: dict[str, tuple[Point, Kernel, float]] = {}
        for number, point in enumerate(points[first : first + _BATCH]):
            kernel = kernel_of(point)
            estimate = "it is no kernel" if kernel is None else contraction_cycles(kernel.target, kernel)
            if kernel is not None and not isinstance(estimate, str):
                kernels[f"p{number}"] = point, replace(kernel, name=f"p{number}"), float(estimate)
        compiled = codegen.compile_kernels([kernel for _, kernel, _ in kernels.values()], Options())
        for name, (point, kernel, estimate) in kernels.items():
            code = compiled[name]
            launcher = _native.Launcher(code.address(code.symbol), code.buffers, 0, int(code.per_thread_workspace))
            yield ReadyPoint(point, kernel, estimate, launcher)


def cycles_to_pass(threads: int) -> tuple[float, float]:
    """Cycles a byte takes to be read and written by an operation of its own, and an element to become a float32."""
    values, narrow = (_numbers(_CONVERTED, dtype) for dtype in (torch.float32, torch.bfloat16))
    ways = (lambda: values.add_(1.0), lambda: values.copy_(narrow))
    passed, converted = (each / CYCLE_SECONDS / _CONVERTED for each in shortest(ways, threads))
    return passed / values.itemsize, converted


def shortest(ways: Sequence[Callable[[], object]], threads: int) -> list[float]:
    """Seconds of a call of each way. One thread is timed by its processor time, which others disturb less."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        counts = [_calls_of_sample(way, clock) for way in ways]
        best = [math.inf] * len(ways)
        for _ in range(_ROUNDS):
            for number, (way, count) in enumerate(zip(ways, counts, strict=True)):
                best[number] = min(best[number], _sample(way, count, clock) / count)
        return best
    finally:
        torch.set_num_threads(before)


def _calls_of_sample(way: Callable[[], object], clock: Callable[[], float]) -> int:
    way()
    return max(1, math.ceil(_SAMPLE_SECONDS / max(_sample(way, 1, clock), 1e-7)))


def _sample(way: Callable[[], object], count: int, clock: Callable[[], float]) -> float:
    began = clock()
    for _ in range(count):
        way()
    return clock() - began


def _numbers(size: Size, dtype: torch.dtype) -> torch.Tensor:
    return torch.full((int(size),), 0.5, dtype=dtype, device=HOST)
