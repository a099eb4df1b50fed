"""The error function: 1 - 2^e with e = log2 erfc|x|, in a form that does not cancel near zero.

e = |x|·Q(|x|) - 2|x| is split into its nearest integer n, which is 0 or less, and a rest r; with m = 2^r - 1,
1 - 2^e = (1 - 2^n) - 2^n·m, which is -m itself where n is 0.

For f64 up to one x + x·P(x²), and further out 1 - e^(-x²)·T((x - 3) / (x + 3)).
"""

from smelt.codegen.loops.builder import Builder
from smelt.codegen.loops.math.exponential import exp_of_negative
from smelt.codegen.loops.math.polynomial import minus_two_to, polynomial, polynomial_in_pairs, round_scaled
from smelt.ir.loops import Value

_EXPONENT = (
    1.3375621942902559e-05, -0.000169922122242102, 0.0009137437235535458, -0.002406464355244588,
    0.00023295189341497765, 0.02763112053441275, -0.1482767919301172, -0.9184476612418825, 0.37209296619615473,
)  # fmt: skip
# 2^r = 1 + r + r·P(r)
_EXP2 = (
    0.0001540351218464713, 0.0013390964332125775, 0.009618238364689604,
    0.05550357005659304, 0.24022649784102523, -0.30685281198479303,
)  # fmt: skip
_NEAR = (
    -7.795898827002142e-10, 1.3720064546777686e-08, -1.6208483801871705e-07, 1.6447424703317362e-06,
    -1.492473690741966e-05, 0.00012055294904839707, -0.0008548325975389692, 0.0052239776071164225,
    -0.02686617064323777, 0.11283791670945006, -0.37612638903183543, 0.12837916709551256,
)  # fmt: skip
_TAIL = (
    3.381355142042904e-09, 1.2755818949624478e-06, 2.0135111426447427e-06, -8.00978093907608e-06,
    -1.2845780030775907e-05, 6.406279226046039e-05, 4.525434558991009e-05, -0.0005970624964924544,
    0.0007077464666941425, 0.004269136356961225, -0.024392499318915004, 0.07166583719747308, -0.15011593650077898,
    0.24560380171233487, -0.3262335600430372, 0.17900115118138996,
)  # fmt: skip
_IS_ONE = 4.0
_IS_ONE_WIDE = 6.0


def erf(b: Builder, x: Value) -> Value:
    size = b.minimum(_IS_ONE, b.fabs(x))
    exponent = b.fma(polynomial_in_pairs(b, size, _EXPONENT), size, b.fmul(size, -2.0))
    return b.copysign(one_minus_two_to(b, exponent), x)


def one_minus_two_to(b: Builder, exponent: Value) -> Value:
    """For f32, of an exponent that is 0 or less: as exact in proportion where that is near zero."""
    n, held = round_scaled(b, exponent, 1.0)
    r = b.fsub(exponent, n)
    m = b.fma(polynomial(b, r, _EXP2), r, r)
    minus_power = minus_two_to(b, held)
    return b.fma(minus_power, m, b.fadd(minus_power, 1.0))


def erf_wide(b: Builder, x: Value) -> Value:
    """For f64."""
    size = b.minimum(_IS_ONE_WIDE, b.fabs(x))
    square = b.fmul(size, size)
    near = b.fma(polynomial(b, square, _NEAR), size, size)
    tail = polynomial(b, b.fdiv(b.fsub(size, 3.0), b.fadd(size, 3.0)), _TAIL)
    far = b.fsub(1.0, b.fmul(exp_of_negative(b, b.fneg(square)), tail))
    return b.copysign(b.select(b.fcmp("olt", size, 1.0), near, far), x)
