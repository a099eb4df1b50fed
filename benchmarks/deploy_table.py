"""Results of `benchmarks.deploy` as Markdown, a row a model, and under it every bar that is missed.

    {"model": "gpt2", "mode": "infer", "first": {…}, "start": […], "steady": {…}, …}  →  | gpt2 | 1.08× | 9.4 | …
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.measure import ratio

EXPORT_BAR, MEMORY_BAR, FILE_BAR = 2.0, 1.2, 200_000
START_BAR, START_MODEL = 0.030, "gpt2-prompt"  # seconds on the clock, of a GPT-2 of 15 MB
PYTHON_BARS = {"infer": 0.97, "step": 0.95}
ORT_MEAN, ORT_EACH = 1.3, 0.95
BLANK = "–"


def export_ratio(result: dict[str, Any]) -> float:
    """Export against smelt's first call: medians of fresh processes."""
    taken = {who: statistics.median(run["processor"] for run in result["first"][who]) for who in ("export", "smelt")}
    return float(taken["export"] / taken["smelt"])


def step(result: dict[str, Any], who: str) -> float:
    """The median step in seconds of processor time."""
    return float(statistics.median(turn["processor"] for turn in result["steady"][who]))


def speed(result: dict[str, Any], other: str) -> float | None:
    """How much faster the C program is: the median over rounds of the quotient within a round."""
    turns = {who: [turn["processor"] for turn in rounds] for who, rounds in result["steady"].items()}
    return ratio(turns, other, "c") if other in turns else None


def added(result: dict[str, Any]) -> float:
    """Processor time from exec to the first result beyond that of a later step."""
    return float(statistics.median(each["processor"] for each in result["start"])) - step(result, "c")


def start_seconds(result: dict[str, Any]) -> float:
    """Seconds on the clock to the first result; the least, as others wait for the processor, too."""
    return float(min(each["seconds"] for each in result["start"]))


def memory_ratio(result: dict[str, Any]) -> float:
    peak = statistics.median(each["peak"] for each in result["start"])
    return float((peak - result["inputs"]) / (result["weights"] + result["state"] + result["plan"]))


def beyond_weights(result: dict[str, Any]) -> int:
    return int(result["file"] - result["weights"] - result["state"])


def mean(figures: Iterable[float]) -> float:
    return math.exp(statistics.mean(map(math.log, figures)))


def _cell(value: float | None, form: str = "{:.2f}×") -> str:
    return BLANK if value is None else form.format(value)


def _row(result: dict[str, Any], peers: Sequence[str]) -> list[str]:
    return [
        result["model"],
        _cell(export_ratio(result)),
        _cell(1e3 * start_seconds(result), "{:.1f}"),
        _cell(1e3 * added(result), "{:.1f}"),
        _cell(memory_ratio(result)),
        _cell(beyond_weights(result) / 1e3, "{:.0f}"),
        _cell(1e3 * step(result, "c"), "{:.2f}"),
        *(_cell(speed(result, other)) for other in ("smelt", *peers)),
    ]


def _table(mode: str, results: Sequence[dict[str, Any]]) -> list[str]:
    peers = [who for who in ("ort", "aotinductor") if any(who in result["steady"] for result in results)]
    head = [
        mode, "export / first call", "to the first result, ms", "of which start, ms of processor",
        "peak / (weights + plan)", "file beyond weights, kB", "step in C, ms", "smelt / C",
        *(f"{who} / C" for who in peers),
    ]  # fmt: skip
    rows = [_row(result, peers) for result in results]
    if len(results) > 1:
        means = [mean(export_ratio(result) for result in results), None, None, None, None, None]
        for other in ("smelt", *peers):
            found = [each for result in results if (each := speed(result, other)) is not None]
            means.append(mean(found))
        rows.append(["geometric mean", *(" " if each is None else _cell(each) for each in means)])
    return ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]


def missed(results: Sequence[dict[str, Any]]) -> list[str]:
    """What misses its bar, a line each."""
    found = []
    for result in results:
        name = f"{result['model']}, {result['mode']}"
        against = speed(result, "smelt") or 0.0
        beside = speed(result, "ort")
        checks = [
            (export_ratio(result) <= EXPORT_BAR, f"export takes {export_ratio(result):.2f} of the first call"),
            (memory_ratio(result) <= MEMORY_BAR, f"the peak is {memory_ratio(result):.2f} of weights and plan"),
            (beyond_weights(result) <= FILE_BAR, f"the file has {beyond_weights(result)} bytes beside weights"),
            (against >= PYTHON_BARS[result["mode"]], f"a step in C has {against:.2f} of the speed in Python"),
            (beside is None or beside >= ORT_EACH, f"a step in C has {beside or 0:.2f} of ONNX Runtime's speed"),
            (result["model"] != START_MODEL or start_seconds(result) <= START_BAR,
             f"the first result is there after {1e3 * start_seconds(result):.1f} ms"),
            (result["right"], "the result is not eager's"),
        ]  # fmt: skip
        found += [f"{name}: {text}" for holds, text in checks if not holds]
    beside_all = [each for result in results if (each := speed(result, "ort")) is not None]
    if len(beside_all) > 1 and mean(beside_all) < ORT_MEAN:
        found.append(f"beside ONNX Runtime: {mean(beside_all):.2f} in geometric mean, where the bar is {ORT_MEAN}")
    return found


def markdown(results: Sequence[dict[str, Any]]) -> str:
    """Tables by mode, then what is missed and what failed."""
    lines: list[str] = []
    whole = [result for result in results if "steady" in result]
    for mode in PYTHON_BARS:
        if of_mode := [result for result in whole if result["mode"] == mode]:
            lines += [*_table(mode, of_mode), ""]
    lines += [f"- missed: {text}" for text in missed(whole)]
    for result in results:
        lines += [f"- {result['model']}, {result['mode']}, {who}: {why}" for who, why in result["failed"].items()]
    return "\n".join(lines)
