"""Scalar operations and conversions of the kernel form, as LLVM instructions.

    compute(b, "add", [x, y], torch.float32)   →  %t3 = fadd <8 x float> %t1, %t2

How a dtype is held: bool as `i1` (a byte in memory), bf16 as its 16 bits, everything else as LLVM's own type.
"""

from collections.abc import Callable, Sequence

import torch

from smelt.codegen.loops.builder import SIGNED_LESS, UNSIGNED_LESS, Builder
from smelt.codegen.loops.math import FLOAT32, FLOAT64
from smelt.codegen.loops.math.remainder import fmod
from smelt.codegen.loops.philox import word_of
from smelt.ir.loops import BITS, Value
from smelt.ir.scalar import kind_of
from smelt.symbolic.symsize import is_symsize, varies

VALUE_KINDS: dict[torch.dtype, str] = {
    torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "i16",
    torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "i8", torch.bool: "i1",
}  # fmt: skip

_NARROW = (torch.float16, torch.bfloat16)


def memory_kind(dtype: torch.dtype) -> str:
    """As `VALUE_KINDS`, for a dtype's form in memory."""
    return "i8" if dtype is torch.bool else VALUE_KINDS[dtype]


def from_memory(b: Builder, raw: Value, dtype: torch.dtype) -> Value:
    return b.icmp("ne", raw, 0) if dtype is torch.bool else raw


def to_memory(b: Builder, value: Value, dtype: torch.dtype) -> Value:
    return b.convert("zext", value, "i8") if dtype is torch.bool else value


def constant(b: Builder, value: float, dtype: torch.dtype) -> Value:
    """A scalar of `dtype`."""
    if varies(value):
        param = b.runtime_param(value)
        if is_symsize(value):
            return cast(b, param, torch.int64, dtype)
        return cast(b, b.from_bits(param), torch.float64, dtype)
    if dtype in _NARROW:
        rounded = torch.tensor(value, dtype=dtype)
        if dtype is torch.float16:
            return b.const("f16", float(rounded))
        return b.const("i16", int(rounded.view(torch.int16)) & 0xFFFF)
    return b.const(VALUE_KINDS[dtype], value)


# Operations.

Lower = Callable[[Builder, torch.dtype, Sequence[Value]], Value]


def compute(b: Builder, op: str, args: Sequence[Value], dtype: torch.dtype) -> Value:
    """`op` of `args`, all of `dtype` except the bool that `where` chooses by."""
    kind = kind_of(dtype)
    if op in FLOAT32:
        return (FLOAT32 if dtype is torch.float32 else FLOAT64)[op](b, *args)
    if op in _COMPARISONS:
        return _compare(b, op, dtype, args)
    table = _FLOAT_OPS if kind == "f" else _INTEGER_OPS
    return (_ANY_OPS.get(op) or table[op])(b, dtype, args)


_COMPARISONS = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}


def _compare(b: Builder, op: str, dtype: torch.dtype, args: Sequence[Value]) -> Value:
    if dtype.is_floating_point:
        return b.fcmp(_COMPARISONS[op], *args)
    return b.icmp((UNSIGNED_LESS if dtype is torch.uint8 else SIGNED_LESS)[op], *args)


def _binary(name: str) -> Lower:
    return lambda b, _, args: b.binary(name, *args)


def _intrinsic(name: str) -> Lower:
    return lambda b, _, args: b.intrinsic(name, *args)


_ANY_OPS: dict[str, Lower] = {
    "where": lambda b, _, args: b.select(*args),
    "and": _binary("and"),
    "or": _binary("or"),
    "xor": _binary("xor"),
    "not": lambda b, _, args: b.not_(*args),
}


# Floating point.


def _float_sign(b: Builder, _: torch.dtype, args: Sequence[Value]) -> Value:
    (x,) = args
    up = b.choose(b.fcmp("ogt", x, 0.0), 1.0, 0.0, x.kind)
    return b.select(b.fcmp("olt", x, 0.0), -1.0, up)


