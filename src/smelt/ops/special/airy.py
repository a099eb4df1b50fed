"""Airy's function Ai: its series round 0, beyond by ζ = ⅔ |x|^(3/2).

    x > 2         e^(-ζ) / x^¼ · a polynomial in 1/ζ
    -5 to -2      a polynomial in x
    x < -5        (P cos θ + Q sin θ) / (√π |x|^¼), θ = ζ - π/4, P and Q polynomials in 1/ζ²
"""

import math

import torch

from smelt.ops.special import coefficients
from smelt.ops.special.evaluate import Tensor, on, polynomial, special, where

aten = torch.ops.aten

_NEAR, _FAR = 2.0, 5.0


def _series(step: int) -> list[float]:
    """Of x³: f = 1 + x³/(2·3) + x⁶/(2·3·5·6) + …, or, by the other `step`, g/x = 1 + x³/(3·4) + …"""
    terms = [1.0]
    for k in range(1, 14):
        terms.append(terms[-1] / ((3 * k - 1 + step) * (3 * k + step)))
    return terms


@special(aten.special_airy_ai.default)
def airy_ai(x: Tensor) -> Tensor:
    cube = x * x * x
    at_zero = 1 / (3 ** (2 / 3) * math.gamma(2 / 3))
    slope = 1 / (3 ** (1 / 3) * math.gamma(1 / 3))
    near = polynomial(_series(0), cube) * at_zero - polynomial(_series(1), cube) * x * slope
    size = x.abs()
    root = size.sqrt()
    zeta = size * root * (2 / 3)
    quarter = root.sqrt()
    right = polynomial(coefficients.AIRY_RIGHT, on(0.0, 1.0, (2 / 3 * _NEAR**1.5) / zeta)) * (-zeta).exp() / quarter
    ratio = (2 / 3 * _FAR**1.5) / zeta
    square = on(0.0, 1.0, ratio * ratio)
    p = polynomial(coefficients.AIRY_P, square)
    q = polynomial(coefficients.AIRY_Q, square) / zeta
    sine, cosine = zeta.sin(), zeta.cos()
    left = (p * (sine + cosine) + q * (sine - cosine)) / (quarter * math.sqrt(2 * math.pi))
    middle = polynomial(coefficients.AIRY_LEFT, on(-_FAR, -_NEAR, x))
    left = where(x < -_FAR, left, where(x < -_NEAR, middle, near))
    return where(x > _NEAR, right, left)
