"""Breaks inside generator expressions are blamed on what broke, not on the generator."""

from typing import Any

import pytest
import torch

import smelt


def _broken(x: torch.Tensor) -> torch.Tensor:
    smelt.graph_break()
    return x * 2


@pytest.mark.parametrize(
    "function",
    [
        lambda x: sum(_broken(each) for each in (x, x + 1)),
        lambda x: torch.stack([*(_broken(each) for each in (x, x + 1))]),
        lambda x: torch.stack(list(map(_broken, (each for each in (x, x + 1))))),
    ],
)
def test_a_break_inside_a_generator_is_blamed_on_its_cause(function: Any) -> None:
    x = torch.arange(3.0)
    explanation = smelt.explain(function, backend="eager")(x)
    assert explanation.break_reasons[0].code == "B001"
    assert not any("genexpr" in reason.reason for reason in explanation.break_reasons)
    torch.testing.assert_close(smelt.compile(function, backend="eager")(x), function(x))


def test_a_branch_inside_a_generator_is_blamed_on_its_cause() -> None:
    def positive(x: torch.Tensor) -> torch.Tensor:
        return x + sum(1 for each in x if each > 0)

    explanation = smelt.explain(positive, backend="eager")(torch.arange(3.0))
    assert explanation.break_reasons[0].code == "B003"
