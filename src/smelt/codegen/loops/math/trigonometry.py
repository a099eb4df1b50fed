"""sin and cos: x = n·π/2 + r with |r| ≤ π/4, then one of two polynomials by n.

r is found by subtracting n·π/2 in three parts while |x| is below 2^16. Where any lane is larger a helper is called: one
lane after another it multiplies by the bits of 2/π that matter (Payne and Hanek's method), exact to 2^-60.

f64 does the same in four parts below 2^20, and by more bits of 2/π above.
"""

import itertools
from dataclasses import replace

from smelt.codegen.loops.builder import Builder, Loop, param
from smelt.codegen.loops.math.polynomial import polynomial, round_scaled
from smelt.device import Target
from smelt.ir.loops import BITS, Function, Table, Value

# sin r = r + r³·P(r²)
_SIN = {
    "f32": (-0.0001951083919639569, 0.00833213149768588, -0.1666665422556607),
    "f64": (
        1.5917848524808262e-10, -2.5051127944014188e-08, 2.755731608381636e-06,
        -0.00019841269836722418, 0.008333333333330925, -0.16666666666666666,
    ),
}  # fmt: skip
# cos r = 1 - r²/2 + r⁴·P(r²)
_COS = {
    "f32": (2.443120501691211e-05, -0.0013887306043736532, 0.041666645652892235),
    "f64": (
        -1.1382456778061306e-11, 2.0876143827993133e-09, -2.7557317260008837e-07,
        2.480158729874307e-05, -0.0013888888888887382, 0.041666666666666664,
    ),
}  # fmt: skip
_TWO_OVER_PI = 0.6366197723675814
# In f64 all but the last so short that their products with whole numbers below 2^20 are exact.
_HALF_PI = {
    "f32": (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15),
    "f64": (1.5707963267341256, 6.077100506303966e-11, 2.0222662487111665e-21, 8.4784276603689e-32),
}
_HALF_PI_64 = (1.5707963109016418, 1.5893254773528196e-08)  # the first with trailing zeros, for targets without fma
_LARGE = {"f32": 65536.0, "f64": 1048576.0}
_SMALL = {"f32": 2.0**-12, "f64": 2.0**-27}
_HALF_PI_SCALED = float.fromhex("0x1.921fb54442d18p-64")
_HALF_PI_PAIR = (float.fromhex("0x1.921fb54442d18p+0"), float.fromhex("0x1.1a62633145c07p-54"))

_REDUCE = {"f32": "smelt.reduce_angles", "f64": "smelt.reduce_angles_wide"}
_TWO_OVER_PI_TABLE, _WIDE_TABLE = Value("@smelt.two_over_pi", "ptr"), Value("@smelt.two_over_pi_wide", "ptr")
_ANGLES, _LANES = param("angles", "ptr"), param("lanes")

# 2/π in binary, after 32 zeros so that every window starts inside.
_TWO_OVER_PI_WORDS = (
    0x00000000, 0xA2F9836E, 0x4E441529, 0xFC2757D1, 0xF534DDC0, 0xDB629599, 0x3C439041, 0xFE5163AB, 0xDEBBC561,
)  # fmt: skip

# The same for f64, after 64 zeros.
_TWO_OVER_PI_WIDE = (
    0x0000000000000000, 0xA2F9836E4E441529, 0xFC2757D1F534DDC0, 0xDB6295993C439041, 0xFE5163ABDEBBC561,
    0xB7246E3A424DD2E0, 0x06492EEA09D1921C, 0xFE1DEB1CB129A73E, 0xE88235F52EBB4484, 0xE99C7026B45F7E41,
    0x3991D639835339F4, 0x9C845F8BBDF9283B, 0x1FF897FFDE05980F, 0xEF2F118B5A0A6D1F, 0x6D367ECF27CB09B7,
    0x4F463F669E5FEA2D, 0x7527BAC7EBE5F17B, 0x3D0739F78A5292EA, 0x6BFB5FB11F8D5D08, 0x56033046FC7B6BAB,
    0xF0CFBC209AF4361D, 0xA9E391615EE61B08,
)  # fmt: skip


