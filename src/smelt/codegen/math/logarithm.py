"""Logarithms: x = m · 2^k with m between √½ and √2, then log x = k·ln 2 + log(1 + f) with f = m - 1."""

from smelt.codegen.builder import Builder, Value
from smelt.codegen.math.polynomial import LN2_HI, LN2_LO, ONE_BITS, polynomial

_LOG = (
    -0.07634496527068156, 0.12761577044181002, -0.13160182395954106, 0.14201757999265444,
    -0.16623357343705744, 0.200012268763698, -0.25000821034345594, 0.3333333170770017,
)  # fmt: skip
_ROOT_HALF_BITS = 0x3F3504F3
_MANTISSA = 0x007FFFFF
_SMALLEST_NORMAL = 2.0**-126
_LOG2E_HI = 1.4426950216293335  # 1 / ln 2 to float32, and what is left of it
_LOG2E_LO = 1.9259629911266175e-08
INFINITY = float("inf")
NAN = float("nan")


def _split(b: Builder, x: Value) -> tuple[Value, Value]:
    """m and the integer k, for normal x."""
    moved = b.sub(b.bits(x), _ROOT_HALF_BITS)
    m = b.from_bits(b.add(b.and_(moved, _MANTISSA), _ROOT_HALF_BITS))
    return m, b.ashr(moved, 23)


def _split_any(b: Builder, x: Value) -> tuple[Value, Value]:
    """f and k as floats, for any positive x: what is below the normal range is scaled into it first."""
    tiny = b.fcmp("olt", x, _SMALLEST_NORMAL)
    m, k = _split(b, b.select(tiny, b.fmul(x, 2.0**23), x))
    shift = b.choose(tiny, -23.0, 0.0, "f32")
    return b.fsub(m, 1.0), b.fadd(b.convert("sitofp", k, "f32"), shift)


def _curved(b: Builder, f: Value, lower: Value | None = None) -> Value:
    """log(1 + f) - f, plus `lower`."""
    square = b.fmul(f, f)
    cube = b.fmul(square, f)
    tail = b.fmul(cube, polynomial(b, f, _LOG)) if lower is None else b.fma(cube, polynomial(b, f, _LOG), lower)
    return b.fma(square, -0.5, tail)


def _with_edges(b: Builder, x: Value, result: Value, zero: float) -> Value:
    """The limits: -inf where x is `zero`, NaN below it, x itself where it is infinite or NaN."""
    finite = b.select(b.fcmp("olt", x, INFINITY), result, x)
    edge = b.choose(b.fcmp("oeq", x, zero), -INFINITY, NAN, "f32")
    return b.select(b.fcmp("ole", x, zero), edge, finite)


def log(b: Builder, x: Value) -> Value:
    f, k = _split_any(b, x)
    result = b.fma(k, LN2_HI, b.fadd(f, _curved(b, f, b.fmul(k, LN2_LO))))
    return _with_edges(b, x, result, 0.0)


def log2(b: Builder, x: Value) -> Value:
    f, k = _split_any(b, x)
    small = b.fma(_curved(b, f), _LOG2E_HI, b.fmul(f, _LOG2E_LO))
    return _with_edges(b, x, b.fadd(k, b.fma(f, _LOG2E_HI, small)), 0.0)


def log1p(b: Builder, x: Value) -> Value:
    """log of u = 1 + x, with what rounding lost of u put back into f."""
    u = b.fadd(x, 1.0)
    lost = b.fsub(x, b.fsub(u, 1.0))
    m, k = _split(b, u)
    near = b.select(b.icmp("slt", k, 126), k, 126)  # for larger k what was lost does not matter
    scale = b.from_bits(b.sub(ONE_BITS, b.shl(near, 23)))
    f = b.fma(lost, scale, b.fsub(m, 1.0))
    exponent = b.convert("sitofp", k, "f32")
    result = b.fma(exponent, LN2_HI, b.fadd(f, _curved(b, f, b.fmul(exponent, LN2_LO))))
    return _with_edges(b, x, b.copysign(result, x), -1.0)  # copysign: log1p(-0) is -0
