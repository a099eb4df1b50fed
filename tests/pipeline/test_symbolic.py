"""Sizes that vary, compiled once: random programs against eager for many sizes, and what a new size may cost."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import nn

import smelt
from smelt.pipeline.sizes.dispatch import STORED

T = torch.Tensor

# Steps of random programs. `x` is f64[n, m]; each yields a tensor of two dimensions again.
STEPS: dict[str, Callable[[T, T], T]] = {
    "sin": lambda x, w: x.sin(),
    "gelu": lambda x, w: nn.functional.gelu(x),
    "scale": lambda x, w: x * w,
    "add row": lambda x, w: x + w[:, : x.shape[1]] if w.shape[1] >= x.shape[1] else x - 1,
    "turn": lambda x, w: x.t(),
    "turn and keep": lambda x, w: x.t().contiguous() * 2,
    "cat rows": lambda x, w: torch.cat([x, x * 2]),
    "cat columns": lambda x, w: torch.cat([x.cos(), x[:, :1], x], 1),
    "drop first": lambda x, w: x[1:] if x.shape[0] > 1 else x,
    "drop last columns": lambda x, w: x[:, :-2] if x.shape[1] > 3 else x,
    "every other": lambda x, w: x[::2] + 1,
    "softmax": lambda x, w: x.softmax(-1),
    "softmax over rows": lambda x, w: x.softmax(0),
    "center": lambda x, w: x - x.mean(1, keepdim=True),
    "center all": lambda x, w: x - x.mean(),
    "divide by sum": lambda x, w: x / (1 + x.square().sum(0)),
    "largest": lambda x, w: x - x.amax(0, keepdim=True),
    "positions": lambda x, w: x + torch.arange(x.shape[0])[:, None] - torch.arange(x.shape[1]),
    "triangle": lambda x, w: x.tril() + x.triu(1).sin(),
    "by size": lambda x, w: x * x.shape[0] / x.shape[1],
    "product": lambda x, w: x @ x.t(),
    "flat": lambda x, w: (x.flatten().sin() + 1).view(x.shape),
    "three dimensions": lambda x, w: (x.view(-1, x.shape[0], x.shape[1]) * x[:, None]).sum(1),
    "repeat": lambda x, w: x.repeat(2, 1),
    "spread": lambda x, w: x.sum(0, keepdim=True).expand(x.shape[0], x.shape[1]) + x,
    "norm": lambda x, w: nn.functional.layer_norm(x, (x.shape[1],)),
    "where": lambda x, w: torch.where(x > 0, x, x.exp()),
    "running sum": lambda x, w: x.cumsum(0),
    "flip": lambda x, w: x.flip(0) * 0.5,
    "spread out": lambda x, w: (x - x.mean(0)) / (x.var(0) + 1) if x.shape[0] > 2 else x,
    "by fraction": lambda x, w: x * (1 / x.shape[0]) + x / math.sqrt(x.shape[1]),
    "count": lambda x, w: x + (torch.arange(x.shape[1]) * x.shape[0] > x.shape[1]) + (x > x.shape[0]).sum(0),
    "halves": lambda x, w: torch.cat([half * 2 for half in x.chunk(2)]),
    "sorted": lambda x, w: x.sort(0)[0] + x.amax(1, keepdim=True),
    "outer": lambda x, w: x[:, 0][:, None] * x[0] + x,
}
SIZES = ((5, 7), (6, 7), (2, 3), (3, 2), (17, 16), (4, 33), (7, 7), (1, 5), (5, 1), (1, 1), (0, 4), (40, 21))


def program(steps: Sequence[str]) -> Callable[[T, T], T]:
    def run(x: T, w: T) -> T:
        for name in steps:
            x = STEPS[name](x, w)
        return x

    return run


def agrees(function: Callable[..., T], compiled: Callable[..., T], *inputs: T) -> None:
    wanted, got = function(*inputs), compiled(*inputs)
    torch.testing.assert_close(got, wanted, equal_nan=True)
    if wanted.requires_grad:
        weights = torch.rand_like(wanted)
        found = torch.autograd.grad((got * weights).sum(), inputs, allow_unused=True)
        expected = torch.autograd.grad((wanted * weights).sum(), inputs, allow_unused=True)
        torch.testing.assert_close(found, expected, equal_nan=True)


@settings(
    max_examples=12,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=5), st.permutations(SIZES))
def test_random_programs_are_right_for_all_sizes(steps: list[str], sizes: list[tuple[int, int]]) -> None:
    smelt.reset()
    torch.manual_seed(0)
    function = program(steps)
    compiled = smelt.compile(function, dynamic=True)
    for n, m in sizes[:6]:
        x = torch.randn(n, m, dtype=torch.float64, requires_grad=True)
        w = torch.randn(1, m, dtype=torch.float64, requires_grad=True)
        try:
            function(x, w)
        except (RuntimeError, IndexError, ZeroDivisionError):
            continue
        agrees(function, compiled, x, w)


def test_a_new_size_compiles_no_kernel() -> None:
    smelt.reset()
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)).double()
    compiled = smelt.compile(model, dynamic=True)
    for rows in (5, 7, 3, 2, 64, 33, 4, 16, 1000):
        x = torch.randn(rows, 8, dtype=torch.float64, requires_grad=True)
        agrees(model, compiled, x)
        if rows == 5:
            built = smelt.counters["kernels_built"]
    assert smelt.counters["sizes_traced"] == 1 and smelt.counters["sizes_bound"] == 9
    assert smelt.counters["kernels_built"] == built
    for rows in (1, 0):
        agrees(model, compiled, torch.randn(rows, 8, dtype=torch.float64, requires_grad=True))


@pytest.mark.parametrize("backend", ["llvm", "aot_eager"])
def test_sizes_that_meet_or_are_relied_on(backend: str) -> None:
    """What holds of the first sizes only is not taken to hold of others."""

    def function(x: T, y: T) -> T:
        z = torch.cat([x, y]).sum(0) + x.mean()
        return z + (x[: y.shape[0]] if x.shape[0] > y.shape[0] else y[: x.shape[0]]).softmax(0).sum()

    smelt.reset()
    compiled = smelt.compile(function, dynamic=True, backend=backend)
    for n, m, k in ((4, 4, 4), (4, 5, 4), (5, 4, 4), (4, 4, 7), (3, 9, 6), (9, 3, 6), (100, 90, 80)):
        x, y = (torch.randn(size, k, dtype=torch.float64, requires_grad=True) for size in (n, m))
        agrees(function, compiled, x, y)


def test_every_size_is_let_go_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bound versions are dropped when there are many, and made again when their sizes come back."""
    monkeypatch.setattr("smelt.pipeline.sizes.dispatch.BOUND_LIMIT", 3)
    smelt.reset()
    compiled = smelt.compile(lambda x: (x * 2).sin().sum(0), dynamic=True)
    for rows in (*range(2, 12), 3, 2):
        x = torch.randn(rows, 3, dtype=torch.float64, requires_grad=True)
        agrees(lambda x: (x * 2).sin().sum(0), compiled, x)
    assert smelt.counters["sizes_bound"] == 12 and smelt.counters["sizes_traced"] == 1


