"""Special functions whose number of steps data say: Hurwitz's zeta and what stands on it, the incomplete Γ functions.

    zeta(s, q)      Σ (q + k)⁻ˢ up to where q + k > 9, the rest by Euler and Maclaurin
    igamma(a, x)    a series for x < a + 1, a continued fraction beyond; each until nothing is added any more

All of it in float64.
"""

import math
from typing import Any

import torch

from smelt.chips.decompose.table import DoesNotApply, computes, in_double
from smelt.ops.special.gamma import BERNOULLI

Tensor = torch.Tensor
aten = torch.ops.aten

_HEAD = 10  # terms that are summed up one by one
_MOST = 1 << 16
_CHECK = 16  # steps between looks whether all is done


def _double(*values: Any) -> list[Tensor]:
    tensors = [value for value in values if isinstance(value, Tensor)]
    wide = [
        in_double(value)
        if isinstance(value, Tensor)
        else torch.full([], float(value), dtype=torch.float64, device=tensors[0].device)
        for value in values
    ]
    return [each.contiguous() for each in torch.broadcast_tensors(*wide)]  # type: ignore[no-untyped-call]


def _result(*values: Any) -> torch.dtype:
    dtype = values[0].dtype if len(values) == 1 else torch.result_type(*values)
    return dtype if dtype.is_floating_point else torch.get_default_dtype()


def _hurwitz(s: Tensor, q: Tensor) -> Tensor:
    """Of s > 1. Where q is a negative integer, or 0, it is infinite."""
    lowest = torch.where(q.isfinite(), q, 0.0).min().item()
    count = _HEAD + max(0, math.ceil(-lowest))
    if count > _MOST:
        raise DoesNotApply("too many terms")
    total = torch.zeros_like(q)
    last = total
    for k in range(count):
        last = (q + float(k)).pow(-s)
        total = total + last
    a = q + float(count - 1)
    total = total + last * a / (s - 1.0) - last * 0.5
    term = last
    for k, number in enumerate(BERNOULLI, 1):
        # s (s + 1) … (s + 2k - 2) / a²ᵏ⁻¹ · B₂ₖ / (2k)!
        term = term * s / a if k == 1 else term * (s + float(2 * k - 3)) * (s + float(2 * k - 2)) / (a * a)
        total = total + term * (number / math.factorial(2 * k))
    total = torch.where(q == math.inf, 0.0, total)
    return torch.where((q <= 0.0) & (q == q.floor()), math.inf, total)


@computes(aten.special_zeta.default, aten.special_zeta.self_scalar, aten.special_zeta.other_scalar)
def zeta(x: Any, q: Any) -> Tensor:
    s, start = _double(x, q)
    found = _hurwitz(s, start)
    found = torch.where((start < 0.0) & (start != start.floor()) & (s != s.floor()), math.nan, found)
    found = torch.where(s == 1.0, math.inf, torch.where(s < 1.0, math.nan, found))
    return found.to(_result(x, q))


@computes(aten.polygamma.default)
def polygamma(n: int, x: Tensor) -> Tensor:
    if n == 0:
        return torch.digamma(x)
    if n < 2:
        raise DoesNotApply("a kernel computes that")
    s, start = _double(float(n + 1), x)
    sign = 1.0 if n % 2 else -1.0
    return (_hurwitz(s, start) * (sign * math.gamma(n + 1))).to(_result(x))


# Incomplete Γ functions.


def _by_series(a: Tensor, x: Tensor) -> Tensor:
    """Σ xᵏ / ((a + 1) … (a + k)), from 1."""
    term = torch.ones_like(x)
    total = term
    for k in range(1, _MOST):
        term = term * x / (a + float(k))
        total = total + term
        if k % _CHECK == 0 and not bool((term > total * 1e-17).any().item()):
            return total
    raise DoesNotApply("the series does not end")


def _by_fraction(a: Tensor, x: Tensor) -> Tensor:
    """1 / (x + 1 - a - 1 (1 - a) / (x + 3 - a - …)), by Lentz."""
    b = x + 1.0 - a
    c = torch.full_like(x, 1e300)
    d = b.reciprocal()
    found = d
    for k in range(1, _MOST):
        factor = (a - float(k)) * float(k)
        b = b + 2.0
        d = (factor * d + b).reciprocal()
        c = b + factor / c
        change = c * d
        found = found * change
        if k % _CHECK == 0 and not bool(((change - 1.0).abs() > 1e-15).any().item()):
            return found
    raise DoesNotApply("the fraction does not end")


def _shares(a: Any, x: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The lower part and the upper one, of a and x in float64."""
    a, x = _double(a, x)
    usual = (a > 0.0) & (x > 0.0) & a.isfinite() & x.isfinite()
    lower = usual & (x < a + 1.0)
    some_a, some_x = torch.where(lower, a, 1.0), torch.where(lower, x, 0.5)
    other_a, other_x = torch.where(usual & ~lower, a, 1.0), torch.where(usual & ~lower, x, 4.0)
    safe_a, safe_x = torch.where(usual, a, 1.0), torch.where(usual, x, 1.0)
    front = (safe_a * safe_x.log() - safe_x - torch.lgamma(safe_a)).exp()
    below = _by_series(some_a, some_x) * front / safe_a
    above = _by_fraction(other_a, other_x) * front
    return torch.where(lower, below, 1.0 - above), torch.where(lower, 1.0 - below, above), a, x


def _edges(found: Tensor, a: Tensor, x: Tensor, none: float, all_of_it: float) -> Tensor:
    found = torch.where(x == math.inf, all_of_it, found)
    found = torch.where(a == math.inf, torch.where(x == math.inf, math.nan, none), found)
    found = torch.where(x == 0.0, none, found)
    found = torch.where(a == 0.0, torch.where(x > 0.0, all_of_it, math.nan), found)
    return torch.where((x < 0.0) | (a < 0.0) | x.isnan() | a.isnan(), math.nan, found)


@computes(aten.igamma.default, aten.special_gammainc.default)
def igamma(a: Tensor, x: Tensor) -> Tensor:
    found, _, wide_a, wide_x = _shares(a, x)
    return _edges(found, wide_a, wide_x, 0.0, 1.0).to(_result(a, x))


@computes(aten.igammac.default, aten.special_gammaincc.default)
def igammac(a: Tensor, x: Tensor) -> Tensor:
    _, found, wide_a, wide_x = _shares(a, x)
    return _edges(found, wide_a, wide_x, 1.0, 0.0).to(_result(a, x))
