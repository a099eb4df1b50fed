"""Prints the loop form as LLVM IR, for processors, WebAssembly and NVIDIA's GPUs.

    print_function(function)     "define internal void @k0.part(ptr %buffers, …) nounwind {…}"
    declarations(functions)      "declare …" for what they call and do not define

A loop becomes a block that repeats, with a phi node for each value it carries; a branch becomes two blocks and one in
which they meet. Constants are written by their exact bits.
"""

import math
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from smelt.ir import loops
from smelt.ir.loops import BINARY, BITS, For, Function, If, Node, Number, Repeat, SharedArray, Table, Value

ELEMENTS = {
    "f64": "double", "f32": "float", "f16": "half", "bf16": "bfloat", "i128": "i128", "i64": "i64", "i32": "i32",
    "i16": "i16", "i8": "i8", "i1": "i1", "ptr": "ptr", "ptr1": "ptr addrspace(1)", "ptr3": "ptr addrspace(3)",
    "ptr7": "ptr addrspace(7)", "": "void",
}  # fmt: skip
_ATOMIC = 'syncscope("device") monotonic'  # nothing else is said to other threads by it
_WHOLE_WARP = "i32 -1"
_REGISTERS = {"thread": "tid.x", "block": "ctaid.x"}
_CONSTRAINTS = {"i16": "h", "i32": "r", "i64": "l"}  # of registers, in text of the assembler
_SHUFFLES = {"xor": ("bfly", 31), "up": ("up", 0), "from": ("idx", 31)}
_BARRIERS = {
    "block": ("llvm.nvvm.barrier.cta.sync.aligned.all(i32)", "i32 0"),
    "warp": ("llvm.nvvm.bar.warp.sync(i32)", _WHOLE_WARP),
    "cluster": ("llvm.nvvm.barrier.cluster.arrive()", ""),
    "leave": ("llvm.nvvm.barrier.cluster.arrive.relaxed()", ""),  # what was read is there: it was used
}
_LAUNCH_BARRIERS = {"earlier": "griddepcontrol.wait;", "later": "griddepcontrol.launch_dependents;"}
_CLUSTER_WAIT = "llvm.nvvm.barrier.cluster.wait()"

_types: dict[tuple[str, int], str] = {}


def type_text(kind: str, lanes: int = 1) -> str:
    if lanes == 1:
        return ELEMENTS[kind]
    text = _types.get((kind, lanes))
    if text is None:
        text = _types[kind, lanes] = f"<{lanes} x {ELEMENTS[kind]}>"
    return text


def _suffix(kind: str, lanes: int) -> str:
    """How intrinsics name a type: `f32`, `v8f32`."""
    return kind if lanes == 1 else f"v{lanes}{kind}"


def literal(kind: str, value: Number) -> str:
    """A constant as LLVM writes it: exact bits for floats."""
    if kind == "i1":
        return "true" if value else "false"
    if kind[0] == "i":
        return str(value)
    number = float(value)
    if kind == "f16":
        bits = 0x7E00 if math.isnan(number) else struct.unpack("<H", struct.pack("<e", number))[0]
        return f"0xH{bits:04X}"
    if kind == "f32" and math.isfinite(number):
        try:
            number = struct.unpack("<f", struct.pack("<f", number))[0]
        except OverflowError:
            number = math.copysign(math.inf, number)
    bits = 0x7FF8000000000000 if math.isnan(number) else struct.unpack("<Q", struct.pack("<d", number))[0]
    return f"0x{bits:016X}"


def name_of(value: Value) -> str:
    """A value without its type."""
    return value.name or _constant(value)


def _constant(value: Value) -> str:
    number, kind = value.number, value.kind
    if value.lanes == 1 and type(number) is int:
        return str(number)
    if type(number) is tuple:
        return "<" + ", ".join([f"{ELEMENTS[kind]} {literal(kind, each)}" for each in number]) + ">"
    text = literal(kind, number)  # type: ignore[arg-type]
    return text if value.lanes == 1 else f"splat ({ELEMENTS[kind]} {text})"


def typed(value: Value) -> str:
    kind = ELEMENTS[value.kind] if value.lanes == 1 else type_text(value.kind, value.lanes)
    return f"{kind} {value.name or _constant(value)}"


def _types_of(values: Iterable[Value]) -> str:
    return ", ".join([type_text(value.kind, value.lanes) for value in values])


