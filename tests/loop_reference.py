"""The reference interpreter of the loop form: runs functions on memory, node by node. For tests; slow on purpose.

    run(module, "k0", [x, y], 2, workspace)               a kernel's entry: its buffers, threads, workspace
    run_grid(module, "k0_0", x, y, workspace, blocks=4)   a grid for a GPU: all threads of a block, in step at barriers

An argument is a number; writable memory, such as a `bytearray`; memory and an offset in bytes; or a list of arguments,
which becomes an array of addresses. `Fault` is raised for accesses out of bounds or not aligned as their node says,
divisions by zero, shifts by too much, conversions of numbers that do not fit, barriers that not all threads reach, and
threads of a block that touch the same shared byte without a barrier between them, at least one of them writing.

Every value is a tuple of lanes. Integers are held without sign; floats as Python's, rounded to their kind after each
operation. An address is the number of a region of memory in its upper bits, and an offset in the lower ones.
"""

import itertools
import math
import operator
import struct
from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import suppress
from ctypes import c_float
from dataclasses import field
from fractions import Fraction
from functools import partial, reduce
from typing import Any

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.ir import loops
from smelt.ir.loops import BITS, Function, Module, Node, Value
from smelt.ir.loops.text import node_text

Lanes = tuple[Any, ...]
Wait = tuple[Node, str, Any]  # where a thread waits, for whom ("warp", "block", "cluster"), and what it tells them
Touch = tuple["_Thread", bool, int, int]
Steps = Generator[Wait, Any, Any]  # what a thread does: it waits for others, and returns lanes at last

OFFSET_BITS = 40  # of an address
UNWRITTEN = 0xFF  # bytes on the stack and of shared memory: floats are NaN
_PARALLEL_FOR, _SIMT_BARRIER = "smelt_parallel_for", "smelt_simt_barrier"  # of `torch_abi.symbols`, a layer above


class Fault(Exception):
    """What a program must not do, and the node that did it."""

    has_place = False  # whether the text says where


def run(module: Module, name: str, *args: Any) -> Any:
    """Call a function. Returns its result, if it has one."""
    machine = _Machine(module)
    try:
        wait = next(_Thread(machine).call(machine.functions[name], [machine.argument(each) for each in args]))
    except StopIteration as end:
        return end.value[0] if end.value else None
    raise Fault(f"the only thread waits for others: {node_text(wait[0])}")


def run_grid(
    module: Module, name: str, *args: Any, blocks: int, shared_bytes: int = 0, warp_size: int = 32, host_warps: int = 0
) -> None:
    """Launch a grid. Blocks run one after the other, those of a cluster together. `shared_bytes`: of shared memory
    without a length of its own. `host_warps`: how often a function for the host's warps, whose arguments are buffers
    and workspace, is called for each block."""
    machine = _Machine(module)
    function, begin = machine.functions[name], [machine.argument(each) for each in args]
    for block in range(0, blocks, function.cluster):
        if host_warps:
            shared = machine.place(shared_bytes, "shared memory")  # all load what only some use: no race
            warps = [_Thread(machine, number=warp, warp=warp) for warp in range(host_warps)]
            _run_in_step([(each, each.call(function, [*begin, (block,), (each.warp,), (shared,)])) for each in warps])
            continue
        sizes = {f"@{each.name}": each.length * _size(each.kind) or shared_bytes for each in function.shared}
        ranks = range(function.cluster)
        arrays = [{name: machine.place(size, name, is_shared=True) for name, size in sizes.items()} for _ in ranks]
        threads = [
            _Thread(machine, number, number // warp_size, rank, warp_size, block + rank, arrays, begin)
            for rank in ranks for number in range(function.threads)
        ]  # fmt: skip
        _run_in_step([(each, each.call(function, begin[: len(function.params)])) for each in threads])


def _mask(kind: str, number: int) -> int:
    return number & ((1 << BITS.get(kind, 64)) - 1)


def _signed(kind: str, number: int) -> int:
    return number - (1 << BITS[kind]) if number >> (BITS[kind] - 1) else number


def _rounded(kind: str, number: float) -> float:
    """The nearest number of a kind: of any number for f32, of a float32 for the narrow kinds."""
    if kind == "f32":
        return c_float(number).value
    return number if kind == "f64" else torch.tensor(number, dtype=torch.float32).to(_NARROW[kind]).item()


def _nearest(kind: str, exact: Fraction) -> float:
    """The number of a kind that is nearest to an exact one, rounded once: to float64 first, with an odd last bit where
    that is not exact, so that the second rounding sees on which side of a tie it is."""
    try:
        number = float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf
    if kind != "f64" and number != exact and _to_bits("f64", number) % 2 == 0:
        number = math.nextafter(number, math.inf if exact > number else -math.inf)
    return _rounded(kind, number)


def _halves(kind: str, word: int) -> tuple[float, float]:
    """The two narrow floats of a word."""
    return _from_bits(kind, word & 0xFFFF), _from_bits(kind, word >> 16)


def _fma(kind: str, a: float, b: float, c: float) -> float:
    if math.isinf(c) and math.isfinite(a) and math.isfinite(b):
        return c  # the product of doubles may overflow; the exact one is finite
    if not all(map(math.isfinite, (a, b, c))):
        return a * b + c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    return _nearest(kind, exact) if exact else a * b + c  # which of the zeros follows from the signs


def _divide(a: float, b: float) -> float:
    if b:
        return a / b
    return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1.0, b)


