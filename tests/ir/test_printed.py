"""Graphs whose code is Python, whatever they hold."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt

FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "bool": lambda x: x.to(bool),
    "float": lambda x: torch.zeros(3, dtype=float) + x,
    "int": lambda x: x.to(dtype=int),
    "complex": lambda x: x.to(complex),
    "a sum's": lambda x: x.sum(dtype=float),
    "beside the method of that name": lambda x: x.float() + x.to(float),
    "random_": lambda x: x.clone().random_(**{"from": 1, "to": 5}),
    "random_ by position": lambda x: x.clone().random_(1, 5),
    "uniform_": lambda x: x.clone().uniform_(**{"from": 1.0, "to": 5.0}),
    "uniform_ from": lambda x: x.clone().uniform_(**{"from": 0.5}),
    "uniform_ to": lambda x: x.clone().uniform_(to=5.0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_code_of_captured_and_of_pure_graphs(name: str) -> None:
    function, x = FUNCTIONS[name], torch.randn(3)
    codes: list[str] = []

    def compiler(module: Any, examples: Any) -> Any:
        codes.append(module.code)
        return module

    def backend(module: Any, examples: Any) -> Any:
        codes.append(module.code)
        return smelt.aot_module_simplified(module, examples, compiler)

    torch.manual_seed(0)
    wanted = function(x)
    made = (
        smelt.compile(function, backend=compiler, fullgraph=True),
        smelt.compile(function, backend=backend, fullgraph=True),
        smelt.compile(function, backend="eager", fullgraph=True),
        smelt.aot_function(function, compiler),
    )
    for each in made:
        torch.manual_seed(0)
        torch.testing.assert_close(each(x), wanted)
    assert len(codes) == 4