def _float_remainder(b: Builder, _: torch.dtype, args: Sequence[Value]) -> Value:
    x, y = args
    rest = fmod(b, x, y)
    return b.select(_leans_away(b, rest, y), b.fadd(rest, y), rest)


def _leans_away(b: Builder, rest: Value, divisor: Value) -> Value:
    """Whether a remainder is not zero and its sign is not the divisor's."""
    apart = b.icmp("ne", b.fcmp("olt", divisor, 0.0), b.fcmp("olt", rest, 0.0))
    return b.and_(b.fcmp("une", rest, 0.0), apart)


def _float_floordiv(b: Builder, _: torch.dtype, args: Sequence[Value]) -> Value:
    """From the exact remainder, so that the quotient is not rounded up to the next integer before the floor."""
    x, y = args
    rest = fmod(b, x, y)
    quotient = b.fdiv(x, y)
    exact = b.fdiv(b.fsub(x, rest), y)
    exact = b.select(_leans_away(b, rest, y), b.fsub(exact, 1.0), exact)
    floor = b.intrinsic("floor", exact)
    floor = b.select(b.fcmp("ogt", b.fsub(exact, floor), 0.5), b.fadd(floor, 1.0), floor)
    rounded = b.select(b.fcmp("une", exact, 0.0), floor, b.copysign(0.0, quotient))
    return b.select(b.fcmp("oeq", y, 0.0), quotient, rounded)


_FLOAT_OPS: dict[str, Lower] = {
    "add": _binary("fadd"),
    "sub": _binary("fsub"),
    "mul": _binary("fmul"),
    "div": _binary("fdiv"),
    "fma": lambda b, _, args: b.fma(*args),
    "floordiv": _float_floordiv,
    "truncdiv": lambda b, _, args: b.intrinsic("trunc", b.fdiv(*args)),
    "remainder": _float_remainder,
    "fmod": lambda b, _, args: fmod(b, *args),
    "neg": lambda b, _, args: b.fneg(*args),
    "abs": _intrinsic("fabs"),
    "sign": _float_sign,
    "maximum": lambda b, _, args: b.maximum(*args),
    "minimum": lambda b, _, args: b.minimum(*args),
    "floor": _intrinsic("floor"),
    "ceil": _intrinsic("ceil"),
    "round": _intrinsic("roundeven"),
    "trunc": _intrinsic("trunc"),
    "isnan": lambda b, _, args: b.fcmp("uno", args[0], args[0]),
    "signbit": lambda b, _, args: b.icmp("slt", b.bits(*args), 0),
}


# Integers. A zero divisor, where PyTorch raises, gives zero here: division by what may be zero is not for kernels.


def _divisor(b: Builder, y: Value, dtype: torch.dtype) -> tuple[Value, Value]:
    """A divisor that never faults, and where it replaces -1 (the quotient is then the negation)."""
    safe = b.select(b.icmp("eq", y, 0), 1, y)
    if dtype is torch.uint8:
        return safe, b.icmp("ne", y, y)
    minus = b.icmp("eq", y, -1)
    return b.select(minus, 1, safe), minus


def _truncated(b: Builder, dtype: torch.dtype, x: Value, y: Value) -> tuple[Value, Value]:
    """Quotient towards zero, and remainder."""
    safe, minus = _divisor(b, y, dtype)
    sign = "u" if dtype is torch.uint8 else "s"
    quotient = b.binary(f"{sign}div", x, safe)
    rest = b.sub(x, b.mul(quotient, safe))
    quotient = b.select(minus, b.sub(0, quotient), quotient)
    zero = b.icmp("eq", y, 0)
    return b.select(zero, 0, quotient), b.select(zero, 0, rest)


