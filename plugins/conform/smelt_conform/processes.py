"""Checks in a process of their own: one that hangs or ends the process fails alone, and a new process goes on after it.

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

START_SECONDS = 300.0  # until a chip is registered
MOST_PROCESSES = 6
"""After so many ended early the rest is not run: the chip does not answer at all."""

_SPEEDS: dict[str, Measurement] = {COPY.name: COPY} | {each.name: each for level in LEVELS for each in level.speeds}


@dataclass(frozen=True, slots=True)
class Report:
    """What was found of a chip. `target`: what it says of itself."""

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
    """Run `checks` of the chip `name`, each within `seconds`. `report` is told of each outcome as it comes."""
    speeds = [COPY.name] if with_speeds else []
    levels = {check.partition(".")[0] for check in checks}
    speeds += [each.name for level in LEVELS if with_speeds and level.name in levels for each in level.speeds]
    left = [*checks, *speeds]
    outcomes: list[Outcome] = []
    found: dict[str, Speed] = {}
    target: dict[str, Any] = {}
    ended_early = 0
    while left and ended_early < MOST_PROCESSES:
        pending = tuple(each for each in left if each in CHECKS)
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
                found[item.name] = item
                left.remove(item.name)
    for check in (each for each in left if each in CHECKS):
        outcomes.append(Outcome(check, NOT_RUN, f"the chip was lost, or its process ended, {ended_early} times before"))
        report(outcomes[-1])
    return Report(name, target, tuple(outcomes), tuple(found[each] for each in speeds if each in found))


_NO_ANSWER, _ENDED = "no answer", "the process ended"
_ENDINGS = (_NO_ANSWER, _ENDED, ChipLost.__name__)


def _one_process(job: _Job, seconds: float) -> Any:
    """Outcomes and speeds, until the process is done or has ended early: then the last is what it was at."""
    how = "fork" if sys.platform == "linux" else "spawn"  # a fork has torch already
    context: Any = multiprocessing.get_context(how)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(theirs, job), daemon=True)
    process.start()
    theirs.close()
    at, limit, start = "", START_SECONDS, time.perf_counter()
    try:
        while True:
            if not ours.poll(limit):
                yield _ending(at, f"{_NO_ANSWER} within {limit:g} s", start)
                return
            try:
                kind, value = ours.recv()
            except EOFError:
                process.join(5)
                yield _ending(at, f"{_ENDED} ({_how(process.exitcode)})", start)
                return
            if kind == "refused":
                raise SmeltError("SM070", value)
            if kind == "done":
                return
            if kind == "begin":
                at, limit, start = value, seconds, time.perf_counter()
            else:
                yield value
    finally:
        ours.close()
        process.kill()
        process.join()


def _ending(at: str, reason: str, start: float) -> Outcome | Speed:
    if not at:
        raise SmeltError("SM070", f"{reason} while the chip was registered")
    if at in _SPEEDS:
        return Speed(at, 0.0, 0, reason)
    return Outcome(at, FAILED, reason, time.perf_counter() - start)


def _how(code: int | None) -> str:
    return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"


def _serve(connection: "Connection", job: _Job) -> None:
    """In the process of the chip."""
    torch.set_num_threads(1)  # the host's part is small, and its threads would be in the way
    try:
        bench = bench_for(job.name, job.importing, job.compile)
    except BaseException as error:
        connection.send(("refused", getattr(error, "message", "") or f"{type(error).__name__}: {error}"))
        return
    gc.freeze()  # what was imported stays: collecting after each check is quick
    told = bench.target
    names = ("name", "form", "triple", "warp_size", "vector_bits", "dtypes", "memory_bytes")
    connection.send(("target", {name: getattr(told, name) for name in names} | {"dtypes": [*map(str, told.dtypes)]}))
    for name in job.checks:
        connection.send(("begin", name))
        connection.send(("outcome", run_check(name, CHECKS[name], bench)))
        if bench.device.lost is not None:  # a new process has a new device for the rest
            connection.send(("done", None))
            return
    for name in job.speeds:
        connection.send(("begin", name))
        connection.send(("speed", measure(_SPEEDS[name], bench)))
    connection.send(("done", None))