def test_what_cannot_be_compiled_in_symbols_is_compiled_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any, **named: Any) -> Any:
        raise RuntimeError("not in symbols")

    def function(x: T) -> T:
        return x.exp() + x.shape[0]

    smelt.reset()
    with monkeypatch.context() as patched:
        patched.setattr("smelt.pipeline.compile.Compilation.trace", refuse)
        compiled = smelt.compile(function, dynamic=True)
        for rows in (3, 4, 5):
            agrees(function, compiled, torch.randn(rows, 4, dtype=torch.float64, requires_grad=True))
    assert smelt.counters["sizes_refused"] == 1 and smelt.counters["sizes_compiled"] == 3


def test_extents_that_are_equal_for_some_sizes_only() -> None:
    """ForwardBackward of five rows and of six: what is as long as the other is not one element that is spread."""
    smelt.reset()
    function = program(["gelu", "halves"])
    compiled = smelt.compile(function, dynamic=True)
    for rows in (5, 6, 8, 9, 2, 3):
        x = torch.randn(rows, 7, dtype=torch.float64, requires_grad=True)
        agrees(function, compiled, x, x)


def test_bound_sizes_are_kept_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SMELT_CACHE", raising=False)
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path))

    def function(x: T) -> T:
        return (x.sin() / x.shape[0]).softmax(1) + x.mean(0)

    for turn in range(2):
        smelt.reset()
        compiled = smelt.compile(function, dynamic=True)
        for rows in (5, 9, 40):
            agrees(function, compiled, torch.randn(rows, 3, dtype=torch.float64, requires_grad=True))
        assert smelt.counters["sizes_traced"] == (1 if turn == 0 else 0)
        assert smelt.counters["cache_hits"] == (0 if turn == 0 else 6) and smelt.counters["cache_unstorable"] == 0
        if turn:
            assert smelt.counters["kernels_built"] == 0


