"""The shards of `.ci/run`: they cover all tests, and what they skip is listed."""

from pathlib import Path

from tools import ci


def test_ci_runs_every_folder_of_tests_once() -> None:
    arguments = [shard.arguments.split()[1:] for shard in ci.shards() if shard.target == "test"]
    folders = [folder for each in arguments for folder in each]
    assert sorted(folders) == sorted(
        {f"tests/{path.relative_to(ci.ROOT / 'tests').parts[0]}" for path in ci.ROOT.glob("tests/*/**/test_*.py")}
    )


def test_ci_lists_what_was_skipped(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(
        "...\n------- tests left out -------\n    12  no browser (tests/explain)\n3 passed\n  not an entry\n"
    )
    outcome = ci.Outcome(ci.Shard("a", "test"), 0, 1.0, log)
    assert outcome.skips() == ["    12  no browser (tests/explain)"]
