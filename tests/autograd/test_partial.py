"""Gradients that arrive for some results only: the same as in eager, whichever they are."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt


class Clipped(torch.autograd.Function):
    """A backward that is not linear, and one gradient of which may not arrive."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return (first + second).clamp(-1, 1)


def chain(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    hidden = torch.tanh(x @ w)
    return hidden, hidden.sum(0), torch.softmax(hidden * 2, -1)


def joined(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    both = torch.cat([x.sin(), (x @ w).cos()], 1)
    left, right = both.split([2, both.shape[1] - 2], 1)
    return left * 2, right.exp(), torch.stack([left.sum(), w.prod()])


def infinite(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    zero = x - x.detach()
    return x * w.sum(), zero.sqrt(), (w - w.detach()).abs().log()


def flat(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.sign() * 1.0, (w.round().sum(0) + x).relu(), w.sum()


def clipped(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    first, second = Clipped.apply(x @ w)
    return first.sum(), second, w * 2


FUNCTIONS = (chain, joined, infinite, flat, clipped)
USED = [used for count in (1, 2, 3) for used in itertools.combinations(range(3), count)]


def gradients(function: Callable[..., Any], used: tuple[int, ...]) -> list[torch.Tensor | None]:
    torch.manual_seed(0)
    x, w = torch.randn(4, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    outputs = function(x, w)
    torch.autograd.backward([outputs[number].sum() for number in used])
    return [x.grad, w.grad]


@pytest.mark.parametrize("backend", ["aot_eager", "llvm"])
@pytest.mark.parametrize("used", USED, ids=str)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_as_eager(function: Callable[..., Any], used: tuple[int, ...], backend: str) -> None:
    compiled = smelt.compile(function, backend=backend, fullgraph=True)
    for mine, theirs in zip(gradients(compiled, used), gradients(function, used), strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            torch.testing.assert_close(mine, theirs, equal_nan=True)


@pytest.mark.parametrize("backend", ["aot_eager", "llvm"])
def test_each_kind_is_compiled_once(backend: str) -> None:
    smelt.reset()
    compiled = smelt.compile(chain, backend=backend, fullgraph=True)
    gradients(compiled, (0,))
    kernels = smelt.counters["kernels"]
    for _ in range(3):
        for mine, theirs in zip(gradients(compiled, (0,)), gradients(chain, (0,)), strict=True):
            torch.testing.assert_close(mine, theirs)
    assert smelt.counters["kernels"] == kernels


def test_a_graph_out_of_the_cache(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smelt.config, "disk_cache_dir", str(tmp_path))
    monkeypatch.setattr(smelt.config, "disk_cache", True)
    monkeypatch.setenv("SMELT_CACHE", "1")
    for _ in range(2):
        smelt.reset()
        compiled = smelt.compile(infinite, fullgraph=True)
        for mine, theirs in zip(gradients(compiled, (0,)), gradients(infinite, (0,)), strict=True):
            torch.testing.assert_close(mine, theirs)
    assert smelt.counters["cache_hits"] == 2
