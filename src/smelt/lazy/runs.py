"""Runs what was recorded, when a value is needed: all of it, as one program; what nobody can see any more is left out.

    recording ── who is alive? ──► the program of its path ── run ──► memories become real ──► a new recording

While its program is compiled a path runs operator by operator, as eager would have: the program does not wait, unless
it was asked to. If a program raises, the path is run again that way, from the same inputs: a program writes its inputs
when nothing in it can fail any more. The operator that raises is named with the line that recorded it. What was
recorded before it is there, as in eager; what was recorded after it is lost, and says so to whoever asks.

Ctrl-C does not end a run half way. It ends the wait for a program: nothing has run then, and nothing is lost."""

import time
from collections.abc import Sequence
from typing import Any

import torch

from smelt import _native
from smelt.base.errors import ChipFailed
from smelt.base.events import counters
from smelt.ir.graph import GraphCompiler
from smelt.lazy import lines
from smelt.lazy.interruptions import uninterrupted
from smelt.lazy.loops import Loops
from smelt.lazy.memory import Memory
from smelt.lazy.paths.programs import PathProgram, Programs, Variant
from smelt.lazy.paths.replay import Failed
from smelt.lazy.real_device import RealDevice
from smelt.lazy.recorder import Recorder
from smelt.lazy.steps import Step
from smelt.lazy.timeline import LazyRun, Timeline

Alive = Sequence[tuple[int, Memory]]

_BY_OPERATORS = Variant({}, (), None)


class Runs:
    """Turns recordings into numbers. `background`: programs are compiled while others run."""

    def __init__(self, recorder: Recorder, real: RealDevice, compiler: GraphCompiler, timeline: Timeline) -> None:
        self._recorder = recorder
        self._timeline = timeline
        self._root = recorder.root
        self.programs = Programs(compiler, real)
        self.loops = Loops(recorder)
        self.background = True

    def forget(self) -> None:
        self.programs.worker.wait()
        self._root = self._recorder.root  # the old tree has the programs of its paths, and they their memory
        self.programs.forget()

    @property
    def waits(self) -> bool:
        """Programs and operators may round differently, and which of them runs would be a matter of time."""
        return not self.background or torch.are_deterministic_algorithms_enabled()

    def run(self, reason: str, recurs: bool = True) -> None:
        """Run what is recorded; the recorder's lock is held. What will not recur is not worth a program."""
        self.loops.ended()
        now = self._recorder.now
        if now.step is self._recorder.root:
            return
        alive: list[tuple[int, Memory]] = now.alive()
        live = tuple(value for value, _ in alive)
        if not live and not _writes(now.step.path()):
            self._recorder.begin()
            return
        if self._recorder.root is not self._root:
            self._root = self._recorder.root
            self.programs.forget()
        started, kernels = time.perf_counter(), counters["kernels"]
        program = self.programs.of(now.step, live, now.numbers)
        variant, is_new = program.variant(now.numbers, self.programs, self.waits) if recurs else (_BY_OPERATORS, False)
        if variant is not None:
            self.programs.prepare(program, variant, now.numbers)
        with (
            uninterrupted(),
            torch._C._DisableTorchDispatch(),
            torch._C._InferenceMode(False),
            torch._C.DisableTorchFunction(),
            torch.no_grad(),
        ):
            self._run(program, variant, now, alive)
        how = _how(variant, is_new)
        took = (time.perf_counter() - started) * 1000
        if variant is not None and is_new:
            variant.kernels = counters["kernels"] - kernels
        kernel_count = 0 if variant is None else variant.kernels
        line = str(lines.here() or "an unknown line")
        shape = (now.count, len(now.inputs), len(alive))
        self._timeline.add(LazyRun(self._timeline.count + 1, reason, line, *shape, how, kernel_count, took, started))

    def _run(self, program: PathProgram, variant: Variant | None, now: _native.Recording, alive: Alive) -> None:
        inputs: list[Any] = [memory.real for memory in now.inputs]
        try:
            results = self._results(program, variant, inputs, now.numbers)
            for (_, memory), real in zip(alive, results, strict=True):
                memory.real = _adopted(real, memory)
        except Failed as failed:
            _keep_what_is(failed, alive)
            raise _named(failed) from None
        except BaseException as error:  # whatever it is, this must not run a second time
            for _, memory in alive:
                if memory.real is None:
                    memory.lost = RuntimeError(f"this value was not computed: {type(error).__name__}: {error}")
            raise
        finally:
            self._recorder.begin()

    def _results(
        self, program: PathProgram, variant: Variant | None, inputs: Sequence[Any], numbers: Sequence[Any]
    ) -> Sequence[Any]:
        if variant is None:
            return program.replayed(inputs, numbers)
        try:
            return program.run(variant, inputs, numbers)
        except (Failed, ChipFailed):
            raise
        except Exception:
            return program.replayed(inputs, numbers)


def _how(variant: Variant | None, is_new: bool) -> str:
    if variant is None:
        return "meanwhile"
    return "eager" if variant.run is None else "compiled" if is_new else "cached"


def _writes(path: Sequence[Step]) -> bool:
    """Whether something in a path may be seen though no result of it is alive."""
    return any(step.operator is not None and step.operator._schema.is_mutable for step in path)


def _adopted(real: Any, memory: Memory) -> torch.Tensor:
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


def _keep_what_is(failed: Failed, alive: Sequence[tuple[int, Memory]]) -> None:
    for value, memory in alive:
        if value in failed.values:
            memory.real = _adopted(failed.values[value], memory)
        else:
            memory.lost = RuntimeError(
                f"this value was not computed: {failed.step.operator}, recorded at {failed.step.line}, raised "
                f"{type(failed.error).__name__}: {failed.error}"
            )


def _named(failed: Failed) -> Exception:
    """The error of an operator, with the line that recorded it."""
    error = failed.error
    text = f"{error}\n  raised by {failed.step.operator}, which was recorded at {failed.step.line}"
    try:
        named = type(error)(text)
    except Exception:  # an error that is made of something else
        named = RuntimeError(text)
    return named.with_traceback(error.__traceback__)
