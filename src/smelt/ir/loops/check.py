"""The rules of the loop form, as code: `check_function` and `check_module` raise on the first one broken.

    SM030: function @k0.part breaks the loop form: %t9 is used outside the body that defines it
    >     %t12 = fadd f32x8 %t9, %t11          the lines round the fault follow

A value is defined once, before it is used, in a body around its use, and has one type. `_FITS` says for each node
whether types, lanes and options go together. One walk per function.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from smelt.base.errors import SpecError
from smelt.ir import loops
from smelt.ir.loops import BINARY, BITS, MATH, For, Function, If, Module, Node, Repeat, Value
from smelt.ir.loops.text import function_lines, type_text
from smelt.ir.text import excerpt

POINTERS = frozenset((loops.POINTER, loops.GLOBAL, loops.SHARED, loops.CLUSTER))
FLOATS = frozenset(kind for kind in BITS if kind[0] != "i")
INTEGERS = frozenset(BITS) - FLOATS
_CONDITIONS = ("oeq", "ogt", "oge", "olt", "ole", "one", "ord", "ueq", "ugt", "uge", "ult", "ule", "une", "uno")
_CONDITIONS_OF_INTEGERS = ("eq", "ne", "ugt", "uge", "ult", "ule", "sgt", "sge", "slt", "sle")
_REDUCTIONS = ("fadd", "fmul", "fmaximum", "fminimum")
_REDUCTIONS_OF_INTEGERS = ("add", "mul", "and", "or", "xor", "smin", "smax", "umin", "umax")
_UNARY = ("fabs", "sqrt", "floor", "ceil", "trunc", "roundeven", "fneg")
_IDS = ("lane", "warp", "thread", "block", "parameter")
_RESULTS = ("out", "seen", "stored", "results")

# Conversion → kinds it takes, kinds it gives, and how the bits of the result compare: 1 for more, -1 for fewer.
_CONVERSIONS = {
    "trunc": (INTEGERS, INTEGERS, -1), "zext": (INTEGERS, INTEGERS, 1), "sext": (INTEGERS, INTEGERS, 1),
    "fptrunc": (FLOATS, FLOATS, -1), "fpext": (FLOATS, FLOATS, 1), "sitofp": (INTEGERS, FLOATS, 0),
    "uitofp": (INTEGERS, FLOATS, 0), "fptosi.sat": (FLOATS, INTEGERS, 0), "fptosi": (FLOATS, INTEGERS, 0),
    "ptrtoint": (POINTERS, INTEGERS, 0), "inttoptr": (INTEGERS, POINTERS, 0),
}  # fmt: skip


def check_module(module: Module) -> None:
    """Raise `SpecError` on the first rule that a function of the module breaks."""
    functions = (*module.helpers, *module.functions)
    names = {each.name: each for each in functions}
    for function in functions:
        if names[function.name] is not function:
            raise SpecError("SM030", f"two functions of a module are named @{function.name}")
        check_function(function, names)


def check_function(function: Function, names: Mapping[str, Function] | None = None) -> None:
    """Raise `SpecError` on the first rule that a function breaks. `names`: the functions of its module, to check calls
    and addresses of functions; None: they are not checked."""
    walk = _Walk(function, names)
    try:
        walk.whole()
    except _Fault as fault:
        around = excerpt(list(function_lines(function)), walk.node)
        raise SpecError("SM030", f"function @{function.name} breaks the loop form: {fault}\n{around}") from None


class _Fault(Exception):
    """What is wrong with the node that is looked at."""


class _Walk:
    """The values that are visible at one node after the other."""

    def __init__(self, function: Function, names: Mapping[str, Function] | None) -> None:
        self.function, self.names = function, names
        self.node: object = function
        self.visible: dict[str, Value] = {}
        self.ended: set[str] = set()  # values of bodies that are over
        around = [function] if names is None else list(names.values())
        tables = [table.name for each in around for table in each.tables]
        self.globals = {f"@{name}" for name in (*tables, *[array.name for array in function.shared])}

    def whole(self) -> None:
        function, last = self.function, self.function.body[-1] if self.function.body else None
        self.define(function.params)
        for table in function.tables:
            self.use(table.values)
        self.body(function.body)
        returned = last.value.kind if isinstance(last, loops.Return) else ""
        if returned != function.result:
            raise _Fault(f"a function that returns {function.result or 'nothing'} ends with {returned or 'no return'}")

    def body(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            self.node, kind = node, type(node)
            used, defined = _values(node, _USES[kind]), _values(node, _RESULTS)
            self.use(used)
            if kind is loops.Return and node is not self.function.body[-1]:
                raise _Fault("a return is not the last node of its function")
            if not _FITS[kind](node):
                types = f"{', '.join(map(type_text, used))} → {', '.join(map(type_text, defined))}"
                raise _Fault(f"types, lanes or options of this {kind.__name__.lower()} do not fit: {types}")
            if isinstance(node, loops.Call) and self.names is not None and node.callee in self.names:
                called = self.names[str(node.callee)]
                if not _agree(node.args, called.params) or not all(_is(value, called.result) for value in defined):
                    params = ", ".join(map(type_text, called.params))
                    raise _Fault(f"@{called.name} takes ({params}) and returns {called.result or 'nothing'}")
            for nested, inside, leaving in _BODIES[kind](node) if kind in _BODIES else ():
                self.nested(node, nested, inside, leaving)
            self.define(defined)

    def nested(self, owner: Node, nodes: Sequence[Node], inside: Sequence[Value], leaving: Sequence[Value]) -> None:
        """A body within a node, the values that are defined where it begins, and those with which it ends."""
        outer, self.visible = self.visible, self.visible.copy()
        self.define(inside)
        self.body(nodes)
        self.node = owner
        self.use(leaving)
        self.ended |= self.visible.keys() - outer.keys()
        self.visible = outer

    def define(self, values: Sequence[Value]) -> None:
        for value in values:
            if value.name in self.visible or value.name in self.ended:
                raise _Fault(f"{value.name} is defined twice")
            if value.name[:1] != "%" or value.lanes < 1 or (value.kind not in BITS and value.kind not in POINTERS):
                raise _Fault(f"{value.name!r} of type {type_text(value)} is no register")
            self.visible[value.name] = value

    def use(self, values: Sequence[Value]) -> None:
        for value in values:
            definition = self.visible.get(value.name)
            if definition is value:
                continue
            if value.number is not None:
                _check_constant(value)
            elif value.name[:1] == "@":
                if value.name not in self.globals and self.names is not None and value.name[1:] not in self.names:
                    raise _Fault(f"{value.name} is neither a table nor a function of its module")
            elif definition is None:
                where = "outside the body that defines it" if value.name in self.ended else "before it is defined"
                raise _Fault(f"{value.name} is used {where}")
            elif not _same(definition, value):
                raise _Fault(f"{value.name} is defined as {type_text(definition)} and used as {type_text(value)}")


def _values(node: Node, names: Sequence[str]) -> list[Value]:
    """The values in some fields of a node."""
    parts = [getattr(node, name, None) for name in names]
    return [value for part in parts for value in (part if isinstance(part, tuple) else (part,)) if type(value) is Value]


def _same(first: Value, *others: Value) -> bool:
    return all(value.kind == first.kind and value.lanes == first.lanes for value in others)


def _is(value: Value, kinds: str | frozenset[str], lanes: int = 1) -> bool:
    return value.lanes == lanes and (value.kind == kinds if isinstance(kinds, str) else value.kind in kinds)


def _agree(*lists: Sequence[Value]) -> bool:
    return len(set(map(len, lists))) == 1 and all(_same(*values) for values in zip(*lists, strict=True))


def _check_constant(value: Value) -> None:
    numbers, bits = value.number if isinstance(value.number, tuple) else (value.number,), BITS.get(value.kind, 0)
    fits = bits > 0 and not value.name and len(numbers) == (value.lanes if isinstance(value.number, tuple) else 1)
    if value.kind in INTEGERS:
        fits = fits and all(isinstance(each, int) and -(1 << bits) <= 2 * each < 2 << bits for each in numbers)
    if not fits:
        raise _Fault(f"{value.number} is no constant of type {type_text(value)}")


def _computes(node: loops.Compute) -> bool:
    op, args, out = node.op, node.args, node.out
    first = args[0]
    if op in BINARY or op in MATH or op == "fneg":
        of_integers = op[0] != "f" if op in BINARY else op in _REDUCTIONS_OF_INTEGERS
        operands = 3 if op == "fma" else 1 if op in _UNARY else 2
        return first.kind in (INTEGERS if of_integers else FLOATS) and len(args) == operands and _same(out, *args)
    if op == "select":
        return len(args) == 3 and _is(first, "i1", out.lanes) and _same(out, *args[1:])
    name, conditions = ("fcmp", _CONDITIONS) if first.kind in FLOATS else ("icmp", _CONDITIONS_OF_INTEGERS)
    has_op = op[:5] == f"{name} " and op[5:] in conditions
    return has_op and len(args) == 2 and _same(*args) and _is(out, "i1", first.lanes)


def _converts(node: loops.Convert) -> bool:
    value, out = node.value, node.out
    if node.op == "bitcast":
        return BITS.get(value.kind, -1) * value.lanes == BITS.get(out.kind, 0) * out.lanes
    takes, gives, more = _CONVERSIONS.get(node.op, (frozenset(), frozenset(), 0))
    fits = value.kind in takes and out.kind in gives and value.lanes == out.lanes
    return fits and (more == 0 or (BITS[out.kind] - BITS[value.kind]) * more > 0)


def _accesses(pointer: Value, value: Value, align: int, mask: Value | None = None) -> bool:
    fits = pointer.kind in POINTERS and pointer.lanes in (1, value.lanes) and align & (align - 1) == 0
    return fits and (mask is None or _is(mask, "i1", pointer.lanes))


_FITS: dict[type, Callable[[Any], bool]] = {
    loops.Compute: _computes, loops.Convert: _converts, loops.Splat: lambda n: _is(n.value, n.out.kind),
    loops.Reduce: lambda n: (
        n.op in (_REDUCTIONS if n.value.kind in FLOATS else _REDUCTIONS_OF_INTEGERS) and _is(n.out, n.value.kind)
        and (n.op not in ("fadd", "fmul") if n.start is None else _is(n.start, n.value.kind))
    ),
    loops.Pack: lambda n: len(n.values) == n.out.lanes and _same(Value("", n.out.kind), *n.values),
    loops.Permute: lambda n: (
        _is(n.out, n.a.kind, len(n.lanes)) and _same(n.a, n.b or n.a) and min(n.lanes) >= 0
        and max(n.lanes) < n.a.lanes * (1 if n.b is None else 2)
    ),
    loops.Extract: lambda n: _is(n.out, n.vector.kind) and (
        _is(n.lane, INTEGERS) if isinstance(n.lane, Value) else 0 <= n.lane < n.vector.lanes
    ),
    loops.Address: lambda n: (
        _is(n.out, POINTERS, n.offset.lanes) and n.offset.kind in INTEGERS
        and n.base.kind == n.out.kind and n.base.lanes in (1, n.out.lanes)
    ),
    loops.Alloc: lambda n: _is(n.out, loops.POINTER) and n.length >= 0 and n.align > 0,
    loops.Load: lambda n: _accesses(n.pointer, n.out, n.align),
    loops.Store: lambda n: _accesses(n.pointer, n.value, n.align, n.mask),
    loops.Prefetch: lambda n: _is(n.pointer, POINTERS), loops.Fence: lambda n: True,
    loops.Atomic: lambda n: _is(n.pointer, frozenset((loops.POINTER, loops.GLOBAL))) and _is(n.value, frozenset(BITS)),
    loops.CompareExchange: lambda n: (
        _is(n.pointer, POINTERS) and _is(n.new, INTEGERS) and _same(n.new, n.expected, n.seen) and _is(n.stored, "i1")
    ),
    loops.Id: lambda n: n.what in _IDS and (n.what == "parameter") == (n.at is not None) and _is(n.out, INTEGERS),
    loops.Shuffle: lambda n: n.mode in ("xor", "up", "from") and _same(Value("", "i32"), n.value, n.lane, n.out),
    loops.Barrier: lambda n: n.scope in ("warp", "block", "cluster", "leave", "earlier", "later"),
    loops.Remote: lambda n: _is(n.pointer, loops.SHARED) and _is(n.rank, "i32") and _is(n.out, loops.CLUSTER),
    loops.Mma: lambda n: (
        n.kind in ("bf16", "f16") and (len(n.a), len(n.b), len(n.sums)) == (4, 2, 4)
        and all(_is(each, "i32") for each in (*n.a, *n.b)) and all(_is(each, "f32") for each in n.sums)
        and _agree(n.sums, n.results)
    ),
    loops.LoadMatrix: lambda n: (
        len(n.results) == 4 and all(_is(each, "i32") for each in n.results) and _is(n.pointer, loops.SHARED)
    ),
    loops.CopyAsync: lambda n: (
        _is(n.to, loops.SHARED) and _is(n.source, loops.GLOBAL) and (n.mask is None or _is(n.mask, "i1"))
    ),
    loops.CopyCommit: lambda n: True, loops.CopyWait: lambda n: n.pending >= 0,
    loops.Call: lambda n: isinstance(n.callee, str) or _is(n.callee, loops.POINTER),
    For: lambda n: (
        _same(n.index, n.first, n.last) and _is(n.index, INTEGERS) and n.step > 0
        and _agree(n.starts, n.carried, n.yields, n.results)
    ),
    If: lambda n: _is(n.condition, "i1") and _agree(n.then_values, n.else_values, n.results),
    Repeat: lambda n: _is(n.condition, "i1") and _agree(n.starts, n.carried, n.yields, n.results),
    loops.Return: lambda n: n.value.lanes == 1,
}  # fmt: skip

# The bodies of a node, each with the values that are defined where it begins, and those with which it ends.
_BODIES: dict[type, Callable[[Any], Sequence[tuple[Sequence[Node], Sequence[Value], Sequence[Value]]]]] = {
    For: lambda n: [(n.body, (n.index, *n.carried), n.yields)],
    If: lambda n: [(n.then, (), n.then_values), (n.otherwise, (), n.else_values)],
    Repeat: lambda n: [(n.body, n.carried, (n.condition, *n.yields))],
}

# Which fields of a node are values that it uses itself.
_USES = {
    kind: [each.name for each in fields(kind) if "Value" in str(each.type) and each.name not in _RESULTS]
    for kind in _FITS
} | {For: ["first", "last", "starts"], If: ["condition"], Repeat: ["starts"]}
