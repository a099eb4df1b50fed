"""Functions that LLVM calls where a processor has no instruction, as LLVM text, so that compiled artifacts need no
library.

    support_text(["__truncsfhf2"], target)    float32 → float16 on a processor that only computes with the first

They are appended to an image or object that refers to them. `pow` of float64 without fused multiply-add is not
included: the C library provides it, or JavaScript in a browser.
"""

from collections.abc import Sequence

from smelt.device import Target

_EXTEND = """
define hidden float @__extendhfsf2(half %x) {
  %short = bitcast half %x to i16
  %bits = zext i16 %short to i32
  %sign.low = and i32 %bits, 32768
  %sign = shl i32 %sign.low, 16
  %size = and i32 %bits, 32767
  %moved = shl i32 %size, 13
  %small = bitcast i32 %moved to float
  %scaled = fmul float %small, 0x46F0000000000000
  %finite = bitcast float %scaled to i32
  %special = or i32 %moved, 2139095040
  %is.special = icmp uge i32 %size, 31744
  %value = select i1 %is.special, i32 %special, i32 %finite
  %all = or i32 %value, %sign
  %y = bitcast i32 %all to float
  ret float %y
}
"""

_TRUNCATE = """
define hidden half @__truncsfhf2(float %x) {
  %bits = bitcast float %x to i32
  %high = lshr i32 %bits, 16
  %sign = and i32 %high, 32768
  %size = and i32 %bits, 2147483647
  %shown = lshr i32 %size, 13
  %payload = and i32 %shown, 1023
  %nan = or i32 %payload, 32256
  %is.nan = icmp ugt i32 %size, 2139095040
  %positive = bitcast i32 %size to float
  %lifted = fadd float %positive, 5.0e-01
  %lifted.bits = bitcast float %lifted to i32
  %tiny = sub i32 %lifted.bits, 1056964608
  %is.tiny = icmp ult i32 %size, 947912704
  %even = and i32 %shown, 1
  %up = add i32 %size, 4095
  %rounded = add i32 %up, %even
  %rebased = sub i32 %rounded, 939524096
  %normal = lshr i32 %rebased, 13
  %is.huge = icmp uge i32 %size, 1199566848
  %a = select i1 %is.tiny, i32 %tiny, i32 %normal
  %b = select i1 %is.huge, i32 31744, i32 %a
  %c = select i1 %is.nan, i32 %nan, i32 %b
  %all = or i32 %c, %sign
  %short = trunc i32 %all to i16
  %y = bitcast i16 %short to half
  ret half %y
}
"""

# Where the first rounding is not exact, its last bit is one: so the second sees on which side of a tie the number is.
_TRUNCATE_WIDE = """
define hidden half @__truncdfhf2(double %x) {
  %near = fptrunc double %x to float
  %back = fpext float %near to double
  %bits = bitcast float %near to i32
  %inexact = fcmp one double %back, %x
  %last = and i32 %bits, 1
  %is.even = icmp eq i32 %last, 0
  %x.bits = bitcast double %x to i64
  %x.size = and i64 %x.bits, 9223372036854775807
  %back.bits = bitcast double %back to i64
  %back.size = and i64 %back.bits, 9223372036854775807
  %beyond = icmp ugt i64 %back.size, %x.size
  %step = select i1 %beyond, i32 -1, i32 1
  %other = add i32 %bits, %step
  %moves = and i1 %inexact, %is.even
  %odd.bits = select i1 %moves, i32 %other, i32 %bits
  %odd = bitcast i32 %odd.bits to float
  %y = call half @__truncsfhf2(float %odd)
  ret half %y
}
"""