def test_many_sizes_are_not_all_kept_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of keys grows at every token: writing each length took forty times as long as the token."""
    monkeypatch.delenv("SMELT_CACHE", raising=False)
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path))
    smelt.reset()

    def function(x: T) -> T:
        return (x.sin() / x.shape[0]).softmax(1) + x.mean(0)

    compiled = smelt.compile(function, dynamic=True)
    for rows in range(5, 30):
        agrees(function, compiled, torch.randn(rows, 3, dtype=torch.float64, requires_grad=True))
    assert smelt.counters["sizes_traced"] == 1 and smelt.counters["sizes_bound"] == 25
    assert smelt.counters["cache_writes"] == 2 * STORED


@pytest.mark.parametrize("backend", ["aot_eager", "llvm"])
def test_a_backward_varies_though_nothing_that_comes_in_does(backend: str) -> None:
    """The sizes in its arguments were left as symbols."""

    def function(x: T) -> T:
        return x.sum(1)[0]

    compiled = smelt.compile(function, backend=backend)
    for rows in (4, 5, 6, 9):
        x = torch.ones(rows, 3, requires_grad=True)
        compiled(x).backward()  # type: ignore[no-untyped-call]
        wanted = torch.zeros(rows, 3)
        wanted[0] = 1
        assert x.grad is not None and torch.equal(x.grad, wanted)


def test_sizes_that_are_asked_for_apart_and_turn_out_equal_stay_symbols() -> None:
    """As of words and of their mask in models of language, which were compiled for each length."""

    def function(words: T, mask: T) -> T:
        places = torch.arange(words.shape[1]) + torch.arange(mask.shape[1])
        return (words + places).sin() * mask

    smelt.reset()
    compiled = smelt.compile(function)
    for length in (5, 6, 7, 9):
        words, mask = torch.randn(3, length), torch.ones(3, length)
        torch.testing.assert_close(compiled(words, mask), function(words, mask))
    assert smelt.counters["sizes_compiled"] == 0 and smelt.counters["sizes_bound"] == 3


@pytest.mark.parametrize("backend", ["aot_eager", "llvm"])
def test_an_integer_that_others_are_computed_from(backend: str) -> None:
    """Where both it and what is computed from it are operands, the integer was read as if it were a float."""

    def program(x: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        scaled = x * n
        return scaled, scaled + 2 * n

    compiled = smelt.compile(program, backend=backend)
    for size, n in ((2, 2), (3, 3), (4, 4), (5, 7), (3, 5)):
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x, n), program(x, n))
