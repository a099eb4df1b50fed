"""What one point of a scatter does to its element: it is stored, or folded into what is there, by an atomic operation.

    whole numbers of 32 or 64 bits    one instruction of the chip
    other numbers, products           what is there is read, folded, and written if it is still there; if not, again
    bools                             a plain store by those that decide: all of them store the same
"""

import torch

from smelt.codegen.gpu.simt import Simt
from smelt.codegen.llvm.builder import LlvmValue
from smelt.codegen.llvm.reductions import combine
from smelt.codegen.llvm.scalars import cast, from_memory, memory_kind, to_memory
from smelt.ir.kernel import Reduction

_PLAIN = {"sum": "add", "max": "max", "min": "min"}  # as LLVM's `atomicrmw` calls them
_PLAIN_DTYPES = (torch.int32, torch.int64)


def put(
    b: Simt, op: Reduction | None, pointer: str, at: LlvmValue, value: LlvmValue, dtype: torch.dtype, to: torch.dtype
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

    def change(old: LlvmValue, given: LlvmValue) -> LlvmValue:
        wide = cast(b, from_memory(b, old, to), to, dtype)
        return to_memory(b, cast(b, combine(b, op, dtype, wide, given), dtype, to), to)

    plain = _PLAIN.get(op) if to in _PLAIN_DTYPES else None
    b.atomic(pointer, at, memory_kind(to), value, change, plain)
