"""What compiled autograd costs at steady state: µs per training step of four Linears, forward and backward.

    python -m benchmarks.compiled_autograd [--width 10] [--batch 10] [--rounds 15] [--torch-compile] [--json FILE]

`eager` is PyTorch as it is. `smelt` leaves the forward to PyTorch and compiles the backward, `smelt, both` compiles the
forward too; torch.compile's two do the same. All take turns in one process, and what counts is the processor time of
the calling thread.
"""

import argparse
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from benchmarks.measure import interleaved, ratio


def linears(width: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(width, width) for _ in range(4)])


def step(model: nn.Module, forward: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> None:
    model.zero_grad()
    forward(x).sum().backward()


def steps(width: int, batch: int, torch_compile: bool) -> dict[str, Callable[[], None]]:
    """A step of each kind, warmed up."""
    import smelt

    x = torch.randn(batch, width)
    compiler = smelt.compile()
    found: dict[str, Callable[[], None]] = {}

    def plain() -> None:
        step(bare, bare, x)

    bare = linears(width)
    found["eager"] = plain
    for name, compiled in (("smelt", False), ("smelt, both", True)):
        model = linears(width)
        forward = smelt.compile(model) if compiled else model

        def by_smelt(model: nn.Module = model, forward: nn.Module = forward) -> None:
            with smelt.compiled_autograd.enable(compiler):
                step(model, forward, x)

        found[name] = by_smelt
    if torch_compile:
        enable = importlib.import_module("torch._dynamo.compiled_autograd")._enable
        theirs = torch.compile()
        for name, compiled in (("torch.compile", False), ("torch.compile, both", True)):
            other = linears(width)
            call = torch.compile(other) if compiled else other

            def by_torch_compile(model: nn.Module = other, forward: Callable[..., torch.Tensor] = call) -> None:
                with enable(theirs):
                    step(model, forward, x)

            found[name] = by_torch_compile
    for each in found.values():
        for _ in range(10):
            each()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.compiled_autograd", description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=10)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--torch-compile", action="store_true", help="torch.compile's too (it takes a minute)")
    parser.add_argument("--json", type=Path, help="also write every figure here")
    args = parser.parse_args()
    torch.set_num_threads(1)
    seconds = interleaved(steps(args.width, args.batch, args.torch_compile), args.rounds, 0.05, time.thread_time)
    figures = {
        name: {"us": statistics.median(found) * 1e6, "against eager": 1 / ratio(seconds, "eager", name)}
        for name, found in seconds.items()
    }
    for name, figure in figures.items():
        print(f"{name:12} {figure['us']:8.1f} µs  {figure['against eager']:.2f} of eager's step")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
