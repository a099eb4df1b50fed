"""Small state machines with real kernels, as an export would make them for one target."""

import struct

import torch

from smelt.codegen.ahead_of_time import WrittenKernels, write_for
from smelt.device import Target
from smelt.ir.artifact_file.artifact import Data
from smelt.ir.table import records as r
from smelt.ir.table.records import Bind, RegisterKind
from smelt.symbolic.expressions import DivModMinMax, Expression, Symbol
from smelt.symbolic.postfix import Op
from tests.kernel_text import parse_kernel

STEP = """
kernel step rows(i:s0) cols(j:4)
  in x: f32[4*s0]
  in w: f32[4]
  out y: f32[4*s0]
  loop:
    a = load x[4*i + j]
    b = load w[j]
    c = mul a, b : f32
    store y[4*i + j] = c
"""
MORE = """
kernel more rows() cols(j:4*s0)
  in y: f32[4*s0]
  out m: bool[1]
  loop:
    a = load y[j]
    c = const 100.0 : f32
    l = lt a, c : bool
    r = reduce all l
  row:
    store m[0] = r
"""
COUNT = """
kernel count rows() cols(j:1)
  inout c: i64[1]
  loop:
    a = load c[j]
    b = const 1 : i64
    d = add a, b : i64
    store c[j] = d
"""
KERNELS = [STEP, MORE, COUNT]
ROWS = r.symbol(0)
WEIGHTS, STATE = Data({0: struct.pack("<4f", 2.0, 2.0, 3.0, 4.0)}), Data({0: struct.pack("<q", 10)})


def expression(size: object) -> r.Expression:
    """A polynomial over `s0`, as records have it."""
    if isinstance(size, int) and type(size) is int:
        return r.number(size)
    terms = size if isinstance(size, Expression) else size.expression  # type: ignore[attr-defined]
    total = r.number(0)
    for monomial, factor in terms.terms.items():
        product = r.number(factor)
        for atom in monomial:
            product = r.apply(Op.MUL, product, ROWS if isinstance(atom, Symbol) else _applied(atom))
        total = r.apply(Op.ADD, total, product)
    return total


_FUNCTIONS = {"//": Op.DIV, "%": Op.MOD, "max": Op.MAX, "min": Op.MIN}


def _applied(atom: DivModMinMax) -> r.Expression:
    return r.apply(_FUNCTIONS[atom.function], expression(atom.left), expression(atom.right))


def growing(target: Target) -> tuple[r.Table, Data, Data, WrittenKernels]:
    """y = x; count += 1 and y = y·w while all of y are below 100; return y, its first column, and the count.

    `keep`, which may be left out, returns None in the place of the column; seven rows or more raise.
    """
    kernels = [parse_kernel(text, {"s0": 3} if "s0" in text else None) for text in KERNELS]
    written = write_for(kernels, target)
    step, more, count = written.entries
    size = r.apply(Op.MUL, ROWS, r.number(16))
    registers = (
        r.Register("x", RegisterKind.INPUT, "float32", (r.Dim(2, 4096, "rows"), r.Dim(4, 4))),
        r.Register("keep", RegisterKind.INPUT, "int64", optional=True),
        r.Register("w", RegisterKind.CONSTANT, "float32", (r.Dim(4, 4),), data=0, bytes=16),
        r.Register("count", RegisterKind.STATE, "int64", data=0, bytes=8),
        r.Register("y", RegisterKind.LOCAL, "float32", (r.Dim(0), r.Dim(4, 4))),
        r.Register("more", RegisterKind.LOCAL, "bool"),
    )
    rows = (r.Symbol("s0", Bind.SIZE, 0, 0, low=2),)
    begin = r.Variant(
        "begin",
        r.Jump(1),
        symbols=rows,
        checks=(r.Check(r.apply(Op.LT, ROWS, r.number(7)), "rows < 7"),),
        produced=(r.Produced(4, (ROWS, r.number(4))),),
        values=(r.RegisterValue(0, size), r.ProducedValue(0, size)),
        steps=(r.Copy(1, 0, size),),
    )
    too_many = r.Variant("fail", r.Raise("ValueError", "too many rows"))
    values: list[r.Value] = [
        r.RegisterValue(4, size),
        r.RegisterValue(2, r.number(16)),
        r.ProducedValue(0, size),
        r.ArenaValue(r.number(64), r.number(16)),
        r.RegisterValue(3, r.number(8), writes=True),
        r.ProducedValue(1, r.number(1)),
    ]
    steps: list[r.Step] = [r.Copy(3, 1, r.number(16))]
    for place, (entry, given) in enumerate(((step, (0, 3, 2)), (more, (2, 5)), (count, (4,)))):
        if entry.params:
            values.append(r.SizesValue(tuple(map(expression, entry.params))))
            given = (*given, len(values) - 1)
        steps.append(r.Launch(place, given, per_thread=expression(entry.workspace)))
    body = r.Variant(
        "body",
        r.Branch(5, 1, 2),
        symbols=(r.Symbol("s0", Bind.SIZE, 4, 0),),
        produced=(r.Produced(4, (ROWS, r.number(4))), r.Produced(5)),
        values=tuple(values),
        steps=tuple(steps),
        arena_bytes=r.number(128),
    )
    column = r.Returned(4, (ROWS,), (r.number(4),), r.number(0))
    after = (r.Symbol("s0", Bind.SIZE, 4, 0),)
    is_given = r.Symbol("keep given", Bind.GIVEN, 1)
    without = r.Check(r.apply(Op.NOT, r.symbol(1)), "keep is None")
    outputs = r.Returned(4), column, r.Returned(3)
    whole = r.Variant("whole", r.Return(outputs), symbols=(*after, is_given), checks=(without,))
    kept = r.Variant("kept", r.Return((r.Returned(4), r.Returned(None), r.Returned(3))), symbols=after)
    counts = [len(parse_kernel(text, {"s0": 3} if "s0" in text else None).parameters) for text in KERNELS]
    table = r.Table(
        "growing",
        registers,
        (
            r.Output("y", "float32", (r.Dim(2, 4096, "rows"), r.Dim(4, 4))),
            r.Output("first", "float32", (r.Dim(2, 4096, "rows"),)),
            r.Output("count", "int64"),
        ),
        tuple(
            r.Kernel(f"k{place}", each + bool(entry.params))
            for place, (each, entry) in enumerate(zip(counts, written.entries, strict=True))
        ),
        (r.State("entry", (begin, too_many)), r.State("loop", (body,)), r.State("end", (whole, kept))),
    )
    return table, WEIGHTS, STATE, written


def expected(x: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """What `growing` gives, in plain PyTorch."""
    w = torch.tensor([2.0, 2.0, 3.0, 4.0])
    while True:
        x, count = x * w, count + 1
        if not bool((x < 100).all()):
            return x, x[:, 0], count
