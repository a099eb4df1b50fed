"""Shared steps of the elementary functions: polynomials, rounding by a magic number, powers of two from bits.

Those that look into the bits of a number take f32 and f64 alike, by the `PolynomialForm` of their kind.
"""

from collections.abc import Sequence

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.loops.builder import Builder
from smelt.ir.loops import Value


@dataclass(frozen=True, slots=True)
class PolynomialForm:
    """How numbers of a kind are put together, and ln 2 in two parts for them.

    Adding `magic`, 1.5 · 2^mantissa, to a small number rounds it to an integer, which then sits in the low bits of the
    sum. The high part of ln 2 has few enough bits that its product with an exponent is exact.
    """

    mantissa: int  # bits of it, the first one not counted
    magic: float
    one: int  # the bits of 1.0
    ln2_hi: float
    ln2_lo: float
    smallest_exponent: int  # of normal numbers


FORMS = {
    "f32": PolynomialForm(23, 12582912.0, 0x3F800000, 0.693145751953125, 1.4286068203094172e-06, -126),
    "f64": PolynomialForm(52, 6755399441055744.0, 0x3FF0000000000000, 0.6931471805592082, 7.371002565167799e-13, -1022),
}
LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453


def form_of(bits: Value) -> PolynomialForm:
    """By the kind of the integers that hold its bits."""
    return FORMS["f64" if bits.kind == "i64" else "f32"]


def polynomial(b: Builder, x: Value, coefficients: Sequence[float]) -> Value:
    """By Horner's rule, highest power first."""
    return _horner(b, x, coefficients)


def polynomial_in_pairs(b: Builder, x: Value, coefficients: Sequence[float]) -> Value:
    """All but the last term by Horner's rule in x² over pairs of terms: half as long a chain of steps."""
    *upper, last = coefficients
    odd = len(upper) % 2
    pairs: list[Value | float] = [*upper[:odd]]
    for high, low in zip(upper[odd::2], upper[odd + 1 :: 2], strict=True):
        pairs.append(b.fma(high, x, low))
    return b.fma(_horner(b, b.fmul(x, x), pairs), x, last)


def _horner(b: Builder, x: Value, coefficients: Sequence[Value | float]) -> Value:
    total = coefficients[0]
    for coefficient in coefficients[1:]:
        total = b.fma(total, x, coefficient)
    assert isinstance(total, Value)
    return total


def round_scaled(b: Builder, x: Value, scale: float) -> tuple[Value, Value]:
    """`x * scale` rounded to an integer, as a float (never -0) and as the bits that hold it (see `two_to`)."""
    magic = FORMS[x.kind].magic
    shifted = b.fadd(x, magic) if scale == 1.0 else b.fma(x, scale, magic)
    return b.fsub(shifted, magic), b.bits(shifted)


def without_ln2(b: Builder, x: Value, n: Value) -> Value:
    """x - n · ln 2."""
    form = FORMS[x.kind]
    return b.fma(n, -form.ln2_lo, b.fma(n, -form.ln2_hi, x))


def two_to(b: Builder, held: Value, more: int = 0) -> Value:
    """2^(n + more) for normal results, from the bits `round_scaled` gave: the shift leaves only n, at the exponent's
    place."""
    form = form_of(held)
    return b.from_bits(b.add(b.shl(held, form.mantissa), form.one + (more << form.mantissa)))


def minus_two_to(b: Builder, held: Value) -> Value:
    """-2^n, as `two_to`."""
    form = form_of(held)
    width = 64 if held.kind == "i64" else 32
    return b.from_bits(b.add(b.shl(held, form.mantissa), form.one - (1 << width - 1)))


def scale_by_two_to(b: Builder, x: Value, n: Value, held: Value) -> Value:
    """x · 2^n for any n that matters, in two steps so that results below the normal range round once."""
    if b.scales(x):
        return b.scaled(x, n)
    half = b.lshr(held, 1)
    rest = b.sub(held, half)
    return b.fmul(b.fmul(x, two_to(b, half)), two_to(b, rest))


def divided(b: Builder, a: Value, by: Value) -> Value:
    """A quotient of numbers of moderate size: a product with about 1 / `by`, then one correction step."""
    if not b.target.approximates or by.kind != "f32":
        return b.fdiv(a, by)
    near = b.near_reciprocal(by)
    first = b.fmul(a, near)
    return b.fma(b.fma(b.fneg(by), first, a), near, first)