def _reduce_angles(target: Target) -> Function:
    """A function that reduces `lanes` angles in memory in place, and writes the quadrants behind them."""
    b = Builder(target)
    loop, place, quadrants = _each_angle(b, "f32")
    x = b.load(place, "f32")
    # |x| = m · 2^(e - 23): take the 96 bits of 2/π that start at weight 2 in 2/π · 2^(e - 23); higher ones add turns.
    size = b.and_(b.bits(x), 0x7FFFFFFF)
    biased = b.lshr(size, 23)
    mantissa = b.convert("zext", b.or_(b.and_(size, (1 << 23) - 1), 1 << 23), "i128")
    finite = b.icmp("ult", biased, 255)
    start = b.sub(b.select(finite, b.select(b.icmp("ult", biased, 128), 128, biased), 128), 120)
    first = b.element(_TWO_OVER_PI_TABLE, "i32", b.convert("zext", b.lshr(start, 5), "i64"))
    words = [b.convert("zext", b.load(b.element(first, "i32", n), "i32"), "i128") for n in range(4)]
    high, low = b.or_(b.shl(words[0], 96), b.shl(words[1], 64)), b.or_(b.shl(words[2], 32), words[3])
    aligned = b.shl(b.or_(high, low), b.convert("zext", b.and_(start, 31), "i128"))
    turns = b.shl(b.mul(b.lshr(aligned, 32), mantissa), 32)
    # Two bits of quadrant, then the fraction; read as signed, the fraction is the distance to the nearest quadrant.
    quadrant = b.convert("trunc", b.lshr(b.add(turns, 1 << 125), 126), "i32")
    distance = b.convert("sitofp", b.convert("trunc", b.ashr(b.shl(turns, 2), 64), "i64"), "f64")
    r = b.convert("fptrunc", b.fmul(distance, _HALF_PI_SCALED), "f32")
    _store_angle(b, x, finite, r, quadrant, place, b.element(quadrants, "i32", loop.index))
    loop.end()
    function = b.function(_REDUCE["f32"], (_ANGLES, _LANES), "shared", inlined=False)
    return replace(function, tables=(_table(_TWO_OVER_PI_TABLE, "i32", _TWO_OVER_PI_WORDS),))


def _reduce_wide_angles(target: Target) -> Function:
    """The same for f64."""
    b = Builder(target)
    loop, place, quadrants = _each_angle(b, "f64")
    x = b.load(place, "f64")
    # |x| = m · 2^e: take the 192 bits of 2/π that start at weight 2 in 2/π · 2^e; higher ones add turns.
    size = b.and_(b.bits(x), (1 << 63) - 1)
    biased = b.lshr(size, 52)
    mantissa = b.convert("zext", b.or_(b.and_(size, (1 << 52) - 1), 1 << 52), "i128")
    finite = b.icmp("ult", biased, 2047)
    start = b.sub(b.select(finite, b.select(b.icmp("ult", biased, 1023), 1023, biased), 1023), 1013)
    first = b.element(_WIDE_TABLE, "i64", b.lshr(start, 6))
    shift = b.convert("zext", b.and_(start, 63), "i128")
    words = [b.convert("zext", b.load(b.element(first, "i64", n), "i64"), "i128") for n in range(4)]
    pairs = [b.or_(b.shl(high, 64), low) for high, low in itertools.pairwise(words)]
    windows = [b.lshr(b.shl(pair, shift), 64) for pair in pairs]
    sums = [b.mul(windows[2], mantissa)]
    for window in (windows[1], windows[0]):
        sums.append(b.add(b.mul(window, mantissa), b.lshr(sums[-1], 64)))
    turns = [b.convert("trunc", each, "i64") for each in reversed(sums)]
    # Two bits of quadrant, then the fraction; read as signed, the fraction is the distance to the nearest quadrant.
    quadrant = b.lshr(b.add(turns[0], 1 << 61), 62)
    high = b.or_(b.shl(turns[0], 2), b.lshr(turns[1], 62))
    rest = b.or_(b.shl(turns[1], 2), b.lshr(turns[2], 62))
    # In two doubles, the first exact, then times π/2 in two parts.
    one = b.fmul(b.convert("sitofp", b.and_(high, -2048), "f64"), 2.0**-64)
    two = b.fmul(b.convert("uitofp", b.or_(b.shl(high, 53), b.lshr(rest, 11)), "f64"), 2.0**-117)
    total = b.fadd(one, two)
    behind = b.fsub(two, b.fsub(total, one))
    half_pi, half_pi_rest = _HALF_PI_PAIR
    rough = b.fmul(total, half_pi)
    if target.has_fma:
        lost = b.fma(total, half_pi, b.fneg(rough))
        low = b.fma(total, half_pi_rest, b.fma(behind, half_pi, lost))
    else:
        low = b.fadd(b.fmul(behind, half_pi), b.fmul(total, half_pi_rest))
    _store_angle(b, x, finite, b.fadd(rough, low), quadrant, place, b.element(quadrants, "i64", loop.index))
    loop.end()
    function = b.function(_REDUCE["f64"], (_ANGLES, _LANES), "shared", inlined=False)
    return replace(function, tables=(*function.tables, _table(_WIDE_TABLE, "i64", _TWO_OVER_PI_WIDE)))