def _whole(how: Callable[[float], float], a: float) -> float:
    return math.copysign(float(how(a)), a) if abs(a) < 2.0**52 else a


def _extreme(first: Callable[..., Any], *both: float) -> float:
    """`first`: min or max. Of two zeros, the negative one is smaller."""
    if any(map(math.isnan, both)):
        return math.nan
    return float(first(both, key=lambda number: (number, math.copysign(1.0, number))))


def _scaled(x: float, n: float) -> float:
    """x · 2^n, in two steps of which the first is exact."""
    whole = n if math.isnan(n) else max(-2046.0, min(2046.0, n))
    return float(x * 2.0 ** (whole // 2) * 2.0 ** (whole - whole // 2))


def _library(name: str, *args: float) -> float:
    return float(getattr(torch, name)(*[torch.tensor(each, dtype=torch.float64) for each in args]))


_NARROW = {"f16": torch.float16, "bf16": torch.bfloat16}
_FORMS = {"f64": ("<d", "<Q"), "f32": ("<f", "<I"), "f16": ("<e", "<H"), "bf16": ("<f", "<I")}
_SAME = {"fmaximum": "maximum", "fminimum": "minimum", "max": "smax", "min": "smin"}
_OPS: dict[str, Callable[..., Any]] = {
    "fadd": operator.add, "fsub": operator.sub, "fmul": operator.mul, "fdiv": _divide, "fneg": operator.neg,
    "fabs": abs, "sqrt": lambda a: math.sqrt(a) if a >= 0 else math.nan,
    "floor": partial(_whole, math.floor), "ceil": partial(_whole, math.ceil), "trunc": partial(_whole, math.trunc),
    "roundeven": partial(_whole, round), "copysign": math.copysign, "minimum": partial(_extreme, min),
    "maximum": partial(_extreme, max),
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "and": operator.and_, "or": operator.or_,
    "xor": operator.xor, "udiv": operator.floordiv, "urem": operator.mod, "sdiv": lambda a, b: int(Fraction(a, b)),
    "srem": lambda a, b: a - b * int(Fraction(a, b)), "shl": operator.lshift, "lshr": operator.rshift,
    "ashr": operator.rshift, "umin": min, "umax": max, "smin": min, "smax": max,
    "eq": operator.eq, "ne": operator.ne, "gt": operator.gt, "ge": operator.ge, "lt": operator.lt, "le": operator.le,
}  # fmt: skip
_SIGNED = ("sdiv", "srem", "smin", "smax", "ashr")

# Functions that are not in a module, of one lane.
_INTRINSICS: dict[str, Callable[..., float]] = {
    "llvm.nvvm.ex2.approx.ftz.f32": partial(_library, "exp2"),
    "llvm.nvvm.rcp.approx.ftz.f": lambda x: _divide(1.0, x),
    "llvm.nvvm.saturate.f": lambda x: min(max(x, 0.0), 1.0) if x == x else 0.0,
    **dict.fromkeys(("llvm.x86.avx512.mask.scalef.ps.512", "llvm.x86.avx512.mask.scalef.pd.512"), _scaled),
}
for _name in ("exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "tanh", "erf", "pow", "fmod"):
    _INTRINSICS[_name] = _INTRINSICS[f"{_name}f"] = partial(_library, _name)


def _apply(op: str, kind: str, *args: Any) -> Any:
    """An operation on one lane."""
    if kind[0] != "i":
        return _fma(kind, *args) if op == "fma" else _rounded(kind, _OPS[op](*args))
    if op in ("shl", "lshr", "ashr") and args[1] >= BITS[kind]:
        raise Fault(f"a shift of {kind} by {args[1]}")
    if op in _SIGNED:
        args = tuple([_signed(kind, each) for each in args])
    result = _OPS[op](*args)
    if op == "sdiv" and result >> (BITS[kind] - 1) > 0:
        raise Fault(f"{args[0]} / {args[1]} is no {kind}")
    return _mask(kind, result)


def _compare(op: str, kind: str, a: Any, b: Any) -> int:
    name, how = op.split()
    if name == "icmp":
        return int(_OPS[how[-2:]](*(_signed(kind, each) if how[0] == "s" else each for each in (a, b))))
    if math.isnan(a) or math.isnan(b):
        return int(how[0] == "u")
    return int(how == "ord" if how in ("ord", "uno") else _OPS[how[1:]](a, b))


def _convert(op: str, kind: str, to: str, number: Any) -> Any:
    if op in ("trunc", "zext", "ptrtoint", "inttoptr"):
        return _mask(to, number)
    if op == "sext":
        return _mask(to, _signed(kind, number))
    if op in ("fptrunc", "fpext"):
        return _rounded(to, number)
    if op in ("sitofp", "uitofp"):
        return _nearest(to, Fraction(_signed(kind, number) if op == "sitofp" else number))
    low, high = -(1 << (BITS[to] - 1)), (1 << (BITS[to] - 1)) - 1
    whole = math.trunc(number) if math.isfinite(number) else 0 if math.isnan(number) else high if number > 0 else low
    return _mask(to, min(max(whole, low), high))


def _to_bits(kind: str, number: Any) -> int:
    if kind not in _FORMS:
        return int(number)
    form, whole = _FORMS[kind]
    return int(struct.unpack(whole, struct.pack(form, number))[0]) >> (16 if kind == "bf16" else 0)


def _from_bits(kind: str, bits: int) -> Any:
    if kind not in _FORMS:
        return _mask(kind, bits)
    form, whole = _FORMS[kind]
    return struct.unpack(form, struct.pack(whole, bits << (16 if kind == "bf16" else 0)))[0]


@dataclass(slots=True, eq=False)
class _Region:
    data: memoryview
    name: str
    is_constant: bool
    is_shared: bool
    touched: dict[int, set[Touch]]  # of shared memory, by byte: who, whether it wrote, and after how many barriers


class _Machine:
    """Functions and memory."""

    def __init__(self, module: Module) -> None:
        self.functions = {each.name: each for each in (*module.helpers, *module.functions)}
        self.regions: dict[int, _Region] = {}
        self.by_address: dict[int, Function] = {}
        self._symbols: dict[str, int] = {}
        self._owners: dict[int, tuple[Any, int]] = {}  # by the identity of the arguments' memory, which is kept alive
        self._count = 0

    def place(self, data: Any, name: str, *, is_constant: bool = False, is_shared: bool = False) -> int:
        """The address of a new region: of memory, or of so many bytes that nobody has written."""
        self._count += 1
        view = memoryview(bytearray([UNWRITTEN]) * data if isinstance(data, int) else data).cast("B")
        self.regions[self._count] = _Region(view, name, is_constant, is_shared, {})
        return self._count << OFFSET_BITS

    def argument(self, value: Any) -> Lanes:
        if isinstance(value, int | float):
            return (int(value) % (1 << 64) if isinstance(value, int) else value,)
        if isinstance(value, list):
            addresses = [self.argument(each)[0] for each in value]
            return (self.place(bytearray(struct.pack(f"<{len(addresses)}Q", *addresses)), "an array of addresses"),)
        if isinstance(value, tuple):
            return (self.argument(value[0])[0] + value[1],)
        if id(value) not in self._owners:
            self._owners[id(value)] = (value, self.place(value, f"argument {len(self._owners)}"))
        return (self._owners[id(value)][1],)

    def symbol(self, name: str) -> int:
        """The address of a function or table."""
        if name not in self._symbols:
            tables = {f"@{table.name}": table.values for each in self.functions.values() for table in each.tables}
            data = b"".join([_bytes(value.kind, each) for value in tables.get(name, ()) for each in _constant(value)])
            self._symbols[name] = self.place(bytearray(data), name, is_constant=True)
            if name not in tables:
                self.by_address[self._symbols[name]] = self.functions[name[1:]]
        return self._symbols[name]

    def access(self, address: int, size: int, thread: "_Thread", *, writes: bool) -> memoryview:
        """Memory to read or write."""
        region, first = self.regions.get(address >> OFFSET_BITS), address & ((1 << OFFSET_BITS) - 1)
        if region is None or first + size > len(region.data):
            where = f"at {first} of {region.name}, which has {len(region.data)}" if region else "where no memory is"
            raise Fault(f"{'writes' if writes else 'reads'} {size} bytes {where}")
        if writes and region.is_constant:
            raise Fault(f"writes to {region.name}")
        if region.is_shared:
            for place in range(first, first + size):
                thread.touch(region.touched.setdefault(place, set()), f"byte {place} of {region.name}", writes)
        return region.data[first : first + size]


def _size(kind: str) -> int:
    """Bytes of an element in memory."""
    return max(1, BITS[kind] // 8) if kind in BITS else 8


def _bytes(kind: str, number: Any) -> bytes:
    return _to_bits(kind, number).to_bytes(_size(kind), "little")


def _constant(value: Value) -> Lanes:
    numbers = value.number if isinstance(value.number, tuple) else (value.number,) * value.lanes
    convert = _mask if value.kind[0] == "i" else _rounded
    return tuple([convert(value.kind, number) for number in numbers])  # type: ignore[arg-type]


@dataclass(slots=True, eq=False)
class _Thread:
    """One thread, its place in a grid, and how many barriers of its block and its warp it has passed."""

    machine: _Machine
    number: int = 0
    warp: int = 0
    rank: int = 0  # of its block in the cluster
    warp_size: int = 1
    block: int = 0
    arrays: Sequence[dict[str, int]] = ()  # shared memory of each block of the cluster
    parameters: Sequence[Lanes] = ()
    block_barriers: int = 0
    warp_barriers: int = 0
    copies: list[list[tuple[int, bytes]]] = field(default_factory=lambda: [[]])  # under way, by group; the last is open

    def group(self, scope: str) -> Hashable:
        """Equal for threads that wait for each other."""
        return {"warp": (scope, self.rank, self.warp), "block": (scope, self.rank)}.get(scope, ())

    def touch(self, before: set[Touch], what: str, writes: bool) -> None:
        """Record an access to a shared byte, and compare it with those of others."""
        for other, wrote, blocks, warps in before:
            passed = other.rank == self.rank and blocks != self.block_barriers
            passed = passed or (other.group("warp") == self.group("warp") and warps != self.warp_barriers)
            if other is not self and (wrote or writes) and not passed:
                raise Fault(f"threads {other.number} and {self.number} touch {what} without a barrier between them")
        before.add((self, writes, self.block_barriers, self.warp_barriers))

    def call(self, function: Function | None, args: Sequence[Lanes]) -> Steps:
        """Run a function. Returns lanes, if it has a result."""
        if function is None or len(args) != len(function.params):
            raise Fault(f"{len(args)} arguments for {f'@{function.name}' if function else 'what is no function'}")
        frame = _Frame(self, function)
        frame.set(function.params, args)
        result = yield from frame.body(function.body)
        for number in frame.allocated:
            del self.machine.regions[number]
        return result


class _Frame:
    """The registers of a function that runs."""

    def __init__(self, thread: _Thread, function: Function) -> None:
        self.thread, self.machine, self.function = thread, thread.machine, function
        self.values: dict[str, Lanes] = {}
        self.allocated: list[int] = []

    def get(self, value: Value) -> Lanes:
        if value.number is not None:
            return _constant(value)
        if value.name[0] != "@":
            return self.values[value.name]
        arrays = self.thread.arrays[self.thread.rank] if self.thread.arrays else {}
        return (arrays.get(value.name) or self.machine.symbol(value.name),)

    def set(self, values: Sequence[Value], results: Sequence[Lanes]) -> None:
        for value, lanes in zip(values, results, strict=True):
            assert len(lanes) == value.lanes, value
            self.values[value.name] = lanes

    def body(self, nodes: Sequence[Node]) -> Steps:
        """Run nodes. Returns the lanes that the function returns."""
        for node in nodes:
            try:
                if isinstance(node, loops.Return):
                    return self.get(node.value)
                if type(node) in _FLOW:
                    yield from _FLOW[type(node)](self, node)
                elif (out := _STEPS[type(node)](self, node)) is not None:
                    self.set((node.out,), (out,))  # type: ignore[union-attr, arg-type]
            except (Fault, ZeroDivisionError, LookupError) as fault:
                what = "division by zero" if isinstance(fault, ZeroDivisionError) else fault
                error = Fault(f"{what}, in @{self.function.name}: {node_text(node)}")
                error.has_place = True
                raise fault if getattr(fault, "has_place", False) else error from None

    # Values.

    def compute(self, node: loops.Compute) -> Lanes:
        lanes, kind = zip(*map(self.get, node.args), strict=True), node.args[0].kind
        if node.op == "select":
            return tuple([a if condition else b for condition, a, b in lanes])
        if node.op[1:4] == "cmp":
            return tuple([_compare(node.op, kind, a, b) for a, b in lanes])
        return tuple([_apply(node.op, kind, *args) for args in lanes])

    def convert(self, node: loops.Convert) -> Lanes:
        lanes, kind, to = self.get(node.value), node.value.kind, node.out.kind
        if node.op != "bitcast":
            return tuple([_convert(node.op, kind, to, number) for number in lanes])
        whole = sum(_to_bits(kind, number) << (BITS[kind] * place) for place, number in enumerate(lanes))
        parts = [whole >> (BITS[to] * place) & ((1 << BITS[to]) - 1) for place in range(node.out.lanes)]
        return tuple([_from_bits(to, part) for part in parts])

    def reduce(self, node: loops.Reduce) -> Lanes:
        """All lanes one after the other, or, where the order is left open, the upper half onto the lower one."""
        op, kind, values = _SAME.get(node.op, node.op), node.value.kind, self.get(node.value)
        while "reassoc" in node.flags and len(values) > 1 and len(values) % 2 == 0:
            half = len(values) // 2
            values = tuple([_apply(op, kind, a, b) for a, b in zip(values[:half], values[half:], strict=True)])
        every = values if node.start is None else (*self.get(node.start), *values)
        return (reduce(partial(_apply, op, kind), every),)

    # Memory.

    def address(self, node: loops.Address) -> Lanes:
        size, kind, offsets = _size(node.kind), node.offset.kind, self.get(node.offset)
        bases = self.get(node.base) * (node.offset.lanes // node.base.lanes)
        return tuple([_mask("i64", at + size * _signed(kind, by)) for at, by in zip(bases, offsets, strict=True)])

    def alloc(self, node: loops.Alloc) -> Lanes:
        address = self.machine.place(node.length * _size(node.kind), node.out.name)
        self.allocated.append(address >> OFFSET_BITS)
        return (address,)

    def _places(self, pointer: Value, value: Value, align: int) -> list[int]:
        """The address of each lane."""
        addresses = self.get(pointer)
        for address in addresses:
            if align and address % align:
                raise Fault(f"the address is {address % align} past a multiple of {align}")
        if value.kind == "i1" and value.lanes > 1:
            raise Fault("vectors of i1 have no place in memory")
        if len(addresses) > 1:
            return list(addresses)
        return [addresses[0] + _size(value.kind) * lane for lane in range(value.lanes)]

    def _read(self, kind: str, address: int) -> Any:
        data = self.machine.access(address, _size(kind), self.thread, writes=False)
        return _from_bits(kind, int.from_bytes(data, "little"))

    def _write(self, kind: str, address: int, number: Any) -> None:
        self.machine.access(address, _size(kind), self.thread, writes=True)[:] = _bytes(kind, number)

    def load(self, node: loops.Load) -> Lanes:
        return tuple([self._read(node.out.kind, place) for place in self._places(node.pointer, node.out, node.align)])

    def store(self, node: loops.Store) -> None:
        mask = self.get(node.mask) if node.mask is not None else (1,)
        places = self._places(node.pointer, node.value, node.align if all(mask) else 0)
        masks = mask * (len(places) // len(mask))
        for place, number, is_stored in zip(places, self.get(node.value), masks, strict=True):
            if is_stored:
                self._write(node.value.kind, place, number)

    def atomic(self, node: loops.Atomic) -> None:
        kind, op = node.value.kind, _SAME.get(node.op, node.op)
        (place,), (number,) = self._places(node.pointer, node.value, _size(kind)), self.get(node.value)
        self._write(kind, place, number if op == "xchg" else _apply(op, kind, self._read(kind, place), number))

    def compare_exchange(self, node: loops.CompareExchange) -> None:
        kind, ((place,), expected, new) = node.new.kind, map(self.get, (node.pointer, node.expected, node.new))
        seen = self._read(kind, place)
        if seen == expected[0]:
            self._write(kind, place, new[0])
        self.set((node.seen, node.stored), ((seen,), (int(seen == expected[0]),)))

    # Threads.

    def id(self, node: loops.Id) -> Lanes:
        thread = self.thread
        if node.at is not None:
            return thread.parameters[self.get(node.at)[0]]
        numbers = {"thread": thread.number, "lane": thread.number % thread.warp_size, "warp": thread.warp}
        return ((numbers | {"block": thread.block})[node.what],)

    def remote(self, node: loops.Remote) -> Lanes:
        ((address,), (rank,)), arrays = map(self.get, (node.pointer, node.rank)), self.thread.arrays
        distances = {name: address - first for name, first in arrays[self.thread.rank].items()}
        (name,) = (name for name, distance in distances.items() if 0 <= distance < 1 << OFFSET_BITS)
        return (arrays[rank][name] + distances[name],)

    def barrier(self, node: loops.Barrier | loops.Call) -> Steps:
        scope = node.scope if isinstance(node, loops.Barrier) else "block"
        if scope in ("earlier", "later"):  # a launch by itself
            return
        yield node, scope, None
        self.thread.warp_barriers += scope == "warp"
        self.thread.block_barriers += scope != "warp"

    def shuffle(self, node: loops.Shuffle) -> Steps:
        (value,), (by,) = self.get(node.value), self.get(node.lane)
        lane = self.thread.number % self.thread.warp_size
        values = dict((yield node, "warp", (lane, value)))
        source = {"xor": lane ^ by, "up": lane - by if lane >= by else lane, "from": by}[node.mode]
        if source not in values:
            raise Fault(f"the warp has no lane {source}")
        self.set((node.out,), ((values[source],),))

    def mma(self, node: loops.Mma) -> Steps:
        """Exact products, added exactly and rounded once to the sums."""
        lane = self.thread.number % self.thread.warp_size
        mine = [[_halves(node.kind, self.get(word)[0]) for word in words] for words in (node.a, node.b)]
        lanes = dict((yield node, "warp", (lane, mine)))
        if len(lanes) != 32:
            raise Fault(f"a warp of {len(lanes)} multiplies no matrices")
        group, place = divmod(lane, 4)
        results = []
        for number, total in enumerate(node.sums):
            down, col = number // 2, 2 * place + number % 2
            exact = self.get(total)[0]
            for later, each, half in itertools.product(range(2), range(4), range(2)):
                left = lanes[4 * group + each][0][2 * later + down][half]
                exact += left * lanes[4 * col + each][1][later][half]
            results.append((_rounded("f32", exact),))
        self.set(node.results, results)

    def load_matrix(self, node: loops.LoadMatrix) -> Steps:
        thread, (address,) = self.thread, self.get(node.pointer)
        lane = thread.number % thread.warp_size
        rows = dict((yield node, "warp", (lane, address)))
        if address % 16:
            raise Fault(f"a row of a matrix at {address & 15}, no multiple of 16")
        group, place = divmod(lane, 4)
        for number, result in enumerate(node.results):
            word = b""
            for more in range(2):
                row, col = (2 * place + more, group) if node.transposed else (group, 2 * place + more)
                word += self.machine.access(rows[8 * number + row] + 2 * col, 2, thread, writes=False)
            self.set((result,), ((int.from_bytes(word, "little"),),))

    def copy_async(self, node: loops.CopyAsync) -> None:
        """The bytes are unknown until the thread has waited."""
        (to,), (source,), thread = self.get(node.to), self.get(node.source), self.thread
        reads = node.mask is None or self.get(node.mask)[0]
        if to % 16 or (reads and source % 16):
            raise Fault("a copy of 16 bytes that is not at multiples of 16")
        data = bytes(self.machine.access(source, 16, thread, writes=False)) if reads else bytes(16)
        self.machine.access(to, 16, thread, writes=True)[:] = bytes([UNWRITTEN]) * 16
        thread.copies[-1].append((to, data))

    def copy_commit(self, node: loops.CopyCommit) -> None:
        self.thread.copies.append([])

    def copy_wait(self, node: loops.CopyWait) -> None:
        groups = self.thread.copies
        while len(groups) > node.pending + 1:
            for to, data in groups.pop(0):
                self.machine.access(to, 16, self.thread, writes=True)[:] = data

    # Control flow.

    def for_(self, node: loops.For) -> Steps:
        kind, (first,), (last,) = node.index.kind, self.get(node.first), self.get(node.last)
        carried, index = [self.get(value) for value in node.starts], _signed(kind, first)
        while index < _signed(kind, last) or (index == _signed(kind, first) and not node.may_skip):
            self.set((node.index, *node.carried), ((_mask(kind, index),), *carried))
            yield from self.body(node.body)
            carried = [self.get(value) for value in node.yields]
            index += node.step
        self.set(node.results, carried)

    def repeat(self, node: loops.Repeat) -> Steps:
        carried, goes_on = [self.get(value) for value in node.starts], True
        while goes_on:
            self.set(node.carried, carried)
            yield from self.body(node.body)
            carried, goes_on = [self.get(value) for value in node.yields], bool(self.get(node.condition)[0])
        self.set(node.results, carried)

    def if_(self, node: loops.If) -> Steps:
        holds = self.get(node.condition)[0]
        yield from self.body(node.then if holds else node.otherwise)
        self.set(node.results, [self.get(value) for value in (node.then_values if holds else node.else_values)])

    def call(self, node: loops.Call) -> Steps:
        args, callee = [self.get(each) for each in node.args], node.callee
        result: Lanes = ()
        if isinstance(callee, Value):
            result = yield from self.thread.call(self.machine.by_address.get(self.get(callee)[0]), args)
        elif callee in self.machine.functions:
            result = yield from self.thread.call(self.machine.functions[callee], args)
        elif callee == _PARALLEL_FOR:
            result = yield from self._parallel_for(*[lanes[0] for lanes in args])
        elif callee == _SIMT_BARRIER:
            yield from self.barrier(node)
        elif callee.startswith("llvm.memcpy."):
            to, source, size = [lanes[0] for lanes in args[:3]]
            data = bytes(self.machine.access(source, size, self.thread, writes=False))
            self.machine.access(to, size, self.thread, writes=True)[:] = data
        elif callee in _INTRINSICS and node.out is not None:
            vectors = args[:2] if "scalef" in callee else args  # what follows is about lanes left out
            lanes = zip(*vectors, strict=True)
            result = tuple([_rounded(node.out.kind, _INTRINSICS[callee](*each)) for each in lanes])
        else:
            raise Fault(f"there is no function {callee}")
        if node.out is not None:
            self.set((node.out,), (result,))

    def _parallel_for(self, *args: int) -> Steps:
        """All chunks, one after the other, each in a workspace of its own."""
        part, buffers, workspace, threads, most, extent, size = args
        function, first = self.machine.by_address.get(part), 0
        chunks = max(1, min(_signed("i64", threads), _signed("i64", most)))
        for chunk in range(chunks):
            last = (chunk + 1) * extent // chunks
            rest = (workspace + chunk * size, first, last, int(chunk + 1 == chunks))
            yield from self.thread.call(function, [(each,) for each in (buffers, *rest)])
            first = last
        return (chunks,)


def _run_in_step(threads: Sequence[tuple[_Thread, Steps]]) -> None:
    """All threads of a cluster: each up to where it waits; then those go on whose whole group is there."""
    groups: dict[Hashable, list[int]] = {}
    for place, (thread, _) in enumerate(threads):
        for scope in ("warp", "block", "cluster"):
            groups.setdefault(thread.group(scope), []).append(place)
    answers: dict[int, Any] = dict.fromkeys(range(len(threads)))
    waits: dict[int, Wait] = {}
    while answers:
        for place, answer in answers.items():
            waits.pop(place, None)
            with suppress(StopIteration):
                waits[place] = threads[place][1].send(answer)
        answers = {}
        for place, (node, scope, _) in waits.items():
            group = groups[threads[place][0].group(scope)]
            if place == group[0] and all(other in waits and waits[other][0] is node for other in group):
                answers |= dict.fromkeys(group, tuple([waits[other][2] for other in group]))
                if scope != "warp" and len(group) == len(threads):  # nobody can touch anything at the same time
                    for region in threads[0][0].machine.regions.values():
                        region.touched.clear()
    for place, (node, _, _) in waits.items():
        raise Fault(f"thread {threads[place][0].number} waits for others that do not come: {node_text(node)}")


_STEPS: dict[type, Callable[[_Frame, Any], Lanes | None]] = {
    loops.Compute: _Frame.compute, loops.Convert: _Frame.convert,
    loops.Splat: lambda frame, n: frame.get(n.value) * n.out.lanes,
    loops.Pack: lambda frame, n: tuple([frame.get(value)[0] for value in n.values]),
    loops.Permute: lambda frame, n: tuple([(*frame.get(n.a), *frame.get(n.b or n.a))[lane] for lane in n.lanes]),
    loops.Extract: lambda frame, n: (
        frame.get(n.vector)[n.lane if isinstance(n.lane, int) else frame.get(n.lane)[0]],
    ),
    loops.Reduce: _Frame.reduce, loops.Address: _Frame.address, loops.Alloc: _Frame.alloc, loops.Load: _Frame.load,
    loops.Store: _Frame.store, loops.Prefetch: lambda frame, n: None, loops.Fence: lambda frame, n: None,
    loops.Atomic: _Frame.atomic, loops.CompareExchange: _Frame.compare_exchange, loops.Id: _Frame.id,
    loops.Remote: _Frame.remote, loops.CopyAsync: _Frame.copy_async, loops.CopyCommit: _Frame.copy_commit,
    loops.CopyWait: _Frame.copy_wait,
}  # fmt: skip
_FLOW: dict[type, Callable[[_Frame, Any], Steps]] = {
    loops.For: _Frame.for_, loops.If: _Frame.if_, loops.Repeat: _Frame.repeat,
    loops.Call: _Frame.call, loops.Barrier: _Frame.barrier, loops.Shuffle: _Frame.shuffle,
    loops.Mma: _Frame.mma, loops.LoadMatrix: _Frame.load_matrix,
}  # fmt: skip
