"""Complex numbers and Fourier transforms on a chip, whose kernels know neither, without the host."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import smelt

Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def without_the_host() -> Iterator[None]:
    before = smelt.config.chip_fallback
    smelt.config.chip_fallback = False
    yield
    smelt.config.chip_fallback = before


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.complex64, generator=torch.Generator().manual_seed(seed))


def both(function: Function, *given: torch.Tensor) -> None:
    found = function(*[each.to("sim") for each in given])
    expected = function(*given)
    assert found.dtype == expected.dtype and found.stride() == expected.stride()
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "function",
    [
        torch.add, torch.sub, torch.mul, torch.div, torch.eq,
        lambda a, b: torch.add(a, b, alpha=2 - 1j),
        lambda a, b: a * b.real + 1j,
        lambda a, b: a.clone().mul_(3j).add_(b),
        lambda a, b: torch.cat([a, b]),
        lambda a, b: torch.where(a.real > 0, a, b),
        lambda a, b: a @ b.mT,
        lambda a, b: a.conj() @ b.mH,
    ],
)  # fmt: skip
def test_two_operands(function: Function) -> None:
    both(function, numbers(3, 4), numbers(3, 4, seed=1))


@pytest.mark.parametrize(
    "function",
    [
        torch.abs, torch.angle, torch.exp, torch.log, torch.sgn, torch.neg, torch.reciprocal, torch.sum, torch.mean,
        lambda a: a.sum(-1, keepdim=True),
        lambda a: a.mH.resolve_conj(),
        lambda a: a.real + a.imag,
        lambda a: torch.full_like(a, 2 + 3j),
        lambda a: torch.polar(a.abs(), a.angle()),
        lambda a: torch.complex(a.real, a.imag[:1]),
        lambda a: a.real.to(torch.complex64),
        lambda a: a.to(torch.complex128),
        lambda a: a[:, [2, 0]],
        lambda a: a.flip(0).roll(1, 1).tril(),
    ],
)  # fmt: skip
def test_one_operand(function: Function) -> None:
    both(function, numbers(3, 4))


@pytest.mark.parametrize("size", [1, 7, 64, 100, 127, 128, 263, 1000])
def test_transforms_of_any_length(size: int) -> None:
    x = numbers(2, size)
    both(torch.fft.fft, x)
    both(lambda x: torch.fft.ifft(x, norm="ortho"), x)
    both(lambda x: torch.fft.rfft(x.real.contiguous()), x)
    if size > 1:
        both(torch.fft.irfft, x)
        both(lambda x: torch.fft.irfft(x, n=2 * size - 1), x)


def test_transforms_along_several_dimensions() -> None:
    x = numbers(3, 4, 5)
    both(torch.fft.fftn, x)
    both(lambda x: torch.fft.ifft2(x, dim=(0, 1), s=(5, 2), norm="forward"), x)
    both(lambda x: torch.fft.rfft2(x.real), x)
    both(lambda x: torch.fft.irfftn(x, s=(3, 4, 6)), x)
    both(torch.fft.hfft, x)
    both(lambda x: torch.fft.fftshift(torch.fft.fft(x)), x)


def test_gradients_of_transforms() -> None:
    def gradient(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        spectrum = torch.fft.rfft(x, norm="ortho")
        (spectrum.abs().sum() + torch.fft.irfft(spectrum * spectrum).square().sum()).backward()
        assert x.grad is not None
        return x.grad

    both(gradient, numbers(2, 10).real.contiguous())


def test_short_time_transform_and_back() -> None:
    x = numbers(2, 64).real.contiguous()

    def there(x: torch.Tensor) -> torch.Tensor:
        window = torch.hann_window(16).to(x.device)
        return torch.stft(x, 16, window=window, return_complex=True)

    both(there, x)
