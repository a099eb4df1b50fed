"""Fit the polynomials of `smelt.ops.decompose.library_free.special`: writes special_coefficients.py beside it.

    python tools/fit_special.py

A fit is a Chebyshev expansion in 45 digits, as far as its terms are above 1e-17 of the first, as a polynomial in t from
-1 to 1. Each is evaluated in float64 beside the function itself; the largest relative error is printed.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mpmath as mp  # type: ignore[import-untyped]

mp.mp.dps = 45
Function = Callable[[Any], Any]
_NODES = 64


def chebyshev(f: Function, low: Any, high: Any) -> list[Any]:
    nodes = [mp.cos(mp.pi * (mp.mpf(k) + 0.5) / _NODES) for k in range(_NODES)]
    values = [f((high - low) * x / 2 + (low + high) / 2) for x in nodes]
    found = [
        mp.fsum(values[k] * mp.cos(mp.pi * j * (mp.mpf(k) + 0.5) / _NODES) for k in range(_NODES)) * 2 / _NODES
        for j in range(48)
    ]
    found[0] /= 2
    return found[: max(j for j, each in enumerate(found) if abs(each) > mp.mpf(10) ** -17 * abs(found[0])) + 1]


def powers(series: Sequence[Any]) -> list[Any]:
    """A sum of Chebyshev polynomials by powers of t."""
    before, now = [mp.mpf(1)], [mp.mpf(0), mp.mpf(1)]
    found = [mp.mpf(0)] * len(series)
    for j, factor in enumerate(series):
        for i, each in enumerate(before if j == 0 else now):
            found[i] += factor * each
        if j:
            after = [mp.mpf(0)] + [2 * each for each in now]
            for i, each in enumerate(before):
                after[i] -= each
            before, now = now, after
    return found


def fit(f: Function, low: Any, high: Any) -> tuple[list[float], float]:
    """The coefficients, lowest first, and the largest relative error of their polynomial in float64."""
    low, high = mp.mpf(low), mp.mpf(high)
    found = [float(each) for each in powers(chebyshev(f, low, high))]
    worst = mp.mpf(0)
    for k in range(1, 200):
        t = k / 100 - 1
        value = 0.0
        for each in reversed(found):
            value = value * t + each
        true = f((high - low) * mp.mpf(t) / 2 + (low + high) / 2)
        worst = max(worst, abs((value - true) / true))
    return found, float(worst)


def halley(function: Function, density: Function, curve: float, y: Any) -> Any:
    """The root of a share of the normal distribution, from `y` on."""
    while True:
        step = function(y) / density(y)
        step = step / (1 + curve * y * step)
        y -= step
        if abs(step) < mp.mpf(10) ** -38:
            return y


def scaled_erfc(t: Any) -> Any:
    x = mp.mpf(3.75) * (1 + t) / (1 - t)
    return (1 + 2 * x) * mp.exp(x * x) * mp.erfc(x)


def inverse_erf(root: Any) -> Any:
    """erfinv(x) / x where -ln(1 - x²) is the square of `root`."""
    w = root * root
    x = mp.sqrt(-mp.expm1(-w))
    if w < 0.5:
        return mp.erfinv(x) / x if w else mp.sqrt(mp.pi) / 2
    rest = mp.exp(-w) / (1 + x)
    density: Function = lambda y: -2 / mp.sqrt(mp.pi) * mp.exp(-y * y)  # noqa: E731
    return halley(lambda y: mp.erfc(y) - rest, density, 1, root * mp.mpf("0.97")) / x


FITS: dict[str, tuple[Function, Any, Any]] = {
    "LGAMMA": (lambda t: mp.loggamma(1 + t) / t if t else -mp.euler, -0.5, 0.5),
    "ERFCX": (scaled_erfc, -1, 1),
    "ERFINV_MID": (lambda w: inverse_erf(mp.sqrt(w)), 0, 5),
    "ERFINV_FAR": (inverse_erf, math.sqrt(5), 4),
    "ERFINV_END": (inverse_erf, 4, 6.2),
}

_HEAD = '''"""Polynomials of the special functions, lowest power first: written by tools/fit_special.py."""
'''


def main() -> None:
    text = _HEAD
    for name, (function, low, high) in FITS.items():
        found, error = fit(function, low, high)
        print(f"{name}: {len(found)} terms, largest relative error {error:.2g}", flush=True)
        lines, line = [], "   "
        for each in found:
            if len(line) + len(repr(each)) > 117:
                lines.append(line)
                line = "   "
            line += f" {each!r},"
        text += f"\n{name} = (\n" + "\n".join([*lines, line]) + "\n)\n"
    (Path(__file__).parent.parent / "src/smelt/ops/decompose/library_free/special_coefficients.py").write_text(text)


if __name__ == "__main__":
    main()
