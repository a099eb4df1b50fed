"""Prints the loop form as C: a trial of a new target, and a second opinion beside LLVM. For processors only.

    print_c(module)     static void k0_part(char *v_buffers, …) { … }  void k0(…) { … }

C99 with GCC's vector extensions: `f32x8` is a vector type, subscripts are its lanes. Carried values are variables, and
results are declared before their loop or branch. Integers are unsigned, and cast (`s32`) where their sign matters; i1
is a byte that is 0 or 1. Memory is read and written by `memcpy`, so no access has to be aligned. Build with
`-ffp-contract=off`. `smelt_parallel_for` and other functions that are not in the module are declared.
"""

import math
import re
import struct
from collections.abc import Callable, Sequence
from typing import Any

from smelt.ir import loops
from smelt.ir.loops import BITS, Function, Module, Node, Value

PRELUDE = """\
#include <math.h>
#include <stdint.h>
#include <string.h>
typedef double f64; typedef float f32; typedef _Float16 f16; typedef uint16_t bf16; typedef char *ptr;
typedef uint8_t i1, i8; typedef uint16_t i16; typedef uint32_t i32; typedef uint64_t i64;
typedef unsigned __int128 i128;
typedef int8_t s8; typedef int16_t s16; typedef int32_t s32; typedef int64_t s64; typedef __int128 s128;
#define LANES(n) for (int l = 0; l < n; l++)
#define EXTREMES(T) \\
    static inline T lower_##T(T a, T b) { return a < b || (a == b && signbit(a)) ? a : b; } \\
    static inline T minimum_##T(T a, T b) { return a != a || b != b ? a + b : lower_##T(a, b); } \\
    static inline T maximum_##T(T a, T b) { return -minimum_##T(-a, -b); }
EXTREMES(f32) EXTREMES(f64)
static inline f64 scaled(f64 x, f64 n) { return n != n ? n : ldexp(x, n < -5000 ? -5000 : n > 5000 ? 5000 : (int)n); }
static inline f32 from_bf16(bf16 x) { i32 bits = (i32)x << 16; f32 y; memcpy(&y, &bits, 4); return y; }
static inline bf16 to_bf16(f32 x)
{
    i32 bits;
    memcpy(&bits, &x, 4);
    return x != x ? (bits | 0x400000) >> 16 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
"""

OPERATORS = {
    "add": "+", "sub": "-", "mul": "*", "udiv": "/", "urem": "%", "and": "&", "or": "|", "xor": "^", "shl": "<<",
    "lshr": ">>", "fadd": "+", "fsub": "-", "fmul": "*", "fdiv": "/",
}  # fmt: skip
SIGNED = {"sdiv": "/", "srem": "%", "ashr": ">>"}
ORDER = {"eq": "==", "ne": "!=", "gt": ">", "ge": ">=", "lt": "<", "le": "<="}
OPPOSITE = {"eq": "!=", "ne": "==", "gt": "<=", "ge": "<", "lt": ">=", "le": ">"}
REDUCTIONS = {"fmaximum": "maximum", "fminimum": "minimum"}


def print_c(module: Module) -> str:
    """The C of a module's functions."""
    functions = (*module.helpers, *module.functions)
    names, printers = {each.name for each in functions}, [_Printer(each) for each in functions]
    for printer in printers:
        printer.body(printer.function.body)
    types = {each for printer in printers for each in printer.vectors}
    externs = {text for printer in printers for name, text in printer.called.items() if name not in names}
    lanes = sorted({count for _, count in types})
    return "\n".join(
        [
            PRELUDE,
            *[f"#define SPLAT{count}(x) {{{', '.join(['x'] * count)}}}" for count in lanes],
            *[_vector_type(kind, count) for kind, count in sorted(types)],
            *sorted(externs),
            *[_table(table) for function in functions for table in function.tables],
            *[f"{_head(function)};" for function in functions],
            *[printer.text() for printer in printers],
        ]
    )


