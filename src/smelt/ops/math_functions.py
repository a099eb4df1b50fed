"""Records of functions that are written with simpler ones: arcs, tan, and the hyperbolic ones but tanh.

    asin(x) → atan(x / sqrt((1 - x) · (1 + x)))        sinh(x) → (m + m / (m + 1)) / 2 with m = expm1(x)

Each within three units in the last place of the truth over its whole range (docs/math.md); signs of zero, infinities
and NaN come out as PyTorch's do.
"""

import math
from collections.abc import Callable

import torch

from smelt.ops.pointwise import declare, value
from smelt.ops.record import TRANSCENDENTAL, Emitter, Scalar

aten = torch.ops.aten

# atan(t) = t + t s P(s) in s = t² on [0, 1], highest power first; tools/fit_math.py fits them.
_ATAN = {
    torch.float32: (
        -0.002386997316724113,
        0.013507771427020535,
        -0.03587153898204336,
        0.06250169444749563,
        -0.08656880430154522,
        0.11033764115313455,
        -0.14278568748210602,
        0.1999973932983558,
        -0.3333333173306352,
    ),
    torch.float64: (
        1.806195461861215e-05,
        -0.00019996189377901382,
        0.0010496035084968515,
        -0.0034958859739163094,
        0.008368931178450162,
        -0.015535152475414177,
        0.023696731580048622,
        -0.031277189066996385,
        0.03749486812535247,
        -0.04260356632601652,
        0.04737749579527779,
        -0.052579733342841106,
        0.05881506877793656,
        -0.06666564699289104,
        0.07692298971033217,
        -0.09090908590891934,
        0.11111111093490827,
        -0.14285714285384132,
        0.1999999999999753,
        -0.3333333333333333,
    ),
}
# What π/2 is more than the nearest number of each dtype, and above which exp is squared, not to overflow too soon.
_BEYOND = {torch.float32: -4.371139000186241e-08, torch.float64: 6.123233995736766e-17}
_LARGE = {torch.float32: 80.0, torch.float64: 700.0}
_HUGE = {torch.float32: 1e8, torch.float64: 1e16}  # beside its square one does not count


