"""Kernels that differ only in constants share one function; the constants are passed as arguments. Layers of an image
model are an example.

    k3: … mul %t1, 784 … icmp slt %t9, 784        k3.body: … mul %t1, %num0 … icmp slt %t9, %num0
    k8: … mul %t1, 196 … icmp slt %t9, 196   →    k3, k8: call k3.body with an array of their numbers behind the buffers

Trees of the loop form are compared, so everything that depends on a size, such as the number of lanes or whether there
is a last vector, has been chosen already. Constants are 64-bit extents, strides and offsets, and scalar floats. A
division by one becomes a product with its reciprocal, which is as fast as division by a constant.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, NamedTuple

from smelt.base.fast_dataclass import dataclass
from smelt.base.rewrite_budget import RewriteBudget
from smelt.codegen.generator import EntryCode, SharedBody
from smelt.codegen.loops.builder import BUFFERS, FALSE, THREADS, WORKSPACE, param
from smelt.ir.kernel import AnyKernel, Kernel
from smelt.ir.loops import (
    Address,
    Alloc,
    Call,
    Compute,
    Convert,
    For,
    Function,
    Load,
    Node,
    Splat,
    Store,
    Table,
    Value,
)
from smelt.ir.loops.rewrite import fields_of, rewritten
from smelt.torch_abi.symbols import PARALLEL_FOR

MOST = 1 << 32  # points, and elements of a buffer: what is divided is less, and so the reciprocal is exact
_INTEGERS = frozenset(
    ("add", "sub", "mul", "and", "or", "xor", "shl", "lshr", "smin", "smax", "umin", "umax", "select")
)
_FLOATS = frozenset(("fadd", "fsub", "fmul", "fdiv"))
_DIVIDES = frozenset(("udiv", "urem"))
_NUMBERS = param("numbers", "ptr")
_OWN = param("numbers.own", "ptr")


class _Number(NamedTuple):
    """A constant of a tree: "i64", "divisor", or a float's kind with its lanes; floats by the bits of a double."""

    kind: str
    lanes: int
    bits: int


@dataclass(slots=True)
class _Tree:
    """A kernel's functions as `shape`, which relatives have in common, and `numbers`. `own`: those it has in memory."""

    shape: list[object] = field(default_factory=list)
    numbers: list[_Number] = field(default_factory=list)
    own: list[int] = field(default_factory=list)


def shared_functions(
    kernels: Sequence[AnyKernel],
    codes: Mapping[int, EntryCode],
    symbols: Sequence[str],
    budget: RewriteBudget,
    of: str = "",
) -> list[SharedBody]:
    """Those of `codes`, which are by place, that have relatives among them. `of`: what `bisect` calls their program."""
    budget.stage = f"{of}generate, share functions"
    groups: dict[object, dict[int, _Tree]] = {}
    for places in _alike(kernels, codes):
        for place in places:
            tree = _tree_of(codes[place], symbols[place])
            helpers = frozenset(each.name for each in codes[place].helpers)
            key = (tuple(tree.shape), tuple(each[:2] for each in tree.numbers), len(tree.own), helpers)
            groups.setdefault(key, {})[place] = tree
    shared = []
    for trees in groups.values():
        if len(trees) > 1 and budget.take(*(kernels[place].name for place in trees)):
            first = min(trees)
            body = _Body.of(codes[first], symbols[first], trees, len(kernels[first].parameters))
            if body is not None:
                shared.append(body.shared({place: codes[place] for place in trees}, symbols))
    return shared


def _alike(kernels: Sequence[AnyKernel], codes: Mapping[int, EntryCode]) -> Iterator[list[int]]:
    """Places of kernels that may be relatives, by what is known at a glance."""
    groups: dict[object, list[int]] = {}
    for place, code in codes.items():
        kernel = kernels[place]
        if not isinstance(kernel, Kernel) or code.sizes or code.facts or code.phases or not _is_bounded(kernel):
            continue
        instructions = tuple((type(each), getattr(each, "op", None)) for each in kernel.instructions())
        dtypes = tuple(each.dtype for each in kernel.buffers)
        groups.setdefault((instructions, dtypes, tuple(len(each.body) for each in code.functions)), []).append(place)
    return (places for places in groups.values() if len(places) > 1)


