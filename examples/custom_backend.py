"""Bring your own backend: a function from a graph to something that can be called.

    python examples/custom_backend.py

Three of them: one that only looks, one that times every operator, and one that lets smelt do autograd and takes the
forward and the backward apart. What a backend gets is a `torch.fx.GraphModule`; what it returns is run in its place.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx, nn

import smelt

Run = Callable[..., Any]


def counting(module: fx.GraphModule, examples: Sequence[Any]) -> Run:
    """Say what there is to compute, then leave it to PyTorch."""
    found = Counter(node.name.rstrip("_0123456789") for node in module.graph.nodes if node.op.startswith("call"))
    print("counting:", ", ".join(f"{count} {name}" for name, count in sorted(found.items())))
    return module


class Timing(fx.Interpreter):
    """Runs a graph node by node and keeps the seconds of each."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def run_node(self, n: fx.Node) -> Any:
        start = time.perf_counter()
        result = super().run_node(n)
        self.seconds[n.name] += time.perf_counter() - start
        return result


timers: list[Timing] = []


def timing(module: fx.GraphModule, examples: Sequence[Any]) -> Run:
    """Run the graph by an interpreter that watches the clock."""
    timers.append(Timing(module))
    return timers[-1].run


def halves(module: fx.GraphModule, examples: Sequence[Any]) -> Run:
    """Autograd by smelt; then a compiler for each half, here one that shows the operators."""

    def compiler(name: str) -> Callable[[fx.GraphModule, Sequence[Any]], Run]:
        def show(half: fx.GraphModule, given: Sequence[Any]) -> Run:
            operators = [node.name for node in half.graph.nodes if node.op == "call_function"]
            print(f"{name}: {len(operators)} operators, the last is {operators[-1]}")
            return half

        return show

    return smelt.aot_module_simplified(module, examples, compiler("forward"), compiler("backward"))


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    x = torch.randn(8, 16)
    expected = model(x)

    smelt.register_backend(counting)  # by name from now on
    torch.testing.assert_close(smelt.compile(model, backend="counting")(x), expected)

    timed = smelt.compile(model, backend=timing)
    for _ in range(10):
        torch.testing.assert_close(timed(x), expected)
    seconds = timers[-1].seconds
    slowest = max(seconds, key=seconds.__getitem__)
    print(f"timing: ten runs, {len(timers)} graph; {slowest} took longest")

    smelt.compile(model, backend=halves)(x).sum().backward()
    assert model[0].weight.grad is not None
    print("gradients are there")


if __name__ == "__main__":
    main()
