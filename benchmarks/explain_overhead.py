"""What explanations, reports, logs and progress cost where they are off, at a compile and at a call.

    python -m benchmarks.explain_overhead [--rounds 20] [--json FILE]

`without` is the same code in the same process with every hook taken out: what stages report to (`base/events.py`), what
remembers lines (`ir/provenance.py`), and what notes programs to be timed (`runtime/program/profile.py`) are functions
that do nothing. The two are interleaved; the ratio is the median over rounds of the quotient within a round, in
processor time of the calling thread. Beside it is how often hooks are called, and what that comes to by the cost of
each call alone, which no neighbour disturbs. A compiled call must call none.
"""

import argparse
import contextlib
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import smelt
from benchmarks.measure import interleaved
from smelt.base import events
from smelt.ir import provenance
from smelt.runtime.program import profile


def _silent(*args: Any, **kwargs: Any) -> None:
    return None


def _unwanted(*args: Any, **kwargs: Any) -> bool:
    return False


class _Untimed:
    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...


_UNTIMED = _Untimed()


def _untimed(*args: Any, **kwargs: Any) -> _Untimed:
    return _UNTIMED


# Every hook and its replacement that does nothing.
HOOKS: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
    (events, "emit", _silent),
    (events, "count", _silent),
    (events, "wanted", _unwanted),
    (events, "collecting", _unwanted),
    (events, "timed", _untimed),
    (provenance, "running", _silent),
    (provenance, "nothing_runs", _silent),
    (provenance, "current", _silent),
    (provenance, "set_origin", _silent),
    (profile, "note", _silent),
)


@contextlib.contextmanager
def replaced(instead: Callable[[str, Callable[..., Any], Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Every hook replaced by `instead(name, hook, stub)`, wherever in the package it was imported to."""
    undo: list[tuple[Any, str, Any]] = []
    modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "smelt"]
    try:
        for owner, name, stub in HOOKS:
            hook = getattr(owner, name)
            other = instead(name, hook, stub)
            for module in modules:
                for attribute, value in list(vars(module).items()):
                    if value is hook:
                        undo.append((module, attribute, hook))
                        setattr(module, attribute, other)
        yield
    finally:
        for module, attribute, hook in undo:
            setattr(module, attribute, hook)


def without_hooks() -> contextlib.AbstractContextManager[None]:
    return replaced(lambda name, hook, stub: stub)


def hook_calls(run: Callable[[], object]) -> Counter[str]:
    """How often each hook is called while `run` runs."""
    calls: Counter[str] = Counter()

    def counting(name: str, hook: Callable[..., Any], stub: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return hook(*args, **kwargs)

        return counted

    with replaced(counting):
        run()
    return calls


class Block(nn.Module):
    """Attention and a perceptron, as a decoder has them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.mix(self.first(x)).chunk(3, -1)
        x = x + self.out(torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v)
        y: torch.Tensor = x + self.perceptron(self.second(x))
        return y


def compiles() -> dict[str, Callable[[], object]]:
    """First calls, forward and backward, of things of different sizes."""
    x = torch.randn(2, 8, 32)
    models = {"a layer": nn.Linear(32, 32), "a block": Block(32), "four blocks": nn.Sequential(*map(Block, [32] * 4))}

    def first_call(model: nn.Module) -> Callable[[], object]:
        def run() -> None:
            smelt.reset()
            smelt.compile(model)(x).sum().backward()

        return run

    return {name: first_call(model) for name, model in models.items()}


def calls() -> dict[str, Callable[[], object]]:
    """Later calls."""
    x, model = torch.randn(2, 8, 32), smelt.compile(Block(32))
    tiny = smelt.compile(lambda x: x + 1)

    def train() -> None:
        model(x).sum().backward()

    return {"x + 1": lambda: tiny(x), "a block, forward and backward": train}


def compare(run: Callable[[], object], rounds: int, per_round: float) -> dict[str, float]:
    """Processor time of `run` as it is and without hooks, in turns; and what its calls of hooks come to alone."""
    run()
    counted = hook_calls(run)
    seconds: dict[str, list[float]] = {"with": [], "without": []}
    for number in range(rounds):
        for name in ("with", "without") if number % 2 else ("without", "with"):
            with without_hooks() if name == "without" else contextlib.nullcontext():
                seconds[name] += interleaved({name: run}, 1, per_round, time.thread_time)[name]
    quotients = [a / b for a, b in zip(seconds["with"], seconds["without"], strict=True)]
    took = statistics.median(seconds["without"])
    return {
        "milliseconds": took * 1e3,
        "ratio": statistics.median(quotients),
        "hook calls": sum(counted.values()),
        "percent by count": 100 * sum(_cost(name) * times for name, times in counted.items()) / took,
    }


def _cost(name: str) -> float:
    """Seconds that one call of a hook takes while it is off."""
    owner = next(owner for owner, hook, _ in HOOKS if hook == name)
    hook = getattr(owner, name)
    node = torch.fx.Graph().placeholder("x")
    arguments: dict[str, Sequence[Any]] = {
        "emit": ("graph", ""), "count": ("explain_overhead",), "wanted": ("graph",), "timed": ("stage",),
        "running": (node,), "set_origin": (node, provenance.Origin("x", "")), "note": (None,),
    }  # fmt: skip
    given = arguments.get(name, ())

    def once() -> None:
        if name == "timed":
            with hook(*given):
                return
        hook(*given)

    repeats = 2000
    best = min(_timed(once, repeats) for _ in range(5))
    provenance.nothing_runs()
    events.counters.pop("explain_overhead", None)
    return best / repeats


def _timed(run: Callable[[], object], repeats: int) -> float:
    began = time.thread_time()
    for _ in range(repeats):
        run()
    return time.thread_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    smelt.config.disk_cache = False
    figures: dict[str, dict[str, float]] = {}
    for kind, cases, per_round in (("compile", compiles(), 0.0), ("call", calls(), 0.05)):
        for name, run in cases.items():
            found = figures[f"{kind}: {name}"] = compare(run, given.rounds, per_round)
            print(
                f"{kind + ': ' + name:40} {found['milliseconds']:10.3f} ms   with hooks {found['ratio']:.3f} of that"
                f"   {found['hook calls']:6.0f} calls of hooks, {found['percent by count']:.2f} % by their own cost"
            )
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
