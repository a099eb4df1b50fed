"""Reductions over rows, outside the loops that feed them: private arrays are cleared, emptied and stored.

    accumulate sum y[j] = v     every row:      block[j] += v           f32, close to the core
                                every 32 rows:  fold[j] += block[j]     f64; block[j] = 0
                                at the end:     y[j] = Σ over threads, in order, of fold[j]

Arrays are padded to whole vectors, so these loops have no tails; the padding is never stored.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from smelt.codegen.cpu.schedule import Accumulator
from smelt.codegen.loops import reductions
from smelt.codegen.loops.arrays import Array, positions
from smelt.codegen.loops.builder import Builder
from smelt.codegen.loops.scalars import cast, to_memory
from smelt.ir.loops import Value
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import is_symsize

BLOCK_ROWS = 32
_LANES = 16

# How many parts there are, and how many bytes lie between their private memories.
CompiledParts = tuple[Value, Size]


def padded(accumulator: Accumulator) -> Size:
    """Elements of its arrays, rounded up to whole vectors."""
    return (accumulator.size + _LANES - 1) // _LANES * _LANES


def clear(b: Builder, accumulators: Sequence[Accumulator], arrays: Mapping[str, Array]) -> None:
    """Set every element of the private arrays to the neutral element."""
    for alike in _by_length(each for each in accumulators if each.size != 0):
        with b.loop(0, padded(alike[0]), _LANES) as place:
            for accumulator in alike:
                for name, dtype in accumulator.arrays:
                    nothing = reductions.start(b, accumulator.instruction.op, dtype, _LANES)
                    arrays[name].store(to_memory(b, nothing, dtype), place)


def empty_blocks(b: Builder, accumulators: Sequence[Accumulator], arrays: Mapping[str, Array]) -> None:
    """The f32 sums of the last rows into the f64 sums of all."""
    for alike in _by_length(each for each in accumulators if each.blocked):
        with b.loop(0, padded(alike[0]), _LANES) as place:
            for accumulator in alike:
                block, fold = (arrays[name].at(place) for name, _ in accumulator.arrays[::-1])
                recent = block.load_as(fold.dtype, 0, _LANES)
                fold.store(b.fadd(fold.load(0, _LANES), recent))
                block.store(block.zero(_LANES))


def _by_length(accumulators: Iterable[Accumulator]) -> list[list[Accumulator]]:
    """Those as long as each other are cleared and emptied in one loop: each loop takes LLVM a millisecond."""
    groups: list[list[Accumulator]] = []
    for each in accumulators:
        alike = next((group for group in groups if group[0].axes == each.axes), None)
        if alike is None:
            groups.append([each])
        else:
            alike.append(each)
    return groups


def finish(
    b: Builder, accumulators: Iterable[Accumulator], arrays: Mapping[str, Array], outs: Mapping[str, Array],
    parts: CompiledParts | None,
) -> None:  # fmt: skip
    """Store results in `outs`, by their buffers; with `parts`, reduce the parts in order first."""
    by_buffer = {each.instruction.buffer: each for each in accumulators if each.size != 0}
    for straight in (True, False):
        for alike in _by_length(each for each in by_buffer.values() if _is_straight(each) is straight):
            size = alike[0].size
            whole = size // _LANES * _LANES if straight else 0
            for first, last, lanes in ((0, whole, _LANES), (whole, size, 1)):
                unsure = is_symsize(last - first)
                if unsure or first != last:
                    with b.loop(first, last, lanes, guard=unsure) as position:
                        totals = _totals(b, alike, arrays, position, lanes, parts)
                        for each, total in zip(alike, totals, strict=True):
                            _store(each, total, outs[each.instruction.buffer], position)


def _is_straight(accumulator: Accumulator) -> bool:
    """Whether results are side by side."""
    axes, index = accumulator.axes, accumulator.instruction.index
    return len(axes) == 1 and index.stride(axes[0].name) == 1


def _store(accumulator: Accumulator, total: Value, out: Array, position: Value) -> None:
    """At `position` of the dense private array."""
    b, dtype = out.b, accumulator.value_dtype
    value = cast(b, cast(b, total, accumulator.dtype, dtype), dtype, out.dtype)
    index = replace(accumulator.instruction.index, offset=0)
    out.at_index(index, positions(b, accumulator.axes, position)).store(to_memory(b, value, out.dtype))


def _totals(
    b: Builder,
    accumulators: Sequence[Accumulator],
    arrays: Mapping[str, Array],
    position: Value,
    lanes: int,
    parts: CompiledParts | None,
) -> list[Value]:
    folds = [arrays[each.arrays[0][0]].at(position) for each in accumulators]
    totals = [array.load_as(array.dtype, 0, lanes) for array in folds]
    if parts is None:
        return totals
    count, apart = parts
    loop = b.begin(1, count, 1, totals, guard=True)
    further = b.mul(loop.index, apart)
    folded = []
    for each, array, total in zip(accumulators, folds, loop.values, strict=True):
        there = Array(b, b.element(array.pointer, "i8", further), array.dtype)
        value = there.load_as(array.dtype, 0, lanes)
        folded.append(reductions.combine(b, each.instruction.op, array.dtype, total, value))
    return list(loop.end(*folded))
