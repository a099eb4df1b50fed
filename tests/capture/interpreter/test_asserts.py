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


def _by_assert(x: torch.Tensor, n: int) -> torch.Tensor:
    torch._assert((x > 0).all(), "not positive")
    torch._assert(n > 0, "no number")
    return x + n


def _not_waited_for(x: torch.Tensor, n: int) -> torch.Tensor:
    torch._assert_async((x > 0).all())
    torch._assert_async((x < n).all(), "too large")
    return x + n


def _by_operators(x: torch.Tensor, n: int) -> torch.Tensor:
    torch.ops.aten._assert_async((x > 0).all())
    torch.ops.aten._assert_async.msg((x < n).all(), "too large")
    return x + n


def _of_sizes(x: torch.Tensor, n: int) -> torch.Tensor:
    torch._check(n > 0, lambda: f"{n} is no number")
    torch._check_value(x.shape[0] > 1)
    torch._check_index(x.dim() == 1, lambda: "dims")
    return x + n


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", [_by_assert, _not_waited_for, _by_operators, _of_sizes])
def test_functions_that_check(function: Any, backend: str) -> None:
    """Where they find nothing wrong they break nothing; where they do, PyTorch raises what it raises."""
    smelt.compile(function, backend=backend, fullgraph=True)(torch.ones(3), 2)
    compiled = smelt.compile(function, backend=backend)
    for x, n in ((torch.ones(3), 2), (torch.ones(3), 3), (-torch.ones(3), 3), (torch.ones(3), -1), (torch.ones(1), 3)):
        assert _same(_outcome(compiled, x, n), _outcome(function, x, n)), (x, n)


@pytest.mark.parametrize("given", [1, "x.sum() > 0", "(x > 0).all().item()"])
def test_what_is_no_condition(given: Any) -> None:
    def checked(x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        torch._check_value(eval(given) if isinstance(given, str) else given, lambda: "no")
        return x + 1

    compiled = smelt.compile(checked, backend="eager")
    for sign in (1, -1):
        x = torch.ones(3) * sign
        assert _same(_outcome(compiled, x), _outcome(checked, x))
