"""A model that has a `forward` of its own, as wrappers of precision and placement give it one, is compiled with it."""

import copy
import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from tests.targets import device_type


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.tanh(self.inner(x)) * 2
        return result


def plain(model: nn.Module) -> None:
    model.forward = lambda x: torch.sin(model.inner(x))  # type: ignore[operator]


def under_autocast(model: nn.Module) -> None:
    """As accelerate does for mixed precision: a decorated function, bound to the model again."""
    forward = torch.autocast(device_type(), dtype=torch.bfloat16)(model.forward.__func__)  # type: ignore[attr-defined]

    @functools.wraps(forward)
    def in_float32(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs).float()

    model.forward = types.MethodType(in_float32, model)


def placed(model: nn.Module) -> None:
    """As accelerate does for offloading: a partial of a function that calls the old one."""
    old = model.forward

    def moved(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return old(*(arg.to(torch.float32) for arg in args), **kwargs)

    model.forward = functools.update_wrapper(functools.partial(moved, model), old)


WAYS = [plain, under_autocast, placed]


def made(way: Callable[[nn.Module], None]) -> Twice:
    torch.manual_seed(0)
    model = Twice()
    way(model)
    return model


@pytest.mark.parametrize("way", WAYS)
def test_a_forward_of_its_own_is_compiled(way: Callable[[nn.Module], None]) -> None:
    smelt.reset()
    x = torch.randn(3, 4)
    eager = made(way)
    expected = eager(x)
    expected.sum().backward()
    compiled = smelt.compile(made(way), fullgraph=True)
    for _ in range(2):
        compiled.zero_grad()
        got = compiled(x)
        got.sum().backward()
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if way is under_autocast else {}
    torch.testing.assert_close(got, expected, **tolerance)
    torch.testing.assert_close(compiled.inner.weight.grad, eager.inner.weight.grad, **tolerance)
    assert (smelt.counters["graphs"], smelt.counters["graph_breaks"]) == (1, 0)


@pytest.mark.parametrize("way", WAYS)
def test_hooks_run_round_it_once(way: Callable[[nn.Module], None]) -> None:
    model, x = made(way), torch.randn(3, 4)
    expected = model(x) + 1
    model.register_forward_hook(lambda module, args, result: result + 1)
    torch.testing.assert_close(smelt.compile(model)(x), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("way", WAYS)
def test_it_is_followed_inside_another_compiled_function(way: Callable[[nn.Module], None]) -> None:
    smelt.reset()
    x = torch.randn(3, 4)
    inner = smelt.compile(made(way))
    outer = smelt.compile(lambda x: inner(x * 2) + 1)
    torch.testing.assert_close(outer(x), made(way)(x * 2) + 1, rtol=2e-2, atol=2e-2)
    assert (smelt.counters["graphs"], smelt.counters["graph_breaks"]) == (1, 0)


def test_another_forward_is_seen_and_so_is_none() -> None:
    x = torch.randn(3, 4)
    compiled = smelt.compile(made(plain))
    torch.testing.assert_close(compiled(x), torch.sin(compiled.inner(x)))
    compiled.forward = lambda x: torch.cos(compiled.inner(x))
    torch.testing.assert_close(compiled(x), torch.cos(compiled.inner(x)))
    del compiled.forward
    torch.testing.assert_close(compiled(x), torch.tanh(compiled.inner(x)) * 2)


def test_a_copy_has_its_own_parameters() -> None:
    x = torch.randn(3, 4)
    compiled = smelt.compile(made(under_autocast))
    compiled(x)
    other = copy.deepcopy(compiled)
    with torch.no_grad():
        other.inner.weight.zero_()
        other.inner.bias.fill_(0.5)
    torch.testing.assert_close(other(x), torch.full((3, 4), 2 * 0.4621), rtol=2e-2, atol=2e-2)


def test_explain_shows_its_graph() -> None:
    assert smelt.explain(made(plain))(torch.randn(3, 4)).graph_count == 1


@pytest.mark.parametrize("way", WAYS)
def test_a_forward_that_is_set_after_compiling_is_compiled(way: Callable[[nn.Module], None]) -> None:
    smelt.reset()
    x = torch.randn(3, 4)
    expected = made(way)(x)
    torch.manual_seed(0)
    compiled = smelt.compile(Twice())
    way(compiled)
    got = [compiled(x) for _ in range(2)]
    torch.testing.assert_close(got, [expected, expected], rtol=2e-2, atol=2e-2)
    assert (smelt.counters["graphs"], smelt.counters["graph_breaks"], smelt.counters["calls"]) == (1, 0, 2)


def test_a_forward_that_is_set_between_calls_replaces_the_compiled_one() -> None:
    smelt.reset()
    x = torch.randn(3, 4)
    compiled = smelt.compile(Twice())
    torch.testing.assert_close(compiled(x), torch.tanh(compiled.inner(x)) * 2)
    old = compiled.forward
    compiled.forward = lambda x: old(x) + 1
    torch.testing.assert_close(compiled(x), torch.tanh(compiled.inner(x)) * 2 + 1)
    assert (smelt.counters["graphs"], smelt.counters["graph_breaks"]) == (2, 0)
    del compiled.forward
    torch.testing.assert_close(compiled(x), torch.tanh(compiled.inner(x)) * 2)


def test_a_forward_that_is_set_on_the_original_runs_in_python() -> None:
    """Both have one dict, in which nothing tells that it was set: asking at every call would cost every call."""
    smelt.reset()
    x = torch.randn(3, 4)
    model = Twice()
    compiled = smelt.compile(model)
    model.forward = lambda x: torch.cos(model.inner(x))  # type: ignore[method-assign]
    torch.testing.assert_close(compiled(x), torch.cos(model.inner(x)))
    assert smelt.counters["calls"] == 0
    compiled.forward = model.forward  # set where it is followed
    torch.testing.assert_close(compiled(x), torch.cos(model.inner(x)))
    assert (smelt.counters["graphs"], smelt.counters["calls"]) == (1, 1)
    del model.forward
    torch.testing.assert_close(compiled(x), torch.tanh(model.inner(x)) * 2)
