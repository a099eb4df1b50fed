"""How long each kernel and library call takes, of the programs that are made while somebody asks.

    with profiling() as times:          every program made in here looks at the clock after each of its steps
        …
    times()                             [Taken("forward0", calls=3, nanoseconds=(…, …, …))], a number per step

A program that nobody asks about is not slowed down: its runner looks at one pointer per call. On a GPU a step is over
when the GPU is done with it, which is waited for: short kernels seem to take as long as it takes to launch them.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.ir.flat.layout import StepKind
from smelt.ir.flat.read import TableReader
from smelt.ir.program import Program


class Timed(Protocol):
    """What this file needs of an `Executable`: its program, and the runner that times its steps."""

    @property
    def program(self) -> Program: ...
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
        executable.run.time(_wait_for_gpus if _has_gpus(executable.program) else True)


def _has_gpus(program: Program) -> bool:
    return any(buffer.spec.device.type == "cuda" for buffer in program.buffers)


def _wait_for_gpus() -> None:
    """For all of them: a program may be on several. Not while a CUDA graph is recorded, which would end that."""
    if not torch.cuda.is_current_stream_capturing():
        for number in range(torch.cuda.device_count()):
            torch.cuda.synchronize(number)


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
    kinds = [step.kind for step in TableReader(executable.run.table).rows("steps")]
    steps = tuple(time for kind, time in zip(kinds, times, strict=True) if kind in (StepKind.LAUNCH, StepKind.CALL))
    assert len(steps) == len(executable.program.steps)
    return Taken(executable.program.name, calls, steps, sum(times) - sum(steps))
