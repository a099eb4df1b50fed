"""Sizes that differ from call to call: one file for all within their bounds, others refused by name."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from tests.deploy.models import MODELS
from tests.deploy.test_models import assert_accurate


def _logits(found: Any) -> torch.Tensor:
    made: torch.Tensor = found if isinstance(found, torch.Tensor) else found.logits
    return made


def _wide(value: torch.Tensor) -> torch.Tensor:
    return value.double() if value.is_floating_point() else value


def _compare(model: torch.nn.Module, exact: torch.nn.Module, artifact: Any, leaf: torch.Tensor, by_name: str) -> None:
    args, kwargs = ((), {by_name: leaf}) if by_name else ((leaf,), {})
    with torch.no_grad():
        eager = _logits(model(*args, **kwargs))
        wanted = _logits(exact(*map(_wide, args), **{name: _wide(value) for name, value in kwargs.items()}))
    assert_accurate(_logits(artifact(*args, **kwargs)), eager, wanted)


def test_a_batch_of_any_size() -> None:
    torch.manual_seed(0)
    model, args, _ = MODELS["mlp"]()
    artifact = smelt.export(model, args, dynamic={"input": {0: smelt.Dimension("batch", 1, 100)}})
    exact = MODELS["mlp"]()[0].double()
    exact.load_state_dict(model.state_dict())
    for size in (1, 2, 3, 17, 64, 100):
        _compare(model, exact, artifact, torch.randn(size, 16), "")
    for size in (0, 101):
        with pytest.raises(smelt.SmeltError, match=rf"SM052.*dimension 0 batch is {size}, and must be from 1 to 100"):
            artifact(torch.randn(size, 16))


def test_a_batch_that_may_be_empty() -> None:
    def doubled(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x * 2, x.sum(), torch.cat([x, x])

    artifact = smelt.export(doubled, (torch.randn(5, 3),), dynamic={"x": {0: smelt.Dimension("rows", 0, 8)}})
    for rows in (5, 0, 1, 8):
        x = torch.arange(3.0 * rows).reshape(rows, 3)
        torch.testing.assert_close(tuple(artifact(x)), doubled(x))


@pytest.mark.parametrize("name", ["gpt2", pytest.param("llama", marks=pytest.mark.slow)])
def test_text_of_any_length(name: str) -> None:
    torch.manual_seed(0)
    model, args, kwargs = MODELS[name]()
    exact = MODELS[name]()[0].double()
    exact.load_state_dict(model.state_dict())
    sizes = {0: smelt.Dimension("batch", 1, 8), 1: smelt.Dimension("tokens", 2, 32)}
    artifact = smelt.export(model, args, kwargs, dynamic={"input_ids": sizes})
    for batch, tokens in ((1, 2), (2, 12), (5, 7), (8, 32), (1, 31)):
        _compare(model, exact, artifact, torch.randint(0, 128, (batch, tokens)), "input_ids")


def test_dimensions_of_one_name_are_equal() -> None:
    def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([x.exp(), y.exp()], 1)

    rows = smelt.Dimension("rows", 2, 50)
    artifact = smelt.export(added, (torch.ones(3, 2), torch.ones(3, 4)), dynamic={"x": {0: rows}, "y": {0: rows}})
    x, y = torch.randn(9, 2), torch.randn(9, 4)
    torch.testing.assert_close(artifact(x, y), added(x, y))
    with pytest.raises(smelt.SmeltError, match="SM052"):
        artifact(torch.randn(9, 2), torch.randn(8, 4))


def test_a_buffer_is_not_written_while_a_smaller_one_is_read() -> None:
    def sums_of_sums(x: torch.Tensor) -> torch.Tensor:
        sums = x.cumsum(0)
        wider = torch.cat([sums.flip(0), sums], 1).cumsum(0)
        return wider.flip(0).cumsum(0)

    artifact = smelt.export(sums_of_sums, (torch.ones(3, 8),), dynamic={"x": {0: smelt.Dimension("rows", 2, 50)}})
    x = torch.randn(9, 8)
    torch.testing.assert_close(artifact(x), sums_of_sums(x))


def test_marked_tensors_and_dimensions_without_names() -> None:
    x = torch.ones(3, 4)
    smelt.mark_dynamic(x, 0)
    for artifact in (
        smelt.export(lambda x: x.sum(1), (x,)),
        smelt.export(lambda x: x.sum(1), (torch.ones(3, 4),), dynamic={"x": [0]}),
        smelt.export(lambda x: x.sum(1), (torch.ones(3, 4),), dynamic={"x": {-2: (1, 9)}}),
    ):
        for size in (1, 2, 9):
            torch.testing.assert_close(artifact(torch.ones(size, 4)), torch.full((size,), 4.0))


def test_marked_dimensions_have_bounds_that_each_call_is_held_to(tmp_path: Path) -> None:
    x = torch.ones(3, 4)
    smelt.mark_dynamic(x, (0, 1), min=2, max=9)
    smelt.mark_dynamic(x, 1, max=5)
    path = smelt.export(lambda x: x.sum(1), (x,)).save(tmp_path / "model.smelt")
    loaded = smelt.load(path)
    for shape in ((2, 1), (9, 5), (2, 4)):
        torch.testing.assert_close(loaded(torch.ones(shape)), torch.ones(shape).sum(1))
    refused = {
        (1, 4): "0 x.shape[0] is 1, and must be from 2 to 9",
        (10, 4): "0 x.shape[0] is 10, and must be from 2 to 9",
        (3, 6): "1 x.shape[1] is 6, and must be from 1 to 5",
    }
    for shape, why in refused.items():
        with pytest.raises(smelt.SmeltError, match=re.escape(why)) as error:
            loaded(torch.ones(shape))
        assert error.value.code == "SM052"


@pytest.mark.parametrize("bounds", [(9, 5), (-1, 5)])
def test_bounds_that_nothing_is_within(bounds: tuple[int, int]) -> None:
    for dynamic in (bounds, smelt.Dimension("rows", *bounds)):
        with pytest.raises(smelt.SmeltError, match=r"SM051.*nothing is"):
            smelt.export(lambda x: x.sum(1), (torch.ones(6, 4),), dynamic={"x": {0: dynamic}})


def test_a_number_of_any_value() -> None:
    def scaled(x: torch.Tensor, scale: float) -> torch.Tensor:
        return x * (scale * 2 + 1)

    artifact = smelt.export(scaled, (torch.ones(3), 0.5), dynamic={"scale": True})
    for scale in (0.5, -3.0, 1e6):
        torch.testing.assert_close(artifact(torch.ones(3), scale), scaled(torch.ones(3), scale))


def test_sizes_among_the_results() -> None:
    artifact = smelt.export(lambda x: (x.shape[0] * 3 + 1, x + 1), (torch.ones(3, 4),), dynamic={"x": {0: "rows"}})
    for size in (2, 5, 40):
        count, made = artifact(torch.zeros(size, 4))
        assert count == 3 * size + 1 and made.shape == (size, 4)


def test_an_lstm_with_projections_of_a_dynamic_length_is_refused_by_what_it_is() -> None:
    model, x = torch.nn.LSTM(5, 6, proj_size=3).eval(), torch.randn(4, 3, 5)
    with pytest.raises(smelt.SmeltError, match="the steps of an LSTM whose length is dynamic"):
        smelt.export(model, (x,), dynamic={"input": {0: ("length", 1, 6)}})
