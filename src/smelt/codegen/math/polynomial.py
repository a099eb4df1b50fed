"""Shared steps of the elementary functions: polynomials, rounding by a magic number, powers of two from bits."""

from collections.abc import Sequence

from smelt.codegen.builder import Builder, Value

# Adding 1.5 * 2^23 to a float32 below 2^22 rounds it to an integer, which then sits in the low bits of the sum.
MAGIC = 12582912.0
MAGIC64 = 6755399441055744.0
ONE_BITS = 0x3F800000
ONE_BITS64 = 0x3FF0000000000000
# The high part has few enough bits that its product with an exponent is exact.
LN2_HI = 0.693145751953125
LN2_LO = 1.4286068203094172e-06
LOG2E = 1.4426950408889634


def polynomial(b: Builder, x: Value, coefficients: Sequence[float]) -> Value:
    """By Horner's rule, highest power first."""
    total: Value | float = coefficients[0]
    for coefficient in coefficients[1:]:
        total = b.fma(total, x, coefficient)
    assert isinstance(total, Value)
    return total


def round_scaled(b: Builder, x: Value, scale: float) -> tuple[Value, Value]:
    """`x * scale` rounded to an integer, as a float (never -0) and as the bits that hold it (see `two_to`)."""
    shifted = b.fadd(x, MAGIC) if scale == 1.0 else b.fma(x, scale, MAGIC)
    return b.fsub(shifted, MAGIC), b.bits(shifted)


def two_to(b: Builder, held: Value) -> Value:
    """2^n for n in -126 … 127, from the bits `round_scaled` gave: the shift leaves only n, at the exponent's place."""
    return b.from_bits(b.add(b.shl(held, 23), ONE_BITS))


def scale_by_two_to(b: Builder, x: Value, held: Value) -> Value:
    """x · 2^n for any n that matters, in two steps so that results below the normal range round once."""
    half = b.lshr(held, 1)
    rest = b.sub(held, half)
    return b.fmul(b.fmul(x, two_to(b, half)), two_to(b, rest))