def _each_angle(b: Builder, kind: str) -> tuple[Loop, Value, Value]:
    """A loop over the angles, the address of one, and that of all quadrants."""
    quadrants = b.element(_ANGLES, f"i{BITS[kind]}", _LANES)
    loop = b.begin(b.const("i64", 0), _LANES, 1, (), guard=False)
    return loop, b.element(_ANGLES, kind, loop.index), quadrants


def _store_angle(
    b: Builder, x: Value, finite: Value, r: Value, quadrant: Value, place: Value, quadrant_at: Value
) -> None:
    """With the sign of x; NaN for what is not finite."""
    negative = b.icmp("slt", b.bits(x), 0)
    signed = b.select(negative, b.fneg(r), r)
    b.store(b.select(finite, signed, b.fsub(x, x)), place)
    b.store(b.select(negative, b.sub(0, quadrant), quadrant), quadrant_at)


def _table(address: Value, kind: str, words: tuple[int, ...]) -> Table:
    return Table(address.name[1:], tuple(Value("", kind, number=word) for word in words))


def sin(b: Builder, x: Value) -> Value:
    r, quadrant = _reduce(b, x)
    # The sine of a small angle is the angle; a separate case keeps the sign of zero.
    return b.select(b.fcmp("olt", b.fabs(x), _SMALL[x.kind]), x, _by_quadrant(b, r, quadrant))


def cos(b: Builder, x: Value) -> Value:
    r, quadrant = _reduce(b, x)
    return _by_quadrant(b, r, b.add(quadrant, 1))


def _by_quadrant(b: Builder, r: Value, quadrant: Value) -> Value:
    """The sine of r + quadrant · π/2."""
    square = b.fmul(r, r)
    sine = b.fma(b.fmul(polynomial(b, square, _SIN[r.kind]), square), r, r)
    cosine = b.fma(b.fma(polynomial(b, square, _COS[r.kind]), square, -0.5), square, 1.0)
    odd = b.icmp("ne", b.and_(quadrant, 1), 0)
    sign = b.shl(b.and_(quadrant, 2), 62 if r.kind == "f64" else 30)
    return b.from_bits(b.xor(b.bits(b.select(odd, cosine, sine)), sign))


def _reduce(b: Builder, x: Value) -> tuple[Value, Value]:
    """r and an integer whose two low bits are the quadrant; shared by the sine and cosine of one value."""
    known = b.shared.get(("angle", x.name))
    if known is not None:
        return known[0], known[1]
    n, held = round_scaled(b, x, _TWO_OVER_PI)
    quick = _subtract_quadrants(b, x, n)
    large = b.not_(b.fcmp("olt", b.fabs(x), _LARGE[x.kind]))

    def exact() -> list[Value]:
        each, quadrants = _reduce_each(b, x)
        return [b.select(large, each, quick), b.select(large, quadrants, held)]

    r, q = b.choice(b.reduce_lanes("or", large), exact, lambda: [quick, held])
    b.shared["angle", x.name] = (r, q)
    return r, q


def _subtract_quadrants(b: Builder, x: Value, n: Value) -> Value:
    if b.target.has_fma or x.kind == "f64":
        for part in _HALF_PI[x.kind]:
            x = b.fma(n, -part, x)
        return x
    wide, count = b.convert("fpext", x, "f64"), b.convert("fpext", n, "f64")
    for part in _HALF_PI_64:
        wide = b.fsub(wide, b.fmul(count, part))
    return b.convert("fptrunc", wide, "f32")


def _reduce_each(b: Builder, x: Value) -> tuple[Value, Value]:
    """All lanes by the helper. A loop in there: calls for each lane took LLVM longer than the rest of a kernel."""
    helper, kind = _REDUCE[x.kind], f"i{BITS[x.kind]}"
    if helper not in b.helpers:
        b.helpers[helper] = (_reduce_wide_angles if x.kind == "f64" else _reduce_angles)(b.target)
    place = b.stack(f"angles{x.kind}.{x.lanes}", kind, 2 * x.lanes, 16)
    b.store(x, place)
    b.call(helper, place, b.const("i64", x.lanes))
    angles = b.load(place, x.kind, x.lanes)
    return angles, b.load(b.element(place, kind, x.lanes), kind, x.lanes)
