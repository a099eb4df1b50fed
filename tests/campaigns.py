"""Many generated programs, run by worker processes: a crash or a hang is a failure with a number too.

    Campaign(module, examine, script, counts).main()   →   progress, a script for each failure, 1 if there was any

Programs are numbered; a campaign without `--start` begins at a number of its own and prints it, and every report says
how to go on from there. Workers run one per core unless `--jobs` says otherwise.
"""

import argparse
import json
import os
import queue
import random
import selectors
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

    def outcomes(self, start: int, count: int, jobs: int) -> Iterator[dict[str, Any]]:
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
                        for each in self._shift(seed, end - seed):
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

    def _shift(self, start: int, count: int) -> Iterator[dict[str, Any]]:
        """One worker's programs; ends early, with a failure, where it crashes or hangs."""
        command = [sys.executable, "-m", self.module, "--worker", "--start", str(start), "--count", str(count)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
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

    def _work(self, start: int, count: int) -> None:
        """The worker: a line before each program and one after it."""
        self.prepare()
        for seed in range(start, start + count):
            print(json.dumps({"seed": seed}), flush=True)
            print(json.dumps({"seed": seed} | self.examine(seed)), flush=True)

    def main(self) -> int:
        parser = argparse.ArgumentParser(description=self.module)
        parser.add_argument("--count", type=int, default=self.count)
        somewhere = random.SystemRandom().randrange(2**40)
        parser.add_argument("--start", type=int, default=somewhere, help="the first number")
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        parser.add_argument("--jobs", type=int, default=cores, help="so many programs at a time; as many as cores")
        parser.add_argument("--keep", type=Path, help="a folder for the scripts of failures")
        parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
        given = parser.parse_args()
        if given.worker:
            self._work(given.start, given.count)
            return 0
        totals: Counter[str] = Counter()
        began, first, later = time.monotonic(), given.start, set[int]()
        print(f"{given.count} programs from {given.start}, {given.jobs} at a time", flush=True)
        for done, found in enumerate(self.outcomes(given.start, given.count, given.jobs), 1):
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
            if done % 1000 == 0 or done == given.count:
                counted = ", ".join(f"{totals[name]} {name}" for name in self.counts)
                went = f"{done} programs ({counted}) in {time.monotonic() - began:.0f} s: {totals['failures']} failed"
                print(f"{went}; go on with --start {first} --count {given.start + given.count - first}", flush=True)
        return 1 if totals["failures"] else 0


def _commented(text: str) -> str:
    """The script, with what stands before it as comments."""
    head, _, script = text.partition("\n\n")
    return "".join(f"# {line}\n" for line in head.splitlines()) + script
