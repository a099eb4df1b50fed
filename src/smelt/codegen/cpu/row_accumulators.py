"""Reductions over rows, outside the loops that feed them: private arrays are cleared, emptied and stored.

    accumulate sum y[j] = v     every row:      block[j] += v           f32, close to the core
                                every 32 rows:  fold[j] += block[j]     f64; block[j] = 0
                                at the end:     y[j] = Σ over threads, in order, of fold[j]

Arrays are padded to whole vectors, so these loops have no tails; the padding is never stored.
"""

from collections.abc import Iterable, Sequence

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu.schedule import Accumulator
from smelt.codegen.loops import reductions
from smelt.codegen.loops.builder import Builder
from smelt.codegen.loops.scalars import cast, from_memory, memory_kind, to_memory
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


def clear(b: Builder, accumulators: Sequence[Accumulator], pointers: dict[str, Value]) -> None:
    """Set every element of the private arrays to the neutral element."""
    for alike in _by_length(each for each in accumulators if each.size != 0):
        loop = b.begin(b.const("i64", 0), b.const("i64", padded(alike[0])), _LANES, (), guard=False)
        for accumulator in alike:
            for name, dtype in accumulator.arrays:
                nothing = reductions.start(b, accumulator.instruction.op, dtype, _LANES)
                b.store(to_memory(b, nothing, dtype), b.element(pointers[name], memory_kind(dtype), loop.index))
        loop.end()


def empty_blocks(b: Builder, accumulators: Sequence[Accumulator], pointers: dict[str, Value]) -> None:
    """The f32 sums of the last rows into the f64 sums of all."""
    for alike in _by_length(each for each in accumulators if each.blocked):
        loop = b.begin(b.const("i64", 0), b.const("i64", padded(alike[0])), _LANES, (), guard=False)
        for accumulator in alike:
            (fold, _), (block, _) = accumulator.arrays
            narrow = b.element(pointers[block], "f32", loop.index)
            wide = b.element(pointers[fold], "f64", loop.index)
            recent = b.convert("fpext", b.load(narrow, "f32", _LANES), "f64")
            b.store(b.fadd(b.load(wide, "f64", _LANES), recent), wide)
            b.store(b.const("f32", 0.0, _LANES), narrow)
        loop.end()


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


@dataclass(frozen=True, slots=True)
class Result:
    """Where an accumulator's results are stored, and as what."""

    accumulator: Accumulator
    place: Value
    dtype: torch.dtype

    @property
    def straight(self) -> bool:
        axes, index = self.accumulator.axes, self.accumulator.instruction.index
        return len(axes) == 1 and index.stride(axes[0].name) == 1

    def store(self, b: Builder, total: Value, position: Value) -> None:
        dtype = self.accumulator.value_dtype
        value = cast(b, cast(b, total, self.accumulator.dtype, dtype), dtype, self.dtype)
        out = b.element(self.place, memory_kind(self.dtype), _offset(b, self.accumulator, position))
        b.store(to_memory(b, value, self.dtype), out)


def finish(b: Builder, results: Sequence[Result], pointers: dict[str, Value], parts: CompiledParts | None) -> None:
    """Store results; with `parts`, reduce the parts in order first."""
    whole = [each for each in results if each.accumulator.size != 0]
    for straight in (True, False):
        by_buffer = {each.accumulator.instruction.buffer: each for each in whole if each.straight is straight}
        for alike in _by_length(each.accumulator for each in by_buffer.values()):
            _finish([by_buffer[each.instruction.buffer] for each in alike], straight, b, pointers, parts)


def _finish(
    results: Sequence[Result], straight: bool, b: Builder, pointers: dict[str, Value], parts: CompiledParts | None
) -> None:
    """Of results as long as each other."""
    size = results[0].accumulator.size
    whole = size // _LANES * _LANES if straight else 0
    for first, last, lanes in ((0, whole, _LANES), (whole, size, 1)):
        unsure = is_symsize(last - first)
        if not unsure and first == last:
            continue
        loop = b.begin(b.const("i64", first), b.const("i64", last), lanes, (), guard=unsure)
        totals = _totals(b, [each.accumulator for each in results], pointers, loop.index, lanes, parts)
        for result, total in zip(results, totals, strict=True):
            result.store(b, total, loop.index)
        loop.end()


def _offset(b: Builder, accumulator: Accumulator, position: Value) -> Value:
    """Where in the output the element at `position` of the dense private array belongs."""
    total = b.const("i64", 0)
    left = position
    for number, axis in enumerate(reversed(accumulator.axes)):
        outermost = number == len(accumulator.axes) - 1
        here = left if outermost else b.binary("urem", left, axis.size)
        left = left if outermost else b.binary("udiv", left, axis.size)
        total = b.add(total, b.mul(here, accumulator.instruction.index.stride(axis.name)))
    return total


def _totals(
    b: Builder,
    accumulators: Sequence[Accumulator],
    pointers: dict[str, Value],
    position: Value,
    lanes: int,
    parts: CompiledParts | None,
) -> list[Value]:
    arrays = [each.arrays[0] for each in accumulators]
    places = [b.element(pointers[name], memory_kind(dtype), position) for name, dtype in arrays]
    totals = [
        from_memory(b, b.load(place, memory_kind(dtype), lanes), dtype)
        for place, (_, dtype) in zip(places, arrays, strict=True)
    ]
    if parts is None:
        return totals
    count, apart = parts
    loop = b.begin(b.const("i64", 1), count, 1, totals, guard=True)
    further = b.mul(loop.index, apart)
    folded = []
    for each, place, (_, dtype), total in zip(accumulators, places, arrays, loop.values, strict=True):
        value = from_memory(b, b.load(b.element(place, "i8", further), memory_kind(dtype), lanes), dtype)
        folded.append(reductions.combine(b, each.instruction.op, dtype, total, value))
    return list(loop.end(*folded))
