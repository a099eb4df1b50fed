"""Where the time of a GPU step goes: a table and a picture from the files of `benchmarks.gpu_steps`.

    python -m benchmarks.gpu_steps --peers --json build/steps.json --out build/steps
    python -m benchmarks.gpu_time build/steps.json build/steps [--ways smelt torch.compile] [--to FOLDER]
    python -m benchmarks.gpu_time build/steps.json

Each step is split into the kernels of libraries (products and convolutions, attention, layout conversions), generated
kernels, the kernels of eager PyTorch, copies and fills, and gaps, in which the GPU waits. `--to` writes the pictures,
`gpu-time-light.svg` and `gpu-time-dark.svg`, a bar per program and way; without it the table is printed. Without a
folder the times of whole steps are printed, with ratios and their geometric means.
"""

import argparse
import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.plot import FONT, THEMES, Theme
from benchmarks.plot import LABELS as MODEL_LABELS

# The first pattern that a kernel's name contains decides.
KINDS: tuple[tuple[str, str], ...] = (
    ("attention", r"flash|fmha|attention|sdpa|softmax_(?:fwd|bwd)_kernel"),
    ("conversion", r"nchwToNhwc|nhwcToNchw|nchw_to_nhwc|nhwc_to_nchw|tensorTransform|convertTensor"),
    ("product", r"gemm|gemv|nvjet|cutlass|xmma|cublas|splitK|cudnn|conv|winograd|dgrad|wgrad|fprop|implicit|bn_"),
    ("generated", r"^smelt|^triton|^[kf]_?\d"),
    ("copy", r"^Memcpy|^Memset|memcpy|memset"),
    ("eager", r"at::native|at_cuda|cub::|void at::|vectorized_elementwise|multi_tensor|thrust"),
)
NAMES = {
    "product": "products, convolutions",
    "attention": "attention",
    "conversion": "layout conversions",
    "generated": "generated kernels",
    "eager": "eager kernels",
    "copy": "copies, fills",
    "gap": "gaps",
}
LABELS = MODEL_LABELS | {
    "resnet": "ResNet-50",
    "vit": "ViT-B/16",
    "gpt2-step": "GPT-2, whole step",
    "gpt2-model-step": "GPT-2, whole step, model alone compiled",
    "gpt2-infer": "GPT-2, inference, 1×128",
    "llama-token": "Llama, one token",
    "llama-infer": "Llama, inference, 8×512",
    "qwen3": "Qwen3",
    "t5": "T5",
    "whisper": "Whisper",
    "convnext": "ConvNeXt-T",
    "swin": "Swin-T",
    "transformer": "nn.TransformerEncoder",
}
_COLOURS = {
    "product": "#4c78a8",
    "attention": "#72b7b2",
    "conversion": "#b279a2",
    "generated": "#f58518",
    "eager": "#e45756",
    "copy": "#9d755d",
    "gap": "none",
}
_LINE = re.compile(r"^\s*([\d.]+) us\s+(\d+) x  (.*)$")
_LEFT, _WIDTH, _RIGHT, _ROW, _TOP = 330, 880, 60, 18, 46


def kind_of(kernel: str) -> str:
    """The kind of a kernel by its name; names of no pattern are of eager PyTorch or its extensions."""
    return next((kind for kind, pattern in KINDS if re.search(pattern, kernel)), "eager")


def split(text: str, step: float) -> dict[str, float]:
    """Milliseconds by kind: `text` is the list of kernels that `benchmarks.gpu_steps` writes, `step` the whole step."""
    parts = dict.fromkeys(NAMES, 0.0)
    for found in filter(None, map(_LINE.match, text.splitlines())):
        parts[kind_of(found[3])] += float(found[1]) / 1e3
    parts["gap"] = max(0.0, step - sum(parts.values()))
    return parts


