"""sin and cos: x = n·π/2 + r with |r| ≤ π/4, then one of two polynomials by n.

r is found by subtracting n·π/2 in three parts while |x| is below 2^16. Where any lane is larger a helper is called: one
lane after another it multiplies by the bits of 2/π that matter (Payne and Hanek's method), exact to 2^-60.

f64 does the same in four parts below 2^20; where any lane is larger, all of it is the C library's.
"""

from smelt.codegen.llvm.builder import Builder, LlvmValue, type_text
from smelt.codegen.llvm.math.library import library
from smelt.codegen.llvm.math.polynomial import polynomial, round_scaled

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
_HALF_PI = (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15)
_HALF_PI_64 = (1.5707963109016418, 1.5893254773528196e-08)  # the first with trailing zeros, for targets without fma
# For f64; all but the last so short that their products with whole numbers below 2^20 are exact.
_HALF_PI_WIDE = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487111665e-21, 8.4784276603689e-32)
_LARGE = 65536.0
_LARGE_WIDE = 1048576.0

# 2/π in binary, after 32 zeros so that every window starts inside.
_TWO_OVER_PI_WORDS = (
    0x00000000, 0xA2F9836E, 0x4E441529, 0xFC2757D1, 0xF534DDC0, 0xDB629599, 0x3C439041, 0xFE5163AB, 0xDEBBC561,
)  # fmt: skip

_REDUCE = "smelt.reduce_angles"
_WORDS_TEXT = ", ".join(f"i32 {word}" for word in _TWO_OVER_PI_WORDS)
_REDUCE_TEXT = f"""
@smelt.two_over_pi = internal constant [{len(_TWO_OVER_PI_WORDS)} x i32] [{_WORDS_TEXT}]

; `lanes` angles in memory are reduced in place, and the quadrants are written behind them.
define internal void @{_REDUCE}(ptr %angles, i64 %lanes) noinline {{
entry:
  %quadrants = getelementptr i32, ptr %angles, i64 %lanes
  br label %each
each:
  %lane = phi i64 [ 0, %entry ], [ %next, %each ]
  %angle = getelementptr float, ptr %angles, i64 %lane
  %x = load float, ptr %angle
  ; |x| = m * 2^(e - 23): take the 96 bits of 2/pi that start at weight 2 in 2/pi * 2^(e - 23); higher ones add turns.
  %bits = bitcast float %x to i32
  %size = and i32 %bits, 2147483647
  %biased = lshr i32 %size, 23
  %fraction = and i32 %size, 8388607
  %m = or i32 %fraction, 8388608
  %finite = icmp ult i32 %biased, 255
  %small = icmp ult i32 %biased, 128
  %low = select i1 %small, i32 128, i32 %biased
  %top = select i1 %finite, i32 %low, i32 128
  %start = sub i32 %top, 120
  %word = lshr i32 %start, 5
  %shift = and i32 %start, 31
  %at = zext i32 %word to i64
  %p0 = getelementptr i32, ptr @smelt.two_over_pi, i64 %at
  %p1 = getelementptr i32, ptr %p0, i64 1
  %p2 = getelementptr i32, ptr %p0, i64 2
  %p3 = getelementptr i32, ptr %p0, i64 3
  %w0 = load i32, ptr %p0
  %w1 = load i32, ptr %p1
  %w2 = load i32, ptr %p2
  %w3 = load i32, ptr %p3
  %x0 = zext i32 %w0 to i128
  %x1 = zext i32 %w1 to i128
  %x2 = zext i32 %w2 to i128
  %x3 = zext i32 %w3 to i128
  %y0 = shl i128 %x0, 96
  %y1 = shl i128 %x1, 64
  %y2 = shl i128 %x2, 32
  %z0 = or i128 %y0, %y1
  %z1 = or i128 %y2, %x3
  %z = or i128 %z0, %z1
  %wide = zext i32 %shift to i128
  %aligned = shl i128 %z, %wide
  %window = lshr i128 %aligned, 32
  %m128 = zext i32 %m to i128
  %product = mul i128 %window, %m128
  %turns = shl i128 %product, 32
  ; Two bits of quadrant, then the fraction; read as signed, the fraction is the distance to the nearest quadrant.
  %rounded = add i128 %turns, {1 << 125}
  %quadrant128 = lshr i128 %rounded, 126
  %quadrant = trunc i128 %quadrant128 to i32
  %left = shl i128 %turns, 2
  %high = ashr i128 %left, 64
  %high64 = trunc i128 %high to i64
  %distance = sitofp i64 %high64 to double
  %scaled = fmul double %distance, 0x3BF921FB54442D18
  %r = fptrunc double %scaled to float
  %negative = icmp slt i32 %bits, 0
  %rn = fneg float %r
  %qn = sub i32 0, %quadrant
  %rs = select i1 %negative, float %rn, float %r
  %qs = select i1 %negative, i32 %qn, i32 %quadrant
  %nan = fsub float %x, %x
  %rf = select i1 %finite, float %rs, float %nan
  store float %rf, ptr %angle
  %q = getelementptr i32, ptr %quadrants, i64 %lane
  store i32 %qs, ptr %q
  %next = add i64 %lane, 1
  %more = icmp ult i64 %next, %lanes
  br i1 %more, label %each, label %done
done:
  ret void
}}
"""


