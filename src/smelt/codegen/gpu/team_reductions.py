"""Reductions between the threads of a team; all threads get the result.

    part of a warp      the lanes exchange, half as far apart each time
    warps               a number for each goes through shared memory
    blocks of a cluster a number for each is read from its shared memory by the others
    between teams       each thread's numbers go through shared memory, to the threads at its place in the others
"""

from collections.abc import Sequence
from functools import partial

import torch

from smelt.codegen.gpu.simt import Simt
from smelt.codegen.loops.builder import element_bytes
from smelt.codegen.loops.reductions import combine
from smelt.codegen.loops.scalars import from_memory, memory_kind, to_memory
from smelt.ir.kernel import Reduction
from smelt.ir.loops import Value

TypedReduction = tuple[Reduction, torch.dtype]

_MOST_PARTS = 16  # that a thread reads by itself: the assembler has all of them in registers at once


def reduce_team(
    b: Simt, folds: Sequence[TypedReduction], values: Sequence[Value], team: int, threads: int
) -> list[Value]:
    """Each of `values` reduced over a team of threads side by side; a block of `threads` has one or several, or a team
    is several blocks."""
    if team > threads:
        return _reduce_cluster(b, folds, reduce_team(b, folds, values, threads, threads), team // threads)
    partials = [_exchanged(b, fold, value, min(team, b.warp)) for fold, value in zip(folds, values, strict=True)]
    if team <= b.warp:
        return partials
    warps = team // b.warp
    arrays = [b.shared_array(memory_kind(dtype), threads // b.warp) for _, dtype in folds]
    with b.where(b.icmp("eq", b.lane(), 0)):
        for (_, dtype), array, value in zip(folds, arrays, partials, strict=True):
            b.store_shared(array, b.warp_number(), to_memory(b, value, dtype))
    b.barrier()
    joined = []
    where = b.and_(b.lane(), warps - 1)
    if threads > team:
        where = b.add(where, b.and_(b.warp_number(), -warps))
    for (op, dtype), array in zip(folds, arrays, strict=True):
        mine = b.load_shared(array, where, memory_kind(dtype))
        joined.append(_exchanged(b, (op, dtype), from_memory(b, mine, dtype), warps))
    return joined


def _reduce_cluster(
    b: Simt, folds: Sequence[TypedReduction], values: Sequence[Value], blocks: int
) -> list[Value]:
    """The partials of blocks, reduced over the blocks of a cluster. Lanes `blocks` apart do the same."""
    arrays = [b.shared_array(memory_kind(dtype), 1) for _, dtype in folds]
    with b.where(b.icmp("eq", b.thread(), 0)):
        for (_, dtype), array, value in zip(folds, arrays, values, strict=True):
            b.store_shared(array, b.index(0), to_memory(b, value, dtype))
    b.cluster_barrier()
    joined = []
    for fold, array in zip(folds, arrays, strict=True):
        theirs = b.load_cluster(array, b.and_(b.lane(), blocks - 1), memory_kind(fold[1]))
        joined.append(_exchanged(b, fold, from_memory(b, theirs, fold[1]), blocks))
    return joined


def reduce_teams(
    b: Simt, folds: Sequence[TypedReduction], values: Sequence[tuple[Value, ...]], team: int, threads: int
) -> list[tuple[Value, ...]]:
    """Each of `values` reduced over the teams of a block: over their first threads, over their second threads, and so
    on. A thread has several of each."""
    mine = []
    for fold, partials in zip(folds, values, strict=True):
        mine.append(tuple(_exchanged(b, fold, each, b.warp, first=team) for each in partials))
    apart = max(team, b.warp)
    if threads == apart:
        return mine
    kinds = [memory_kind(dtype) for _, dtype in folds]
    room = b.exchange_array(max(map(element_bytes, kinds)) * threads * len(mine[0]))
    first, places = b.and_(b.thread(), apart - 1), range(len(mine[0]))
    totals = []
    for number, ((op, dtype), kind, partials) in enumerate(zip(folds, kinds, mine, strict=True)):
        if number:
            b.barrier()  # the last ones were read
        for place, value in enumerate(partials):
            b.store_shared(room, b.add(b.thread(), place * threads), to_memory(b, value, dtype))
        b.barrier()
        if len(partials) * (threads // apart) <= _MOST_PARTS:
            starts = [b.add(first, n * threads) for n in places]
            totals.append(tuple(_joined(b, (op, dtype), room, at, apart, threads) for at in starts))
            continue
        _join(b, (op, dtype), room, len(partials), apart, threads)
        b.barrier()
        wholes = [b.load_shared(room, b.add(first, n * threads), kind) for n in places]
        totals.append(tuple(from_memory(b, each, dtype) for each in wholes))
    return totals


def _joined(b: Simt, fold: TypedReduction, room: int, at: Value, apart: int, threads: int) -> Value:
    """The reduction of the values of threads that are `apart` from each other."""
    op, dtype = fold
    parts = [b.load_shared(room, b.add(at, step), memory_kind(dtype)) for step in range(0, threads, apart)]
    total = from_memory(b, parts[0], dtype)
    for part in parts[1:]:
        total = combine(b, op, dtype, total, from_memory(b, part, dtype))
    return total


def _join(b: Simt, fold: TypedReduction, room: int, count: int, apart: int, threads: int) -> None:
    """The same for all of `count` values, each by a thread of its own, which leaves it where the first part was."""
    for begin in range(0, count * apart, threads):
        number, mine = b.add(b.thread(), begin), None
        if count * apart - begin < threads:
            number, mine = b.below(number, count * apart)
        place = b.lshr(number, apart.bit_length() - 1)
        at = b.add(b.mul(place, threads), b.and_(number, apart - 1))
        with b.where(mine):
            whole = _joined(b, fold, room, at, apart, threads)
            b.store_shared(room, at, to_memory(b, whole, fold[1]))


def _exchanged(b: Simt, fold: TypedReduction, value: Value, lanes: int, first: int = 1) -> Value:
    """`value` reduced over so many lanes side by side; `first` apart, if not neighbours."""
    return b.across_lanes(value, partial(combine, b, *fold), first, lanes)
