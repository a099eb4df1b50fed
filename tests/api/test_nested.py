"""Compiled functions and modules that compiled functions call: captured into them where they are compiled alike."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from smelt.base.errors import GraphBreakError
from tests.targets import seeded


@pytest.fixture(autouse=True)
def _fresh() -> None:
    smelt.reset()


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.calls = nn.Linear(4, 3), 0

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        self.calls += 1
        return self.layer(x) * scale


def test_a_compiled_function_inside_another_is_part_of_its_graph() -> None:
    @smelt.compile
    def inner(x: torch.Tensor, *, times: int = 2) -> torch.Tensor:
        return x.sin() * times

    @smelt.compile(fullgraph=True)
    def outer(x: torch.Tensor) -> torch.Tensor:
        return inner(x, times=3) + inner(x)

    x = torch.randn(5)
    for _ in range(2):
        torch.testing.assert_close(outer(x), x.sin() * 5)
    assert smelt.counters["graphs"] == 1 and smelt.counters.get("graph_breaks", 0) == 0


def test_a_compiled_model_inside_a_compiled_step() -> None:
    def train(compiled: bool) -> tuple[Any, ...]:
        original = Scaled()
        model = smelt.compile(original) if compiled else original
        opt = torch.optim.Adam(original.parameters(), lr=0.01)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            opt.zero_grad()
            loss = F.cross_entropy(model(x, scale=2.0), y)
            loss.backward()
            opt.step()
            return loss

        run = smelt.compile(step, fullgraph=True) if compiled else step
        given = [seeded(number) for number in range(4)]
        losses = [run(torch.randn(5, 4, generator=g), torch.randint(0, 3, (5,), generator=g)) for g in given]
        state = opt.state_dict()["state"]
        return losses, list(original.parameters()), original.calls, [dict(state[key]) for key in state]

    torch.testing.assert_close(train(True), train(False))
    assert smelt.counters["graphs"] == 2 and smelt.counters.get("graph_breaks", 0) == 0


def test_a_model_inside_sees_itself_as_it_is() -> None:
    class Asking(Scaled):
        def forward(self, x: torch.Tensor, scale: float = 1.0) -> Any:
            return super().forward(x, scale), type(self) is Asking, self is original

    original = Asking()
    model = smelt.compile(original)
    for run in (smelt.compile(lambda x: model(x), fullgraph=True), lambda x: model(x)):
        _, exact, same = run(torch.randn(2, 4))
        assert exact and same


def test_other_settings_are_a_break() -> None:
    """What was compiled for PyTorch to run is not compiled otherwise on the way, and what may not break does not."""

    @smelt.compile(backend="eager")
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    @smelt.compile(fullgraph=True)
    def whole(x: torch.Tensor) -> torch.Tensor:
        smelt.graph_break()
        return x.sin()

    x = torch.randn(5)
    torch.testing.assert_close(smelt.compile(lambda x: inner(x) + 1)(x), x.sin() + 1)
    assert smelt.counters["graph_breaks"] == 1
    with pytest.raises(GraphBreakError):
        smelt.compile(lambda x: inner(x) + 1, fullgraph=True)(x)
    with pytest.raises(GraphBreakError):
        smelt.compile(lambda x: whole(x) + 1)(x)
