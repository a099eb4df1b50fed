"""Logarithms, for f32 and f64: x = m · 2^k, m between √½ and √2, then log x = k·ln 2 + log(1 + f) with f = m - 1."""

from smelt.codegen.loops.builder import Builder
from smelt.codegen.loops.math.polynomial import FORMS, polynomial
from smelt.ir.loops import Value

# log(1 + f) = f - f²/2 + f³·P(f), for f32
_LOG = (
    -0.07634496527068156, 0.12761577044181002, -0.13160182395954106, 0.14201757999265444,
    -0.16623357343705744, 0.200012268763698, -0.25000821034345594, 0.3333333170770017,
)  # fmt: skip
# log(1 + f) = f - s·(f - s²·P(s²)) with s = f / (2 + f), for f64
_LOG_OF_QUOTIENT = (
    0.1308944373626974, 0.13268503447792365, 0.15386249783145214, 0.18181795454619548,
    0.22222222393451754, 0.28571428570795937, 0.4000000000000089, 0.6666666666666666,
)  # fmt: skip
_ROOT_HALF_BITS = {"f32": 0x3F3504F3, "f64": 0x3FE6A09E667F3BCD}
# 1 / ln 2 to the last place, and what is left of it
_LOG2E = {
    "f32": (1.4426950216293335, 1.9259629911266175e-08),
    "f64": (1.4426950408889634, 2.0355273740931033e-17),
}
INFINITY = float("inf")
NAN = float("nan")


def _split(b: Builder, x: Value) -> tuple[Value, Value]:
    """m and the integer k, for normal x."""
    mantissa, root = FORMS[x.kind].mantissa, _ROOT_HALF_BITS[x.kind]
    moved = b.sub(b.bits(x), root)
    m = b.from_bits(b.add(b.and_(moved, (1 << mantissa) - 1), root))
    return m, b.ashr(moved, mantissa)


def _split_any(b: Builder, x: Value) -> tuple[Value, Value]:
    """f and k as floats, for any positive x: subnormal numbers are scaled first."""
    form = FORMS[x.kind]
    tiny = b.fcmp("olt", x, 2.0**form.smallest_exponent)
    m, k = _split(b, b.select(tiny, b.fmul(x, 2.0**form.mantissa), x))
    shift = b.choose(tiny, -float(form.mantissa), 0.0, x.kind)
    return b.fsub(m, 1.0), b.fadd(b.convert("sitofp", k, x.kind), shift)


def _curved(b: Builder, f: Value, lower: Value | None = None) -> Value:
    """log(1 + f) - f, plus `lower`."""
    if f.kind == "f64":
        return _curved_by_quotient(b, f, lower)
    square = b.fmul(f, f)
    cube = b.fmul(square, f)
    tail = b.fmul(cube, polynomial(b, f, _LOG)) if lower is None else b.fma(cube, polynomial(b, f, _LOG), lower)
    return b.fma(square, -0.5, tail)


def _curved_by_quotient(b: Builder, f: Value, lower: Value | None) -> Value:
    """f²/2 is subtracted separately: the rest, s·(f²/2 + s²·P(s²)), is small, and so is its rounding."""
    s = b.fdiv(f, b.fadd(f, 2.0))
    square = b.fmul(s, s)
    half = b.fmul(b.fmul(f, 0.5), f)
    rest = b.fadd(half, b.fmul(square, polynomial(b, square, _LOG_OF_QUOTIENT)))
    tail = b.fmul(s, rest) if lower is None else b.fma(s, rest, lower)
    return b.fsub(tail, half)


def _with_edges(b: Builder, x: Value, result: Value, zero: float) -> Value:
    """The limits: -inf where x is `zero`, NaN below it, x itself where it is infinite or NaN."""
    finite = b.select(b.fcmp("olt", x, INFINITY), result, x)
    edge = b.choose(b.fcmp("oeq", x, zero), -INFINITY, NAN, x.kind)
    return b.select(b.fcmp("ole", x, zero), edge, finite)


def log(b: Builder, x: Value) -> Value:
    form = FORMS[x.kind]
    f, k = _split_any(b, x)
    result = b.fma(k, form.ln2_hi, b.fadd(f, _curved(b, f, b.fmul(k, form.ln2_lo))))
    return _with_edges(b, x, result, 0.0)


def log2(b: Builder, x: Value) -> Value:
    high, low = _LOG2E[x.kind]
    f, k = _split_any(b, x)
    small = b.fma(_curved(b, f), high, b.fmul(f, low))
    return _with_edges(b, x, b.fadd(k, b.fma(f, high, small)), 0.0)


def log1p(b: Builder, x: Value) -> Value:
    """log of u = 1 + x, with what rounding lost of u put back into f."""
    form = FORMS[x.kind]
    u = b.fadd(x, 1.0)
    lost = b.fsub(x, b.fsub(u, 1.0))
    m, k = _split(b, u)
    most = -form.smallest_exponent
    near = b.select(b.icmp("slt", k, most), k, most)  # for larger k what was lost does not matter
    scale = b.from_bits(b.sub(form.one, b.shl(near, form.mantissa)))
    f = b.fma(lost, scale, b.fsub(m, 1.0))
    exponent = b.convert("sitofp", k, x.kind)
    result = b.fma(exponent, form.ln2_hi, b.fadd(f, _curved(b, f, b.fmul(exponent, form.ln2_lo))))
    return _with_edges(b, x, b.copysign(result, x), -1.0)  # copysign: log1p(-0) is -0
