"""Special functions for targets without a library: ln Γ and its derivatives, the error function's tail and inverse.

    lgamma(x)   →   polynomials and logarithms of float64, chosen by where x is, rounded once

    ln Γ       0.5 … 1.5: t · P(t), t = x - 1; up to 8: by factors x - 1, x - 2, …; beyond: Stirling's series; below 0:
               by reflection
    erfc       exp(-x²) · a polynomial in (x - 3.75) / (x + 3.75), for x ≥ 0
    erfinv     polynomials in w = -ln(1 - x²), or in √w far out

Coefficients come from tools/fit_special.py; accuracy is in docs/math.md.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.ops.decompose.library_free import special_coefficients as coefficients
from smelt.ops.decompose.table import Table, decomposes
from smelt.ops.decompose.table import choose as where

Tensor = torch.Tensor
aten = torch.ops.aten

TABLE: Table = {}


def _special(*ops: Any) -> Callable[[Callable[[Tensor], Tensor]], Callable[[Tensor], Tensor]]:
    """Use a function of float64 for operators of one tensor. Results are rounded to the operator's dtype."""

    def enter(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def in_double(x: Tensor) -> Any:
            if x.is_complex():
                return NotImplemented
            return function(x.to(torch.float64)).to(x.dtype if x.is_floating_point() else torch.get_default_dtype())

        decomposes(*ops, table=TABLE)(in_double)
        return function

    return enter


def _polynomial(coefficients: Sequence[float], t: Tensor) -> Tensor:
    """Σ cₖ tᵏ, by Horner's rule."""
    *rest, highest = coefficients
    value = t * highest + rest.pop()
    for coefficient in reversed(rest):
        value = value * t + coefficient
    return value


def _on(low: float, high: float, x: Tensor) -> Tensor:
    """-1 at `low` to 1 at `high`, which is what fitted polynomials take."""
    return x * (2 / (high - low)) - (high + low) / (high - low)


def _sin_pi(x: Tensor) -> Tensor:
    """sin πx but for its sign, without the error that πx has."""
    return ((x - x.round()) * math.pi).sin()


# B₂ₖ, from k = 1.
BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)
_FAR = 10  # from where the series in 1/x are exact to the last bit


def _series(terms: list[float], x: Tensor) -> Tensor:
    """Σ termsₖ / x²ᵏ."""
    return _polynomial(terms, (x * x).reciprocal())


def _at_least_half(x: Tensor) -> Tensor:
    """Of x from 0.5 up."""
    steps = ((x - 2.0).round()).clamp(0.0, 6.0)
    factors = where(steps >= 1.0, x - 1.0, 1.0)
    for k in range(2, 7):
        factors = factors * where(steps >= float(k), x - float(k), 1.0)
    near = x - steps  # 0.5 to 2.5
    upper = near > 1.5
    t = near - where(upper, 2.0, torch.ones_like(near))
    near_one = t * _polynomial(coefficients.LGAMMA, _on(-0.5, 0.5, t)) + where(upper, t, 0.0).log1p() + factors.log()
    terms = [b / (2 * k * (2 * k - 1)) for k, b in enumerate(BERNOULLI, 1)]
    correction = _series(terms, x) / x + (0.5 * math.log(2 * math.pi) - 0.5)
    return where(x < 8.5, near_one, (x - 0.5) * (x.log() - 1.0) + correction)


@_special(aten.lgamma.default)
def lgamma(x: Tensor) -> Tensor:
    size = x.abs()
    small = size < 0.5
    of_size = _at_least_half(where(small, size + 1.0, size)) - where(small, size.log(), 0.0)
    reflected = math.log(math.pi) - (size * _sin_pi(size).abs()).log() - of_size
    return where(size == math.inf, math.inf, where(x < 0.0, reflected, of_size))


@_special(aten.digamma.default, aten.special_digamma.default)
def digamma(x: Tensor) -> Tensor:
    """At negative integers it is no number, at 0 infinite with the other sign."""
    turned = where(x < 0.5, 1.0 - x, x)
    low = turned < float(_FAR)
    steps = turned.reciprocal()
    for k in range(1, _FAR):
        steps = steps + (turned + float(k)).reciprocal()
    far = where(low, turned + float(_FAR), turned)
    terms = [b / (2 * k) for k, b in enumerate(BERNOULLI, 1)]
    value = far.log() - far.reciprocal() * 0.5 - _series(terms, far) / (far * far) - where(low, steps, 0.0)
    angle = (x - x.round()) * math.pi
    value = where(x < 0.5, value - angle.cos() / angle.sin() * math.pi, value)
    pole = where(x == 0.0, where(x.signbit(), torch.full_like(x, math.inf), -math.inf), math.nan)
    return where((x <= 0.0) & (x == x.floor()), pole, value)


def _trigamma(x: Tensor) -> Tensor:
    turned = where(x < 0.5, 1.0 - x, x)
    low = turned < float(_FAR)
    steps = (turned * turned).reciprocal()
    for k in range(1, _FAR):
        next_one = turned + float(k)
        steps = steps + (next_one * next_one).reciprocal()
    far = where(low, turned + float(_FAR), turned)
    once = far.reciprocal()
    value = once + once * once * 0.5 + _series(list(BERNOULLI), far) * once * once * once + where(low, steps, 0.0)
    sine = _sin_pi(x) * (1 / math.pi)
    return where(x < 0.5, (sine * sine).reciprocal() - value, value)


@decomposes(aten.polygamma.default, table=TABLE)
def _polygamma(n: int, x: Tensor) -> Any:
    if n != 1 or x.is_complex():
        return NotImplemented
    return _trigamma(x.to(torch.float64)).to(x.dtype if x.is_floating_point() else torch.get_default_dtype())


@_special(aten.erfc.default, aten.special_erfc.default)
def erfc(x: Tensor) -> Tensor:
    size = x.abs()
    scaled = _polynomial(coefficients.ERFCX, 1.0 - 7.5 / (size + 3.75)) / (size * 2.0 + 1.0)
    # exp(-x²), by a part of x whose square is exact and the rest.
    high = x.to(torch.float32).to(torch.float64)
    exact, rest = -high * high, (high - x) * (x + high)
    tail = where(size > 30.0, (-x * x).exp(), exact.exp() * rest.exp()) * scaled
    return where(size < 0.5, 1.0 - x.erf(), where(x < 0.0, 2.0 - tail, tail))


@_special(aten.erfinv.default, aten.special_erfinv.default)
def erfinv(x: Tensor) -> Tensor:
    size = x.abs()
    w = -where(size < 0.5, (-x * x).log1p(), ((1.0 - size) * (1.0 + size)).log())
    root = w.sqrt()
    near = _polynomial(coefficients.ERFINV_MID, _on(0.0, 5.0, w))
    far = _polynomial(coefficients.ERFINV_FAR, _on(math.sqrt(5), 4.0, root))
    end = _polynomial(coefficients.ERFINV_END, _on(4.0, 6.2, root))
    inverse = x * where(w < 5.0, near, where(root < 4.0, far, end))
    return where(size == 1.0, x * math.inf, where(size > 1.0, math.nan, inverse))
