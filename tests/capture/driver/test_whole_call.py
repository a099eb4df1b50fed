"""Calls captured as a whole: inputs by the way to them, results and effects as data; nothing runs, nothing changes."""

from typing import Any

import pytest
import torch

from smelt.base.errors import GraphBreakError
from smelt.capture.driver.whole_call import ARGS, KWARGS, TARGET, described_call
from smelt.capture.replay.described import Container, Counted, FromOutside, Given, Known, OutputOf, ReadFrom


class Counting(torch.nn.Module):
    """Counts its calls in a number and in a buffer, and remembers its last result."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 2)
        self.calls = 3
        self.last: Any = None
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> dict[str, Any]:
        self.calls += 1
        self.seen += x.shape[0]
        made = self.linear(x) * scale
        self.last = made
        return {"made": made, "both": (made.sum(), x), "name": "counting", "total": made.sum().item()}


def test_a_call_is_described_and_not_made() -> None:
    model, x = Counting(), torch.randn(3, 4)
    found = described_call(model, (x,), {"scale": 2.0})
    ways = {given.text: (given.slot, given.keys) for given in found.inputs if isinstance(given, Given)}
    assert ways["args[0]"] == (ARGS, (0,))
    assert (TARGET, ("_modules", "linear", "_parameters", "weight")) in ways.values(), ways
    result = found.result
    assert isinstance(result, Container) and result.kind is dict and result.keys == ("made", "both", "name", "total")
    made, both, name, total = result.items
    assert isinstance(made, OutputOf) and name == Known("counting")
    assert isinstance(both, Container) and isinstance(both.items[1], FromOutside)
    assert isinstance(total, ReadFrom) and total.kind is float
    effects = {effect.key: effect for effect in found.effects}
    assert set(effects) == {"calls", "last"}
    counted = effects["calls"].after
    assert isinstance(counted, Counted) and counted.operands[1] == Known(1)
    assert effects["last"].after == made and not effects["last"].was_read
    assert any(way == (("slot", KWARGS), ("key", "scale")) for _, way, _ in found.checks)
    assert model.calls == 3 and model.last is None and model.seen.item() == 0


def test_gradients_that_were_freed_are_outputs_too() -> None:
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    found = described_call(step, (torch.randn(3, 4),))
    assert isinstance(found.result, OutputOf)
    grads = [effect for effect in found.effects if effect.key == "grad"]
    assert len(grads) == 2 and all(isinstance(effect.after, OutputOf) for effect in grads)
    assert model.weight.grad is None


def test_what_cannot_be_captured_names_the_line() -> None:
    def prints(x: torch.Tensor) -> torch.Tensor:
        print("hello", x)
        return x + 1

    with pytest.raises(GraphBreakError, match=r"print.*test_whole_call\.py:\d+"):
        described_call(prints, (torch.randn(3),))
