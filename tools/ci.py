"""Runs everything that a change must pass, in shards: `.ci/run`, or

    python tools/ci.py [NAME ...] [--lanes 2]

As many shards run side by side as there are lanes, each in one process: tests are collected once, and no core waits for
the last test of a shard. Each shard writes a log, build/ci/NAME.log, which is printed if it fails. The end lists the
shards, their seconds, and what they skipped and why. The exit code is 1 if a shard failed.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOGS = ROOT / "build" / "ci"
SKIPPED = "tests left out"  # the title of the list that a test run ends with (tests/skips.py)

# Folders of tests that share a process, longest first. REST has all others, and takes longest: 13 of 65 minutes.
FOLDERS: dict[str, Sequence[str]] = {
    "chips": ("chips",),  # alone: a process has one device that is not PyTorch's
    "capture": ("capture",),
    "codegen": ("codegen",),
    "pipeline": ("pipeline", "fuse", "simplify"),
    "deploy": ("deploy",),
    "lazy": ("lazy", "autograd", "compiled_autograd"),
}
REST = "rest"


@dataclass(frozen=True)
class Shard:
    """A target of make."""

    name: str
    target: str
    arguments: str = ""

    def run(self) -> "Outcome":
        start = time.monotonic()
        log = LOGS / f"{self.name}.log"
        environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}  # the other lanes want the cores
        command = ("make", "--no-print-directory", self.target, f"ARGS={self.arguments}")
        with log.open("w") as out:
            code = subprocess.run(command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT).returncode
        outcome = Outcome(self, code, time.monotonic() - start, log)
        say(str(outcome))
        return outcome


@dataclass(frozen=True)
class Outcome:
    """How a shard ended."""

    shard: Shard
    code: int
    seconds: float
    log: Path

    def __str__(self) -> str:
        return f"{self.shard.name}: {'FAILED' if self.code else 'passed'} after {self.seconds:.0f} s"

    def skips(self) -> list[str]:
        """The lines on skipped tests: what follows each title, up to the next line that is no entry."""
        lines, inside = [], False
        for line in self.log.read_text(errors="replace").splitlines():
            inside = SKIPPED in line or (inside and line.startswith("  "))
            if (inside and SKIPPED not in line) or "skipped:" in line:
                lines.append(line)
        return lines


def shards() -> list[Shard]:
    """All shards, longest first, so that the lanes end at about the same time."""
    folders = {path.relative_to(ROOT / "tests").parts[0] for path in ROOT.glob("tests/*/**/test_*.py")}
    rest = sorted(folders.difference(*FOLDERS.values()))
    tests = [
        Shard(name, "test", " ".join(("-n0", *(f"tests/{folder}" for folder in group))))
        for name, group in {REST: rest, **FOLDERS}.items()
    ]
    return [
        *tests[:4],
        Shard("versions", "test-versions", "--processes 0"),  # not first: its environments take minutes to fetch
        *tests[4:],
        Shard("lint", "lint"),
        Shard("wheel", "test-wheel", "-n0"),
        Shard("no-layout", "test-no-layout", "-n0"),
    ]


@contextmanager
def fetching(wanted: bool) -> Iterator[None]:
    """Fetch the environments of `make test-versions` beside the shards: it mostly waits for the network."""
    command = ("make", "--no-print-directory", "test-versions", "ARGS=--fetch")
    with (LOGS / "fetch.log").open("w") as out:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT) if wanted else None
        yield
        if process is not None:
            process.wait()


def say(text: str) -> None:
    print(f"smelt: {text}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/ci.py", description="everything that a change must pass")
    every = {shard.name: shard for shard in shards()}
    parser.add_argument("names", nargs="*", choices=[[], *every], help="the shards to run (all)")
    parser.add_argument("--lanes", type=int, default=os.cpu_count() or 2, help="how many run side by side")
    chosen = parser.parse_args()
    LOGS.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    with ThreadPoolExecutor(chosen.lanes) as pool, fetching("versions" in (chosen.names or every)):
        outcomes = list(pool.map(Shard.run, [every[name] for name in chosen.names or every]))
    for outcome in outcomes:
        if outcome.code:
            say(f"{outcome.shard.name} failed; its log:")
            print(outcome.log.read_text(errors="replace"), flush=True)
    for outcome in outcomes:
        for line in outcome.skips():
            say(f"{outcome.shard.name} left out {line.strip()}")
    for outcome in outcomes:
        say(str(outcome))
    say(f"{(time.monotonic() - start) / 60:.0f} minutes")
    return int(any(outcome.code for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
