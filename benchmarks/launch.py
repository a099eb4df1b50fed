"""What running a compiled graph costs beyond its loops, and what deep narrow models take.

    python -m benchmarks.launch [--rounds 15] [--models linear decoder] [--backends eager smelt torch.compile]
                                [--json FILE]

Small kernels, 1 to 64 KiB: `loop` is the kernel alone, from a program that has it a hundred times more; `launch`
is what one run of the program adds to that (arguments, output, the result as a tuple), `call` what a call of the
compiled function adds, guards included. Then steps of models that do next to nothing between many products, under each
backend in turns. All in µs of the calling thread's processor time.
"""

import argparse
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import smelt
from benchmarks.harness import compiled_by
from benchmarks.measure import interleaved
from benchmarks.overhead import Decoder, Deep
from smelt.runtime.program import launch

REPEATED = 100
SIZES = (1, 4, 16, 64)  # KiB

KERNELS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "pointwise": lambda x: torch.relu(x * 2 + 1),
    "softmax": lambda x: torch.softmax(x, -1),
    "layer norm": lambda x: functional.layer_norm(x, x.shape[-1:]),
    "transpose and add": lambda x: x.t() + 1,
    "column sum": lambda x: x.sum(0),
}


@contextmanager
def programs() -> Iterator[list[tuple[tuple[Any, ...], dict[str, Any]]]]:
    """What is given to every `Executable` that is made inside."""
    seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    original = launch.Executable.__init__

    def noted(self: launch.Executable, *args: Any, **kwargs: Any) -> None:
        seen.append((args, kwargs))
        original(self, *args, **kwargs)

    launch.Executable.__init__ = noted  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        launch.Executable.__init__ = original  # type: ignore[method-assign]


def medians(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    for call in calls.values():
        for _ in range(5):
            call()
    seconds = interleaved(calls, rounds, per_round=0.02, clock=time.thread_time)
    return {name: statistics.median(found) * 1e6 for name, found in seconds.items()}


def small_kernel(function: Callable[[torch.Tensor], torch.Tensor], kib: int, rounds: int) -> dict[str, float]:
    x = torch.randn(kib * 4, 64)
    compiled = smelt.compile(function)
    with torch.no_grad(), programs() as seen:
        compiled(x)
        ((program, *rest), named), *others = seen
        if others or len(program.kernels) != 1:
            raise ValueError("not one kernel")
        once = launch.Executable(program, *rest, **named).run
        often = launch.Executable(replace(program, steps=program.steps * (REPEATED + 1)), *rest, **named).run
        calls: dict[str, Callable[[], object]] = {
            "once": functools.partial(once, x),
            "often": functools.partial(often, x),
            "call": functools.partial(compiled, x),
            "eager": functools.partial(function, x),
        }
        found = medians(calls, rounds)
    loop = (found["often"] - found["once"]) / REPEATED
    return {"loop": loop, "launch": found["once"] - loop, "call": found["call"] - loop, "eager": found["eager"]}


def infer(model: Callable[..., Any], parameters: list[nn.Parameter], x: torch.Tensor) -> None:
    with torch.no_grad():
        model(x)


def train(model: Callable[..., Any], parameters: list[nn.Parameter], x: torch.Tensor) -> None:
    for parameter in parameters:
        parameter.grad = None
    model(x).sum().backward()


MODELS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "linear": lambda: (Deep(), torch.randn(4)),
    "decoder": lambda: (Decoder(), torch.randint(0, 16, (1, 4))),
}


def model_steps(name: str, backends: list[str], rounds: int) -> Iterator[tuple[str, dict[str, float]]]:
    torch.manual_seed(0)
    module, x = MODELS[name]()
    parameters = list(module.parameters())
    for step in (infer, train):
        calls: dict[str, Callable[[], object]] = {}
        for backend in backends:
            call = functools.partial(step, compiled_by(backend, module), parameters, x)
            try:
                call()
            except Exception as error:  # the other backends' figures still count
                print(f"{name}, {backend}: {error}", file=sys.stderr)
                continue
            calls[backend] = call
        yield f"28 layers, {name}, {step.__name__}", medians(calls, rounds)


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.launch", description="what running a compiled graph costs")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--backends", nargs="+", default=["eager", "smelt", "torch.compile"])
    parser.add_argument("--json", type=Path, help="also write every figure here")
    args = parser.parse_args()
    smelt.config.disk_cache = False  # a program that is loaded is not built, so `programs` would not see it
    torch.set_num_threads(1)  # what is measured is the calling thread's own work
    everything: dict[str, dict[str, float]] = {}
    print(f"{'kernel, µs':28}{'loop':>9}{'launch +':>10}{'call +':>9}{'eager':>9}")
    for name, function in KERNELS.items():
        for kib in SIZES:
            found = everything[f"{name}, {kib} KiB"] = small_kernel(function, kib, args.rounds)
            figures = f"{found['loop']:9.2f}{found['launch']:10.2f}{found['call']:9.2f}{found['eager']:9.2f}"
            print(f"{name + f', {kib} KiB':28}{figures}", flush=True)
    print("\na step, µs")
    for model in args.models:
        for what, found in model_steps(model, args.backends, args.rounds):
            everything[what] = found
            print(f"{what:32}" + "  ".join(f"{name} {value:9.1f}" for name, value in found.items()), flush=True)
    if args.json:
        args.json.write_text(json.dumps(everything, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
