"""Folds between the threads of a team: all of them get the result.

    part of a warp      the lanes exchange, half as far apart each time
    a block             a number for each warp goes through shared memory
    warps side by side  where each lane has rows of its own, the warps' numbers for it go through shared memory
"""

from collections.abc import Sequence

import torch

from smelt.codegen.gpu.simt import Simt
from smelt.codegen.llvm.builder import LlvmValue
from smelt.codegen.llvm.reductions import combine
from smelt.codegen.llvm.scalars import from_memory, memory_kind, to_memory
from smelt.ir.kernel import Reduction

Fold = tuple[Reduction, torch.dtype]


def fold_team(b: Simt, folds: Sequence[Fold], values: Sequence[LlvmValue], team: int) -> list[LlvmValue]:
    """Each of `values` folded over a team of threads side by side."""
    found = [_exchanged(b, fold, value, min(team, b.warp)) for fold, value in zip(folds, values, strict=True)]
    if team <= b.warp:
        return found
    warps = team // b.warp
    arrays = [b.shared_array(memory_kind(dtype), warps) for _, dtype in folds]
    with b.where(b.icmp("eq", b.lane(), 0)):
        for (_, dtype), array, value in zip(folds, arrays, found, strict=True):
            b.store_shared(array, b.warp_number(), to_memory(b, value, dtype))
    b.barrier()
    joined = []
    for (op, dtype), array in zip(folds, arrays, strict=True):
        mine = b.load_shared(array, b.and_(b.lane(), warps - 1), memory_kind(dtype))
        joined.append(_exchanged(b, (op, dtype), from_memory(b, mine, dtype), warps))
    return joined


def _exchanged(b: Simt, fold: Fold, value: LlvmValue, lanes: int) -> LlvmValue:
    """`value` folded over so many lanes side by side."""
    op, dtype = fold
    distance = 1
    while distance < lanes:
        value = combine(b, op, dtype, value, b.shuffle_xor(value, distance))
        distance *= 2
    return value


def fold_warps(
    b: Simt, folds: Sequence[Fold], values: Sequence[tuple[LlvmValue, ...]], warps: int
) -> list[tuple[LlvmValue, ...]]:
    """Each of `values` folded over the warps of a block, lane by lane; a thread has several of each."""
    if warps == 1:
        return list(values)
    kinds = [memory_kind(dtype) for _, dtype in folds]
    width = len(values[0])
    arrays = [b.shared_array(kind, warps * b.warp * width) for kind in kinds]
    first = b.mul(b.lane(), width)
    for (_, dtype), array, mine in zip(folds, arrays, values, strict=True):
        row = b.add(b.mul(b.warp_number(), b.warp * width), first)
        for way, value in enumerate(mine):
            b.store_shared(array, b.add(row, way), to_memory(b, value, dtype))
    b.barrier()
    found = []
    for (op, dtype), array, kind in zip(folds, arrays, kinds, strict=True):
        ways = []
        for way in range(width):
            total: LlvmValue | None = None
            for warp in range(warps):
                part = from_memory(b, b.load_shared(array, b.add(first, warp * b.warp * width + way), kind), dtype)
                total = part if total is None else combine(b, op, dtype, total, part)
            assert total is not None
            ways.append(total)
        found.append(tuple(ways))
    return found
