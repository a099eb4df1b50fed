"""What the compiler reports: counters, log channels, and records that `smelt.explain` collects.

A stage calls `emit("guards", text)` or `count("graphs")` and never prints by itself. `SMELT_LOGS=graph,kernels` sends
the named channels to stderr; `collect()` gathers every event of the calling thread into a list, whatever is printed.
Threads that work for it belong to it: a pool is given `carrying`, and what autograd's own threads emit goes to whoever
collects while they work.
"""

import contextlib
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

from smelt.base import terminal
from smelt.base.errors import SmeltError, warn
from smelt.base.fast_dataclass import dataclass

Given = TypeVar("Given")
Found = TypeVar("Found")

CHANNELS: dict[str, str] = {
    "graph": "each captured torch-level graph",
    "guards": "the guards of each compiled version",
    "recompiles": "which guard failed and caused a recompile",
    "breaks": "where a graph ended early, and why",
    "joint": "the joint forward and backward graph",
    "forward": "the forward graph after the split",
    "backward": "the backward graph after the split",
    "fusion": "which operations were fused and why others were not",
    "kernels": "each kernel of each program, as loops over buffers",
    "loops": "the scheduled loops of each kernel, between the kernel and the machine code",
    "llvm": "the LLVM IR handed to the code generator",
    "asm": "the machine code, as assembly",
    "compiled_autograd": "the backward as the autograd engine runs it",
    "cuda_graphs": "which programs for GPUs are launched kernel by kernel, and why",
    "sizes": "guards of code for dynamic shapes; why a graph cannot be compiled symbolically",
    "cache": "hits, misses and writes of the disk cache, and why something is not stored",
    "tuning": "the alternatives that `mode=\"max-speed\"` timed, with their times",
    "lazy": "each run of lazy tensors with its reason; operators that ran immediately",
    "fallback": "operators on a chip's tensors that the host computes: the reason and the copied bytes",
    "timing": "how long each stage of each compilation took",
}

COUNTERS: dict[str, str] = {
    "graphs": "graphs captured and compiled, each version of a function counted",
    "graph_breaks": "places where a graph ended early",
    "recompiles": "versions compiled because guards of all earlier ones failed",
    "calls": "calls of compiled functions and modules",
    "calls_under_modes": "calls run eagerly: a PyTorch mode or function transform was active",
    "calls_left_to_eager": "calls run eagerly: to time them against compiled ones, or because those were slower",
    "functions_left_to_eager": "compiled functions that run in eager, because eager was measured to be faster",
    "frames_skipped": "functions that run in Python from now on: too many versions, or they could not be compiled",
    "joint_graphs": "graphs traced forward and backward",
    "eager_graphs": "graphs that fall back to eager, because they could not be traced",
    "backwards": "backwards compiled, when gradients first arrived",
    "saved_bytes": "bytes that graphs save for their backwards",
    "kernels": "kernels of all programs",
    "kernels_built": "kernels that machine code was generated for",
    "shared_functions_loaded": "functions that kernels share, read from the disk cache",
    "sizes_traced": "versions of graphs compiled symbolically, for dynamic shapes",
    "sizes_bound": "combinations of sizes that a symbolic version was bound to",
    "sizes_compiled": "combinations of sizes that were specialized: compiled for those sizes alone",
    "sizes_refused": "graphs compiled anew for each combination of sizes",
    "compiled_autograd_captures": "backwards captured as the autograd engine runs them",
    "engine_backwards": "backwards that fell back from compiled autograd to the autograd engine",
    "captures_loaded": "functions whose capture was loaded from the disk cache",
    "cache_hits": "graphs and backwards found in the disk cache",
    "cache_misses": "those not found there",
    "cache_writes": "those written there",
    "cache_unstorable": "those that cannot be stored there",
    "lazy_backwards": "backwards of lazy tensors that repeated an earlier one, recorded without PyTorch's engine",
    "lazy_repeats": "runs of lazy tensors that repeated an earlier one, and were launched without a look-up",
    "lazy_fallbacks": "operators on lazy tensors that ran immediately, because no shape rule describes their results",
    "chip_calls": "kinds of operator calls that kernels were compiled for, on chips",
    "chip_fallbacks": "operators on a chip's tensors that the host computed, because there is no kernel for them",
    "chip_launches": "launches on chips",
    "chip_matmuls": "matrix products that chips did by a method of their own",
    "chip_random_fills": "draws of random numbers that chips did by a method of their own",
    "chip_copies_in": "copies from the host to chips",
    "chip_copies_out": "copies from chips to the host",
    "tuned_graphs": "graphs whose alternatives were timed, for `mode=\"max-speed\"`",
}



class Counts(Counter[str]):
    """A Counter whose items are set as fast as a dict's: every call counts itself."""

    __setitem__ = dict.__setitem__
    __delitem__ = dict.__delitem__  # type: ignore[assignment]


