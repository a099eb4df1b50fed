"""In-place writes, and tensors without elements, in exported functions."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.base.errors import SmeltError
from tests.capture.explore.comparing import same

Tensor = torch.Tensor
X = torch.tensor([[1.0, -2.0, 3.0, 0.5], [0.25, 4.0, -1.0, 2.0], [-3.0, 1.5, 0.75, -0.5]])


def rows(x: Tensor) -> Tensor:
    y = x.clone()
    y[0] = 1
    y[:, 1] += 2
    y[2, 1:] = x[1, :3]
    y[:, ::2] *= 3
    return y


def whole(x: Tensor) -> Tensor:
    y, z = x.clone(), x + 1
    y.zero_()
    z.fill_(x[0, 0])
    return y + z


def not_written_yet(x: Tensor) -> Tensor:
    y, z, w = torch.empty(3, 4), torch.empty_like(x), x.new_empty(x.shape)
    y[:] = x
    z.copy_(x * 2)
    w.fill_(3)
    return y + z + w


def columns(x: Tensor) -> Tensor:
    out, t = torch.zeros(3, 4), x[:, 0]
    for i in range(4):
        t = t * 0.5 + x[:, i]
        out[:, i] = t
    return out


def diagonals(x: Tensor) -> Tensor:
    y, z = x.clone(), x.clone()
    y.fill_diagonal_(7)
    y.diagonal(1).add_(2)
    z.diagonal(-1).mul_(3)
    return y + z


def views(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.clone()
    part = y[1:]
    part += 1
    y.t().add_(1)
    y.view(-1)[:2].sub_(1)
    y[y > 2] = 0.0
    left, right = y.chunk(2, 1)
    right.copy_(left)
    return y, part


def circular(x: Tensor) -> Tensor:
    return torch.nn.functional.pad(x[None], (1, 2), mode="circular")


def of_nothing(x: Tensor) -> Any:
    none = x[:0]
    y = x.clone()
    y[3:] += 1
    found = none.sum(), none.sum(0), (none > 0).all(), none.prod(), none.t() @ none, torch.cat([none, x, none])
    return *found, torch.softmax(none, 1), x[torch.zeros(0, dtype=torch.long)], y, torch.stack([none, none])


@pytest.mark.parametrize(
    "function",
    [rows, whole, not_written_yet, columns, diagonals, views, circular, of_nothing],
    ids=lambda function: function.__name__,
)
def test_writes_are_made_as_eager_makes_them(function: Callable[..., Any]) -> None:
    artifact = smelt.export(function, (X,))
    for given in (X, -X, X * 2):
        same(artifact(given), function(given), 1e-6)


def chosen(x: Tensor) -> Tensor:
    y = torch.empty(3, 4)
    for i in range(4):
        t = x[:, i]
        if t.sum() > 1:
            t = t - 1
            y[:, i] = t
        else:
            y[:, i] = 0
    return y


def test_writes_in_branches() -> None:
    artifact = smelt.export(chosen, (X,))
    for given in (X, -X, X * 2):
        same(artifact(given), chosen(given), 1e-6)


def collects(x: Tensor, n: int) -> Tensor:
    cache = torch.zeros(0, 4)
    for i in range(n):
        cache = torch.cat([cache, x[:1] * i])
    return cache


def until_enough(x: Tensor) -> Tensor:
    cache = x[:0]
    while cache.sum() < 3:
        cache = torch.cat([cache, x.abs()[:1] + 0.5])
    return cache


def test_a_cache_that_begins_empty() -> None:
    artifact = smelt.export(collects, (X, 3))
    for n in (0, 1, 2, 3, 20):
        same(artifact(X, n), collects(X, n), 1e-6)
    artifact = smelt.export(until_enough, (X,))
    for given in (X, X * 0):
        same(artifact(given), until_enough(given), 1e-6)


def grouped(q: Tensor, k: Tensor, v: Tensor, n: int) -> Tensor:
    for _ in range(n):
        q = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        k, v = torch.cat([k, q[:, :2]], 2), torch.cat([v, q[:, 2:]], 2)
    return q


def test_heads_that_share_keys_with_a_cache_that_grows() -> None:
    torch.manual_seed(0)
    given = torch.randn(1, 4, 1, 8), torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)
    artifact = smelt.export(grouped, (*given, 3))
    for n in (0, 1, 3, 9):
        same(artifact(*given, n), grouped(*given, n), 1e-5)


def writes_under_a_view(x: Tensor) -> Tensor:
    y = x * 0.5
    first = y[0]
    if first.sum() < 0:
        y.fill_(1.5)
    return first + 1


def writes_a_view(x: Tensor) -> Tensor:
    y = x * 0.5
    first = y[0]
    if first.sum() < 0:
        first.fill_(1.5)
    return y + 1


class ReadsWhatItWrites(torch.nn.Module):
    def __init__(self, by_view: bool) -> None:
        super().__init__()
        self.by_view = by_view
        self.register_buffer("kept", torch.arange(4.0))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first = self.kept[:2]
        if x.sum() < 0:
            x = x + 1
        (first if self.by_view else self.kept).add_(1)
        return first * x[0, :2], self.kept * 2


@pytest.mark.parametrize(
    "function", [writes_under_a_view, writes_a_view, ReadsWhatItWrites(False), ReadsWhatItWrites(True)]
)
def test_memory_that_is_seen_twice_over_a_branch_is_refused(function: Any) -> None:
    with pytest.raises(SmeltError, match="made a view before a branch"):
        smelt.export(function, (torch.ones(3, 4),))


class Cache(torch.nn.Module):
    """Keys and values of an attention, written from a position on."""

    keys: Tensor
    values: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(1, 2, 32, 8))
        self.register_buffer("values", torch.zeros(1, 2, 32, 8))

    def attend(self, position: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        end = position + key.shape[2]
        self.keys[:, :, position:end] = key
        self.values[:, :, position:end] = value
        keys, values = self.keys[:, :, :end], self.values[:, :, :end]
        return torch.nn.functional.scaled_dot_product_attention(query, keys, values, enable_gqa=True)

    def put(self, position: int, key: torch.Tensor) -> None:
        self.keys[:, :, position] = key

    def narrowed(self, position: int, key: torch.Tensor) -> None:
        self.keys.narrow(2, position, key.shape[2]).copy_(key)


def test_slices_of_state_are_written_at_positions_that_are_arguments() -> None:
    args = (3, torch.randn(1, 4, 1, 8), torch.randn(1, 2, 1, 8), torch.randn(1, 2, 1, 8))
    artifact, cache = smelt.export(Cache().attend, args, dynamic={"position": True}), Cache()
    for position in (0, 1, 2, 3, 4, 5, 17, 30):
        given = position, torch.randn(1, 4, 1, 8), torch.randn(1, 2, 1, 8), torch.randn(1, 2, 1, 8)
        torch.testing.assert_close(artifact(*given), cache.attend(*given))
    state = artifact.state_dict()
    assert torch.equal(state["keys"], cache.keys) and torch.equal(state["values"], cache.values)


@pytest.mark.parametrize(("name", "shape"), [("put", (1, 2, 8)), ("narrowed", (1, 2, 3, 8))])
def test_parts_of_state_are_written_at_positions_that_are_arguments(name: str, shape: tuple[int, ...]) -> None:
    artifact, cache = smelt.export(getattr(Cache(), name), (3, torch.randn(shape)), dynamic={"position": True}), Cache()
    for position in (0, 1, 2, 9, 28):
        key = torch.randn(shape)
        artifact(position, key)
        getattr(cache, name)(position, key)
        assert torch.equal(artifact.state_dict()["keys"], cache.keys)