def sin(b: Builder, x: LlvmValue) -> LlvmValue:
    r, quadrant = _reduce(b, x)
    # Below 2^-12 the sine is the angle; said apart so that the sign of zero stays.
    return b.select(b.fcmp("olt", b.fabs(x), 2.0**-12), x, _by_quadrant(b, r, quadrant))


def cos(b: Builder, x: LlvmValue) -> LlvmValue:
    r, quadrant = _reduce(b, x)
    return _by_quadrant(b, r, b.add(quadrant, 1))


def _by_quadrant(b: Builder, r: LlvmValue, quadrant: LlvmValue) -> LlvmValue:
    """The sine of r + quadrant · π/2."""
    square = b.fmul(r, r)
    sine = b.fma(b.fmul(polynomial(b, square, _SIN[r.kind]), square), r, r)
    cosine = b.fma(b.fma(polynomial(b, square, _COS[r.kind]), square, -0.5), square, 1.0)
    odd = b.icmp("ne", b.and_(quadrant, 1), 0)
    sign = b.shl(b.and_(quadrant, 2), 62 if r.kind == "f64" else 30)
    return b.from_bits(b.xor(b.bits(b.select(odd, cosine, sine)), sign))


def _reduce(b: Builder, x: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
    """r and an integer whose two low bits are the quadrant; shared by the sine and cosine of one value."""
    known = b.shared.get(("angle", x.name))
    if known is not None:
        return known[0], known[1]
    n, held = round_scaled(b, x, _TWO_OVER_PI)
    quick = _subtract_quadrants(b, x, n)
    large = b.not_(b.fcmp("olt", b.fabs(x), _LARGE))
    slow, join, before = b.new_label("huge"), b.new_label("angle"), b.block
    b.branch(b.any_lane(large), slow, join)
    b.label(slow)
    each, quadrants = _reduce_each(b, x)
    exact, quadrant = b.select(large, each, quick), b.select(large, quadrants, held)
    b.jump(join)
    b.label(join)
    r = b.op(f"phi {x.type} [ {quick.name}, %{before} ], [ {exact.name}, %{slow} ]", "f32", x.lanes)
    q = b.op(f"phi {held.type} [ {held.name}, %{before} ], [ {quadrant.name}, %{slow} ]", "i32", x.lanes)
    b.shared["angle", x.name] = (r, q)
    return r, q


def _subtract_quadrants(b: Builder, x: LlvmValue, n: LlvmValue) -> LlvmValue:
    if b.target.has_fma:
        r = x
        for part in _HALF_PI:
            r = b.fma(n, -part, r)
        return r
    wide, count = b.convert("fpext", x, "f64"), b.convert("fpext", n, "f64")
    for part in _HALF_PI_64:
        wide = b.fsub(wide, b.fmul(count, part))
    return b.convert("fptrunc", wide, "f32")


def _reduce_each(b: Builder, x: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
    """All lanes by the helper. A loop in there: calls for each lane took LLVM longer than the rest of a kernel."""
    b.helpers[_REDUCE] = _REDUCE_TEXT
    place = f"%angles{x.lanes}"
    space = f"{place} = alloca [{2 * x.lanes} x i32], align 16"
    if space not in b.prologue:
        b.prologue.append(space)
    b.emit(f"store {x}, ptr {place}, align 4")
    b.emit(f"call void @{_REDUCE}(ptr {place}, i64 {x.lanes})")
    behind = b.op(f"getelementptr i32, ptr {place}, i64 {x.lanes}", "ptr", 1)
    angles = b.op(f"load {x.type}, ptr {place}, align 4", x.kind, x.lanes)
    return angles, b.op(f"load {type_text('i32', x.lanes)}, ptr {behind.name}, align 4", "i32", x.lanes)


def sin_wide(b: Builder, x: LlvmValue) -> LlvmValue:
    """For f64."""
    r, quadrant = _reduce_wide(b, x)
    return _or_library(b, x, b.select(b.fcmp("olt", b.fabs(x), 2.0**-27), x, _by_quadrant(b, r, quadrant)), "sin")


def cos_wide(b: Builder, x: LlvmValue) -> LlvmValue:
    """For f64."""
    r, quadrant = _reduce_wide(b, x)
    return _or_library(b, x, _by_quadrant(b, r, b.add(quadrant, 1)), "cos")


def _reduce_wide(b: Builder, x: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
    n, held = round_scaled(b, x, _TWO_OVER_PI)
    r = x
    for part in _HALF_PI_WIDE:
        r = b.fma(n, -part, r)
    return r, held


def _or_library(b: Builder, x: LlvmValue, quick: LlvmValue, name: str) -> LlvmValue:
    """`quick`, and the C library's answer for lanes too large for it, asked only where there are any."""
    large = b.not_(b.fcmp("olt", b.fabs(x), _LARGE_WIDE))
    slow, join, before = b.new_label("huge"), b.new_label("angle"), b.block
    b.branch(b.any_lane(large), slow, join)
    b.label(slow)
    exact = b.select(large, library(name)(b, x), quick)
    b.jump(join)
    b.label(join)
    return b.op(f"phi {x.type} [ {quick.name}, %{before} ], [ {exact.name}, %{slow} ]", x.kind, x.lanes)
