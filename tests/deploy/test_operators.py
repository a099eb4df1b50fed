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


# Windows and resizing.

IMAGE, VOLUME, LINE = seeded(2, 3, 7, 9), seeded(2, 3, 5, 7, 6), seeded(2, 3, 11)

POOLS: dict[str, tuple[Callable[[torch.Tensor], Any], torch.Tensor]] = {
    "max, rounded up": (lambda x: F.max_pool2d(x, 2, ceil_mode=True, return_indices=True), IMAGE),
    "max, padded and rounded up": (lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True), IMAGE),
    "max, dilated": (lambda x: F.max_pool2d(x, 2, 1, dilation=2, return_indices=True), IMAGE),
    "max, 1d": (lambda x: F.max_pool1d(x, 4, 3, 1, ceil_mode=True), LINE),
    "max, 3d": (lambda x: F.max_pool3d(x, 3, 2, 1, return_indices=True), VOLUME),
    "max, 3d, rounded up": (lambda x: F.max_pool3d(x, 2, ceil_mode=True), VOLUME),
    "average, rounded up": (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), IMAGE),
    "average, without padding": (
        lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False), IMAGE,
    ),
    "average, 1d": (lambda x: F.avg_pool1d(x, 2, ceil_mode=True), LINE),
    "average, 3d": (lambda x: F.avg_pool3d(x, 2, divisor_override=3), VOLUME),
    "adaptive max, 1d": (lambda x: F.adaptive_max_pool1d(x, 4, return_indices=True), LINE),
    "adaptive max": (lambda x: F.adaptive_max_pool2d(x, (3, 2), return_indices=True), IMAGE),
    "adaptive max, 3d": (lambda x: F.adaptive_max_pool3d(x, (3, 2, 4)), VOLUME),
    "adaptive average, 3d": (lambda x: F.adaptive_avg_pool3d(x, (3, 2, 4)), VOLUME),
    "nearest": (lambda x: F.interpolate(x, size=(5, 4)), IMAGE),
    "nearest, larger": (lambda x: F.interpolate(x, size=(17, 10)), IMAGE),
    "nearest, exact": (lambda x: F.interpolate(x, size=(5, 10), mode="nearest-exact"), IMAGE),
    "nearest, by a scale": (lambda x: F.interpolate(x, scale_factor=1.7), IMAGE),
    "nearest, 3d": (lambda x: F.interpolate(x, size=(3, 4, 9)), VOLUME),
    "bilinear": (lambda x: F.interpolate(x, size=(12, 4), mode="bilinear"), IMAGE),
    "trilinear": (lambda x: F.interpolate(x, size=(3, 4, 9), mode="trilinear", align_corners=True), VOLUME),
}  # fmt: skip


@pytest.mark.parametrize("name", POOLS)
def test_windows_and_resizing(name: str) -> None:
    function, x = POOLS[name]
    strange = x.clone()
    strange[:, :, :2] = -INF
    others = [] if "average" in name or "linear" in name else [(strange,)]
    same(function, (x,), (x * 3,), *others)
    if x.dim() == 4:
        same(function, (x.contiguous(memory_format=torch.channels_last),))


@pytest.mark.parametrize(
    "name", ["max, padded and rounded up", "average, without padding", "adaptive max", "nearest", "bilinear"]
)
def test_windows_and_resizing_of_sizes_that_differ(name: str) -> None:
    function, x = POOLS[name]
    given = [(seeded(images, 3, height, width),) for images, height, width in ((4, 10, 6), (1, 5, 31), (2, 16, 16))]
    same(function, (x,), *given, dynamic={"x": {0: ("n", 1, 8), 2: ("h", 3, 64), 3: ("w", 3, 64)}})


def test_resizes_to_the_size_of_another() -> None:
    given = [(IMAGE, seeded(1, height, width)) for height, width in ((5, 6), (9, 20), (2, 2))]
    dynamic = {"y": {1: ("h", 2, 64), 2: ("w", 2, 64)}}
    same(lambda x, y: F.interpolate(x, size=y.shape[1:], mode="bilinear"), *given, dynamic=dynamic)


def test_looks_for_sizes_without_memory_for_them() -> None:
    same(lambda x: F.adaptive_max_pool2d(x, 1), (IMAGE,), (seeded(2, 3, 1, 5),), dynamic={"x": {2: "h", 3: "w"}})


# Bags of embeddings.


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_embeddings(mode: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.EmbeddingBag(10, 4, mode=mode)
    flat = torch.tensor([1, 2, 4, 5, 4, 3, 2, 9])
    offsets = [(flat, torch.tensor(each)) for each in ([0, 4], [0, 0], [0, 8])]
    same(lambda x, offsets: model(x, offsets), *offsets)
    tables = [(torch.randint(0, 10, (rows, 4), generator=torch.Generator().manual_seed(rows)),) for rows in (3, 1, 6)]
    same(lambda x: model(x), *tables, dynamic={"x": {0: ("rows", 1, 16)}})


def test_bags_of_weighted_embeddings() -> None:
    table = seeded(10, 4)
    x = torch.tensor([[1, 2, 4], [5, 9, 0]])
    same(lambda x, w: F.embedding_bag(x, table, mode="sum", per_sample_weights=w), (x, seeded(2, 3)))


# Integers.

LEAST, MOST = -(2**63), 2**63 - 1
DIVIDED = (0, 1, -1, 7, -7, 2**31, 2**53 + 1, -(2**53) - 1, MOST, LEAST, LEAST + 1, MOST - 1, 2**62 + 12345)


def divided(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x // y, x % y, torch.div(x, y, rounding_mode="trunc"), torch.fmod(x, y)


def test_division_of_integers_is_exact() -> None:
    divisors = [each for each in DIVIDED if each not in (0, -1)] + [2, -2, 3, -3, 10]
    x = torch.tensor([a for a in DIVIDED for _ in divisors])
    y = torch.tensor(divisors * len(DIVIDED))
    same(divided, (x, y), (x[:20], y[:20]), dynamic={"x": {0: "n"}, "y": {0: "n"}})
    same(divided, (x[20:60], torch.tensor(-1)), (x[20:60], torch.tensor(7)))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int8, torch.uint8])
def test_division_of_narrow_integers(dtype: torch.dtype) -> None:
    x, y = torch.arange(100, dtype=dtype), torch.arange(100, dtype=dtype) % 7 + 1
    same(divided, (x, y), *([(-x, y), (x, -y)] if dtype.is_signed else []))


def test_division_by_zero_is_an_error() -> None:
    artifact = smelt.export(lambda x, y: x // y, (torch.tensor([4, 6]), torch.tensor([2, 4])))
    assert artifact(torch.tensor([5, 9]), torch.tensor([2, -2])).tolist() == [2, -5]
    with pytest.raises(smelt.SmeltError, match="out of range"):
        artifact(torch.tensor([5, 9]), torch.tensor([2, 0]))
