"""The normal distribution: Φ(x), its share below x, and the slope of x · Φ(x), which is gelu.

For f64 by their definitions. For f32 from |x| and the smaller share q = Φ(-|x|), so that one polynomial will do:

    Φ(x) = ½ ± (½ - q)                       q = 2^(|x|·U(|x|) - |x| - 1)
    slope = Φ(x) + x·e^(-x²/2)/√2π           q = e^(-x²/2)·(½ + |x|·R(|x|)), which is there already

½ - q is computed without the ½ that would cancel in it, so that near zero it is exact in proportion and Φ rounds once:
eager adds erf, which is, to one. Exact to a unit or two of 2^-25, not to so many units in the last place: far below
zero Φ is zero, as PyTorch's is, and the slope is the second term, which keeps its digits.

GPUs have instructions for 2^x and 1 / x. Where all floats in memory have 16 bits, both take q = e^(-x²/2)·t·T(t) there
with t = 1 / (1 + 0.4·|x|), a third of the steps, and a kernel that has both computes q once. Exact to eight units of
2^-25, twice the error of PyTorch's: nothing beside a unit of a result of 16 bits, but too much where a float32 cancels.
"""

import math

from smelt.codegen.loops.builder import Builder
from smelt.codegen.loops.math.error import erf_wide, one_minus_two_to
from smelt.codegen.loops.math.exponential import exp_of_negative
from smelt.codegen.loops.math.polynomial import LOG2E, polynomial
from smelt.ir.loops import Value

# U and R.
_EXPONENT = (
    4.4742340726731274e-07, -8.6595654509052e-06, 6.996345672369044e-05, -0.00026981409929609153,
    -8.659531780656022e-06, 0.006952732234908181, -0.05244524936882402, -0.45921909994695986, -0.1511044392764247,
)  # fmt: skip
_TAIL = (
    5.996194609280104e-08, -1.6370664180530341e-06, 2.0230783590535927e-05, -0.00015173240543269484,
    0.0007866847706808843, -0.003071954474450524, 0.00968593294218779, -0.026096288931693537, 0.06228040275961928,
    -0.13292414287725215, 0.2499926968242231, -0.39894195304801894,
)  # fmt: skip
_BESIDE_BELL = (
    0.05497000169983553, -0.24904757063812794, 0.3308007286221806,
    0.020135559137498205, 0.18602771614475597, 0.15711358974680667,
)  # fmt: skip
_BEND = 0.4
_FAR = 6.0  # where q is nothing beside ½
_PEAK = 1.0 / math.sqrt(2.0 * math.pi)


def normal_share(b: Builder, x: Value) -> Value:
    """For f32."""
    if b.target.approximates and not b.has_wide_floats:
        return b.fadd(b.copysign(b.fsub(0.5, _smaller_share(b, x)[0]), x), 0.5)
    size = b.minimum(_FAR, b.fabs(x))
    exponent = b.fma(polynomial(b, size, _EXPONENT), size, b.fneg(size))
    return b.fma(b.copysign(one_minus_two_to(b, exponent), x), 0.5, 0.5)


def gelu_slope(b: Builder, x: Value) -> Value:
    """For f32."""
    if b.target.approximates and not b.has_wide_floats:
        share, bell = _smaller_share(b, x)
        return b.fma(b.fmul(x, _PEAK), bell, b.fadd(b.copysign(b.fsub(0.5, share), x), 0.5))
    size = b.minimum(_FAR, b.fabs(x))
    fall = b.fmul(polynomial(b, size, _TAIL), size)
    bell = exp_of_negative(b, b.fmul(b.fmul(x, x), -0.5))
    distance = b.fma(b.fsub(1.0, bell), b.fadd(fall, 0.5), b.fneg(fall))
    return b.fma(b.fmul(x, _PEAK), bell, b.fadd(b.copysign(distance, x), 0.5))


def _smaller_share(b: Builder, x: Value) -> tuple[Value, Value]:
    """q and e^(-x²/2), by a GPU's instructions."""
    bell = b.power_of_two(b.fmul(b.fmul(x, x), -0.5 * LOG2E))
    t = b.near_reciprocal(b.fma(b.fabs(x), _BEND, 1.0))
    return b.fmul(b.fmul(polynomial(b, t, _BESIDE_BELL), t), bell), bell


def normal_share_wide(b: Builder, x: Value) -> Value:
    """For f64."""
    return b.fmul(b.fadd(erf_wide(b, b.fmul(x, math.sqrt(0.5))), 1.0), 0.5)


def gelu_slope_wide(b: Builder, x: Value) -> Value:
    """For f64."""
    bell = b.fmul(exp_of_negative(b, b.fmul(b.fmul(x, x), -0.5)), _PEAK)
    return b.fma(x, bell, normal_share_wide(b, x))
