"""The picture of the README: first and later training steps of smelt and torch.compile, as SVG, light and dark.

    python -m benchmarks.plot [RESULTS] [--to FOLDER]
    benchmarks/results.json  →  docs/assets/benchmarks-light.svg, benchmarks-dark.svg

RESULTS is what `benchmarks.run --json` writes; `benchmarks.run --plot FOLDER` draws what it has just measured. A row a
model, a mark a compiler, both axes logarithmic: on such an axis equal distances are equal ratios. Text stays text, so
that it can be searched and read aloud, and is large enough to be read on a telephone.
"""

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.table import mean, quotient, speed

ROOT = Path(__file__).parents[1]
RESULTS, ASSETS = ROOT / "benchmarks" / "results.json", ROOT / "docs" / "assets"
LABELS = {
    "mlp": "MLP",
    "pointwise": "pointwise",
    "gpt2": "GPT-2",
    "bert": "BERT",
    "llama": "Llama",
    "distilbert": "DistilBERT",
    "vit": "ViT",
    "resnet": "ResNet",
    "mobilenet": "MobileNetV2",
}
WIDTH, LEFT, RIGHT, ROW = 560, 112, 66, 24  # of the picture, of the labels, of the ratios, of a model's row
FONT = "-apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"


@dataclass(frozen=True)
class Theme:
    """Colours of a page; the two compilers differ in shape as well."""

    text: str
    faint: str
    grid: str
    smelt: str
    other: str


THEMES = {
    "light": Theme(text="#1f2328", faint="#59636e", grid="#d1d9e0", smelt="#c8501e", other="#3d6fb4"),
    "dark": Theme(text="#f0f6fc", faint="#9198a1", grid="#3d444d", smelt="#ff9a5c", other="#79b0f2"),
}


@dataclass(frozen=True)
class Row:
    """A model: its figure by smelt and by torch.compile, and what is written at the right."""

    label: str
    smelt: float
    other: float
    ratio: str


@dataclass(frozen=True)
class Panel:
    """One axis with all models."""

    title: str
    better: str  # which way
    ticks: dict[float, str]
    rows: list[Row]
    strong: float | None = None  # a tick that matters more than the others

    def place(self, value: float) -> float:
        low, high = min(self.ticks), max(self.ticks)
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(value / low) / math.log(high / low)

    @property
    def height(self) -> int:
        return 34 + ROW * len(self.rows) + 28


def first_steps(results: Sequence[dict[str, Any]]) -> Panel:
    """Seconds until the first gradients."""
    rows = []
    for result in results:
        ratio = quotient(result["first"], "torch.compile")
        assert ratio is not None
        first = result["first"]
        rows.append(Row(LABELS[result["model"]], first["smelt"], first["torch.compile"], f"{ratio:.0f}×"))
    title = f"First training step, with compiling: {_mean(results, _first):.0f}× shorter"
    ticks = {0.1: "0.1 s", 1.0: "1 s", 10.0: "10 s", 100.0: "100 s"}
    return Panel(title, "← better", _wide_enough(ticks, rows, 10.0, "{:g} s"), rows)


def later_steps(results: Sequence[dict[str, Any]]) -> Panel:
    """How many times as fast as eager a later step is."""
    rows = []
    for result in results:
        over_eager, over_other = _eager(result), _other(result)
        rows.append(Row(LABELS[result["model"]], over_eager, over_eager / over_other, f"{over_other:.2f}×"))
    title = f"Later training steps: {_mean(results, _other):.2f}× torch.compile's speed"
    ticks = {0.5: "0.5×", 1.0: "eager", 2.0: "2×", 4.0: "4×"}
    return Panel(title, "better →", _wide_enough(ticks, rows, 2.0, "{:g}×"), rows, strong=1.0)


def _first(result: dict[str, Any]) -> float:
    return float(quotient(result["first"], "torch.compile") or math.nan)


def _eager(result: dict[str, Any]) -> float:
    return float(speed(result, "seconds", "eager") or math.nan)


def _other(result: dict[str, Any]) -> float:
    return float(speed(result, "seconds", "torch.compile") or math.nan)


def _mean(results: Sequence[dict[str, Any]], figure: Callable[[dict[str, Any]], float]) -> float:
    return mean(map(figure, results)) or math.nan


def _wide_enough(ticks: dict[float, str], rows: Sequence[Row], step: float, form: str) -> dict[float, str]:
    """More ticks where a figure is outside of them."""
    figures = [figure for row in rows for figure in (row.smelt, row.other)]
    while max(figures) > max(ticks) * 1.6:
        ticks = {**ticks, max(ticks) * step: form.format(max(ticks) * step)}
    while min(figures) < min(ticks):
        ticks = {min(ticks) / step: form.format(min(ticks) / step), **ticks}
    return ticks


