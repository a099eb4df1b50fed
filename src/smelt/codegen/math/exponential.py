"""exp and its kin: x = n·ln 2 + r with |r| ≤ ln 2 / 2, then e^x = 2^n · e^r."""

from smelt.codegen.builder import Builder, Value
from smelt.codegen.math.polynomial import (
    LN2_HI,
    LN2_LO,
    LOG2E,
    polynomial,
    round_scaled,
    scale_by_two_to,
    two_to,
)

_EXP = (0.001381446684840989, 0.008368780418339905, 0.041668394215126255, 0.16666520107742225, 0.4999999341248117)
_EXPM1 = (
    0.00019914302254296163, 0.0013941102244552992, 0.008333272830892321,
    0.04166635353887972, 0.1666666681789997, 0.5000000046664702,
)  # fmt: skip
_EXP2 = (
    0.0001535315388900615, 0.0013399132577278355, 0.009618439847934646,
    0.05550331853996608, 0.24022647880062076, 0.6931472031154394,
)  # fmt: skip
_TANH = (
    -0.0059058683609787095, 0.02080538455221115, -0.05378668356451599, 0.1333195824270135, -0.33333299272072237,
)  # fmt: skip
_TANH_NEAR = 0.6
_TANH_IS_ONE = 9.5


def _reduced(b: Builder, x: Value) -> tuple[Value, Value]:
    """r and the bits holding n."""
    n, held = round_scaled(b, x, LOG2E)
    return b.fma(n, -LN2_LO, b.fma(n, -LN2_HI, x)), held


def _exp_of_reduced(b: Builder, r: Value) -> Value:
    return b.fma(b.fma(polynomial(b, r, _EXP), r, 1.0), r, 1.0)


def exp(b: Builder, x: Value) -> Value:
    inside = b.maximum(-104.0, b.minimum(89.0, x))  # beyond these the result is 0 or infinity anyway
    r, held = _reduced(b, inside)
    return scale_by_two_to(b, _exp_of_reduced(b, r), held)


def exp_moderate(b: Builder, x: Value) -> Value:
    """exp where the caller knows that |x| ≤ 87."""
    r, held = _reduced(b, x)
    return b.fmul(_exp_of_reduced(b, r), two_to(b, held))


def exp2(b: Builder, x: Value) -> Value:
    inside = b.maximum(-151.0, b.minimum(129.0, x))
    n, held = round_scaled(b, inside, 1.0)
    r = b.fsub(inside, n)
    return scale_by_two_to(b, b.fma(polynomial(b, r, _EXP2), r, 1.0), held)


def expm1(b: Builder, x: Value) -> Value:
    """2^n·expm1(r) + (2^n - 1), at half size so that 2^128 does not overflow; tiny x is its own answer."""
    inside = b.maximum(-18.0, b.minimum(89.0, x))
    r, held = _reduced(b, inside)
    small = b.fma(b.fmul(r, r), polynomial(b, r, _EXPM1), r)
    half = two_to(b, b.sub(held, 1))
    halved = b.fma(half, small, b.fsub(half, 0.5))
    return b.select(b.fcmp("olt", b.fabs(x), 2.0**-25), x, b.fadd(halved, halved))


def _exp_of_negative(b: Builder, x: Value) -> Value:
    """exp for x ≤ 0, a fifth of an ulp closer than `exp`: what rounding r lost is put back."""
    inside = b.maximum(-104.0, x)
    n, held = round_scaled(b, inside, LOG2E)
    high = b.fma(n, -LN2_HI, inside)
    r = b.fma(n, -LN2_LO, high)
    lost = b.fma(n, -LN2_LO, b.fsub(high, r))
    curved = b.fma(b.fmul(r, r), polynomial(b, r, _EXP), lost)
    return scale_by_two_to(b, b.fadd(b.fadd(r, curved), 1.0), held)


def sigmoid(b: Builder, x: Value) -> Value:
    """From e = exp(-|x|), which cannot overflow: 1 / (1 + e) on the right, e / (1 + e) on the left.

    What rounding 1 + e lost is made good by a first-order term, in which a line stands for 1 / (1 + e).
    """
    small = _exp_of_negative(b, b.fneg(b.fabs(x)))
    below = b.fadd(small, 1.0)
    quotient = b.fdiv(b.select(b.fcmp("oge", x, 0.0), 1.0, small), below)
    lost = b.fsub(small, b.fsub(below, 1.0))
    return b.fma(b.fmul(lost, b.fma(below, 0.5, -1.47)), quotient, quotient)


def tanh(b: Builder, x: Value) -> Value:
    """An odd polynomial near zero, 1 - 2 / (exp(2|x|) + 1) further out, and the sign of x at the end."""
    size = b.fabs(x)
    square = b.fmul(size, size)
    near = b.fma(b.fmul(polynomial(b, square, _TANH), square), size, size)
    limited = b.minimum(_TANH_IS_ONE, size)
    grown = exp_moderate(b, b.fadd(limited, limited))
    far = b.fsub(1.0, b.fdiv(2.0, b.fadd(grown, 1.0)))
    return b.copysign(b.select(b.fcmp("olt", size, _TANH_NEAR), near, far), x)