def _is_bounded(kernel: Kernel) -> bool:
    sizes = (kernel.row_count * kernel.col_count, *(buffer.size for buffer in kernel.buffers))
    return all(type(size) is int and size < MOST for size in sizes)


# Trees: constants apart from what is around them.


def _tree_of(code: EntryCode, symbol: str) -> _Tree:
    tree = _Tree()
    for function in code.functions:
        tree.shape += [_without(function.name, symbol), function.kind, function.params]
        for table in function.tables:
            tree.shape.append(_without(table.name, symbol))
            if table.name == f"{symbol}.numbers":
                tree.own += [int(each.number) for each in table.values]  # type: ignore[arg-type]
            else:
                tree.shape += [(each.kind, each.lanes, repr(each.number)) for each in table.values]
        _add(tree, function.body, symbol)
    return tree


def _without(name: str, symbol: str) -> str:
    """A name without the kernel's own symbol."""
    if name[:1] == "%":
        return name
    rest = name.removeprefix("@")
    return f"@SYM{rest[len(symbol) :]}" if rest == symbol or rest.startswith(f"{symbol}.") else name


def _add(tree: _Tree, body: Sequence[Node], symbol: str) -> None:
    shape, numbers = tree.shape, tree.numbers
    for node in body:
        shape.append(type(node))
        kind = _kind_of_numbers(node)
        for name, how in fields_of(type(node)):
            value: Any = getattr(node, name)
            if how == "body":
                _add(tree, value, symbol)
                shape.append(None)
            elif how == "values":
                for each in value:
                    _add_value(shape, numbers, each, kind, symbol)
            elif type(value) is Value:
                _add_value(shape, numbers, value, kind, symbol)
            else:
                shape.append(_without(value, symbol) if type(value) is str else value)


def _add_value(shape: list[object], numbers: list[_Number], value: Value, kind: str, symbol: str) -> None:
    number = value.number
    if number is None:
        shape.append((_without(value.name, symbol), value.kind, value.lanes))
    elif kind and value.kind in _KINDS[kind] and type(number) is not tuple:
        shape.append("#")
        numbers.append(_number(value, kind))
    else:
        shape.append((value.kind, value.lanes, repr(number)))


_KINDS: dict[str, tuple[str, ...]] = {"i64": ("i64",), "divisor": ("i64",), "float": ("f32", "f64")}


def _kind_of_numbers(node: Node) -> str:
    """What constants among a node's operands may be passed as; empty if they must stay."""
    match node:
        case Compute():
            if node.op in _INTEGERS or node.op[:4] == "icmp":
                return "i64" if node.out.lanes == 1 else ""
            if node.op in _FLOATS:
                return "float"
            return "divisor" if node.op in _DIVIDES and node.out.lanes == 1 else ""
        case Call():
            name = node.callee if isinstance(node.callee, str) else ""
            return "i64" if name == PARALLEL_FOR or name.startswith(("smelt.", "product.")) else ""
        case For() | Address():
            return "i64"
    return ""


def _number(value: Value, kind: str) -> _Number:
    if kind == "float":
        (bits,) = struct.unpack("<q", struct.pack("<d", value.number))
        return _Number(value.kind, value.lanes, bits)
    return _Number(kind, 1, value.number)  # type: ignore[arg-type]


# The body that relatives share.