def svg(panels: Sequence[Panel], theme: Theme, about: str) -> str:
    """The picture as text."""
    height = 40 + sum(panel.height for panel in panels) + 18
    spoken = ". ".join(f"{p.title} ({', '.join(f'{row.label} {row.ratio}' for row in p.rows)})" for p in panels)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-labelledby="title desc" font-family="{FONT}" font-size="15" fill="{theme.text}">',
        '<title id="title">smelt beside torch.compile, training in float32</title>',
        f'<desc id="desc">{escape(spoken)}.</desc>',
        *_legend(theme),
    ]
    top = 40
    for panel in panels:
        lines += _drawn(panel, top, theme)
        top += panel.height
    lines += [_text(0, height - 6, about, fill=theme.faint, size=12), "</svg>"]
    return "\n".join(lines) + "\n"


def _legend(theme: Theme) -> list[str]:
    return [
        _mark(LEFT + 6, 14, theme, smelt=True),
        _text(LEFT + 18, 19, "smelt"),
        _mark(LEFT + 86, 14, theme, smelt=False),
        _text(LEFT + 98, 19, "torch.compile"),
    ]


def _drawn(panel: Panel, top: float, theme: Theme) -> list[str]:
    lines = [_text(0, top + 16, panel.title, weight="600")]
    lines.append(_text(WIDTH, top + 16, panel.better, anchor="end", fill=theme.faint, size=13))
    first, last = top + 28, top + 34 + ROW * len(panel.rows)
    for value, label in panel.ticks.items():
        x, strong = panel.place(value), value == panel.strong
        lines.append(
            f'<path d="M{x:.1f} {first}V{last}" stroke="{theme.faint if strong else theme.grid}" '
            f'stroke-width="{1.5 if strong else 1}"/>'
        )
        lines.append(_text(x, last + 15, label, anchor="middle", fill=theme.faint, size=13))
    for place, row in enumerate(panel.rows):
        y = top + 34 + ROW * place + ROW / 2
        ends = sorted((panel.place(row.smelt), panel.place(row.other)))
        lines += [
            _text(LEFT - 12, y + 5, row.label, anchor="end"),
            f'<path d="M{ends[0]:.1f} {y}H{ends[1]:.1f}" stroke="{theme.grid}" stroke-width="4"/>',
            _mark(panel.place(row.other), y, theme, smelt=False),
            _mark(panel.place(row.smelt), y, theme, smelt=True),
            _text(WIDTH, y + 5, row.ratio, anchor="end"),
        ]
    return lines


def _mark(x: float, y: float, theme: Theme, *, smelt: bool) -> str:
    if smelt:
        return f'<circle cx="{x:.1f}" cy="{y}" r="6" fill="{theme.smelt}"/>'
    return f'<rect x="{x - 5:.1f}" y="{y - 5}" width="10" height="10" fill="{theme.other}"/>'


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", fill: str = "", size: int = 0, weight: str = ""
) -> str:
    given = {"text-anchor": "" if anchor == "start" else anchor, "fill": fill, "font-size": str(size or "")}
    given["font-weight"] = weight
    written = "".join(f' {name}="{value}"' for name, value in given.items() if value)
    return f'<text x="{x:.1f}" y="{y:.1f}"{written}>{escape(text)}</text>'


def pictures(found: dict[str, Any]) -> dict[str, str]:
    """The picture by the name of its file; empty where nothing in `found` can be drawn."""
    compared = [
        result
        for result in found["results"]
        if (result["mode"], result["dtype"]) == ("train", "float32")
        and {"smelt", "torch.compile"} <= result["first"].keys()
        and {"eager", "smelt", "torch.compile"} <= result["steady"].keys()
    ]
    if not compared:
        return {}
    machine = found["machine"]
    named = machine.get("processor", machine.get("machine", ""))
    about = f"float32; {named.split(',')[0]}; torch {machine['torch']}; at the right: torch.compile's time / smelt's"
    panels = [first_steps(compared), later_steps(compared)]
    return {f"benchmarks-{name}.svg": svg(panels, theme, about) for name, theme in THEMES.items()}


def draw(found: dict[str, Any], folder: Path) -> list[Path]:
    """Write the pictures of results; which were written."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in pictures(found).items():
        (folder / name).write_text(text, encoding="utf-8")
        written.append(folder / name)
    return written


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.plot", description="the picture of the README")
    parser.add_argument("results", type=Path, nargs="?", default=RESULTS, help="what benchmarks.run --json wrote")
    parser.add_argument("--to", type=Path, default=ASSETS, help="the folder of the pictures (docs/assets)")
    args = parser.parse_args()
    for path in draw(json.loads(args.results.read_text(encoding="utf-8")), args.to):
        print(f"smelt: wrote {path}")


if __name__ == "__main__":
    main()
