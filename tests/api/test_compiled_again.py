"""Compiling what is already compiled starts from the original; a wrapper round it keeps its own meaning."""

import functools
from typing import Any

import torch
from torch import nn

import smelt


def test_a_compiled_function_is_compiled_afresh() -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    once = smelt.compile(double)
    once(torch.ones(3))
    found = smelt.explain(once)(torch.ones(3))
    assert (found.graph_count, found.graph_break_count) == (1, 0)


def test_a_compiled_module_is_compiled_afresh() -> None:
    model = nn.Linear(3, 3)
    once = smelt.compile(model, backend="eager")
    again = smelt.compile(once)
    assert again.weight is model.weight
    assert type(again).__mro__[1] is nn.Linear
    assert torch.allclose(again(torch.ones(1, 3)), model(torch.ones(1, 3)))


def test_a_wrapper_that_copies_attributes_is_a_function_of_its_own() -> None:
    compiled = smelt.compile(lambda x: x * 2)

    @functools.wraps(compiled)
    def and_one(*args: Any) -> Any:
        return compiled(*args) + 1

    assert torch.equal(smelt.compile(and_one)(torch.ones(2)), torch.full((2,), 3.0))
