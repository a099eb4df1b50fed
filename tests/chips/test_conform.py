"""The conformance kit: each check fails on a chip that is broken in its respect, and the healthy chip passes all."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from smelt_conform.check import FAILED, MISSING, ON_HOST, PASSED, Outcome, Speed
from smelt_conform.levels import CHECKS, LEVELS
from smelt_conform.page import page
from smelt_conform.processes import Report
from smelt_conform.scorecard import as_json, passed, scorecard, times_a_copy
from tests.chips.mutants import CAUGHT_BY

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in ("plugins/sim", "plugins/conform", "src", "")),
}
TARGET = {"form": "llvm", "warp_size": 1, "dtypes": (), "memory_bytes": 1 << 30}


def run(*arguments: str, seconds: float = 1800) -> subprocess.CompletedProcess[str]:
    """A module in a process that has no chip yet."""
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=seconds)


def test_every_mutant_fails_its_check_and_the_healthy_chip_passes_it() -> None:
    assert len(CAUGHT_BY) >= 30 and set(CAUGHT_BY.values()) <= set(CHECKS)
    done = run("tests.chips.mutants")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    healthy = found.pop("Small")
    assert {name: [status, reason] for name, (status, reason, _) in found.items() if status != FAILED} == {}
    assert sorted(found) == sorted(CAUGHT_BY)
    assert [each for each in healthy if each[1] not in (PASSED, ON_HOST)] == []
    assert found["Hangs"][1].startswith("no answer within 3 s")
    assert found["Crashes"][1] == "the process ended (signal 11)"


def test_the_simulated_chip_conforms(tmp_path: Path) -> None:
    json_file, html_file = tmp_path / "card.json", tmp_path / "card.html"
    done = run(
        "smelt", "conform", "sim", "--import", "smelt_sim:Sim", "--json", str(json_file), "--html", str(html_file)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    card = json.loads(json_file.read_text())
    assert card["passed"] and [level["name"] for level in card["levels"]] == [level.name for level in LEVELS]
    checks = {each["check"]: each for level in card["levels"] for each in level["checks"]}
    assert sorted(checks) == sorted(CHECKS)
    assert {each["status"] for each in checks.values()} <= {PASSED, ON_HOST}
    of_training = {name: each["fallbacks"] for name, each in checks.items() if name.startswith("training.")}
    assert len(of_training) == 8 and not any(of_training.values())
    assert card["copy_bandwidth"] > 0 and all(each["times_a_copy"] > 0 for each in card["speeds"])
    assert "× the time of a copy" in done.stdout and "PASSED" in done.stdout.splitlines()[-1]
    assert "training.gpt2_compiled" in html_file.read_text()


def test_a_chip_that_cannot_be_had_is_told() -> None:
    for arguments, said in (
        (["nothing"], "no installed package offers a chip 'nothing'"),
        (["sim", "--import", "no_such_module"], "--import no_such_module failed"),
        (["sim", "--level", "soul"], "there is no level soul; there are memory, copies"),
        (["sim", "--only", "memory.*", "--only", "soul.*"], "no check is called soul.*"),
        (["sim", "--level", "memory", "--only", "queue.*"], "no check of memory is called queue.*"),
    ):
        done = run("smelt", "conform", *arguments)
        assert done.returncode == 2 and said in done.stderr, done.stderr


def test_a_failing_chip_fails_the_command() -> None:
    done = run(
        "smelt",
        "conform",
        "sim",
        "--import",
        "tests.chips.mutants:LastByteLost",
        "--only",
        "memory.[wia]*",
        "--no-speed",
    )
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert any(line.startswith("FAILED   memory.whole: byte 2 of an allocation of 3 bytes") for line in lines)
    assert any("look at: copy_in() and copy_out(): the length" in line for line in lines)
    assert any(line.startswith("next: memory.whole") for line in lines)
    assert lines[-1] == "FAILED: 1 passed, 3 failed"  # what is in an allocation and beside it is wrong too


_CHIPS = """
from smelt.chips import Chip, host_target
from smelt_sim import Sim

class Begun(Chip):
    def describe(self):
        return host_target("sim", memory_bytes=1 << 20)

class Misspelt(Sim):
    def allocate(self, nbytes):
        return super().alocate(nbytes)

class Fragile(Sim):
    def launch(self, handle, launch):
        if launch.numbers:
            self.lose()
        super().launch(handle, launch)

class OnlyFloats(Sim):
    def describe(self):
        return host_target("sim", memory_bytes=self.memory, dtypes=("float32",))

class Words(Sim):
    def describe(self):
        return {"form": "llvm"}