def _integer_floors(b: Builder, dtype: torch.dtype, args: Sequence[Value]) -> tuple[Value, Value]:
    x, y = args
    quotient, rest = _truncated(b, dtype, x, y)
    if dtype is torch.uint8:
        return quotient, rest
    down = b.and_(b.icmp("ne", rest, 0), b.icmp("slt", b.xor(rest, y), 0))
    return b.select(down, b.sub(quotient, 1), quotient), b.select(down, b.add(rest, y), rest)


def _integer_abs(b: Builder, dtype: torch.dtype, args: Sequence[Value]) -> Value:
    (x,) = args
    return x if dtype is torch.uint8 else b.select(b.icmp("slt", x, 0), b.sub(0, x), x)


def _integer_sign(b: Builder, dtype: torch.dtype, args: Sequence[Value]) -> Value:
    (x,) = args
    up = b.convert("zext", b.icmp("ne", x, 0), x.kind)
    return up if dtype is torch.uint8 else b.select(b.icmp("slt", x, 0), -1, up)


def _shift(b: Builder, op: str, dtype: torch.dtype, x: Value, y: Value) -> Value:
    """Counts outside the width shift everything out, leaving the sign on the right of a signed number."""
    width = BITS[x.kind]
    inside = b.icmp("ult", y, width)
    count = b.select(inside, y, width - 1)
    if op == "shl":
        return b.select(inside, b.shl(x, count), 0)
    if dtype is torch.uint8:
        return b.select(inside, b.lshr(x, count), 0)
    return b.ashr(x, count)


def _integer_extreme(how: str) -> Lower:
    def lower(b: Builder, dtype: torch.dtype, args: Sequence[Value]) -> Value:
        sign = "u" if dtype is torch.uint8 else "s"
        return b.binary(f"{sign}{how}", *args)

    return lower


def _philox(b: Builder, dtype: torch.dtype, args: Sequence[Value]) -> Value:
    wide = [cast(b, arg, dtype, torch.int64) for arg in args]
    return cast(b, word_of(b, *wide), torch.int64, dtype)


_INTEGER_OPS: dict[str, Lower] = {
    "add": _binary("add"),
    "sub": _binary("sub"),
    "mul": _binary("mul"),
    "floordiv": lambda b, dtype, args: _integer_floors(b, dtype, args)[0],
    "remainder": lambda b, dtype, args: _integer_floors(b, dtype, args)[1],
    "truncdiv": lambda b, dtype, args: _truncated(b, dtype, *args)[0],
    "fmod": lambda b, dtype, args: _truncated(b, dtype, *args)[1],
    "neg": lambda b, _, args: b.sub(0, *args),
    "abs": _integer_abs,
    "sign": _integer_sign,
    "maximum": _integer_extreme("max"),
    "minimum": _integer_extreme("min"),
    "shl": lambda b, dtype, args: _shift(b, "shl", dtype, *args),
    "shr": lambda b, dtype, args: _shift(b, "shr", dtype, *args),
    "philox": _philox,
}


# Conversions.


def cast(b: Builder, value: Value, source: torch.dtype, dtype: torch.dtype) -> Value:
    """`value` as `Tensor.to` converts it."""
    if source is dtype:
        return value
    if source in _NARROW:
        return cast(b, _widen(b, value, source), torch.float32, dtype)
    if dtype in _NARROW:
        return _narrow(b, cast(b, value, source, torch.float32), dtype)
    kind = VALUE_KINDS[dtype]
    if dtype is torch.bool:
        return b.fcmp("une", value, 0.0) if source.is_floating_point else b.icmp("ne", value, 0)
    if source.is_floating_point:
        return _from_float(b, value, dtype)
    unsigned = source in (torch.bool, torch.uint8)
    if dtype.is_floating_point:
        return b.convert("uitofp" if unsigned else "sitofp", value, kind)
    if BITS[value.kind] >= BITS[kind]:
        return b.convert("trunc", value, kind)
    return b.convert("zext" if unsigned else "sext", value, kind)


