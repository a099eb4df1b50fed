"""Whether any program is slower compiled than eager, once it has been called a few times.

    python -m benchmarks.never_slower [NAME ...] [--rounds 40] [--off] [--table]

Each program of `benchmarks/never_slower_programs.py` runs in a process of its own, on one thread, without any cache. It
is called five times; then compiled and eager calls alternate, in random order, and the medians are compared: 1.00 is
eager's speed. `--off` is without `smelt.config.leave_slow_code`. Programs of libraries that are not installed are
skipped, with a line that says so.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch

import smelt
from benchmarks.never_slower_programs import PROGRAMS

CALLS_BEFORE = 5


def _timed(function: Callable[..., Any], args: tuple[Any, ...]) -> float:
    began = time.perf_counter()
    function(*args)
    return time.perf_counter() - began


def measure(name: str, rounds: int, leaves: bool) -> dict[str, Any]:
    """The medians of one program, in this process."""
    try:
        function, args = PROGRAMS[name]()
    except ImportError as error:
        return {"program": name, "absent": str(error).splitlines()[0]}
    torch.set_num_threads(1)
    smelt.config.leave_slow_code = leaves
    function(*args)  # what a library does once, for both
    compiled = smelt.compile(function)
    first = _timed(compiled, args)
    for _ in range(CALLS_BEFORE - 1):
        compiled(*args)
    calls = max(1, min(100, int(5e-3 / max(_timed(function, args), 1e-6))))  # in a row, as programs make them
    seconds: dict[str, list[float]] = {"compiled": [], "eager": []}
    for _ in range(rounds):
        for way in random.sample(sorted(seconds), 2):
            called = compiled if way == "compiled" else function
            seconds[way] += [_timed(called, args) for _ in range(calls)]
    medians = {way: statistics.median(found) for way, found in seconds.items()}
    counted = {key: smelt.counters[key] for key in ("graphs", "graph_breaks", "functions_left_to_eager")}
    return {"program": name, "first": first, **medians, **counted}


def _in_own_process(name: str, options: list[str]) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.never_slower", "--one", name, *options]
    environment = {**os.environ, "SMELT_CACHE": "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900, check=False)
    for line in reversed(done.stdout.splitlines()):
        if line.startswith('{"program"'):
            return json.loads(line)  # type: ignore[no-any-return]
    return {"program": name, "absent": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]}


def _row(found: dict[str, Any], is_table: bool) -> str:
    if "absent" in found:
        return f"{found['program']:26} skipped: {found['absent']}"
    cells = [
        f"{found['eager'] * 1e3:.3g} ms",
        f"{found['compiled'] * 1e3:.3g} ms",
        f"{found['eager'] / found['compiled']:.2f}",
        str(found["graph_breaks"]),
        "eager" if found["functions_left_to_eager"] else "compiled",
    ]
    if is_table:
        return f"| {found['program'].replace('_', ' ')} | " + " | ".join(cells) + " |"
    return f"{found['program']:26} " + " ".join(f"{cell:>10}" for cell in cells)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="programs, or the beginnings of their names")
    parser.add_argument("--rounds", type=int, default=40, help="how often each way is timed")
    parser.add_argument("--off", action="store_true", help="with smelt.config.leave_slow_code = False")
    parser.add_argument("--table", action="store_true", help="print the table of docs/benchmarks.md")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        warnings.simplefilter("ignore")
        try:
            print(json.dumps(measure(given.one, given.rounds, not given.off)), flush=True)
        except Exception:
            traceback.print_exc()
            return 1
        return 0
    options = ["--rounds", str(given.rounds), *(["--off"] if given.off else [])]
    titles = ("eager", "compiled", "speed", "breaks", "runs")
    print(f"{'':26} " + " ".join(f"{title:>10}" for title in titles))
    for name in PROGRAMS:
        if not given.names or any(name.startswith(start) for start in given.names):
            print(_row(_in_own_process(name, options), given.table), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
