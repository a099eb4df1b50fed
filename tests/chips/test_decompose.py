"""Operators that a chip computes by others: right, without the host, at edges too."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import smelt
from smelt.chips.decompose.table import OURS

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
    agree(lambda x: torch.histc(x, 4, -1, 1), torch.tensor([-1.0, -0.5, 0.3, 1.0, 2.0, NAN]))
    agree(lambda x: torch.histogram(x, 5)[0], torch.linspace(0, 1, 23) ** 2)
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


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(5, 11), (3, 4), (1, 20)])
def test_gradients_of_images_at_other_sizes(mode: str, size: tuple[int, int]) -> None:
    x = torch.randn(2, 3, 6, 7, generator=torch.Generator().manual_seed(0))
    agree(gradients(lambda x: F.interpolate(x, size, mode=mode)), x, atol=1e-5)
    if mode.startswith("bi"):
        agree(gradients(lambda x: F.interpolate(x, size, mode=mode, antialias=True)), x, atol=1e-5)


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("corners", [True, False])
def test_gradients_of_images_read_at_any_places(mode: str, padding: str, corners: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x, grid = torch.randn(2, 3, 5, 4, generator=generator), torch.randn(2, 6, 3, 2, generator=generator) * 1.5
    agree(
        gradients(lambda x, grid: F.grid_sample(x, grid, mode=mode, padding_mode=padding, align_corners=corners)),
        x, grid, rtol=1e-4, atol=2e-5,
    )  # fmt: skip


def test_the_greatest_of_windows() -> None:
    x = torch.randn(2, 2, 7, 9, generator=torch.Generator().manual_seed(0))
    x[0, 0, 0, 0], x[1, 1, 3, 3] = NAN, -INF
    agree(lambda x: F.adaptive_max_pool2d(x, (3, 4), return_indices=True), x)
    agree(lambda x: F.max_pool3d(x, 3, 2, 1, 1, True, return_indices=True), x)
    agree(lambda x: F.max_pool3d(torch.full_like(x, -INF), 3, 2, 1, return_indices=True), x)


# Special functions.


def test_zeta_and_what_stands_on_it() -> None:
    q = torch.tensor([0.3, 1.0, 7.5, -1.5, -2.0, 40.0, 0.0, NAN])
    agree(lambda q: torch.special.zeta(torch.full_like(q, 3.0), q), q)
    agree(lambda q: torch.special.zeta(torch.full_like(q, 2.5), q), q)
    agree(lambda x: torch.polygamma(2, x), q[:4])
    agree(lambda x: torch.polygamma(5, x), q[:4])
    agree(lambda s: torch.special.zeta(s, 1.0), torch.tensor([1.0, 0.5, 1.01, 30.0]))


def test_incomplete_gamma_functions() -> None:
    a = torch.tensor([0.1, 1.0, 3.0, 30.0, 300.0, 2000.0, 0.0, 1.0, -1.0, 2.0, INF, 2.0, NAN])
    x = torch.tensor([0.2, 3.0, 2.9, 33.0, 290.0, 2000.0, 1.0, 0.0, 1.0, -1.0, 1.0, INF, 1.0])
    wide = a.double(), x.double()
    for function in (torch.igamma, torch.igammac):
        mine = function(a.to("sim"), x.to("sim")).cpu()
        torch.testing.assert_close(mine, function(*wide).float(), rtol=5e-7, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", [name.removeprefix("special_") for name in (
    "special_chebyshev_polynomial_t", "special_shifted_chebyshev_polynomial_w", "special_hermite_polynomial_h",
    "special_hermite_polynomial_he", "special_laguerre_polynomial_l", "special_legendre_polynomial_p",
)])  # fmt: skip
def test_polynomials_of_any_degree(name: str) -> None:
    x = torch.tensor([-1.0, -0.3, 0.0, 0.5, 1.0, 1.5]).unsqueeze(1)
    n = torch.tensor([-2.0, 0.0, 1.0, 2.0, 5.0, 9.0, 12.0])
    function = getattr(torch.special, name)
    mine = function(x.to("sim"), n.to("sim")).cpu()
    torch.testing.assert_close(mine, function(x.double(), n.double()).float(), rtol=1e-6, atol=1e-6)


# What is said when something is wrong.


def test_errors_are_pytorchs_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smelt.config, "chip_fallback", True)
    with pytest.raises(RuntimeError, match="non-negative"):
        torch.bincount(torch.tensor([-1], device="sim"))
    with pytest.raises(RuntimeError, match=r"(?i)number of elements"):
        torch.zeros(3, device="sim").masked_scatter(torch.ones(3, dtype=torch.bool, device="sim"),
                                                    torch.ones(2, device="sim"))  # fmt: skip


def test_every_rule_is_for_an_operator_that_returns_something() -> None:
    assert len(OURS) > 150
    assert [str(op) for op in OURS if not op._schema.returns] == []


def test_bits_of_floats() -> None:
    x = torch.tensor([0.0, 1.0, -3.5, 1e-42, INF, NAN, 3e38, -0.0])
    agree(torch.frexp, x)
    agree(torch.nextafter, x, x.flip(0), rtol=0, atol=0)
    agree(torch.hypot, x, x.flip(0))


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
        return F.batch_norm(given[0], given[1], given[2], given[3], given[4], eps=0.5).cpu().bfloat16()

    assert torch.equal(normed("sim", torch.bfloat16), normed("cpu", torch.float32))


def test_a_rule_for_no_elements_leaves_the_others_to_pytorchs() -> None:
    x = torch.tensor([[1.0, NAN, 3.0], [NAN, NAN, 2.0]])
    for function in (torch.nansum, torch.nanmean, lambda x: x.nansum(1), lambda x: x[:0].nansum(0)):
        agree(function, x)
