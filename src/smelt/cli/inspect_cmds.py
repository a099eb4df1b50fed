"""Commands that look at one program: `smelt explain`, `verify`, `bisect`, `bench`."""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import smelt
from smelt.cli.example_spec import add_target, load
from smelt.explain.bisect import bisect


def add_explain(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument("--backend", default="llvm", help="backend of smelt.compile (default: llvm)")
    parser.add_argument(
        "--full",
        action="store_true",
        help="after the summary: break reasons with stacks, operators, kernels, saved values, guards, times",
    )
    parser.add_argument("--guards", action="store_true", help="after the summary: guards, in words and one by one")


def do_explain(args: argparse.Namespace) -> int:
    target = load(args.target)
    explanation = smelt.explain(target.model, backend=args.backend)(*target.args, **target.kwargs)
    if args.full or args.guards:
        print(explanation.text(full=args.full, guards=args.guards))
    else:
        explanation.show()
    return 0


def add_verify(parser: argparse.ArgumentParser) -> None:
    add_target(parser)


def do_verify(args: argparse.Namespace) -> int:
    target = load(args.target)
    verification = smelt.verify(target.model, target.args, target.kwargs)
    print(verification)
    return 0 if verification.ok else 1


def add_bisect(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument("--out", default="smelt_repro.py", help="where the program is written (default: %(default)s)")


def do_bisect(args: argparse.Namespace) -> int:
    target = load(args.target)
    culprit = bisect(target.model, target.args, target.kwargs, smelt.compile)
    if culprit is None:
        print("every graph of the program agrees with eager")
        return 0
    with open(args.out, "w", encoding="utf-8") as file:
        file.write(culprit.source)
    print(f"{culprit}\nwritten to {args.out}: run it with python")
    return 1


def add_bench(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument("--backward", action="store_true", help="time forward and backward of the summed results")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long to measure (default: %(default)s)")


def do_bench(args: argparse.Namespace) -> int:
    target = load(args.target)
    compiled = smelt.compile(target.model)

    def once(function: Callable[..., Any]) -> float:
        start = time.perf_counter()
        result = function(*target.args, **target.kwargs)
        if args.backward:
            sum(part.sum() for part in _differentiable(result)).backward()  # type: ignore[union-attr]
        return time.perf_counter() - start

    once(target.model)
    first = once(compiled)
    times: dict[str, list[float]] = {"eager": [], "smelt": []}
    end = time.perf_counter() + args.seconds
    while time.perf_counter() < end or len(times["smelt"]) < 3:
        times["eager"].append(once(target.model))
        times["smelt"].append(once(compiled))
    eager, ours = (statistics.median(times[name]) for name in ("eager", "smelt"))
    print(f"eager {eager * 1e3:.3f} ms, smelt {ours * 1e3:.3f} ms: {eager / ours:.2f} times eager's speed")
    print(f"first call, compiling included: {first:.2f} s; medians of {len(times['smelt'])} calls each, interleaved")
    return 0


def _differentiable(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value] if value.requires_grad else []
    if isinstance(value, dict):
        value = list(value.values())
    return [part for item in value for part in _differentiable(item)] if isinstance(value, tuple | list) else []
