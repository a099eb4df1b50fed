"""The golden helper itself: a match passes, a mismatch shows a diff, a missing file fails, updating writes."""

from pathlib import Path

import pytest

from tests import golden as module
from tests.golden import golden


@pytest.fixture(autouse=True)
def comparing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "updating", False)


def test_match_passes_whatever_the_last_newline(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    golden("a.txt", "one\ntwo", tmp_path)


def test_mismatch_shows_both_lines(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    with pytest.raises(AssertionError, match=r"(?s)-two.*\+three"):
        golden("a.txt", "one\nthree", tmp_path)


def test_missing_file_fails_and_shows_the_text(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"(?s)no golden file a.txt.*one"):
        golden("a.txt", "one", tmp_path)


def test_updating_writes_and_then_matches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "updating", True)
    golden("deep/a.txt", "one", tmp_path)
    monkeypatch.setattr(module, "updating", False)
    golden("deep/a.txt", "one", tmp_path)


def test_a_name_may_not_leave_the_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="outside"):
        golden("../a.txt", "one", tmp_path)
