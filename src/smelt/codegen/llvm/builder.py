"""`Builder` writes LLVM IR text: one line per instruction, scalar or vector by the lanes of its operands.

    b = Builder(target)
    y = b.fma(x, 2.0, 1.0)       # x: Value(name="%x", kind="f32", lanes=8)
    →   %t1 = call <8 x float> @llvm.fma.v8f32(<8 x float> %x, <8 x float> splat (float 2.0), ...)

Python numbers among the operands become constants of the kind of the other operands, and a scalar beside a vector is
broadcast; between `open_loop` and `close_loop` that is done once, before the loop. Loops carry their values in phi
nodes, so the text is in SSA form and needs no pass to bring it there.
"""

import math
import struct
from collections.abc import Callable, Sequence

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.llvm.runtime_sizes import Sizes
from smelt.device import Target
from smelt.symbolic.symsize import is_symsize

LLVM_TYPES = {
    "f64": "double", "f32": "float", "f16": "half",
    "i64": "i64", "i32": "i32", "i16": "i16", "i8": "i8", "i1": "i1", "ptr": "ptr",
}  # fmt: skip
BITS = {"f64": 64, "f32": 32, "f16": 16, "i64": 64, "i32": 32, "i16": 16, "i8": 8, "i1": 1}
UNSIGNED_LESS = {"lt": "ult", "le": "ule", "gt": "ugt", "ge": "uge", "eq": "eq", "ne": "ne"}
SIGNED_LESS = {"lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge", "eq": "eq", "ne": "ne"}


# Has no portable name: x · 2^n, here of 512 bits, with what stands in for lanes left out, the lanes, and how to round.
_SCALE = {"f32": ("llvm.x86.avx512.mask.scalef.ps.512", "i16"), "f64": ("llvm.x86.avx512.mask.scalef.pd.512", "i8")}
_SCALE_BITS = 512


@dataclass(frozen=True, slots=True)
class LlvmValue:
    """An SSA value or constant: its text, element kind, and lanes (1 for a plain scalar). `order` counts values."""

    name: str
    kind: str
    lanes: int = 1
    order: int = 0

    @property
    def type(self) -> str:
        return type_text(self.kind, self.lanes)

    def __str__(self) -> str:
        return f"{self.type} {self.name}"


Number = float | bool
Term = LlvmValue | Number


def type_text(kind: str, lanes: int = 1) -> str:
    element = LLVM_TYPES[kind]
    return element if lanes == 1 else f"<{lanes} x {element}>"


def suffix(kind: str, lanes: int) -> str:
    """How intrinsics name a type: `f32`, `v8f32`."""
    return kind if lanes == 1 else f"v{lanes}{kind}"


def literal(kind: str, value: Number) -> str:
    """A constant as LLVM writes it: exact bits for floats."""
    if kind == "i1":
        return "true" if value else "false"
    if kind.startswith("i"):
        return str(int(value))
    number = float(value)
    if kind == "f32" and math.isfinite(number):
        try:
            number = struct.unpack("<f", struct.pack("<f", number))[0]
        except OverflowError:
            number = math.copysign(math.inf, number)
    bits = 0x7FF8000000000000 if math.isnan(number) else struct.unpack("<Q", struct.pack("<d", number))[0]
    return f"0x{bits:016X}"


def _instruction(name: str) -> "Callable[[Builder, Term, Term], LlvmValue]":
    return lambda builder, a, b: builder.binary(name, a, b)


