"""Results of `benchmarks.run` as text: a small table a model, one of Markdown for all, and what misses its bar.

    {"model": "mlp", "first": {…}, "steady": {…}, …}  →  | mlp | 0.34 | 17.3 | 51× | 66.4 | 1.08× | 1.02× | …
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.measure import ratio
from benchmarks.models import MODELS, SMALL_MODELS, model_named

CLOCKS = ("seconds", "processor")
STEP_BAR, PEAK_BAR = 1.15, 0.85  # of whole steps: speed against torch.compile, memory against eager
FIRST_BAR, STEADY_BAR, COMPILE_BAR, EAGER_BAR, SAVED_BAR = 20.0, 1.10, 0.95, 1.0, 1.0
PEER_BARS = {"ort": (1.5, 1.0), "torch.compile": (1.3, 0.95), "torch.compile-freezing": (1.3, 0.95)}  # mean, each
BLANK = "–"


def aligned(rows: list[list[str]]) -> str:
    """Rows as aligned text, the first one underlined."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for label, *cells in rows:
        padded = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("  ".join([label.ljust(widths[0]), *padded]))
    return "\n".join([lines[0], "─" * len(lines[0]), *lines[1:]])


def steady(result: dict[str, Any], clock: str, backend: str) -> float | None:
    """The median step of a backend, in seconds."""
    figures = result["steady"].get(backend)
    return statistics.median(round[clock] for round in figures) if figures else None


def speed(result: dict[str, Any], clock: str, other: str) -> float | None:
    """How much faster smelt is: the median over rounds of the quotient within a round, where the rounds were
    recorded."""
    if "speed" in result:
        given: float | None = result["speed"].get(other)
        return given
    turns = {b: [turn[clock] for turn in rounds] for b, rounds in result["steady"].items()}
    return ratio(turns, other, "smelt") if other in turns and "smelt" in turns else None


def quotient(figures: dict[str, float], other: str) -> float | None:
    mine, theirs = figures.get("smelt"), figures.get(other)
    return theirs / mine if mine and theirs else None


def memory(result: dict[str, Any]) -> float | None:
    """The memory of a whole step, as a part of eager's."""
    found = quotient(result.get("peak", {}), "eager")
    return None if found is None else 1 / found


def _cell(value: float | None, form: str = "{:.2f}") -> str:
    return BLANK if value is None else form.format(value)


def report(result: dict[str, Any], backends: Sequence[str], clock: str) -> str:
    """One model: the figure of each backend, then smelt against each of the others."""
    others = [b for b in backends if b != "smelt"]

    def row(label: str, figures: dict[str, float], form: str, scale: float = 1.0) -> list[str]:
        cells = [_cell(figures[b] * scale if b in figures else None, form) for b in backends]
        return [label, *cells, *(_cell(quotient(figures, b), "{:.2f}×") for b in others)]

    medians = {b: found for b in backends if (found := steady(result, clock, b)) is not None}
    times = row("steady step, ms", medians, "{:.2f}", 1e3)
    times[1 + len(backends) :] = [_cell(speed(result, clock, other), "{:.2f}×") for other in others]
    rows = [row("first step, s", result["first"], "{:.2f}"), times]
    if result["saved"]:
        rows.append(row("saved for backward, MB", result["saved"], "{:.2f}", 1e-6))
    if result.get("peak"):
        rows.append(row("memory at the peak, MB", result["peak"], "{:.1f}", 1e-6))
    if result["error"]:
        rows.append(row("error against float64", result["error"], "{:.1e}"))
    what = model_named(result["model"], result.get("device", "cpu")).what
    title = f"\n{result['model']}, {result['mode']}, {result['dtype']}: {what}"
    lines = [title, aligned([["", *backends, *(f"{other}/smelt" for other in others)], *rows])]
    wrong = [backend for backend, within in result["within"].items() if not within]
    lines += [f"{backend}: error more than twice eager's plus 4 ulp" for backend in wrong]
    if result["breaks"].get("smelt"):
        lines.append(f"smelt: {result['breaks']['smelt']} graph break(s)")
    lines += [f"{backend} failed: {reason}" for backend, reason in result["failed"].items()]
    return "\n".join(lines)


