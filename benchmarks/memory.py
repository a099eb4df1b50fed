"""Memory of training steps on five small models, and the time ahead-of-time autograd takes.

    python -m benchmarks.memory saved [--torch-compile]        bytes saved for the backward: eager, smelt, torch.compile
    python -m benchmarks.memory budget [--models …]   peak under memory budgets, expected and measured, and step time
    python -m benchmarks.memory stage [--torch-compile]        seconds of the autograd stage on a 12-layer encoder

The models are those of Hugging Face with random weights (`transformers` must be installed). Every figure comes from a
process of its own. docs/benchmarks.md says how each is taken.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.harness import in_fresh_process
from benchmarks.models import SEED, transformer

MODELS = ("gpt2", "bert", "llama", "vit", "resnet")
PARTS = (0.8, 0.5, 0.3, 0.1)


def build(name: str, **changes: Any) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """A model in training mode and what to call it with; the loss is computed inside."""
    torch.manual_seed(SEED)
    case = transformer(name, **changes)
    return case.module, case.kwargs


def saved(name: str, backend: str) -> dict[str, Any]:
    """Bytes the autograd graph keeps after a forward; parameters are not counted."""
    from benchmarks.harness import compiled_by
    from benchmarks.measure import saved_bytes

    model, inputs = build(name)
    loss = compiled_by(backend, model)(**inputs).loss
    return {"saved": saved_bytes(loss, model.parameters())}


def allocated_at_peak(step: Callable[[], object]) -> int:
    """The most bytes PyTorch's allocator had handed out at one time within a call."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    assert profiler.profiler is not None
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


def budget(name: str, part: str) -> dict[str, Any]:
    """A step under one budget: what was expected of its peak, what was measured, how long it takes."""
    import smelt
    from smelt.autograd.partition.partition import ForwardBackward
    from smelt.base import events
    from smelt.ir.program import Program
    from smelt.meta.memory_peak import program_peak
    from smelt.runtime.program.library_workspace import scratch_of_step

    model, inputs = build(name)
    wanted = None if part == "none" else float(part)
    compiled = smelt.compile(model, options={"memory_budget": wanted})
    held: list[Any] = []

    def step() -> None:
        model.zero_grad(set_to_none=True)
        held[:] = [compiled(**inputs)]
        held[0].loss.backward()

    with events.collect() as collected:
        step()
    (halves, *_) = [event.subject for event in collected if isinstance(event.subject, ForwardBackward)]
    # The last is the backward that ran, for the loss alone; collecting makes the compiler show the one for all results.
    forward, *_, backward = [event.subject for event in collected if isinstance(event.subject, Program)]
    model.zero_grad(set_to_none=True)
    held.clear()
    arena = max(int(forward.arena_bytes), int(backward.arena_bytes))
    measured = allocated_at_peak(step) + arena
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
    return {
        "expected": program_peak(forward, backward, halves.plan, scratch_of_step).step,
        "allowed": halves.fitting.allowed if halves.fitting is not None else None,
        "measured": measured,
        "saved": sum(int(saved.spec.nbytes) for saved in halves.plan.saved if saved.source is None),
        "seconds": min(seconds),
    }


def stage(backend: str) -> dict[str, Any]:
    """Processor seconds of a first step with `aot_eager`, or with `eager`, which stops after capture; least of three.
    """
    who, name = backend.split("-")
    if who == "smelt":
        import smelt

        compile_with: Callable[..., Any] = smelt.compile
        reset = smelt.reset
    else:
        compile_with = torch.compile
        reset = torch._dynamo.reset
    changes = {"num_hidden_layers": 12, "hidden_size": 64, "intermediate_size": 256}
    seconds = []
    for _ in range(3):
        reset()
        model, inputs = build("bert", **changes)
        began = time.process_time()
        compile_with(model, backend=name)(**inputs).loss.backward()
        seconds.append(time.process_time() - began)
    return {"seconds": min(seconds)}


def _print_saved(models: Sequence[str], torch_compile: bool) -> None:
    backends = ("eager", "smelt", "torch.compile") if torch_compile else ("eager", "smelt")
    print(f"{'saved, MB':10}" + "".join(f"{backend:>10}" for backend in backends) + "   smelt / others")
    quotients: dict[str, list[float]] = {}
    for model in models:
        found = {b: in_fresh_process(["benchmarks.memory", "_saved", model, b])["saved"] for b in backends}
        others = {b: found["smelt"] / found[b] for b in backends if b != "smelt"}
        for backend, quotient in others.items():
            quotients.setdefault(backend, []).append(quotient)
        line = "".join(f"{found[b] / 1e6:10.2f}" for b in backends)
        print(f"{model:10}{line}   " + "  ".join(f"{b} {q:.2f}" for b, q in others.items()), flush=True)
    means = {b: math.exp(sum(map(math.log, qs)) / len(qs)) for b, qs in quotients.items()}
    print("geometric mean: " + "  ".join(f"{b} {mean:.2f}" for b, mean in means.items()))


def _print_budgets(models: Sequence[str]) -> None:
    print("MB              saved   allowed  expected  measured   step s")
    for model in models:
        for part in ("none", *map(str, PARTS)):
            found = in_fresh_process(["benchmarks.memory", "_budget", model, part])
            if "failed" in found:
                print(f"{model:8}{part:>5}  failed: {found['failed']}")
                continue
            allowed = "–" if found["allowed"] is None else f"{found['allowed'] / 1e6:.2f}"
            sizes = "".join(f"{found[key] / 1e6:10.2f}" for key in ("expected", "measured"))
            saved_mb, seconds = found["saved"] / 1e6, found["seconds"]
            print(f"{model:8}{part:>5}{saved_mb:9.2f}{allowed:>10}{sizes}{seconds:9.3f}", flush=True)


def _print_stage(torch_compile: bool) -> None:
    took: dict[str, float] = {}
    for who in ("smelt", "torch.compile") if torch_compile else ("smelt",):
        runs = {n: in_fresh_process(["benchmarks.memory", "_stage", f"{who}-{n}"]) for n in ("eager", "aot_eager")}
        took[who] = runs["aot_eager"]["seconds"] - runs["eager"]["seconds"]
        whole = runs["aot_eager"]["seconds"]
        print(f"{who:6} autograd stage {took[who]:.2f} s ({whole:.2f} s with capture and one step)", flush=True)
    if torch_compile:
        print(f"smelt / torch.compile: {took['smelt'] / took['torch.compile']:.3f}")


def main(arguments: Sequence[str]) -> None:
    if arguments and arguments[0].startswith("_"):
        inner: dict[str, Callable[..., dict[str, Any]]] = {"_saved": saved, "_budget": budget, "_stage": stage}
        print(json.dumps(inner[arguments[0]](*arguments[1:])))
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory")
    parser.add_argument("what", choices=("saved", "budget", "stage"))
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--torch-compile", action="store_true", help="torch.compile too, a minute a model")
    given = parser.parse_args(arguments)
    if given.what == "saved":
        _print_saved(given.models, given.torch_compile)
    elif given.what == "budget":
        _print_budgets(given.models)
    else:
        _print_stage(given.torch_compile)


if __name__ == "__main__":
    main(sys.argv[1:])
