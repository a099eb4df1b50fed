"""exp and its kin, for f32 and f64: x = n·ln 2 + r with |r| ≤ ln 2 / 2, then e^x = 2^n · e^r."""

from smelt.codegen.loops.builder import Builder
from smelt.codegen.loops.math.polynomial import (
    LN2,
    LOG2E,
    divided,
    polynomial,
    round_scaled,
    scale_by_two_to,
    two_to,
    without_ln2,
)
from smelt.ir.loops import Value

Table = dict[str, tuple[float, ...]]

# e^r = 1 + r + r²·P(r)
_EXP: Table = {
    "f32": (0.001381446684840989, 0.008368780418339905, 0.041668394215126255, 0.16666520107742225, 0.4999999341248117),
    "f64": (
        2.5100472505694996e-08, 2.7620201591031547e-07, 2.7557268276905696e-06, 2.4801521057868204e-05,
        0.00019841269863171557, 0.0013888888917367081, 0.008333333333330039, 0.041666666666623824,
        0.16666666666666669, 0.5000000000000001,
    ),
}  # fmt: skip
# The same, more exact near zero.
_EXPM1: Table = {
    "f32": (
        0.00019914302254296163, 0.0013941102244552992, 0.008333272830892321,
        0.04166635353887972, 0.1666666681789997, 0.5000000046664702,
    ),
    "f64": (
        2.09147553258932e-09, 2.5105312729622103e-08, 2.755727347871858e-07, 2.755725517000089e-06,
        2.480158732567746e-05, 0.0001984126987500228, 0.0013888888888883711, 0.008333333333326084,
        0.04166666666666667, 0.1666666666666667, 0.5,
    ),
}  # fmt: skip
# 2^r = 1 + r·P(r)
_EXP2: Table = {
    "f32": (
        0.0001535315388900615, 0.0013399132577278355, 0.009618439847934646,
        0.05550331853996608, 0.24022647880062076, 0.6931472031154394,
    ),
    "f64": (
        2.5729426100386435e-11, 4.4558384999982015e-10, 7.054897246767236e-09, 1.01780569717918e-07,
        1.321548680881726e-06, 1.5252733841782436e-05, 0.00015403530393370645, 0.0013333558146406295,
        0.00961812910762848, 0.055504108664821625, 0.24022650695910072, 0.6931471805599453,
    ),
}  # fmt: skip
# tanh x = x + x³·P(x²), up to where it is a half
_TANH_NEAR = (
    -0.006207429665510509, 0.021027218363240396, -0.05384227805251167, 0.1333249887169954, -0.33333315271254205,
)  # fmt: skip
_TANH_HALF = 0.55  # tanh is about a half, and so is its distance from one
_TANH_IS_ONE = {"f32": 9.5, "f64": 20.0}

# Where results are 0 and infinity: below and above these x of exp, of exp2, and -1 below this x of expm1.
_EXP_ENDS = {"f32": (-104.0, 89.0), "f64": (-746.0, 710.0)}
_EXP2_ENDS = {"f32": (-151.0, 129.0), "f64": (-1076.0, 1025.0)}
_EXPONENTS = 252.0  # of normal numbers, less the outermost ones
_MAGIC_ONE = 12582913.0  # 1.5 · 2^23 + 1: adding it rounds to a whole number, and the exponent of 2^-126 is 1
_LOG2E_HIGH, _LOG2E_LOW = 1.4426950216293335, 1.92596298909109e-08
_LN2_HIGH, _LN2_LOW = 0.693147182464599609375, -1.904654212125934e-09
_LIFT = {"f32": 64, "f64": 512}  # what 2^n is multiplied by, where n is 0 or less and may be too small by itself
_EXPM1_LOW = {"f32": -18.0, "f64": -40.0}
_EXPM1_IS_X = {"f32": 2.0**-25, "f64": 2.0**-54}


def _between(b: Builder, x: Value, ends: tuple[float, float]) -> Value:
    return b.maximum(ends[0], b.minimum(ends[1], x))


def _reduced(b: Builder, x: Value) -> tuple[Value, Value, Value]:
    """r, n, and the bits holding n."""
    n, held = round_scaled(b, x, LOG2E)
    return without_ln2(b, x, n), n, held


def _exp_of_reduced(b: Builder, r: Value, scale: float = 1.0) -> Value:
    """e^r, times a power of two."""
    upper = polynomial(b, r, [coefficient * scale for coefficient in _EXP[r.kind]])
    return b.fma(b.fma(upper, r, scale), r, scale)


def _exp_by_exp2(b: Builder, x: Value) -> Value:
    """e^x = 2^n · 2^r, where n is the whole number next to x · log2 e within what exponents reach: beyond that r is
    large, and the product becomes infinite, or rounds below the normal range."""
    among = b.saturated(b.fma(x, LOG2E / _EXPONENTS, 0.5))
    shifted = b.fma(among, _EXPONENTS, _MAGIC_ONE)  # its last bits are the exponent of 2^n
    n = b.fsub(shifted, _MAGIC_ONE + _EXPONENTS / 2)
    r = b.fma(x, _LOG2E_LOW, b.fma(x, _LOG2E_HIGH, b.fneg(n)))
    return b.fmul(b.power_of_two(r), b.from_bits(b.shl(b.bits(shifted), 23)))


def exp(b: Builder, x: Value) -> Value:
    if b.target.approximates and x.kind == "f32":
        return _exp_by_exp2(b, x)
    r, n, held = _reduced(b, _between(b, x, _EXP_ENDS[x.kind]))
    return scale_by_two_to(b, _exp_of_reduced(b, r), n, held)


