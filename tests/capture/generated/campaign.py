"""Many generated programs against plain Python: `make test-programs`, or

    python -m tests.capture.generated.campaign --count 50000 --start 7 --jobs 2 --keep failures/

Programs are numbered; a campaign without `--start` begins at a number of its own and prints it, and every report says
how to go on from there. Worker processes run them, one per core unless `--jobs` says otherwise, so that a crash or a
hang is a failure with a number too. For each failure a stand-alone script is printed, made small, and with `--keep`
also saved.
"""

import argparse
import json
import os
import queue
import random
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from smelt.base.options import config
from tests.capture.generated.grammar import Program, program_of
from tests.capture.generated.repro import repro
from tests.capture.generated.running import verdict
from tests.capture.generated.shrink import shrunk

_WORKER = (sys.executable, "-m", "tests.capture.generated.campaign", "--worker")
_PATIENCE = 300
"""Seconds without a word from the worker after which its program is taken to hang."""
_SHIFT = 500
"""Programs after which a new worker takes over, so that none grows old."""


def failure_of(program: Program) -> str | None:
    """What is wrong with `program`, in words; None if nothing is."""
    try:
        return verdict(program).failure
    except Exception as error:
        return f"{type(error).__name__}: {error}"


class _TooLong(BaseException):
    """No `Exception`: the program may catch those."""


def _in_time(program: Program) -> str | None:
    """`failure_of` a program that may run for ever: without its `break`, say."""

    def stop(*_: object) -> None:
        raise _TooLong

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(_PATIENCE // 10)
    try:
        return failure_of(program)
    except _TooLong:
        return None
    finally:
        signal.alarm(0)


def report(program: Program, failure: str, name: str) -> str:
    """A failure with its smallest script."""
    kind = failure.startswith("call ")  # a difference; else smelt raised an error of its own
    deadline = time.monotonic() + _PATIENCE / 2

    def fails(smaller: Program) -> bool:
        found = _in_time(smaller) if time.monotonic() < deadline else None
        return found is not None and found.startswith("call ") == kind

    small = shrunk(program, fails)
    return f"{name}: {failure}\n\n{repro(small)}"


def work(start: int, count: int) -> None:
    """The worker: a line before each program and one after it."""
    config.suppress_errors = False
    torch.set_num_threads(1)  # the other cores have workers of their own
    for seed in range(start, start + count):
        print(json.dumps({"seed": seed}), flush=True)
        program = program_of(seed)
        found: dict[str, Any] = {"seed": seed, "calls": len(program.calls)}
        try:
            outcome = verdict(program)
            found |= {"graphs": outcome.graphs, "breaks": outcome.breaks, "recompiles": outcome.recompiles}
            failure = outcome.failure
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
        found["failure"] = failure and report(program, failure, f"program {seed}")
        print(json.dumps(found), flush=True)


def outcomes(start: int, count: int, jobs: int) -> Iterator[dict[str, Any]]:
    """What `jobs` workers at a time say of the programs, as they say it."""
    length = max(1, min(_SHIFT, -(-count // jobs)))
    shifts: queue.SimpleQueue[int] = queue.SimpleQueue()
    for first in range(start, start + count, length):
        shifts.put(first)
    found: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def employ() -> None:
        try:
            while not shifts.empty():
                seed = shifts.get_nowait()
                end = min(seed + length, start + count)
                while seed < end:
                    for each in _shift(seed, end - seed):
                        found.put(each)
                        seed = each["seed"] + 1
        except queue.Empty:  # another took the last
            pass
        except BaseException as error:
            found.put(error)

    for _ in range(jobs):
        threading.Thread(target=employ, daemon=True).start()
    for _ in range(count):
        each = found.get()
        if isinstance(each, BaseException):
            raise each
        yield each


def _shift(start: int, count: int) -> Iterator[dict[str, Any]]:
    """One worker's programs; ends early, with a failure, where it crashes or hangs."""
    command = [*_WORKER, "--start", str(start), "--count", str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        waiting = selectors.DefaultSelector()
        waiting.register(worker.stdout, selectors.EVENT_READ)
        seed, done = start, 0
        while done < count:
            line = worker.stdout.readline() if waiting.select(_PATIENCE) else ""
            if not line:
                worker.kill()
                how = "hangs" if worker.poll() is None else f"ends the process with status {worker.wait()}"
                yield {"seed": seed, "failure": f"program {seed} {how}:\n\n{repro(program_of(seed))}"}
                return
            found = json.loads(line)
            seed = found["seed"]
            if "failure" in found:
                done += 1
                yield found


def main() -> int:
    parser = argparse.ArgumentParser(description="generated programs against plain Python")
    parser.add_argument("--count", type=int, default=50_000)
    parser.add_argument("--start", type=int, default=random.SystemRandom().randrange(2**40), help="the first number")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parser.add_argument("--jobs", type=int, default=cores, help="so many programs at a time; one per core by itself")
    parser.add_argument("--keep", type=Path, help="a folder for the scripts of failures")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work(given.start, given.count)
        return 0
    totals: Counter[str] = Counter()
    began, first, later = time.monotonic(), given.start, set[int]()
    print(f"{given.count} programs from {given.start}, {given.jobs} at a time", flush=True)
    for done, found in enumerate(outcomes(given.start, given.count, given.jobs), 1):
        later.add(found["seed"])
        while first in later:  # all before it have run
            later.remove(first)
            first += 1
        totals.update({name: found.get(name, 0) for name in ("calls", "graphs", "breaks", "recompiles")})
        if found["failure"]:
            totals["failures"] += 1
            print(found["failure"], flush=True)
            if given.keep:
                given.keep.mkdir(parents=True, exist_ok=True)
                (given.keep / f"program_{found['seed']}.py").write_text(_commented(found["failure"]))
        if done % 1000 == 0 or done == given.count:
            counted = ", ".join(f"{totals[name]} {name}" for name in ("calls", "graphs", "breaks", "recompiles"))
            went = f"{done} programs ({counted}) in {time.monotonic() - began:.0f} s: {totals['failures']} failed"
            rest = given.start + given.count - first
            print(f"{went}; go on with --start {first} --count {rest}", flush=True)
    return 1 if totals["failures"] else 0


def _commented(text: str) -> str:
    """The script, with what stands before it as comments."""
    head, _, script = text.partition("\n\n")
    return "".join(f"# {line}\n" for line in head.splitlines()) + script


if __name__ == "__main__":
    sys.exit(main())
