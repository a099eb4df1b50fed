"""Elementary functions as straight-line vector code: the same text for any number of lanes and any target.

`FLOAT32[name](b, x)` writes the function for f32, `FLOAT64` for f64. The C library is only called for f64 on processors
without fma. Accuracy, measured over the whole range, is in docs/math.md; the polynomials come from tools/fit_math.py.
"""

from collections.abc import Callable

from smelt.codegen.loops.builder import Builder
from smelt.codegen.loops.math.error import erf, erf_wide
from smelt.codegen.loops.math.exponential import exp, exp2, exp_of_negative, expm1, sigmoid, tanh, tanh_wide
from smelt.codegen.loops.math.logarithm import log, log1p, log2
from smelt.codegen.loops.math.normal import gelu_slope, gelu_slope_wide, normal_share, normal_share_wide
from smelt.codegen.loops.math.power import power, power_wide
from smelt.codegen.loops.math.trigonometry import cos, sin
from smelt.ir.loops import Value

Function = Callable[..., Value]


def sqrt(b: Builder, x: Value) -> Value:
    return b.intrinsic("sqrt", x)


def rsqrt(b: Builder, x: Value) -> Value:
    return b.fdiv(1.0, sqrt(b, x))


def reciprocal(b: Builder, x: Value) -> Value:
    return b.fdiv(1.0, x)


_EXACT: dict[str, Function] = {"sqrt": sqrt, "rsqrt": rsqrt, "reciprocal": reciprocal}

FLOAT32: dict[str, Function] = _EXACT | {
    "exp": exp, "exp2": exp2, "expm1": expm1, "sigmoid": sigmoid, "tanh": tanh,
    "log": log, "log2": log2, "log1p": log1p, "sin": sin, "cos": cos, "erf": erf, "pow": power,
    "ndtr": normal_share, "gelu_slope": gelu_slope,
}  # fmt: skip

FLOAT64: dict[str, Function] = FLOAT32 | {
    "tanh": tanh_wide, "sin": sin, "cos": cos, "erf": erf_wide, "pow": power_wide,
    "ndtr": normal_share_wide, "gelu_slope": gelu_slope_wide,
}  # fmt: skip

# Shorter ones, for arguments that are known not to be above zero.
OF_NEGATIVE: dict[str, Function] = {"exp": exp_of_negative}
