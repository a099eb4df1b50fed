"""Updates one element of a scatter with an atomic operation: stores a value, or combines it with the old one.

    whole numbers of 32 or 64 bits    one instruction of the chip; sums of floats of as many bits too
    other numbers, products           read, combine, compare and swap; retry on failure
    bools                             a plain store by those that decide: all of them store the same
"""

import torch

from smelt.codegen.gpu.simt import Simt
from smelt.codegen.loops.reductions import combine
from smelt.codegen.loops.scalars import cast, from_memory, memory_kind, to_memory
from smelt.ir.kernel import Reduction
from smelt.ir.loops import Value

# As LLVM's `atomicrmw` calls what chips have an instruction for.
_OF_INTEGERS = {"sum": "add", "max": "max", "min": "min"}
_OF_FLOATS = {"sum": "fadd"}
_PLAIN: dict[torch.dtype, dict[str, str]] = {
    torch.int32: _OF_INTEGERS,
    torch.int64: _OF_INTEGERS,
    torch.float32: _OF_FLOATS,
    torch.float64: _OF_FLOATS,
}


def put(
    b: Simt, op: Reduction | None, pointer: Value, at: Value, value: Value, dtype: torch.dtype, to: torch.dtype
) -> None:
    """A value of `dtype` into an element of a buffer of dtype `to`, under the `where` that is open."""
    if op is None:
        b.store_global(pointer, at, [to_memory(b, value, to)])
        return
    if op in ("any", "all"):
        decides = value if op == "any" else b.not_(value)
        with b.where(decides):
            b.store_global(pointer, at, [b.const("i8", op == "any")])
        return

    def change(old: Value, value: Value) -> Value:
        wide = cast(b, from_memory(b, old, to), to, dtype)
        return to_memory(b, cast(b, combine(b, op, dtype, wide, value), dtype, to), to)

    plain = _PLAIN.get(to, {}).get(op)
    b.atomic(pointer, at, memory_kind(to), value, change, plain)
