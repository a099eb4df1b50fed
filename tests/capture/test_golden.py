"""Golden text of captured graphs and guards: what capture makes of a few functions, readable as prose."""

import torch
from torch import nn

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
