"""Operators that PyTorch computes by libraries, taken apart for artifacts, which have none; and those that stay out."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt.base.errors import LibraryError

NAN, INF = float("nan"), float("inf")


def leaves(result: Any) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else [leaf for each in result for leaf in leaves(each)]


def same(function: Callable[..., Any], *given: tuple[torch.Tensor, ...], **options: Any) -> None:
    """As eager, for an example and for others."""
    artifact = smelt.export(function, given[0], **options)
    for args in given:
        with torch.no_grad():
            wanted = leaves(function(*args))
        for got, want in zip(leaves(artifact(*args)), wanted, strict=True):
            assert got.dtype is want.dtype and got.shape == want.shape
            torch.testing.assert_close(got, want, equal_nan=True)


def seeded(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


STRANGE = torch.tensor([[2.0, NAN, 1.0, INF, 2.0, -INF], [-INF, -INF, NAN, NAN, -INF, 3.0], [0.0, -0.0, 1.0, 1, 0, 5]])
EQUAL = torch.tensor([[3, 1, 3, 3, 2, 1], [0, 0, 0, 0, 0, 0], [5, 4, 3, 2, 1, 0]])


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("given", [STRANGE, EQUAL, EQUAL > 1, EQUAL.to(torch.uint8)], ids=str)
def test_sorting_is_stable_and_puts_nan_last(given: torch.Tensor, descending: bool) -> None:
    same(lambda x: torch.sort(x, dim=1, descending=descending, stable=True), (given,))
    same(lambda x: torch.sort(x, dim=0, descending=descending, stable=True), (given,))


def test_sorting_of_many_and_of_sizes_that_differ() -> None:
    given = [(seeded(rows, 3),) for rows in (20, 2, 7, 700)]
    same(lambda x: (torch.argsort(x, dim=0), x.sort(dim=1)[0]), *given, dynamic={"x": {0: "rows"}})


@pytest.mark.parametrize("count", [1, 3, 5])
@pytest.mark.parametrize("length", [6, 200])
def test_the_largest_and_the_smallest(count: int, length: int) -> None:
    x = seeded(3, length)
    same(lambda x: (x.topk(count), x.topk(count, largest=False), x.topk(count, dim=1)), (seeded(length, 6),))
    same(lambda x: x.topk(count), (x,), (-x,))


def test_the_largest_of_equal_and_strange_ones() -> None:
    """Values are as eager's, and each number is of its value and of no other."""
    many = torch.cat([STRANGE] * 15, 1)
    artifact = smelt.export(lambda x: x.topk(20), (many,))
    for given in (many, torch.full_like(many, -INF), torch.zeros_like(many)):
        values, numbers = artifact(given)
        torch.testing.assert_close(values, given.topk(20).values, equal_nan=True)
        torch.testing.assert_close(given.gather(1, numbers), values, equal_nan=True)
        assert all(len(set(row.tolist())) == 20 for row in numbers)


def test_places_in_the_middle() -> None:
    x = torch.tensor([[3.0, 1.0, 2.0, 9.0], [5.0, NAN, 4.0, 1.0]])
    same(lambda x: (x.median(1), x.median(0, keepdim=True), x.median(), x[:1].kthvalue(2, 1)), (x,))


OPERATORS: dict[str, Callable[[torch.Tensor], Any]] = {
    "adaptive pooling": lambda x: F.adaptive_avg_pool2d(x, (3, 2)),
    "affine_grid": lambda x: F.affine_grid(x[:, 0, :2, :3], [2, 1, 5, 4], align_corners=False),
    "bicubic": lambda x: F.interpolate(x, scale_factor=1.5, mode="bicubic"),
    "bucketize": lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 0.5]), right=True),
    "cdist": lambda x: torch.cdist(x[0, 0], x[0, 1] + 1),
    "channel shuffle": lambda x: F.channel_shuffle(x, 2),
    "cross": lambda x: torch.linalg.cross(x[..., :3], x[..., 3:6]),
    "diag_embed": lambda x: torch.diag_embed(x, 1),
    "flip": lambda x: x.flip(0, 3),
    "linspace": lambda x: x[0, 0, 0, :1] * torch.linspace(-1, 2, 7) + torch.linspace(3, 3, 7, dtype=torch.float64),
    "grid_sample": lambda x: F.grid_sample(x, x[:, :1, :, :2].permute(0, 2, 1, 3), align_corners=False),
    "index_fill": lambda x: x.index_fill(2, torch.tensor([0, 3]), 7.0),
    "one_hot": lambda x: F.one_hot(x.argmax(-1), 9),
    "pixel_shuffle": lambda x: (F.pixel_shuffle(x, 2), F.pixel_unshuffle(x[..., :6], 2)),
    "searchsorted": lambda x: torch.searchsorted(torch.tensor([-1.0, 0.0, 0.5]), x),
    "trace": lambda x: x[0, 0].trace(),
    "unfold": lambda x: F.unfold(x, 2, padding=1),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_that_are_taken_apart(name: str) -> None:
    x = seeded(2, 4, 6, 7)
    same(OPERATORS[name], (x,), (x * 3,))


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"proj_size": 3}, {"bias": False}], ids=str)
def test_lstm(layers: int, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = torch.nn.LSTM(5, 6, layers, batch_first=layers == 2, **options).eval()
    same(model, (seeded(4, 3, 5),))


def test_a_step_of_an_lstm() -> None:
    torch.manual_seed(0)
    model, head = torch.nn.LSTM(5, 6), torch.nn.Linear(6, 2)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(head(model(x)[0][-1]), y)
        loss.backward()
        optimizer.step()
        return loss

    batch = seeded(4, 3, 5), torch.tensor([0, 1, 1])
    artifact = smelt.export(step, batch)
    for _ in range(4):
        torch.testing.assert_close(artifact(*batch), step(*batch).detach())


def test_a_class_that_is_none_is_an_error() -> None:
    artifact = smelt.export(lambda x: F.one_hot(x, 4), (torch.tensor([1, 2]),))
    with pytest.raises(smelt.SmeltError, match="out of range"):
        artifact(torch.tensor([1, 4]))


def test_what_has_no_kernels_is_named_with_its_line() -> None:
    def determinant(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.det(x)

    with pytest.raises(LibraryError, match="SM031") as caught:
        smelt.export(determinant, (torch.eye(3),))
    line = determinant.__code__.co_firstlineno + 1
    assert f"aten._linalg_det.default: is left to the library, at {__file__}:{line}" in caught.value.message
    assert "determinant needs libtorch, which an artifact runs without" in caught.value.message
