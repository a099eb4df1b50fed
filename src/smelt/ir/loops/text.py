"""The loop form as text for people, one line per node: for SMELT_LOGS=loops, reports, and the excerpts of faults.

    function @softmax.part(ptr %buffers, i64 %first, i64 %last)
      %m = for %j in 0 … 1024 step 8, carry %a = -inf f32x8:
        %p = address %x + %j f32
        %v = load f32x8 %p align 4
        %n = maximum f32x8 %a, %v
        yield %n

`f32x8` is a vector of eight lanes. Nothing reads the text back.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from smelt.ir import loops
from smelt.ir.loops import For, Function, If, Module, Node, Repeat, Value
from smelt.ir.text import runs

Line = tuple[object, str]  # the node, table or function that the line shows, and its text

MAX_TABLE_VALUES = 8  # of one line
_HEADS = {"internal": "function", "entry": "entry function", "shared": "shared function", "grid": "grid"}


def format_module(module: Module) -> str:
    """All functions, helpers first."""
    return "\n\n".join(map(format_function, (*module.helpers, *module.functions)))


def format_function(function: Function) -> str:
    return "\n".join(text for _, text in function_lines(function))


def function_lines(function: Function) -> Iterator[Line]:
    """The lines of a function, each with the node it shows. The `yield` of a loop shows the loop, too."""
    params = ", ".join(map(_typed, function.params))
    result = f" → {function.result}" if function.result else ""
    yield function, f"{_HEADS[function.kind]} @{function.name}({params}){result}{_launch(function)}"
    for table in function.tables:
        yield table, f"  {_table(table)}"
    for array in function.shared:
        yield array, f"  shared @{array.name}: {array.length or 'any number'} {array.kind}"
    yield from _lines(function.body, "  ")


def node_text(node: Node) -> str:
    """A node's own line, without the bodies in it."""
    return _LINES[type(node)](node)


def type_text(value: Value) -> str:
    return value.kind if value.lanes == 1 else f"{value.kind}x{value.lanes}"


def _launch(function: Function) -> str:
    numbers = (("threads", function.threads, 0), ("resident", function.resident, 0), ("cluster", function.cluster, 1))
    return "".join([f" {name} {number}" for name, number, usual in numbers if number != usual])


def _table(table: loops.Table) -> str:
    shown = map(_typed, table.values[:MAX_TABLE_VALUES])
    rest = len(table.values) - MAX_TABLE_VALUES
    return f"table @{table.name}: {', '.join(shown)}{f', … {rest} more' if rest > 0 else ''}"


def _name(value: Value) -> str:
    """A register's name, or a constant's number; a mask as one digit per lane."""
    number = value.number
    if number is None:
        return value.name
    if isinstance(number, tuple):
        return f"({('' if value.kind == 'i1' else ' ').join([str(+lane) for lane in number])})"
    return repr(number)


def _names(values: Sequence[Value]) -> str:
    return ", ".join(map(_name, values))


def _typed(value: Value) -> str:
    return f"{type_text(value)} {_name(value)}"


def _results(values: Sequence[Value]) -> str:
    return f"{_names(values)} = " if values else ""


def _carry(node: For | Repeat) -> str:
    pairs = zip(node.carried, node.starts, strict=True)
    return ", ".join([f"{inside.name} = {_name(start)} {type_text(start)}" for inside, start in pairs])


def _lines(body: Sequence[Node], indent: str) -> Iterator[Line]:
    for node in body:
        yield node, indent + _LINES[type(node)](node)
        if isinstance(node, If):
            yield from _inside(node, node.then, node.then_values, indent)
            if node.otherwise or node.else_values:
                yield node, f"{indent}else:"
                yield from _inside(node, node.otherwise, node.else_values, indent)
        elif isinstance(node, For):
            yield from _inside(node, node.body, node.yields, indent)
        elif isinstance(node, Repeat):
            yield from _lines(node.body, indent + "  ")
            yield (
                node,
                f"{indent}  yield {_names(node.yields)}{' ' if node.yields else ''}while {_name(node.condition)}",
            )


def _inside(owner: Node, body: Sequence[Node], values: Sequence[Value], indent: str) -> Iterator[Line]:
    yield from _lines(body, indent + "  ")
    if values:
        yield owner, f"{indent}  yield {_names(values)}"


def _for(node: For) -> str:
    step = f" step {node.step}" if node.step != 1 else ""
    carry = f", carry {_carry(node)}" if node.carried else ""
    skip = ", may skip" if node.may_skip else ""
    where = f"{node.index.name} in {_name(node.first)} … {_name(node.last)}{step}"
    return f"{_results(node.results)}for {where}{carry}{skip}:"


def _repeat(node: Repeat) -> str:
    return f"{_results(node.results)}repeat{f', carry {_carry(node)}' if node.carried else ''}:"


