"""pow for f32, by way of f64: |a|^b = 2^(b · log2|a|), whose product needs more bits than a float32 has."""

from smelt.codegen.llvm.builder import Builder, LlvmValue
from smelt.codegen.llvm.math.polynomial import polynomial, round_scaled, two_to

# log2 m = f·P(f²) with f = (m - 1) / (m + 1)
_LOG2 = (
    0.2829252154499591, 0.3199039859075216, 0.41220929308377047,
    0.5770779419711093, 0.9617966941146714, 2.88539008177785,
)  # fmt: skip
_EXP2 = (
    1.5315198660396278e-05, 0.00015467365194364073, 0.0013333429754280213, 0.009618036170870042,
    0.055504109637426365, 0.2402265108043345, 0.6931471805413568,
)  # fmt: skip
_ROOT_HALF_BITS = 0x3FE6A09E667F3BCD
_MANTISSA = 0x000FFFFFFFFFFFFF
_SIGN = -0x80000000
INFINITY = float("inf")


def _log2(b: Builder, size: LlvmValue) -> LlvmValue:
    """Of a float64 that is a non-negative float32."""
    moved = b.sub(b.bits(size), _ROOT_HALF_BITS)
    m = b.from_bits(b.add(b.and_(moved, _MANTISSA), _ROOT_HALF_BITS))
    k = b.convert("sitofp", b.ashr(moved, 52), "f64")
    f = b.fdiv(b.fsub(m, 1.0), b.fadd(m, 1.0))
    result = b.fma(polynomial(b, b.fmul(f, f), _LOG2), f, k)
    bounded = b.select(b.fcmp("oeq", size, INFINITY), INFINITY, result)
    return b.select(b.fcmp("oeq", size, 0.0), -INFINITY, bounded)


def _exp2(b: Builder, x: LlvmValue) -> LlvmValue:
    """Beyond ±160 the float32 result is infinite or zero."""
    inside = b.maximum(-160.0, b.minimum(160.0, x))
    n, held = round_scaled(b, inside, 1.0)
    r = b.fsub(inside, n)
    return b.fmul(b.fma(polynomial(b, r, _EXP2), r, 1.0), two_to(b, held))


def power(b: Builder, base: LlvmValue, exponent: LlvmValue) -> LlvmValue:
    size = b.fabs(base)
    product = b.fmul(b.convert("fpext", exponent, "f64"), _log2(b, b.convert("fpext", size, "f64")))
    positive = b.convert("fptrunc", _exp2(b, product), "f32")
    whole, odd = _whole_and_odd(b, exponent)
    signed = b.or_(b.bits(positive), b.select(odd, b.and_(b.bits(base), _SIGN), 0))
    result = b.from_bits(signed)
    root = b.and_(b.fcmp("olt", base, 0.0), b.and_(b.fcmp("ogt", base, -INFINITY), b.not_(whole)))
    result = b.select(root, float("nan"), result)
    result = b.select(b.fcmp("uno", base, exponent), b.fadd(base, exponent), result)
    endless = b.and_(b.fcmp("oeq", size, 1.0), b.fcmp("oeq", b.fabs(exponent), INFINITY))
    one = b.or_(b.or_(b.fcmp("oeq", exponent, 0.0), b.fcmp("oeq", base, 1.0)), endless)
    return b.select(one, 1.0, result)


def _whole_and_odd(b: Builder, x: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
    half = b.fmul(x, 0.5)
    whole = b.fcmp("oeq", b.intrinsic("llvm.floor", x), x)
    odd = b.and_(whole, b.fcmp("one", b.intrinsic("llvm.floor", half), half))
    return whole, odd
