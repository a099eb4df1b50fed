"""Random graphs of element-wise operators, folds, views, broadcasts and library calls: program against eager."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuse.running import assert_same
from tests.targets import seeded

SHAPES = [(4, 6), (6,), (4, 1), (), (2, 3, 4), (6, 4), (24,), (1, 6), (3, 4)]

UNARY: list[Callable[[torch.Tensor], torch.Tensor]] = [
    torch.sin,
    torch.sigmoid,
    torch.relu,
    lambda x: x * 0.5 + 1,
    lambda x: -x,
    lambda x: x.clone(),
    lambda x: x.abs() + 0.1,
    lambda x: (x > 0).to(x.dtype),
    lambda x: torch.where(x > 0.1, x, 0.25),
    lambda x: x.clamp(-1, 1),
]
BINARY: list[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = [
    torch.add,
    torch.sub,
    torch.mul,
    torch.maximum,
    lambda a, b: a / (b.abs() + 1),
    lambda a, b: torch.where(a > b, a, b * 2),
]


def _fold(x: torch.Tensor, dims: int, keepdim: bool, kind: int) -> torch.Tensor:
    if x.dim() == 0:
        return x * 2
    chosen = [d for d in range(x.dim()) if dims >> d & 1] or [x.dim() - 1]
    if kind == 0:
        return x.sum(chosen, keepdim)
    if kind == 1:
        return x.mean(chosen, keepdim)
    return x.amax(chosen, keepdim) if kind == 2 else x.amin(chosen, keepdim)


def _view(x: torch.Tensor, kind: int) -> torch.Tensor:
    n = x.numel()
    if kind == 0:
        return x.t() if x.dim() == 2 else x
    if kind == 1:
        return x.reshape(-1)
    if kind == 2 and n % 6 == 0:
        return x.reshape(6, n // 6)
    if kind == 3 and n % 8 == 0:
        return x.reshape(n // 4, 4)
    if kind == 4 and x.dim():
        return x[1:] if x.shape[0] > 2 else x[..., :1]
    if kind == 5:
        return x.unsqueeze(-1)
    if kind == 6 and x.dim() > 1:
        return x.transpose(0, -1).contiguous()
    if kind == 7 and x.dim() and x.shape[0] == 1:
        return x.expand(4, *x.shape[1:])
    if kind == 8 and x.dim() == 3:
        return x.permute(1, 2, 0)
    return x


def _library(a: torch.Tensor, b: torch.Tensor, kind: int) -> torch.Tensor:
    if kind == 0 and a.dim() == 2 and b.dim() == 2 and a.shape[1] == b.shape[0]:
        return a @ b
    if kind == 1 and a.dim():
        return torch.cumsum(a, 0)
    if kind == 2 and a.dim() == b.dim() == 2 and a.shape[1] == b.shape[1]:
        return torch.cat([a, b])
    return torch.flip(a, [0]) if a.dim() else a


@dataclass(frozen=True)
class Recipe:
    """A straight-line program: each step picks earlier values by number, modulo how many there are."""

    shapes: list[int]
    steps: list[tuple[int, int, int, int]]
    returned: list[int]

    def __call__(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        pool = list(given)
        for kind, first, second, detail in self.steps:
            a, b = pool[-1 - first % len(pool)], pool[-1 - second % len(pool)]
            made = self._step(kind, a, b, detail)
            if made.numel() <= 600 and made.dim() <= 4:
                pool.append(made)
        return tuple(pool[-1 - number % len(pool)] for number in [0, *self.returned])

    def _step(self, kind: int, a: torch.Tensor, b: torch.Tensor, detail: int) -> torch.Tensor:
        if kind <= 3:
            return UNARY[detail % len(UNARY)](a)
        if kind <= 7:
            try:
                torch.broadcast_shapes(a.shape, b.shape)
            except RuntimeError:
                return a
            return BINARY[detail % len(BINARY)](a, b)
        if kind <= 9:
            return _fold(a, detail % 8, detail % 3 == 0, detail % 4)
        if kind <= 11:
            return _view(a, detail % 9)
        return _library(a, b, detail % 4)


steps = st.tuples(st.integers(0, 12), st.integers(0, 6), st.integers(0, 12), st.integers(0, 255))
recipes = st.builds(
    Recipe,
    st.lists(st.integers(0, len(SHAPES) - 1), min_size=1, max_size=4),
    st.lists(steps, min_size=3, max_size=24),
    st.lists(st.integers(0, 20), max_size=3),
)


def _inputs(recipe: Recipe, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = seeded(len(recipe.steps))
    made: list[Any] = [torch.randn(SHAPES[n], generator=generator, dtype=torch.float64) for n in recipe.shapes]
    return [tensor.to(dtype) for tensor in made]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(recipes, st.sampled_from([-1, -1, -1, 0, 2, 7]))
def test_programs_compute_what_eager_computes(recipe: Recipe, budget: int) -> None:
    assert_same(recipe, *_inputs(recipe, torch.float64), budget=budget, rtol=1e-9, atol=1e-9)


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(recipes)
def test_programs_in_single_precision(recipe: Recipe) -> None:
    inputs = _inputs(recipe, torch.float32)
    exact = recipe(*(tensor.double() for tensor in inputs))
    eager = recipe(*inputs)
    # Where a comparison falls the other way in single precision there is nothing to compare.
    pairs = zip(eager, exact, strict=True)
    if all(torch.allclose(a.double(), b, rtol=1e-4, atol=1e-4, equal_nan=True) for a, b in pairs):
        assert_same(recipe, *inputs, rtol=1e-4, atol=1e-4)
