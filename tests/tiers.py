"""The quick tier, which `make test` runs: `pytest --tier quick` leaves out three kinds of tests.

- Slow functions: those in `tests/slow_tests.txt`. Of a file without a quick function, the quickest stays, if
  it takes at most three seconds.
- Half of the cases of each function with more than eight, always the same half: the checksum of the node id decides.
  Smaller grids mostly list kinds of things, each of which only one case tests.
- Most tests of `SEPARATE` folders, unless the package they test or one below it differs from the main branch. Without
  Git, nothing counts as changed.

    choose(items, changed_units(root))     the tests that stay, in order
"""

import subprocess
import zlib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tests.structure.imports import LAYERS, unit_of

if TYPE_CHECKING:
    import pytest

UNITS = "SMELT_TESTS_CHANGED"  # names the changed units of a run to its processes: all must choose the same tests
ROOT = Path(__file__).parent.parent
TABLE = ROOT / "tests" / "slow_tests.txt"

# What is expensive and has few users: the folder, the unit it tests, and further folders that it tests.
SEPARATE: dict[str, tuple[str, tuple[str, ...]]] = {
    "tests/chips": ("chips", ("plugins/sim", "plugins/conform")),
    "tests/codegen/gpu": ("codegen", ("plugins/vulkan",)),
    "tests/deploy/gpu": ("deploy", ()),
}
SMALL_GRID_CASES = 8
FOR_SLOW_FILE_SECONDS = 3.0
KEPT_OF_SEPARATE = 16  # one of so many is run where nothing changed


def changed_units(root: Path) -> set[str]:
    """The units and `SEPARATE` folders that differ from where this branch left main, uncommitted changes included."""
    bases = (_git(root, "merge-base", "HEAD", branch) for branch in ("origin/HEAD", "origin/main", "main"))
    base = next((lines[0] for lines in bases if lines), "HEAD")
    files = _git(root, "diff", "--name-only", base) + _git(root, "ls-files", "--others", "--exclude-standard")
    return {unit for file in files for unit in _units_of(file)}


def _git(root: Path, *command: str) -> list[str]:
    """Lines of output; none where this is no repository."""
    try:
        done = subprocess.run(("git", *command), cwd=root, capture_output=True, text=True, check=False)
    except OSError:
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []


def _units_of(file: str) -> list[str]:
    source = Path("src/smelt")
    if Path(file).is_relative_to(source):
        unit = unit_of(Path(file), source)
        return [unit if unit in LAYERS else "base"]  # what has no layer, such as `lib`, counts as the lowest
    return [
        folder
        for folder, (_, more) in SEPARATE.items()
        if any(Path(file).is_relative_to(each) for each in (folder, *more))
    ]


def choose(items: "list[pytest.Item]", changed: set[str]) -> "list[pytest.Item]":
    """The tests of the quick tier."""
    slow = slow_tests()
    rarely = {folder for folder, (unit, _) in SEPARATE.items() if not _concerns(folder, unit, changed)}
    chosen = {
        item.nodeid
        for function, cases in _by_function(items).items()
        for item in _half([case for case in cases if function not in slow and case.nodeid not in slow])
    }
    chosen |= {quickest.nodeid for quickest in _of_slow_files(items, slow, chosen)}
    return [item for item in items if item.nodeid in chosen and _is_run(item.nodeid, rarely)]


def slow_tests() -> dict[str, float]:
    """Seconds per case of slow functions, and of slow cases of others, by node id."""
    lines = TABLE.read_text().splitlines() if TABLE.exists() else []
    rows = (line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))
    return {test: float(seconds) for seconds, test in rows}


def _concerns(folder: str, unit: str, changed: set[str]) -> bool:
    return any(each in (folder, unit) or LAYERS.get(each, 99) < LAYERS[unit] for each in changed)


def _by_function(items: "Iterable[pytest.Item]") -> "dict[str, list[pytest.Item]]":
    functions: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        functions[item.nodeid.partition("[")[0]].append(item)
    return functions


def _half(cases: "list[pytest.Item]") -> "list[pytest.Item]":
    """Of a large grid, the cases with an even checksum."""
    if len(cases) <= SMALL_GRID_CASES:
        return cases
    return [case for case in cases if _checksum(case.nodeid) % 2 == 0] or cases[:1]


def _of_slow_files(items: "list[pytest.Item]", slow: dict[str, float], chosen: set[str]) -> "Iterable[pytest.Item]":
    """The quickest test of each file that has none among `chosen`."""
    covered = {test.partition("::")[0] for test in chosen}
    quickest: dict[str, tuple[float, pytest.Item]] = {}
    for item in items:
        file, function = item.nodeid.partition("::")[0], item.nodeid.partition("[")[0]
        seconds = slow.get(item.nodeid, slow.get(function, 0.0))
        if file not in covered and (file not in quickest or seconds < quickest[file][0]):
            quickest[file] = seconds, item
    return [item for seconds, item in quickest.values() if seconds <= FOR_SLOW_FILE_SECONDS]


def _is_run(test: str, rarely: set[str]) -> bool:
    return not any(test.startswith(f"{folder}/") for folder in rarely) or _checksum(test) % KEPT_OF_SEPARATE == 0


def _checksum(test: str) -> int:
    return zlib.crc32(test.encode())
