"""Fourier transforms on a chip: products with small matrices of roots of unity, and rotations between them.

    n = 1000:  f64[rows, 50·20, 2]  →  50 at a time by a matrix, rotated, 20 at a time by a matrix, put in order

A length is split into factors of at most `_BLOCK`, each a product of real matrices (Cooley and Tukey). One with a large
prime factor is a convolution with a chirp of a length that is a power of two (Bluestein). Numbers are pairs of the
widest float, rounded once at the end.
"""

import math
from typing import Any

import torch

from smelt.chips.fused import fused, number, widest

Tensor = torch.Tensor
aten = torch.ops.aten

_BLOCK = 64
_MATRIX = 256
"""Primes up to this are transformed by one matrix."""


# Rows of pairs: [rows, n, 2].


def _rotation(product: Any, n: Any, dtype: torch.dtype, sign: int) -> tuple[Any, Any]:
    """Cosine and sine of product / n turns. Whole turns are taken off first, then quarters, all by whole numbers: what
    is left is at most an eighth of a turn, and quarters are exact."""
    whole = product.to(dtype)
    part = whole - torch.floor(whole / n) * n
    quarters = torch.round(part * 4 / n)
    angle = (part * 4 - quarters * n) / n * (math.pi / 2)
    cosine, sine = angle.cos(), angle.sin()
    is_odd = (quarters == 1) | (quarters == 3)
    across, along = torch.where(is_odd, sine, cosine), torch.where(is_odd, cosine, sine)
    is_behind, is_below = (quarters == 1) | (quarters == 2), (quarters == 2) | (quarters == 3)
    return torch.where(is_behind, -across, across), torch.where(is_below, -along, along) * sign


@fused
def _roots(like: Tensor, n: Tensor, sign: int) -> Tensor:
    """What multiplies rows of pairs: [n, 2, n, 2]."""
    at = torch.arange(like.shape[0], device=like.device)
    cosine, sine = _rotation(at.unsqueeze(1) * at, n, like.dtype, sign)
    return torch.stack([torch.stack([cosine, sine], -1), torch.stack([-sine, cosine], -1)], 1)


@fused
def _turned(x: Tensor, n: Tensor, sign: int) -> Tensor:
    """x[row, s, k] · exp(sign · 2πi · s · k / n)."""
    real, imaginary = x.select(-1, 0), x.select(-1, 1)
    product = torch.arange(x.shape[1], device=x.device).unsqueeze(1) * torch.arange(x.shape[2], device=x.device)
    cosine, sine = _rotation(product, n, x.dtype, sign)
    return torch.stack([real * cosine - imaginary * sine, real * sine + imaginary * cosine], -1)


def transformed(x: Tensor, sign: int) -> Tensor:
    """Of each row sum over t of x[t] · exp(sign · 2πi · t · k / n)."""
    rows, n, _ = x.shape
    first = _factor(n)
    if first == n:
        roots = _roots(torch.empty(n, dtype=x.dtype, device=x.device), number(n), sign)
        return torch.mm(x.view(rows, 2 * n), roots.view(2 * n, 2 * n)).view(rows, n, 2)
    if not first:
        return _by_chirp(x, sign)
    second = n // first
    columns = x.view(rows, first, second, 2).transpose(1, 2).contiguous()
    columns = transformed(columns.view(rows * second, first, 2), sign).view(rows, second, first, 2)
    columns = _turned(columns, number(n), sign).transpose(1, 2).contiguous()
    found = transformed(columns.view(rows * first, second, 2), sign).view(rows, first, second, 2)
    return found.transpose(1, 2).contiguous().view(rows, n, 2)


def _factor(n: int) -> int:
    """The part of a length that is transformed first: all of it, or its largest small factor; 0 if it has none."""
    if n <= _BLOCK:
        return n
    found = next(each for each in range(_BLOCK, 0, -1) if n % each == 0)
    if found > 1:
        return found
    return n if n <= _MATRIX else 0


@fused
def _chirped(x: Tensor, like: Tensor, twice: Tensor, sign: int) -> tuple[Tensor, Tensor]:
    """x[t] · c[t], and c, where c[t] = exp(sign · πi · t² / n); `twice` is 2n."""
    at = torch.arange(like.shape[0], device=like.device)
    cosine, sine = _rotation(at * at, twice, like.dtype, sign)
    real, imaginary = x.select(-1, 0), x.select(-1, 1)
    chirp = torch.stack([cosine, sine], -1)
    return torch.stack([real * cosine - imaginary * sine, real * sine + imaginary * cosine], -1), chirp


@fused
def _multiplied(x: Tensor, y: Tensor) -> Tensor:
    a, b, c, d = x.select(-1, 0), x.select(-1, 1), y.select(-1, 0), y.select(-1, 1)
    return torch.stack([a * c - b * d, a * d + b * c], -1)