@dataclass(frozen=True, slots=True)
class _Body:
    """The functions that kernels share. `words`: the array of each kernel by its place."""

    name: str
    functions: tuple[Function, ...]
    words: dict[int, list[int]]
    buffers: int

    @classmethod
    def of(cls, code: EntryCode, symbol: str, trees: dict[int, _Tree], buffers: int) -> "_Body | None":
        """None if a number is needed where it cannot be had, or divides by less than two."""
        rows = list(zip(*(tree.numbers for tree in trees.values()), strict=True))
        columns: dict[tuple[_Number, ...], int] = {}
        for values in rows:
            if len(set(values)) > 1:
                if values[0].kind == "divisor" and min(each.bits for each in values) < 2:
                    return None
                columns.setdefault(values, len(columns))
        writer = _BodyWriter(symbol, [columns.get(values) for values in rows], list(columns), buffers)
        functions = [writer.function(each) for each in code.functions]
        if any(each is None for each in functions):
            return None
        words = {
            place: [word for column in columns for word in _words(column[row])] + tree.own
            for row, (place, tree) in enumerate(trees.items())
        }
        return cls(f"{symbol}.body", tuple(each for each in functions if each is not None), words, buffers)

    def shared(self, codes: Mapping[int, EntryCode], symbols: Sequence[str]) -> SharedBody:
        entries = {}
        for place, code in codes.items():
            entry = forwarding(symbols[place], self.name, self.words[place], self.buffers)
            entries[place] = EntryCode((entry,), (), code.per_thread_workspace)
        return SharedBody(EntryCode(self.functions, next(iter(codes.values())).helpers, 0), entries)


@dataclass(slots=True)
class _BodyWriter:
    """Writes functions with registers for the constants that differ. `columns`: of each constant in order, which
    number it is; None for one that stays."""

    symbol: str
    columns: list[int | None]
    numbers: list[tuple[_Number, ...]]
    buffers: int
    place: int = 0
    used: set[int] = field(default_factory=set)
    uses_own: bool = False

    def function(self, function: Function) -> Function | None:
        """None if it needs numbers and is not given the buffers."""
        self.used, self.uses_own = set(), False
        body = rewritten(function.body, self._changed, self._nodes)
        if (self.used or self.uses_own) and BUFFERS not in function.params:
            return None
        tables = tuple(
            replace(each, name=self._renamed(each.name))
            for each in function.tables
            if each.name != f"{self.symbol}.numbers"
        )
        name, kind = self._renamed(function.name), "internal"
        return replace(function, name=name, kind=kind, tables=tables, body=[*self._loads(), *body], text="")

    def _renamed(self, name: str) -> str:
        own = _without(name, self.symbol)
        return own if own == name else f"{'@' if name[0] == '@' else ''}{self.symbol}.body{own[4:]}"

    def _changed(self, node: Node, value: Value | str) -> Value | str:
        """An operand, or the name of a function that is called."""
        if isinstance(value, str):
            return self._renamed(value)
        number = value.number
        if number is None:
            if value.name == f"@{self.symbol}.numbers":
                self.uses_own = True
                return _OWN
            return value if value.name[0] == "%" else replace(value, name=self._renamed(value.name))
        kind = _kind_of_numbers(node)
        if not kind or value.kind not in _KINDS[kind] or type(number) is tuple:
            return value
        column = self.columns[self.place]
        self.place += 1
        if column is None:
            return value
        self.used.add(column)
        return Value(f"%num{column}", value.kind, value.lanes)

    def _nodes(self, node: Node) -> list[Node]:
        """A division by a number that is passed, as the upper half of the product with its reciprocal."""
        if not isinstance(node, Compute) or node.op not in _DIVIDES or not node.args[1].name.startswith("%num"):
            return [node]
        value, divisor = node.args
        stem = node.out.name
        wide, scaled, high = (Value(f"{stem}.{part}", "i128") for part in "wmh")
        quotient = node.out if node.op == "udiv" else Value(f"{stem}.q", "i64")
        shift = Value("", "i128", number=64)
        nodes: list[Node] = [
            Convert(wide, "zext", value),
            Compute(scaled, "mul", (wide, Value(f"{divisor.name}.r", "i128"))),
            Compute(high, "lshr", (scaled, shift)),
            Convert(quotient, "trunc", high),
        ]
        if node.op == "urem":
            product = Value(f"{stem}.p", "i64")
            nodes += [Compute(product, "mul", (quotient, divisor)), Compute(node.out, "sub", (value, product))]
        return nodes

    def _loads(self) -> list[Node]:
        """The numbers that a function uses, from the array behind the buffers."""
        if not self.used and not self.uses_own:
            return []
        at = param("numbers.at", "ptr")
        nodes: list[Node] = [
            Address(at, BUFFERS, "ptr", _integer(self.buffers)),
            Load(_NUMBERS, at, 0, invariant=True),
        ]
        places = _places(self.numbers)
        for column in sorted(self.used):
            nodes += _load(f"%num{column}", self.numbers[column][0], places[column])
        if self.uses_own:
            nodes.append(Address(_OWN, _NUMBERS, "i64", _integer(places[-1])))
        return nodes


