"""A cost model of products, fitted to figures of `benchmarks.products`: what the compiler chooses by.

    seconds = call + flops · (1 / rate) + bytes read · (1 / bandwidth) + bytes written · (1 / bandwidth)

for each way to compute a product (the library, or one of our schedules), each form, dtype and number of threads. No
constant is negative, and relative errors are made small: a product of 64³ counts as much as one of 1024³. Beside that,
how long a cycle is that schedules estimate: about the same for all of them, if they are to be compared.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from smelt.pipeline.calibration.fit import fitted

if TYPE_CHECKING:
    from benchmarks.products import Figure, Shape

LIBRARY = "library"
TERMS = ("call", "flops", "read", "written")
BAR, LOSS = 1.03, 0.97  # ours is chosen where the model says so much faster; what may be lost by it


@dataclass(frozen=True, slots=True)
class Group:
    """The figures that share constants."""

    by: str
    form: str
    dtype: str
    threads: int

    @classmethod
    def of(cls, figure: "Figure") -> "Group":
        return cls(figure.by, figure.shape.form, figure.shape.dtype, figure.threads)

    def __str__(self) -> str:
        return f"{self.by} {self.form} {self.dtype}, {self.threads} thread{'s' * (self.threads > 1)}"


Constants = tuple[float, ...]  # seconds a call, a flop, a byte read, a byte written


def terms(shape: "Shape") -> tuple[float, ...]:
    """What the constants of a model are multiplied with."""
    size = getattr(torch, shape.dtype).itemsize
    read = shape.depth * (shape.rows + shape.cols) * size
    return 1.0, float(shape.flops), float(read), float(shape.rows * shape.cols * size)


def predicted(constants: Constants, shape: "Shape") -> float:
    """Seconds by the model."""
    return sum(constant * term for constant, term in zip(constants, terms(shape), strict=True))


def fit(figures: Sequence["Figure"]) -> dict[Group, Constants]:
    """Constants for each group."""
    groups: dict[Group, list[Figure]] = {}
    for figure in figures:
        groups.setdefault(Group.of(figure), []).append(figure)
    return {
        group: fitted([terms(each.shape) for each in these], [each.seconds for each in these])
        for group, these in groups.items()
    }


@dataclass(frozen=True, slots=True)
class Choice:
    """What the model chooses for a product, and what that is worth: the library's time over it, and the best one's."""

    shape: "Shape"
    threads: int
    by: str
    ratio: float
    best: str
    best_ratio: float


def choices(figures: Sequence["Figure"], constants: Mapping[Group, Constants]) -> list[Choice]:
    """Of every product that was measured."""
    found = []
    for (shape, threads), these in _by_product(figures).items():
        costs = {each.by: predicted(constants[Group.of(each)], shape) for each in these}
        ratios = {each.by: each.ratio for each in these}
        ours = min((name for name in costs if name != LIBRARY), key=costs.__getitem__, default=LIBRARY)
        chosen = ours if costs[LIBRARY] >= BAR * costs[ours] else LIBRARY
        best = max(ratios, key=ratios.__getitem__)
        found.append(Choice(shape, threads, chosen, ratios[chosen], best, ratios[best]))
    return found


def estimates(figures: Sequence["Figure"]) -> list[str]:
    """How long an estimated cycle is by each schedule, and where another one than the chosen is faster."""
    lines = [f"{'ns an estimated cycle':36}  median   tenth  ninth tenth"]
    for by, threads in sorted({(each.by, each.threads) for each in figures if each.cycles}):
        times = sorted(each.seconds * 1e9 / each.cycles for each in figures if (each.by, each.threads) == (by, threads))
        median, low, high = (times[int(len(times) * part)] for part in (0.5, 0.1, 0.9))
        told = f"{by}, {threads} thread{'s' * (threads > 1)}"
        lines.append(f"{told:36} {median:7.3f} {low:7.3f} {high:12.3f}")
    for (shape, threads), these in _by_product(figures).items():
        ours = {each.by: each for each in these if each.by != LIBRARY}
        chosen = next((each for each in ours.values() if each.chosen), None)
        best = max(ours.values(), key=lambda each: each.ratio, default=None)
        if chosen is not None and best is not None and best.ratio > BAR * chosen.ratio:
            told = f"{best.by} {best.ratio / chosen.ratio:.2f} times as fast as {chosen.by}, which is chosen"
            lines.append(f"{shape!s:24} {threads:2} {told}")
    return lines


def _by_product(figures: Sequence["Figure"]) -> "dict[tuple[Shape, int], list[Figure]]":
    found: dict[tuple[Shape, int], list[Figure]] = {}
    for figure in figures:
        found.setdefault((figure.shape, figure.threads), []).append(figure)
    return found


def report(figures: Sequence["Figure"]) -> list[str]:
    """The constants with how far they are off, then what is chosen by them and where that is wrong."""
    constants = fit(figures)
    lines = [f"{'':36} call, µs  GFLOP/s  GB/s read  written   error: median  worst"]
    for group, values in sorted(constants.items(), key=lambda item: str(item[0])):
        these = [each for each in figures if Group.of(each) == group]
        errors = [abs(predicted(values, each.shape) / each.seconds - 1) for each in these]
        rates = [f"{1e-9 / value:.1f}" if value else "–" for value in values[1:]]
        lines.append(
            f"{group!s:36} {values[0] * 1e6:8.2f} {rates[0]:>8} {rates[1]:>10} {rates[2]:>8}   "
            f"{statistics.median(errors):13.0%} {max(errors):6.0%}"
        )
    lines += ["", *estimates(figures), ""]
    for choice in choices(figures, constants):
        told = f"{choice.shape!s:24} {choice.threads:2} {choice.by:10} {choice.ratio:5.2f}"
        if choice.ratio < LOSS:
            told += "   a loss"
        elif choice.best_ratio > BAR * choice.ratio:
            told += f"   {choice.best} has {choice.best_ratio:.2f}"
        lines.append(told)
    return lines
