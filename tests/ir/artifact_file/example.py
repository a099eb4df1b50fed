"""Records of small artifacts, for tests of their file: their code is no code."""

import struct

from smelt.ir.artifact_file.artifact import ArtifactFile, Data, TargetPart
from smelt.ir.artifact_file.code import Code, CodeSlot
from smelt.ir.artifact_file.layout import Machine, feature_mask
from smelt.ir.table import records as r
from smelt.ir.table.records import Bind, RegisterKind
from smelt.symbolic.postfix import Op

ROWS = r.symbol(0)
BYTES = r.apply(Op.MUL, ROWS, r.number(16))


def table() -> r.Table:
    """A loop: y = x; while more: y, more = f(y, w), count += 1; return y."""
    registers = (
        r.Register("x", RegisterKind.INPUT, "float32", (r.Dim(2, 4096, "rows"), r.Dim(4, 4))),
        r.Register("mode", RegisterKind.INPUT, "int64", optional=True, choices=("sum", "größte")),
        r.Register("w", RegisterKind.CONSTANT, "float32", (r.Dim(4, 4),), data=0, bytes=16),
        r.Register("half", RegisterKind.CONSTANT, "float32", (r.Dim(2, 2),), data=4, bytes=12, strides=(2,)),
        r.Register("count", RegisterKind.STATE, "int64", data=0, bytes=8),
        r.Register("y", RegisterKind.LOCAL, "float32", (r.Dim(0), r.Dim(4, 4))),
        r.Register("more", RegisterKind.LOCAL, "bool"),
    )
    rows = (r.Symbol("rows", Bind.SIZE, 0, 0, low=2),)
    begin = r.Variant(
        "begin",
        r.Jump(1),
        symbols=(*rows, r.Symbol("mode given", Bind.GIVEN, 1), r.Symbol("mode", Bind.VALUE, 1)),
        checks=(r.Check(r.apply(Op.EQ, r.symbol(2), r.number(0)), "mode == 'sum'"),),
        produced=(r.Produced(5, (ROWS, r.number(4))),),
        values=(r.RegisterValue(0, BYTES), r.ProducedValue(0, BYTES)),
        steps=(r.Copy(1, 0, BYTES),),
    )
    sizes = r.SizesValue((ROWS, r.apply(Op.MAX, ROWS, r.number(-7)), r.floating(0.5)))
    body = r.Variant(
        "body",
        r.Branch(6, 1, 2),
        symbols=(r.Symbol("rows", Bind.SIZE, 5, 0),),
        produced=(r.Produced(5, (ROWS, r.number(4))), r.Produced(6)),
        values=(
            r.RegisterValue(5, BYTES),
            r.RegisterValue(2, r.number(16)),
            r.RegisterValue(4, r.number(8), writes=True),
            r.ProducedValue(0, BYTES),
            r.ProducedValue(1, r.number(1)),
            r.ArenaValue(r.number(64), BYTES),
            sizes,
        ),
        steps=(r.Launch(0, (0, 1, 3, 4, 5, 6), r.number(128), BYTES), r.Launch(1, (2,))),
        arena_bytes=r.apply(Op.ADD, BYTES, r.number(64)),
    )
    top = r.Returned(5, (ROWS,), (r.number(4),), r.number(1))
    end = r.Variant("end", r.Return((r.Returned(5), top)), symbols=(r.Symbol("rows", Bind.SIZE, 5, 0),))
    fail = r.Variant("fail", r.Raise("ValueError", "too large"), checks=(r.Check(r.number(1), "always"),))
    return r.Table(
        "loop",
        registers,
        (r.Output("y", "float32", (r.Dim(2, 4096, "rows"), r.Dim(4, 4))), r.Output("other", None)),
        (r.Kernel("k0", 6), r.Kernel("k1", 1)),
        (r.State("entry", (begin, fail)), r.State("loop", (body,)), r.State("end", (end,))),
    )


def artifact() -> ArtifactFile:
    """Two targets of one table."""
    code = Code(bytes(range(256)) * 20, (0, 64), (CodeSlot(8, "smelt_parallel_for"), CodeSlot(16, "", 32)))
    features = feature_mask(Machine.X86_64, ["avx2", "fma"])
    targets = (
        TargetPart(Machine.X86_64, features, table(), code),
        TargetPart(Machine.AARCH64, 0, table(), code),
    )
    weights, state = Data({0: struct.pack("<4f", 1, 2, 3, 4)}), Data({0: struct.pack("<q", 10)})
    return ArtifactFile({"name": "loop", "made by": "a test"}, targets, weights, state)
