"""ln Γ and its derivatives.

    0.5 … 1.5     t · P(t), t = x - 1               up to 8    by factors x - 1, x - 2, … from there
    beyond        Stirling's series                  below 0    by reflection
"""

import math
from typing import Any

import torch

from smelt.ops.decompose.table import decomposes
from smelt.ops.special import coefficients
from smelt.ops.special.evaluate import TABLE, Tensor, of_pi, on, polynomial, special, where

aten = torch.ops.aten

# B₂ₖ, from k = 1.
BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)
_FAR = 10  # from where the series in 1/x are exact to the last bit


def _series(terms: list[float], x: Tensor) -> Tensor:
    """Σ termsₖ / x²ᵏ."""
    return polynomial(terms, (x * x).reciprocal())


def _at_least_half(x: Tensor) -> Tensor:
    """Of x from 0.5 up."""
    steps = ((x - 2.0).round()).clamp(0.0, 6.0)
    factors = where(steps >= 1.0, x - 1.0, 1.0)
    for k in range(2, 7):
        factors = factors * where(steps >= float(k), x - float(k), 1.0)
    near = x - steps  # 0.5 to 2.5
    upper = near > 1.5
    t = near - where(upper, 2.0, torch.ones_like(near))
    found = t * polynomial(coefficients.LGAMMA, on(-0.5, 0.5, t)) + where(upper, t, 0.0).log1p() + factors.log()
    terms = [b / (2 * k * (2 * k - 1)) for k, b in enumerate(BERNOULLI, 1)]
    correction = _series(terms, x) / x + (0.5 * math.log(2 * math.pi) - 0.5)
    return where(x < 8.5, found, (x - 0.5) * (x.log() - 1.0) + correction)


@special(aten.lgamma.default)
def lgamma(x: Tensor) -> Tensor:
    size = x.abs()
    small = size < 0.5
    of_size = _at_least_half(where(small, size + 1.0, size)) - where(small, size.log(), 0.0)
    reflected = math.log(math.pi) - (size * of_pi(size).abs()).log() - of_size
    return where(size == math.inf, math.inf, where(x < 0.0, reflected, of_size))


@special(aten.digamma.default, aten.special_digamma.default)
def digamma(x: Tensor) -> Tensor:
    """At negative integers it is no number, at 0 infinite with the other sign."""
    turned = where(x < 0.5, 1.0 - x, x)
    low = turned < float(_FAR)
    steps = turned.reciprocal()
    for k in range(1, _FAR):
        steps = steps + (turned + float(k)).reciprocal()
    far = where(low, turned + float(_FAR), turned)
    terms = [b / (2 * k) for k, b in enumerate(BERNOULLI, 1)]
    found = far.log() - far.reciprocal() * 0.5 - _series(terms, far) / (far * far) - where(low, steps, 0.0)
    angle = (x - x.round()) * math.pi
    found = where(x < 0.5, found - angle.cos() / angle.sin() * math.pi, found)
    pole = where(x == 0.0, where(x.signbit(), torch.full_like(x, math.inf), -math.inf), math.nan)
    return where((x <= 0.0) & (x == x.floor()), pole, found)


def trigamma(x: Tensor) -> Tensor:
    turned = where(x < 0.5, 1.0 - x, x)
    low = turned < float(_FAR)
    steps = (turned * turned).reciprocal()
    for k in range(1, _FAR):
        next_one = turned + float(k)
        steps = steps + (next_one * next_one).reciprocal()
    far = where(low, turned + float(_FAR), turned)
    once = far.reciprocal()
    found = once + once * once * 0.5 + _series(list(BERNOULLI), far) * once * once * once + where(low, steps, 0.0)
    sine = of_pi(x) * (1 / math.pi)
    return where(x < 0.5, (sine * sine).reciprocal() - found, found)


def _polygamma(n: int, x: Tensor) -> Any:
    if n != 1 or x.is_complex():
        return NotImplemented
    return trigamma(x.to(torch.float64)).to(x.dtype if x.is_floating_point() else torch.get_default_dtype())


decomposes(aten.polygamma.default, table=TABLE)(_polygamma)
