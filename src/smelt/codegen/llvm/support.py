"""Functions that LLVM calls where a processor has no instruction, as LLVM text, so that compiled artifacts need no
library.

    support_text(["__truncsfhf2"], target)    float32 → float16 on a processor that only computes with the first

They are appended to an image or object that refers to them. `pow` of float64 without fused multiply-add is not
included: the C library provides it, or JavaScript in a browser. None of them refers to another of LLVM's functions but
`ctlz`, as the text that they are appended to may declare it as well.
"""

from collections.abc import Callable, Sequence

from smelt.codegen.llvm.print_llvm import declarations, print_function
from smelt.codegen.loops.builder import FALSE, Builder, param
from smelt.codegen.loops.scalars import float_as_half, half_as_float
from smelt.codegen.loops.wide_products import product_by_halves
from smelt.device import Target
from smelt.ir.loops import Function, Value

_SIGN, _SIZE = -(1 << 63), (1 << 63) - 1  # of the bits of a float64
_INFINITY, _ONE = 0x7FF << 52, 0x3FF << 52
_FRACTION_BITS = 52
_FRACTION = (1 << _FRACTION_BITS) - 1


def _double_as_half(b: Builder, x: Value) -> Value:
    """By way of float32. Where that rounding is not exact, its last bit is one: so the second sees on which side of a
    tie the number is."""
    near = b.convert("fptrunc", x, "f32")
    back, bits = b.convert("fpext", near, "f64"), b.bits(near)
    is_beyond = b.icmp("ugt", b.and_(b.bits(back), _SIZE), b.and_(b.bits(x), _SIZE))
    other = b.add(bits, b.choose(is_beyond, -1, 1, "i32"))
    moves = b.and_(b.fcmp("one", back, x), b.icmp("eq", b.and_(bits, 1), 0))
    return float_as_half(b, b.from_bits(b.select(moves, other, bits)))


def _fmod(b: Builder, x: Value, y: Value) -> Value:
    """Bit by bit, as one divides by hand: mantissas are 53-bit integers, and each round takes the exponent down by
    one."""
    x_bits = b.bits(x)
    x_size, y_size = b.and_(x_bits, _SIZE), b.and_(b.bits(y), _SIZE)
    has_quotient = b.and_(b.icmp("ne", y_size, 0), b.icmp("ule", y_size, _INFINITY))
    has_quotient = b.and_(has_quotient, b.icmp("ult", x_size, _INFINITY))
    is_less = b.icmp("ult", x_size, y_size)
    divides = b.and_(has_quotient, b.not_(is_less))
    (x_mantissa, x_exponent), (divisor, exponent) = (
        _parts(b, b.select(divides, size, _ONE)) for size in (x_size, y_size)
    )
    loop = b.begin(0, b.add(b.sub(x_exponent, exponent), 1), 1, [x_mantissa])
    (rest,) = loop.values
    rest = b.select(b.icmp("uge", rest, divisor), b.sub(rest, divisor), rest)
    (doubled,) = loop.end(b.shl(rest, 1))
    rest = b.lshr(doubled, 1)
    by = _leading_zeros(b, rest)
    top, exponent = b.shl(rest, by), b.sub(exponent, by)
    is_normal = b.icmp("sgt", exponent, 0)
    normal = b.or_(b.and_(top, _FRACTION), b.shl(exponent, _FRACTION_BITS))
    tiny = b.lshr(top, b.select(is_normal, 0, b.sub(1, exponent)))
    size = b.select(b.icmp("eq", rest, 0), 0, b.select(is_normal, normal, tiny))
    result = b.select(is_less, x, b.from_bits(b.or_(size, b.and_(x_bits, _SIGN))))
    return b.select(has_quotient, result, float("nan"))