def parts_of(results: Mapping[str, Any], folder: Path, ways: Sequence[str]) -> dict[str, dict[str, dict[str, float]]]:
    """The parts of each step by program and way, where both the figures and the list of kernels exist."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for program, figures in results["programs"].items():
        for way in ways:
            path = folder / f"{program}_{way}.txt"
            if path.exists() and "step" in figures.get(way, {}):
                text = path.read_text(encoding="utf-8")
                found.setdefault(program, {})[way] = split(text, figures[way]["step"])
    return found


def table(parts: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """A table in Markdown, a row per program and way."""
    head = " | ".join(NAMES.values())
    lines = [f"| ms a step | | step | {head} |", "|---" * (len(NAMES) + 3) + "|"]
    for program, ways in parts.items():
        for way, kinds in ways.items():
            cells = " | ".join(f"{kinds[kind]:.2f}" if kinds[kind] >= 0.005 else "" for kind in NAMES)
            lines.append(f"| {LABELS.get(program, program)} | {way} | {sum(kinds.values()):.2f} | {cells} |")
    return "\n".join(lines)


def step_table(programs: Mapping[str, Mapping[str, Mapping[str, Any]]], ways: Sequence[str]) -> str:
    """A table in Markdown of whole steps: milliseconds by way, and the speed against the others, mode against mode."""
    shown = list(dict.fromkeys(("eager", *ways)))
    peers = [way for way in shown if not way.startswith("smelt")]
    head = [f"{way}, ms (busy)" if way == "smelt" else f"{way}, ms" for way in shown]
    lines = [
        f"| | {' | '.join([*head, *(f'smelt against {way}' for way in peers), 'first step, s', 'peak memory, MiB'])} |",
        "|---" * (len(shown) + len(peers) + 3) + "|",
    ]
    logs: dict[str, list[float]] = {way: [] for way in peers}
    for program, figures in programs.items():
        cells = [_step_cell(figures.get(way, {}), way == "smelt") for way in shown]
        for way in peers:
            ours = "smelt-graphs" if way.endswith("-graphs") else "smelt"
            quotient = figures.get(way, {}).get("step", math.nan) / figures.get(ours, {}).get("step", math.nan)
            cells.append("" if math.isnan(quotient) else f"{quotient:.2f}")
            logs[way] += [] if math.isnan(quotient) else [math.log(quotient)]
        compiled = [way for way in ("smelt", "torch.compile") if way in shown]
        cells.append(" / ".join(f"{figures.get(way, {}).get('first', math.nan):.1f}" for way in compiled))
        cells.append(" / ".join(f"{figures.get(way, {}).get('memory', math.nan):,.0f}" for way in ("eager", *compiled)))
        lines.append(f"| {LABELS.get(program, program)} | {' | '.join(cells)} |")
    means = [f"{math.exp(sum(logs[way]) / len(logs[way])):.2f}" if logs[way] else "" for way in peers]
    lines.append(f"| geometric mean | {' | '.join([*('' for _ in shown), *means, '', ''])} |")
    return "\n".join(lines)


def _step_cell(figures: Mapping[str, Any], with_busy: bool) -> str:
    if "step" not in figures:
        return "failed" if figures.get("error") else ""
    return f"{figures['step']:.2f}" + (f" ({figures['busy']:.2f})" if with_busy else "")


def picture(parts: Mapping[str, Mapping[str, Mapping[str, float]]], theme: Theme, title: str) -> str:
    """An SVG: bars of a program have one scale, the longest of its steps fills the width."""
    rows = sum(len(ways) for ways in parts.values())
    height = _TOP + rows * _ROW + len(parts) * 8 + 10
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" font-family="{FONT}" '
        f'font-size="11" fill="{theme.text}">',
        f"<title>{escape(title)}</title>",
        "<desc>A bar per program and compiler; its parts are the kinds of kernels, and the gaps in which the GPU waits."
        "</desc>",
    ]
    x = 8.0
    for kind, name in NAMES.items():
        out.append(_box(x, 12, 10, kind, theme))
        out.append(f'<text x="{x + 14:.0f}" y="21">{escape(name)}</text>')
        x += 26 + 5.6 * len(name)
    y = float(_TOP)
    for program, ways in parts.items():
        longest = max(sum(kinds.values()) for kinds in ways.values())
        scale = (_WIDTH - _LEFT - _RIGHT) / longest
        for at, (way, kinds) in enumerate(ways.items()):
            if at == 0:
                label = LABELS.get(program, program)
                out.append(f'<text x="8" y="{y + 11:.0f}" font-weight="600">{escape(label)}</text>')
            out.append(f'<text x="{_LEFT - 6}" y="{y + 11:.0f}" text-anchor="end">{escape(way)}</text>')
            x = float(_LEFT)
            for kind in NAMES:
                out.append(_box(x, y + 1, kinds[kind] * scale, kind, theme))
                x += kinds[kind] * scale
            out.append(f'<text x="{x + 5:.1f}" y="{y + 11:.0f}">{sum(kinds.values()):.2f} ms</text>')
            y += _ROW
        y += 8
    return "\n".join([*out, "</svg>"]) + "\n"


def _box(x: float, y: float, width: float, kind: str, theme: Theme) -> str:
    line = f' stroke="{theme.faint}" stroke-dasharray="2 2"' if kind == "gap" else ""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="12" fill="{_COLOURS[kind]}"{line}/>'


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.gpu_time", description="where the time of a GPU step goes")
    parser.add_argument("results", type=Path, help="the file of `benchmarks.gpu_steps --json`")
    parser.add_argument("folder", type=Path, nargs="?", help="the folder of `benchmarks.gpu_steps --out`")
    parser.add_argument("--ways", nargs="+", default=["smelt", "smelt-graphs", "torch.compile", "torch.compile-graphs"])
    parser.add_argument("--to", type=Path, help="where to write the pictures")
    given = parser.parse_args()
    results = json.loads(given.results.read_text(encoding="utf-8"))
    if given.folder is None:
        print(step_table(results["programs"], given.ways))
        return 0
    parts = parts_of(results, given.folder, given.ways)
    if given.to is None:
        print(table(parts))
        return 0
    given.to.mkdir(parents=True, exist_ok=True)
    for name, theme in THEMES.items():
        text = picture(parts, theme, f"Where the time of a GPU step goes: {results['device']}")
        (given.to / f"gpu-time-{name}.svg").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