def mean(values: Iterable[float | None]) -> float | None:
    """The geometric mean of those that are known."""
    known = [value for value in values if value is not None]
    return math.exp(sum(map(math.log, known)) / len(known)) if known else None


def _kinds(results: Sequence[dict[str, Any]]) -> list[tuple[str, str, list[dict[str, Any]]]]:
    order = {name: place for place, name in enumerate(MODELS | SMALL_MODELS)}
    found = []
    kinds = {(r["mode"], r["dtype"]) for r in results}
    for mode, dtype in sorted(kinds, key=lambda kind: (kind[1] != "float32", kind[0] != "train")):
        these = [r for r in results if (r["mode"], r["dtype"]) == (mode, dtype)]
        found.append((mode, dtype, sorted(these, key=lambda r: order[r["model"].partition("/")[0]])))
    return found


def _with_peers(result: dict[str, Any]) -> bool:
    """Whether others than torch.compile were measured, too."""
    return not {"eager", "smelt", "torch.compile"} >= {*result["steady"], *result.get("failed", {})}


def _beside_peers(mode: str, dtype: str, these: Sequence[dict[str, Any]], clock: str) -> str:
    """Steps of all backends, and how much faster smelt is than each; then what failed, and why."""
    peers = [peer for peer in PEER_BARS if any(peer in r["steady"] or peer in r["failed"] for r in these)]
    others = ["eager", *peers]
    head = [f"{mode}, {dtype}: step, ms", "eager", "smelt", *peers, *(f"{other}/smelt" for other in others)]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for r in these:
        times = [steady(r, clock, b) for b in ("eager", "smelt", *peers)]
        cells = [_cell(None if t is None else t * 1e3, "{:.2f}") for t in times]
        cells += [_cell(speed(r, clock, other), "{:.2f}×") for other in others]
        lines.append("| " + " | ".join([r["model"], *cells]) + " |")
    means = [_cell(mean(speed(r, clock, other) for r in these), "{:.2f}×") for other in others]
    lines.append("| " + " | ".join(["geometric mean", *[""] * (2 + len(peers)), *means]) + " |")
    failed = [f"- {r['model']}: {backend} failed: {why}" for r in these for backend, why in r["failed"].items()]
    return "\n".join([*lines, *(["", *failed] if failed else [])])


def _peer_bars(mode: str, dtype: str, these: Sequence[dict[str, Any]], clock: str) -> list[str]:
    """What was asked of smelt beside each peer."""
    lines = []
    for peer, (mean_bar, single_bar) in PEER_BARS.items():
        found = {r["model"]: figure for r in these if (figure := speed(r, clock, peer)) is not None}
        if (average := mean(found.values())) is None:
            continue
        verdict = "holds" if average >= mean_bar else "missed"
        what = f"{mode}, {dtype}: speed against {peer}"
        lines.append(f"{what} {average:.2f}×, geometric mean; {mean_bar:.2f}× asked: {verdict}")
        missed = [f"{model} {figure:.2f}×" for model, figure in found.items() if figure < single_bar]
        lines += [f"{what}, {single_bar:.2f}× asked of each: missed by {', '.join(missed)}"] if missed else []
    return lines


