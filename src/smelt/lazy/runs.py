"""Runs what was recorded, when a value is needed: all of it, as one program; what nobody can see any more is left out.

    recording ── who is alive? ──► the program of its path ── run ──► memories become real ──► a new recording

If the program raises, the path is run again operator by operator, from the same inputs: a program writes its inputs
when nothing in it can fail any more. The operator that raises is named with the line that recorded it. What was
recorded before it is there, as in eager; what was recorded after it is lost, and says so to whoever asks."""

import time
from collections.abc import Sequence
from typing import Any

import torch

from smelt.base.events import counters
from smelt.ir.graph import GraphCompiler
from smelt.lazy import lines
from smelt.lazy.memory import Memory
from smelt.lazy.programs import PathProgram, Sites, Variant
from smelt.lazy.recorder import Recorder, Recording
from smelt.lazy.replay import Failed
from smelt.lazy.steps import Step
from smelt.lazy.timeline import LazyRun, Timeline


class Runs:
    """Turns recordings into numbers."""

    def __init__(self, recorder: Recorder, compiler: GraphCompiler, timeline: Timeline) -> None:
        self._recorder = recorder
        self._compiler = compiler
        self._timeline = timeline
        self._sites = Sites()

    def forget(self) -> None:
        self._sites = Sites()

    def run(self, reason: str) -> None:
        """Run what is recorded; the recorder's lock is held."""
        now = self._recorder.now
        if now.step is self._recorder.root:
            return
        alive = [(value, memory) for value, ref in now.memories.items() if (memory := ref()) is not None]
        live = tuple(value for value, _ in alive)
        if not live and not _writes(now.step.path()):
            self._recorder.begin()
            return
        program = now.step.programs.get(live)
        if program is None:
            program = now.step.programs[live] = PathProgram(now.step, live, self._recorder.real_device)
        with torch._C._InferenceMode(False), torch._C.DisableTorchFunction(), torch.no_grad():
            self._run(program, now, alive, reason)

    def _run(self, program: PathProgram, now: Recording, alive: Sequence[tuple[int, Memory]], reason: str) -> None:
        started, kernels = time.perf_counter(), counters["kernels"]
        variant, is_new = program.variant(now.numbers, self._compiler, self._sites)
        inputs: list[Any] = [memory.real for memory in now.inputs]
        try:
            results = self._results(program, variant, inputs, now.numbers)
        except Failed as failed:
            self._recorder.begin()
            _keep_what_is(failed, alive)
            raise _named(failed) from None
        for (_, memory), real in zip(alive, results, strict=True):
            memory.real = _adopted(real, memory)
        self._recorder.begin()
        how = "eager" if variant.run is None else "compiled" if is_new else "cached"
        took = (time.perf_counter() - started) * 1000
        made = counters["kernels"] - kernels
        line = str(lines.here() or "an unknown line")
        shape = (now.count, len(inputs), len(alive))
        self._timeline.add(LazyRun(self._timeline.count + 1, reason, line, *shape, how, made, took))

    def _results(
        self, program: PathProgram, variant: Variant, inputs: Sequence[Any], numbers: Sequence[Any]
    ) -> Sequence[Any]:
        try:
            return program.run(variant, inputs, numbers)
        except Failed:
            raise
        except Exception:
            return program.replayed(inputs, numbers)


def _writes(path: Sequence[Step]) -> bool:
    """Whether something in a path may be seen though no result of it is alive."""
    return any(step.operator is not None and step.operator._schema.is_mutable for step in path)


def _adopted(real: Any, memory: Memory) -> torch.Tensor:
    """A result with the layout that was told to the program when it was recorded."""
    shape, stride, _, dtype = memory.layout
    found: torch.Tensor = real
    if found.shape != shape or found.dtype != dtype:
        raise RuntimeError(f"a result is {found.dtype} {tuple(found.shape)}, and was said to be {dtype} {tuple(shape)}")
    if found.stride() == stride:
        return found
    if all(one == other or size < 2 for one, other, size in zip(found.stride(), stride, shape, strict=True)):
        return found.as_strided(shape, stride)
    return torch.empty_strided(shape, stride, dtype=dtype, device=found.device).copy_(found)


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