def _by_chirp(x: Tensor, sign: int) -> Tensor:
    """t·k = (t² + k² - (k - t)²) / 2, so that the sum is a convolution."""
    rows, n, _ = x.shape
    length = 1 << (2 * n - 1).bit_length()
    like = torch.empty(n, dtype=x.dtype, device=x.device)
    turned, chirp = _chirped(x, like, number(2 * n), sign)
    back = chirp * torch.tensor([1.0, -1.0], dtype=x.dtype, device=x.device)
    ring = torch.zeros(1, length, 2, dtype=x.dtype, device=x.device)
    ring[0, :n] = back
    ring[0, length - n + 1 :] = back[1:].flip(0)
    padded = torch.zeros(rows, length, 2, dtype=x.dtype, device=x.device)
    padded[:, :n] = turned
    product = _multiplied(transformed(padded, -1), transformed(ring, -1))
    found = transformed(product, 1)[:, :n].contiguous() / length
    result: Tensor = _chirped(found, like, number(2 * n), sign)[0]
    return result


# ATen's operators.


def _pairs(tensor: Tensor) -> Tensor:
    wide = widest(tensor.dtype.to_real() if tensor.is_complex() else tensor.dtype)
    if tensor.is_complex():
        return torch.view_as_real(tensor).to(wide)
    real = tensor.to(wide)
    return torch.stack([real, torch.zeros_like(real)], -1)


def _along(x: Tensor, dim: int, sign: int) -> Tensor:
    """Pairs of any shape, transformed along one dimension."""
    rows = x.transpose(dim, -2).contiguous()
    found = transformed(rows.view(-1, rows.shape[-2], 2), sign)
    return found.view(rows.shape).transpose(dim, -2)


@fused
def _real_ends(x: Tensor, n: Tensor) -> Tensor:
    """What is its own mirror image in the spectrum of real numbers is real."""
    at = torch.arange(x.shape[-2], device=x.device)
    is_own = (at == 0) | (at * 2 == n)
    return torch.stack([x.select(-1, 0), torch.where(is_own, 0.0, x.select(-1, 1))], -1)


def _scale(normalization: int, count: int) -> float:
    return (1.0, 1 / math.sqrt(count), 1 / count)[normalization]


def _complex(x: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.view_as_complex(x.to(dtype.to_real()).contiguous())


def _extent(shape: torch.Size, dims: Any) -> int:
    return math.prod(shape[dim] for dim in dims)


def c2c(tensor: Tensor, dim: Any, normalization: int, forward: bool) -> Any:
    if not tensor.numel():
        return NotImplemented
    x = _pairs(tensor)
    for each in dim:
        x = _along(x, each % tensor.dim(), -1 if forward else 1)
    return _complex(x * _scale(normalization, _extent(tensor.shape, dim)), tensor.dtype)


def r2c(tensor: Tensor, dim: Any, normalization: int, onesided: bool) -> Any:
    if not tensor.numel():
        return NotImplemented
    x = _pairs(tensor)
    last = dim[-1] % tensor.dim()
    x = _real_ends(_along(x, last, -1).transpose(last, -2).contiguous(), number(tensor.shape[last])).transpose(last, -2)
    if onesided:
        x = x.narrow(last, 0, tensor.shape[last] // 2 + 1)
    for each in dim[:-1]:
        x = _along(x, each % tensor.dim(), -1)
    return _complex(x * _scale(normalization, _extent(tensor.shape, dim)), tensor.dtype.to_complex())


def c2r(tensor: Tensor, dim: Any, normalization: int, last_dim_size: int) -> Any:
    """The half that is not given is the other one, mirrored. Imaginary parts of what is its own mirror image come out
    as imaginary, and are dropped."""
    if not tensor.numel():
        return NotImplemented
    x = _pairs(tensor)
    for each in dim[:-1]:
        x = _along(x, each % tensor.dim(), 1)
    last = dim[-1] % tensor.dim()
    mirrored = x.narrow(last, 1, (last_dim_size + 1) // 2 - 1).flip(last)
    signs = torch.tensor([1.0, -1.0], dtype=x.dtype, device=x.device)
    x = torch.cat([x.narrow(last, 0, last_dim_size // 2 + 1), mirrored * signs], last)
    found = _along(x, last, 1).select(-1, 0)
    count = _extent(tensor.shape, dim[:-1]) * last_dim_size
    return (found * _scale(normalization, count)).to(tensor.dtype.to_real())


TABLE: dict[torch._ops.OpOverload, Any] = {
    aten._fft_c2c.default: c2c,
    aten._fft_r2c.default: r2c,
    aten._fft_c2r.default: c2r,
}
