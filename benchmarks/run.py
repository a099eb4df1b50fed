"""`make bench`: the table of ratios between eager PyTorch, smelt and torch.compile ("peer").

    python -m benchmarks.run [--models mlp pointwise] [--backends eager smelt peer] [--rounds 15] [--json FILE]

docs/benchmarks.md says how each figure is taken. The exit code is 1 if smelt fails on a model or breaks the numerical
rule there; the peer failing (no C++ compiler, say) is only reported.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks import harness, measure
from benchmarks.models import MODELS


def say(text: str) -> None:
    print(f"  … {text}", file=sys.stderr, flush=True)


def table(rows: list[list[str]]) -> str:
    """Rows as aligned text, the first one underlined."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for label, *cells in rows:
        padded = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("  ".join([label.ljust(widths[0]), *padded]))
    return "\n".join([lines[0], "─" * len(lines[0]), *lines[1:]])


def rows_of(result: dict[str, Any], backends: list[str]) -> list[list[str]]:
    """One row per measure: the figure of each backend, then smelt against eager and against the peer."""

    def row(label: str, figures: dict[str, float], form: str, scale: float = 1.0) -> list[str]:
        cells = [form.format(figures[b] * scale) if b in figures else "–" for b in backends]
        mine = figures.get("smelt")
        versus = [f"{figures[b] / mine:.2f}×" if mine and b in figures else "–" for b in ("eager", "peer")]
        return [label, *cells, *versus]

    steady = result.get("steady", {})
    medians = {backend: statistics.median(seconds) for backend, seconds in steady.items()}
    rows = [
        row("first step, s", result["first"], "{:.2f}"),
        row("steady step, ms", medians, "{:.2f}", 1e3),
        row("saved for backward, MB", result.get("saved", {}), "{:.2f}", 1e-6),
        row("error against float64", result.get("error", {}), "{:.1e}"),
    ]
    if "smelt" in steady:  # within rounds, which a busy machine disturbs less than the medians
        rows[1][-2:] = [f"{measure.ratio(steady, o, 'smelt'):.2f}×" if o in steady else "–" for o in ("eager", "peer")]
    return rows


def report(result: dict[str, Any], backends: list[str]) -> str:
    header = ["", *backends, "eager/smelt", "peer/smelt"]
    lines = [f"\n{result['model']}: {MODELS[result['model']].what}", table([header, *rows_of(result, backends)])]
    for backend, within in result.get("within", {}).items():
        if not within:
            lines.append(f"{backend}: error more than twice eager's plus 4 ulp")
    if result.get("breaks"):
        lines.append(f"smelt: {result['breaks']} graph break(s)")
    lines += [f"{backend} failed: {reason}" for backend, reason in result["failed"].items()]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.run", description="ratios between eager, smelt and torch.compile")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--backends", nargs="+", choices=harness.BACKENDS, default=list(harness.BACKENDS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="also write every figure here")
    args = parser.parse_args()
    backends = [b for b in harness.BACKENDS if b in args.backends or b == "eager"]  # the error rule needs eager
    where = harness.machine()
    print(", ".join(f"{key} {value}" for key, value in where.items()))
    results = []
    for name in args.models:
        results.append(harness.measure(name, backends, args.rounds, say))
        print(report(results[-1], backends), flush=True)
    if args.json:
        args.json.write_text(json.dumps({"machine": where, "results": results}, indent=1))
    return int(any({"smelt", "steady"} & set(r["failed"]) or not r["within"].get("smelt", True) for r in results))


if __name__ == "__main__":
    sys.exit(main())
