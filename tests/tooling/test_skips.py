"""The end of a run of the tests: why tests were left out, reason by reason."""

from types import SimpleNamespace

from tests.skips import grouped


def test_reasons_are_told_once_with_their_folders() -> None:
    def skipped(test: str, reason: str) -> SimpleNamespace:
        return SimpleNamespace(nodeid=test, longrepr=(test.split("::")[0], 7, f"Skipped: {reason}"))

    reports = [
        skipped("tests/models/test_a.py::test_one", "no transformers"),
        skipped("tests/explain/test_page.py::test_two", "no Chromium"),
        skipped("tests/explain/test_page.py::test_three[x/y]", "no Chromium"),
        skipped("tests/docs/test_pages.py::test_four", "no Chromium"),
    ]
    assert grouped(reports) == [
        "     3  no Chromium (tests/docs, tests/explain)",
        "     1  no transformers (tests/models)",
    ]
    assert grouped([]) == []
