"""Fit the polynomials of `smelt.codegen.loops.math`: prints each table of coefficients with its largest weighted error.

    python tools/fit_math.py

A fit is a weighted least-squares problem solved again and again with weights raised where the error is largest
(Lawson's method), which tends to the polynomial whose largest error is smallest. Fits are in float64, far finer than
the float32 results they serve. Those for float64 results are Chebyshev's, in fifty digits.
"""

from collections.abc import Callable

import mpmath
import numpy as np
import torch

Function = Callable[[np.ndarray], np.ndarray]


def fit(name: str, function: Function, low: float, high: float, degree: int, weight: Function) -> None:
    """Print the polynomial p of `degree` that makes max |weight * (p - function)| on [low, high] smallest."""
    nodes = np.cos(np.pi * (np.arange(4000) + 0.5) / 4000)
    x = (high + low) / 2 + (high - low) / 2 * nodes
    y, w = function(x), weight(x)
    center, half = (high + low) / 2, (high - low) / 2
    basis = np.polynomial.chebyshev.chebvander((x - center) / half, degree)
    lawson = np.ones_like(x)
    best: tuple[float, np.ndarray] | None = None
    for _ in range(300):
        scale = np.sqrt(lawson) * w
        solved = np.linalg.lstsq(basis * scale[:, None], y * scale, rcond=None)[0]
        error = np.abs(w * (basis @ solved - y))
        if best is None or error.max() < best[0]:
            best = (float(error.max()), solved)
        lawson = lawson * (error + 1e-30)
        lawson /= lawson.mean()
    assert best is not None
    power = np.polynomial.chebyshev.Chebyshev(best[1], domain=[low, high]).convert(kind=np.polynomial.Polynomial)
    print(f"{name} = (  # largest error {best[0]:.2g} on [{low:g}, {high:g}], highest power first")
    for coefficient in power.coef[::-1]:
        print(f"    {coefficient!r},".replace("np.float64(", "").replace("),", ","))
    print(")")


def series(terms: Callable[[int], float], start: int, x: np.ndarray, count: int = 40) -> np.ndarray:
    """Σ terms(k) x^(k - start) from k = start, for functions that cancel near zero."""
    total = np.zeros_like(x)
    for k in reversed(range(start, start + count)):
        total = total * x + terms(k)
    return total


def one(x: np.ndarray) -> np.ndarray:
    return np.ones_like(x)


def torched(function: Callable[[torch.Tensor], torch.Tensor]) -> Function:
    return lambda x: function(torch.from_numpy(np.ascontiguousarray(x))).numpy()


def main() -> None:
    factorial = np.cumprod([1.0, *range(1, 80)])
    half_ln2 = np.log(2) / 2 * 1.001
    # exp(r) = 1 + r + r² P(r)
    fit("EXP", lambda x: series(lambda k: 1 / factorial[k], 2, x), -half_ln2, half_ln2, 4, lambda x: x * x / np.exp(x))
    # expm1(r) = r + r² P(r), relative to r
    fit("EXPM1", lambda x: series(lambda k: 1 / factorial[k], 2, x), -half_ln2, half_ln2, 5, np.abs)
    # 2^r = 1 + r P(r)
    ln2 = np.log(2)
    exp2 = lambda x: series(lambda k: ln2**k / factorial[k], 1, x)  # noqa: E731
    fit("EXP2", exp2, -0.501, 0.501, 5, lambda x: np.abs(x) / 2**x)
    # log(1 + f) = f - f²/2 + f³ P(f)
    fit(
        "LOG",
        lambda x: series(lambda k: (-1) ** (k + 1) / k, 3, x, 200),
        np.sqrt(0.5) - 1, np.sqrt(2) - 1, 7, lambda x: np.abs(x**3 / np.log1p(x)),
    )  # fmt: skip
    # sin(r) = r + r³ P(r²), cos(r) = 1 - r²/2 + r⁴ P(r²), in s = r²
    quarter = (np.pi / 4 * 1.01) ** 2
    fit("SIN", lambda s: series(lambda k: (-1) ** k / factorial[2 * k + 1], 1, s, 20), 0, quarter, 2, lambda s: s)
    fit("COS", lambda s: series(lambda k: (-1) ** k / factorial[2 * k], 2, s, 20), 0, quarter, 2, lambda s: s * s)
    # log2 erfc(a) = a P(a) - 2 a, weighed by what it does to erf; 2^r = 1 + r + r P(r)
    erf = torched(torch.erf)
    erfc = torched(torch.special.erfc)
    at_zero = lambda a: 2 - 2 / np.sqrt(np.pi) / ln2 * (1 + a / np.sqrt(np.pi))  # noqa: E731
    exponent = lambda a: np.where(a < 1e-4, at_zero(a), 2 + np.log2(erfc(a)) / a)  # noqa: E731
    fit("ERF_EXPONENT", exponent, 1e-6, 4.0, 8, lambda a: ln2 * a * erfc(a) / erf(a))
    fit("ERF_EXP2", lambda x: exp2(x) - 1, -0.501, 0.501, 5, lambda x: 1 / np.abs(exp2(x)))
    # 2 Φ(-a) = 2^(a P(a) - a), and Φ(-a) = e^(-a²/2) (a P(a) + 1/2)
    share, erfcx = torched(torch.special.ndtr), torched(torch.special.erfcx)
    bell = lambda a: np.exp(-a * a / 2)  # noqa: E731
    exponent = lambda a: 1 + (np.log2(share(-a)) + 1) / a  # noqa: E731
    fit("SHARE_EXPONENT", exponent, 1e-6, 6.0, 8, lambda a: ln2 * a * share(-a) * np.maximum(1, a))
    tail = lambda a: (erfcx(a / np.sqrt(2)) - 1) / (2 * a)  # noqa: E731
    fit("SHARE_TAIL", tail, 1e-6, 6.0, 11, lambda a: a * bell(a))
    # Double precision for pow: log2(m) = f P(f) with f = (m - 1) / (m + 1) in s = f², and 2^r
    span = (np.sqrt(2) - 1) / (np.sqrt(2) + 1)
    atanh = lambda s: 2 / np.log(2) * series(lambda k: 1 / (2 * k + 1), 0, s, 60)  # noqa: E731
    fit("POW_LOG2", atanh, 0, span**2 * 1.001, 5, one)
    fit("POW_EXP2", exp2, -0.501, 0.501, 6, np.abs)
    main_wide()


