"""What calls do besides returning their result, asked of the operators themselves."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.device import random_state
from smelt.meta.effects import draws_random

aten = torch.ops.aten
X = torch.randn(4, 2, 8)
GATES = [torch.randn(24, 8), torch.randn(24, 8), torch.randn(24), torch.randn(24)]
HEADS = (torch.randn(1, 2, 4, 8),) * 3

# Of each operator: its arguments for a dropout probability, and whether it is in training.
DROPOUT: dict[Any, Callable[[float, bool], tuple[Any, ...]]] = {
    aten.native_dropout.default: lambda p, train: (X, p, train),
    aten.dropout.default: lambda p, train: (X, p, train),
    aten.alpha_dropout.default: lambda p, train: (X, p, train),
    aten.feature_dropout.default: lambda p, train: (X, p, train),
    aten.feature_alpha_dropout.default: lambda p, train: (X, p, train),
    aten.gru.input: lambda p, train: (X, torch.zeros(2, 2, 8), GATES * 2, True, 2, p, train, False, False),
}
ATTENTION: dict[Any, Callable[[float], tuple[Any, ...]]] = {
    aten.scaled_dot_product_attention.default: lambda p: (*HEADS, None, p),
    aten._scaled_dot_product_attention_math.default: lambda p: (*HEADS, None, p),
}


def draws(operator: Any, arguments: tuple[Any, ...]) -> bool:
    """Whether a call has drawn random numbers."""
    before = torch.get_rng_state()
    operator(*arguments)
    return not torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("operator", DROPOUT, ids=str)
def test_dropout_draws_in_training_only(operator: Any) -> None:
    for train in (True, False):
        arguments = DROPOUT[operator](0.5, train)
        assert draws_random(operator, arguments, {}) == draws(operator, arguments) == train


@pytest.mark.parametrize("operator", ATTENTION, ids=str)
def test_attention_draws_for_its_dropout_only(operator: Any) -> None:
    for probability in (0.5, 0.0):
        arguments = ATTENTION[operator](probability)
        assert draws_random(operator, arguments, {}) == draws(operator, arguments) == (probability > 0)
    assert not draws_random(operator, HEADS, {})
    assert draws_random(operator, HEADS, {"dropout_p": 0.1})


def test_recurrent_layers_without_dropout_draw_nothing() -> None:
    arguments = DROPOUT[aten.gru.input](0.0, True)
    assert not draws_random(aten.gru.input, arguments, {})
    assert not draws(aten.gru.input, arguments)


def test_noisy_slopes_are_drawn_in_training_only() -> None:
    for training in (True, False):
        arguments = (X, 0.1, 0.3, training)
        assert draws_random(aten.rrelu.default, arguments, {}) == draws(aten.rrelu.default, arguments) == training
    assert not draws_random(aten.rrelu.default, (X,), {})


def test_dropout_that_does_not_say_whether_it_is_in_training_draws() -> None:
    assert draws_random(aten.native_dropout.default, (X, 0.5, None), {})
    assert draws(aten.native_dropout.default, (X, 0.5, None))


def test_what_draws_nothing_else_is_random_by_its_tag_alone() -> None:
    assert draws_random(aten.bernoulli.default, (X.sigmoid(),), {})
    assert not draws_random(aten.sin.default, (X,), {})


@pytest.mark.parametrize("probability", [0.0, 0.5])
def test_random_state_is_saved_for_graphs_that_draw_only(probability: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that looks words up may raise: random numbers it has drawn by then are put back. Attention without
    dropout draws none, and reading the state at each call would take as long as a small kernel."""
    table = torch.randn(16, 8)

    def attend(words: torch.Tensor) -> torch.Tensor:
        q = torch.nn.functional.embedding(words, table).view(1, 1, -1, 8)
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=probability)

    saved: list[Any] = []
    save = random_state.save
    monkeypatch.setattr(random_state, "save", lambda devices: saved.append(devices) or save(devices))
    compiled = smelt.compile(attend, backend="eager")
    for _ in range(2):
        compiled(torch.tensor([1, 2, 3]))
    assert bool(saved) == (probability > 0)
