"""pow: |a|^b = 2^(b · log2|a|), whose product needs more bits than the result has: for f32 those of f64, for f64 those
of two f64, of which the second is what rounding left of the first."""

from smelt.codegen.loops.builder import Builder
from smelt.codegen.loops.math.exponential import exp2_of_two
from smelt.codegen.loops.math.library import library
from smelt.codegen.loops.math.polynomial import FORMS, polynomial, round_scaled, two_to
from smelt.ir.loops import BITS, Value

# log2 m = f·P(f²) with f = (m - 1) / (m + 1)
_LOG2 = (
    0.2829252154499591, 0.3199039859075216, 0.41220929308377047,
    0.5770779419711093, 0.9617966941146714, 2.88539008177785,
)  # fmt: skip
_EXP2 = (
    1.5315198660396278e-05, 0.00015467365194364073, 0.0013333429754280213, 0.009618036170870042,
    0.055504109637426365, 0.2402265108043345, 0.6931471805413568,
)  # fmt: skip
# log2 m = 2 / ln 2 · (s + s³/3 + s⁵·P(s²)) with s = (m - 1) / (m + 1), for f64
_LOG2_WIDE = (
    0.05862801630096339, 0.05853002125150056, 0.06667406684555924, 0.07692297401428141, 0.09090909168444268,
    0.11111111110824641, 0.14285714285714687, 0.2,
)  # fmt: skip
_THIRD = (0.3333333333333333, 1.850371707708594e-17)
_TWO_OVER_LN2 = (2.8853900817779268, 4.0710547481862066e-17)
_FAR = 1100.0  # where the f64 result is infinite or zero
_ROOT_HALF_BITS = 0x3FE6A09E667F3BCD
_MANTISSA = 0x000FFFFFFFFFFFFF
INFINITY = float("inf")


def _log2(b: Builder, size: Value) -> Value:
    """Of a float64 that is a non-negative float32."""
    moved = b.sub(b.bits(size), _ROOT_HALF_BITS)
    m = b.from_bits(b.add(b.and_(moved, _MANTISSA), _ROOT_HALF_BITS))
    k = b.convert("sitofp", b.ashr(moved, 52), "f64")
    f = b.fdiv(b.fsub(m, 1.0), b.fadd(m, 1.0))
    result = b.fma(polynomial(b, b.fmul(f, f), _LOG2), f, k)
    bounded = b.select(b.fcmp("oeq", size, INFINITY), INFINITY, result)
    return b.select(b.fcmp("oeq", size, 0.0), -INFINITY, bounded)


def _exp2(b: Builder, x: Value) -> Value:
    """Beyond ±160 the float32 result is infinite or zero."""
    inside = b.maximum(-160.0, b.minimum(160.0, x))
    n, held = round_scaled(b, inside, 1.0)
    r = b.fsub(inside, n)
    return b.fmul(b.fma(polynomial(b, r, _EXP2), r, 1.0), two_to(b, held))


def power(b: Builder, base: Value, exponent: Value) -> Value:
    """For f32."""
    base, exponent = b.lift(base, exponent)
    product = b.fmul(b.convert("fpext", exponent, "f64"), _log2(b, b.convert("fpext", b.fabs(base), "f64")))
    return _with_edges(b, base, exponent, b.convert("fptrunc", _exp2(b, product), "f32"))


def power_wide(b: Builder, base: Value, exponent: Value) -> Value:
    """For f64."""
    if not b.target.has_fma:
        return library("pow")(b, base, exponent)
    base, exponent = b.lift(base, exponent)
    high, low = _log2_in_two(b, b.fabs(base))
    product = b.fmul(exponent, high)
    rest = b.fma(exponent, low, b.fma(exponent, high, b.fneg(product)))
    inside = b.fcmp("olt", b.fabs(product), _FAR)
    limited = b.maximum(-_FAR, b.minimum(_FAR, product))
    return _with_edges(b, base, exponent, exp2_of_two(b, limited, b.select(inside, rest, 0.0)))


