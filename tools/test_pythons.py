"""Runs tests with torch under other Pythons and writes down how they went: `make test-pythons`, or

    python tools/test_pythons.py [3.12 3.13]     →  docs/python_versions.md

Each Python gets an environment of its own under build/, with a torch that pip has as a build for the CPU there; where
pip would bring CUDA along, that Python is left out with a line that says so. The exit code is 1 if a test failed.
"""

import argparse
import json
import platform
import shutil
import subprocess
import sys
import textwrap
import xml.etree.ElementTree as xml
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from pythons import find_python

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "python_versions.md"
VERSIONS = ("3.12", "3.13")  # 3.11 is what `make test` runs
TORCH = "torch==2.10.0"  # the newest that pip has without CUDA for both
BESIDE = ("llvmlite", "numpy", "rich", "pytest", "hypothesis", "setuptools")

# What differs from Python to Python: bytecode and frames in C, reading bytecode, and capture of what programs say.
CAPTURE = (
    "breaks containers corners deques exceptions found generators guards guards_deep language language_breaks numbers"
    " python python_rules random_programs running shadowed_methods slots sizes text undo with writes"
)
PARTS = {
    "the C part": ("tests/native",),
    "reading bytecode": ("tests/versions",),
    "capture": tuple(str(next((ROOT / "tests/capture").rglob(f"test_{name}.py"))) for name in CAPTURE.split()),
}


@dataclass
class Outcome:
    """One part of the tests under one Python."""

    count: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return ", ".join(f"{self.count[kind]} {kind}" for kind in ("passed", "failed", "skipped") if self.count[kind])


@dataclass
class Row:
    """One Python: what it is, or why it was left out."""

    version: str
    torch: str
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    why_not: str = ""


def say(text: str) -> None:
    print(f"smelt: {text}", flush=True)


def run(*command: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, text=True, check=False, **options)  # type: ignore[call-overload]


def why_no_torch(python: str) -> str | None:
    """Why pip has no torch for the CPU here; None where it has one."""
    asked = run(python, "-m", "pip", "install", "-qq", "--dry-run", "--ignore-installed", "--report", "-", TORCH,
                capture_output=True)  # fmt: skip
    if asked.returncode:
        return f"pip has no {TORCH}"
    names = [each["metadata"]["name"] for each in json.loads(asked.stdout)["install"]]
    if any(name.startswith(("nvidia", "cuda", "triton")) for name in names):
        return f"pip has {TORCH} with CUDA alone (PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu has others)"
    return None


def environment(version: str) -> Path | str:
    """The Python of an environment with torch and the C part built for it, or why there is none."""
    home = ROOT / "build" / f"torch-{version}"
    inside = home / "bin" / "python"
    if not (home / "ready").exists():
        python = find_python(version)
        if python is None:
            return "not here"
        shutil.rmtree(home, ignore_errors=True)
        run(python, "-m", "venv", str(home))
        reason = why_no_torch(str(inside))
        if reason is not None:
            return reason
        say(f"installing {TORCH} for Python {version}")
        if run(str(inside), "-m", "pip", "install", "-qq", "--disable-pip-version-check", TORCH, *BESIDE).returncode:
            return "pip failed"
        (home / "ready").touch()
    objects = str(ROOT / "build" / f"objects-{version}")
    built = run(str(inside), "setup.py", "-q", "build_ext", "--inplace", "--build-temp", objects)
    return "the C part cannot be built" if built.returncode else inside


def outcome(python: Path, version: str, part: str) -> Outcome:
    """Run one part of the tests; told by the file pytest leaves."""
    say(f"Python {version}: {part}")
    told = ROOT / "build" / f"tests-{version}.xml"
    told.unlink(missing_ok=True)
    run("env", "PYTHONPATH=src:.", str(python), "-m", "pytest", "-q", f"--junitxml={told}", *PARTS[part])
    found = Outcome()
    if not told.exists():
        return Outcome(Counter(failed=1), [f"{part}: pytest did not end"])
    for case in xml.parse(told).iter("testcase"):
        kinds = {child.tag for child in case}
        failed = bool(kinds & {"failure", "error"})
        found.count["failed" if failed else "skipped" if "skipped" in kinds else "passed"] += 1
        if failed:
            found.failed.append(f"{case.get('classname')}::{case.get('name')}")
    return found


def tested(version: str) -> Row:
    python = environment(version)
    if isinstance(python, str):
        say(f"Python {version} is left out: {python}")
        return Row(version, "", why_not=python)
    asked = "import platform, torch; print(platform.python_version(), torch.__version__)"
    full, torch = run(str(python), "-c", asked, capture_output=True).stdout.split()
    return Row(full, torch, {part: outcome(python, version, part) for part in PARTS})


def page(rows: list[Row]) -> str:
    """docs/python_versions.md, whole."""
    lines = [
        "# Python versions",
        "",
        "smelt runs on Python 3.11, 3.12 and 3.13. All tests run on 3.11 (`make test`). Bytecode and frames differ from"
        " version to",
        "version, so these parts of the tests run on the others as well, with torch. `make test-pythons` writes this"
        " page.",
        "",
        f"| Python | torch | machine | {' | '.join(PARTS)} |",
        f"|---|---|---|{'---|' * len(PARTS)}",
    ]
    for row in rows:
        cells = [row.why_not] * len(PARTS) if row.why_not else [str(row.outcomes[part]) for part in PARTS]
        lines.append(f"| {row.version} | {row.torch} | {platform.machine()} | {' | '.join(cells)} |")
    chosen = "Capture is these files of the folders of `tests/capture`: " + ", ".join(CAPTURE.split()) + "."
    lines += ["", *textwrap.wrap(chosen, 120)]
    failed = [(row.version, name) for row in rows for each in row.outcomes.values() for name in each.failed]
    if failed:
        lines += ["", "## What fails", "", *(f"- Python {version}: `{name}`" for version, name in failed)]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/test_pythons.py", description="tests with torch under other Pythons")
    parser.add_argument("versions", nargs="*", default=VERSIONS, help="3.12 3.13 unless given")
    rows = [tested(version) for version in parser.parse_args().versions]
    PAGE.write_text(page(rows), encoding="utf-8")
    for row in rows:
        say(f"Python {row.version}: {row.why_not or '; '.join(f'{k}: {v}' for k, v in row.outcomes.items())}")
    return int(any(each.failed for row in rows for each in row.outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