class _Printer:
    """The lines of one function."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.declared: set[str] = set()
        self.block = "entry"
        self._labels = 0
        self._copies = 0
        self._intrinsics: dict[tuple[str, str, int], str] = {}

    def body(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            _PRINTERS[type(node)](self, node)

    def _label(self, name: str) -> None:
        self.lines.append(f"{name}:")
        self.block = name

    def _call(self, out: str, kind: str, name: str, types: str, args: str, flags: str = "") -> None:
        self.declared.add(f"declare {kind} @{name}({types})")
        self.lines.append(f"  {out}call {flags}{kind} @{name}({args})")

    def compute(self, node: loops.Compute) -> None:
        op, args, out = node.op, node.args, node.out
        first = args[0]
        kind = ELEMENTS[first.kind] if first.lanes == 1 else type_text(first.kind, first.lanes)
        if op in BINARY or op[1:4] == "cmp":
            b = args[1]
            a, second = first.name or _constant(first), b.name or _constant(b)
            self.lines.append(f"  {out.name} = {op} {kind} {a}, {second}")
        elif op == "select":
            self.lines.append(f"  {out.name} = select {typed(first)}, {typed(args[1])}, {typed(args[2])}")
        elif op == "fneg":
            self.lines.append(f"  {out.name} = fneg {typed(first)}")
        else:
            flags = f"{node.flags} " if node.flags else ""
            operands = ", ".join([f"{kind} {each.name or _constant(each)}" for each in args])
            self.lines.append(f"  {out.name} = call {flags}{kind} @{self._math(op, first, len(args))}({operands})")

    def _math(self, op: str, first: Value, count: int) -> str:
        """An intrinsic by its operands, which is declared."""
        key = (op, first.kind, first.lanes)
        if key not in self._intrinsics:
            kind = type_text(first.kind, first.lanes)
            self._intrinsics[key] = name = f"llvm.{op}.{_suffix(first.kind, first.lanes)}"
            self.declared.add(f"declare {kind} @{name}({', '.join([kind] * count)})")
        return self._intrinsics[key]

    def convert(self, node: loops.Convert) -> None:
        out, value = node.out, node.value
        kind = type_text(out.kind, out.lanes)
        if node.op == "fptosi.sat":
            name = f"llvm.fptosi.sat.{_suffix(out.kind, out.lanes)}.{_suffix(value.kind, value.lanes)}"
            self._call(f"{out.name} = ", kind, name, _types_of([value]), typed(value))
        else:
            self.lines.append(f"  {out.name} = {node.op} {typed(value)} to {kind}")

    def splat(self, node: loops.Splat) -> None:
        out = node.out
        kind = type_text(out.kind, out.lanes)
        self.lines.append(f"  {out.name}.0 = insertelement {kind} poison, {typed(node.value)}, i64 0")
        mask = f"<{out.lanes} x i32> zeroinitializer"
        self.lines.append(f"  {out.name} = shufflevector {kind} {out.name}.0, {kind} poison, {mask}")

    def pack(self, node: loops.Pack) -> None:
        out, last = node.out, len(node.values) - 1
        kind, vector = type_text(out.kind, out.lanes), "poison"
        for lane, value in enumerate(node.values):
            name = out.name if lane == last else f"{out.name}.{lane}"
            self.lines.append(f"  {name} = insertelement {kind} {vector}, {typed(value)}, i64 {lane}")
            vector = name

    def permute(self, node: loops.Permute) -> None:
        other = typed(node.b) if node.b is not None else f"{type_text(node.a.kind, node.a.lanes)} poison"
        order = ", ".join([f"i32 {lane}" for lane in node.lanes])
        mask = f"<{len(node.lanes)} x i32> <{order}>"
        self.lines.append(f"  {node.out.name} = shufflevector {typed(node.a)}, {other}, {mask}")

    def extract(self, node: loops.Extract) -> None:
        lane = f"i64 {node.lane}" if isinstance(node.lane, int) else typed(node.lane)
        self.lines.append(f"  {node.out.name} = extractelement {typed(node.vector)}, {lane}")

    def reduce(self, node: loops.Reduce) -> None:
        value = node.value
        name = f"llvm.vector.reduce.{node.op}.{_suffix(value.kind, value.lanes)}"
        args = [value] if node.start is None else [node.start, value]
        flags = f"{node.flags} " if node.flags else ""
        operands = ", ".join(map(typed, args))
        self._call(f"{node.out.name} = ", ELEMENTS[value.kind], name, _types_of(args), operands, flags)

    # Memory.

    def address(self, node: loops.Address) -> None:
        operands = f"{typed(node.base)}, {typed(node.offset)}"
        self.lines.append(f"  {node.out.name} = getelementptr {ELEMENTS[node.kind]}, {operands}")

    def alloc(self, node: loops.Alloc) -> None:
        array = f"[{node.length} x {ELEMENTS[node.kind]}]"
        self.lines.append(f"  {node.out.name} = alloca {array}, align {node.align}")

    def load(self, node: loops.Load) -> None:
        out, pointer = node.out, node.pointer
        kind = type_text(out.kind, out.lanes)
        if pointer.lanes > 1:
            mask = f"<{out.lanes} x i1>"
            name = f"llvm.masked.gather.{_suffix(out.kind, out.lanes)}.v{out.lanes}p0"
            args = f"{typed(pointer)}, i32 {node.align}, {mask} splat (i1 true), {kind} poison"
            self._call(f"{out.name} = ", kind, name, f"{_types_of([pointer])}, i32, {mask}, {kind}", args)
            return
        align = f", align {node.align}" if node.align else ""
        note = ", !invariant.load !{}" if node.invariant else ""
        self.lines.append(f"  {out.name} = load {kind}, {ELEMENTS[pointer.kind]} {pointer.name}{align}{note}")

    def store(self, node: loops.Store) -> None:
        value, pointer = node.value, node.pointer
        if pointer.lanes > 1:
            mask = f"<{value.lanes} x i1>"
            name = f"llvm.masked.scatter.{_suffix(value.kind, value.lanes)}.v{value.lanes}p0"
            where = f"{mask} splat (i1 true)" if node.mask is None else typed(node.mask)
            args = f"{typed(value)}, {typed(pointer)}, i32 {node.align}, {where}"
            self._call("", "void", name, f"{_types_of([value, pointer])}, i32, {mask}", args)
            return
        if node.mask is not None:
            self._store_where(node.mask, pointer, value)
            return
        align = f", align {node.align}" if node.align else ""
        note = ", !nontemporal !{i32 1}" if node.nontemporal else ""
        self.lines.append(f"  store {typed(value)}, {ELEMENTS[pointer.kind]} {pointer.name}{align}{note}")

    def _store_where(self, mask: Value, pointer: Value, value: Value) -> None:
        """By some threads of an NVIDIA GPU, without a branch: the assembler moves no load over one."""
        element = max(1, BITS[value.kind] // 8)
        size = element * value.lanes
        word = min(size, max(4, element))
        count, kind = size // word, f"i{8 * word}"
        stem = f"{pointer.name}.s{len(self.lines)}"
        self.lines.append(f"  {stem} = bitcast {typed(value)} to {type_text(kind, count)}")
        words = [stem] if count == 1 else [f"{stem}.{lane}" for lane in range(count)]
        if count > 1:
            vector = f"{type_text(kind, count)} {stem}"
            self.lines += [f"  {name} = extractelement {vector}, i64 {lane}" for lane, name in enumerate(words)]
        if word == 1:  # a register has no fewer bits
            self.lines.append(f"  {stem}.w = zext i8 {stem} to i16")
            words, kind = [f"{stem}.w"], "i16"
        names = ", ".join(f"${place}" for place in range(2, 2 + count))
        several = f".v{count}" if count > 1 else ""
        text = f"@$0 st.global{several}.b{8 * word} [$1], " + (f"{{{names}}}" if several else names) + ";"
        taken = ",".join(["b", "l", *([_CONSTRAINTS[kind]] * count), "~{memory}"])
        arguments = ", ".join([typed(mask), typed(pointer), *(f"{kind} {name}" for name in words)])
        self.lines.append(f'  call void asm sideeffect "{text}", "{taken}"({arguments})')

    def prefetch(self, node: loops.Prefetch) -> None:
        args = f"ptr {node.pointer.name}, i32 0, i32 3, i32 1"
        self._call("", "void", "llvm.prefetch.p0", "ptr, i32, i32, i32", args)

    def fence(self, node: loops.Fence) -> None:
        self.lines.append("  fence seq_cst")

    def atomic(self, node: loops.Atomic) -> None:
        name = f"%a{len(self.lines)}"
        self.lines.append(f"  {name} = atomicrmw {node.op} {typed(node.pointer)}, {typed(node.value)} {_ATOMIC}")

    def compare_exchange(self, node: loops.CompareExchange) -> None:
        pair, kind = f"{node.seen.name}.pair", type_text(node.seen.kind)
        operands = f"{typed(node.pointer)}, {typed(node.expected)}, {typed(node.new)}"
        self.lines.append(f"  {pair} = cmpxchg {operands} {_ATOMIC} monotonic")
        self.lines.append(f"  {node.seen.name} = extractvalue {{ {kind}, i1 }} {pair}, 0")
        self.lines.append(f"  {node.stored.name} = extractvalue {{ {kind}, i1 }} {pair}, 1")

    # Calls, and threads.

    def call(self, node: loops.Call) -> None:
        out = f"{node.out.name} = " if node.out is not None else ""
        kind = type_text(node.out.kind, node.out.lanes) if node.out is not None else "void"
        args = ", ".join(map(typed, node.args))
        if isinstance(node.callee, str):
            self._call(out, kind, node.callee, _types_of(node.args), args)
        else:
            self.lines.append(f"  {out}call {kind} {node.callee.name}({args})")

    def id(self, node: loops.Id) -> None:
        self._call(f"{node.out.name} = ", "i32", f"llvm.nvvm.read.ptx.sreg.{_REGISTERS[node.what]}", "", "")

    def shuffle(self, node: loops.Shuffle) -> None:
        how, clamp = _SHUFFLES[node.mode]
        args = f"{_WHOLE_WARP}, {typed(node.value)}, {typed(node.lane)}, i32 {clamp}"
        self._call(f"{node.out.name} = ", "i32", f"llvm.nvvm.shfl.sync.{how}.i32", "i32, i32, i32, i32", args)

    def barrier(self, node: loops.Barrier) -> None:
        if node.scope in _LAUNCH_BARRIERS:  # no access to memory moves past one
            self.lines.append(f'  call void asm sideeffect "{_LAUNCH_BARRIERS[node.scope]}", "~{{memory}}"()')
            return
        declared, args = _BARRIERS[node.scope]
        self._barrier(declared, args)
        if node.scope in ("cluster", "leave"):
            self._barrier(_CLUSTER_WAIT, "")

    def _barrier(self, declared: str, args: str) -> None:
        name, _, types = declared.partition("(")
        self._call("", "void", name, types[:-1], args)

    def remote(self, node: loops.Remote) -> None:
        kind, types = ELEMENTS[node.out.kind], _types_of([node.pointer, node.rank])
        args = f"{typed(node.pointer)}, {typed(node.rank)}"
        self._call(f"{node.out.name} = ", kind, "llvm.nvvm.mapa.shared.cluster", types, args)

    def mma(self, node: loops.Mma) -> None:
        words, kind, name = [*node.a, *node.b], "i32", "llvm.nvvm.mma.m16n8k16.row.col.bf16"
        names, stem = [name_of(each) for each in words], node.results[0].name
        if node.kind == "f16":
            kind, name = "<2 x half>", "llvm.nvvm.mma.m16n8k16.row.col.f32.f32"
            halves = [f"{stem}.h{place}" for place in range(len(words))]
            self.lines += [f"  {half} = bitcast i32 {word} to {kind}" for half, word in zip(halves, names, strict=True)]
            names = halves
        sums = "{ float, float, float, float }"
        types = ", ".join([*[kind] * len(names), *["float"] * len(node.sums)])
        args = ", ".join([*(f"{kind} {each}" for each in names), *map(typed, node.sums)])
        self._call(f"{stem}.all = ", sums, name, types, args)
        for place, result in enumerate(node.results):
            self.lines.append(f"  {result.name} = extractvalue {sums} {stem}.all, {place}")

    def load_matrix(self, node: loops.LoadMatrix) -> None:
        stem, words = node.results[0].name, "{ i32, i32, i32, i32 }"
        name = f"llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4{'.trans' if node.transposed else ''}.b16.p3"
        self._call(f"{stem}.all = ", words, name, "ptr addrspace(3)", typed(node.pointer))
        for place, result in enumerate(node.results):
            self.lines.append(f"  {result.name} = extractvalue {words} {stem}.all, {place}")

    def copy_async(self, node: loops.CopyAsync) -> None:
        name, values, types = "llvm.nvvm.cp.async.cg.shared.global.16", [node.to, node.source], ""
        args = ", ".join(map(typed, values))
        if node.mask is not None:
            self._copies += 1
            size = f"%copy{self._copies}.size"
            self.lines.append(f"  {size} = select i1 {name_of(node.mask)}, i32 16, i32 0")
            name, types, args = f"{name}.s", ", i32", f"{args}, i32 {size}"
        self._call("", "void", name, _types_of(values) + types, args)

    def copy_commit(self, node: loops.CopyCommit) -> None:
        self._call("", "void", "llvm.nvvm.cp.async.commit.group", "", "")

    def copy_wait(self, node: loops.CopyWait) -> None:
        self._call("", "void", "llvm.nvvm.cp.async.wait.group", "i32", f"i32 {node.pending}")

    # Control flow.

    def for_(self, node: For) -> None:
        self._labels += 1
        number, before, index = self._labels, self.block, node.index
        body, latch, end = f"body{number}", f"latch{number}", f"exit{number}"
        kind, last = type_text(index.kind), name_of(node.last)
        if node.may_skip:
            self.lines.append(f"  %any{number} = icmp slt {typed(node.first)}, {last}")
            self.lines.append(f"  br i1 %any{number}, label %{body}, label %{end}")
        else:
            self.lines.append(f"  br label %{body}")
        self._label(body)
        phis = zip((index, *node.carried), (node.first, *node.starts), strict=True)
        following = [f"%next{number}", *map(name_of, node.yields)]
        for (phi, start), follow in zip(phis, following, strict=True):
            came = f"[ {name_of(start)}, %{before} ], [ {follow}, %{latch} ]"
            self.lines.append(f"  {phi.name} = phi {type_text(phi.kind, phi.lanes)} {came}")
        self.body(node.body)
        self.lines.append(f"  br label %{latch}")
        self._label(latch)
        self.lines.append(f"  %next{number} = add {kind} {index.name}, {node.step}")
        self.lines.append(f"  %more{number} = icmp slt {kind} %next{number}, {last}")
        self.lines.append(f"  br i1 %more{number}, label %{body}, label %{end}")
        self._label(end)
        if not node.may_skip:
            self._results(node.results, node.yields)
            return
        for result, start, value in zip(node.results, node.starts, node.yields, strict=True):
            came = f"[ {name_of(start)}, %{before} ], [ {name_of(value)}, %{latch} ]"
            self.lines.append(f"  {result.name} = phi {type_text(result.kind, result.lanes)} {came}")

    def _results(self, results: Sequence[Value], values: Sequence[Value]) -> None:
        """Other names for values of the last run. A phi of one entry would be a use in the loop, to which LLVM moves
        instructions."""
        for result, value in zip(results, values, strict=True):
            self.lines.append(f"  {result.name} = bitcast {typed(value)} to {type_text(value.kind, value.lanes)}")

    def if_(self, node: If) -> None:
        self._labels += 1
        number = self._labels
        then, otherwise, end = f"then{number}", f"else{number}", f"end{number}"
        has_else = bool(node.otherwise)
        self.lines.append(f"  br {typed(node.condition)}, label %{then}, label %{otherwise if has_else else end}")
        ends = [self.block, self.block]
        for place, (label, body) in enumerate(((then, node.then), (otherwise, node.otherwise))):
            if body or place == 0:
                self._label(label)
                self.body(body)
                self.lines.append(f"  br label %{end}")
                ends[place] = self.block
        self._label(end)
        for result, a, b in zip(node.results, node.then_values, node.else_values, strict=True):
            came = f"[ {name_of(a)}, %{ends[0]} ], [ {name_of(b)}, %{ends[1]} ]"
            self.lines.append(f"  {result.name} = phi {type_text(result.kind, result.lanes)} {came}")

    def repeat(self, node: Repeat) -> None:
        self._labels += 1
        again, done, before, place = f"again{self._labels}", f"done{self._labels}", self.block, len(self.lines) + 2
        self.lines.append(f"  br label %{again}")
        self._label(again)
        self.lines += [""] * len(node.carried)
        self.body(node.body)
        for number, phi in enumerate(node.carried):
            came = f"[ {name_of(node.starts[number])}, %{before} ], [ {name_of(node.yields[number])}, %{self.block} ]"
            self.lines[place + number] = f"  {phi.name} = phi {type_text(phi.kind, phi.lanes)} {came}"
        self.lines.append(f"  br {typed(node.condition)}, label %{again}, label %{done}")
        self._label(done)
        self._results(node.results, node.yields)

    def return_(self, node: loops.Return) -> None:
        self.lines.append(f"  ret {typed(node.value)}")


_PRINTERS: dict[type, Callable[[_Printer, Any], None]] = {
    loops.Compute: _Printer.compute, loops.Convert: _Printer.convert, loops.Splat: _Printer.splat,
    loops.Pack: _Printer.pack, loops.Permute: _Printer.permute, loops.Extract: _Printer.extract,
    loops.Reduce: _Printer.reduce, loops.Address: _Printer.address, loops.Alloc: _Printer.alloc,
    loops.Load: _Printer.load, loops.Store: _Printer.store, loops.Prefetch: _Printer.prefetch,
    loops.Fence: _Printer.fence, loops.Atomic: _Printer.atomic, loops.CompareExchange: _Printer.compare_exchange,
    loops.Call: _Printer.call, loops.Id: _Printer.id, loops.Shuffle: _Printer.shuffle,
    loops.Barrier: _Printer.barrier, loops.Remote: _Printer.remote,
    loops.Mma: _Printer.mma, loops.LoadMatrix: _Printer.load_matrix, loops.CopyAsync: _Printer.copy_async,
    loops.CopyCommit: _Printer.copy_commit, loops.CopyWait: _Printer.copy_wait, loops.Return: _Printer.return_,
    For: _Printer.for_, If: _Printer.if_, Repeat: _Printer.repeat,
}  # fmt: skip


def print_function(function: Function) -> str:
    """LLVM text of one function, with its tables. Printed once."""
    if not function.text:
        printer = _Printer()
        printer.body(function.body)
        if not function.result:
            printer.lines.append("  ret void")
        lines = [*map(_table, function.tables), f"{head(function)} {{", "entry:", *printer.lines, "}", ""]
        function.text = "\n".join(lines)
        function.declared = frozenset((*printer.declared, *map(_shared_array, function.shared)))
    return function.text


def print_in_section(function: Function) -> str:
    """The same in a section of its own, so that it can be taken out of an object by itself."""
    name = function.name
    text = print_function(function).replace("define internal ", "define hidden ", 1)
    return text.replace(" {\n", f' section ".text.{name}" {{\n', 1)


def declaration(function: Function) -> str:
    """For modules that it is not in. Hidden, as it will be in the same image: no table has its address."""
    return f"declare hidden {ELEMENTS[function.result]} @{function.name}({_types_of(function.params)})"


def declarations(functions: Iterable[Function]) -> list[str]:
    """Lines that declare what functions refer to and none of them is."""
    functions = list(functions)
    for function in functions:
        print_function(function)
    names = {f"@{each.name}(" for each in functions}
    lines = frozenset().union(*(each.declared for each in functions))
    return sorted(line for line in lines if line[line.index("@") :].partition("(")[0] + "(" not in names)


def head(function: Function) -> str:
    """The first line of a function, without its brace."""
    result = ELEMENTS[function.result]
    if function.kind == "grid":
        taken = ", ".join([f"{ELEMENTS[each.kind]} noundef {each.name}" for each in function.params])
        limit = f'"nvvm.maxntid"="{function.threads}"'
        limit += f' "nvvm.minctasm"="{function.resident}"' if function.resident else ""
        limit += f' "nvvm.cluster_dim"="{function.cluster}"' if function.cluster > 1 else ""
        return f"define ptx_kernel void @{function.name}({taken}) {limit}"
    linkage = {"entry": "", "internal": "internal ", "shared": "internal ", "support": "hidden "}[function.kind]
    taken = ", ".join(map(typed, function.params))
    # Nothing raises through it: without tables for that LLVM takes a tenth less.
    notes = "nounwind" if function.inlined else "noinline nounwind"
    if function.kind == "support":
        notes += ' "no-builtins"'  # else LLVM takes the loop of `memcpy` for a `memcpy`, which it calls
    order = f' "tune-cpu"="{function.tune_cpu}"' if function.tune_cpu else ""
    return f"define {linkage}{result} @{function.name}({taken}) {notes}{order}"


def _table(table: Table) -> str:
    kinds = [type_text(value.kind, value.lanes) for value in table.values]
    values = ", ".join(map(typed, table.values))
    what = "private constant" if table.fixed else "internal global"
    align = f", align {table.align}" if table.align else ""
    if len(set(kinds)) == 1 and table.values[0].lanes == 1:
        return f"@{table.name} = {what} [{len(kinds)} x {kinds[0]}] [{values}]{align}"
    return f"@{table.name} = {what} <{{ {', '.join(kinds)} }}> <{{ {values} }}>{align}"


def _shared_array(array: SharedArray) -> str:
    """All kernels of a module use one name for the dynamic shared memory of a block."""
    return f"@{array.name} = external addrspace(3) global [0 x {ELEMENTS[array.kind]}], align 16"
