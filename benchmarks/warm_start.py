"""The first step in a new process, with an empty disk cache (cold) and with what an earlier process left there (warm).

    python -m benchmarks.warm_start [--models mlp gpt2 …] [--modes train infer] [--runs 3] [--torch-compile]
                                    [--json FILE]

What is measured is the time a compiler adds: the first step, with the model handed over, less a later step. Models of
Hugging Face need `transformers`. docs/benchmarks.md says more.
"""

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import compiled_by, in_fresh_process
from benchmarks.models import MODELS

ALL = tuple(MODELS)
MODES = ("train", "infer")


def build(name: str, mode: str) -> tuple[Any, Callable[[Any], Any]]:
    """A model, and a step of the model or its compiled version: of training, or of inference."""
    case = MODELS[name].build()
    if mode == "train":
        return case.module, lambda model: case.loss(case.call(model)).backward()
    case = case.inferring()

    def infer(model: Any) -> None:
        with torch.no_grad():
            case.call(model)

    return case.module, infer


def once(name: str, mode: str, backend: str) -> dict[str, float]:
    """The measured process: seconds on the clock, and of the main thread on a processor, that the first step adds."""
    if backend == "smelt":
        import smelt  # noqa: F401 (before the clock starts, as a user's program has)

    module, step = build(name, mode)
    step(module)
    before, busy = time.perf_counter(), time.thread_time()
    model = compiled_by(backend, module)
    step(model)
    first, first_busy = time.perf_counter() - before, time.thread_time() - busy
    later, later_busy = [], []
    for _ in range(5):
        before, busy = time.perf_counter(), time.thread_time()
        step(model)
        later.append(time.perf_counter() - before)
        later_busy.append(time.thread_time() - busy)
    added, busy = first - statistics.median(later), first_busy - statistics.median(later_busy)
    return {"seconds": added, "processor": busy, "first": first}


def measure(name: str, mode: str, backend: str, runs: int) -> dict[str, list[dict[str, float]]]:
    """Cold and warm starts: `runs` pairs of processes, each pair with a cache of its own."""
    found: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            settings = {"SMELT_CACHE": "1", "SMELT_CACHE_DIR": folder, "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "0"}
            # One thread: on a busy machine the waits of a second one differ by more than loading takes.
            settings |= {"TORCHINDUCTOR_CACHE_DIR": folder, "OMP_NUM_THREADS": "1"}
            for start in ("cold", "warm"):
                answer = in_fresh_process(["benchmarks.warm_start", "--once", name, mode, backend], settings=settings)
                if "failed" in answer:
                    print(f"{name}, {mode}, {backend}: {answer['failed']}", file=sys.stderr)
                    return found
                found[start].append(answer)
    return found


def line(name: str, mode: str, results: dict[str, dict[str, list[dict[str, float]]]]) -> str:
    def median(backend: str, start: str, what: str) -> float:
        figures = [each[what] for each in results.get(backend, {}).get(start, [])]
        return statistics.median(figures) if figures else float("nan")

    words = [f"{name:10} {mode:5}"]
    for what in ("seconds", "processor"):
        cold, warm = median("smelt", "cold", what), median("smelt", "warm", what)
        words.append(f"{cold:8.3f} {warm:8.3f} {cold / warm:6.1f}×")
    theirs = median("torch.compile", "warm", "seconds")
    words.append(f"{theirs:8.2f} {theirs / median('smelt', 'warm', 'seconds'):6.0f}×")
    return "   ".join(words)


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.warm_start", description="starts with and without a disk cache")
    parser.add_argument("--models", nargs="+", choices=ALL, default=list(ALL))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=["train"])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--torch-compile", action="store_true", help="torch.compile too, once: a minute a model")
    parser.add_argument("--json", type=Path, help="also write every figure here")
    parser.add_argument("--once", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.once:
        print(json.dumps(once(*args.once)))
        return 0
    heads = "on the clock, s: cold, warm, ratio   of the processor, s: cold, warm      torch.compile warm, ratio"
    print(" " * 17 + heads)
    everything = {}
    for name, mode in itertools.product(args.models, args.modes):
        results = {"smelt": measure(name, mode, "smelt", args.runs)}
        if args.torch_compile:
            results["torch.compile"] = measure(name, mode, "torch.compile", 1)
        everything[f"{name} {mode}"] = results
        print(line(name, mode, results), flush=True)
    if args.json:
        args.json.write_text(json.dumps(everything, indent=1))
    return int(not all(results["smelt"]["warm"] for results in everything.values()))


if __name__ == "__main__":
    sys.exit(main())
