"""What the skipped tests of a run lacked, one line for each reason: a run of the tests ends with it.

    ---------------- tests left out ----------------
        12  there is no Chromium here to open the page with (tests/explain)
"""

from collections import Counter, defaultdict
from pathlib import PurePath
from typing import Any

import pytest


def tell(reporter: pytest.TerminalReporter) -> None:
    """Print the reasons, most tests first."""
    reasons = grouped(reporter.stats.get("skipped", []))
    if reasons:
        reporter.write_sep("-", "tests left out")
        for line in reasons:
            reporter.write_line(line)


def grouped(reports: list[Any]) -> list[str]:
    """A line a reason: how many tests, why, and in which folders."""
    count: Counter[str] = Counter()
    folders: dict[str, set[str]] = defaultdict(set)
    for report in reports:
        reason = report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else "not said"
        count[reason] += 1
        folders[reason].add(str(PurePath(report.nodeid.split("::")[0]).parent))
    return [f"{number:6}  {reason} ({', '.join(sorted(folders[reason]))})" for reason, number in count.most_common()]
