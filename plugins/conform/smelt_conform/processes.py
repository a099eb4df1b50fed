"""Runs checks in a separate process: one that hangs or ends the process fails alone, and a new process continues.

conform("sim")  →  Report: an Outcome for each check, a Speed for each measurement
"""

import gc
import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch

from smelt.base.errors import SmeltError
from smelt.base.fast_dataclass import dataclass
from smelt.device import ChipLost
from smelt_conform.check import FAILED, NOT_RUN, Measurement, Outcome, Speed
from smelt_conform.levels import CHECKS, LEVELS
from smelt_conform.run_checks import COPY, bench_for, measure, run_check

START_SECONDS = 300.0  # limit for registering a chip
MAX_EARLY_ENDS = 6
"""The remaining checks are not run after this many processes ended early."""

_SPEEDS: dict[str, Measurement] = {COPY.name: COPY} | {speed.name: speed for level in LEVELS for speed in level.speeds}


@dataclass(frozen=True, slots=True)
class Report:
    """The results of a chip. `target` has fields of its `Target`."""

    chip: str
    target: dict[str, Any]
    outcomes: tuple[Outcome, ...]
    speeds: tuple[Speed, ...]


@dataclass(frozen=True, slots=True)
class _Job:
    name: str
    importing: str | None
    compile: Callable[..., Any]
    checks: tuple[str, ...]
    speeds: tuple[str, ...]


def conform(
    name: str,
    compile: Callable[..., Any],
    importing: str | None = None,
    checks: Sequence[str] = tuple(CHECKS),
    seconds: float = 120.0,
    with_speeds: bool = True,
    report: Callable[[Outcome], None] = lambda _: None,
) -> Report:
    """Run `checks` of the chip `name`, each within `seconds`. Call `report` with each outcome when it is known."""
    speeds = [COPY.name] if with_speeds else []
    levels = {check.partition(".")[0] for check in checks}
    speeds += [speed.name for level in LEVELS if with_speeds and level.name in levels for speed in level.speeds]
    left = [*checks, *speeds]
    outcomes: list[Outcome] = []
    measured: dict[str, Speed] = {}
    target: dict[str, Any] = {}
    ended_early = 0
    while left and ended_early < MAX_EARLY_ENDS:
        pending = tuple(name for name in left if name in CHECKS)
        job = _Job(name, importing, compile, pending, tuple(left[len(pending) :]))
        for item in _one_process(job, seconds):
            if isinstance(item, dict):
                target = item
                continue
            if isinstance(item, Outcome):
                outcomes.append(item)
                report(item)
                left.remove(item.check)
                ended_early += item.status == FAILED and item.reason.startswith(_ENDINGS)
            else:
                measured[item.name] = item
                left.remove(item.name)
    for check in (name for name in left if name in CHECKS):
        outcomes.append(Outcome(check, NOT_RUN, f"the chip was lost, or its process ended, {ended_early} times before"))
        report(outcomes[-1])
    return Report(name, target, tuple(outcomes), tuple(measured[name] for name in speeds if name in measured))


_NO_ANSWER, _ENDED = "no answer", "the process ended"
_ENDINGS = (_NO_ANSWER, _ENDED, ChipLost.__name__)


def _one_process(job: _Job, seconds: float) -> Any:
    """Yield outcomes and speeds. If the process ends early, the last one is the failure of what it was running."""
    method = "fork" if sys.platform == "linux" else "spawn"  # a fork has torch imported already
    context: Any = multiprocessing.get_context(method)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(theirs, job), daemon=True)
    process.start()
    theirs.close()
    current, limit, start = "", START_SECONDS, time.perf_counter()
    try:
        while True:
            if not ours.poll(limit):
                yield _ending(current, f"{_NO_ANSWER} within {limit:g} s", start)
                return
            try:
                kind, value = ours.recv()
            except EOFError:
                process.join(5)
                yield _ending(current, f"{_ENDED} ({_exit_text(process.exitcode)})", start)
                return
            if kind == "refused":
                raise SmeltError("SM070", value)
            if kind == "done":
                return
            if kind == "begin":
                current, limit, start = value, seconds, time.perf_counter()
            else:
                yield value
    finally:
        ours.close()
        process.kill()
        process.join()


def _ending(current: str, reason: str, start: float) -> Outcome | Speed:
    if not current:
        raise SmeltError("SM070", f"{reason} while the chip was registered")
    if current in _SPEEDS:
        return Speed(current, 0.0, 0, reason)
    return Outcome(current, FAILED, reason, time.perf_counter() - start)


def _exit_text(code: int | None) -> str:
    return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"


def _serve(connection: "Connection", job: _Job) -> None:
    """Run a job in the process of the chip and send its results."""
    torch.set_num_threads(1)  # the host computes little; its threads would slow the chip's
    try:
        bench = bench_for(job.name, job.importing, job.compile)
    except BaseException as error:
        connection.send(("refused", getattr(error, "message", "") or f"{type(error).__name__}: {error}"))
        return
    gc.freeze()  # skip imported modules, so that collecting after each check is fast
    target = bench.target
    names = ("name", "form", "triple", "warp_size", "vector_bits", "dtypes", "memory_bytes")
    fields = {name: getattr(target, name) for name in names} | {"dtypes": [*map(str, target.dtypes)]}
    connection.send(("target", fields))
    for name in job.checks:
        connection.send(("begin", name))
        connection.send(("outcome", run_check(name, CHECKS[name], bench)))
        if bench.device.lost is not None:  # the remaining checks need a new device, in a new process
            connection.send(("done", None))
            return
    for name in job.speeds:
        connection.send(("begin", name))
        connection.send(("speed", measure(_SPEEDS[name], bench)))
    connection.send(("done", None))