def _bytes_of(kind: str) -> int:
    return max(1, BITS[kind] // 8) if kind in BITS else 8


def _padded(lanes: int) -> int:
    """GCC has no vectors of other lengths; lanes past the last one are never in memory."""
    return 1 << (lanes - 1).bit_length()


def _vector_type(kind: str, lanes: int) -> str:
    element, size = kind if kind in BITS else "uintptr_t", _bytes_of(kind) * _padded(lanes)
    return f"typedef {element} {kind}x{lanes} __attribute__((vector_size({size})));"


def _global(name: str) -> str:
    return re.sub(r"\W", "_", name)


def _head(function: Function) -> str:
    static = "" if function.kind == "entry" else "static "
    inline = "" if function.inlined else "__attribute__((noinline)) "
    params = ", ".join([f"{each.kind} v_{_global(each.name[1:])}" for each in function.params])
    return f"{static}{inline}{function.result or 'void'} {_global(function.name)}({params or 'void'})"


def _table(table: loops.Table) -> str:
    """By its bytes: a table may have values of several types."""
    data = b"".join(_bytes(value.kind, number) for value in table.values for number in _numbers(value))
    const, align = "const " if table.fixed else "", max(16, table.align)
    return f"static {const}_Alignas({align}) unsigned char {_global(table.name)}[] = {{{', '.join(map(str, data))}}};"


def _numbers(value: Value) -> Sequence[Any]:
    return value.number if isinstance(value.number, tuple) else [value.number] * value.lanes


def _bytes(kind: str, number: Any) -> bytes:
    if kind[0] == "i":
        return (int(number) % (1 << BITS[kind])).to_bytes(_bytes_of(kind), "little")
    return struct.pack({"f64": "<d", "f32": "<f", "f16": "<e"}[kind], number)


def literal(kind: str, number: Any) -> str:
    """An exact constant."""
    if kind[0] == "i":
        whole = int(number) % (1 << BITS[kind])
        if kind == "i128":
            return f"((i128){whole >> 64}ull << 64 | {whole % (1 << 64)}ull)"
        return f"({kind}){whole}{'ull' if BITS[kind] == 64 else 'u'}"
    suffix = "f" if kind == "f32" else ""
    if not math.isfinite(number):
        return f'({kind})__builtin_nan{suffix}("")' if math.isnan(number) else f"({kind}){'-' * (number < 0)}INFINITY"
    if kind == "f32":
        number = struct.unpack("<f", struct.pack("<f", number))[0]
    return f"({kind}){float(number).hex()}{suffix}"


class _Printer:
    """The lines of one function."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.lines: list[str] = []
        self.room: list[str] = []  # space on the stack, for the whole function
        self.vectors: set[tuple[str, int]] = set()
        self.called: dict[str, str] = {}
        self._depth = 1

    def text(self) -> str:
        return "\n".join([_head(self.function), "{", *self.room, *self.lines, "}", ""])

    def write(self, line: str) -> None:
        self.lines.append("    " * self._depth + line)

    def body(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            _PRINTERS[type(node)](self, node)

    def block(self, head: str, nodes: Sequence[Node], *last: str, tail: str = "}") -> None:
        self.write(f"{head} {{")
        self._depth += 1
        self.body(nodes)
        for line in last:
            self.write(line)
        self._depth -= 1
        self.write(tail)

    def type(self, value: Value) -> str:
        if value.lanes == 1:
            return value.kind
        self.vectors.add((value.kind, value.lanes))
        return f"{value.kind}x{value.lanes}"

    def name(self, value: Value) -> str:
        """A value as an expression."""
        if value.number is None:
            return f"(ptr){_global(value.name[1:])}" if value.name[0] == "@" else f"v_{_global(value.name[1:])}"
        if value.lanes == 1:
            return literal(value.kind, value.number)
        if isinstance(value.number, tuple):
            return f"(({self.type(value)}){{{', '.join([literal(value.kind, each) for each in value.number])}}})"
        return f"(({self.type(value)})SPLAT{value.lanes}({literal(value.kind, value.number)}))"

    def lane(self, value: Value, lane: str = "l") -> str:
        if value.lanes == 1:
            return self.name(value)
        if value.number is not None and not isinstance(value.number, tuple):
            return literal(value.kind, value.number)
        return f"{self.name(value)}[{lane}]"

    def define(self, out: Value, text: str) -> None:
        self.write(f"{self.type(out)} {self.name(out)} = {text};")

    def each_lane(self, out: Value, expression: Callable[..., str], *args: Value) -> None:
        """A lane of the result out of the same lane of each operand."""
        if out.lanes == 1:
            self.define(out, expression(*map(self.name, args)))
            return
        self.write(f"{self.type(out)} {self.name(out)};")
        self.write(f"LANES({out.lanes}) {self.name(out)}[l] = {expression(*map(self.lane, args))};")

    # Values.

    def compute(self, node: loops.Compute) -> None:
        op, kind, out = node.op, node.args[0].kind, node.out
        if op in OPERATORS and op not in ("udiv", "urem") and out.lanes > 1 and kind != "i1":
            self.define(out, f" {OPERATORS[op]} ".join(map(self.name, node.args)))
        else:
            self.each_lane(out, lambda *args: _expression(op, kind, *args), *node.args)

    def convert(self, node: loops.Convert) -> None:
        value, out = node.value, node.out
        if node.op != "bitcast":
            self.each_lane(out, lambda arg: _converted(node.op, value.kind, out.kind, arg), value)
            return
        assert "i1" not in (value.kind, out.kind), "vectors of i1 are bytes here"
        source = f"{self.name(out)}_bits"
        self.write(f"{self.type(value)} {source} = {self.name(value)};")
        self.write(f"{self.type(out)} {self.name(out)};")
        self.write(f"memcpy(&{self.name(out)}, &{source}, {_bytes_of(out.kind) * out.lanes});")

    def pack(self, node: loops.Pack | loops.Splat) -> None:
        values = node.values if isinstance(node, loops.Pack) else (node.value,) * node.out.lanes
        self.define(node.out, f"({self.type(node.out)}){{{', '.join(map(self.name, values))}}}")

    def permute(self, node: loops.Permute) -> None:
        a, b, padding = node.a, node.a if node.b is None else node.b, _padded(node.a.lanes) - node.a.lanes
        if a.lanes > 1 and len(node.lanes) > 1:
            order = [lane if lane < a.lanes else lane + padding for lane in node.lanes]
            order += [-1] * (_padded(len(order)) - len(order))
            vectors = f"{self.name(a)}, {self.name(b)}"
            self.define(node.out, f"__builtin_shufflevector({vectors}, {', '.join(map(str, order))})")
            return
        lanes = [self.lane(a if lane < a.lanes else b, str(lane % a.lanes)) for lane in node.lanes]
        self.define(node.out, f"({self.type(node.out)}){{{', '.join(lanes)}}}")

    def extract(self, node: loops.Extract) -> None:
        lane = self.name(node.lane) if isinstance(node.lane, Value) else str(node.lane)
        self.define(node.out, self.lane(node.vector, lane))

    def reduce(self, node: loops.Reduce) -> None:
        """Where the order is left open, the upper half onto the lower one; else one lane after the other."""
        op, value, out = REDUCTIONS.get(node.op, node.op), node.value, self.name(node.out)
        lanes, kind = f"{out}_lanes", value.kind
        self.write(f"{self.type(value)} {lanes} = {self.name(value)};")
        count = value.lanes
        while "reassoc" in node.flags and count > 1 and count % 2 == 0:
            count //= 2
            self.write(f"LANES({count}) {lanes}[l] = {_expression(op, kind, f'{lanes}[l]', f'{lanes}[l + {count}]')};")
        start = 0 if node.start is not None else 1
        self.define(node.out, f"{lanes}[0]" if node.start is None else self.name(node.start))
        self.write(f"for (int l = {start}; l < {count}; l++) {out} = {_expression(op, kind, out, f'{lanes}[l]')};")

    # Memory.

    def address(self, node: loops.Address) -> None:
        base = self.name(node.base) if node.out.lanes == 1 else f"(uintptr_t){self.name(node.base)}"
        signed, size = f"(s64)(s{BITS[node.offset.kind]})", _bytes_of(node.kind)
        self.each_lane(node.out, lambda offset: f"{base} + {signed}{offset} * {size}", node.offset)

    def alloc(self, node: loops.Alloc) -> None:
        name = self.name(node.out)
        self.room.append(f"    _Alignas({node.align}) char {name}_room[{node.length * _bytes_of(node.kind)}];")
        self.define(node.out, f"{name}_room")

    def load(self, node: loops.Load) -> None:
        kind, out, pointer = node.out.kind, self.name(node.out), node.pointer
        self.write(f"{self.type(node.out)} {out};")
        if pointer.lanes == 1:
            self.write(f"memcpy(&{out}, {self.name(pointer)}, {_bytes_of(kind) * node.out.lanes});")
        else:
            copy = f"memcpy(&element, (ptr){self.lane(pointer)}, {_bytes_of(kind)});"
            self.write(f"LANES({node.out.lanes}) {{ {kind} element; {copy} {out}[l] = element; }}")

    def store(self, node: loops.Store) -> None:
        value, pointer, size = node.value, node.pointer, _bytes_of(node.value.kind)
        where = f"if ({self.lane(node.mask)}) " if node.mask is not None else ""
        if pointer.lanes == 1:
            copy = f"memcpy({self.name(pointer)}, &value, {size * value.lanes});"
            self.write(f"{where}{{ {self.type(value)} value = {self.name(value)}; {copy} }}")
        else:
            copy = f"memcpy((ptr){self.lane(pointer)}, &element, {size});"
            self.write(f"LANES({value.lanes}) {where}{{ {value.kind} element = {self.lane(value)}; {copy} }}")

    # Calls and control flow.

    def call(self, node: loops.Call) -> None:
        args, result = ", ".join(map(self.name, node.args)), self.type(node.out) if node.out is not None else "void"
        signature = f"({', '.join(map(self.type, node.args))})"
        if isinstance(node.callee, Value):
            text = f"(({result} (*){signature}){self.name(node.callee)})({args})"
        elif "scalef" in node.callee and node.out is not None:
            self.each_lane(node.out, lambda x, n: f"scaled({x}, {n})", *node.args[:2])
            return
        elif node.callee.startswith("llvm.memcpy."):
            text = f"memcpy({', '.join(map(self.name, node.args[:3]))})"
        else:
            text = f"{_global(node.callee)}({args})"
            self.called[node.callee] = f"extern {result} {_global(node.callee)}{signature};"
        if node.out is None:
            self.write(f"{text};")
        else:
            self.define(node.out, text)

    def for_(self, node: loops.For) -> None:
        index, signed, last = self.name(node.index), f"s{BITS[node.index.kind]}", self.name(node.last)
        self.define(node.index, self.name(node.first))
        if node.may_skip:
            self._loop(node, f"for (; ({signed}){index} < ({signed}){last}; {index} += {node.step})", (), "}")
        else:
            self._loop(node, "do", (), f"}} while (({signed})({index} += {node.step}) < ({signed}){last});")

    def repeat(self, node: loops.Repeat) -> None:
        goes_on = f"again_{len(self.lines)}"
        self.write(f"i1 {goes_on};")
        self._loop(node, "do", [f"{goes_on} = {self.name(node.condition)};"], f"}} while ({goes_on});")

    def _loop(self, node: loops.For | loops.Repeat, head: str, last: Sequence[str], tail: str) -> None:
        """Carried values become what is yielded, all together."""
        for value, start in zip(node.carried, node.starts, strict=True):
            self.define(value, self.name(start))
        pairs = [(value, new, f"{self.name(value)}_next") for value, new in zip(node.carried, node.yields, strict=True)]
        lines = [f"{self.type(value)} {name} = {self.name(new)};" for value, new, name in pairs]
        lines += [f"{self.name(value)} = {name};" for value, _, name in pairs]
        self.block(head, node.body, *last, *lines, tail=tail)
        for result, value in zip(node.results, node.carried, strict=True):
            self.define(result, self.name(value))

    def if_(self, node: loops.If) -> None:
        for result in node.results:
            self.write(f"{self.type(result)} {self.name(result)};")
        ends = [
            [f"{self.name(to)} = {self.name(value)};" for to, value in zip(node.results, values, strict=True)]
            for values in (node.then_values, node.else_values)
        ]
        self.block(f"if ({self.name(node.condition)})", node.then, *ends[0])
        if node.otherwise or ends[1]:
            self.block("else", node.otherwise, *ends[1])


def _expression(op: str, kind: str, *args: str) -> str:
    """An operation on scalars."""
    a, b = args[0], args[-1]
    if op in OPERATORS:
        text = f"{a} {OPERATORS[op]} {b}"
        return text if kind[0] == "f" else f"({kind})((1u * {text}) & 1)" if kind == "i1" else f"({kind})(1u * {text})"
    signed = [f"(s{BITS.get(kind, 64)}){arg}" for arg in args]
    if op in SIGNED:
        return f"({kind})({signed[0]} {SIGNED[op]} {b if op == 'ashr' else signed[1]})"
    if op in ("smin", "smax", "umin", "umax"):
        x, y = signed if op[0] == "s" else args
        return f"({x} {'<' if op.endswith('min') else '>'} {y} ? {a} : {b})"
    name, _, how = op.partition(" ")
    if name == "icmp":
        x, y = signed if how[0] == "s" else args
        return f"({x} {ORDER[how[-2:]]} {y})"
    if name == "fcmp":
        if how in ("ord", "uno"):
            return f"({'!' * (how == 'ord')}__builtin_isunordered({a}, {b}))"
        if how in ("one", "ueq"):
            return f"({'!' * (how == 'ueq')}__builtin_islessgreater({a}, {b}))"
        return f"({a} {ORDER[how[1:]]} {b})" if how[0] == "o" or how == "une" else f"(!({a} {OPPOSITE[how[1:]]} {b}))"
    if op == "select":
        return f"({a} ? {args[1]} : {b})"
    if op == "fneg":
        return f"(-{a})"
    if op in ("minimum", "maximum"):
        return f"{op}_{kind}({a}, {b})"
    return f"__builtin_{op}{'f' if kind == 'f32' else ''}({', '.join(args)})"


def _converted(op: str, kind: str, to: str, arg: str) -> str:
    if op == "fptosi.sat":
        low, high = -(1 << (BITS[to] - 1)), (1 << (BITS[to] - 1)) - 1
        ends = f"{arg} < {float(low).hex()} ? {literal(to, low)} : {arg} >= {float(-low).hex()} ? {literal(to, high)}"
        return f"({arg} != {arg} ? 0 : {ends} : ({to})(s{BITS[to]}){arg})"
    if op == "fptosi":
        return f"({to})(s{BITS[to]}){arg}"
    if "bf16" in (kind, to):
        return f"to_bf16({arg})" if to == "bf16" else f"({to})from_bf16({arg})"
    if op in ("sext", "sitofp"):
        return f"({to})-(int){arg}" if kind == "i1" else f"({to})(s{BITS[kind]}){arg}"
    if op in ("ptrtoint", "inttoptr"):
        return f"({to})(uintptr_t){arg}"
    return f"(({to}){arg} & 1)" if op == "trunc" and to == "i1" else f"({to}){arg}"


_PRINTERS: dict[type, Callable[[_Printer, Any], None]] = {
    loops.Compute: _Printer.compute, loops.Convert: _Printer.convert, loops.Splat: _Printer.pack,
    loops.Pack: _Printer.pack, loops.Permute: _Printer.permute, loops.Extract: _Printer.extract,
    loops.Reduce: _Printer.reduce, loops.Address: _Printer.address,
    loops.Alloc: _Printer.alloc, loops.Load: _Printer.load, loops.Store: _Printer.store,
    loops.Prefetch: lambda printer, node: printer.write(f"__builtin_prefetch({printer.name(node.pointer)});"),
    loops.Fence: lambda printer, node: printer.write("__sync_synchronize();"), loops.Call: _Printer.call,
    loops.For: _Printer.for_, loops.If: _Printer.if_, loops.Repeat: _Printer.repeat,
    loops.Return: lambda printer, node: printer.write(f"return {printer.name(node.value)};"),
}  # fmt: skip
