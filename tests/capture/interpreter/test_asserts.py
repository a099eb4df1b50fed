"""Branches on a tensor that lead to `raise`: no break, and where they are taken everything is as Python has it."""

from typing import Any

import pytest
import torch

import smelt
from smelt.base.errors import GraphBreakError
from tests.capture.raising import asserted, caught, inlined, inner, raised

BACKENDS = ("eager", "aot_eager", "llvm")


@pytest.fixture(autouse=True)
def count_from_zero() -> None:
    smelt.counters.clear()


def _outcome(function: Any, *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        return repr(error)


def _same(mine: Any, plain: Any) -> bool:
    if isinstance(plain, torch.Tensor):
        return isinstance(mine, torch.Tensor) and bool(torch.equal(mine, plain))
    return bool(mine == plain)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("function", [asserted, raised, caught, inlined])
def test_what_raises_raises_and_the_rest_is_one_graph(function: Any, gradient: bool, backend: str) -> None:
    compiled = smelt.compile(function, backend=backend, fullgraph=True)
    kept: list[Any] = []
    for call in (function, compiled):
        torch.manual_seed(3)
        log: list[str] = []
        w, outcomes = torch.zeros(2), []
        for sign in (1, -1, 1, -1):
            x = (torch.ones(3) * sign).requires_grad_(gradient)
            outcomes.append(_outcome(call, x, log, w))
        kept.append((outcomes, log, w.tolist(), torch.rand(1).item()))
    (plain, *rest), (mine, *mine_rest) = kept
    assert all(_same(one, other) for one, other in zip(mine, plain, strict=True)), (mine, plain)
    assert mine_rest == rest
    assert smelt.counters["graph_breaks"] == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_gradient_flows_past_a_check(backend: str) -> None:
    x = torch.rand(4, requires_grad=True)
    smelt.compile(lambda t: inner(t).sum(), backend=backend, fullgraph=True)(x).backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, 0.5 / x.detach().sqrt())


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_check_of_something_not_a_number(backend: str) -> None:
    def checked(x: torch.Tensor) -> torch.Tensor:
        if x.sum():
            raise ValueError("not zero")
        return x

    compiled = smelt.compile(checked, backend=backend)
    for value in (0.0, -0.0, float("nan"), 1e-45):
        x = torch.tensor([value])
        assert repr(_outcome(compiled, x)) == repr(_outcome(checked, x))


def test_a_branch_that_leads_on_both_ways_breaks() -> None:
    def both(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x + 1
        return x - 1

    with pytest.raises(GraphBreakError, match="B003"):
        smelt.compile(both, backend="eager", fullgraph=True)(torch.ones(2))


@pytest.mark.parametrize("cond", ["x > 0", "x", "1"])
def test_checks_of_pytorchs_own(cond: str) -> None:
    def checked(x: torch.Tensor) -> torch.Tensor:
        torch._check_tensor_all({"x > 0": x > 0, "x": x, "1": 1}[cond], lambda: "no")
        return x + 1

    compiled = smelt.compile(checked, backend="eager", fullgraph=True)
    for sign in (1, -1, 1):
        x = torch.ones(3) * sign
        assert _same(_outcome(compiled, x), _outcome(checked, x))
    assert cond != "x > 0" or smelt.counters["graph_breaks"] == 0
