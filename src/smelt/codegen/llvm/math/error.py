"""The error function: 1 - 2^e with e = log2 erfc|x|, in a form that does not cancel near zero.

e = |x|·Q(|x|) - 2|x| is split into its nearest integer n, which is 0 or less, and a rest r; with m = 2^r - 1,
1 - 2^e = (1 - 2^n) - 2^n·m, which is -m itself where n is 0.
"""

from smelt.codegen.llvm.builder import Builder, LlvmValue
from smelt.codegen.llvm.math.polynomial import minus_two_to, polynomial_in_pairs, round_scaled

_EXPONENT = (
    1.3375621942902559e-05, -0.000169922122242102, 0.0009137437235535458, -0.002406464355244588,
    0.00023295189341497765, 0.02763112053441275, -0.1482767919301172, -0.9184476612418825, 0.37209296619615473,
)  # fmt: skip
# 2^r = 1 + r + r·P(r)
_EXP2 = (
    0.0001540351218464713, 0.0013390964332125775, 0.009618238364689604,
    0.05550357005659304, 0.24022649784102523, -0.30685281198479303,
)  # fmt: skip
_IS_ONE = 4.0


def erf(b: Builder, x: LlvmValue) -> LlvmValue:
    size = b.minimum(_IS_ONE, b.fabs(x))
    exponent = b.fma(polynomial_in_pairs(b, size, _EXPONENT), size, b.fmul(size, -2.0))
    n, held = round_scaled(b, exponent, 1.0)
    r = b.fsub(exponent, n)
    m = b.fma(polynomial_in_pairs(b, r, _EXP2), r, r)
    minus_power = minus_two_to(b, held)
    return b.copysign(b.fma(minus_power, m, b.fadd(minus_power, 1.0)), x)
