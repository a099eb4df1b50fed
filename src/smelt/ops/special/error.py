"""The error function's relatives: what is missing to 1, scaled or as a logarithm, and inverses.

    erfcx(x) = exp(x²) · erfc(x)    a polynomial in (x - 3.75) / (x + 3.75), for x ≥ 0
    erfinv(x)                       polynomials in w = -ln(1 - x²), or in √w far out
    ndtri(p)                        polynomials in s = √(-2 ln p), or in 1/s far out
"""

import math

import torch

from smelt.ops.special import coefficients
from smelt.ops.special.evaluate import Tensor, on, polynomial, special, where

aten = torch.ops.aten


def _scaled(size: Tensor) -> Tensor:
    """exp(x²) · erfc(x) of x ≥ 0."""
    found = polynomial(coefficients.ERFCX, 1.0 - 7.5 / (size + 3.75))
    return found / (size * 2.0 + 1.0)


def _square_exp(x: Tensor, sign: float) -> Tensor:
    """exp(±x²), by a part of x whose square is exact and the rest."""
    high = x.to(torch.float32).to(torch.float64)
    exact, rest = high * high * sign, (x - high) * (x + high) * sign
    return where(x.abs() > 30.0, (x * x * sign).exp(), exact.exp() * rest.exp())


@special(aten.erfc.default, aten.special_erfc.default)
def erfc(x: Tensor) -> Tensor:
    size = x.abs()
    tail = _square_exp(x, -1.0) * _scaled(size)
    return where(size < 0.5, 1.0 - x.erf(), where(x < 0.0, 2.0 - tail, tail))


@special(aten.special_erfcx.default)
def erfcx(x: Tensor) -> Tensor:
    found = _scaled(x.abs())
    return where(x < 0.0, _square_exp(x, 1.0) * 2.0 - found, found)


@special(aten.erfinv.default, aten.special_erfinv.default)
def erfinv(x: Tensor) -> Tensor:
    size = x.abs()
    w = -where(size < 0.5, (-x * x).log1p(), ((1.0 - size) * (1.0 + size)).log())
    root = w.sqrt()
    near = polynomial(coefficients.ERFINV_MID, on(0.0, 5.0, w))
    far = polynomial(coefficients.ERFINV_FAR, on(math.sqrt(5), 4.0, root))
    end = polynomial(coefficients.ERFINV_END, on(4.0, 6.2, root))
    found = x * where(w < 5.0, near, where(root < 4.0, far, end))
    return where(size == 1.0, x * math.inf, where(size > 1.0, math.nan, found))


@special(aten.special_ndtri.default)
def ndtri(p: Tensor) -> Tensor:
    border = math.exp(-2)
    upper = p > 0.5
    share = where(upper, 1.0 - p, p)
    s = (share.log() * -2.0).sqrt()
    near = polynomial(coefficients.NDTRI_NEAR, on(2.0, 4.0, s))
    middle = polynomial(coefficients.NDTRI_MID, on(4.0, 10.0, s))
    far = polynomial(coefficients.NDTRI_FAR, on(0.025, 0.1, s.reciprocal())) * s
    tail = where(s < 4.0, near, where(s < 10.0, middle, far))
    found = where(share < border, where(upper, tail, -tail), erfinv(p * 2.0 - 1.0) * math.sqrt(2))
    edge = where(p == 1.0, math.inf, where(p == 0.0, -math.inf, found))
    return where((p < 0.0) | (p > 1.0), math.nan, edge)


@special(aten.special_log_ndtr.default)
def log_ndtr(x: Tensor) -> Tensor:
    t = x * math.sqrt(0.5)
    tail = (erfcx(-t) * 0.5).log() - t * t
    return where(x < -1.0, tail, (erfc(t) * -0.5).log1p())