"""


def card_of(chip: str, folder: Path, *only: str) -> dict[str, dict[str, Any]]:
    """Outcomes of one of the chips above."""
    (folder / "chips_to_be.py").write_text(_CHIPS)
    (folder / "card.json").unlink(missing_ok=True)
    environment = {**ENVIRONMENT, "PYTHONPATH": f"{ENVIRONMENT['PYTHONPATH']}{os.pathsep}{folder}"}
    chosen = [word for name in only for word in ("--only", name)]
    command = [sys.executable, "-m", "smelt", "conform", "sim", "--import", f"chips_to_be:{chip}"]
    command += ["--no-speed", "--json", "card.json", *chosen]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    if not (folder / "card.json").exists():
        return {"": {"reason": done.stderr}}
    card = json.loads((folder / "card.json").read_text())
    return {each["check"]: each for level in card["levels"] for each in level["checks"]}


def test_a_chip_that_is_half_written_says_what_is_missing(tmp_path: Path) -> None:
    found = card_of("Begun", tmp_path, "memory.describe", "memory.whole")
    assert found["memory.describe"]["status"] == PASSED
    assert "Begun has no allocate()" in found["memory.whole"]["look_at"]
    assert "describe() returned a dict, not a smelt.chips.Target" in card_of("Words", tmp_path)[""]["reason"]


def test_the_line_that_raised_is_where_to_look(tmp_path: Path) -> None:
    found = card_of("Misspelt", tmp_path, "memory.whole")["memory.whole"]
    line = 1 + _CHIPS.splitlines().index("        return super().alocate(nbytes)")
    assert found["look_at"].endswith(f"/chips_to_be.py:{line}, in allocate()")


def test_a_chip_that_is_lost_fails_one_check_and_not_those_after_it(tmp_path: Path) -> None:
    found = card_of("Fragile", tmp_path, "elementwise.matrices", "elementwise.scalars", "elementwise.comparisons")
    assert {name: each["status"] for name, each in found.items()} == {
        "elementwise.matrices": PASSED,
        "elementwise.scalars": FAILED,
        "elementwise.comparisons": PASSED,
    }
    assert found["elementwise.scalars"]["reason"].startswith("ChipLost: SM071: the simulated device was lost")


def test_a_chip_without_integers_copies_parts_of_tensors(tmp_path: Path) -> None:
    found = card_of("OnlyFloats", tmp_path, "copies.*")
    assert {each["status"] for each in found.values()} == {PASSED, ON_HOST}, found


def report(*outcomes: Outcome, speeds: tuple[Speed, ...] = ()) -> Report:
    return Report("abacus", TARGET, outcomes, speeds)


def test_fallbacks_and_what_is_missing_fail_where_that_is_asked_for() -> None:
    found = report(
        Outcome("memory.whole", PASSED),
        Outcome("elementwise.float64", MISSING, "the chip has no float64"),
        Outcome("indexing.sorting", ON_HOST, "computed by the host: aten.sort", fallbacks=(("aten.sort", 3),)),
    )
    assert passed(found) and not passed(found, strict=True)
    assert "The host still computes aten.sort (3 times)" in scorecard(found)
    assert as_json(found)["counts"] == {PASSED: 1, MISSING: 1, ON_HOST: 1}


def test_speeds_are_held_against_copies() -> None:
    copies, add = Speed("copy within", 0.5, 1000), Speed("add", 2.0, 1000)
    found = report(Outcome("memory.whole", PASSED), speeds=(copies, add, Speed("gelu", 0.0, 0, "no answer")))
    assert times_a_copy(add, found) == 4.0
    text = scorecard(found)
    assert "4.0 × the time of a copy" in text and "gelu                   not measured: no answer" in text
    assert "<td>add</td>" in page(found)


def test_a_page_shows_words_of_a_chip_as_text() -> None:
    found = page(report(Outcome("memory.whole", FAILED, "<script>alert(1)</script>")))
    assert "<script>" not in found and "&lt;script&gt;" in found and "{{" not in found


def test_every_check_says_what_it_proves_and_where_to_look() -> None:
    assert len(CHECKS) == sum(len(level.checks) for level in LEVELS)
    silent = [name for name, check in CHECKS.items() if len(check.proves) < 10 or len(check.look_at) < 5]
    assert silent == []


def test_the_package_is_for_this_version_of_smelt() -> None:
    compiler, plugin = (
        tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"] for folder in ("", "plugins/conform")
    )
    assert plugin["version"] == compiler["version"]
    assert plugin["dependencies"] == [f"smelt=={compiler['version']}"]
