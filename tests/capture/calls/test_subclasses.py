"""Tensor subclasses of the program: their `__torch_function__` is followed, and what they hold is guarded."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

import smelt


class Scaled(torch.Tensor):
    """A weight and a factor, as libraries of quantized weights have them."""

    held: torch.Tensor
    factor: float
    table: dict[str, float]

    @staticmethod
    def __new__(cls, data: torch.Tensor, factor: float) -> "Scaled":
        made: Scaled = torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=data.dtype)
        return made

    def __init__(self, data: torch.Tensor, factor: float) -> None:
        self.held, self.factor, self.table = data, factor, {"k": 2.0}

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is linear:
            x, weight, bias = args
            return linear(x, weight.held * weight.factor, bias) * weight.table["k"]
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise NotImplementedError(str(func))


def test_torch_function_is_followed_and_guarded() -> None:
    def function(x: torch.Tensor, weight: Any) -> torch.Tensor:
        return linear(x.sin(), weight, None) + 1

    compiled, weight = smelt.compile(function, fullgraph=True), Scaled(torch.randn(3, 4), 2.0)
    x = torch.randn(2, 4, requires_grad=True)

    def assert_same() -> None:
        got, wanted = compiled(x, weight), function(x, weight)
        torch.testing.assert_close(got, wanted)
        torch.testing.assert_close(*[torch.autograd.grad(each.sum(), x)[0] for each in (got, wanted)])

    assert_same()
    weight.factor = 5.0
    assert_same()
    weight.table["k"] = 7.0
    assert_same()
    weight.held = torch.randn(3, 4)
    assert_same()


def test_a_layer_with_such_a_weight_is_whole() -> None:
    layer: Any = nn.Linear(4, 3)
    del layer.weight
    layer.weight = Scaled(torch.randn(3, 4), 0.5)
    x = torch.randn(2, 4)
    torch.testing.assert_close(smelt.compile(layer, fullgraph=True)(x), layer(x))


@pytest.mark.parametrize("name", ["shape", "dtype"])
def test_what_the_tensor_itself_would_say_is_pythons_to_ask(name: str) -> None:
    weight = Scaled(torch.randn(3, 4), 0.5)
    compiled = smelt.compile(lambda x, w: (x + 1, getattr(w, name)), backend="eager")
    assert compiled(torch.ones(2), weight)[1] == getattr(weight, name)


@pytest.mark.parametrize("first", [True, False], ids=["asked before", "never asked"])
def test_a_class_that_is_not_asked_for_functions_is_not_followed(first: bool) -> None:
    """Inside of `DisableTorchFunctionSubclass` its `__torch_dispatch__` is called, as in eager."""
    compiled = smelt.compile(lambda x, weight: linear(x, weight, None))
    x, weight = torch.randn(2, 4), Scaled(torch.randn(3, 4), 2.0)
    if first:
        torch.testing.assert_close(compiled(x, weight), linear(x, weight, None))
    with torch._C.DisableTorchFunctionSubclass(), pytest.raises(NotImplementedError, match="aten"):
        compiled(x, weight)
