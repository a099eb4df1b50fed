"""Golden text of captured graphs and guards: what capture makes of a few functions, readable as prose."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.capture.programs import Captured
from tests.golden import golden

X = torch.ones(2, 3)


def text_of(runner: Captured) -> str:
    """Graphs, guards and breaks in the order they came, without paths."""
    here = __file__
    parts = [event.text for event in runner.events if event.channel in ("graph", "guards", "breaks", "recompiles")]
    return "\n\n".join(parts).replace(here, "test_golden.py")


def scaled(x, n, *, bias=None):
    y = torch.relu(x) * n
    return y if bias is None else y + bias


def noisy(x):
    y = x * 2
    print(end="")
    return y + 1


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.act = nn.GELU()

    def forward(self, x):
        return x + self.act(self.lin(x))


def test_a_function() -> None:
    runner = Captured()
    runner(scaled, X, 3, bias=X)
    runner(scaled, X, 4)
    golden("capture/function.txt", text_of(runner))


def test_a_break() -> None:
    runner = Captured()
    runner(noisy, X)
    golden("capture/break.txt", text_of(runner))


def test_a_module() -> None:
    runner = Captured()
    runner(Block(), X)
    golden("capture/module.txt", text_of(runner))


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return grad * 2 * ctx.saved_tensors[0]


def test_graphs_inside_a_graph() -> None:
    def f(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = checkpoint(lambda x: Squared.apply(x @ w), x, use_reentrant=False)
        return y + 1

    runner = Captured(fullgraph=True)
    runner(f, torch.ones(2, 3, requires_grad=True), torch.ones(3, 3))
    golden("capture/inner.txt", "\n\n".join(runner.texts("graph")))