def exp_of_negative(b: Builder, x: Value) -> Value:
    """exp for x ≤ 0: with e^r made smaller and 2^n larger, both are normal numbers, and their product rounds once."""
    if b.target.approximates and x.kind == "f32":
        return _exp_by_exp2(b, x)
    r, n, held = _reduced(b, b.maximum(_EXP_ENDS[x.kind][0], x))
    if b.scales(x):
        return b.scaled(_exp_of_reduced(b, r), n)
    lift = _LIFT[x.kind]
    return b.fmul(_exp_of_reduced(b, r, 2.0**-lift), two_to(b, held, lift))


def exp_of_distance(b: Builder, x: Value) -> Value:
    """exp for x ≤ 0 that is added to a number near one: results below the normal range may be zero.

    e^x = 2^t · e^r, where t is x · log2 e rounded and r, the rest, is so small that e^r is 1 + r.
    """
    if not b.target.approximates or x.kind != "f32":
        return exp_of_negative(b, x)
    x = b.maximum(_EXP_ENDS["f32"][0], x)
    t = b.fmul(x, LOG2E)
    power = b.power_of_two(t)
    return b.fma(power, b.fma(t, -_LN2_LOW, b.fma(t, -_LN2_HIGH, x)), power)


def exp2_of_two(b: Builder, x: Value, low: Value) -> Value:
    """exp2 of a sum of two, the second much smaller; any x that matters."""
    n, held = round_scaled(b, x, 1.0)
    r = b.fadd(b.fsub(x, n), low)
    return scale_by_two_to(b, b.fma(polynomial(b, r, _EXP2[x.kind]), r, 1.0), n, held)


def exp2(b: Builder, x: Value) -> Value:
    inside = _between(b, x, _EXP2_ENDS[x.kind])
    n, held = round_scaled(b, inside, 1.0)
    r = b.fsub(inside, n)
    return scale_by_two_to(b, b.fma(polynomial(b, r, _EXP2[x.kind]), r, 1.0), n, held)


def expm1(b: Builder, x: Value) -> Value:
    """2^n·expm1(r) + (2^n - 1), at half size so that the largest n does not overflow; tiny x is its own answer."""
    inside = _between(b, x, (_EXPM1_LOW[x.kind], _EXP_ENDS[x.kind][1]))
    small, held = _expm1_of_reduced(b, inside)
    half = two_to(b, b.sub(held, 1))
    halved = b.fma(half, small, b.fsub(half, 0.5))
    return b.select(b.fcmp("olt", b.fabs(x), _EXPM1_IS_X[x.kind]), x, b.fadd(halved, halved))


def _expm1_of_reduced(b: Builder, x: Value) -> tuple[Value, Value]:
    r, _, held = _reduced(b, x)
    return b.fma(b.fmul(r, r), polynomial(b, r, _EXPM1[x.kind]), r), held


def sigmoid(b: Builder, x: Value) -> Value:
    """From e = exp(-|x|), which cannot overflow: 1 / (1 + e) on the right, e / (1 + e) on the left."""
    small = exp_of_negative(b, b.copysign(x, -1.0))
    return divided(b, b.select(b.fcmp("oge", x, 0.0), 1.0, small), b.fadd(small, 1.0))


def tanh(b: Builder, x: Value) -> Value:
    """By h = expm1(2|x|) / 2, which does not cancel near zero: h / (1 + h) as h - h · h / (1 + h), where the rounding
    of the division matters less. Further out by the distance from one, 1 - 1 / (1 + h), because gradients depend on
    that distance. For f32, whose n · ln 2 needs no second part here."""
    if b.target.approximates:
        return _tanh_by_exp2(b, x)
    limited = b.minimum(_TANH_IS_ONE[x.kind], b.fabs(x))
    twice = b.fadd(limited, limited)
    n, held = round_scaled(b, twice, LOG2E)
    r = b.fma(n, -LN2, twice)
    small = b.fma(b.fmul(r, r), polynomial(b, r, _EXP[x.kind]), r)
    half = b.scaled(b.const(x.kind, 0.5, x.lanes), n) if b.scales(x) else two_to(b, held, -1)
    h = b.fma(half, small, b.fsub(half, 0.5))
    whole = b.select(b.fcmp("olt", limited, _TANH_HALF), h, 1.0)
    return b.copysign(b.fma(b.fneg(whole), divided(b, whole, b.fadd(h, 1.0)), whole), x)


def _tanh_by_exp2(b: Builder, x: Value) -> Value:
    """For f32: a polynomial near zero, and further out 1 - 2e / (1 + e) with e = exp(-2|x|)."""
    square = b.fmul(x, x)
    near = b.fma(b.fmul(x, square), polynomial(b, square, _TANH_NEAR), x)
    size = b.fabs(x)
    e = b.power_of_two(b.fmul(size, -2.0 * LOG2E))
    far = b.fma(b.fmul(e, -2.0), b.near_reciprocal(b.fadd(e, 1.0)), 1.0)
    return b.select(b.fcmp("olt", size, _TANH_HALF), near, b.copysign(far, x))


def tanh_wide(b: Builder, x: Value) -> Value:
    """For f64, by m = expm1(-2|x|), which does not cancel near zero: -m / (2 + m). Further out by the distance from
    one, 2(1 + m) / (2 + m), which is rounded once, because gradients depend on it."""
    limited = b.minimum(_TANH_IS_ONE[x.kind], b.fabs(x))
    small, held = _expm1_of_reduced(b, b.fmul(limited, -2.0))
    power = two_to(b, held)
    m = b.fma(power, small, b.fsub(power, 1.0))
    twice = b.fmul(b.fma(power, small, power), 2.0)
    near = b.fcmp("olt", limited, _TANH_HALF)
    quotient = b.fdiv(b.select(near, m, twice), b.fadd(m, 2.0))
    return b.copysign(b.select(near, quotient, b.fsub(1.0, quotient)), x)