def _log2_in_two(b: Builder, size: Value) -> tuple[Value, Value]:
    """Of a number that is not negative: a sum of two, good to some 2^-65 of itself."""
    form = FORMS["f64"]
    tiny = b.fcmp("olt", size, 2.0**form.smallest_exponent)
    moved = b.sub(b.bits(b.select(tiny, b.fmul(size, 2.0**form.mantissa), size)), _ROOT_HALF_BITS)
    m = b.from_bits(b.add(b.and_(moved, _MANTISSA), _ROOT_HALF_BITS))
    shift = b.choose(tiny, -float(form.mantissa), 0.0, "f64")
    k = b.fadd(b.convert("sitofp", b.ashr(moved, form.mantissa), "f64"), shift)
    # s = (m - 1) / (m + 1), of which the first is exact.
    above, below = b.fsub(m, 1.0), b.fadd(m, 1.0)
    lost = b.fsub(m, b.fsub(below, 1.0))
    s = b.fdiv(above, below)
    s_low = b.fdiv(b.fma(b.fneg(s), lost, b.fma(b.fneg(s), below, above)), below)
    # t = s²/3 + s⁴·P(s²)
    square = b.fmul(s, s)
    square_low = b.fma(b.fmul(s, 2.0), s_low, b.fma(s, s, b.fneg(square)))
    t = b.fmul(square, _THIRD[0])
    t_low = b.fma(square, _THIRD[0], b.fneg(t))
    t_low = b.fma(square_low, _THIRD[0], b.fma(square, _THIRD[1], t_low))
    t_low = b.fma(b.fmul(square, square), polynomial(b, square, _LOG2_WIDE), t_low)
    # s + s·t, times 2 / ln 2, plus k
    u = b.fmul(s, t)
    u_low = b.fma(s, t_low, b.fma(s_low, t, b.fma(s, t, b.fneg(u))))
    total = b.fadd(s, u)
    total_low = b.fadd(b.fadd(b.fsub(s, total), u), b.fadd(u_low, s_low))
    g = b.fmul(total, _TWO_OVER_LN2[0])
    g_low = b.fma(total, _TWO_OVER_LN2[0], b.fneg(g))
    g_low = b.fma(total_low, _TWO_OVER_LN2[0], b.fma(total, _TWO_OVER_LN2[1], g_low))
    high = b.fadd(k, g)
    low = b.fadd(b.fsub(g, b.fsub(high, k)), g_low)
    bounded = b.select(b.fcmp("oeq", size, INFINITY), INFINITY, high)
    return b.select(b.fcmp("oeq", size, 0.0), -INFINITY, bounded), low


def _with_edges(b: Builder, base: Value, exponent: Value, positive: Value) -> Value:
    """The power of base, given that of its size."""
    size = b.fabs(base)
    whole, odd = _whole_and_odd(b, exponent)
    sign = -(1 << BITS[base.kind] - 1)
    signed = b.or_(b.bits(positive), b.select(odd, b.and_(b.bits(base), sign), 0))
    result = b.from_bits(signed)
    root = b.and_(b.fcmp("olt", base, 0.0), b.and_(b.fcmp("ogt", base, -INFINITY), b.not_(whole)))
    result = b.select(root, float("nan"), result)
    result = b.select(b.fcmp("uno", base, exponent), b.fadd(base, exponent), result)
    endless = b.and_(b.fcmp("oeq", size, 1.0), b.fcmp("oeq", b.fabs(exponent), INFINITY))
    one = b.or_(b.or_(b.fcmp("oeq", exponent, 0.0), b.fcmp("oeq", base, 1.0)), endless)
    return b.select(one, 1.0, result)


def _whole_and_odd(b: Builder, x: Value) -> tuple[Value, Value]:
    half = b.fmul(x, 0.5)
    whole = b.fcmp("oeq", b.intrinsic("floor", x), x)
    odd = b.and_(whole, b.fcmp("one", b.intrinsic("floor", half), half))
    return whole, odd
