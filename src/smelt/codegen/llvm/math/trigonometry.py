"""sin and cos: x = n·π/2 + r with |r| ≤ π/4, then one of two polynomials by n.

r is found by subtracting n·π/2 in three parts while |x| is below 2^16. Where any lane is larger a helper is called: one
lane after another it multiplies by the bits of 2/π that matter (Payne and Hanek's method), exact to 2^-60.

f64 does the same in four parts below 2^20, and by more bits of 2/π above.
"""

from smelt.codegen.llvm.builder import Builder, LlvmValue, type_text
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
_LARGE = {"f32": 65536.0, "f64": 1048576.0}
_SMALL = {"f32": 2.0**-12, "f64": 2.0**-27}

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


# The same for f64, after 64 zeros.
_TWO_OVER_PI_WIDE = (
    0x0000000000000000, 0xA2F9836E4E441529, 0xFC2757D1F534DDC0, 0xDB6295993C439041, 0xFE5163ABDEBBC561,
    0xB7246E3A424DD2E0, 0x06492EEA09D1921C, 0xFE1DEB1CB129A73E, 0xE88235F52EBB4484, 0xE99C7026B45F7E41,
    0x3991D639835339F4, 0x9C845F8BBDF9283B, 0x1FF897FFDE05980F, 0xEF2F118B5A0A6D1F, 0x6D367ECF27CB09B7,
    0x4F463F669E5FEA2D, 0x7527BAC7EBE5F17B, 0x3D0739F78A5292EA, 0x6BFB5FB11F8D5D08, 0x56033046FC7B6BAB,
    0xF0CFBC209AF4361D, 0xA9E391615EE61B08,
)  # fmt: skip
_REDUCE_WIDE = "smelt.reduce_angles_wide"
_WIDE_TYPE = f"[{len(_TWO_OVER_PI_WIDE)} x i64]"
_WIDE_TEXT = ", ".join(f"i64 {word}" for word in _TWO_OVER_PI_WIDE)
_FUSED = """
  %rough = fmul double %sum, 0x3FF921FB54442D18
  %minus = fneg double %rough
  %lost = call double @llvm.fma.f64(double %sum, double 0x3FF921FB54442D18, double %minus)
  %low1 = call double @llvm.fma.f64(double %behind, double 0x3FF921FB54442D18, double %lost)
  %low = call double @llvm.fma.f64(double %sum, double 0x3C91A62633145C07, double %low1)"""
_NOT_FUSED = """
  %rough = fmul double %sum, 0x3FF921FB54442D18
  %low1 = fmul double %behind, 0x3FF921FB54442D18
  %low2 = fmul double %sum, 0x3C91A62633145C07
  %low = fadd double %low1, %low2"""


def _reduce_wide_text(fused: bool) -> str:
    return f"""
@smelt.two_over_pi_wide = internal constant {_WIDE_TYPE} [{_WIDE_TEXT}]

; `lanes` angles in memory are reduced in place, and the quadrants are written behind them.
define internal void @{_REDUCE_WIDE}(ptr %angles, i64 %lanes) noinline {{
entry:
  %quadrants = getelementptr i64, ptr %angles, i64 %lanes
  br label %each
each:
  %lane = phi i64 [ 0, %entry ], [ %next, %each ]
  %angle = getelementptr double, ptr %angles, i64 %lane
  %x = load double, ptr %angle
  ; |x| = m * 2^e: take the 192 bits of 2/pi that start at weight 2 in 2/pi * 2^e; higher ones add turns.
  %bits = bitcast double %x to i64
  %size = and i64 %bits, 9223372036854775807
  %biased = lshr i64 %size, 52
  %fraction = and i64 %size, 4503599627370495
  %m = or i64 %fraction, 4503599627370496
  %finite = icmp ult i64 %biased, 2047
  %small = icmp ult i64 %biased, 1023
  %least = select i1 %small, i64 1023, i64 %biased
  %top = select i1 %finite, i64 %least, i64 1023
  %start = sub i64 %top, 1013
  %word = lshr i64 %start, 6
  %shift = and i64 %start, 63
  %shift128 = zext i64 %shift to i128
  %p0 = getelementptr {_WIDE_TYPE}, ptr @smelt.two_over_pi_wide, i64 0, i64 %word
  %p1 = getelementptr i64, ptr %p0, i64 1
  %p2 = getelementptr i64, ptr %p0, i64 2
  %p3 = getelementptr i64, ptr %p0, i64 3
  %a0 = load i64, ptr %p0
  %a1 = load i64, ptr %p1
  %a2 = load i64, ptr %p2
  %a3 = load i64, ptr %p3
  %b0 = zext i64 %a0 to i128
  %b1 = zext i64 %a1 to i128
  %b2 = zext i64 %a2 to i128
  %b3 = zext i64 %a3 to i128
  %c0 = shl i128 %b0, 64
  %c1 = shl i128 %b1, 64
  %c2 = shl i128 %b2, 64
  %d0 = or i128 %c0, %b1
  %d1 = or i128 %c1, %b2
  %d2 = or i128 %c2, %b3
  %e0 = shl i128 %d0, %shift128
  %e1 = shl i128 %d1, %shift128
  %e2 = shl i128 %d2, %shift128
  %w0 = lshr i128 %e0, 64
  %w1 = lshr i128 %e1, 64
  %w2 = lshr i128 %e2, 64
  %m128 = zext i64 %m to i128
  %t2 = mul i128 %w2, %m128
  %u1 = mul i128 %w1, %m128
  %u0 = mul i128 %w0, %m128
  %carry2 = lshr i128 %t2, 64
  %t1 = add i128 %u1, %carry2
  %carry1 = lshr i128 %t1, 64
  %t0 = add i128 %u0, %carry1
  %turn0 = trunc i128 %t0 to i64
  %turn1 = trunc i128 %t1 to i64
  %turn2 = trunc i128 %t2 to i64
  ; Two bits of quadrant, then the fraction; read as signed, the fraction is the distance to the nearest quadrant.
  %rounded = add i64 %turn0, 2305843009213693952
  %quadrant = lshr i64 %rounded, 62
  %f0 = shl i64 %turn0, 2
  %f1 = lshr i64 %turn1, 62
  %high = or i64 %f0, %f1
  %f2 = shl i64 %turn1, 2
  %f3 = lshr i64 %turn2, 62
  %rest = or i64 %f2, %f3
  ; In two doubles, the first exact, then times pi/2 in two parts.
  %first = and i64 %high, -2048
  %next0 = shl i64 %high, 53
  %next1 = lshr i64 %rest, 11
  %second = or i64 %next0, %next1
  %first64 = sitofp i64 %first to double
  %second64 = uitofp i64 %second to double
  %one = fmul double %first64, 0x3BF0000000000000
  %two = fmul double %second64, 0x38A0000000000000
  %sum = fadd double %one, %two
  %back = fsub double %sum, %one
  %behind = fsub double %two, %back
{_FUSED if fused else _NOT_FUSED}
  %r = fadd double %rough, %low
  %negative = icmp slt i64 %bits, 0
  %rn = fneg double %r
  %qn = sub i64 0, %quadrant
  %rs = select i1 %negative, double %rn, double %r
  %qs = select i1 %negative, i64 %qn, i64 %quadrant
  %nan = fsub double %x, %x
  %rf = select i1 %finite, double %rs, double %nan
  store double %rf, ptr %angle
  %q = getelementptr i64, ptr %quadrants, i64 %lane
  store i64 %qs, ptr %q
  %next = add i64 %lane, 1
  %more = icmp ult i64 %next, %lanes
  br i1 %more, label %each, label %done
done:
  ret void
}}
"""