def _compute(node: loops.Compute) -> str:
    flags = f"{node.flags} " if node.flags else ""
    kind = type_text(node.args[-1])  # a select's operands; its first is the condition
    return f"{node.out.name} = {node.op} {flags}{kind} {_names(node.args)}"


def _ranges(lanes: Sequence[int]) -> str:
    """Numbers of lanes, those that follow each other as a range."""
    return " ".join([f"{run[0]}…{run[-1]}" if len(run) > 2 else " ".join(map(str, run)) for run in runs(lanes)])


def _permute(node: loops.Permute) -> str:
    vectors = _names([node.a] if node.b is None else [node.a, node.b])
    return f"{node.out.name} = permute {type_text(node.a)} {vectors} by {_ranges(node.lanes)}"


def _extract(node: loops.Extract) -> str:
    lane = str(node.lane) if isinstance(node.lane, int) else _name(node.lane)
    return f"{node.out.name} = extract {_typed(node.vector)} lane {lane}"


def _reduce(node: loops.Reduce) -> str:
    flags = f"{node.flags} " if node.flags else ""
    start = f" from {_name(node.start)}" if node.start is not None else ""
    return f"{node.out.name} = reduce {node.op} {flags}{_typed(node.value)}{start}"


def _load(node: loops.Load) -> str:
    kind, invariant = type_text(node.out), " invariant" if node.invariant else ""
    return f"{node.out.name} = load {kind} {node.pointer.name}{_align(node.align)}{invariant}"


def _store(node: loops.Store) -> str:
    where = f" where {_name(node.mask)}" if node.mask is not None else ""
    how = f"{_align(node.align)}{' nontemporal' if node.nontemporal else ''}{where}"
    return f"store {_typed(node.value)} to {node.pointer.name}{how}"


def _align(align: int) -> str:
    return f" align {align}" if align else ""


def _call(node: loops.Call) -> str:
    callee = f"@{node.callee}" if isinstance(node.callee, str) else node.callee.name
    kind = f"{node.out.name} = call {type_text(node.out)}" if node.out is not None else "call"
    return f"{kind} {callee}({', '.join(map(_typed, node.args))})"


_LINES: dict[type, Callable[[Any], str]] = {
    loops.Compute: _compute, loops.Permute: _permute, loops.Extract: _extract, loops.Reduce: _reduce, loops.Load: _load,
    loops.Store: _store, loops.Call: _call, For: _for, Repeat: _repeat,
    loops.Convert: lambda node: f"{node.out.name} = {node.op} {_typed(node.value)} to {type_text(node.out)}",
    loops.Splat: lambda node: f"{node.out.name} = splat {type_text(node.out)} {_name(node.value)}",
    loops.Pack: lambda node: f"{node.out.name} = pack {type_text(node.out)} {_names(node.values)}",
    loops.Address: lambda node: f"{node.out.name} = address {node.base.name} + {_name(node.offset)} {node.kind}",
    loops.Alloc: lambda node: f"{node.out.name} = alloc {node.length} {node.kind}{_align(node.align)}",
    loops.Prefetch: lambda node: f"prefetch {node.pointer.name}",
    loops.Fence: lambda node: "fence",
    loops.Atomic: lambda node: f"atomic {node.op} {_typed(node.value)} to {node.pointer.name}",
    loops.CompareExchange: lambda node: (
        f"{node.seen.name}, {node.stored.name} = compare_exchange "
        f"{node.pointer.name}, {_typed(node.expected)}, {_name(node.new)}"
    ),
    loops.Id: lambda node: f"{node.out.name} = id {node.what}{f' {_name(node.at)}' if node.at is not None else ''}",
    loops.Shuffle: lambda node: f"{node.out.name} = shuffle {node.mode} {_typed(node.value)}, {_name(node.lane)}",
    loops.Barrier: lambda node: f"barrier {node.scope}",
    loops.Mma: lambda node: (
        f"{_names(node.results)} = mma {node.kind} ({_names(node.a)}) * ({_names(node.b)}) + ({_names(node.sums)})"
    ),
    loops.LoadMatrix: lambda node: (
        f"{_names(node.results)} = load_matrix{' transposed' if node.transposed else ''} {node.pointer.name}"
    ),
    loops.CopyAsync: lambda node: (
        f"copy_async {node.source.name} to {node.to.name}"
        f"{f' where {_name(node.mask)}' if node.mask is not None else ''}"
    ),
    loops.CopyCommit: lambda node: "copy_commit",
    loops.CopyWait: lambda node: f"copy_wait {node.pending}",
    loops.Remote: lambda node: f"{node.out.name} = remote {node.pointer.name} of block {_name(node.rank)}",
    If: lambda node: f"{_results(node.results)}if {_name(node.condition)}:",
    loops.Return: lambda node: f"return {_typed(node.value)}",
}  # fmt: skip
