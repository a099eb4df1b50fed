"""Both halves of a product of integers, as two integers of the operands' size."""

from smelt.codegen.loops.builder import Builder, Term
from smelt.ir.loops import BITS, Value


def wide_product(b: Builder, x: Value, y: Term) -> tuple[Value, Value]:
    """The low and the high half of a product without signs."""
    bits = BITS[x.kind]
    if bits == 64 and b.target.form == "spirv":  # which has no integers of 128 bits
        assert isinstance(y, Value)
        return product_by_halves(b, x, y)
    wide = f"i{2 * bits}"
    whole = b.mul(b.convert("zext", x, wide), b.convert("zext", y, wide) if isinstance(y, Value) else y)
    return b.convert("trunc", whole, x.kind), b.convert("trunc", b.lshr(whole, bits), x.kind)


def product_by_halves(b: Builder, x: Value, y: Value) -> tuple[Value, Value]:
    """The same for i64, by products of 64 bits."""
    (x_low, x_high), (y_low, y_high) = ((b.and_(each, 0xFFFFFFFF), b.lshr(each, 32)) for each in (x, y))
    middle = b.add(b.mul(x_high, y_low), b.lshr(b.mul(x_low, y_low), 32))
    other = b.add(b.mul(x_low, y_high), b.and_(middle, 0xFFFFFFFF))
    top = b.add(b.mul(x_high, y_high), b.lshr(middle, 32))
    return b.mul(x, y), b.add(top, b.lshr(other, 32))
