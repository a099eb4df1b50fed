"""The quick tier: slow tests, half of each large grid and separate folders are left out, and nothing else."""

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import tiers
from tools import test_times


def named(*names: str) -> list[Any]:
    return [SimpleNamespace(nodeid=name) for name in names]


def chosen(items: list[Any], *changed: str) -> list[str]:
    return [item.nodeid for item in tiers.choose(items, set(changed))]


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tiers, "TABLE", tmp_path / "slow.txt")
    return tmp_path / "slow.txt"


def test_slow_functions_and_cases_are_left_out(table: Path) -> None:
    table.write_text("# head\n    3.0  a.py::test_slow\n    2.5  a.py::test_quick[x y]\n")
    cases = named("a.py::test_slow[1]", "a.py::test_slow[2]", "a.py::test_quick[x y]", "a.py::test_other")
    assert chosen(cases) == ["a.py::test_other"]


def test_a_slow_file_keeps_its_quickest_test(table: Path) -> None:
    table.write_text("    3.0  a.py::test_slow\n    1.5  a.py::test_less_slow\n")
    assert chosen(named("a.py::test_slow", "a.py::test_less_slow[1]", "a.py::test_less_slow[2]")) == [
        "a.py::test_less_slow[1]"
    ]
    table.write_text("    3.5  a.py::test_slow\n")
    assert chosen(named("a.py::test_slow")) == []


def test_about_half_of_a_grid_is_run_and_always_the_same_half(table: Path) -> None:
    grid = named(*(f"a.py::test_grid[{number}]" for number in range(200)))
    half = chosen(grid)
    assert 70 < len(half) < 130
    assert half == chosen(grid)


def test_small_grids_are_run_whole(table: Path) -> None:
    grid = named(*(f"a.py::test_grid[{number}]" for number in range(tiers.SMALL_GRID_CASES)))
    assert len(chosen(grid)) == len(grid)


def test_each_quick_function_is_run(table: Path) -> None:
    functions = named(*(f"a.py::test_{number}[only]" for number in range(50)), "a.py::test_plain")
    assert len(chosen(functions)) == len(functions)


def test_separate_folders_are_run_where_their_package_or_one_below_changed(table: Path) -> None:
    chips = named(*(f"tests/chips/test_a.py::test_{number}" for number in range(160)))
    assert 0 < len(chosen(chips)) < 30
    assert len(chosen(chips, "explain", "api", "tests/codegen/gpu")) < 30
    for unit in ("chips", "tests/chips", "fuse", "base"):
        assert len(chosen(chips, unit)) == len(chips)


def test_changes_are_those_since_the_branch_left_main(tmp_path: Path) -> None:
    def git(*command: str) -> None:
        subprocess.run(("git", "-c", "user.name=a", "-c", "user.email=a@b", *command), cwd=tmp_path, check=True)

    def add(name: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)

    assert tiers.changed_units(tmp_path) == set()  # no repository
    git("init", "-q", "-b", "main")
    add("src/smelt/fuse/a.py")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    assert tiers.changed_units(tmp_path) == set()
    git("checkout", "-q", "-b", "branch")
    add("src/smelt/csrc/guards/a.c")
    git("add", ".")
    git("commit", "-q", "-m", "second")
    add("plugins/sim/a.py")
    add("src/smelt/api.py")
    add("README.md")
    assert tiers.changed_units(tmp_path) == {"_native", "api", "tests/chips"}


def test_separate_folders_exist() -> None:
    for folder, (unit, more) in tiers.SEPARATE.items():
        assert unit in tiers.LAYERS
        assert all((tiers.ROOT / each).is_dir() for each in (folder, *more))


def test_the_table_names_tests_that_exist() -> None:
    for test in tiers.slow_tests():
        file, *_, function = test.partition("[")[0].split("::")
        assert f"def {function}(" in (tiers.ROOT / file).read_text(), f"{test} is gone: `make test-times`, or remove it"


def test_functions_are_slow_on_average_and_cases_by_themselves() -> None:
    times = {"a::f[1]": 0.9, "a::f[2]": 0.3, "a::g[1]": 0.1, "a::g[2]": 0.1, "a::g[3]": 0.1, "a::g[4]": 0.1}
    times |= {"a::h[1]": 2.1, **{f"a::h[{case}]": 0.1 for case in range(2, 9)}}
    assert test_times.slow(times) == {"a::f": pytest.approx(0.6), "a::h[1]": 2.1}
