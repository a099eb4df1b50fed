"""What a `Report` says: the scorecard as text, the same as JSON, and what to do next.

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
    """Whether nothing failed; strictly: nothing is missing or computed by the host either."""
    bad = {FAILED, NOT_RUN} | ({MISSING, ON_HOST} if strict else set())
    return not any(each.status in bad for each in report.outcomes)


def outcomes_of(level: Level, report: Report) -> list[Outcome]:
    return [each for each in report.outcomes if each.check.partition(".")[0] == level.name]


def run_levels(report: Report) -> list[Level]:
    """Those of which something was run."""
    return [level for level in LEVELS if outcomes_of(level, report)]


def scorecard(report: Report, strict: bool = False) -> str:
    """For a terminal."""
    lines = [f"{report.chip}: {target_words(report)}", ""]
    lines.append(f"{'level':26}" + "".join(f"{name:>9}" for name in _COLUMNS))
    for level in run_levels(report):
        found = outcomes_of(level, report)
        counts = Counter(FAILED if each.status == NOT_RUN else each.status for each in found)
        lines.append(f"{level.title:26}" + "".join(f"{counts[name] or '.':>9}" for name in _COLUMNS))
    for each in report.outcomes:
        if each.status != PASSED:
            lines += ["", f"{each.status.upper():8} {each.check}: {each.reason}"]
            if each.status == FAILED:
                lines.append(f"{'':8} it proves that: {CHECKS[each.check].proves}")
                lines.append(f"{'':8} look at: {look_at(each)}")
    if len(report.speeds) > 1:
        lines += ["", *_speed_lines(report)]
    lines += ["", *next_steps(report), ""]
    counts = Counter(each.status for each in report.outcomes)
    words = ", ".join(f"{counts[name]} {name}" for name in (*_COLUMNS, NOT_RUN) if counts[name])
    lines.append(f"{'PASSED' if passed(report, strict) else 'FAILED'}: {words}")
    return "\n".join(lines)


def look_at(outcome: Outcome) -> str:
    """Where the cause of a failure is: the line that raised, or what the check says."""
    return outcome.raised_at or CHECKS[outcome.check].look_at


def target_words(report: Report) -> str:
    told = report.target
    if not told:
        return "it said nothing of itself"
    memory = f"{told['memory_bytes'] / 1e9:.1f} GB" if told["memory_bytes"] else "memory of unknown size"
    dtypes = ", ".join(told["dtypes"]) or "all dtypes"
    return f"kernels as {told['form']}, warps of {told['warp_size']}, {memory}, {dtypes}"


def copy_bandwidth(report: Report) -> float:
    """Bytes a second that `copy_within` reads and writes; 0 where it was not measured."""
    return report.speeds[0].bandwidth if report.speeds else 0.0


def times_a_copy(speed: Speed, report: Report) -> float | None:
    """How much longer it takes than a copy of as many bytes within the chip."""
    bandwidth = copy_bandwidth(report)
    return speed.seconds * bandwidth / speed.nbytes if bandwidth and speed.nbytes else None


def _speed_lines(report: Report) -> list[str]:
    lines = [f"speed, against the chip's own copies ({copy_bandwidth(report) / 1e9:.1f} GB/s read and written)"]
    for each in report.speeds[1:]:
        times = times_a_copy(each, report)
        if times is None:
            lines.append(f"  {each.name:22} not measured: {each.reason}")
        else:
            text = f"{each.seconds * 1e3:9.2f} ms {each.bandwidth / 1e9:8.2f} GB/s"
            lines.append(f"  {each.name:22} {text}   {times:7.1f} × the time of a copy of as many bytes")
    return lines


def next_steps(report: Report) -> list[str]:
    """What to implement next: the first level with a fault, for later ones build on it."""
    for level in run_levels(report):
        bad = [each for each in outcomes_of(level, report) if each.status in (FAILED, NOT_RUN)]
        if bad:
            return [f"next: {bad[0].check} ({CHECKS[bad[0].check].proves}). Look at {look_at(bad[0])}"]
    by_host: Counter[str] = Counter()
    for each in report.outcomes:
        by_host.update(dict(each.fallbacks))
    if by_host:
        names = ", ".join(f"{name} ({count} times)" for name, count in by_host.most_common(5))
        return [f"next: nothing is wrong. The host still computes {names}"]
    missing = [each.check for each in report.outcomes if each.status == MISSING]
    if missing:
        return [f"next: nothing is wrong. What the chip does not offer: {', '.join(missing)}"]
    slow = max(report.speeds[1:], key=lambda each: times_a_copy(each, report) or 0.0, default=None)
    if slow is None:
        return ["next: nothing is wrong"]
    times = times_a_copy(slow, report) or 0.0
    return [f"next: nothing is wrong. The slowest part, {slow.name}, takes {times:.1f} × a copy's time"]


def as_json(report: Report, strict: bool = False) -> dict[str, Any]:
    """For CI."""
    levels = [
        {
            "name": level.name,
            "title": level.title,
            "checks": [
                each.as_json() | {"proves": CHECKS[each.check].proves, "look_at": look_at(each)}
                for each in outcomes_of(level, report)
            ],
        }
        for level in run_levels(report)
    ]
    speeds = [
        {"name": each.name, "seconds": each.seconds, "bytes": each.nbytes, "times_a_copy": times_a_copy(each, report)}
        | ({"reason": each.reason} if each.reason else {})
        for each in report.speeds
    ]
    return {
        "chip": report.chip,
        "passed": passed(report, strict),
        "target": report.target,
        "counts": dict(Counter(each.status for each in report.outcomes)),
        "levels": levels,
        "copy_bandwidth": copy_bandwidth(report),
        "speeds": speeds,
        "next": next_steps(report),
    }
