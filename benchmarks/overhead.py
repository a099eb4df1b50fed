"""What a call costs beyond its work: µs per call of a function that does next to nothing.

    python -m benchmarks.overhead [--rounds 15] [--json FILE]

`bare` is the plain function; the backends take turns in one process. The second line of each adds a module of 28 small
layers, whose every parameter a compiled entry has to be sure of.
"""

import argparse
import functools
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.harness import compiled_by
from benchmarks.measure import interleaved


def tiny(x: torch.Tensor) -> torch.Tensor:
    return x + 1


class Deep(nn.Module):
    """28 linear layers of width 4: almost no arithmetic, many parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(28))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def measured(function: Callable[..., Any], x: torch.Tensor, backends: list[str], rounds: int) -> dict[str, float]:
    """Median µs per call of `function(x)` under each backend; one that fails is reported and left out."""
    calls: dict[str, Callable[[], object]] = {}
    for backend in backends:
        call = functools.partial(compiled_by(backend, function), x)
        try:
            for _ in range(5):
                call()
        except Exception as error:  # the other backends' figures still count
            print(f"{backend} failed: {error}", file=sys.stderr)
            continue
        calls["bare" if backend == "eager" else backend] = call
    seconds = interleaved(calls, rounds, per_round=0.02)
    return {name: statistics.median(found) * 1e6 for name, found in seconds.items()}


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.overhead", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--backends", nargs="+", default=["eager", "smelt", "peer"])
    parser.add_argument("--json", type=Path, help="also write every figure here")
    args = parser.parse_args()
    with torch.no_grad():
        figures = {
            "x + 1": measured(tiny, torch.randn(4), args.backends, args.rounds),
            "28 layers": measured(Deep(), torch.randn(4), args.backends, args.rounds),
        }
    for what, found in figures.items():
        print(f"{what:10}" + "".join(f"  {name} {value:8.1f} µs" for name, value in found.items()))
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1))
    return int("smelt" in args.backends and not all("smelt" in found for found in figures.values()))


if __name__ == "__main__":
    sys.exit(main())
