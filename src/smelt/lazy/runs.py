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
from torch.autograd import forward_ad

from smelt import _native
from smelt.base.errors import ChipFailed
from smelt.base.events import counters
from smelt.ir.graph import GraphCompiler
from smelt.lazy import lines
from smelt.lazy.interruptions import uninterrupted
from smelt.lazy.loops import Loops
from smelt.lazy.memory import Memory, adopted
from smelt.lazy.paths.programs import Launch, PathProgram, Programs, Variant
from smelt.lazy.paths.replay import Failed
from smelt.lazy.real_device import RealDevice
from smelt.lazy.recorder import Recorder
from smelt.lazy.steps import Step
from smelt.lazy.timeline import LazyRun, Timeline

Alive = Sequence[tuple[int, Memory]]

_BY_OPERATORS = Variant({}, {}, None)


class Runs:
    """Turns recordings into numbers. `background`: programs are compiled while others run. `shadows`: of blocks that
    record; memory of the program takes part as long as there are any."""

    def __init__(
        self,
        recorder: Recorder,
        real: RealDevice,
        compiler: GraphCompiler,
        timeline: Timeline,
        shadows: Sequence[Any],
    ) -> None:
        self._recorder = recorder
        self._shadows = shadows
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
        if recurs and now.step.launch is not None and self._runs_as_before(now, reason):
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
        launch: Launch | None = None
        if variant is not None and not is_new and not self._shadows:
            launch = program.launch(variant, now.inputs, now.numbers)
        with (
            uninterrupted(),
            torch._C._DisableTorchDispatch(),
            torch._C._InferenceMode(False),
            torch._C.DisableTorchFunction(),
            torch.no_grad(),
        ):
            self._run(program, variant, now, alive)
        now.step.launch = launch
        if variant is not None and is_new:
            variant.kernels = counters["kernels"] - kernels
        self._note(reason, now, len(alive), _how(variant, is_new), variant, started)

    def _note(
        self, reason: str, now: _native.Recording, outputs: int, how: str, variant: Variant | None, started: float
    ) -> None:
        took = (time.perf_counter() - started) * 1000
        kernels = 0 if variant is None else variant.kernels
        shape = (now.count, len(now.inputs), outputs)
        number = self._timeline.count + 1
        self._timeline.add(LazyRun(number, reason, lines.here(), *shape, how, kernels, took, started))

    def _runs_as_before(self, now: _native.Recording, reason: str) -> bool:
        """Run a recording whose path ran before with the same values alive, by what is known of that. False if
        anything is otherwise: nothing has run then."""
        if self._shadows or not is_plain():
            return False
        started = time.perf_counter()
        launch, variant = now.step.launch
        try:
            with uninterrupted():
                if not _native.unrecorded(launch.run, now):
                    return False
        except Exception:  # nothing was written: the operator that raises is found the other way
            return False
        except BaseException as error:
            _lose(now.alive(), error)
            self._recorder.begin()
            raise
        self._recorder.begin()
        counters["lazy_repeats"] += 1
        self._note(reason, now, launch.outputs, "cached", variant, started)
        return True

    def _run(self, program: PathProgram, variant: Variant | None, now: _native.Recording, alive: Alive) -> None:
        inputs: list[Any] = [memory.real for memory in now.inputs]
        try:
            results = self._results(program, variant, inputs, now.numbers)
            for (_, memory), real in zip(alive, results, strict=True):
                memory.real = adopted(real, memory)
        except Failed as failed:
            _keep_what_is(failed, alive)
            raise _named(failed) from None
        except BaseException as error:  # whatever it is, this must not run a second time
            _lose(alive, error)
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


def is_plain() -> bool:
    """Whether nothing of PyTorch's is on that looks at operators or changes them."""
    c = torch._C
    return not (
        c._is_any_autocast_enabled()
        or c._are_functorch_transforms_active()
        or c._len_torch_dispatch_stack()
        or c._autograd._profiler_enabled()
        or torch.is_inference_mode_enabled()
        or forward_ad._current_level >= 0
    )


def _lose(alive: Alive, error: BaseException) -> None:
    """The results of a run that was ended by an error will not be there."""
    for _, memory in alive:
        if memory.real is None:
            memory.lost = RuntimeError(f"this value was not computed: {type(error).__name__}: {error}")


def _how(variant: Variant | None, is_new: bool) -> str:
    if variant is None:
        return "meanwhile"
    return "eager" if variant.run is None else "compiled" if is_new else "cached"


def _writes(path: Sequence[Step]) -> bool:
    """Whether something in a path may be seen though no result of it is alive."""
    return any(step.operator is not None and step.operator._schema.is_mutable for step in path)


def _keep_what_is(failed: Failed, alive: Sequence[tuple[int, Memory]]) -> None:
    for value, memory in alive:
        if value in failed.values:
            memory.real = adopted(failed.values[value], memory)
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
