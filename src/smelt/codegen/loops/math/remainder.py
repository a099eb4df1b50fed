"""fmod, exact for f32 and f64: what is left of |x| when multiples of |y| are taken from it.

A quotient below 2^p, p the bits of a mantissa, is rounded to the right whole number or to the next one, and what is
left beside that is exact by fma. Where x is larger still, multiples of y · 2^k are taken away first: a loop that runs
until no lane needs it.

Without fma, where there is no library to call either, f32 is reduced in f64: a quotient of 24 bits times a divisor of
24 is exact there. From 2^277, the largest quotient of two such numbers, that takes a dozen steps, always.
"""

from smelt.codegen.loops.builder import Builder
from smelt.codegen.loops.math.library import library
from smelt.codegen.loops.math.polynomial import FORMS
from smelt.ir.loops import Value

INFINITY, NAN = float("inf"), float("nan")


def fmod(b: Builder, x: Value, y: Value) -> Value:
    x, y = b.lift(x, y)
    in_double = x.kind == "f32" and b.target.form == "spirv" and "float64" in b.target.dtypes
    if not b.target.has_fma and not in_double:
        return library("fmod")(b, x, y)
    size, divisor = b.fabs(x), b.fabs(y)
    fine = b.and_(b.fcmp("olt", size, INFINITY), b.fcmp("ogt", divisor, 0.0))
    first, divisor = b.select(fine, size, 0.0), b.select(fine, divisor, 1.0)
    rest = _reduced(b, first, divisor) if b.target.has_fma else _reduced_in_double(b, first, divisor)
    return b.select(fine, b.copysign(rest, x), NAN)


def _reduced(b: Builder, first: Value, divisor: Value) -> Value:
    """Of finite numbers that are not negative, the second not zero."""
    form = FORMS[first.kind]
    near = b.fmul(divisor, 2.0**form.mantissa)  # infinite: all numbers are below
    mantissa = _mantissa(b, divisor)

    def take(rest: Value) -> tuple[Value, list[Value]]:
        # 2^p · d would be more than `rest`; the smallest normal exponent is small enough for all larger ones.
        exponent = b.sub(b.lshr(b.bits(rest), form.mantissa), form.mantissa - 1)
        exponent = b.select(b.icmp("sgt", exponent, 1), exponent, 1)
        far = b.from_bits(b.or_(b.shl(exponent, form.mantissa), mantissa))
        taken = b.select(b.fcmp("olt", rest, near), divisor, far)
        count = b.intrinsic("trunc", b.fdiv(rest, taken))
        left = b.fma(b.fneg(count), taken, rest)
        left = b.select(b.fcmp("olt", left, 0.0), b.fadd(left, taken), left)
        left = b.select(b.fcmp("oge", rest, divisor), left, rest)
        return b.reduce_lanes("or", b.fcmp("oge", left, divisor)), [left]

    return b.repeat([first], take)[0]


def _reduced_in_double(b: Builder, first: Value, divisor: Value) -> Value:
    """The same of f32, by multiples of y · 2^264, y · 2^240, …, y. A quotient may be off by one, and is then mended."""
    rest, wide = b.convert("fpext", first, "f64"), b.convert("fpext", divisor, "f64")
    for power in range(264, -1, -24):
        taken = b.fmul(wide, 2.0**power)
        count = b.intrinsic("trunc", b.fdiv(rest, taken))
        left = b.fsub(rest, b.fmul(count, taken))
        left = b.select(b.fcmp("olt", left, 0.0), b.fadd(left, taken), left)
        rest = b.select(b.fcmp("oge", left, taken), b.fsub(left, taken), left)
    return b.select(b.fcmp("oge", first, divisor), b.convert("fptrunc", rest, "f32"), first)


def _mantissa(b: Builder, divisor: Value) -> Value:
    """Its bits without the exponent; of those below the normal range as if they were not."""
    form = FORMS[divisor.kind]
    small = b.fcmp("olt", divisor, 2.0**form.smallest_exponent)
    normal = b.select(small, b.fmul(divisor, 2.0 ** (form.mantissa + 1)), divisor)
    return b.and_(b.bits(normal), (1 << form.mantissa) - 1)
