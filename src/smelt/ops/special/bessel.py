"""Bessel functions of orders 0 and 1: by series near 0, by polynomials in 1/x far from it.

    J, Y   far: √(2/πx) · (P cos χ ∓ Q sin χ), χ = x - π/4 or x - 3π/4, P and Q polynomials in 25/x²
    I      near: Σ (x²/4)ᵏ / (k! (k+n)!), which loses nothing; far: eˣ/√x · a polynomial in 8/x
    K      near: by I and a logarithm; far: e⁻ˣ/√x · a polynomial in 2/x
"""

import math

import torch

from smelt.ops.special import coefficients
from smelt.ops.special.evaluate import Function, Tensor, on, polynomial, special, where

aten = torch.ops.aten

_EULER = 0.57721566490153286


# Modified ones.


def _modified_series(order: int, quarter: Tensor, count: int) -> Tensor:
    terms = [1 / (math.factorial(k) * math.factorial(k + order)) for k in range(count)]
    return polynomial(terms, quarter)


def _scaled_i(order: int, x: Tensor) -> Tensor:
    """e⁻ˣ · I(x) of x ≥ 0."""
    near = _modified_series(order, x * x * 0.25, 30) * (-x).exp()
    near = near * x * 0.5 if order else near
    fitted = coefficients.I1_FAR if order else coefficients.I0_FAR
    return where(x < 8.0, near, polynomial(fitted, on(0.0, 1.0, 8.0 / x)) / x.sqrt())


def _i(order: int, x: Tensor, scaled: bool) -> Tensor:
    size = x.abs()
    found = _scaled_i(order, size)
    if not scaled:  # in two steps: what overflows need not
        half = (size * 0.5).exp()
        found = where(size == math.inf, math.inf, found * half * half)
    else:
        found = where(size == math.inf, 0.0, found)
    return where(x < 0.0, -found, found) if order else found


@special(aten.i0.default, aten.special_i0.default, aten.special_modified_bessel_i0.default)
def i0(x: Tensor) -> Tensor:
    return _i(0, x, scaled=False)


@special(aten.special_i0e.default)
def i0e(x: Tensor) -> Tensor:
    return _i(0, x, scaled=True)


@special(aten.special_i1.default, aten.special_modified_bessel_i1.default)
def i1(x: Tensor) -> Tensor:
    return _i(1, x, scaled=False)


@special(aten.special_i1e.default)
def i1e(x: Tensor) -> Tensor:
    return _i(1, x, scaled=True)


def _harmonic(k: int) -> float:
    return math.fsum(1 / j for j in range(1, k + 1))


def _k(order: int, x: Tensor, scaled: bool) -> Tensor:
    quarter, logarithm = x * x * 0.25, (x * 0.5).log()
    of_i = _modified_series(order, quarter, 14)
    if order:
        terms = [
            (_harmonic(k) + _harmonic(k + 1) - 2 * _EULER) / (math.factorial(k) * math.factorial(k + 1))
            for k in range(14)
        ]
        near = x.reciprocal() + logarithm * of_i * x * 0.5 - polynomial(terms, quarter) * x * 0.25
    else:
        terms = [(_harmonic(k) - _EULER) / math.factorial(k) ** 2 for k in range(14)]
        near = polynomial(terms, quarter) - logarithm * of_i
    fitted = coefficients.K1_FAR if order else coefficients.K0_FAR
    far = polynomial(fitted, on(0.0, 1.0, 2.0 / x)) / x.sqrt()
    found = where(x <= 2.0, near * x.exp(), far) if scaled else where(x <= 2.0, near, far * (-x).exp())
    found = where(x == math.inf, 0.0, found)
    return where(x == 0.0, math.inf, where(x < 0.0, math.nan, found))


@special(aten.special_modified_bessel_k0.default)
def k0(x: Tensor) -> Tensor:
    return _k(0, x, scaled=False)


@special(aten.special_modified_bessel_k1.default)
def k1(x: Tensor) -> Tensor:
    return _k(1, x, scaled=False)


@special(aten.special_scaled_modified_bessel_k0.default)
def k0e(x: Tensor) -> Tensor:
    return _k(0, x, scaled=True)


@special(aten.special_scaled_modified_bessel_k1.default)
def k1e(x: Tensor) -> Tensor:
    return _k(1, x, scaled=True)


# Those that swing.


def _far(order: int, x: Tensor, second: bool) -> Tensor:
    """J, or Y if it is the `second` kind, of x > 5."""
    w = on(0.0, 1.0, 25.0 / (x * x))
    p = polynomial(coefficients.P1 if order else coefficients.P0, w)
    q = polynomial(coefficients.Q1 if order else coefficients.Q0, w) / x
    sine, cosine = x.sin(), x.cos()
    # sin χ and cos χ times √2, from sums: χ itself would be rounded.
    sin_chi, cos_chi = (-sine - cosine, sine - cosine) if order else (sine - cosine, sine + cosine)
    swing = p * sin_chi + q * cos_chi if second else p * cos_chi - q * sin_chi
    return swing / (x * math.pi).sqrt()


def _near(fitted: tuple[float, ...], x: Tensor) -> Tensor:
    return polynomial(fitted, on(0.0, 25.0, x * x))


@special(aten.special_bessel_j0.default)
def j0(x: Tensor) -> Tensor:
    size = x.abs()
    found = where(size <= 5.0, _near(coefficients.J0_NEAR, size), _far(0, size, second=False))
    return where(size == math.inf, 0.0, found)


@special(aten.special_bessel_j1.default)
def j1(x: Tensor) -> Tensor:
    size = x.abs()
    found = where(size <= 5.0, _near(coefficients.J1_NEAR, size) * size, _far(1, size, second=False))
    return where(size == math.inf, 0.0, where(x < 0.0, -found, found))


def _y(order: int, x: Tensor, first: Function) -> Tensor:
    fitted = coefficients.Y1_NEAR if order else coefficients.Y0_NEAR
    own = _near(fitted, x) * x if order else _near(fitted, x)
    pole = x.reciprocal() if order else 0.0
    near = own + (first(x) * x.log() - pole) * (2 / math.pi)
    found = where(x <= 5.0, near, _far(order, x, second=True))
    return where(x == 0.0, -math.inf, where(x < 0.0, math.nan, found))


@special(aten.special_bessel_y0.default)
def y0(x: Tensor) -> Tensor:
    return _y(0, x, lambda x: _near(coefficients.J0_NEAR, x))


@special(aten.special_bessel_y1.default)
def y1(x: Tensor) -> Tensor:
    return _y(1, x, lambda x: _near(coefficients.J1_NEAR, x) * x)


@special(aten.special_spherical_bessel_j0.default)
def spherical_j0(x: Tensor) -> Tensor:
    found = x.sin() / x
    return where(x.abs() == math.inf, 0.0, where(x == 0.0, 1.0, found))
