"""Random programs of lookups and scatters, pointwise work and folds around them: eager's numbers, both ways.

Layouts, offsets, dtypes and the dtypes of indices are drawn too, and whether sizes vary: then the same compiled program
runs once more, on a longer tensor.
"""

import random
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import smelt
from smelt.codegen.cpu import schedule
from tests.targets import seeded

Tensor = torch.Tensor
Take = Callable[[Callable[[torch.Generator], Tensor]], Tensor]  # an operand: made and noted down, or the next one given
Step = Callable[[Tensor, Take], Tensor]

DTYPES = (torch.float32, torch.float32, torch.float64, torch.bfloat16)
LAYOUTS = ("plain", "plain", "turned", "among others", "every other")
KINDS = (
    "index", "index two", "select", "gather", "embedding", "add", "put", "put two", "copy", "scatter_add", "scatter",
    "amax", "mean", "fill", "mask", "pointwise", "softmax", "sum", "turn",
)  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def busy() -> Iterator[None]:
    """Share out even the smallest kernel between threads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule, "GRAIN", 1)
        yield


def _laid_out(tensor: Tensor, how: str) -> Tensor:
    """The same numbers, elsewhere in memory."""
    if how == "turned" and tensor.dim() > 1:
        return tensor.transpose(0, -1).contiguous().transpose(0, -1)
    if how == "among others":
        wide = tensor.new_zeros([size + 3 for size in tensor.shape])
        return wide[tuple(slice(2, 2 + size) for size in tensor.shape)].copy_(tensor)
    if how == "every other" and tensor.dim():
        return tensor.repeat_interleave(2, 0)[::2]
    return tensor


def drawn_step(chance: random.Random) -> tuple[str, Step]:
    """A step, with all about it that is not numbers already drawn."""
    kind, place, count, how = chance.choice(KINDS), chance.randrange(3), chance.randint(1, 9), chance.choice(LAYOUTS)
    small, negative, added = chance.choices([False, True], k=3)

    def places(g: torch.Generator, extent: int, *shape: int, below: bool = False, long: bool = False) -> Tensor:
        found = torch.randint(-extent if below and negative else 0, extent, shape, generator=g)
        return _laid_out(found.int() if small and not long else found, how)

    def numbers(g: torch.Generator, like: Tensor, *shape: int) -> Tensor:
        return _laid_out(torch.randn(shape, generator=g, dtype=torch.float64).to(like.dtype), how)

    def step(x: Tensor, take: Take) -> Tensor:
        dim = place % x.dim()
        before, size, after = x.shape[:dim], x.shape[dim], x.shape[dim + 1 :]
        each = [*(min(other, 4) for other in before), count, *(min(other, 4) for other in after)]
        if kind == "index":
            return x[(slice(None),) * dim + (take(lambda g: places(g, size, count, below=True)),)]
        if kind == "index two" and x.dim() > 1:
            rows = take(lambda g: places(g, x.shape[0], count, 1, below=True))
            return x[rows, ..., take(lambda g: places(g, x.shape[-1], 3))]
        if kind == "select":
            return x.index_select(dim, take(lambda g: places(g, size, count)))
        if kind == "gather":
            where = take(lambda g: places(g, size, *each, long=True))
            return x.gather(dim, (where * 3 + 1) % size if added else where)
        if kind == "embedding" and x.dim() == 2:
            return F.embedding(take(lambda g: places(g, x.shape[0], 2, count)), x)
        if kind == "add":
            rows, source = take(lambda g: places(g, size, count)), take(lambda g: numbers(g, x, *before, count, *after))
            return x.index_add(dim, (rows + 1) % size if added else rows, source.sin() * x.mean(), alpha=2)
        if kind == "put":
            rows = take(lambda g: places(g, x.shape[0], count, below=True))
            return x.index_put((rows,), take(lambda g: numbers(g, x, count, *x.shape[1:])) * x.mean(), True)
        if kind == "put two" and x.dim() > 1:
            rows = take(lambda g: places(g, x.shape[0], count, 1, below=True))
            cols = take(lambda g: places(g, x.shape[1], 1, 3, below=True))
            return x.index_put((rows, cols), take(lambda g: numbers(g, x, count, 3, *x.shape[2:])), True)
        if kind == "copy":
            rows = take(lambda g: torch.randperm(size, generator=g)[:count])
            return x.index_copy(dim, rows, take(lambda g: numbers(g, x, *before, min(count, size), *after)))
        if kind == "scatter_add":
            where = take(lambda g: places(g, size, *each, long=True))
            return x.scatter_add(dim, where, take(lambda g: numbers(g, x, *each)) * 2)
        if kind == "scatter":
            return x.scatter(dim, take(lambda g: places(g, size, *each, long=True)), 2.5)
        if kind in ("amax", "mean"):
            where = take(lambda g: places(g, size, *each, long=True))
            return x.scatter_reduce(dim, where, take(lambda g: numbers(g, x, *each)), kind, include_self=added)
        if kind == "fill":
            return x.index_fill(dim, take(lambda g: places(g, size, count, long=True)), -1.5)
        if kind == "mask":
            where = take(lambda g: torch.rand(x.shape, generator=g) > 0.5)
            return x.index_put((where,), take(lambda g: numbers(g, x)), added)
        if kind == "softmax":
            return x.softmax(dim)
        if kind == "sum":
            return x.sum(dim, keepdim=True) + x
        return x.transpose(0, -1) if kind == "turn" else torch.sin(x) * 2 + x

    return kind, step


def _both_ways(
    call: Callable[..., Tensor], x: Tensor, operands: list[Tensor], given: Tensor
) -> tuple[Tensor, Tensor]:
    """The result, and the gradient that comes of what is given for it."""
    leaf = x.detach().requires_grad_()
    out = call(leaf, *operands)
    (grad,) = torch.autograd.grad(out, leaf, given)
    return out.detach(), grad


def _off(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).abs().max())


def check(program: list[tuple[str, Step]], tensors: Iterator[Tensor], dynamic: bool) -> None:
    def run(x: Tensor, *operands: Tensor) -> Tensor:
        given = iter(operands)
        for _, step in program:
            x = step(x, lambda make: next(given))
        return x

    compiled = smelt.compile(run, dynamic=dynamic or None)
    for x in tensors:
        operands: list[Tensor] = []
        generator = seeded(x.numel())

        def noted(make: Callable[[torch.Generator], Tensor]) -> Tensor:
            operands.append(make(generator))  # noqa: B023  # of this round
            return operands[-1]  # noqa: B023

        found = x
        for _, step in program:
            found = step(found, noted)
        wide = [each.double() if each.is_floating_point() else each for each in operands]
        given = torch.empty_like(found).copy_(torch.randn(found.shape, generator=generator))  # as eager's would lie
        mine, eager = (_both_ways(call, x, operands, given) for call in (compiled, run))
        for got, want, right in zip(mine, eager, _both_ways(run, x.double(), wide, given.double()), strict=True):
            assert got.dtype is want.dtype and got.shape == want.shape and got.stride() == want.stride()
            allowed = 4 * torch.finfo(x.dtype).eps * float(right.abs().max().clamp_min(1))
            assert _off(got, right) <= 2 * _off(want, right) + allowed, [name for name, _ in program]


def drawn(seed: int) -> tuple[list[tuple[str, Step]], Iterator[Tensor], bool]:
    """A program, tensors to run it on, and whether their sizes are to vary."""
    chance = random.Random(seed)
    program = [drawn_step(chance) for _ in range(chance.randint(1, 4))]
    dtype, how, dynamic = chance.choice(DTYPES), chance.choice(LAYOUTS), chance.random() < 0.3
    shape = [chance.randint(1, 12) for _ in range(chance.randint(1, 3))]
    sizes = [shape, [shape[0] + 5, *shape[1:]]] if dynamic else [shape]
    generator = seeded(seed)
    tensors = (_laid_out(torch.randn(each, generator=generator).to(dtype), how) for each in sizes)
    return program, tensors, dynamic


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32))
def test_random_programs_are_eagers(seed: int) -> None:
    check(*drawn(seed))
