"""Scatters by index: eager's numbers, eager's errors, and no write outside of memory, alone and among neighbours."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt.ir.program import Launch, Library
from smelt.ops.decompositions import DECOMPOSITIONS
from tests.fuse.running import assert_same, compare, fused
from tests.kernel_reference import run_program
from tests.targets import seeded

aten = torch.ops.aten
Case = tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]


def _x(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=seeded(sum(shape)))


def _i(*numbers: Any, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(numbers, dtype=dtype)


ROWS = _i(1, 0, 4, 4, 0)

CASES: dict[str, Case] = {
    "index_add": (lambda i, x, s: x.index_add(0, i, s), (ROWS, _x(5, 6), _x(5, 6))),
    "index_add, scaled": (lambda i, x, s: x.index_add(0, i, s, alpha=-2.5), (ROWS, _x(5, 6), _x(5, 6))),
    "index_add, last dim": (lambda i, x, s: x.index_add(-1, i, s), (ROWS, _x(3, 6), _x(3, 5))),
    "index_add, middle, int32": (lambda i, x, s: x.index_add(1, i, s), (ROWS.int(), _x(3, 6, 7), _x(3, 5, 7))),
    "index_add, one dim": (lambda i, x, s: x.index_add(0, i, s), (ROWS, _x(6), _x(5))),
    "index_add, transposed": (lambda i, x, s: x.t().index_add(0, i, s.t()), (ROWS, _x(6, 5), _x(6, 5))),
    "index_add, expanded": (lambda i, x, s: x.index_add(0, i, s.expand(5, 6)), (ROWS, _x(5, 6), _x(6))),
    "index_add, strided": (lambda i, x, s: x[::2].index_add(0, i[::2], s[1:4, 2:]), (ROWS, _x(10, 6), _x(5, 8))),
    "index_copy": (lambda i, x, s: x.index_copy(0, i[1:4], s), (_i(0, 1, 4, 2, 0), _x(5, 6), _x(3, 6))),
    "index_fill": (lambda i, x: x.index_fill(1, i, 7.0), (_i(1, -1, 4), _x(5, 6))),
    "index_put": (lambda i, x, s: x.index_put([i], s), (_i(1, -5, 4), _x(5, 6), _x(3, 6))),
    "index_put, added": (lambda i, x, s: x.index_put([i], s, True), (_i(1, -1, 4, 1), _x(5, 6), _x(4, 6))),
    "index_put, one for all": (lambda i, x, s: x.index_put([i], s, True), (_i(1, -1, 4, 1), _x(5, 6), _x(1))),
    "index_put, columns": (
        lambda i, x, s: aten.index_put.default(x, [None, i], s, True),
        (_i([1, -6], [0, 5]), _x(4, 6, 3), _x(4, 2, 2, 3)),
    ),
    "index_put, by two": (
        lambda i, x, s: x.index_put([i, torch.arange(3)], s, True), (_i([1], [-4]), _x(4, 6, 3), _x(2, 3, 3)),
    ),
    "index_put, by two apart": (
        lambda i, x, s: aten.index_put.default(x, [i, None, i], s, True), (_i(1, 0, 2), _x(4, 6, 3), _x(3, 6)),
    ),
    "scatter": (lambda i, x, s: x.scatter(0, i, s), (_i([1, 0, 3], [2, 4, 0]), _x(5, 6), _x(2, 3))),
    "scatter a number": (lambda i, x: x.scatter(0, i, 3.5), (_i([1, 0, 3], [2, 4, 0]), _x(5, 6))),
    "scatter_add": (lambda i, x, s: x.scatter_add(1, i, s), (_i([1, 0, 5, 5], [2, 4, 0, 2]), _x(5, 6), _x(2, 4))),
    "scatter_add, rows": (lambda i, x, s: x.scatter_add(0, i, s), (_i([1, 0], [1, 4], [1, 1]), _x(5, 6), _x(3, 2))),
    "scatter_add, one dim": (lambda i, x, s: x.scatter_add(0, i, s), (_i(1, 0, 1, 4, 1), _x(5), _x(5))),
    "scatter_add, more than is put": (lambda i, x, s: x.scatter_add(0, i, s), (_i([1, 0, 4]), _x(5, 6), _x(3, 4))),
}  # fmt: skip
for _how in ("sum", "prod", "mean", "amax", "amin"):
    for _self in (False, True):
        CASES[f"scatter_reduce {_how}, {_self}"] = (
            lambda i, x, s, how=_how, here=_self: x.scatter_reduce(1, i, s, how, include_self=here),
            (_i([1, 0, 5, 5], [2, 4, 0, 2]), _x(5, 6), _x(2, 4)),
        )


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("around", [False, True])
def test_numbers_are_eagers(name: str, around: bool) -> None:
    function, args = CASES[name]

    def call(index: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
        found = function(index, *(tensor.sin() * 2 if around else tensor for tensor in given))
        return F.layer_norm(found + 1, found.shape[-1:]) if around else found

    program = fused(lambda *given: function(*given), *args, decompositions=DECOMPOSITIONS)
    compare(run_program(program, args), (function(*args),))
    assert not [step for step in program.steps if isinstance(step, Library) and step.unless is None]
    torch.testing.assert_close(smelt.compile(call, fullgraph=True)(*args), call(*args))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("wrong", [10, -10, 2**62, -(2**62)])
def test_an_index_out_of_range_raises_what_eager_raises(name: str, wrong: int) -> None:
    function, (index, *rest) = CASES[name]
    if abs(wrong) > 10 and index.dtype is torch.int32:
        wrong = wrong // 2**32
    compiled = smelt.compile(lambda i, *rest: function(i, *rest) * 2 + 1, fullgraph=True)
    compiled(index, *rest)
    bad = index.clone()
    bad.view(-1)[min(2, bad.numel() - 1)] = wrong
    kept = [tensor.clone() for tensor in rest]
    with pytest.raises((IndexError, RuntimeError)) as eager:
        function(bad, *rest)
    with pytest.raises(type(eager.value)) as mine:
        compiled(bad, *rest)
    assert str(mine.value) == str(eager.value)
    assert all(map(torch.equal, rest, kept))
    torch.testing.assert_close(compiled(index, *rest), function(index, *rest) * 2 + 1)


@pytest.mark.parametrize("name", [name for name in CASES if "more than" not in name])  # eager has no gradient for it
def test_gradients_are_eagers(name: str) -> None:
    function, (index, *given) = CASES[name]

    def both(call: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        leaves = [tensor.clone().requires_grad_() for tensor in given]
        out = call(index, *leaves)
        out.backward(out.detach().cos())
        return [out.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]

    for mine, eager in zip(both(smelt.compile(function, fullgraph=True)), both(function), strict=True):
        torch.testing.assert_close(mine, eager)


@pytest.mark.parametrize(
    "function, index, given",
    [
        (lambda i, x, s: x.index_add(0, i, s), _i(), (_x(5, 6), _x(0, 6))),
        (lambda i, x, s: x.index_add(0, i, s), _i(1, 2), (_x(5, 0), _x(2, 0))),
        (lambda i, x, s: x.index_add(0, i, s), _i(0), (torch.tensor(1.0), torch.tensor(2.0))),
        (lambda i, x, s: x.index_put([i], s, True), torch.tensor(3), (_x(5, 4), _x(4))),
        (lambda i, x, s: x.index_put([i], s, True), _i(), (_x(5, 4), _x(0, 4))),
        (lambda i, x, s: x.index_put([i], s), _i(0, 0), (_x(1), torch.ones(2))),
        (lambda i, x, s: x.scatter_add(0, i, s), torch.tensor(0), (torch.tensor(1.0), torch.tensor(2.0))),
        (lambda i, x, s: x.scatter_add(1, i, s), torch.zeros(3, 0, dtype=torch.int64), (_x(3, 4), _x(3, 4))),
        (lambda i, x, s: x.scatter(0, i, s), _i(0), (_x(1), _x(1))),
    ],
)
def test_no_dimensions_and_no_elements(
    function: Callable[..., torch.Tensor], index: torch.Tensor, given: tuple[torch.Tensor, ...]
) -> None:
    compiled = smelt.compile(lambda *args: function(*args) + 1, fullgraph=True)
    torch.testing.assert_close(compiled(index, *given), function(index, *given) + 1)


FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
DTYPES = [*FLOATS, torch.int64, torch.int16, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype: torch.dtype) -> None:
    x, source = (_x(8, 16) * 3).to(dtype), (_x(40, 16) * 3).to(dtype)
    index = torch.randint(0, 8, (40,), generator=seeded(1))

    def put(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor) -> tuple[torch.Tensor, ...]:
        each = index[:, None].expand(40, 16)
        added = (x.index_add(0, index, source), x.index_put([index], source, True), x.scatter_add(0, each, source))
        return (*added, x.index_copy(0, index[:1], source[:1]), x.scatter(0, each[:1], source))

    for mine, eager in zip(smelt.compile(put, fullgraph=True)(x, index, source), put(x, index, source), strict=True):
        assert torch.equal(mine, eager)


def test_sums_are_taken_in_eagers_order() -> None:
    """With as many as this on one place, another order would show."""
    weight, index, grad = _x(7, 32).requires_grad_(), torch.randint(0, 7, (3, 500)), _x(3, 500, 32)
    for padding in (None, 2):
        eager = torch.autograd.grad(F.embedding(index, weight, padding), weight, grad)[0]
        compiled = smelt.compile(lambda i, w, padding=padding: F.embedding(i, w, padding), fullgraph=True)
        assert torch.equal(torch.autograd.grad(compiled(index, weight), weight, grad)[0], eager)


def test_what_is_put_is_computed_on_the_way() -> None:
    def step(grad: torch.Tensor, scale: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        given: torch.Tensor = aten.embedding_dense_backward.default(grad.sin() * scale, index, 50, -1, False)
        return given

    program = fused(step, _x(40, 16), _x(16), torch.randint(0, 50, (40,)))
    first, second = program.steps
    assert isinstance(first, Launch) and isinstance(second, Launch)
    assert [buffer.spec.shape for buffer in program.buffers] == [(40, 16), (16,), (40,), (50, 16)]


def test_one_scatter_after_the_other_copies_once() -> None:
    def twice(x: torch.Tensor, index: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return x.index_add(0, index, a).index_add(0, index, b)

    args = (_x(50, 16), torch.randint(0, 50, (40,)), _x(40, 16), _x(40, 16) + 1)
    program = assert_same(twice, *args)
    assert len([buffer for buffer in program.buffers if buffer.spec.shape == (50, 16)]) == 2

    def both(x: torch.Tensor, index: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = x.index_add(0, index, a)
        return first, first.index_add(0, index, b)

    assert_same(both, *args)


def test_writes_in_place_are_eagers() -> None:
    def write(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        x[index] = source
        x.index_add_(0, index, source * 2)
        x[:, 1:].scatter_add_(1, index[:, None], source)
        return x * 2

    args = (_x(6, 8), _i(1, 5, 0), _x(3, 8))
    mine, eager = [tensor.clone() for tensor in args], [tensor.clone() for tensor in args]
    out = smelt.compile(write, fullgraph=True)(*mine)
    torch.testing.assert_close(out, write(*eager))
    torch.testing.assert_close(mine[0], eager[0])
    mine[1][1] = eager[1][1] = 7
    with pytest.raises(IndexError) as raised:
        write(*eager)
    with pytest.raises(IndexError) as found:
        smelt.compile(write, fullgraph=True)(*mine)
    assert str(found.value) == str(raised.value)


@pytest.mark.parametrize("added", [False, True])
def test_one_number_by_a_mask_is_chosen(added: bool) -> None:
    def put(x: torch.Tensor, where: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = aten.index_put.default(x, [where[:, 0]], value, added)
        cols = aten.index_put.default(x, [None, where[0]], value.view(1, 1), added)
        return rows, cols, *(put(x, [where], value, added) for put in (aten.index_put, aten._index_put_impl))

    args = (_x(4, 5, 3), _x(4, 5) > 0, torch.tensor(3.5))
    args[0][0, 0, 0] = float("nan")
    program = fused(put, *args, decompositions=DECOMPOSITIONS)
    assert all(isinstance(step, Launch) for step in program.steps)
    compare(run_program(program, args), put(*args))
    for mine, eager in zip(smelt.compile(put, fullgraph=True)(*args), put(*args), strict=True):
        assert torch.equal(mine.nan_to_num(), eager.nan_to_num())
    wrong = (args[0], torch.ones(4, 4, dtype=torch.bool), args[2])
    with pytest.raises(IndexError) as raised:
        put(*wrong)
    with pytest.raises(IndexError) as found:
        smelt.compile(put)(*wrong)
    assert str(found.value) == str(raised.value)


def test_sizes_that_vary() -> None:
    def step(w: torch.Tensor, index: torch.Tensor, x: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, ...]:
        put = x.t().scatter_add(1, index[None].expand(8, -1), s.t())
        return F.embedding(index, w).tanh(), x.index_add(0, index, s * 2), put

    compiled = smelt.compile(step, fullgraph=True, dynamic=True)
    for rows, count in ((5, 7), (9, 4), (300, 64), (2, 3), (6, 33)):
        weight, index = _x(rows, 8).requires_grad_(), torch.randint(0, min(rows, 8), (count,))
        rest = (index, _x(rows, 8), _x(count, 8))
        mine, eager = compiled(weight, *rest), step(weight, *rest)
        for a, b in zip(mine, eager, strict=True):
            torch.testing.assert_close(a, b)
        torch.testing.assert_close(*(torch.autograd.grad(out[0].square().sum(), weight)[0] for out in (mine, eager)))