def _places(columns: Sequence[tuple[_Number, ...]]) -> list[int]:
    """Where the words of each number begin, and where all of them end."""
    places = [0]
    for column in columns:
        places.append(places[-1] + len(_words(column[0])))
    return places


def _words(number: _Number) -> tuple[int, ...]:
    """The array elements of a number. A divisor has two: itself and ⌈2⁶⁴ / divisor⌉."""
    if number.kind != "divisor":
        return (number.bits,)
    (reciprocal,) = struct.unpack("<q", struct.pack("<Q", -(-(1 << 64) // number.bits) & (1 << 64) - 1))
    return number.bits, reciprocal


def _load(name: str, number: _Number, place: int) -> list[Node]:
    kind = "i64" if number.kind in ("i64", "divisor") else "f64"
    at, value = Value(f"{name}.at", "ptr"), Value(name, kind)
    nodes: list[Node] = [Address(at, _NUMBERS, "i64", _integer(place))]
    if number.kind == "divisor":
        low, high_at = Value(f"{name}.rl", "i64"), Value(f"{name}.rat", "ptr")
        nodes += [
            Load(value, at, 8, invariant=True),
            Address(high_at, _NUMBERS, "i64", _integer(place + 1)),
            Load(low, high_at, 8, invariant=True),
            Convert(Value(f"{name}.r", "i128"), "zext", low),
        ]
        return nodes
    narrow, spread = number.kind == "f32", number.lanes > 1
    first = Value(f"{name}.d", kind) if narrow or spread else value
    nodes.append(Load(first, at, 8, invariant=True))
    if narrow:
        rounded = Value(f"{name}.s" if spread else name, "f32")
        nodes.append(Convert(rounded, "fptrunc", first))
        first = rounded
    if spread:
        nodes.append(Splat(Value(name, first.kind, number.lanes), first))
    return nodes


def _integer(number: int) -> Value:
    return Value("", "i64", number=number)


def forwarding(symbol: str, body: str, numbers: Sequence[int], buffers: int) -> Function:
    """An entry that calls another with an array of numbers behind its buffers."""
    table = Table(f"{symbol}.sizes", tuple(map(_integer, numbers)))
    array, last = param("all", "ptr"), param("last", "ptr")
    nodes: list[Node] = [
        Alloc(array, "ptr", buffers + 1, 8),
        Call(None, "llvm.memcpy.p0.p0.i64", (array, BUFFERS, _integer(8 * buffers), FALSE)),
        Address(last, array, "ptr", _integer(buffers)),
        Store(Value(f"@{table.name}", "ptr"), last, 0),
        Call(None, body, (array, THREADS, WORKSPACE)),
    ]
    return Function(symbol, (BUFFERS, THREADS, WORKSPACE), nodes, "entry", tables=(table,))
