"""Programs in symbols that are bound by filling in tables: they compute what eager does, whatever the sizes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.pipeline.sizes import dispatch, template
from smelt.pipeline.sizes.dispatch import STORED
from smelt.pipeline.sizes.open_table import OpenTable
from smelt.runtime.program import arenas

LENGTHS = (*range(3, 3 + STORED), 40, 17, 12, 150, 33, 64, 8, 65, 41)


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> list[OpenTable]:
    """The tables that were filled in, once each time. No runner serves all sizes, as in training."""
    smelt.reset()
    tables: list[OpenTable] = []
    bind = OpenTable.bind

    def counted(self: OpenTable, *args: Any) -> Any:
        tables.append(self)
        return bind(self, *args)

    monkeypatch.setattr(OpenTable, "bind", counted)
    monkeypatch.setattr(OpenTable, "for_all_sizes", lambda *args: None)
    return tables


def _attention(x: torch.Tensor) -> torch.Tensor:
    scores = (x @ x.transpose(-1, -2)).softmax(-1)
    return torch.cat([scores @ x, x.flip(1)], 1).relu() + x.shape[1]


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x * torch.cumsum(torch.sort(x.sum(0, keepdim=True), 1).values, 1).tanh()


def _library_calls(x: torch.Tensor) -> torch.Tensor:
    return torch.sort(x, 1).values.cumsum(1) + torch.roll(x, 2, 1) + torch.arange(x.shape[1])[:, None]


def _numbers(x: torch.Tensor) -> torch.Tensor:
    rows: torch.Tensor = x.reshape(-1, 4).narrow(0, 1, x.shape[1] - 1) * (x.shape[1] ** -0.5)
    return rows + x.new_full((4,), x.shape[1])


@pytest.mark.parametrize("function", [_attention, _library_calls, _numbers, _rows])
def test_one_runner_computes_what_eager_does(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    smelt.reset()
    compiled = smelt.compile(function, dynamic=True)
    for length in (*LENGTHS, *LENGTHS):
        x = torch.randn(4, length, 4, generator=torch.Generator().manual_seed(length))
        torch.testing.assert_close(compiled(x), function(x))
    assert smelt.counters["graphs"] == 1
    assert smelt.counters["sizes_refused"] == 0


@pytest.mark.parametrize("function", [_attention, _library_calls, _numbers])
def test_computes_what_eager_does(function: Callable[[torch.Tensor], torch.Tensor], bound: list[OpenTable]) -> None:
    compiled = smelt.compile(function, dynamic=True)
    for length in LENGTHS:
        x = torch.randn(2, length, 4, generator=torch.Generator().manual_seed(length))
        torch.testing.assert_close(compiled(x), function(x))
    assert smelt.counters["graphs"] == 1
    assert smelt.counters["sizes_refused"] == 0


def test_many_lengths_share_a_table(bound: list[OpenTable]) -> None:
    compiled = smelt.compile(_attention, dynamic=True)
    for length in LENGTHS:
        compiled(torch.randn(2, length, 4))
    assert len(bound) == len(set(LENGTHS)) - STORED
    assert len(set(map(id, bound))) <= 3


def test_programs_for_many_lengths_see_an_arena_alike(bound: list[OpenTable], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    see = arenas._Arena._seen

    def counted(self: Any, view: Any) -> torch.Tensor:
        seen.append(len(bound))
        return see(self, view)

    monkeypatch.setattr(arenas._Arena, "_seen", counted)
    compiled = smelt.compile(_rows)
    for length in range(20, 60):
        x = torch.randn(length, 4)
        smelt.mark_dynamic(x, 0)
        torch.testing.assert_close(compiled(x), _rows(x))
    assert len(bound) == 40 - STORED
    assert len([number for number in seen if number]) == len(bound[-1].arena_views) > 0


def test_binding_to_a_length_is_no_compilation(bound: list[OpenTable], monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = smelt.compile(_attention, dynamic=True)
    for length in LENGTHS[: STORED + 1]:
        compiled(torch.randn(2, length, 4))
    stages: list[str] = []
    monkeypatch.setattr(dispatch, "timed", lambda stage, what: stages.append(stage))
    compiled(torch.randn(2, 21, 4))
    assert bound and not stages


def test_trains_as_eager_does(bound: list[OpenTable]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 4))
    compiled = smelt.compile(model, dynamic=True)
    for length in LENGTHS:
        x = torch.randn(2, length, 4, generator=torch.Generator().manual_seed(length))
        gradients = []
        for each in (model, compiled):
            model.zero_grad()
            each(x).square().mean().backward()
            gradients.append([parameter.grad for parameter in model.parameters()])
        torch.testing.assert_close(*gradients)
    assert bound


def test_sizes_that_decide_more_than_words_are_flattened_each_time(
    bound: list[OpenTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template, "open_table", lambda *args: None)
    compiled = smelt.compile(_attention, dynamic=True)
    for length in LENGTHS:
        x = torch.randn(2, length, 4)
        torch.testing.assert_close(compiled(x), _attention(x))
    assert not bound