def markdown(results: Sequence[dict[str, Any]], clock: str) -> str:
    """All results: a table for each mode and dtype, with geometric means."""
    parts = [*(_beside_peers(*kind, clock) for kind in _kinds([r for r in results if _with_peers(r)]))]
    for mode, dtype, these in _kinds([r for r in results if not _with_peers(r)]):
        training = mode == "train"
        head = f"| {mode}, {dtype} | first step, s: smelt | torch.compile | ratio "
        head += "| step, ms: eager | smelt | torch.compile | eager/smelt | torch.compile/smelt |"
        head += " saved, MB: eager | smelt | torch.compile |" if training else ""
        head += " peak, MB: eager | smelt | smelt/eager |" if mode == "step" else ""
        lines = [head, "|---" * (head.count("|") - 1) + "|"]
        for r in these:
            cells = [r["model"], _cell(r["first"].get("smelt")), _cell(r["first"].get("torch.compile"))]
            cells.append(_cell(quotient(r["first"], "torch.compile"), "{:.0f}×"))
            times = [steady(r, clock, b) for b in ("eager", "smelt", "torch.compile")]
            cells += [_cell(None if t is None else t * 1e3, "{:.1f}") for t in times]
            cells += [_cell(speed(r, clock, b), "{:.2f}×") for b in ("eager", "torch.compile")]
            if training:
                saved = [r["saved"].get(b) for b in ("eager", "smelt", "torch.compile")]
                cells += [_cell(None if s is None else s / 1e6, "{:.1f}") for s in saved]
            if mode == "step":
                peaks = [r["peak"].get(b) for b in ("eager", "smelt")]
                cells += [_cell(None if p is None else p / 1e6, "{:.1f}") for p in peaks]
                cells.append(_cell(memory(r)))
            lines.append("| " + " | ".join(cells) + " |")
        means = [_cell(mean(quotient(r["first"], "torch.compile") for r in these), "{:.0f}×"), "", "", ""]
        means += [_cell(mean(speed(r, clock, b) for r in these), "{:.2f}×") for b in ("eager", "torch.compile")]
        if training:
            means += ["", _cell(mean(quotient(r["saved"], "eager") for r in these), "{:.2f}× less")]
            means += [_cell(mean(quotient(r["saved"], "torch.compile") for r in these), "{:.2f}× less")]
        if mode == "step":
            means += ["", "", _cell(mean(map(memory, these)))]
        lines.append("| geometric mean | | | " + " | ".join(means) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join([*parts, "\n".join(f"- {line}" for line in bars(results, clock))])


def bars(results: Sequence[dict[str, Any]], clock: str) -> list[str]:
    """What was asked of each kind of run, and every model that misses it."""
    lines = []
    for kind in _kinds([r for r in results if _with_peers(r)]):
        lines += _peer_bars(*kind, clock)
    for mode, dtype, these in _kinds([r for r in results if not _with_peers(r)]):
        means = (
            ("first step against torch.compile", mean(quotient(r["first"], "torch.compile") for r in these), FIRST_BAR),
            (
                "speed against torch.compile",
                mean(speed(r, clock, "torch.compile") for r in these),
                STEP_BAR if mode == "step" else STEADY_BAR,
            ),
        )
        for what, found, bar in means:
            if found is not None:
                verdict = "holds" if found >= bar else "missed"
                lines.append(f"{mode}, {dtype}: {what} {found:.2f}×, geometric mean; {bar:.2f}× asked: {verdict}")
        used = mean(map(memory, these))
        if used is not None:
            verdict = "holds" if used <= PEAK_BAR else "missed"
            lines.append(f"{mode}, {dtype}: memory against eager {used:.2f}, {PEAK_BAR:.2f} asked: {verdict}")
        for r in these:
            single = (
                ("speed against torch.compile", speed(r, clock, "torch.compile"), COMPILE_BAR),
                ("speed against eager", speed(r, clock, "eager"), EAGER_BAR),
                ("saved bytes, torch.compile's to smelt's", quotient(r["saved"], "torch.compile"), SAVED_BAR),
            )
            for what, found, bar in single:
                if found is not None and found < bar:
                    lines.append(f"{mode}, {dtype}: {r['model']} misses {bar:.2f}× in {what}: {found:.2f}×")
    return lines
