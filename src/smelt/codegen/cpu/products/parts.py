"""What the functions of products and attentions have in common: parameters, and an entry that shares out their work.

k0(buffers, threads, workspace)     smelt_parallel_for(k0.part, …), so many units on so many threads
"""

from smelt.codegen.cpu.entry_points import ENTRY
from smelt.codegen.loops.builder import BUFFERS, THREADS, WORKSPACE, Builder, param
from smelt.ir.loops import Function, Value
from smelt.symbolic.shapes import Size
from smelt.torch_abi.symbols import PARALLEL_FOR

MINE = param("mine", "ptr")  # the workspace of a part


def params(text: str) -> tuple[Value, ...]:
    """The parameters of a function, from "ptr left, i64 steps"."""
    return tuple([param(name, kind) for kind, name in map(str.split, text.split(", "))])


def entry_function(b: Builder, most: Value | Size, units: Value | Size, workspace: Size) -> Function:
    """The end of an entry: at most `most` threads run parts of the units, each with its own workspace."""
    counts = [each if isinstance(each, Value) else b.const("i64", each) for each in (most, units, workspace)]
    b.call(PARALLEL_FOR, Value(f"@{b.symbol}.part", "ptr"), BUFFERS, WORKSPACE, THREADS, *counts, result="i64")
    return b.function(b.symbol, ENTRY, "entry")
