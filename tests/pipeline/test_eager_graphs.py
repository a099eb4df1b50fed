"""A graph that falls back to eager says so, with its reason, and raises where that is not allowed."""

import warnings

import pytest
import torch

import smelt


def new_leaf_inside(x: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        return (x * 2).sum()


def test_warns_once_with_the_reason() -> None:
    smelt.reset()
    x = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        compiled = smelt.compile(new_leaf_inside)
        with pytest.warns(smelt.SmeltWarning, match="SM020: a graph falls back to eager.*gradients are switched on"):
            compiled(x)
        assert smelt.counters["eager_graphs"] == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert torch.equal(compiled(x), torch.tensor(6.0))


def test_raises_without_fallback() -> None:
    x = torch.ones(3, requires_grad=True)
    with torch.no_grad(), pytest.raises(smelt.SmeltError, match="gradients are switched on"):
        smelt.compile(new_leaf_inside, options={"fallback": False})(x)
