"""How long each kernel and library call takes, of the programs that are made while somebody asks.

    with profiling() as times:          every program made in here looks at the clock after each of its steps
        …
    times()                             [Taken("forward0", calls=3, nanoseconds=(…, …, …))], a number per step

A program that nobody asks about is not slowed down: its runner looks at one pointer per call. On a GPU the GPU's own
clock is looked at between the steps. It is kept busy until all of them are launched, so that they run one right after
the other, and what a launch costs the host is no part of what its kernel takes.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.ir.table.records import Call, Launch, ProgramTable, Ref

_CYCLES = 200_000  # of a GPU, some 100 µs: more than the host takes to launch a step and note it, but at first
_TIMED = (Launch, Call)  # those that a program had before it was flattened


class Timed(Protocol):
    """What this file needs of an `Executable`: what it runs, and the runner that times its steps."""

    def read(self) -> ProgramTable: ...
    @property
    def run(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Taken:
    """What the steps of a program took, over all of its timed calls."""

    program: str
    calls: int
    nanoseconds: tuple[int, ...]  # per step of the program
    between: int  # for allocations, and to let go of what is needed no more


_asking: list[list[Timed]] = []


def note(executable: Timed) -> None:
    """A program was made."""
    for programs in _asking:
        programs.append(executable)
        program = executable.read()
        on_gpu = _steps_on_gpu(program)
        executable.run.time(partial(_GpuClock, sorted(_gpus(program)), on_gpu) if any(on_gpu) else True)


def _steps_on_gpu(program: ProgramTable) -> list[bool]:
    """Of each step, whether a GPU is at work when it has returned."""
    gpu = {number for number, value in enumerate(program.tensors) if value.device.type == "cuda"}
    return [isinstance(step, _TIMED) and not gpu.isdisjoint(_touched(step)) for step in program.steps]


def _touched(step: Launch | Call) -> list[Any]:
    """The values that a step reads or writes, by number."""
    if isinstance(step, Launch):
        return list(step.values)
    return [*_values_in(step.arguments), *step.results, step.unless]


def _values_in(argument: Any) -> Iterator[int]:
    if isinstance(argument, Ref):
        yield argument.value
    elif isinstance(argument, list | tuple):
        for item in argument:
            yield from _values_in(item)


class _GpuClock:
    """`_native.StepClock`: events on the stream of a program's GPU, before the first step of a call and after each.
    Several GPUs have no common clock: they are waited for after each step."""

    def __init__(self, gpus: Sequence[int], on_gpu: Sequence[bool]) -> None:
        self._on_gpu = on_gpu
        self._gpus = gpus if not torch.cuda.is_current_stream_capturing() else []
        self._events: list[Any] = []
        if len(self._gpus) == 1:
            with torch.cuda.device(self._gpus[0]):
                torch.cuda._sleep(_CYCLES * len(on_gpu))  # type: ignore[no-untyped-call]
            self.after()

    def after(self) -> None:
        if len(self._gpus) == 1:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(self._gpus[0]))
            self._events.append(event)
            return
        for gpu in self._gpus:
            torch.cuda.synchronize(gpu)

    def end(self, times: tuple[int, ...]) -> tuple[int, ...]:
        """The host's time where it is the host that works: kernels of its own, and what comes between steps."""
        if not self._events:
            return times
        self._events[-1].synchronize()
        taken = [round(first.elapsed_time(second) * 1e6) for first, second in itertools.pairwise(self._events)]
        return tuple(gpu if is_gpu else host for gpu, host, is_gpu in zip(taken, times, self._on_gpu, strict=True))


def _gpus(program: ProgramTable) -> set[int]:
    devices = {value.device for value in program.tensors}
    return {device.index or 0 for device in devices if device.type == "cuda"}


@contextlib.contextmanager
def profiling() -> Iterator[Callable[[], list[Taken]]]:
    """Time the programs that any thread makes in the block; what it yields tells what they took, later too."""
    programs: list[Timed] = []
    ended: list[Taken] = []
    _asking.append(programs)
    try:
        yield lambda: ended or [_taken(each) for each in programs]
    finally:
        ended += [_taken(each) for each in programs]
        _asking[:] = [each for each in _asking if each is not programs]
        for each in programs:
            if not any(each in others for others in _asking):
                each.run.time(False)


def _taken(executable: Timed) -> Taken:
    calls, times = executable.run.times
    program = executable.read()
    steps = tuple(time for step, time in zip(program.steps, times, strict=True) if isinstance(step, _TIMED))
    return Taken(program.name, calls, steps, sum(times) - sum(steps))
