"""Sums of one-hot rows as a comparison: the same to the last bit, the sign of zeros included."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt.base.rewrite_budget import RewriteBudget
from smelt.simplify import sum_one_hot
from tests.simplify.test_passes import assert_same, copied, recorded, targets

aten = torch.ops.aten
CPU = torch.device("cpu")
ROWS, COLS = 9, 40
CLASSES = torch.tensor([0, 39, 40, -1, -100, 7, 7, 50, 1])


def _hot(classes: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    numbers = aten.view.default(aten.arange.default(COLS, dtype=torch.int64, device=CPU), [1, -1])
    zero = aten.full.default([], 0.0, dtype=share.dtype, device=CPU)
    hot: torch.Tensor = aten.where.self(aten.eq.Tensor(aten.unsqueeze.default(classes, 1), numbers), share, zero)
    return hot


def _kept(classes: torch.Tensor, share: torch.Tensor) -> Any:
    return aten.sum.dim_IntList(_hot(classes, share), [1], True)


def _dropped(classes: torch.Tensor, share: torch.Tensor) -> Any:
    return aten.sum.dim_IntList(_hot(classes, share), [-1])


def _cast(classes: torch.Tensor, share: torch.Tensor) -> Any:
    """As a loss in bfloat16 has it, whose gradient is rounded before the sum."""
    rounded = aten._to_copy.default(_hot(classes, share), dtype=torch.bfloat16)
    return aten.sum.dim_IntList(aten._to_copy.default(rounded, dtype=torch.float32), [1], True)


@pytest.mark.parametrize("function", [_kept, _dropped, _cast])
@pytest.mark.parametrize(
    "share", [torch.tensor(-0.3), torch.tensor(-0.0), torch.randn(ROWS, 1)], ids=["", "zero", "each"]
)
def test_no_pass_over_the_classes(function: Any, share: torch.Tensor) -> None:
    before = recorded(function, CLASSES, share)
    after = sum_one_hot(copied(before), RewriteBudget())
    assert not list(next(node for node in after.graph.nodes if node.target is aten.sum.dim_IntList).users)
    assert_same(before, after, CLASSES, share)


def test_other_sums_stay() -> None:
    def wide_share(classes: torch.Tensor, share: torch.Tensor) -> Any:
        return aten.sum.dim_IntList(_hot(classes, share), [1])

    def over_rows(classes: torch.Tensor, share: torch.Tensor) -> Any:
        return aten.sum.dim_IntList(_hot(classes, aten.sum.default(share)), [0])

    def from_one(classes: torch.Tensor, share: torch.Tensor) -> Any:
        numbers = aten.arange.start(1, COLS + 1, dtype=torch.int64, device=CPU)
        zero = aten.full.default([], 0.0, dtype=share.dtype, device=CPU)
        is_class = aten.eq.Tensor(aten.unsqueeze.default(classes, 1), numbers)
        return aten.sum.dim_IntList(aten.where.self(is_class, aten.sum.default(share), zero), [1])

    def not_zero(classes: torch.Tensor, share: torch.Tensor) -> Any:
        numbers = aten.arange.default(COLS, dtype=torch.int64, device=CPU)
        one = aten.full.default([], 1.0, dtype=share.dtype, device=CPU)
        is_class = aten.eq.Tensor(aten.unsqueeze.default(classes, 1), numbers)
        return aten.sum.dim_IntList(aten.where.self(is_class, aten.sum.default(share), one), [1])

    for function in (wide_share, over_rows, from_one, not_zero):
        before = recorded(function, CLASSES, torch.randn(ROWS, COLS))
        assert targets(sum_one_hot(copied(before), RewriteBudget())) == targets(before)


def test_it_takes_fuel() -> None:
    before = recorded(_kept, CLASSES, torch.tensor(1.0))
    assert targets(sum_one_hot(copied(before), RewriteBudget(0))) == targets(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_a_loss(dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    target = torch.tensor([0, 39, -100, 5, 5, -100, 8, 21, 30])

    def loss(x: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x * 2, target)

    x = torch.randn(ROWS, COLS, dtype=dtype, requires_grad=True)
    eager, mine, exact = x, x.detach().clone().requires_grad_(), x.detach().double().requires_grad_()
    for run, leaf in ((loss, eager), (smelt.compile(loss, fullgraph=True), mine), (loss, exact)):
        run(leaf).backward()
    gradients = [leaf.grad.double() for leaf in (exact, eager, mine) if leaf.grad is not None]
    errors = [float((each - gradients[0]).abs().max()) for each in gradients[1:]]
    assert errors[1] <= 2 * errors[0] + 1e-7


@pytest.mark.parametrize(
    ("classes", "numbers", "count"),
    [
        (torch.uint8, torch.int64, 256),
        (torch.int8, torch.int32, 200),
        (torch.int16, torch.int64, 40_000),
        (torch.int64, torch.bfloat16, 300),  # 256 twice
        (torch.uint8, torch.int64, 255),
    ],
)
def test_classes_that_a_dtype_does_not_tell_apart(classes: torch.dtype, numbers: torch.dtype, count: int) -> None:
    def summed(each: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
        hot = torch.where(torch.arange(count, dtype=numbers) == each.unsqueeze(1), share, 0.0)
        return hot.sum(1)

    each, share = torch.tensor([0, 3, 127, count - 1]).to(classes), torch.randn(4, 1)
    assert torch.equal(smelt.compile(summed)(each, share), summed(each, share))