# Bit by bit, as one divides by hand: mantissas are 53-bit integers, and each round takes the exponent down by one.
_FMOD = """
declare i64 @llvm.ctlz.i64(i64, i1)
define internal { i64, i64 } @smelt.mantissa(i64 %size) {
  %exponent = lshr i64 %size, 52
  %fraction = and i64 %size, 4503599627370495
  %whole = or i64 %fraction, 4503599627370496
  %is.tiny = icmp eq i64 %exponent, 0
  %zeros = call i64 @llvm.ctlz.i64(i64 %fraction, i1 false)
  %by = sub i64 %zeros, 11
  %lifted = shl i64 %fraction, %by
  %low = sub i64 1, %by
  %m = select i1 %is.tiny, i64 %lifted, i64 %whole
  %e = select i1 %is.tiny, i64 %low, i64 %exponent
  %half = insertvalue { i64, i64 } poison, i64 %m, 0
  %both = insertvalue { i64, i64 } %half, i64 %e, 1
  ret { i64, i64 } %both
}
define hidden double @fmod(double %x, double %y) {
  %x.bits = bitcast double %x to i64
  %y.bits = bitcast double %y to i64
  %sign = and i64 %x.bits, -9223372036854775808
  %x.size = and i64 %x.bits, 9223372036854775807
  %y.size = and i64 %y.bits, 9223372036854775807
  %no.divisor = icmp eq i64 %y.size, 0
  %y.nan = icmp ugt i64 %y.size, 9218868437227405312
  %x.special = icmp uge i64 %x.size, 9218868437227405312
  %wrong.y = or i1 %no.divisor, %y.nan
  %wrong = or i1 %wrong.y, %x.special
  br i1 %wrong, label %none, label %defined
none:
  ret double 0x7FF8000000000000
defined:
  %is.less = icmp ult i64 %x.size, %y.size
  br i1 %is.less, label %itself, label %divide
itself:
  ret double %x
divide:
  %of.x = call { i64, i64 } @smelt.mantissa(i64 %x.size)
  %of.y = call { i64, i64 } @smelt.mantissa(i64 %y.size)
  %mx = extractvalue { i64, i64 } %of.x, 0
  %ex = extractvalue { i64, i64 } %of.x, 1
  %my = extractvalue { i64, i64 } %of.y, 0
  %ey = extractvalue { i64, i64 } %of.y, 1
  br label %round
round:
  %m = phi i64 [ %mx, %divide ], [ %doubled, %next ]
  %e = phi i64 [ %ex, %divide ], [ %e.next, %next ]
  %less = sub i64 %m, %my
  %fits = icmp uge i64 %m, %my
  %rest = select i1 %fits, i64 %less, i64 %m
  %more = icmp sgt i64 %e, %ey
  br i1 %more, label %next, label %done
next:
  %doubled = shl i64 %rest, 1
  %e.next = sub i64 %e, 1
  br label %round
done:
  %is.zero = icmp eq i64 %rest, 0
  br i1 %is.zero, label %nothing, label %something
nothing:
  %zero = bitcast i64 %sign to double
  ret double %zero
something:
  %zeros = call i64 @llvm.ctlz.i64(i64 %rest, i1 false)
  %by = sub i64 %zeros, 11
  %top = shl i64 %rest, %by
  %e.top = sub i64 %e, %by
  %normal = icmp sgt i64 %e.top, 0
  %fraction = and i64 %top, 4503599627370495
  %e.bits = shl i64 %e.top, 52
  %as.normal = or i64 %fraction, %e.bits
  %down = sub i64 1, %e.top
  %down.safe = select i1 %normal, i64 0, i64 %down
  %as.tiny = lshr i64 %top, %down.safe
  %size = select i1 %normal, i64 %as.normal, i64 %as.tiny
  %all = or i64 %size, %sign
  %z = bitcast i64 %all to double
  ret double %z
}
"""

_FMOD_NARROW = """
define hidden float @fmodf(float %x, float %y) {
  %a = fpext float %x to double
  %b = fpext float %y to double
  %c = call double @fmod(double %a, double %b)
  %d = fptrunc double %c to float
  ret float %d
}
"""

_COPY = """
define hidden ptr @memcpy(ptr %to, ptr %from, SIZE %bytes) {
entry:
  %any = icmp ne SIZE %bytes, 0
  br i1 %any, label %body, label %exit
body:
  %i = phi SIZE [ 0, %entry ], [ %next, %body ]
  %source = getelementptr i8, ptr %from, SIZE %i
  %target = getelementptr i8, ptr %to, SIZE %i
  %byte = load i8, ptr %source
  store volatile i8 %byte, ptr %target
  %next = add SIZE %i, 1
  %more = icmp ult SIZE %next, %bytes
  br i1 %more, label %body, label %exit
exit:
  ret ptr %to
}
"""

