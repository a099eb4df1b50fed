"""Training steps of the models on a GPU, eager, smelt and torch.compile in one process, in minutes.

    python -m benchmarks.gpu_steps [gpt2 vit …] [--torch-compile] [--seconds 300] [--out FOLDER]

`benchmarks.run --device cuda` measures the same with a process for each figure, which takes three times as long: a GPU
that is lent by the minute is measured so. With `--torch-compile` its caches are off and models follow until `--seconds`
have passed. A step is forward and backward; steps of all take turns in blocks of a second, and the median counts.

    first    seconds of the first step of a compiled model, when eager has run it before
    step     milliseconds until the GPU is done, one step after the other
    busy     milliseconds in which the GPU ran kernels, and how many it ran
    memory   mebibytes at the peak of a step, with parameters and gradients

The folder gets each model's kernels by the time they take, of eager and of smelt.
"""

import argparse
import gc
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import smelt
from benchmarks.models import FLOAT32_ON_GPUS, Case, models_for

BLOCKS, PER_BLOCK = 3, 0.5
Step = Callable[[], torch.Tensor]


@dataclass
class Figures:
    """What is known of one way to run a model."""

    first: float = 0.0
    times: list[float] = field(default_factory=list)
    busy: float = 0.0
    kernels: int = 0
    memory: float = 0.0

    @property
    def step(self) -> float:
        return sorted(self.times)[len(self.times) // 2]

    def __str__(self) -> str:
        told = f"step {self.step:7.2f} ms, busy {self.busy:6.2f} in {self.kernels:4}, {self.memory:6.0f} MiB"
        return f"first {self.first:6.2f} s, {told}"


def step_of(case: Case, model: Callable[..., Any]) -> Step:
    parameters = list(case.module.parameters())

    def step() -> torch.Tensor:
        for parameter in parameters:
            parameter.grad = None
        loss: torch.Tensor = case.loss(case.call(model))
        loss.backward()
        return loss.detach()

    return step


def first_step(step: Step) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def measure(steps: dict[str, Step], found: dict[str, Figures]) -> None:
    """Steps in blocks that take turns: what others do on the machine hits them all alike."""
    for _ in range(BLOCKS):
        for name, step in steps.items():
            for _ in range(3):
                step()
            torch.cuda.synchronize()
            end = time.perf_counter() + PER_BLOCK
            while time.perf_counter() < end:
                found[name].times.append(first_step(step) * 1e3)
    for name, step in steps.items():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        found[name].memory = torch.cuda.max_memory_allocated() / 2**20


def profiled(step: Step, figures: Figures, path: Path | None) -> None:
    """What the GPU was busy with."""
    from torch._C._autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
        step()
        torch.cuda.synchronize()
    taken: Counter[str] = Counter()
    often: Counter[str] = Counter()
    for event in seen.events() or ():
        if event.device_type == DeviceType.CUDA:
            taken[event.name] += event.time_range.elapsed_us()
            often[event.name] += 1
    figures.busy, figures.kernels = sum(taken.values()) / 1e3, sum(often.values())
    if path is not None:
        lines = [f"{taken[name]:9.1f} us {often[name]:5} x  {name[:160]}" for name, _ in taken.most_common()]
        path.write_text("\n".join(lines) + "\n")


def build(name: str) -> Case:
    torch.manual_seed(0)
    return models_for("cuda")[name].build_on("cuda", torch.float32 if name in FLOAT32_ON_GPUS else torch.bfloat16)


def run(name: str, ways: Sequence[str], out: Path | None) -> dict[str, Figures]:
    case = build(name)
    compilers: dict[str, Callable[..., Any]] = {"smelt": smelt.compile, "torch.compile": torch.compile}
    models = {"eager": case.module, **{way: compilers[way](case.module) for way in ways}}
    steps = {way: step_of(case, model) for way, model in models.items()}
    found = {way: Figures(first_step(step)) for way, step in steps.items()}
    measure(steps, found)
    for way, step in steps.items():
        profiled(step, found[way], out / f"{name}_{way}.txt" if out is not None else None)
        print(f"{name:10} {way:14} {found[way]}", flush=True)
    return found


def geometric_mean(values: Sequence[float]) -> float:
    return float(torch.tensor(values, dtype=torch.float64).log().mean().exp())


def told(found: dict[str, dict[str, Figures]], peer: str) -> None:
    """How many times as fast as a peer, by model."""
    ratios = {name: ways[peer].step / ways["smelt"].step for name, ways in found.items() if peer in ways}
    if ratios:
        each = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
        print(f"faster than {peer} by {geometric_mean(list(ratios.values())):.2f} in the mean: {each}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.gpu_steps", description="training steps on a GPU")
    parser.add_argument("models", nargs="*", help=f"of {', '.join(models_for('cuda'))}; all by default")
    parser.add_argument("--torch-compile", action="store_true", help="beside torch.compile: a minute a model")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no model after so many")
    parser.add_argument("--out", type=Path, help="where to tell which kernels took how long")
    given = parser.parse_args()
    os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + given.seconds
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    found: dict[str, dict[str, Figures]] = {}
    for name in given.models or models_for("cuda"):
        if time.monotonic() > end:
            print(f"{name:10} not begun: the time is over", flush=True)
            continue
        found[name] = run(name, ("smelt", "torch.compile") if given.torch_compile else ("smelt",), given.out)
        smelt.reset()
        if given.torch_compile:
            torch.compiler.reset()
        gc.collect()
        torch.cuda.empty_cache()
    for peer in ("eager", "torch.compile"):
        told(found, peer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
