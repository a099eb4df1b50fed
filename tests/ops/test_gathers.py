"""Lookups by index: eager's numbers, eager's errors, and no read outside of memory, alone and among neighbours."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt.ir.program import Launch, Library
from smelt.ops.decompositions import DECOMPOSITIONS
from tests.fuse.running import assert_same, fused
from tests.targets import seeded

Case = tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]


def _x(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=seeded(3))


CASES: dict[str, Case] = {
    "embedding": (F.embedding, (torch.tensor([[1, 0, 4], [4, 4, 2]]), _x(5, 6))),
    "embedding of one": (F.embedding, (torch.tensor(3), _x(5, 6))),
    "embedding, int32": (F.embedding, (torch.tensor([1, 0], dtype=torch.int32), _x(5, 6))),
    "embedding, transposed weight": (F.embedding, (torch.tensor([1, 0, 4]), _x(6, 5).t())),
    "gather": (lambda i, x: x.gather(1, i), (torch.tensor([[1, 0], [5, 5], [0, 0]]), _x(4, 6))),
    "gather rows": (lambda i, x: x.gather(0, i), (torch.tensor([[1, 0, 3]]), _x(4, 6))),
    "gather, expanded": (lambda i, x: x.gather(-1, i), (torch.tensor([[2]]).expand(4, 3), _x(1, 6).expand(4, 6))),
    "index_select": (lambda i, x: x.index_select(1, i), (torch.tensor([1, 0, 5, 5]), _x(4, 6))),
    "index": (lambda i, x: x[i], (torch.tensor([1, -1, 3]), _x(4, 6, 3))),
    "index columns": (lambda i, x: x[:, i], (torch.tensor([[1, -6], [0, 5]]), _x(4, 6, 3))),
    "index by two": (lambda i, x: x[i, torch.arange(3)], (torch.tensor([[1], [-4]]), _x(4, 6, 3))),
    "index by two apart": (lambda i, x: x[i, :, i], (torch.tensor([1, 0, 2]), _x(4, 6, 3))),
    "index, strided": (lambda i, x: x[::2, i[::2]], (torch.tensor([1, 9, 3, 9]), _x(4, 6, 3))),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("around", [False, True])
def test_numbers_are_eagers(name: str, around: bool) -> None:
    function, args = CASES[name]

    def call(*given: torch.Tensor) -> torch.Tensor:
        found = function(given[0], given[1] * 2 if around else given[1])
        return F.layer_norm(found + 1, found.shape[-1:]) if around else found

    program = assert_same(lambda *given: function(*given), *args)
    assert not [step for step in program.steps if isinstance(step, Library) and step.unless is None]
    torch.testing.assert_close(smelt.compile(call, fullgraph=True)(*args), call(*args))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("wrong", [9, -9, 2**62, -(2**62)])
def test_an_index_out_of_range_raises_what_eager_raises(name: str, wrong: int) -> None:
    function, (index, *rest) = CASES[name]
    if abs(wrong) > 9 and index.dtype is torch.int32:
        wrong = wrong // 2**32
    compiled = smelt.compile(lambda i, *rest: function(i, *rest) * 2 + 1, fullgraph=True)
    compiled(index, *rest)
    bad = index.clone()
    bad.view(-1)[-2 if bad.dim() and bad.numel() > 1 else 0] = wrong
    with pytest.raises((IndexError, RuntimeError)) as eager:
        function(bad, *rest)
    with pytest.raises(type(eager.value)) as mine:
        compiled(bad, *rest)
    assert str(mine.value) == str(eager.value)
    torch.testing.assert_close(compiled(index, *rest), function(index, *rest) * 2 + 1)


@pytest.mark.parametrize(
    "function, shape, index",
    [
        (lambda i, x: F.embedding(i, x), (5, 6), torch.zeros(0, dtype=torch.int64)),
        (lambda i, x: F.embedding(i, x), (5, 0), torch.tensor([1, 2])),
        (lambda i, x: x.gather(1, i), (3, 4), torch.zeros(3, 0, dtype=torch.int64)),
        (lambda i, x: x[i], (4, 0), torch.tensor([1, -1])),
        (lambda i, x: x.gather(0, i), (), torch.tensor(0)),
        (lambda i, x: x.index_select(0, i), (), torch.tensor([0])),
        (lambda i, x: x[i], (5,), torch.tensor(-1)),
    ],
)
def test_nothing_and_no_dimensions(function: Any, shape: tuple[int, ...], index: torch.Tensor) -> None:
    x = _x(*shape)
    found, expected = smelt.compile(lambda i, x: function(i, x) + 1)(index, x), function(index, x) + 1
    assert found.shape == expected.shape and torch.equal(found, expected)


def test_an_empty_table_raises() -> None:
    index = torch.tensor([0])
    with pytest.raises(RuntimeError) as eager:
        F.embedding(index, torch.zeros(0, 4))
    with pytest.raises(RuntimeError) as mine:
        smelt.compile(lambda i, w: F.embedding(i, w) + 1)(index, torch.zeros(0, 4))
    assert str(mine.value) == str(eager.value)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.uint8, torch.bool])
def test_of_every_kind(dtype: torch.dtype) -> None:
    table, index = (torch.arange(40).reshape(8, 5) % 3).to(dtype), torch.tensor([7, 0, 3, 3, 1, 2, 6, 5, 4])
    for function in (lambda i, x: x[i], lambda i, x: x.t()[:, i], lambda i, x: x.gather(0, i[:, None].expand(9, 5))):
        assert torch.equal(smelt.compile(function)(index, table), function(index, table))


def test_masks_are_left_to_the_library() -> None:
    x = _x(4, 6)
    assert torch.equal(smelt.compile(lambda x: x[x > 0] * 2)(x), x[x > 0] * 2)


def test_one_check_serves_lookups_by_one_index() -> None:
    index, keys, values = torch.tensor([1, 0, 3]), _x(5, 6), _x(5, 6)
    program = fused(lambda i, k, v: k[i] * v[i], index, keys, values)
    assert len([step for step in program.steps if isinstance(step, Library)]) == 1
    other = fused(lambda i, k, v: k[i] * v[:4][i], index, keys, values)
    assert len([step for step in other.steps if isinstance(step, Library)]) == 2


def test_it_fuses_with_what_comes_before_and_after() -> None:
    tokens, token, kind = torch.tensor([[1, 0], [4, 4]]), _x(5, 6), _x(5, 6)

    def encoder(tokens: torch.Tensor, token: torch.Tensor, kind: torch.Tensor) -> torch.Tensor:
        return torch.relu(F.embedding(tokens, token) + F.embedding(tokens, kind))

    launches = [step for step in fused(encoder, tokens, token, kind).steps if isinstance(step, Launch)]
    assert [step.kernel.name for step in launches] == ["k0_embedding_inside_embedding_checked", "k1_embedding_add_relu"]


def test_nothing_is_written_when_an_index_is_out_of_range() -> None:
    def update(weight: torch.Tensor, index: torch.Tensor, table: torch.Tensor) -> None:
        weight.add_(1)
        weight.mul_(table[index].sum())

    weight, compiled = torch.ones(3), smelt.compile(update)
    compiled(weight, torch.tensor([0]), torch.ones(2))
    with pytest.raises(IndexError):
        compiled(weight, torch.tensor([5]), torch.ones(2))
    expected = torch.ones(3)
    update(expected, torch.tensor([0]), torch.ones(2))
    # All that eager has written by then, or nothing.
    assert torch.equal(weight, expected + 1) or torch.equal(weight, expected)


def test_gradients_and_sizes_that_vary() -> None:
    def loss(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return (F.embedding(index, table).tanh() * table.gather(0, index[:, None].expand(len(index), 6))).sum()

    compiled = smelt.compile(loss, dynamic=True)
    for rows, count in ((5, 3), (9, 12), (4, 7)):
        table, index = _x(rows, 6).requires_grad_(), torch.arange(count) % rows
        found, expected = compiled(table, index), loss(table, index)
        torch.testing.assert_close(found, expected)
        mine, theirs = (torch.autograd.grad(each, table)[0] for each in (found, expected))
        torch.testing.assert_close(mine, theirs)
        with pytest.raises(IndexError, match="index out of range in self"):
            compiled(table, index + rows)


SCATTERS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "one-hot": lambda i, x: torch.zeros_like(x).scatter(1, i, 1.0),
    "a number": lambda i, x: x.scatter(1, i, 2),
    "elements": lambda i, x: x.scatter(-1, i, x[:, :1] * 3),
    "added": lambda i, x: x.scatter_add(1, i, x[:, 1:2]),
    "rows": lambda i, x: x.t().scatter_add(0, i.t(), x[:, 1:2].t()),
}


@pytest.mark.parametrize("name", SCATTERS)
def test_one_index_a_row_is_compared_into_place(name: str) -> None:
    scatter, index, x = SCATTERS[name], torch.tensor([[1], [5], [0], [5]]), _x(4, 6)
    program = fused(lambda i, x: scatter(i, x) * 2, index, x, decompositions=DECOMPOSITIONS)
    assert not [step for step in program.steps if isinstance(step, Library) and step.unless is None]
    compiled = smelt.compile(lambda i, x: scatter(i, x) * 2, fullgraph=True)
    assert torch.equal(compiled(index, x), scatter(index, x) * 2)
    for wrong in (6, -1, 2**40 + 1):
        bad = index.clone()
        bad[2] = wrong
        with pytest.raises(RuntimeError) as eager:
            scatter(bad, x)
        with pytest.raises(RuntimeError) as mine:
            compiled(bad, x)
        assert str(mine.value) == str(eager.value)


def test_several_indices_a_row_are_scattered_by_the_library() -> None:
    index, x = torch.tensor([[1, 1], [5, 0], [0, 0], [5, 2]]), _x(4, 6)
    for scatter in (lambda i, x: x.scatter(1, i, 1.0), lambda i, x: x.scatter_add(1, i, x[:, :2])):
        torch.testing.assert_close(smelt.compile(scatter)(index, x), scatter(index, x))


def test_the_gradient_of_one_a_row() -> None:
    index, x = torch.tensor([[1], [5], [0], [5]]), _x(4, 6).requires_grad_()
    for function in (lambda i, x: x.gather(1, i) * 2, lambda i, x: x.scatter(1, i, x[:, :1] * 3).exp()):
        found, expected = smelt.compile(function)(index, x), function(index, x)
        mine, theirs = (torch.autograd.grad(each.sum(), x)[0] for each in (found, expected))
        torch.testing.assert_close(mine, theirs)
