"""A `Report` as text (the scorecard) and as JSON, with what to do next.

level              passed   host   missing   failed
Memory                  8      .         .        .
"""

from collections import Counter
from typing import Any

from smelt_conform.check import FAILED, MISSING, NOT_RUN, ON_HOST, PASSED, Level, Outcome, Speed
from smelt_conform.levels import CHECKS, LEVELS
from smelt_conform.processes import Report

_COLUMNS = (PASSED, ON_HOST, MISSING, FAILED)


def passed(report: Report, strict: bool = False) -> bool:
    """Whether no check failed. `strict`: missing features and fallbacks count as failures."""
    bad = {FAILED, NOT_RUN} | ({MISSING, ON_HOST} if strict else set())
    return not any(outcome.status in bad for outcome in report.outcomes)


def outcomes_of(level: Level, report: Report) -> list[Outcome]:
    return [outcome for outcome in report.outcomes if outcome.check.partition(".")[0] == level.name]


def run_levels(report: Report) -> list[Level]:
    """The levels with at least one outcome."""
    return [level for level in LEVELS if outcomes_of(level, report)]


def scorecard(report: Report, strict: bool = False) -> str:
    """The scorecard as text for a terminal."""
    lines = [f"{report.chip}: {target_words(report)}", ""]
    lines.append(f"{'level':26}" + "".join(f"{name:>9}" for name in _COLUMNS))
    for level in run_levels(report):
        outcomes = outcomes_of(level, report)
        counts = Counter(FAILED if outcome.status == NOT_RUN else outcome.status for outcome in outcomes)
        lines.append(f"{level.title:26}" + "".join(f"{counts[name] or '.':>9}" for name in _COLUMNS))
    for outcome in report.outcomes:
        if outcome.status != PASSED:
            lines += ["", f"{outcome.status.upper():8} {outcome.check}: {outcome.reason}"]
            if outcome.status == FAILED:
                lines.append(f"{'':8} it checks that: {CHECKS[outcome.check].proves}")
                lines.append(f"{'':8} look at: {look_at(outcome)}")
    if len(report.speeds) > 1:
        lines += ["", *_speed_lines(report)]
    lines += ["", *next_steps(report), ""]
    counts = Counter(outcome.status for outcome in report.outcomes)
    words = ", ".join(f"{counts[name]} {name}" for name in (*_COLUMNS, NOT_RUN) if counts[name])
    lines.append(f"{'PASSED' if passed(report, strict) else 'FAILED'}: {words}")
    return "\n".join(lines)


def look_at(outcome: Outcome) -> str:
    """Where to look for the cause: the line that raised, or the hint of the check."""
    return outcome.raised_at or CHECKS[outcome.check].look_at


def target_words(report: Report) -> str:
    target = report.target
    if not target:
        return "no description"
    memory = f"{target['memory_bytes'] / 1e9:.1f} GB" if target["memory_bytes"] else "memory of unknown size"
    dtypes = ", ".join(target["dtypes"]) or "all dtypes"
    return f"kernels as {target['form']}, warps of {target['warp_size']}, {memory}, {dtypes}"


def copy_bandwidth(report: Report) -> float:
    """Bytes per second that `copy_within` reads and writes; 0 if it was not measured."""
    return report.speeds[0].bandwidth if report.speeds else 0.0


def times_a_copy(speed: Speed, report: Report) -> float | None:
    """Time relative to a copy of as many bytes within the chip; None if not measured."""
    bandwidth = copy_bandwidth(report)
    return speed.seconds * bandwidth / speed.nbytes if bandwidth and speed.nbytes else None


def _speed_lines(report: Report) -> list[str]:
    lines = [f"speed, against the chip's own copies ({copy_bandwidth(report) / 1e9:.1f} GB/s read and written)"]
    for speed in report.speeds[1:]:
        times = times_a_copy(speed, report)
        if times is None:
            lines.append(f"  {speed.name:22} not measured: {speed.reason}")
        else:
            text = f"{speed.seconds * 1e3:9.2f} ms {speed.bandwidth / 1e9:8.2f} GB/s"
            lines.append(f"  {speed.name:22} {text}   {times:7.1f} × the time of a copy of as many bytes")
    return lines


def next_steps(report: Report) -> list[str]:
    """What to implement next. The first level with a failure comes first: later levels build on it."""
    for level in run_levels(report):
        bad = [outcome for outcome in outcomes_of(level, report) if outcome.status in (FAILED, NOT_RUN)]
        if bad:
            return [f"next: {bad[0].check} ({CHECKS[bad[0].check].proves}). Look at {look_at(bad[0])}"]
    by_host: Counter[str] = Counter()
    for outcome in report.outcomes:
        by_host.update(dict(outcome.fallbacks))
    if by_host:
        names = ", ".join(f"{name} ({count} times)" for name, count in by_host.most_common(5))
        return [f"next: nothing is wrong. The host still computes {names}"]
    missing = [outcome.check for outcome in report.outcomes if outcome.status == MISSING]
    if missing:
        return [f"next: nothing is wrong. The chip does not support: {', '.join(missing)}"]
    slow = max(report.speeds[1:], key=lambda speed: times_a_copy(speed, report) or 0.0, default=None)
    if slow is None:
        return ["next: nothing is wrong"]
    times = times_a_copy(slow, report) or 0.0
    return [f"next: nothing is wrong. The slowest operation, {slow.name}, takes {times:.1f} × a copy's time"]


def as_json(report: Report, strict: bool = False) -> dict[str, Any]:
    """The report as JSON, for CI."""
    levels = [
        {
            "name": level.name,
            "title": level.title,
            "checks": [
                outcome.as_json() | {"proves": CHECKS[outcome.check].proves, "look_at": look_at(outcome)}
                for outcome in outcomes_of(level, report)
            ],
        }
        for level in run_levels(report)
    ]
    speeds = [
        {
            "name": speed.name,
            "seconds": speed.seconds,
            "bytes": speed.nbytes,
            "times_a_copy": times_a_copy(speed, report),
        }
        | ({"reason": speed.reason} if speed.reason else {})
        for speed in report.speeds
    ]
    return {
        "chip": report.chip,
        "passed": passed(report, strict),
        "target": report.target,
        "counts": dict(Counter(outcome.status for outcome in report.outcomes)),
        "levels": levels,
        "copy_bandwidth": copy_bandwidth(report),
        "speeds": speeds,
        "next": next_steps(report),
    }