def _from_float(b: Builder, value: Value, dtype: torch.dtype) -> Value:
    kind = VALUE_KINDS[dtype]
    if dtype.is_floating_point:
        return b.convert("fpext" if dtype is torch.float64 else "fptrunc", value, kind)
    # By way of a wide integer, as C++ compilers do: what does not fit a narrow one wraps. Saturation at the wide end
    # keeps numbers out of range (undefined in C++) from being undefined here.
    wide = "i64" if dtype in (torch.int64, torch.uint8) else "i32"
    return b.convert("trunc", b.saturated_integer(value, wide), kind)


def _widen(b: Builder, value: Value, source: torch.dtype) -> Value:
    if source is torch.float16:
        return b.convert("fpext", value, "f32") if b.target.has_half else half_as_float(b, value)
    if b.target.cheap_interleave and value.lanes > 2:
        return b.from_bits(b.above_zeros(value))
    return b.from_bits(b.shl(b.convert("zext", value, "i32"), 16))


def _narrow(b: Builder, value: Value, dtype: torch.dtype) -> Value:
    if dtype is torch.float16:
        return b.convert("fptrunc", value, "f16") if b.target.has_half else float_as_half(b, value)
    if b.target.has_bfloat:
        return b.as_bfloat(value)
    bits = b.bits(value)
    # NaN keeps its sign, as one does that is only moved; with this bit it stays NaN whatever is cut off.
    is_nan, nan = b.fcmp("uno", value, value), b.or_(bits, 0x400000)
    if not b.target.has_narrowing_add:
        # Half an ulp is added, or a bit less where a tie would go to an odd neighbour.
        odd = b.and_(b.lshr(bits, 16), 1)
        return b.upper_halves(b.select(is_nan, nan, b.add(b.add(bits, odd), 0x7FFF)))
    # Half an ulp is added; where that was a tie, the even one of two neighbours is the one below or the one reached.
    up = b.convert("trunc", b.lshr(b.select(is_nan, nan, b.add(bits, 0x8000)), 16), "i16")
    tie = b.icmp("eq", b.convert("trunc", bits, "i16"), -0x8000)
    return b.and_(up, b.not_(b.convert("zext", tie, "i16")))


# Conversions of float16 by its bits, a whole vector at once: LLVM would call a function for each lane.


def half_as_float(b: Builder, value: Value) -> Value:
    bits = b.convert("zext", b.bits(value), "i32")
    size = b.and_(bits, 0x7FFF)
    moved = b.shl(size, 13)  # exponents differ by 112, and what is below the normal range becomes normal
    finite = b.bits(b.fmul(b.from_bits(moved), 2.0**112))
    magnitude = b.select(b.icmp("uge", size, 0x7C00), b.or_(moved, 0x7F800000), finite)
    return b.from_bits(b.or_(magnitude, b.shl(b.and_(bits, 0x8000), 16)))


def float_as_half(b: Builder, value: Value) -> Value:
    bits = b.bits(value)
    size = b.and_(bits, 0x7FFFFFFF)
    kept = b.lshr(size, 13)
    # Half an ulp is added, or a bit less where a tie would go to an odd neighbour. Below the normal range, where 0.5
    # has the ulp of all results, the addition rounds.
    normal = b.lshr(b.sub(b.add(b.add(size, 0xFFF), b.and_(kept, 1)), 112 << 23), 13)
    tiny = b.sub(b.bits(b.fadd(b.from_bits(size), 0.5)), 0x3F000000)
    magnitude = b.select(b.icmp("ult", size, 113 << 23), tiny, normal)
    magnitude = b.select(b.icmp("uge", size, 0x477FF000), 0x7C00, magnitude)
    magnitude = b.select(b.icmp("ugt", size, 0x7F800000), b.or_(b.and_(kept, 0x3FF), 0x7E00), magnitude)
    return b.from_bits(b.convert("trunc", b.or_(magnitude, b.and_(b.lshr(bits, 16), 0x8000)), "i16"))
