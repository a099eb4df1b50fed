"""Modules that flatten the weights of their recurrent layers in `forward`, as many do for several GPUs."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import smelt
from smelt.base.events import Event, collect
from smelt.capture import BreakRecord


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.lstm.flatten_parameters()
        return self.head(self.lstm(x)[0])  # type: ignore[no-any-return]


def flatten(module: nn.Module) -> None:
    """Put all parameters into one piece of memory, as cuDNN's function does."""
    parameters = list(module.parameters())
    memory = torch.cat([each.detach().flatten() for each in parameters])
    for each, part in zip(parameters, memory.split([each.numel() for each in parameters]), strict=True):
        each.data = part.view_as(each)


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("smelt.capture.calls.nn_module.are_on_gpu", lambda module: True)
    smelt.reset()
    yield


def breaks(events: list[Event]) -> list[str]:
    return [event.subject.reason for event in events if isinstance(event.subject, BreakRecord)]


def test_weights_in_one_piece_are_left_there(on_gpu: None) -> None:
    module, x = Tagger(), torch.randn(5, 2, 4)
    flatten(module.lstm)
    compiled = smelt.compile(module, backend="eager")
    with collect() as events:
        torch.testing.assert_close(compiled(x), module(x))
        compiled(x)
    assert not breaks(events) and len([event for event in events if event.channel == "graph"]) == 1


def test_weights_apart_are_flattened_by_python_and_the_next_call_is_one_graph(on_gpu: None) -> None:
    module, x = Tagger(), torch.randn(5, 2, 4)
    compiled = smelt.compile(module, backend="eager")
    with collect() as events:
        torch.testing.assert_close(compiled(x), module(x))
    assert any("flatten_parameters" in reason for reason in breaks(events))
    flatten(module.lstm)
    with collect() as events:
        torch.testing.assert_close(compiled(x), module(x))
    assert not breaks(events) and any(event.channel == "recompiles" for event in events)


def test_on_the_host_there_is_nothing_to_flatten() -> None:
    module, x = Tagger(), torch.randn(5, 2, 4)
    with collect() as events:
        torch.testing.assert_close(smelt.compile(module, backend="eager")(x), module(x))
    assert not breaks(events)
