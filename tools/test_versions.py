"""Runs a smoke suite with the oldest and the newest PyTorch, under each Python: `make test-versions`, or

    python tools/test_versions.py [3.11:2.11 3.13:2.15] [--processes 2] [--fetch]

Each pair of versions gets an environment under build/versions, which uv fills while the pair before it is tested: PyPI
has CUDA builds, some gigabytes, of which two Pythons share most. A pair whose Python is missing or whose packages
cannot be fetched is skipped, and the last lines say so. The exit code is 1 if a test failed.
"""

import argparse
import fcntl
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as xml
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from pythons import NEWEST, OLDEST, VERSIONS, find_python

ROOT = Path(__file__).parents[1]
HOME = ROOT / "build" / "versions"
INSTALL_SECONDS = 420  # 2.15 takes 120 s on a fast line
TEST_SECONDS = 600  # some 60 s of two cores
PACKAGES = ("llvmlite", "numpy", "rich", "pytest", "pytest-xdist", "hypothesis", "setuptools")
UNUSED = ("triton", "cuda-bindings")  # importing torch needs all other libraries of a CUDA build

NEXT_PYTHON = "3.14"  # its bytecode is not read yet: skipped, and said so
PAIRS = ((VERSIONS[0], OLDEST), *((python, NEWEST) for python in VERSIONS[1:]), (NEXT_PYTHON, NEWEST))

PARTS = {
    "versions and bytecode": ("tests/versions",),
    "the C part": ("tests/native",),
    "capture": ("tests/capture/features", "tests/capture/calls/test_autograd_function.py"),
    "autograd": ("tests/autograd/test_aot.py",),
    "code": ("tests/codegen/cpu/test_kernels.py",),
    "lazy": ("tests/lazy/test_training.py",),
    "deploy": ("tests/deploy/test_export.py",),
}


class Skipped(Exception):
    """Why a pair of versions is not tested here."""


@dataclass
class Outcome:
    """The smoke suite with one Python and one PyTorch."""

    python: str
    torch: str
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    skipped: str = ""

    def __str__(self) -> str:
        told = self.skipped or "; ".join(f"{part}: {cell(count)}" for part, count in self.counts.items())
        return f"Python {self.python}, torch {self.torch}: {'skipped: ' if self.skipped else ''}{told}"


def say(text: str) -> None:
    print(f"smelt: {text}", flush=True)


def cell(count: Counter[str]) -> str:
    return ", ".join(f"{count[kind]} {kind}" for kind in ("passed", "failed", "skipped") if count[kind])


def run(seconds: float, *command: object, **variables: str) -> None:
    """Run a command; `Skipped`, with the last line it wrote, if it fails or takes too long."""
    try:
        done = subprocess.run(
            list(map(str, command)), cwd=ROOT, env={**os.environ, **variables}, timeout=seconds, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Skipped(f"{Path(str(command[0])).name} took more than {seconds:.0f} s") from None
    if done.returncode:
        raise Skipped((done.stdout.strip().splitlines() or ["no message"])[-1])


def environment(python: str, torch: str) -> Path:
    """The interpreter of an environment that has this torch and the C part built for it."""
    if python not in VERSIONS:
        here = "an interpreter is here" if find_python(python) else "there is no interpreter"
        raise Skipped(f"smelt does not run on Python {python} ({here})")
    found = find_python(python)
    if found is None:
        raise Skipped("there is no interpreter")
    home = HOME / f"python-{python}-torch-{torch}"
    inside = home / "bin" / "python"
    with (HOME / "lock").open("w") as lock:  # one of several runs makes it
        fcntl.flock(lock, fcntl.LOCK_EX)
        make_environment(found, torch, home, inside)
    run(300, inside, "setup.py", "-q", "build_ext", "--inplace", "--build-temp", home / "objects")
    return inside


def make_environment(python: str, torch: str, home: Path, inside: Path) -> None:
    """Fetch what the environment `home` needs, unless that is done."""
    if (home / "ready").exists():
        return
    began = time.monotonic()
    shutil.rmtree(home, ignore_errors=True)
    uv = HOME / "uv" / "bin" / "uv"
    if not uv.exists():
        run(INSTALL_SECONDS, sys.executable, "-m", "pip", "install", "-qq", "--target", HOME / "uv", "uv")
    run(60, uv, "venv", "-q", "--python", python, home)
    without = home / "without.txt"
    without.write_text("".join(f"{name}; python_version < '3'\n" for name in UNUSED))
    install = (uv, "pip", "install", "-q", "--python", inside, "--overrides", without)
    run(INSTALL_SECONDS, *install, f"torch=={torch}.*", *PACKAGES, UV_CACHE_DIR=str(HOME / "cache"))
    (home / "ready").touch()
    say(f"installed torch {torch} in {home.name} in {time.monotonic() - began:.0f} s")


def tested(python: str, torch: str, interpreter: Path, processes: int) -> Outcome:
    """Run the smoke suite; its outcome is read from the file that pytest writes."""
    outcome = Outcome(python, torch, {part: Counter() for part in PARTS})
    report = HOME / f"{python}-{torch}.xml"
    report.unlink(missing_ok=True)
    files = [file for part in PARTS.values() for file in part]
    command = (interpreter, "-m", "pytest", "-q", f"-n{processes}", f"--junitxml={report}", *files)
    settings = {"PYTHONPATH": "src:.", "SMELT_CACHE_DIR": str(HOME / f"cache-{python}-{torch}")}
    try:
        subprocess.run(
            list(map(str, command)), cwd=ROOT, env={**os.environ, **settings}, timeout=TEST_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        outcome.failed.append(f"the tests took more than {TEST_SECONDS} s")
        return outcome
    if not report.exists():
        outcome.failed.append("pytest did not end")
        return outcome
    for case in xml.parse(report).iter("testcase"):
        place = str(case.get("classname")).replace(".", "/")
        part = next(part for part, files in PARTS.items() if f"{place}.py/".startswith(files))
        kinds = {child.tag for child in case}
        kind = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        outcome.counts[part][kind] += 1
        if kind == "failed":
            outcome.failed.append(f"{case.get('classname')}::{case.get('name')}")
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/test_versions.py", description="a smoke suite with other versions")
    parser.add_argument("pairs", nargs="*", default=[":".join(pair) for pair in PAIRS], help="3.13:2.15 and the like")
    parser.add_argument("--processes", type=int, default=2, help="how many run tests at a time (2)")
    parser.add_argument("--fetch", action="store_true", help="make the environments, and run no test")
    chosen = parser.parse_args()
    HOME.mkdir(parents=True, exist_ok=True)
    pairs = [tuple(pair.split(":")) for pair in chosen.pairs]
    outcomes: list[Outcome] = []
    with ThreadPoolExecutor(max_workers=1) as pool:
        environments = [pool.submit(environment, *pair) for pair in pairs]
        for (python, torch), coming in zip(pairs, environments, strict=True):
            try:
                interpreter = coming.result()
            except Skipped as reason:
                outcomes.append(Outcome(python, torch, skipped=str(reason)))
                continue
            if chosen.fetch:
                continue
            say(f"Python {python}, torch {torch}")
            outcomes.append(tested(python, torch, interpreter, chosen.processes))
    for outcome in outcomes:
        say(str(outcome))
        for name in outcome.failed:
            say(f"FAILED {name}")
    return int(any(outcome.failed for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
