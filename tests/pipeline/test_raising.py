"""Errors that depend on values: a call compiled with good ones raises on bad ones what eager raises, and no sooner."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt

GOOD, BAD = torch.tensor([0, 1, 2]), torch.tensor([0, 9, 2])
SCORES = torch.linspace(-1, 1, 12).reshape(3, 4)

CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]] = {
    "cholesky": (lambda x: torch.linalg.cholesky(x) * 2, (torch.eye(3),), (-torch.eye(3),)),
    "cholesky that nobody uses": (lambda x: (torch.linalg.cholesky(x), x * 2)[1], (torch.eye(3),), (-torch.eye(3),)),
    "inverse": (lambda x: torch.linalg.inv(x) * 2, (torch.eye(3),), (torch.zeros(3, 3),)),
    "solve": (lambda x: torch.linalg.solve(x, x) * 2, (torch.eye(3),), (torch.zeros(3, 3),)),
    "assertion": (lambda x: (torch._assert_async((x > 0).all()), x * 2)[1], (torch.ones(3),), (torch.zeros(3),)),
    "index": (lambda x, i: x[i] * 2, (SCORES, GOOD), (SCORES, BAD)),
    "gather": (lambda x, i: x.gather(0, i) * 2, (SCORES, GOOD[None]), (SCORES, BAD[None])),
    "embedding": (lambda x, i: F.embedding(i, x) * 2, (SCORES, GOOD), (SCORES, BAD)),
    "scatter": (lambda x, i: x.scatter(0, i, 1.0) * 2, (SCORES, GOOD[None]), (SCORES, BAD[None])),
    "index_put": (lambda x, i: x.index_put((i,), x) * 2, (SCORES, GOOD), (SCORES, BAD)),
    "cross_entropy": (lambda x, i: F.cross_entropy(x, i), (SCORES, GOOD), (SCORES, BAD)),
    "division": (lambda i: 5 // i, (GOOD + 1,), (GOOD,)),
    "index that nobody uses": (lambda x, i: (x[i], x * 2)[1], (SCORES, GOOD), (SCORES, BAD)),
    "selection that nobody uses": (lambda x, i: (x.index_select(0, i).sin(), x * 2)[1], (SCORES, GOOD), (SCORES, BAD)),
    "lookup that nobody uses": (lambda x, i: (F.embedding(i, x), x * 2)[1], (SCORES, GOOD), (SCORES, BAD)),
    "loss that nobody uses": (lambda x, i: (F.cross_entropy(x, i), x * 2)[1], (SCORES, GOOD), (SCORES, BAD)),
    "division that nobody uses": (lambda i: (5 // i, i * 2)[1], (GOOD + 1,), (GOOD,)),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "llvm"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("gradients", [False, True])
def test_bad_values_raise_as_in_eager(name: str, backend: str, gradients: bool) -> None:
    function, good, bad = CASES[name]
    if gradients:
        good, bad = (
            tuple(x.clone().requires_grad_() if x.is_floating_point() else x for x in given) for given in (good, bad)
        )
    compiled = smelt.compile(function, backend=backend, options={"check_specs": True})
    torch.testing.assert_close(compiled(*good), function(*good))
    with pytest.raises(Exception) as eager:
        function(*bad)
    with pytest.raises(type(eager.value)) as raised:
        compiled(*bad)
    assert str(raised.value).splitlines()[0] == str(eager.value).splitlines()[0]
    torch.testing.assert_close(compiled(*good), function(*good))


def test_a_custom_operator_runs_though_nobody_uses_its_result() -> None:
    seen: list[float] = []

    @torch.library.custom_op("smelt_tests::look_at", mutates_args=())
    def look_at(x: torch.Tensor) -> torch.Tensor:
        seen.append(float(x.sum()))
        return x.clone()

    @look_at.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    def function(x: torch.Tensor) -> torch.Tensor:
        torch.ops.smelt_tests.look_at(x)
        return x + 1

    compiled = smelt.compile(function)
    compiled(torch.ones(3))
    compiled(torch.ones(4))
    assert seen == [3.0, 4.0]


@pytest.mark.parametrize("gradients", [False, True])
def test_an_operator_that_was_described_wrongly_is_left_to_pytorch(gradients: bool) -> None:
    @torch.library.custom_op("smelt_tests::halve", mutates_args=())
    def halve(x: torch.Tensor) -> torch.Tensor:
        return (x / 2).to(torch.bfloat16)

    @halve.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ops.smelt_tests.halve(x.detach()) * 2 + 1, x.sin()

    x = torch.randn(4, 5, requires_grad=gradients)
    for mine, eager in zip(smelt.compile(function)(x), function(x), strict=True):
        torch.testing.assert_close(mine, eager)
        assert mine.requires_grad == eager.requires_grad


@pytest.mark.parametrize("gradients", [False, True])
def test_random_numbers_are_drawn_once_where_an_operator_was_described_wrongly(gradients: bool) -> None:
    @torch.library.custom_op("smelt_tests::third", mutates_args=())
    def third(x: torch.Tensor) -> torch.Tensor:
        return (x / 3).to(torch.bfloat16)

    @third.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        dropped = torch.nn.functional.dropout(x, 0.5)
        return torch.ops.smelt_tests.third(x.detach()), dropped

    def drawn(run: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        return [*run(x), torch.rand(3)]

    x = torch.randn(4, 5, requires_grad=gradients)
    compiled = smelt.compile(function)
    for _ in range(2):
        torch.testing.assert_close(drawn(compiled), drawn(function), rtol=0, atol=0)