counters: Counts = Counts()


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened: the channel it belongs to, its text, and the object it speaks of."""

    channel: str
    words: str | Callable[[], str]  # a function of nothing for a text that is costly, and the same whenever it is made
    subject: object = None

    @property
    def text(self) -> str:
        return self.words if isinstance(self.words, str) else self.words()


class FellBack(str):
    """Why the last graph falls back to eager."""


class _Sinks(threading.local):
    def __init__(self) -> None:
        self.lists: tuple[list[Event], ...] = ()
        self.inside = 0.0  # seconds of stages that ended inside the one that is timed now


_sinks = _Sinks()
_open: list[list[Event]] = []  # of all threads


def parse_channels(text: str) -> frozenset[str]:
    """`"graph,kernels"` → the set of names; an unknown name is an error that lists the known ones."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if names == ["all"]:
        return frozenset(CHANNELS)
    for name in names:
        if name not in CHANNELS:
            raise SmeltError("SM003", f"SMELT_LOGS has no channel {name!r}", hint="choose from " + ", ".join(CHANNELS))
    return frozenset(names)


def channels_at_start(text: str) -> frozenset[str]:
    """The channels that `SMELT_LOGS` names. `help` lists all channels. An unknown name prints a message: an import must
    not fail for it."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    known = [name for name in names if name in CHANNELS or name == "all"]
    unknown = [name for name in names if name not in known and name != "help"]
    if unknown:
        print(f"smelt: SMELT_LOGS has no channel {', '.join(map(repr, unknown))}", file=sys.stderr)
    if unknown or "help" in names:
        width = max(map(len, CHANNELS))
        lines = [f"  {name:{width}}  {words}" for name, words in {**CHANNELS, "all": "all of them"}.items()]
        print("smelt: the channels of SMELT_LOGS, several with commas between:", *lines, sep="\n", file=sys.stderr)
    return frozenset(CHANNELS) if "all" in known else frozenset(known)


_printed: frozenset[str] = channels_at_start(os.environ.get("SMELT_LOGS", ""))


def set_printed(text: str) -> None:
    """Choose the channels that go to stderr, as `SMELT_LOGS` does at start."""
    global _printed
    _printed = parse_channels(text)


def wanted(channel: str) -> bool:
    """Whether anybody will see an event of `channel`; ask before building a costly text."""
    return channel in _printed or bool(_open and _listening())


def collecting() -> bool:
    """Whether this thread is inside `collect()`, or works for one that is."""
    return bool(_open and _listening())


def _listening() -> Sequence[list[Event]]:
    """Who receives what this thread emits."""
    if _sinks.lists or torch._C._current_autograd_node() is None:
        return _sinks.lists
    return tuple(_open)  # one of autograd's threads, or a thread that collects nothing, in a backward


def emit(channel: str, words: str | Callable[[], str], subject: object = None) -> None:
    """Report an event to whoever collects on this thread, and to stderr if its channel is switched on."""
    if channel not in CHANNELS:
        raise KeyError(f"events.emit: no channel {channel!r}")
    event = Event(channel, words, subject)
    for sink in _listening() if _open else ():
        sink.append(event)
    if channel in _printed:
        mark = terminal.painted(f"[smelt {channel}]", "cyan", sys.stderr)
        print(f"{mark} {event.text}", file=sys.stderr, flush=True)


def count(name: str, amount: int = 1) -> None:
    """Add to one of `smelt.counters`."""
    counters[name] += amount


def fell_back(what: str, reason: str) -> None:
    """A graph, or what stands for one, falls back to eager: counted, logged, and said once at the user's line."""
    count("eager_graphs")
    emit("graph", f"{what} falls back to eager: {reason}", FellBack(reason))
    warn(f"SM020: {what} falls back to eager, operator by operator: {reason}")


@contextlib.contextmanager
def collect() -> Iterator[list[Event]]:
    """Gather every event this thread emits inside the block."""
    events: list[Event] = []
    try:
        _open.append(events)
        _sinks.lists = (*_sinks.lists, events)
        yield events
    finally:
        _sinks.lists = tuple(sink for sink in _sinks.lists if sink is not events)  # by identity: empty ones are equal
        _open[:] = [sink for sink in _open if sink is not events]


def carrying(function: Callable[[Given], Found]) -> Callable[[Given], Found]:
    """The same function for threads that work for this one: what they emit goes to who collects here."""
    lists = _sinks.lists

    def call(argument: Given) -> Found:
        before, _sinks.lists = _sinks.lists, lists
        try:
            return function(argument)
        finally:
            _sinks.lists = before

    return call


@dataclass(frozen=True, slots=True)
class Timing:
    """How long one stage of one compilation took; `own` is the part of it that no stage inside it took."""

    stage: str
    seconds: float
    own: float


@contextlib.contextmanager
def timed(stage: str, what: str = "") -> Iterator[None]:
    """Report how long the block took, on the "timing" channel, and to who watches it; `what` is compiled in it."""
    is_watched = terminal.is_watched()
    if not is_watched and not wanted("timing"):
        yield
        return
    inside, _sinks.inside = _sinks.inside, 0.0
    is_first = is_watched and terminal.begin(stage, what)
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds = time.perf_counter() - start
        own, _sinks.inside = seconds - _sinks.inside, inside + seconds
        if is_watched:
            terminal.end(is_first)
    if wanted("timing"):
        emit("timing", f"{stage}: {seconds * 1000:.1f} ms", Timing(stage, seconds, own))
