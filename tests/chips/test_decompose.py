"""Operators that a chip computes by others: right, without the host, at edges too."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import smelt
from smelt.chips.sized_by_data import RULES

INF, NAN = math.inf, math.nan


@pytest.fixture(autouse=True)
def no_fallbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smelt.config, "chip_fallback", False)


def both(function: Callable[..., Any], *tensors: Tensor) -> tuple[Any, Any]:
    """What the chip gives, on the host, and what the host gives."""
    found = function(*[each.to("sim") for each in tensors])
    mine = [each.cpu() for each in found] if isinstance(found, tuple | list) else found.cpu()
    return mine, function(*tensors)


def agree(function: Callable[..., Any], *tensors: Tensor, rtol: float = 2e-6, atol: float = 1e-7) -> None:
    mine, eager = both(function, *tensors)
    for one, other in zip(mine, eager, strict=True) if isinstance(eager, tuple | list) else [(mine, eager)]:
        torch.testing.assert_close(one, other, rtol=rtol, atol=atol, equal_nan=True)


def gradients(function: Callable[..., Tensor], *tensors: Tensor) -> Callable[..., Any]:
    def called(*given: Tensor) -> Any:
        leaves = [each.detach().requires_grad_(each.is_floating_point()) for each in given]
        out = function(*leaves)
        return torch.autograd.grad((out * torch.linspace(-1, 1, out.numel()).view(out.shape).to(out.device)).sum(),
                                   [each for each in leaves if each.requires_grad])  # fmt: skip

    return called


# Results that data size.


@pytest.mark.parametrize("shape", [(7,), (3, 4), (0,), (), (2, 0, 3)])
def test_nonzero(shape: tuple[int, ...]) -> None:
    x = (torch.arange(math.prod(shape)) % 3 == 1).view(shape)
    agree(torch.nonzero, x)
    agree(lambda x: x[x], x)


def test_masks_choose_and_are_written_through() -> None:
    x = torch.arange(12.0).view(3, 4)
    mask = (x % 3 == 0) & (x > 1)
    agree(torch.masked_select, x, mask)
    agree(lambda x, m: x[m[:, 0]], x, mask)
    agree(lambda x, m, s: x.masked_scatter(m, s), x, mask, -torch.arange(20.0))

    def write(x: Tensor, mask: Tensor) -> Tensor:
        made = x.clone()
        made[mask] = torch.arange(float(mask.sum().item())).to(x.device)
        return made

    agree(write, x, mask)


def test_unique_counts_and_finds_back() -> None:
    x = torch.tensor([[3, 1, 1], [2, 3, 3]])
    agree(lambda x: torch.unique(x, return_inverse=True, return_counts=True), x)
    agree(lambda x: torch.unique(x, dim=1, return_inverse=True, return_counts=True), torch.stack([x, x, -x], 1))
    agree(lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True), x)


def test_counting() -> None:
    x = torch.tensor([1, 5, 2, 2, 0])
    agree(torch.bincount, x)
    agree(lambda x: torch.bincount(x, minlength=9), x)
    agree(lambda x: torch.repeat_interleave(x, x), x)


# Windows.


def test_what_is_infinite_stays_in_its_windows() -> None:
    grad = torch.ones(1, 1, 4, 4)
    grad[0, 0, 1, 1], grad[0, 0, 3, 2] = INF, NAN

    def backward(grad: Tensor) -> Tensor:
        x = torch.zeros(1, 1, 7, 9, device=grad.device, requires_grad=True)
        F.adaptive_avg_pool2d(x, (4, 4)).backward(grad)
        assert x.grad is not None
        return x.grad

    agree(backward, grad)


def test_the_greatest_of_windows() -> None:
    x = torch.randn(2, 2, 7, 9, generator=torch.Generator().manual_seed(0))
    x[0, 0, 0, 0], x[1, 1, 3, 3] = NAN, -INF
    agree(lambda x: F.adaptive_max_pool2d(x, (3, 4), return_indices=True), x)
    agree(lambda x: F.max_pool3d(x, 3, 2, 1, 1, True, return_indices=True), x)
    agree(lambda x: F.max_pool3d(torch.full_like(x, -INF), 3, 2, 1, return_indices=True), x)


POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "avg_pool2d": lambda x: F.avg_pool2d(x[:, :, 0], 3, 2, 1, True, False),
    "avg_pool2d by a divisor": lambda x: F.avg_pool2d(x[:, :, 0], 3, 2, 1, divisor_override=4),
    "avg_pool2d without batch": lambda x: F.avg_pool2d(x[0, :, 0], 3, 2, 1),
    "avg_pool3d": lambda x: F.avg_pool3d(x, 3, 2, 1, True),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x[:, :, 0], (4, 3)),
    "adaptive_avg_pool3d": lambda x: F.adaptive_avg_pool3d(x, (2, 4, 3)),
    "max_pool2d": lambda x: F.max_pool2d(x[:, :, 0], 3, 2, 1, 2, True),
    "max_pool2d without batch": lambda x: F.max_pool2d(x[0, :, 0], 3, 2, 1),
    "max_pool3d": lambda x: F.max_pool3d(x, 3, 2, 1),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x[:, :, 0], (4, 3)),
    "adaptive_max_pool3d": lambda x: F.adaptive_max_pool3d(x, (2, 4, 3)),
}


@pytest.mark.parametrize("name", POOLS)
def test_gradients_of_pooling(name: str) -> None:
    x = torch.randn(2, 2, 5, 7, 6, generator=torch.Generator().manual_seed(0))
    agree(gradients(POOLS[name]), x, atol=1e-6)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 4])
def test_embedding_bags_and_their_gradients(mode: str, padding: int | None) -> None:
    table = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))
    indices, offsets = torch.tensor([1, 2, 4, 5, 4, 3, 2, 9]), torch.tensor([0, 3, 3, 6])

    def bags(table: Tensor, indices: Tensor, offsets: Tensor) -> Tensor:
        return F.embedding_bag(indices, table, offsets, mode=mode, padding_idx=padding)

    agree(bags, table, indices, offsets)
    agree(gradients(bags), table, indices, offsets, atol=1e-6)


def test_batch_norm_in_evaluation() -> None:
    generator = torch.Generator().manual_seed(0)
    statistics = [torch.rand(3, generator=generator) + 0.5 for _ in range(4)]
    agree(F.batch_norm, torch.randn(2, 3, 4, 5, generator=generator), *statistics, atol=1e-6)


def test_an_index_without_elements_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x, index = torch.arange(6.0).view(3, 2), torch.zeros(0, dtype=torch.int64)
    agree(lambda x, index: torch.cat([x[:0], x]), x, index)
    monkeypatch.setattr(smelt.config, "chip_fallback", True)  # kernels have no empty loops
    before = smelt.counters["chip_fallbacks"]
    agree(lambda x, index: x.index_add(0, index, x[:0]), x, index)
    assert smelt.counters["chip_fallbacks"] > before


# What is said when something is wrong.


def test_errors_are_pytorchs_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smelt.config, "chip_fallback", True)
    with pytest.raises(RuntimeError, match="non-negative"):
        torch.bincount(torch.tensor([-1], device="sim"))
    with pytest.raises(RuntimeError, match=r"(?i)number of elements"):
        torch.zeros(3, device="sim").masked_scatter(torch.ones(3, dtype=torch.bool, device="sim"),
                                                    torch.ones(2, device="sim"))  # fmt: skip


def test_every_rule_is_for_an_operator_that_returns_something() -> None:
    assert [str(op) for op in RULES if not op._schema.returns] == []


def test_a_result_shares_no_memory_with_what_it_is_made_of() -> None:
    x = torch.tensor(3.0, device="sim")
    x.take(torch.tensor(0, device="sim")).add_(1)
    assert x.item() == 3.0


def test_statistics_are_updated_once_though_the_host_computes_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smelt.config, "chip_fallback", True)
    for dtype in (torch.bfloat16, torch.float32):
        generator = torch.Generator().manual_seed(0)
        x, *given = (torch.rand(5, *more, generator=generator).to(dtype) for more in [(5, 5), (), (), (), ()])
        there = [each.to("sim") for each in given]
        torch.ops.aten._batch_norm_with_update(x, *given, 0.5, 0.6)
        torch.ops.aten._batch_norm_with_update(x.to("sim"), *there, 0.5, 0.6)
        for one, other in zip(there, given, strict=True):
            torch.testing.assert_close(one.cpu(), other)


def test_a_narrow_batch_norm_is_rounded_once() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 40, generator=generator).bfloat16()
    mean, variance, weight, bias = (torch.rand(4, 40, generator=generator) + 0.1).bfloat16()

    def normed(device: str, dtype: torch.dtype) -> Tensor:
        given = [each.to(device, dtype) for each in (x, mean, variance, weight, bias)]
        return F.batch_norm(given[0], given[1], given[2], given[3], given[4], eps=0.5).cpu().double()

    exact = normed("cpu", torch.float64)
    last_bit = 2.0 ** (exact.abs().log2().floor() - 7)
    assert ((normed("sim", torch.bfloat16) - exact).abs() / last_bit).max() < 0.501


def test_a_rule_for_no_elements_leaves_the_others_to_pytorchs() -> None:
    x = torch.tensor([[1.0, NAN, 3.0], [NAN, NAN, 2.0]])
    for function in (torch.nansum, torch.nanmean, lambda x: x.nansum(1), lambda x: x[:0].nansum(0)):
        agree(function, x)