def sin(b: Builder, x: LlvmValue) -> LlvmValue:
    r, quadrant = _reduce(b, x)
    # The sine of a small angle is the angle; a separate case keeps the sign of zero.
    return b.select(b.fcmp("olt", b.fabs(x), _SMALL[x.kind]), x, _by_quadrant(b, r, quadrant))


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
    quick = _subtract_quadrants_wide(b, x, n) if x.kind == "f64" else _subtract_quadrants(b, x, n)
    large = b.not_(b.fcmp("olt", b.fabs(x), _LARGE[x.kind]))
    slow, join, before = b.new_label("huge"), b.new_label("angle"), b.block
    b.branch(b.any_lane(large), slow, join)
    b.label(slow)
    each, quadrants = _reduce_each(b, x)
    exact, quadrant = b.select(large, each, quick), b.select(large, quadrants, held)
    b.jump(join)
    b.label(join)
    r = b.op(f"phi {x.type} [ {quick.name}, %{before} ], [ {exact.name}, %{slow} ]", x.kind, x.lanes)
    q = b.op(f"phi {held.type} [ {held.name}, %{before} ], [ {quadrant.name}, %{slow} ]", held.kind, x.lanes)
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


def _subtract_quadrants_wide(b: Builder, x: LlvmValue, n: LlvmValue) -> LlvmValue:
    r = x
    for part in _HALF_PI_WIDE:
        r = b.fma(n, -part, r)
    return r


def _reduce_each(b: Builder, x: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
    """All lanes by the helper. A loop in there: calls for each lane took LLVM longer than the rest of a kernel."""
    wide = x.kind == "f64"
    helper, kind = (_REDUCE_WIDE, "i64") if wide else (_REDUCE, "i32")
    b.helpers[helper] = _reduce_wide_text(b.target.has_fma) if wide else _REDUCE_TEXT
    if wide and b.target.has_fma:
        b.declare("llvm.fma.f64", "double", ["double"] * 3)
    place = f"%angles{x.kind}.{x.lanes}"
    space = f"{place} = alloca [{2 * x.lanes} x {kind}], align 16"
    if space not in b.prologue:
        b.prologue.append(space)
    b.emit(f"store {x}, ptr {place}, align {8 if wide else 4}")
    b.emit(f"call void @{helper}(ptr {place}, i64 {x.lanes})")
    behind = b.op(f"getelementptr {kind}, ptr {place}, i64 {x.lanes}", "ptr", 1)
    angles = b.op(f"load {x.type}, ptr {place}, align {8 if wide else 4}", x.kind, x.lanes)
    return angles, b.op(
        f"load {type_text(kind, x.lanes)}, ptr {behind.name}, align {8 if wide else 4}", kind, x.lanes
    )