_MOVE = """
define hidden ptr @memmove(ptr %to, ptr %from, SIZE %bytes) {
entry:
  %forwards = icmp ult ptr %to, %from
  br i1 %forwards, label %copy, label %check
copy:
  %copied = call ptr @memcpy(ptr %to, ptr %from, SIZE %bytes)
  ret ptr %to
check:
  %any = icmp ne SIZE %bytes, 0
  br i1 %any, label %body, label %exit
body:
  %left = phi SIZE [ %bytes, %check ], [ %i, %body ]
  %i = sub SIZE %left, 1
  %source = getelementptr i8, ptr %from, SIZE %i
  %target = getelementptr i8, ptr %to, SIZE %i
  %byte = load i8, ptr %source
  store volatile i8 %byte, ptr %target
  %more = icmp ne SIZE %i, 0
  br i1 %more, label %body, label %exit
exit:
  ret ptr %to
}
"""

_SET = """
define hidden ptr @memset(ptr %to, i32 %value, SIZE %bytes) {
entry:
  %byte = trunc i32 %value to i8
  %any = icmp ne SIZE %bytes, 0
  br i1 %any, label %body, label %exit
body:
  %i = phi SIZE [ 0, %entry ], [ %next, %body ]
  %target = getelementptr i8, ptr %to, SIZE %i
  store volatile i8 %byte, ptr %target
  %next = add SIZE %i, 1
  %more = icmp ult SIZE %next, %bytes
  br i1 %more, label %body, label %exit
exit:
  ret ptr %to
}
"""

# The lower half of a product of 128 bits, by products of 64.
_MULTIPLY = """
define hidden i128 @__multi3(i128 %a, i128 %b) {
  %al = trunc i128 %a to i64
  %bl = trunc i128 %b to i64
  %a.up = lshr i128 %a, 64
  %b.up = lshr i128 %b, 64
  %ah = trunc i128 %a.up to i64
  %bh = trunc i128 %b.up to i64
  %a0 = and i64 %al, 4294967295
  %b0 = and i64 %bl, 4294967295
  %a1 = lshr i64 %al, 32
  %b1 = lshr i64 %bl, 32
  %p00 = mul i64 %a0, %b0
  %p01 = mul i64 %a0, %b1
  %p10 = mul i64 %a1, %b0
  %p11 = mul i64 %a1, %b1
  %p00.up = lshr i64 %p00, 32
  %p01.low = and i64 %p01, 4294967295
  %p10.low = and i64 %p10, 4294967295
  %m = add i64 %p00.up, %p01.low
  %middle = add i64 %m, %p10.low
  %p00.low = and i64 %p00, 4294967295
  %middle.low = shl i64 %middle, 32
  %low = or i64 %p00.low, %middle.low
  %p01.up = lshr i64 %p01, 32
  %p10.up = lshr i64 %p10, 32
  %middle.up = lshr i64 %middle, 32
  %h1 = add i64 %p11, %p01.up
  %h2 = add i64 %h1, %p10.up
  %h3 = add i64 %h2, %middle.up
  %cross1 = mul i64 %al, %bh
  %cross2 = mul i64 %ah, %bl
  %h4 = add i64 %h3, %cross1
  %high = add i64 %h4, %cross2
  %low.wide = zext i64 %low to i128
  %high.wide = zext i64 %high to i128
  %high.up = shl i128 %high.wide, 64
  %product = or i128 %high.up, %low.wide
  ret i128 %product
}
"""

# Name → its definition, and what that calls in turn.
SUPPORT: dict[str, tuple[str, tuple[str, ...]]] = {
    "__extendhfsf2": (_EXTEND, ()),
    "__truncsfhf2": (_TRUNCATE, ()),
    "__truncdfhf2": (_TRUNCATE_WIDE, ("__truncsfhf2",)),
    "__multi3": (_MULTIPLY, ()),
    "fmod": (_FMOD, ()),
    "fmodf": (_FMOD_NARROW, ("fmod",)),
    "memcpy": (_COPY, ()),
    "memmove": (_MOVE, ("memcpy",)),
    "memset": (_SET, ()),
}


def support_text(names: Sequence[str], target: Target) -> str:
    """LLVM text that defines functions of `SUPPORT`, and those that they call."""
    wanted = dict.fromkeys(names)
    for name in list(wanted):
        wanted |= dict.fromkeys(SUPPORT[name][1])
    size = f"i{8 * target.pointer_bytes}"
    return "".join(SUPPORT[name][0] for name in wanted).replace("SIZE", size)
