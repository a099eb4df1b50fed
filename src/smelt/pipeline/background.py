"""`options={"compile": "background"}`: PyTorch runs a graph operator by operator until a thread has compiled it.

    BackgroundGraph(traced, compile_graph)   →   a callable: eager operators first, compiled code once it is there

Capture is done when this begins, so the thread reads only the graph, and needs no data of the program. A backward is
compiled with the forward. The default dtype changes between two compilations only. If another setting that code depends
on changes meanwhile, the code is dropped, and the next call, which has passed the guards, begins again.
"""

import contextlib
import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch

from smelt import _native
from smelt.base import events
from smelt.base.errors import warn
from smelt.base.options import Options, config
from smelt.base.worker import Job, Worker
from smelt.ir.graph import Sized, Traced, returning_tuple, sized
from smelt.ir.nodes.ambient import Ambient, restored, without_default_devices
from smelt.pipeline.cache.keys import process_settings
from smelt.runtime.autograd.differentiable import Flat

_worker = Worker("smelt-compile")


def _between_jobs(setter: Callable[[Any], None]) -> Callable[[Any], None]:
    """PyTorch's function that sets the default dtype, which waits for what is compiled with the one before."""

    @functools.wraps(setter)
    def set_dtype(chosen: Any) -> None:
        _worker.wait()
        setter(chosen)

    return set_dtype


for _name in ("_set_default_dtype", "_set_default_tensor_type"):  # all others call these
    setattr(torch._C, _name, _between_jobs(getattr(torch._C, _name)))


def why_wait(options: Options) -> str | None:
    """Why a graph is compiled by the call that captures it, though the options ask for the background."""
    if torch.are_deterministic_algorithms_enabled():
        return "eager and compiled code may round differently, and time decides which of them runs"
    if events.collecting():
        return "smelt.explain and smelt.record report what a call compiles"
    if not (config.suppress_errors and options.fallback):
        return "errors of the compiler are raised by the call"
    if options.tune:
        return "alternatives are timed, and the program would run beside them"
    return None


def wait() -> None:
    """Until every graph is compiled. Graphs that nobody can call any more are skipped."""
    _worker.wait()


class BackgroundGraph:
    """A graph that is compiled in the background, and for dynamic shapes each of its versions."""

    def __init__(self, traced: Traced, compile_graph: Callable[[Traced], Flat]) -> None:
        self._eager = _in_eager(traced)  # first: it rewrites nodes that have no form as code
        self._traced, self._compile = traced, compile_graph
        self._ambient, self._settings = Ambient.now(), process_settings()
        self._run: Flat | None = None
        self._sized: Sized | None = None
        self._job = self._submit(())

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        if self._run is None:
            if self._job.is_done or self._job.is_lost:  # nothing came of it: settings changed, or a process was forked
                self._job = self._submit(())
        elif self._sized is None or self._sized.is_ready(*inputs):
            return self._run(*inputs)
        elif self._job.is_done or self._job.is_lost:
            self._job = self._submit(inputs)
        return self._eager(*inputs)

    def _submit(self, inputs: tuple[Any, ...]) -> Job:
        this = weakref.ref(self)

        def work() -> None:
            graph = this()
            if graph is not None:  # else the program has dropped it
                with _current_device(device), torch._C._InferenceMode(False), without_default_devices(), restored():
                    graph._ambient.impose()
                    _native.preserving_state(graph._make, inputs)

        device = torch.cuda.current_device() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
        return _worker.submit(work)

    def _make(self, inputs: tuple[Any, ...]) -> None:
        """On the thread that compiles: the code of the graph, or the version for such inputs."""
        if process_settings() != self._settings:
            return
        try:
            run = self._run or self._compile(self._traced)
            versions = sized(run)
            if inputs and versions is not None:
                versions.prepare(*inputs)
        except Exception as error:
            self._sized, self._run = None, self._eager
            if not _worker.is_ending:
                reason = f"{type(error).__name__}: {error}"
                warn(f"SM020: a graph could not be compiled and runs in eager, operator by operator. {reason}")
            return
        if process_settings() == self._settings:
            self._sized, self._run = versions, run


def _in_eager(traced: Traced) -> Flat:
    forward = traced.plainly()
    (output,) = traced.graph.output_node().args
    return forward if isinstance(output, tuple) else returning_tuple(forward)


def _current_device(device: int | None) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext() if device is None else torch.cuda.device(device)
