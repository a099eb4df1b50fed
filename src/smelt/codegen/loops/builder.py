"""`Builder` writes the loop form: one node per instruction, scalar or vector by the lanes of its operands.

    b = Builder(target)
    y = b.fma(x, 2.0, 1.0)       # x: Value("%x", "f32", lanes=8)
    →   Compute(out=Value("%t1", "f32", 8), op="fma", args=(x, 2.0 in 8 lanes, 1.0 in 8 lanes))

Python numbers among the operands become constants of the kind of the other operands, and a scalar beside a vector is
broadcast; between `open_loop` and `close_loop` that is done once, before the loop. Loops and branches are nested
bodies, which return values as their results.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.loops.runtime_sizes import Sizes
from smelt.device import Target
from smelt.ir.loops import (
    BITS,
    Address,
    Alloc,
    Call,
    Compute,
    Convert,
    Extract,
    Fence,
    For,
    Function,
    If,
    Load,
    Node,
    Number,
    Pack,
    Permute,
    Prefetch,
    Reduce,
    Repeat,
    Return,
    Splat,
    Store,
    Table,
    Value,
)
from smelt.symbolic.symsize import is_symsize

UNSIGNED_LESS = {"lt": "ult", "le": "ule", "gt": "ugt", "ge": "uge", "eq": "eq", "ne": "ne"}
SIGNED_LESS = {"lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge", "eq": "eq", "ne": "ne"}

# x · 2^n has no portable intrinsic. Operands of this one, of 512 bits: x, n, default for masked lanes, mask, rounding.
_SCALE = {"f32": ("llvm.x86.avx512.mask.scalef.ps.512", "i16"), "f64": ("llvm.x86.avx512.mask.scalef.pd.512", "i8")}
_SCALE_BITS = 512
_LOOKUP = "llvm.x86.avx512.permvar.sf.512"
_DOT = "llvm.x86.avx512.vpdpbusd."

BUFFERS = Value("%buffers", "ptr")
THREADS = Value("%threads", "i64")
WORKSPACE = Value("%workspace", "ptr")
TRUE, FALSE = Value("", "i1", number=True), Value("", "i1", number=False)

Term = Value | Number
Values = Sequence[Value]


def _instruction(name: str) -> "Callable[[Builder, Term, Term], Value]":
    return lambda builder, a, b: builder.binary(name, a, b)


def _number(kind: str, value: Number) -> Number:
    """A number as constants of a kind have it."""
    return bool(value) if kind == "i1" else int(value) if kind[0] == "i" else float(value)


def param(name: str, kind: str = "i64") -> Value:
    """A parameter of a function."""
    return Value(f"%{name}", kind)


class Builder:
    """The body of one function."""

    def __init__(
        self, target: Target, symbol: str = "k", sizes: Sizes | None = None, helpers: dict[str, Function] | None = None
    ) -> None:
        self.target = target
        self.symbol = symbol
        self.sizes = sizes
        self.has_wide_floats = True  # else floats in memory have 16 bits: functions may be off by more float32 units
        self.prologue: list[Node] = []  # loads of sizes, space on the stack
        self.body: list[Node] = []
        self.helpers = {} if helpers is None else helpers  # functions that it calls, once per module
        self.shared: dict[tuple[str, str], tuple[Value, ...]] = {}  # (function, operand) → results to reuse
        self._sizes: dict[int, Value] = {}
        self._stack: dict[str, Value] = {}
        self._count = 0
        self._splats: dict[tuple[str, int], Value] = {}
        self._pool: dict[tuple[str, bool], int] = {}
        self._pool_values: list[Value] = []
        self._pool_turns: dict[str, bool] = {}
        self._pool_size = 0
        self._hoisted: list[Node] | None = None
        self._hoisted_into: list[Node] = self.body
        self._hoisted_place = 0
        self._hoisted_count = 0

    def function(
        self, name: str, params: Values, kind: str = "internal", *, result: str = "", inlined: bool = True
    ) -> Function:
        """The function with the body written so far."""
        return Function(
            name,
            tuple(params),
            [*self.prologue, *self.body],
            kind,
            result,
            inlined,
            self.target.tune_cpu,
            (Table(f"{self.symbol}.pool", tuple(self._pool_values), fixed=False, align=64),) if self._pool else (),
        )

    def fresh(self, kind: str, lanes: int = 1) -> Value:
        self._count = count = self._count + 1
        return Value(f"%t{count}", kind, lanes, count)

    # Constants and shapes.

    def const(self, kind: str, value: Number, lanes: int = 1) -> Value:
        if type(value) is int:  # most are
            return Value("", kind, lanes, 0, value if kind[0] == "i" and kind != "i1" else _number(kind, value))
        if is_symsize(value):
            assert kind == "i64"
            return self.splat(self.runtime_param(value), lanes)
        return Value("", kind, lanes, 0, _number(kind, value))

    def _integer(self, term: Term) -> Value:
        return term if isinstance(term, Value) else self.const("i64", term)

    def runtime_param(self, number: Number) -> Value:
        """A size that varies, or the bits of a float that does, loaded where the function begins."""
        assert self.sizes is not None
        slot = self.sizes.slot(number)
        if slot not in self._sizes:
            array = Value("%sizes", "ptr")
            if not self._sizes:
                at = Value("%sizes.at", "ptr")
                self.prologue.append(Address(at, self.buffer_array(), "ptr", self.const("i64", self.sizes.place)))
                self.prologue.append(Load(array, at, 0, invariant=True))
            place, size = Value(f"%size{slot}.at", "ptr"), Value(f"%size{slot}", "i64")
            self.prologue.append(Address(place, array, "i64", self.const("i64", slot)))
            self.prologue.append(Load(size, place, 8, invariant=True))
            self._sizes[slot] = size
        return self._sizes[slot]

    def buffer_array(self) -> Value:
        """The array of addresses that a function is given."""
        return BUFFERS

    def iota(self, kind: str, values: list[int] | range) -> Value:
        """A vector constant, one number a lane."""
        if len(values) == 1:
            return self.const(kind, values[0])
        return Value("", kind, len(values), 0, tuple(values))

    def floats(self, values: Sequence[float]) -> Value:
        """A vector constant of float32, one number a lane."""
        return Value("", "f32", len(values), 0, tuple(values))

    def flags(self, lanes: Sequence[bool]) -> Value:
        """A mask that is known."""
        return Value("", "i1", len(lanes), 0, tuple(lanes))

    def last_lanes(self, count: int, lanes: int) -> Value:
        """A mask of the last `count` lanes: those of a last vector that the one before it does not overlap."""
        return self.flags([lane >= lanes - count for lane in range(lanes)])

    def lift(self, *terms: Term) -> list[Value]:
        """All terms as values of one kind and as many lanes as the widest."""
        values = [term for term in terms if isinstance(term, Value)]
        lanes = max([value.lanes for value in values])
        kind = values[0].kind
        return [self.splat(term, lanes) if isinstance(term, Value) else self.const(kind, term, lanes) for term in terms]

    def _pair(self, a: Term, b: Term) -> tuple[Value, Value]:
        """The same of two terms, one of them a value."""
        if not isinstance(a, Value):
            assert isinstance(b, Value)
            return self.const(b.kind, a, b.lanes), b
        if not isinstance(b, Value):
            return a, self.const(a.kind, b, a.lanes)
        if a.lanes == b.lanes:
            return a, b
        lanes = max(a.lanes, b.lanes)
        return self.splat(a, lanes), self.splat(b, lanes)

    def constant_pool(self, kind: str, value: Number, lanes: int) -> Value:
        """A vector constant that stays in memory until it is used, for operands an instruction overwrites.

        Kept in a register it would have to be copied each time, which costs as much as the arithmetic; a load is free
        beside it. The pool is not declared constant, or LLVM would move the loads into registers again.
        """
        constant = self.const(kind, value, lanes)
        if lanes * BITS[kind] < self.target.vector_bits:
            return constant
        key = f"{kind} {lanes} {value!r}"
        # Two copies take turns: LLVM reads one place once, and would copy it in registers.
        copy = self._pool_turns[key] = not self._pool_turns.get(key, True)
        place = self._pool.setdefault((key, copy), self._pool_size)
        if place == self._pool_size:
            self._pool_values.append(constant)
            self._pool_size += lanes * BITS[kind] // 8
        return self.load(self.element(Value(f"@{self.symbol}.pool", "ptr"), "i8", place), kind, lanes)

    def splat(self, value: Value, lanes: int) -> Value:
        """A scalar spread over lanes; made once per loop, before it, where a loop is open."""
        if value.lanes == lanes:
            return value
        if value.number is not None:
            return Value("", value.kind, lanes, 0, value.number)
        known = self._splats.get((value.name, lanes))
        if known is not None:
            return known
        out = self.fresh(value.kind, lanes)
        if self._hoisted is not None and value.order <= self._hoisted_count:
            self._hoisted.append(Splat(out, value))
            self._splats[value.name, lanes] = out
        else:
            self.body.append(Splat(out, value))
        return out

    # Control flow.

    def open_loop(self) -> None:
        """From here to `close_loop`, scalars that exist already are spread over lanes here, not where they are used."""
        self._hoisted, self._hoisted_into, self._hoisted_place = [], self.body, len(self.body)
        self._hoisted_count = self._count
        self._splats = {}

    def close_loop(self) -> None:
        assert self.body is self._hoisted_into
        self.body[self._hoisted_place : self._hoisted_place] = self._hoisted or []
        self._hoisted = None
        self._splats = {}

    def begin(self, first: Term, last: Term, step: int = 1, carried: Values = (), *, guard: bool = False) -> "Loop":
        """Open a loop `for index in range(first, last, step)`. Without `guard` it runs at least once."""
        first, last = self._integer(first), self._integer(last)
        inside = tuple([self.fresh(value.kind, value.lanes) for value in carried])
        node = For(self.fresh(first.kind), first, last, step, inside, tuple(carried), [], (), (), guard)
        loop = Loop(self, node, self.body, node.index, inside)
        self.body.append(node)
        self.body = node.body
        return loop

    @contextmanager
    def loop(self, first: Term, last: Term, step: int = 1, *, guard: bool = False) -> Iterator[Value]:
        """A loop that carries no values: what is written within is its body, given the index."""
        loop = self.begin(first, last, step, guard=guard)
        yield loop.index
        loop.end()

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """What is written within runs where the condition is true."""
        outer, node = self.body, If(condition, [], [])
        outer.append(node)
        self.body = node.then
        yield
        self.body = outer

    def choice(
        self,
        condition: Value,
        then: Callable[[], Values | None],
        otherwise: Callable[[], Values | None] = lambda: None,
    ) -> tuple[Value, ...]:
        """One of two ways, with the values that either returns."""
        outer, node = self.body, If(condition, [], [])
        outer.append(node)
        self.body = node.then
        node.then_values = tuple(then() or ())
        self.body = node.otherwise
        node.else_values = tuple(otherwise() or ())
        self.body = outer
        assert len(node.then_values) == len(node.else_values)
        node.results = tuple([self.fresh(value.kind, value.lanes) for value in node.then_values])
        return node.results

    def repeat(self, starts: Values, write: Callable[..., tuple[Value, Values]]) -> tuple[Value, ...]:
        """Run what `write` writes until the condition it returns is false. It is given the values that are carried, and
        returns those of the next run, too."""
        carried = tuple([self.fresh(value.kind, value.lanes) for value in starts])
        outer, body = self.body, list[Node]()
        self.body = body
        condition, following = write(*carried)
        self.body = outer
        results = tuple([self.fresh(value.kind, value.lanes) for value in following])
        outer.append(Repeat(carried, tuple(starts), body, condition, tuple(following), results))
        return results

    def call(self, callee: str | Value, *args: Term, result: str = "", lanes: int = 1) -> Value:
        """Call a function; what it returns, if it has a `result` of some kind. Numbers are passed as i64."""
        values = tuple([self._integer(arg) for arg in args])
        out = self.fresh(result, lanes) if result else None
        self.body.append(Call(out, callee, values))
        return out if out is not None else TRUE

    def call_helper(self, function: Function, *args: Term) -> None:
        """Call a function that is in the module once."""
        self.helpers[function.name] = function
        self.call(function.name, *args)

    def give(self, value: Value) -> None:
        """Return a value from the function."""
        self.body.append(Return(value))

    # Arithmetic.

    def compute(self, op: str, kind: str, lanes: int, *args: Value, flags: str = "") -> Value:
        self._count = count = self._count + 1
        out = Value(f"%t{count}", kind, lanes, count)
        self.body.append(Compute(out, op, args, flags))
        return out

    def binary(self, name: str, a: Term, b: Term) -> Value:
        left, right = self._pair(a, b)
        return self.compute(name, left.kind, left.lanes, left, right)

    fadd, fsub, fmul, fdiv = map(_instruction, ("fadd", "fsub", "fmul", "fdiv"))
    add, sub, mul, udiv, urem = map(_instruction, ("add", "sub", "mul", "udiv", "urem"))
    smin, smax, umin = map(_instruction, ("smin", "smax", "umin"))
    shl, lshr, ashr = map(_instruction, ("shl", "lshr", "ashr"))
    and_, or_, xor = map(_instruction, ("and", "or", "xor"))

    def fneg(self, a: Value) -> Value:
        return self.compute("fneg", a.kind, a.lanes, a)

    def not_(self, a: Value) -> Value:
        return self.binary("xor", a, True if a.kind == "i1" else -1)

    def fma(self, a: Term, b: Term, c: Term) -> Value:
        """`a * b + c`, rounded once where the target can."""
        x, y = self._pair(a, b)
        x, z = self._pair(x, c)
        y = self.splat(y, x.lanes)
        if self.target.fma_clobbers_addend and not isinstance(c, Value):
            z = self.constant_pool(x.kind, c, x.lanes)
        if not self.target.has_fma:
            return self.fadd(self.fmul(x, y), z)
        return self.compute("fma", x.kind, x.lanes, x, y, z)

    def intrinsic(self, name: str, *args: Value, flags: str = "") -> Value:
        """A function of `ir.loops.MATH`, whose operands and result have one type."""
        return self.compute(name, args[0].kind, args[0].lanes, *args, flags=flags)

    # Choice.

    def fcmp(self, how: str, a: Term, b: Term) -> Value:
        left, right = self._pair(a, b)
        return self.compute(f"fcmp {how}", "i1", left.lanes, left, right)

    def icmp(self, how: str, a: Term, b: Term) -> Value:
        left, right = self._pair(a, b)
        return self.compute(f"icmp {how}", "i1", left.lanes, left, right)

    def select(self, condition: Value, a: Term, b: Term) -> Value:
        left, right = self._pair(a, b)
        if condition.lanes != left.lanes:
            lanes = max(condition.lanes, left.lanes)
            condition, left, right = [self.splat(value, lanes) for value in (condition, left, right)]
        return self.compute("select", left.kind, left.lanes, condition, left, right)

    def choose(self, condition: Value, a: float, b: float, kind: str) -> Value:
        """`select` between two constants."""
        return self.select(condition, self.const(kind, a, condition.lanes), self.const(kind, b, condition.lanes))

    def minimum(self, a: Term, b: Term) -> Value:
        """The smaller; NaN if either is NaN."""
        return self._extreme("minimum", "olt", a, b)

    def maximum(self, a: Term, b: Term) -> Value:
        return self._extreme("maximum", "ogt", a, b)

    def _extreme(self, name: str, how: str, a: Term, b: Term) -> Value:
        left, right = self._pair(a, b)
        if self.target.has_nan_minmax:
            return self.intrinsic(name, left, right)
        if isinstance(a, Value):
            # Which zero comes out is left open: that is two instructions less, and a NaN on the right costs none.
            return self.intrinsic(name, left, right, flags="nsz")
        # Keeps the right operand where they are not ordered, which is one instruction.
        return self.select(self.fcmp(how, left, right), left, right)

    def reduce_lanes(self, name: str, value: Value, start: Value | None = None, flags: str = "") -> Value:
        """One scalar out of all lanes, by an `llvm.vector.reduce` intrinsic."""
        if value.lanes == 1 and start is None:
            return value
        out = self.fresh(value.kind)
        self.body.append(Reduce(out, name, value, start, flags))
        return out

    # Conversion.

    def convert(self, name: str, value: Value, kind: str) -> Value:
        """`name`: as `ir.loops.Convert` has it."""
        return value if value.kind == kind else self._convert(name, value, kind, value.lanes)

    def _convert(self, name: str, value: Value, kind: str, lanes: int) -> Value:
        out = self.fresh(kind, lanes)
        self.body.append(Convert(out, name, value))
        return out

    def saturated_integer(self, x: Value, kind: str) -> Value:
        """Floats towards zero as signed integers: the nearest ones if they are out of range, 0 for NaN."""
        if x.lanes == 1 or self.target.has_saturating_convert:  # else LLVM converts lane by lane
            return self.convert("fptosi.sat", x, kind)
        limit = 2.0 ** (BITS[kind] - 1)
        is_inside = self.fcmp("olt", self.fabs(x), limit)
        whole = self.convert("fptosi", self.select(is_inside, x, 0.0), kind)
        whole = self.select(self.fcmp("oge", x, limit), int(limit) - 1, whole)
        return self.select(self.fcmp("ole", x, -limit), -int(limit), whole)

    def reinterpret(self, value: Value, kind: str) -> Value:
        """The same bits as elements of another size."""
        return self._convert("bitcast", value, kind, value.lanes * BITS[value.kind] // BITS[kind])

    def bits(self, value: Value) -> Value:
        return self.convert("bitcast", value, f"i{BITS[value.kind]}")

    def from_bits(self, value: Value) -> Value:
        return self.convert("bitcast", value, f"f{BITS[value.kind]}")

    # Floating point by its bits.

    def fabs(self, a: Value) -> Value:
        return self.intrinsic("fabs", a)

    def copysign(self, size: Term, sign: Term) -> Value:
        return self.intrinsic("copysign", *self._pair(size, sign))

    def scales(self, x: Value) -> bool:
        """Whether `scaled` takes a value like this one."""
        return self.target.has_scalef and x.lanes * BITS[x.kind] % _SCALE_BITS == 0

    def as_bfloat(self, x: Value) -> Value:
        """The bits of a float32 rounded to bfloat16. Where `Target.has_bfloat`."""
        return self.convert("bitcast", self.convert("fptrunc", x, "bf16"), "i16")

    def power_of_two(self, x: Value) -> Value:
        """2^x of a float32, below the normal range zero. Where `Target.approximates`."""
        return self.call("llvm.nvvm.ex2.approx.ftz.f32", x, result="f32")

    def near_reciprocal(self, x: Value) -> Value:
        """1 / x of a float32 of middle size, not quite. Where `Target.approximates`."""
        return self.call("llvm.nvvm.rcp.approx.ftz.f", x, result="f32")

    def saturated(self, x: Value) -> Value:
        """A float32 between 0 and 1; of NaN 0. Where `Target.approximates`."""
        return self.call("llvm.nvvm.saturate.f", x, result="f32")

    def scaled(self, x: Value, n: Value) -> Value:
        """x · 2^n for a float n that is whole, rounded once; of infinite n only where x is finite."""
        name, mask = _SCALE[x.kind]
        lanes = _SCALE_BITS // BITS[x.kind]
        parts = []
        for first in range(0, x.lanes, lanes):
            order = range(first, first + lanes)
            low, by = self.permute(x, order), self.permute(n, order)
            rest = (self.const(x.kind, 0, lanes), self.const(mask, -1), self.const("i32", 4))
            parts.append(self.call(name, low, by, *rest, result=x.kind, lanes=lanes))
        while len(parts) > 1:
            parts = [self._joined(low, high) for low, high in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]

    def looked_up(self, table: Value, numbers: Value) -> Value:
        """Of 16 float32 the one whose number is in the lowest bits of each lane. Where `Target.has_lane_lookup`."""
        return self.call(_LOOKUP, table, numbers, result="f32", lanes=table.lanes)

    def dotted_bytes(self, total: Value, unsigned: Value, signed: Value) -> Value:
        """i32 totals plus the products of 4 unsigned bytes by 4 signed ones in each lane. Where `Target.dots_bytes`."""
        return self.call(f"{_DOT}{32 * total.lanes}", total, unsigned, signed, result="i32", lanes=total.lanes)

    def permute(self, value: Value, order: Sequence[int], other: Value | None = None) -> Value:
        """Lanes of a vector, and of another behind it, by their numbers."""
        out = self.fresh(value.kind, len(order))
        self.body.append(Permute(out, value, other, tuple(order)))
        return out

    def _joined(self, low: Value, high: Value) -> Value:
        return self.permute(low, range(2 * low.lanes), high)

    # Memory.

    def element(self, pointer: Value, kind: str, offset: Term) -> Value:
        """The address `offset` elements of `kind` past `pointer`."""
        if not isinstance(offset, Value):
            if type(offset) is int and offset == 0:
                return pointer
            offset = self.const("i64", offset)
        self._count = count = self._count + 1
        out = Value(f"%p{count}", pointer.kind, offset.lanes, count)
        self.body.append(Address(out, pointer, kind, offset))
        return out

    def stack(self, name: str, kind: str, length: int, align: int) -> Value:
        """Space on the stack, the same for each who asks for this name."""
        if name not in self._stack:
            self._stack[name] = Value(f"%{name}", "ptr")
            self.prologue.append(Alloc(self._stack[name], kind, length, align))
        return self._stack[name]

    def load(self, pointer: Value, kind: str, lanes: int = 1, *, align: int = 0, invariant: bool = False) -> Value:
        """`align`: in bytes; without it, that of one element."""
        out = self.fresh(kind, lanes)
        self.body.append(Load(out, pointer, align or element_bytes(kind), invariant))
        return out

    def load_pointer(self, place: int) -> Value:
        """The address of a buffer, by its place."""
        return self.load(self.element(self.buffer_array(), "ptr", place), "ptr")

    def prefetch(self, pointer: Value) -> None:
        """Ask for memory that is read soon; any address will do."""
        self.body.append(Prefetch(pointer))

    def fence(self) -> None:
        """After nontemporal stores."""
        self.body.append(Fence())

    def store(self, value: Value, pointer: Value, align: int = 0) -> None:
        self.body.append(Store(value, pointer, align or element_bytes(value.kind)))

    def store_nontemporal(self, value: Value, pointer: Value) -> None:
        """Of whole cache lines; a fence is due before others may read them."""
        self.body.append(Store(value, pointer, 64, nontemporal=True))

    def extract(self, value: Value, lane: int | Value) -> Value:
        if value.lanes == 1:
            return value
        out = self.fresh(value.kind)
        self.body.append(Extract(out, value, lane))
        return out

    def interleaved(self, a: Value, b: Value) -> tuple[Value, Value]:
        """a₀ b₀ a₁ b₁ …, in two vectors as long as each of them."""
        lanes = a.lanes
        low, high = (
            self.permute(a, [place + side for place in range(first, first + lanes // 2) for side in (0, lanes)], b)
            for first in (0, lanes // 2)
        )
        return low, high

    def above_zeros(self, value: Value) -> Value:
        """i16 → i32, each in the upper half of its lane, where the lower half comes first in memory."""
        halves = self.interleaved(self.const("i16", 0, value.lanes), value)
        low, high = (self.reinterpret(half, "i32") for half in halves)
        return self._joined(low, high)

    def upper_halves(self, value: Value) -> Value:
        """i32 → i16, where the lower half comes first in memory. Said as a choice of lanes, two registers of a wide
        machine become one by one instruction; a shift and a truncation take six."""
        if value.lanes == 1:
            return self.convert("trunc", self.lshr(value, 16), "i16")
        return self.permute(self.reinterpret(value, "i16"), range(1, 2 * value.lanes, 2))

    def reverse(self, value: Value) -> Value:
        """The lanes, last first."""
        return self.permute(value, range(value.lanes - 1, -1, -1))

    def gathered(self, values: list[Value]) -> Value:
        """Scalars side by side in one vector."""
        if len(values) == 1:
            return values[0]
        out = self.fresh(values[0].kind, len(values))
        self.body.append(Pack(out, tuple(values)))
        return out


def element_bytes(kind: str) -> int:
    """Of an element in memory; 0 for an address, whose size is the target's."""
    return max(1, BITS[kind] // 8) if kind in BITS else 0


@dataclass(slots=True)
class Loop:
    """A loop being written: `index` and `values` inside it; `end(next_values)` closes it and returns the final
    values."""

    b: Builder
    node: For
    outer: list[Node]
    index: Value
    values: tuple[Value, ...]

    def end(self, *following: Value) -> tuple[Value, ...]:
        b, node = self.b, self.node
        assert b.body is node.body
        b.body = self.outer
        node.yields = following
        node.results = tuple([b.fresh(value.kind, value.lanes) for value in following])
        return node.results
