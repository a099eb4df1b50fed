"""Whether compiling a function pays: compiled calls are timed in turn with eager ones, and the faster way is kept.

    compiled, eager, compiled, eager, …   →   kept, or left to eager: "3.1 ms compiled, 1.2 ms eager, 54 graph breaks"

A call that is one graph from start to end is never timed. One that runs in pieces (graph breaks, functions that are not
captured) is: each piece costs guards, a resumed frame and what the frame hook does to the calls in between. A trial
belongs to a function that `smelt.compile` returned, one for each grad mode. Every call runs once, one way or the other.
"""

import time
from collections.abc import Callable
from typing import Any

import torch

from smelt import _native
from smelt.base.errors import warn
from smelt.base.events import count, counters, emit
from smelt.base.options import config

MIN_PAIRS, MAX_PAIRS = 2, 6  # of a compiled and an eager call: how many decide where the answer is clear, or close
CLEARLY = 1.5  # times as long: what two pairs decide, on a machine that others use as well
MARGIN = 1.05  # times as long: what six pairs decide
_LOOK_EVERY, _OTHER_WORK, _MAX_TRIALS = 64, 4.0, 8  # calls; times as long or as short: other arguments; restarts

_COMPILED, _EAGER = 0, 1
_UNDECIDED, _KEPT, _LEFT = range(3)


class Trial:
    """Decides between compiled and eager calls of one function, in one grad mode. `reason` says why it is left."""

    __slots__ = (
        "_decision",
        "_enter",
        "_last",
        "_periods",
        "_restarts",
        "_running",
        "_seconds",
        "_spent",
        "calls_to_leave",
        "function",
        "name",
        "native",
        "reason",
        "turn",
    )

    def __init__(
        self, function: Callable[..., Any], native: "_native.Region", compile_seconds: Callable[[], float]
    ) -> None:
        self.function, self.native, self._enter = function, native, native.enter
        self._spent = compile_seconds
        self.name = getattr(function, "__qualname__", type(function).__qualname__)
        self._restarts = 0
        self._running = False
        self.begin()

    def begin(self) -> None:
        """Forget what was measured."""
        self._decision, self.reason = _UNDECIDED, ""
        self.calls_to_leave = 0  # so many calls are eager's before one is timed again
        self.turn = _COMPILED
        self._seconds: tuple[list[float], list[float]] = [], []
        self._periods: tuple[list[float], list[float]] = [], []
        self._last: tuple[int, float] | None = None  # which way the last call went, and when it began

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function by the way that is kept, or by the one whose turn it is."""
        if not config.leave_slow_code or self._running or _native.active() is not None or _has_other_ranks():
            return self._run_compiled(args, kwargs)
        if self._decision == _UNDECIDED:
            return self._timed_call(args, kwargs)
        return (self._look_again if self._decision == _LEFT else self._run_compiled)(args, kwargs)

    def _run_compiled(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._enter(self.function, args, kwargs)

    def _timed_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        way, pieces, spent = self.turn, self.native.pieces, self._spent()
        self._running = True
        try:
            began = _now()
            if way == _COMPILED:
                result = self._run_compiled(args, kwargs)
            else:
                counters["calls_left_to_eager"] += 1
                result = _native.suspended(self.function, *args, **kwargs)
            seconds = _now() - began - (self._spent() - spent)
        except BaseException:
            self._last = None
            raise
        finally:
            self._running = False
        if way == _COMPILED and self.native.pieces == pieces + 1:
            self._last, self.native.scattered = None, False  # one graph: nothing to decide
            return result
        if self._last is not None and spent == self._spent():
            self._periods[self._last[0]].append(began - self._last[1])
        self._last = (way, began) if spent == self._spent() else None
        self._seconds[way].append(seconds)
        self.turn = _EAGER if way == _COMPILED else _COMPILED
        self._decide()
        return result

    def _decide(self) -> None:
        """Two pairs suffice where one way takes far longer. The shortest call of each counts: what else the machine
        does only adds to it."""
        if min(map(len, self._seconds)) < MIN_PAIRS:
            return
        compiled, eager = map(min, self._seconds)
        is_last = min(map(len, self._seconds)) >= MAX_PAIRS
        if compiled > eager * (MARGIN if is_last else CLEARLY) and not self._backward_pays():
            self._leave(compiled, eager)
        elif is_last or compiled * CLEARLY < eager:
            self._decision = _KEPT

    def _backward_pays(self) -> bool:
        """Whether gradients make up for it: then the time from one call to the next is shorter for compiled ones."""
        compiled, eager = self._periods
        return torch.is_grad_enabled() and bool(compiled and eager) and min(compiled) < min(eager)

    def _leave(self, compiled: float, eager: float) -> None:
        self._decision, self.calls_to_leave = _LEFT, _LOOK_EVERY
        self.reason = (
            f"{self.name} is left to eager: a compiled call took {_text(compiled)}, an eager one {_text(eager)}; it "
            "runs in pieces, between graph breaks or calls that are not captured"
        )
        count("functions_left_to_eager")
        emit("breaks", self.reason, self)
        if self._restarts == 0:
            warn(
                f"SM015: {self.reason}. Hint: smelt.explain lists its graph breaks; smelt.config.leave_slow_code = "
                "False keeps it compiled."
            )

    def _look_again(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Now and then: whether calls take so much longer or shorter that they have other work, which is tried anew."""
        counters["calls_left_to_eager"] += 1
        self.calls_to_leave = _LOOK_EVERY
        began = _now()
        result = _native.suspended(self.function, *args, **kwargs)
        seconds, before = _now() - began, min(self._seconds[_EAGER])
        if self._restarts < _MAX_TRIALS and not before / _OTHER_WORK < seconds < before * _OTHER_WORK:
            self._restarts += 1
            self.begin()
        return result


def _has_other_ranks() -> bool:
    """Whether other processes take part: all of them must go the same way, and each would measure for itself."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _now() -> float:
    """Seconds, once all that was asked of a GPU is done."""
    if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
    return time.perf_counter()


def _text(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
