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


@pytest.mark.parametrize("compiled_autograd", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "llvm"])
def test_an_input_that_no_gradient_goes_to_is_left_alone(backend: str, compiled_autograd: bool) -> None:
    """A backward does not come by it, and frees nothing of what it was computed from."""
    smelt.config.compiled_autograd = compiled_autograd
    try:
        one, other = (torch.randn(3, requires_grad=True) for _ in range(2))
        seen: list[Any] = []
        other.register_hook(seen.append)
        computed = other.exp()
        compiled = smelt.compile(lambda x, y: (x * 2, y.detach() * 3), backend=backend)
        first, second = compiled(one.exp(), computed)
        assert first.requires_grad and not second.requires_grad
        first.sum().backward()
        assert seen == [] and other.grad is None
        computed.sum().backward()
        torch.testing.assert_close(other.grad, other.detach().exp())
    finally:
        smelt.config.compiled_autograd = False


class Looked(torch.nn.Module):
    """A table whose gradients are sparse, looked up twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(11, 4, sparse=True)

    def forward(self, x: torch.Tensor, tied: bool) -> torch.Tensor:
        found = self.table(x)
        return found @ self.table.weight.t() if tied else found.sum() + self.table(x[:1] + 1).square().sum()


@pytest.mark.parametrize("compiled_autograd", [False, True])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "llvm"])
def test_sparse_gradients_that_are_added_up(backend: str, tied: bool, compiled_autograd: bool) -> None:
    """No kernel computes with those: fake tensors do not tell them from others."""
    x = torch.tensor([[1, 2], [1, 3]])
    plain, model = Looked(), Looked()
    smelt.config.compiled_autograd = compiled_autograd
    try:
        compiled = smelt.compile(model, backend=backend)
        for _ in range(2):
            plain(x, tied).square().sum().backward()
            compiled(x, tied).square().sum().backward()
    finally:
        smelt.config.compiled_autograd = False
    expected, found = plain.table.weight.grad, model.table.weight.grad
    assert expected is not None and found is not None and found.layout is expected.layout
    torch.testing.assert_close(found.to_dense(), expected.to_dense())
