"""The scorecard as a page: one HTML file that opens from disk, written from a `Report`."""

import os
import re
from collections import Counter
from html import escape
from importlib.resources import files

from smelt_conform.check import FAILED, MISSING, NOT_RUN, ON_HOST, PASSED, STATUSES, Level, Outcome
from smelt_conform.levels import CHECKS
from smelt_conform.processes import Report
from smelt_conform.scorecard import (
    copy_bandwidth,
    look_at,
    next_steps,
    outcomes_of,
    passed,
    run_levels,
    target_words,
    times_a_copy,
)

_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")
_CLASSES = {PASSED: "passed", ON_HOST: "host", MISSING: "missing", FAILED: "failed", NOT_RUN: "failed"}


def write(path: str | os.PathLike[str], report: Report, strict: bool = False) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(page(report, strict))


def page(report: Report, strict: bool = False) -> str:
    """The HTML text."""
    template = files("smelt_conform").joinpath("assets", "conform.html").read_text(encoding="utf-8")
    counts = Counter(outcome.status for outcome in report.outcomes)
    parts = {
        "title": escape(f"smelt conform {report.chip}"),
        "chip": escape(report.chip),
        "verdict": "passed" if passed(report, strict) else "failed",
        "target": escape(target_words(report)),
        "counts": "".join(f"<div><dt>{name}</dt><dd>{counts[name]}</dd></div>" for name in STATUSES if counts[name]),
        "legend": "".join(f"<li>{_mark(name)} {escape(text)}</li>" for name, text in STATUSES.items()),
        "next": "".join(f"<p>{escape(line)}</p>" for line in next_steps(report)),
        "levels": "".join(_level(level, outcomes_of(level, report)) for level in run_levels(report)),
        "speeds": _speeds(report),
    }
    return _PLACEHOLDER.sub(lambda match: parts[match[1]], template)


def _mark(status: str) -> str:
    return f'<span class="mark {_CLASSES[status]}">{escape(status)}</span>'


def _level(level: Level, outcomes: list[Outcome]) -> str:
    good = sum(outcome.status in (PASSED, ON_HOST) for outcome in outcomes)
    is_open = " open" if any(outcome.status != PASSED for outcome in outcomes) else ""
    rows = "".join(map(_row, outcomes))
    heads = "<tr><th>check</th><th></th><th>what it proves</th><th>result</th><th>ms</th><th>launches</th></tr>"
    title = f"{escape(level.title)} <small>{good} of {len(outcomes)}</small>"
    return f'<details id="{level.name}"{is_open}><summary>{title}</summary><table>{heads}{rows}</table></details>'


def _row(outcome: Outcome) -> str:
    check = CHECKS[outcome.check]
    reason = escape(outcome.reason)
    if outcome.status == FAILED:
        reason += f"<br><b>look at:</b> {escape(look_at(outcome))}"
    cells = (
        f"<td><code>{escape(outcome.check)}</code></td><td>{_mark(outcome.status)}</td><td>{escape(check.proves)}</td>"
        f'<td>{reason}</td><td class="amount">{outcome.seconds * 1e3:.0f}</td>'
        f'<td class="amount">{outcome.launches}</td>'
    )
    return f"<tr>{cells}</tr>"


def _speeds(report: Report) -> str:
    if not report.speeds:
        return "<p>No speeds were measured.</p>"
    rows = []
    for speed in report.speeds[1:]:
        times = times_a_copy(speed, report)
        if times is None:
            rows.append(f'<tr><td>{escape(speed.name)}</td><td colspan="4">{escape(speed.reason)}</td></tr>')
            continue
        width = min(100.0, 100.0 / times)
        bar = f'<div class="track"><i style="width:{width:.1f}%"></i></div>'
        cells = f'<td class="amount">{speed.seconds * 1e3:.2f}</td><td class="amount">{speed.bandwidth / 1e9:.2f}</td>'
        rows.append(f'<tr><td>{escape(speed.name)}</td>{cells}<td class="amount">{times:.1f}</td><td>{bar}</td></tr>')
    heads = "<tr><th>operation</th><th>ms</th><th>GB/s</th><th>× a copy's time</th><th>of the copy bandwidth</th></tr>"
    own = f"<p>The chip's own copies read and write {copy_bandwidth(report) / 1e9:.1f} GB/s.</p>"
    return f"{own}<table>{heads}{''.join(rows)}</table>"
