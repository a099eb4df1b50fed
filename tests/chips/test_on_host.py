"""Linear algebra, Fourier transforms and complex numbers on a chip: computed by the host, right, and counted."""

import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import smelt

Function = Callable[..., Any]

LINALG_ERROR: Any = vars(torch.linalg)["LinAlgError"]  # which PyTorch's types do not know


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", smelt.SmeltWarning)
        yield


def complex_numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.complex64, generator=torch.Generator().manual_seed(seed))


def positive_matrices(size: int) -> torch.Tensor:
    matrices = torch.randn(2, size, size, generator=torch.Generator().manual_seed(3))
    return matrices @ matrices.mT / size + torch.eye(size)


def is_the_hosts(function: Function, *tensors: torch.Tensor) -> None:
    """The chip returns what the host returns, with the same layout, and counts that the host computed it."""
    before = smelt.counters["chip_fallbacks"]
    actual = function(*[each.to("sim") for each in tensors])
    assert smelt.counters["chip_fallbacks"] > before
    expected = function(*tensors)
    pairs = zip(*[each if isinstance(each, tuple) else (each,) for each in (actual, expected)], strict=True)
    for one, other in pairs:
        assert one.device.type == "sim"
        assert one.dtype == other.dtype and one.stride() == other.stride()
        torch.testing.assert_close(one.cpu(), other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "function",
    [
        torch.add, torch.mul, torch.div, torch.eq,
        lambda a, b: a * b.real + 1j,
        lambda a, b: a.clone().mul_(3j).add_(b),
        lambda a, b: torch.cat([a, b]),
        lambda a, b: torch.where(a.real > 0, a, b),
        lambda a, b: a.conj() @ b.mH,
    ],
)  # fmt: skip
def test_two_complex_operands(function: Function) -> None:
    is_the_hosts(function, complex_numbers(3, 4), complex_numbers(3, 4, seed=1))


@pytest.mark.parametrize(
    "function",
    [
        torch.abs, torch.angle, torch.exp, torch.sgn, torch.sum, torch.mean,
        lambda a: a.mH.resolve_conj(),
        lambda a: torch.full_like(a, 2 + 3j),
        lambda a: torch.polar(a.real, a.imag),
        lambda a: torch.complex(a.real, a.imag[:1]),
        lambda a: a.real.to(torch.complex64),
        lambda a: a.to(torch.complex128),
        lambda a: a[:, [2, 0]],
        lambda a: a.flip(0).roll(1, 1).tril(),
    ],
)  # fmt: skip
def test_one_complex_operand(function: Function) -> None:
    is_the_hosts(function, complex_numbers(3, 4))


def test_parts_of_complex_numbers_are_views_that_need_no_host() -> None:
    before = smelt.counters["chip_fallbacks"]
    x = complex_numbers(3, 4)
    actual = x.to("sim").real + x.to("sim").imag
    assert torch.equal(actual.cpu(), x.real + x.imag) and smelt.counters["chip_fallbacks"] == before


def test_fourier_transforms() -> None:
    x = complex_numbers(3, 4, 10)
    is_the_hosts(torch.fft.fftn, x)
    is_the_hosts(lambda x: torch.fft.rfft(x.real.contiguous(), norm="ortho"), x)
    is_the_hosts(lambda x: torch.fft.irfft(x, n=19), x)
    is_the_hosts(lambda x: torch.stft(x, 16, window=torch.hann_window(16).to(x.device), return_complex=True),
                 complex_numbers(2, 64).real.contiguous())  # fmt: skip


def test_gradients_of_a_fourier_transform() -> None:
    def gradient(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        spectrum = torch.fft.rfft(x, norm="ortho")
        (spectrum.abs().sum() + torch.fft.irfft(spectrum * spectrum).square().sum()).backward()
        assert x.grad is not None
        return x.grad

    is_the_hosts(gradient, complex_numbers(2, 10).real.contiguous())


@pytest.mark.parametrize(
    "function",
    [
        torch.linalg.cholesky, torch.linalg.lu_factor, torch.linalg.inv, torch.linalg.slogdet, torch.linalg.qr,
        torch.linalg.eigh, torch.linalg.svd, torch.linalg.pinv, torch.linalg.matrix_exp,
        lambda a: torch.linalg.solve(a, a[..., :2]),
        lambda a: torch.linalg.lstsq(a, a[..., :1]).solution,
        lambda a: torch.linalg.solve_triangular(a.triu(), a, upper=True),
        lambda a: torch.linalg.inv(a[:, :0, :0]),
    ],
)  # fmt: skip
def test_linear_algebra(function: Function) -> None:
    is_the_hosts(function, positive_matrices(5))


def test_gradients_of_linear_algebra() -> None:
    def gradient(a: torch.Tensor) -> torch.Tensor:
        a = a.detach().requires_grad_()
        scalar = torch.linalg.solve(a, a[..., :2].detach()).sin().sum() + torch.linalg.slogdet(a).logabsdet.sum()
        return torch.autograd.grad(scalar + torch.linalg.svdvals(a).sin().sum(), a)[0]

    is_the_hosts(gradient, positive_matrices(5))


def test_errors_are_pytorchs() -> None:
    singular = torch.ones(3, 3)
    not_positive = torch.diag(torch.tensor([1.0, -1.0, 1.0]))
    for function, a in (
        (torch.linalg.inv, singular),
        (torch.linalg.cholesky, not_positive),
        (lambda a: torch.linalg.inv(a.expand(2, 3, 3)), singular),
    ):
        with pytest.raises(LINALG_ERROR) as raised:
            function(a)
        with pytest.raises(LINALG_ERROR, match=re.escape(str(raised.value))):
            function(a.to("sim"))


@pytest.mark.parametrize("function", [torch.fft.fft, torch.linalg.cholesky, lambda a: a * 1j])
def test_without_the_host_they_are_refused(function: Function, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smelt.config, "chip_fallback", False)
    with pytest.raises(smelt.SmeltError, match="SM072"):
        function(torch.eye(3, device="sim"))