class Builder:
    """Instructions of one function, in text."""

    def __init__(self, target: Target, symbol: str = "k", sizes: Sizes | None = None) -> None:
        self.target = target
        self.symbol = symbol
        self.sizes = sizes
        self.prologue: list[str] = []  # loads of sizes, space on the stack
        self._sizes: dict[int, LlvmValue] = {}
        self.lines: list[str] = []
        self.declared: set[str] = set()
        self.helpers: dict[str, str] = {}
        self.shared: dict[tuple[str, str], tuple[LlvmValue, ...]] = {}  # (what, of which value) → results to reuse
        self.block = "entry"
        self._count = 0
        self._splats: dict[tuple[str, int], LlvmValue] = {}
        self._pool: dict[tuple[str, bool], int] = {}
        self._pool_turns: dict[str, bool] = {}
        self._pool_size = 0
        self._hoisted: list[str] | None = None
        self._hoisted_place = 0
        self._hoisted_count = 0

    # Text.

    def fresh(self, stem: str = "t") -> str:
        self._count += 1
        return f"%{stem}{self._count}"

    def emit(self, line: str) -> None:
        self.lines.append(line)

    def op(self, text: str, kind: str, lanes: int) -> LlvmValue:
        name = self.fresh()
        self.lines.append(f"{name} = {text}")
        return LlvmValue(name, kind, lanes, self._count)

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")
        self.block = name

    def new_label(self, stem: str) -> str:
        return self.fresh(stem)[1:]

    def jump(self, label: str) -> None:
        self.emit(f"br label %{label}")

    def branch(self, condition: LlvmValue, then: str, fallback: str) -> None:
        self.emit(f"br {condition}, label %{then}, label %{fallback}")

    # Constants and shapes.

    def const(self, kind: str, value: Number, lanes: int = 1) -> LlvmValue:
        if is_symsize(value):
            assert kind == "i64"
            return self.splat(self.runtime_param(value), lanes)
        text = literal(kind, value)
        return LlvmValue(text if lanes == 1 else f"splat ({LLVM_TYPES[kind]} {text})", kind, lanes)

    def runtime_param(self, number: Number) -> LlvmValue:
        """A size that varies, or the bits of a float that does, loaded where the function begins."""
        assert self.sizes is not None
        slot = self.sizes.slot(number)
        if slot not in self._sizes:
            if not self._sizes:
                at = f"getelementptr ptr, ptr %buffers, i64 {self.sizes.place}"
                self.prologue += [f"%sizes.at = {at}", "%sizes = load ptr, ptr %sizes.at, !invariant.load !{}"]
            name = f"%size{slot}"
            self.prologue += [
                f"{name}.at = getelementptr i64, ptr %sizes, i64 {slot}",
                f"{name} = load i64, ptr {name}.at, align 8, !invariant.load !{{}}",
            ]
            self._sizes[slot] = LlvmValue(name, "i64")
        return self._sizes[slot]

    def iota(self, kind: str, values: list[int] | range) -> LlvmValue:
        """A vector constant, one number a lane."""
        if len(values) == 1:
            return self.const(kind, values[0])
        return LlvmValue("<" + ", ".join(f"{LLVM_TYPES[kind]} {value}" for value in values) + ">", kind, len(values))

    def lift(self, *terms: Term) -> list[LlvmValue]:
        """All terms as values of one kind and as many lanes as the widest."""
        values = [term for term in terms if isinstance(term, LlvmValue)]
        lanes = max(value.lanes for value in values)
        kind = values[0].kind
        return [
            self.splat(term, lanes) if isinstance(term, LlvmValue) else self.const(kind, term, lanes) for term in terms
        ]

    def constant_pool(self, kind: str, value: Number, lanes: int) -> LlvmValue:
        """A vector constant that stays in memory until it is used, for operands an instruction overwrites.

        Kept in a register it would have to be copied each time, which costs as much as the arithmetic; a load is free
        beside it. The pool is not declared constant, or LLVM would move the loads into registers again.
        """
        if lanes * BITS[kind] < self.target.vector_bits:
            return self.const(kind, value, lanes)
        text = str(self.const(kind, value, lanes))
        # Two copies take turns: LLVM reads one place once, and would copy it in registers.
        copy = self._pool_turns[text] = not self._pool_turns.get(text, True)
        place = self._pool.setdefault((text, copy), self._pool_size)
        if place == self._pool_size:
            self._pool_size += lanes * BITS[kind] // 8
        return self.load(self.element(f"@{self.symbol}.pool", "i8", place), kind, lanes)

    @property
    def pool_text(self) -> str:
        """The definition of the constants `constant_pool` refers to; empty if there are none."""
        if not self._pool:
            return ""
        values = [text for text, _ in self._pool]
        types = ", ".join(text.partition(">")[0] + ">" for text in values)
        return f"@{self.symbol}.pool = internal global <{{ {types} }}> <{{ {', '.join(values)} }}>, align 64"

    def splat(self, value: LlvmValue, lanes: int) -> LlvmValue:
        """A scalar spread over lanes; made once per loop, before it, where a loop is open."""
        if value.lanes == lanes:
            return value
        if not value.name.startswith("%"):
            return LlvmValue(f"splat ({LLVM_TYPES[value.kind]} {value.name})", value.kind, lanes)
        known = self._splats.get((value.name, lanes))
        if known is not None:
            return known
        inner = self.lines
        hoist = self._hoisted is not None and value.order <= self._hoisted_count
        if hoist and self._hoisted is not None:
            self.lines = self._hoisted
        vector = type_text(value.kind, lanes)
        first = self.op(f"insertelement {vector} poison, {value}, i64 0", value.kind, lanes)
        spread = self.op(f"shufflevector {first}, {vector} poison, <{lanes} x i32> zeroinitializer", value.kind, lanes)
        self.lines = inner
        if hoist:
            self._splats[value.name, lanes] = spread
        return spread

    # Loops.

    def open_loop(self) -> None:
        """From here to `close_loop`, scalars that exist already are spread over lanes here, not where they are used."""
        self._hoisted, self._hoisted_place, self._hoisted_count = [], len(self.lines), self._count
        self._splats = {}

    def close_loop(self) -> None:
        self.lines[self._hoisted_place : self._hoisted_place] = self._hoisted or []
        self._hoisted = None
        self._splats = {}

    def begin(
        self, first: LlvmValue, last: LlvmValue, step: int, carried: Sequence[LlvmValue], *, guard: bool
    ) -> "Loop":
        """Open a loop `for index in range(first, last, step)`. Without `guard` it runs at least once."""
        loop = Loop(self, first, last, step, tuple(carried), guard)
        loop.open()
        return loop

    # Arithmetic.

    def binary(self, name: str, a: Term, b: Term) -> LlvmValue:
        left, right = self.lift(a, b)
        return self.op(f"{name} {left}, {right.name}", left.kind, left.lanes)

    fadd, fsub, fmul, fdiv = map(_instruction, ("fadd", "fsub", "fmul", "fdiv"))
    add, sub, mul = map(_instruction, ("add", "sub", "mul"))
    shl, lshr, ashr = map(_instruction, ("shl", "lshr", "ashr"))
    and_, or_, xor = map(_instruction, ("and", "or", "xor"))

    def fneg(self, a: LlvmValue) -> LlvmValue:
        return self.op(f"fneg {a}", a.kind, a.lanes)

    def not_(self, a: LlvmValue) -> LlvmValue:
        return self.binary("xor", a, True if a.kind == "i1" else -1)

    def fma(self, a: Term, b: Term, c: Term) -> LlvmValue:
        """`a * b + c`, rounded once where the target can."""
        x, y, z = self.lift(a, b, c)
        if self.target.fma_clobbers_addend and not isinstance(c, LlvmValue):
            z = self.constant_pool(x.kind, c, x.lanes)
        if not self.target.has_fma:
            return self.fadd(self.fmul(x, y), z)
        return self.intrinsic("llvm.fma", x, y, z)

    def intrinsic(self, name: str, *args: LlvmValue, flags: str = "") -> LlvmValue:
        """An intrinsic overloaded on one type, which is that of its operands and its result."""
        first = args[0]
        full = f"{name}.{suffix(first.kind, first.lanes)}"
        self.declare(full, first.type, [arg.type for arg in args])
        return self.op(f"call {flags}{first.type} @{full}({', '.join(map(str, args))})", first.kind, first.lanes)

    def declare(self, name: str, result: str, parameters: list[str]) -> None:
        self.declared.add(f"declare {result} @{name}({', '.join(parameters)})")

    # Choice.

    def fcmp(self, how: str, a: Term, b: Term) -> LlvmValue:
        left, right = self.lift(a, b)
        return self.op(f"fcmp {how} {left}, {right.name}", "i1", left.lanes)

    def icmp(self, how: str, a: Term, b: Term) -> LlvmValue:
        left, right = self.lift(a, b)
        return self.op(f"icmp {how} {left}, {right.name}", "i1", left.lanes)

    def select(self, condition: LlvmValue, a: Term, b: Term) -> LlvmValue:
        left, right = self.lift(a, b)
        lanes = max(condition.lanes, left.lanes)
        condition, left, right = (self.splat(value, lanes) for value in (condition, left, right))
        return self.op(f"select {condition}, {left}, {right}", left.kind, lanes)

    def choose(self, condition: LlvmValue, a: float, b: float, kind: str) -> LlvmValue:
        """`select` between two constants."""
        return self.select(condition, self.const(kind, a, condition.lanes), self.const(kind, b, condition.lanes))

    def minimum(self, a: Term, b: Term) -> LlvmValue:
        """The smaller; NaN if either is NaN."""
        return self._extreme("llvm.minimum", "olt", a, b)

    def maximum(self, a: Term, b: Term) -> LlvmValue:
        return self._extreme("llvm.maximum", "ogt", a, b)

    def _extreme(self, name: str, how: str, a: Term, b: Term) -> LlvmValue:
        left, right = self.lift(a, b)
        if self.target.has_nan_minmax:
            return self.intrinsic(name, left, right)
        if isinstance(a, LlvmValue):
            # Which zero comes out is left open: that is two instructions less, and a NaN on the right costs none.
            return self.intrinsic(name, left, right, flags="nsz ")
        # Keeps the right operand where they are not ordered, which is one instruction.
        return self.select(self.fcmp(how, left, right), left, right)

    def any_lane(self, mask: LlvmValue) -> LlvmValue:
        return mask if mask.lanes == 1 else self.reduce_lanes("or", mask)

    def reduce_lanes(self, name: str, value: LlvmValue, *start: LlvmValue, flags: str = "") -> LlvmValue:
        """One scalar out of all lanes, by an `llvm.vector.reduce` intrinsic."""
        if value.lanes == 1 and not start:
            return value
        full = f"llvm.vector.reduce.{name}.{suffix(value.kind, value.lanes)}"
        args = [*start, value]
        self.declare(full, LLVM_TYPES[value.kind], [arg.type for arg in args])
        return self.op(f"call {flags}{LLVM_TYPES[value.kind]} @{full}({', '.join(map(str, args))})", value.kind, 1)

    # Conversion.

    def convert(self, name: str, value: LlvmValue, kind: str) -> LlvmValue:
        """`name` is LLVM's: sitofp, fpext, trunc, zext, bitcast, …"""
        if value.kind == kind:
            return value
        return self.op(f"{name} {value} to {type_text(kind, value.lanes)}", kind, value.lanes)

    def bits(self, value: LlvmValue) -> LlvmValue:
        return self.convert("bitcast", value, f"i{BITS[value.kind]}")

    def from_bits(self, value: LlvmValue) -> LlvmValue:
        return self.convert("bitcast", value, f"f{BITS[value.kind]}")

    # Floating point by its bits.

    def fabs(self, a: LlvmValue) -> LlvmValue:
        return self.intrinsic("llvm.fabs", a)

    def copysign(self, size: Term, sign: Term) -> LlvmValue:
        return self.intrinsic("llvm.copysign", *self.lift(size, sign))

    def scales(self, x: LlvmValue) -> bool:
        """Whether `scaled` takes a value like this one."""
        return self.target.has_scalef and x.lanes * BITS[x.kind] % _SCALE_BITS == 0

    def as_bfloat(self, x: LlvmValue) -> LlvmValue:
        """The bits of a float32 rounded to bfloat16. Where `Target.has_bfloat`."""
        rounded = self.fresh()
        self.emit(f"{rounded} = fptrunc {x} to bfloat")
        return self.op(f"bitcast bfloat {rounded} to i16", "i16", 1)

    def power_of_two(self, x: LlvmValue) -> LlvmValue:
        """2^x of a float32, below the normal range zero. Where `Target.approximates`."""
        return self._of_one("llvm.nvvm.ex2.approx.ftz.f32", x)

    def near_reciprocal(self, x: LlvmValue) -> LlvmValue:
        """1 / x of a float32 of middle size, not quite. Where `Target.approximates`."""
        return self._of_one("llvm.nvvm.rcp.approx.ftz.f", x)

    def saturated(self, x: LlvmValue) -> LlvmValue:
        """A float32 between 0 and 1; of NaN 0. Where `Target.approximates`."""
        return self._of_one("llvm.nvvm.saturate.f", x)

    def _of_one(self, name: str, x: LlvmValue) -> LlvmValue:
        self.declare(name, "float", ["float"])
        return self.op(f"call float @{name}({x})", "f32", 1)

    def scaled(self, x: LlvmValue, n: LlvmValue) -> LlvmValue:
        """x · 2^n for a float n that is whole, rounded once; of infinite n only where x is finite."""
        name, mask = _SCALE[x.kind]
        lanes = _SCALE_BITS // BITS[x.kind]
        kind = type_text(x.kind, lanes)
        self.declare(name, kind, [kind, kind, kind, mask, "i32"])
        parts = []
        for first in range(0, x.lanes, lanes):
            args = f"{self._slice(x, first, lanes)}, {self._slice(n, first, lanes)}, {kind} poison, {mask} -1, i32 4"
            parts.append(self.op(f"call {kind} @{name}({args})", x.kind, lanes))
        while len(parts) > 1:
            parts = [self._joined(low, high) for low, high in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]

    def _slice(self, value: LlvmValue, first: int, lanes: int) -> LlvmValue:
        order = self.iota("i32", range(first, first + lanes))
        return self.op(f"shufflevector {value}, {value.type} poison, {order}", value.kind, lanes)

    def _joined(self, low: LlvmValue, high: LlvmValue) -> LlvmValue:
        lanes = 2 * low.lanes
        return self.op(f"shufflevector {low}, {high}, {self.iota('i32', range(lanes))}", low.kind, lanes)

    # Memory.

    def element(self, pointer: str, kind: str, offset: LlvmValue | int) -> str:
        """The address `offset` elements of `kind` past `pointer`."""
        if isinstance(offset, int):
            if offset == 0:
                return pointer
            offset = self.const("i64", offset)
        name = self.fresh("p")
        self.emit(f"{name} = getelementptr {LLVM_TYPES[kind]}, ptr {pointer}, {offset}")
        return name

    def load(self, pointer: str, kind: str, lanes: int = 1) -> LlvmValue:
        align = max(1, BITS[kind] // 8)
        return self.op(f"load {type_text(kind, lanes)}, ptr {pointer}, align {align}", kind, lanes)

    def prefetch(self, pointer: str) -> None:
        """Ask for memory that is read soon; any address will do."""
        self.declared.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        self.emit(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 0, i32 3, i32 1)")

    def store(self, value: LlvmValue, pointer: str) -> None:
        self.emit(f"store {value}, ptr {pointer}, align {max(1, BITS[value.kind] // 8)}")

    def store_nontemporal(self, value: LlvmValue, pointer: str) -> None:
        """Of whole cache lines; a fence is due before others may read them."""
        self.emit(f"store {value}, ptr {pointer}, align 64, !nontemporal !{{i32 1}}")

    def extract(self, value: LlvmValue, lane: int) -> LlvmValue:
        if value.lanes == 1:
            return value
        return self.op(f"extractelement {value}, i64 {lane}", value.kind, 1)

    def insert(self, vector: LlvmValue, value: LlvmValue, lane: int) -> LlvmValue:
        return self.op(f"insertelement {vector}, {value}, i64 {lane}", vector.kind, vector.lanes)

    def interleaved(self, a: LlvmValue, b: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
        """a₀ b₀ a₁ b₁ …, in two vectors as long as each of them."""
        lanes = a.lanes
        vectors = []
        for first in (0, lanes // 2):
            order = [place + side for place in range(first, first + lanes // 2) for side in (0, lanes)]
            mask = self.iota("i32", order)
            vectors.append(self.op(f"shufflevector {a}, {b}, {mask}", a.kind, lanes))
        return vectors[0], vectors[1]

    def above_zeros(self, value: LlvmValue) -> LlvmValue:
        """i16 → i32, each in the upper half of its lane, where the lower half comes first in memory."""
        halves = self.interleaved(self.const("i16", 0, value.lanes), value)
        wide = type_text("i32", value.lanes // 2)
        low, high = (self.op(f"bitcast {half} to {wide}", "i32", value.lanes // 2) for half in halves)
        return self._joined(low, high)

    def upper_halves(self, value: LlvmValue) -> LlvmValue:
        """i32 → i16, where the lower half comes first in memory. Said as a choice of lanes, two registers of a wide
        machine become one by one instruction; a shift and a truncation take six."""
        if value.lanes == 1:
            return self.convert("trunc", self.lshr(value, 16), "i16")
        halves = self.op(f"bitcast {value} to {type_text('i16', 2 * value.lanes)}", "i16", 2 * value.lanes)
        order = self.iota("i32", range(1, 2 * value.lanes, 2))
        return self.op(f"shufflevector {halves}, {halves.type} poison, {order}", "i16", value.lanes)

    def reverse(self, value: LlvmValue) -> LlvmValue:
        """The lanes, last first."""
        order = self.iota("i32", range(value.lanes - 1, -1, -1))
        return self.op(f"shufflevector {value}, {value.type} poison, {order}", value.kind, value.lanes)

    def gathered(self, values: list[LlvmValue]) -> LlvmValue:
        """Scalars side by side in one vector."""
        if len(values) == 1:
            return values[0]
        vector = LlvmValue("poison", values[0].kind, len(values))
        for lane, value in enumerate(values):
            vector = self.insert(vector, value, lane)
        return vector


@dataclass(slots=True)
class Loop:
    """A loop being written: `index` and `values` inside it; `end(next_values)` closes it and returns the final
    values."""

    b: Builder
    first: LlvmValue
    last: LlvmValue
    step: int
    carried: tuple[LlvmValue, ...]
    guard: bool
    index: LlvmValue = LlvmValue("", "i64")
    values: tuple[LlvmValue, ...] = ()
    _place: int = 0
    _before: str = ""
    _body: str = ""
    _latch: str = ""
    _exit: str = ""

    def open(self) -> None:
        b = self.b
        self._body, self._latch, self._exit = b.new_label("body"), b.new_label("latch"), b.new_label("exit")
        self._before = b.block
        if self.guard:
            b.branch(b.icmp("slt", self.first, self.last), self._body, self._exit)
        else:
            b.jump(self._body)
        b.label(self._body)
        self._place = len(b.lines)
        self.index = b.op("", "i64", 1)
        self.values = tuple(b.op("", value.kind, value.lanes) for value in self.carried)

    def end(self, *following: LlvmValue) -> tuple[LlvmValue, ...]:
        b = self.b
        b.jump(self._latch)
        b.label(self._latch)
        after = b.add(self.index, self.step)
        inside = zip((self.index, *self.values), (self.first, *self.carried), (after, *following), strict=True)
        for number, (phi, start, follow) in enumerate(inside):
            text = f"phi {phi.type} [ {start.name}, %{self._before} ], [ {follow.name}, %{self._latch} ]"
            b.lines[self._place + number] = f"{phi.name} = {text}"
        b.branch(b.icmp("slt", after, self.last), self._body, self._exit)
        b.label(self._exit)
        if not self.guard:
            return following
        return tuple(
            b.op(f"phi {new.type} [ {old.name}, %{self._before} ], [ {new.name}, %{self._latch} ]", new.kind, new.lanes)
            for old, new in zip(self.carried, following, strict=True)
        )
