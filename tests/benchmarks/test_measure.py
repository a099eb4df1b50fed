"""The measures the benchmarks stand on: what they count, what they leave out, and that the rules can fail."""

import math
from typing import Any

import torch
from torch import nn

from benchmarks.measure import errors, interleaved, ratio, saved_bytes
from benchmarks.models import MODELS


def test_saved_bytes_counts_inputs_and_results_but_no_parameters() -> None:
    layer = nn.Linear(8, 4)
    x = torch.randn(2, 8)
    loss = layer(x).exp().sum()
    assert saved_bytes(loss, layer.parameters()) == x.nbytes + 2 * 4 * 4  # the input, and what exp keeps of its result


def test_saved_bytes_counts_a_shared_storage_once_and_whole() -> None:
    x = torch.randn(10, 10, requires_grad=True)
    part = x.exp()[:2]
    loss = (part.sin() * part.cos()).sum()
    shared = 10 * 10 * 4  # exp keeps its result, and sin and cos keep two rows of that same storage
    assert saved_bytes(loss, [x]) == shared + 2 * 2 * 10 * 4  # besides, mul keeps both factors


def test_saved_bytes_sees_what_a_function_saves_or_hides_in_its_context() -> None:
    class Hoarder(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x.clone())
            ctx.hidden = [torch.zeros(100)]
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * 2

    x = torch.randn(5, requires_grad=True)
    loss = Hoarder.apply(x).sum()
    assert saved_bytes(loss, [x]) == 5 * 4 + 100 * 4


def test_errors_follow_the_rule() -> None:
    exact = torch.tensor([1.0, 100.0], dtype=torch.float64)
    eager = (exact + torch.tensor([0.0, 1e-3])).float()
    assert errors([eager], [eager], [exact]).within
    assert errors([(exact + 1.9e-3).float()], [eager], [exact]).within
    assert not errors([(exact + 4e-3).float()], [eager], [exact]).within


def test_what_eager_gets_all_wrong_says_nothing_unless_it_is_no_number() -> None:
    exact, noise = torch.tensor([1e-18], dtype=torch.float64), torch.tensor([1e-9])
    assert errors([noise * 5], [noise], [exact]).within
    assert not errors([noise * math.nan], [noise], [exact]).within


def test_a_few_ulp_are_granted_when_eager_is_exact() -> None:
    exact = torch.tensor([1.0], dtype=torch.float64)
    ulp = torch.finfo(torch.float32).eps
    assert errors([(exact + 3 * ulp).float()], [exact.float()], [exact]).within
    assert not errors([(exact + 6 * ulp).float()], [exact.float()], [exact]).within


def test_not_a_number_is_never_within() -> None:
    exact = torch.tensor([1.0, 2.0], dtype=torch.float64)
    found = errors([torch.tensor([1.0, math.nan])], [exact.float()], [exact])
    assert not found.within
    assert found.scaled == math.inf


def test_every_tensor_counts() -> None:
    exact = torch.ones(2, dtype=torch.float64)
    good, bad = exact.float(), exact.float() * 1.1
    assert not errors([good, bad], [good, good], [exact, exact]).within


def test_interleaved_runs_everything_in_every_round() -> None:
    ran: list[str] = []
    seconds = interleaved({"a": lambda: ran.append("a"), "b": lambda: ran.append("b")}, rounds=3, per_round=1e-9)
    assert ran == ["a", "b"] * 4  # once to see how long it takes, then three rounds
    assert {name: len(found) for name, found in seconds.items()} == {"a": 3, "b": 3}


def test_ratio_is_taken_within_rounds() -> None:
    assert ratio({"slow": [2.0, 20.0, 200.0], "fast": [1.0, 10.0, 100.0]}, "slow", "fast") == 2.0


def test_models_are_the_same_whenever_and_in_whatever_dtype_they_are_built() -> None:
    for model in MODELS.values():
        first, second, wide = model.build(), model.build(), model.build(torch.float64)
        for mine, again, exact in zip(
            (*first.module.parameters(), *first.inputs),
            (*second.module.parameters(), *second.inputs),
            (*wide.module.parameters(), *wide.inputs),
            strict=True,
        ):
            assert torch.equal(mine, again)
            assert torch.equal(mine.double(), exact)
            assert mine.requires_grad == exact.requires_grad