class _Writer:
    """Arithmetic on scalars and numbers, in the dtype of the result."""

    def __init__(self, e: Emitter) -> None:
        self.e = e

    def __call__(self, name: str, *operands: Scalar | float) -> Scalar:
        return self.e.op(name, *(value(self.e, each, self.e.result) for each in operands))

    def chosen(self, condition: Scalar, yes: Scalar | float, no: Scalar | float) -> Scalar:
        return self.e.op("where", condition, *(value(self.e, each, self.e.result) for each in (yes, no)))

    def signed(self, like: Scalar, x: Scalar) -> Scalar:
        """`x`, which is above zero, with the sign of something else; zero where that is."""
        return self.chosen(self("eq", like, 0.0), like, self.chosen(self("lt", like, 0.0), self("neg", x), x))

    def is_negative(self, x: Scalar) -> Scalar:
        """Minus zero is too."""
        return self("lt", self.chosen(self("eq", x, 0.0), self("reciprocal", x), x), 0.0)

    # Arcs.

    def small_arc(self, t: Scalar) -> Scalar:
        """The arc whose tangent is t, between -1 and 1."""
        square = self("mul", t, t)
        first, *rest = _ATAN[self.e.result]
        total: Scalar | float = first
        for coefficient in rest:
            total = self("fma", total, square, coefficient)
        arc = self("fma", self("mul", t, square), total, t)
        return self.chosen(self("eq", t, 0.0), t, arc)  # minus zero would have lost its sign

    def quarter_less(self, arc: Scalar, sign: Scalar | None = None) -> Scalar:
        """π/2 minus an arc; -π/2 minus it where `sign`."""
        quarter, beyond = math.pi / 2, _BEYOND[self.e.result]
        if sign is None:
            return self("add", self("sub", quarter, arc), beyond)
        ends = self.chosen(sign, -quarter, quarter), self.chosen(sign, -beyond, beyond)
        return self("add", self("sub", ends[0], arc), ends[1])

    def atan(self, x: Scalar) -> Scalar:
        steep = self("gt", self("abs", x), 1.0)
        arc = self.small_arc(self.chosen(steep, self("reciprocal", x), x))
        return self.chosen(steep, self.quarter_less(arc, self("lt", x, 0.0)), arc)

    def atan2(self, y: Scalar, x: Scalar) -> Scalar:
        up, along = self("abs", y), self("abs", x)
        less, more = self("minimum", up, along), self("maximum", up, along)
        t = self.chosen(self("eq", less, more), 1.0, self("div", less, more))  # infinite ones have no quotient
        arc = self.small_arc(self.chosen(self("eq", more, 0.0), 0.0, t))
        arc = self.chosen(self("gt", up, along), self.quarter_less(arc), arc)
        beyond = 2 * _BEYOND[self.e.result]
        arc = self.chosen(self.is_negative(x), self("add", self("sub", math.pi, arc), beyond), arc)
        return self.chosen(self.is_negative(y), self("neg", arc), arc)

    def asin(self, x: Scalar) -> Scalar:
        cosine = self("sqrt", self("mul", self("sub", 1.0, x), self("add", 1.0, x)))
        return self.atan(self("div", x, cosine))

    def acos(self, x: Scalar) -> Scalar:
        half = self("sqrt", self("div", self("sub", 1.0, x), self("add", 1.0, x)))
        return self("mul", self.atan(half), 2.0)

    def tan(self, x: Scalar) -> Scalar:
        return self("div", self("sin", x), self("cos", x))

    # Hyperbolic functions.

    def half_power(self, x: Scalar) -> Scalar:
        """exp(x) / 2, which is finite a little further than exp(x)."""
        root = self("exp", self("mul", x, 0.5))
        return self("mul", self("mul", root, 0.5), root)

    def sinh(self, x: Scalar) -> Scalar:
        size = self("abs", x)
        more = self("expm1", size)
        half = self("mul", self("add", more, self("div", more, self("add", more, 1.0))), 0.5)
        far = self("gt", size, _LARGE[self.e.result])
        return self.signed(x, self.chosen(far, self.half_power(size), half))

    def cosh(self, x: Scalar) -> Scalar:
        size = self("abs", x)
        power = self("exp", size)
        half = self("mul", self("add", power, self("reciprocal", power)), 0.5)
        return self.chosen(self("gt", size, _LARGE[self.e.result]), self.half_power(size), half)

    def log_of_double(self, x: Scalar) -> Scalar:
        return self("add", self("log", x), math.log(2))

    def asinh(self, x: Scalar) -> Scalar:
        size = self("abs", x)
        square = self("mul", size, size)
        root = self("add", self("sqrt", self("add", square, 1.0)), 1.0)
        near = self("log1p", self("add", size, self("div", square, root)))
        far = self("gt", size, _HUGE[self.e.result])
        return self.signed(x, self.chosen(far, self.log_of_double(size), near))

    def acosh(self, x: Scalar) -> Scalar:
        more = self("sub", x, 1.0)
        root = self("sqrt", self("mul", more, self("add", more, 2.0)))
        near = self.chosen(self("lt", more, 0.0), math.nan, self("log1p", self("add", more, root)))
        return self.chosen(self("gt", x, _HUGE[self.e.result]), self.log_of_double(x), near)

    def atanh(self, x: Scalar) -> Scalar:
        size = self("abs", x)
        apart = self("sub", self("log1p", size), self("log1p", self("neg", size)))
        return self.signed(x, self("mul", apart, 0.5))


def _emit(write: Callable[..., Scalar]) -> Callable[..., Scalar]:
    def emit(e: Emitter, *operands: Scalar) -> Scalar:
        return write(_Writer(e), *(value(e, each, e.result) for each in operands))

    return emit


for _name in ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "sinh", "tan"):
    declare(getattr(aten, _name).default, emit=_emit(getattr(_Writer, _name)), cost=2 * TRANSCENDENTAL)
declare(aten.atan2.default, emit=_emit(_Writer.atan2), cost=2 * TRANSCENDENTAL)