def fit_wide(name: str, term: Callable[[int], mpmath.mpf], start: int, low: float, high: float, count: int) -> None:
    """Print `count` coefficients for Σ term(k) x^(k - start) from k = start, on [low, high]."""
    function = lambda x: mpmath.fsum(term(k) * x ** (k - start) for k in range(start, start + 100))  # noqa: E731
    _chebyshev(name, function, low, high, count)


def _chebyshev(name: str, function: Callable[[mpmath.mpf], mpmath.mpf], low: float, high: float, count: int) -> None:
    found, error = mpmath.chebyfit(function, [low, high], count, error=True)
    print(f"{name} = (  # largest error {mpmath.nstr(error, 2)} on [{low:g}, {high:g}], highest power first")
    for coefficient in found:
        print(f"    {float(coefficient)!r},")
    print(")")


def main_wide() -> None:
    """The same functions for float64."""
    mpmath.mp.dps = 50
    half = float(mpmath.log(2) / 2) * 1.001
    fit_wide("EXP_WIDE", lambda k: 1 / mpmath.factorial(k), 2, -half, half, 10)
    fit_wide("EXPM1_WIDE", lambda k: 1 / mpmath.factorial(k), 2, -half, half, 11)
    fit_wide("EXP2_WIDE", lambda k: mpmath.log(2) ** k / mpmath.factorial(k), 1, -0.5005, 0.5005, 12)
    span = ((2**0.5 - 1) / (2**0.5 + 1)) ** 2 * 1.002
    fit_wide("LOG_OF_QUOTIENT", lambda k: mpmath.mpf(2) / (2 * k + 1), 1, 0, span, 8)
    quarter = (np.pi / 4 * 1.001) ** 2
    fit_wide("SIN_WIDE", lambda k: (-1) ** k / mpmath.factorial(2 * k + 1), 1, 0, quarter, 6)
    fit_wide("COS_WIDE", lambda k: (-1) ** k / mpmath.factorial(2 * k), 2, 0, quarter, 6)
    # erf(x) = x + x P(x²) up to one, 1 - e^(-x²) P((x - 3) / (x + 3)) from there to six
    near = lambda s: mpmath.erf(mpmath.sqrt(s)) / mpmath.sqrt(s) - 1 if s else 2 / mpmath.sqrt(mpmath.pi) - 1  # noqa: E731
    _chebyshev("ERF_NEAR", near, 0, 1, 12)
    back = lambda t: 3 * (1 + t) / (1 - t)  # noqa: E731
    _chebyshev("ERF_TAIL", lambda t: mpmath.exp(back(t) ** 2) * mpmath.erfc(back(t)), -1 / 2, 1 / 3, 16)
    # log2 m = 2 / ln 2 (s + s³/3 + s⁵ P(s²)) with s = (m - 1) / (m + 1), for pow
    fit_wide("POW_LOG2_WIDE", lambda k: mpmath.mpf(1) / (2 * k + 1), 2, 0, span, 8)
    # atan(t) = t + t s P(s) in s = t², for `smelt.ops.math_functions`
    atan = lambda s: (mpmath.atan(mpmath.sqrt(s)) / mpmath.sqrt(s) - 1) / s if s else -mpmath.mpf(1) / 3  # noqa: E731
    _chebyshev("ATAN", atan, 0, 1, 9)
    _chebyshev("ATAN_WIDE", atan, 0, 1, 20)


if __name__ == "__main__":
    main()