def _parts(b: Builder, size: Value) -> tuple[Value, Value]:
    """The mantissa of a positive float64, with its leading one, and the exponent."""
    exponent, fraction = b.lshr(size, _FRACTION_BITS), b.and_(size, _FRACTION)
    is_tiny, by = b.icmp("eq", exponent, 0), _leading_zeros(b, fraction)
    mantissa = b.select(is_tiny, b.shl(fraction, by), b.or_(fraction, _FRACTION + 1))
    return mantissa, b.select(is_tiny, b.sub(1, by), exponent)


def _leading_zeros(b: Builder, mantissa: Value) -> Value:
    return b.sub(b.call("llvm.ctlz.i64", mantissa, FALSE, result="i64"), 63 - _FRACTION_BITS)


def _float_fmod(b: Builder, x: Value, y: Value) -> Value:
    return b.convert("fptrunc", _fmod(b, b.convert("fpext", x, "f64"), b.convert("fpext", y, "f64")), "f32")


def _multiplied(b: Builder, x: Value, y: Value) -> Value:
    """The lower half of a product of 128 bits, by products of 64."""
    (x_low, x_high), (y_low, y_high) = (
        (b.convert("trunc", each, "i64"), b.convert("trunc", b.lshr(each, 64), "i64")) for each in (x, y)
    )
    low, high = product_by_halves(b, x_low, y_low)
    high = b.add(high, b.add(b.mul(x_low, y_high), b.mul(x_high, y_low)))
    return b.or_(b.shl(b.convert("zext", high, "i128"), 64), b.convert("zext", low, "i128"))


def _copied(b: Builder, to: Value, source: Value, count: Value) -> Value:
    with b.loop(0, b.convert("zext", count, "i64"), guard=True) as place:
        b.store(b.load(b.element(source, "i8", place), "i8"), b.element(to, "i8", place))
    return to


def _moved(b: Builder, to: Value, source: Value, count: Value) -> Value:
    """From the end on where the memory of the result begins inside that of the source."""
    is_forwards, count = b.icmp("ult", to, source), b.convert("zext", count, "i64")
    last = b.sub(count, 1)
    with b.loop(0, count, guard=True) as number:
        place = b.select(is_forwards, number, b.sub(last, number))
        b.store(b.load(b.element(source, "i8", place), "i8"), b.element(to, "i8", place))
    return to


def _filled(b: Builder, to: Value, value: Value, count: Value) -> Value:
    byte = b.convert("trunc", value, "i8")
    with b.loop(0, b.convert("zext", count, "i64"), guard=True) as place:
        b.store(byte, b.element(to, "i8", place))
    return to


# Name → what writes it, and the kinds of its result and its parameters.
SUPPORT: dict[str, tuple[Callable[..., Value], str, tuple[str, ...]]] = {
    "__extendhfsf2": (half_as_float, "f32", ("f16",)),
    "__truncsfhf2": (float_as_half, "f16", ("f32",)),
    "__truncdfhf2": (_double_as_half, "f16", ("f64",)),
    "__multi3": (_multiplied, "i128", ("i128", "i128")),
    "fmod": (_fmod, "f64", ("f64", "f64")),
    "fmodf": (_float_fmod, "f32", ("f32", "f32")),
    "memcpy": (_copied, "ptr", ("ptr", "ptr", "size")),
    "memmove": (_moved, "ptr", ("ptr", "ptr", "size")),
    "memset": (_filled, "ptr", ("ptr", "i32", "size")),
}

def support_text(names: Sequence[str], target: Target) -> str:
    """LLVM text that defines functions of `SUPPORT`."""
    functions = [_function(name, target) for name in names if name in SUPPORT]
    return "\n".join(["", *declarations(functions), *map(print_function, functions)])


def _function(name: str, target: Target) -> Function:
    write, result, kinds = SUPPORT[name]
    size = f"i{8 * target.pointer_bytes}"
    params = [param(letter, size if kind == "size" else kind) for letter, kind in zip("xyz", kinds, strict=False)]
    b = Builder(target, name)
    b.give(write(b, *params))
    return b.function(name, params, "support", result=result)
