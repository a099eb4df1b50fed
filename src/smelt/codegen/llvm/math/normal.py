"""The normal distribution: Φ(x), its share below x, and the slope of x · Φ(x), which is gelu.

For f64 by their definitions. For f32 from |x| and the smaller share q = Φ(-|x|), so that one polynomial will do:

    Φ(x) = ½ ± (½ - q)                       q = 2^(|x|·U(|x|) - 1)
    slope = Φ(x) + x·e^(-x²/2)/√2π           q = e^(-x²/2)·R(|x|), which is there already

Exact to a few units of 2^-25, not to so many units in the last place: far below zero Φ is zero, as PyTorch's is, which
adds erf to one, and the slope is the second term, which keeps its digits.
"""

import math

from smelt.codegen.llvm.builder import Builder, LlvmValue
from smelt.codegen.llvm.math.error import erf_wide
from smelt.codegen.llvm.math.exponential import exp2_moderate, exp_of_negative
from smelt.codegen.llvm.math.polynomial import polynomial

# U and, but for its value of ½ at zero, R.
_EXPONENT = (
    -2.334947772783572e-06, 3.3737799634500256e-05, -0.0001612937476783142, -0.00019170377174987266,
    0.00712686546401245, -0.052533613364760035, -0.4591982814745458, -1.1511060419230503,
)  # fmt: skip
_TAIL = (
    -3.2384404697883205e-07, 7.879532447196893e-06, -8.626951415617451e-05, 0.000571004443218518,
    -0.0026122887101546343, 0.009046658854042773, -0.025524804269719557, 0.061965135726824126,
    -0.13282491656460518, 0.24997738467342717, -0.3989411435536136,
)  # fmt: skip
_FAR = 6.0  # where q is nothing beside ½
_PEAK = 1.0 / math.sqrt(2.0 * math.pi)


def normal_share(b: Builder, x: LlvmValue) -> LlvmValue:
    """For f32."""
    size = b.minimum(_FAR, b.fabs(x))
    small = exp2_moderate(b, b.fma(polynomial(b, size, _EXPONENT), size, -1.0))
    return b.fadd(b.copysign(b.fsub(0.5, small), x), 0.5)


def gelu_slope(b: Builder, x: LlvmValue) -> LlvmValue:
    """For f32."""
    size = b.minimum(_FAR, b.fabs(x))
    tail = b.fma(polynomial(b, size, _TAIL), size, 0.5)
    bell = exp_of_negative(b, b.fmul(b.fmul(x, x), -0.5))
    share = b.fadd(b.copysign(b.fma(b.fneg(bell), tail, 0.5), x), 0.5)
    return b.fma(b.fmul(x, _PEAK), bell, share)


def normal_share_wide(b: Builder, x: LlvmValue) -> LlvmValue:
    """For f64."""
    return b.fmul(b.fadd(erf_wide(b, b.fmul(x, math.sqrt(0.5))), 1.0), 0.5)


def gelu_slope_wide(b: Builder, x: LlvmValue) -> LlvmValue:
    """For f64."""
    bell = b.fmul(exp_of_negative(b, b.fmul(b.fmul(x, x), -0.5)), _PEAK)
    return b.fma(x, bell, normal_share_wide(b, x))
