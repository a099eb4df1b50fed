"""A training step (zero_grad, forward, backward, clipping, update) as one graph, against eager and the peer's best.

    python -m benchmarks.train_step [--models mlp gpt2 …] [--optimizers AdamW SGD] [--peer] [--rounds 15]

Time is processor time of the step, the ways taking turns in one process; the figure is eager's median over a way's. The
peer's best is a compiled model with a compiled `opt.step()`: it cannot compile the step. Memory is the most that
PyTorch's allocator had handed out at one time within the first three steps, in a process of its own for each way: what
the step works with, gradients, the optimizer's state and planned memory, but not the parameters.
"""

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.harness import in_fresh_process
from benchmarks.memory import allocated_at_peak
from benchmarks.models import SEED, Case, transformer

MODELS = ("mlp", "gpt2", "llama", "resnet")
WAYS = ("eager", "smelt", "peer")


def _case(name: str) -> Case:
    torch.manual_seed(SEED)
    if name != "mlp":
        return transformer(name)
    wanted = torch.randint(0, 10, (128,))
    first, second, last = torch.nn.Linear(1024, 2048), torch.nn.Linear(2048, 2048), torch.nn.Linear(2048, 10)
    model = torch.nn.Sequential(first, torch.nn.ReLU(), second, torch.nn.ReLU(), last)
    return Case(model, (torch.randn(128, 1024),), lambda output: torch.nn.functional.cross_entropy(output, wanted))


def build(name: str, optimizer: str, way: str) -> Callable[[], object]:
    """A training step, compiled in this way."""
    case = _case(name)
    parameters = list(case.module.parameters())
    opt: Any = getattr(torch.optim, optimizer)(parameters, lr=1e-4)
    model: Callable[..., Any] = torch.compile(case.module) if way == "peer" else case.module
    update: Callable[[], Any] = torch.compile(opt.step) if way == "peer" else opt.step

    def step() -> torch.Tensor:
        opt.zero_grad()
        loss: torch.Tensor = case.loss(case.call(model))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        update()
        return loss

    if way != "smelt":
        return step

    import smelt

    def whole(model: Any, opt: Any) -> torch.Tensor:
        opt.zero_grad()
        loss: torch.Tensor = case.loss(case.call(model))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        return loss

    compiled = smelt.compile(whole, fullgraph=True)
    return lambda: compiled(case.module, opt)


def timed(name: str, optimizer: str, ways: Sequence[str], rounds: int) -> dict[str, Any]:
    """Seconds of the first step and of the others, the ways in turn."""
    steps, first = {}, {}
    times: dict[str, list[float]] = {}
    for way in ways:
        steps[way] = build(name, optimizer, way)
        start = time.perf_counter()
        steps[way]()
        first[way] = time.perf_counter() - start
        for _ in range(2):
            steps[way]()
        times[way] = []
    for _ in range(rounds):
        for way, step in steps.items():
            start = time.process_time()
            step()
            times[way].append(time.process_time() - start)
    return {"first": first, "median": {way: statistics.median(each) for way, each in times.items()}}


def peak(name: str, optimizer: str, way: str) -> dict[str, Any]:
    """Bytes in use at the peak of the first three steps."""
    step = build(name, optimizer, way)
    return {"peak": allocated_at_peak(lambda: [step() for _ in range(3)])}


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def table(models: Sequence[str], optimizers: Sequence[str], ways: Sequence[str], rounds: int) -> None:
    """Print a line per model and optimizer, and the means."""
    faster: dict[str, list[float]] = {way: [] for way in ways}
    smaller: list[float] = []
    print(
        f"{'step':18}"
        + "".join(f"{way + ' ms':>12}{'first s':>9}" for way in ways)
        + f"{'smelt MB':>10}{'eager MB':>10}"
    )
    for name in models:
        for optimizer in optimizers:
            found = in_fresh_process(["benchmarks.train_step", "timed", name, optimizer, str(rounds), *ways], 1800)
            memory = {
                way: in_fresh_process(["benchmarks.train_step", "peak", name, optimizer, way]) for way in WAYS[:2]
            }
            failed = next((each for each in (found, *memory.values()) if "failed" in each), None)
            if failed is not None:
                print(f"{name + ' ' + optimizer:18} failed: {failed['failed']}")
                continue
            median = found["median"]
            line = "".join(f"{1000 * median[way]:12.1f}{found['first'][way]:9.1f}" for way in ways)
            used = [memory[way]["peak"] / 1e6 for way in ("smelt", "eager")]
            print(f"{name + ' ' + optimizer:18}{line}{used[0]:10.1f}{used[1]:10.1f}", flush=True)
            smaller.append(used[0] / used[1])
            for way in ways:
                faster[way].append(median[way] / median["smelt"])
    for way in ways:
        if way != "smelt" and faster[way]:
            print(f"one graph against {way}: {_mean(faster[way]):.2f} times as fast (geometric mean)")
    if smaller:
        print(f"memory at the peak against eager: {_mean(smaller):.2f}")


def main(arguments: Sequence[str]) -> None:
    if arguments[:1] == ["timed"]:
        print(json.dumps(timed(arguments[1], arguments[2], arguments[4:], int(arguments[3]))))
        return
    if arguments[:1] == ["peak"]:
        print(json.dumps(peak(*arguments[1:4])))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--optimizers", nargs="+", default=["AdamW"])
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args(arguments)
    table(given.models, given.optimizers, WAYS if given.peer else WAYS[:2], given.rounds)


if __name__ == "__main__":
    main(sys.argv[1:])
