"""A compiled module among copies, classes and owners: whatever is called computes with its own parameters."""

import copy
import gc
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import smelt


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.scale = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.tanh(self.inner(x)) * self.scale
        return result


@pytest.fixture
def x() -> torch.Tensor:
    return torch.linspace(-1, 1, 8).view(2, 4)


def compiled_scaled(x: torch.Tensor) -> tuple[nn.Module, Scaled]:
    model = Scaled()
    compiled = smelt.compile(model)
    torch.testing.assert_close(compiled(x), model(x))
    return compiled, model


def by_hand(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(model.inner(x)) * model.scale  # type: ignore[operator]


def test_a_shallow_copy_has_attributes_of_its_own(x: torch.Tensor) -> None:
    compiled, model = compiled_scaled(x)
    other = copy.copy(compiled)
    other.scale = 5.0  # type: ignore[assignment]
    assert model.scale == 2.0
    torch.testing.assert_close(compiled(x), by_hand(model, x))
    torch.testing.assert_close(other(x), by_hand(other, x))
    assert other.inner is model.inner
    calls = smelt.counters["calls"]
    other(x)
    assert smelt.counters["calls"] == calls + 1


def test_a_new_object_of_the_class_of_a_compiled_one_computes_with_its_own_parameters(x: torch.Tensor) -> None:
    compiled, model = compiled_scaled(x)
    other = type(compiled)()
    torch.testing.assert_close(other(x), by_hand(other, x))
    assert not torch.equal(other(x), model(x))

    class Shifted(type(compiled)):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + 1  # type: ignore[no-any-return]

    shifted = Shifted()
    torch.testing.assert_close(shifted(x), by_hand(shifted, x) + 1)
    torch.testing.assert_close(copy.deepcopy(shifted)(x), shifted(x))
    torch.testing.assert_close(copy.copy(shifted)(x), shifted(x))


def test_a_replica_computes_with_its_own_parameters(x: torch.Tensor) -> None:
    compiled, _ = compiled_scaled(x)
    replica = compiled._replicate_for_data_parallel()
    replica.inner = nn.Linear(4, 4)
    torch.testing.assert_close(replica(x), by_hand(replica, x))


def test_a_class_may_copy_itself(x: torch.Tensor) -> None:
    class Copying(Scaled):
        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            made = type(self)()
            made.load_state_dict(self.state_dict())
            return made

    compiled = smelt.compile(Copying())
    compiled(x)
    other = copy.deepcopy(compiled)
    with torch.no_grad():
        other.inner.weight.zero_()
    torch.testing.assert_close(other(x), by_hand(other, x))


@pytest.mark.parametrize("nested", [False, True])
def test_a_class_may_be_given_another_forward(nested: bool, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, _ = compiled_scaled(x)
    call: Callable[..., Any] = smelt.compile(lambda x: compiled(x) + 0) if nested else compiled
    expected = call(x)
    monkeypatch.setattr(Scaled, "forward", lambda self, x: by_hand(self, x) + 1)
    torch.testing.assert_close(call(x), expected + 1)
    monkeypatch.undo()
    torch.testing.assert_close(call(x), expected)


def test_the_original_may_become_of_another_class(x: torch.Tensor) -> None:
    class Other(Scaled):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + 1

    compiled, model = compiled_scaled(x)
    model.__class__ = Other
    torch.testing.assert_close(compiled(x), by_hand(model, x) + 1)


def test_forward_may_be_anything_that_can_be_called(x: torch.Tensor) -> None:
    class Static(nn.Module):
        @staticmethod
        def forward(x: torch.Tensor) -> torch.Tensor:
            return x * 2

    class Callable_(nn.Module):
        forward = type("Doubling", (), {"__call__": lambda self, x: x * 2})()

    for kind in (Static, Callable_):
        torch.testing.assert_close(smelt.compile(kind())(x), x * 2)
    assert smelt.counters["graphs"] >= 1


def test_a_parametrized_compiled_module_is_copied_whole(x: torch.Tensor) -> None:
    compiled = smelt.compile(nn.Linear(4, 4))
    parametrize.register_parametrization(compiled, "weight", nn.Tanh())
    torch.testing.assert_close(compiled(x), x @ compiled.weight.t() + compiled.bias)
    other = copy.deepcopy(compiled)
    with torch.no_grad():
        other.parametrizations.weight.original.add_(1)
    torch.testing.assert_close(other(x), x @ other.weight.t() + other.bias)
    torch.testing.assert_close(compiled(x), x @ compiled.weight.t() + compiled.bias)
    parametrize.remove_parametrizations(compiled, "weight")
    torch.testing.assert_close(compiled(x), x @ compiled.weight.t() + compiled.bias)


@pytest.mark.parametrize("mark", [smelt.compile, smelt.disable])
def test_a_bound_method_goes_with_a_copy_of_its_object(mark: Callable[..., Any], x: torch.Tensor) -> None:
    model = Scaled()
    model.forward = mark(model.forward)  # type: ignore[method-assign]
    expected = model(x)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.inner.weight.zero_()
        other.inner.bias.fill_(0.5)
    torch.testing.assert_close(other(x), by_hand(other, x))
    torch.testing.assert_close(model(x), expected)
    torch.testing.assert_close(expected, by_hand(model, x))


def test_a_compiled_bound_method_compiles_again_from_the_start(x: torch.Tensor) -> None:
    model = Scaled()
    once = smelt.compile(model.forward)
    twice = smelt.compile(once)
    assert isinstance(twice, types.MethodType)
    torch.testing.assert_close(twice(x), by_hand(model, x))
    assert smelt.explain(twice)(x).graph_count == 1


def test_a_compiled_model_goes_when_nobody_has_it(x: torch.Tensor) -> None:
    compiled, model = compiled_scaled(x)
    compiled(x).sum().backward()
    gone = [weakref.ref(each) for each in (compiled, model, model.inner, model.inner.weight)]
    gc.collect()  # what capture leaves
    gc.disable()
    try:
        compiled(x).sum().backward()
        del compiled
        assert by_hand(model, x).shape == x.shape
        del model
        assert [reference() for reference in gone] == [None] * 4
    finally:
        gc.enable()
