"""Many generated programs, run by worker processes: a crash or a hang is a failure with a number too.

    Campaign(module, examine, script, counts).main()   →   progress, a script for each failure, 1 if there was any

Programs are numbered; a campaign without `--start` begins at a number of its own and prints it, and every report says
how to go on from there. Workers run one per core unless `--jobs` says otherwise. With `--seconds` it ends after that
time, and those with `devices` run on a GPU or by its kernels: `--device cuda`, `--target simt-host` (`targets`).
"""

import argparse
import contextlib
import json
import math
import os
import queue
import random
import selectors
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import targets

PATIENCE = 300
"""Seconds without a word from the worker after which its program is taken to hang."""
_SHIFT = 500
"""Programs after which a new worker takes over, so that none grows old."""


@dataclass(frozen=True)
class Campaign:
    """Programs of one kind. `module`, run by `python -m`, must end in `sys.exit(campaign.main())`."""

    module: str
    examine: Callable[[int], dict[str, Any]]
    """What became of a program: its counts, and `failure`, None or the text that is printed and kept."""
    script: Callable[[int], str]
    """The program as a script of its own, for one that ends its process."""
    counts: tuple[str, ...]
    prepare: Callable[[], None] = lambda: None
    count: int = 50_000
    devices: bool = False

    def outcomes(
        self, start: int, count: int, jobs: int, options: Sequence[str] = (), seconds: float = math.inf
    ) -> Iterator[dict[str, Any]]:
        """What `jobs` workers at a time say of the programs, as they say it, for so many seconds."""
        end = time.monotonic() + seconds
        running: set[subprocess.Popen[str]] = set()
        over = threading.Event()
        length = max(1, min(_SHIFT, -(-count // jobs)))
        shifts: queue.SimpleQueue[int] = queue.SimpleQueue()
        for first in range(start, start + count, length):
            shifts.put(first)
        found: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def employ() -> None:
            try:
                while not shifts.empty() and not over.is_set():
                    seed = shifts.get_nowait()
                    last = min(seed + length, start + count)
                    while seed < last and not over.is_set():
                        for each in self._shift(seed, last - seed, options, running):
                            found.put(each)
                            seed = each["seed"] + 1
            except queue.Empty:  # another took the last
                pass
            except BaseException as error:
                found.put(error)

        for _ in range(jobs):
            threading.Thread(target=employ, daemon=True).start()
        for _ in range(count):
            try:
                each = found.get(timeout=None if end == math.inf else max(end - time.monotonic(), 0))
            except queue.Empty:
                break
            if isinstance(each, BaseException):
                raise each
            yield each
        over.set()
        for worker in list(running):
            worker.kill()

    def _shift(
        self, start: int, count: int, options: Sequence[str], running: set["subprocess.Popen[str]"]
    ) -> Iterator[dict[str, Any]]:
        """One worker's programs; ends early, with a failure, where it crashes or hangs."""
        command = [sys.executable, "-m", self.module, "--worker", "--start", str(start), "--count", str(count)]
        started = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)
        with started as worker, _among(running, worker):
            assert worker.stdout is not None
            waiting = selectors.DefaultSelector()
            waiting.register(worker.stdout, selectors.EVENT_READ)
            seed, done = start, 0
            while done < count:
                answers = bool(waiting.select(PATIENCE))
                line = worker.stdout.readline() if answers else ""
                if not line:
                    if not answers:
                        worker.kill()
                    how = f"ends the process with status {worker.wait()}" if answers else "hangs"
                    yield {"seed": seed, "failure": f"program {seed} {how}:\n\n{self.script(seed)}"}
                    return
                found = json.loads(line)
                seed = found["seed"]
                if "failure" in found:
                    done += 1
                    yield found
                    if found.get("ended"):  # nothing more runs in that process
                        return

    def _work(self, start: int, count: int) -> None:
        """The worker: a line before each program and one after it."""
        self.prepare()
        for seed in range(start, start + count):
            print(json.dumps({"seed": seed}), flush=True)
            found = self.examine(seed)
            print(json.dumps({"seed": seed} | found), flush=True)
            if found.get("ended"):
                return

    def main(self) -> int:
        parser = argparse.ArgumentParser(description=self.module)
        parser.add_argument("--count", type=int, default=self.count)
        somewhere = random.SystemRandom().randrange(2**40)
        parser.add_argument("--start", type=int, default=somewhere, help="the first number")
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        parser.add_argument("--jobs", type=int, default=cores, help="so many programs at a time; as many as cores")
        parser.add_argument("--keep", type=Path, help="a folder for the scripts of failures")
        parser.add_argument("--seconds", type=float, default=math.inf, help="end after so long")
        parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
        if self.devices:
            targets.add_options(parser)
        given = parser.parse_args()
        options: list[str] = []
        if self.devices:
            options = [f"--device={given.device}", f"--target={given.target}", f"--jobs={given.jobs}"]
        if given.worker:
            if self.devices:
                targets.use(given.device, given.target, given.jobs)
            self._work(given.start, given.count)
            return 0
        totals: Counter[str] = Counter()
        began, first, later, done = time.monotonic(), given.start, set[int](), 0

        def progress() -> None:
            counted = ", ".join(f"{totals[name]} {name}" for name in self.counts)
            went = f"{done} programs ({counted}) in {time.monotonic() - began:.0f} s: {totals['failures']} failed"
            print(f"{went}; go on with --start {first} --count {given.start + given.count - first}", flush=True)

        print(f"{given.count} programs from {given.start}, {given.jobs} at a time", flush=True)
        for found in self.outcomes(given.start, given.count, given.jobs, options, given.seconds):
            done += 1
            later.add(found["seed"])
            while first in later:  # all before it have run
                later.remove(first)
                first += 1
            totals.update({name: found.get(name, 0) for name in self.counts})
            if found["failure"]:
                totals["failures"] += 1
                print(found["failure"], flush=True)
                if given.keep:
                    given.keep.mkdir(parents=True, exist_ok=True)
                    (given.keep / f"program_{found['seed']}.py").write_text(_commented(found["failure"]))
            if done % 1000 == 0 and done < given.count:
                progress()
        progress()
        return 1 if totals["failures"] else 0


@contextlib.contextmanager
def _among(running: "set[subprocess.Popen[str]]", worker: "subprocess.Popen[str]") -> Iterator[None]:
    running.add(worker)
    try:
        yield
    finally:
        running.discard(worker)


def _commented(text: str) -> str:
    """The script, with what stands before it as comments."""
    head, _, script = text.partition("\n\n")
    return "".join(f"# {line}\n" for line in head.splitlines()) + script
