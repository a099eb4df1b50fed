"""Folds over rows, outside the loops that feed them: private arrays cleared, emptied and stored.

    accumulate sum y[j] = v     every row:      block[j] += v           f32, close to the core
                                every 32 rows:  fold[j] += block[j]     f64; block[j] = 0
                                at the end:     y[j] = Σ over threads, in order, of fold[j]

Arrays are padded to whole vectors, so these loops have no tails; what lies in the padding is never stored.
"""

import torch

from smelt.codegen.cpu.schedule import Accumulator
from smelt.codegen.llvm import reductions
from smelt.codegen.llvm.builder import Builder, LlvmValue
from smelt.codegen.llvm.scalars import cast, from_memory, memory_kind, to_memory
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import is_symsize

BLOCK_ROWS = 32
_LANES = 16

# How many parts there are, and how many bytes lie between their private memories.
Parts = tuple[LlvmValue, Size]


def padded(accumulator: Accumulator) -> Size:
    """Elements of its arrays, rounded up to whole vectors."""
    return (accumulator.size + _LANES - 1) // _LANES * _LANES


def clear(b: Builder, accumulator: Accumulator, pointers: dict[str, str]) -> None:
    """Every element of the private arrays to the fold of nothing."""
    if accumulator.size == 0:
        return
    loop = b.begin(b.const("i64", 0), b.const("i64", padded(accumulator)), _LANES, (), guard=False)
    for name, dtype in accumulator.arrays:
        nothing = reductions.start(b, accumulator.instruction.op, dtype, _LANES)
        b.store(to_memory(b, nothing, dtype), b.element(pointers[name], memory_kind(dtype), loop.index))
    loop.end()


def empty_block(b: Builder, accumulator: Accumulator, pointers: dict[str, str]) -> None:
    """The f32 sums of the last rows into the f64 sums of all."""
    (fold, _), (block, _) = accumulator.arrays
    loop = b.begin(b.const("i64", 0), b.const("i64", padded(accumulator)), _LANES, (), guard=False)
    narrow = b.element(pointers[block], "f32", loop.index)
    wide = b.element(pointers[fold], "f64", loop.index)
    recent = b.convert("fpext", b.load(narrow, "f32", _LANES), "f64")
    b.store(b.fadd(b.load(wide, "f64", _LANES), recent), wide)
    b.store(b.const("f32", 0.0, _LANES), narrow)
    loop.end()


def finish(
    b: Builder,
    accumulator: Accumulator,
    pointers: dict[str, str],
    place: str,
    wanted: torch.dtype,
    parts: Parts | None,
) -> None:
    """Store the results as `wanted`, from `place` on; with `parts`, folded over them in order first."""
    if accumulator.size == 0:
        return
    index = accumulator.instruction.index
    straight = len(accumulator.axes) == 1 and index.stride(accumulator.axes[0].name) == 1
    whole = accumulator.size // _LANES * _LANES if straight else 0
    for first, last, lanes in ((0, whole, _LANES), (whole, accumulator.size, 1)):
        unsure = is_symsize(last - first)
        if not unsure and first == last:
            continue
        loop = b.begin(b.const("i64", first), b.const("i64", last), lanes, (), guard=unsure)
        total = _total(b, accumulator, pointers, loop.index, lanes, parts)
        value = cast(b, cast(b, total, accumulator.dtype, accumulator.value_dtype), accumulator.value_dtype, wanted)
        out = b.element(place, memory_kind(wanted), _offset(b, accumulator, loop.index))
        b.store(to_memory(b, value, wanted), out)
        loop.end()


def _offset(b: Builder, accumulator: Accumulator, position: LlvmValue) -> LlvmValue:
    """Where in the output the element at `position` of the dense private array belongs."""
    total = b.const("i64", 0)
    left = position
    for number, axis in enumerate(reversed(accumulator.axes)):
        outermost = number == len(accumulator.axes) - 1
        here = left if outermost else b.binary("urem", left, axis.size)
        left = left if outermost else b.binary("udiv", left, axis.size)
        total = b.add(total, b.mul(here, accumulator.instruction.index.stride(axis.name)))
    return total


def _total(
    b: Builder, accumulator: Accumulator, pointers: dict[str, str], position: LlvmValue, lanes: int, parts: Parts | None
) -> LlvmValue:
    name, dtype = accumulator.arrays[0]
    kind = memory_kind(dtype)
    first = b.element(pointers[name], kind, position)
    total = from_memory(b, b.load(first, kind, lanes), dtype)
    if parts is None:
        return total
    count, apart = parts
    loop = b.begin(b.const("i64", 1), count, 1, (total,), guard=True)
    value = from_memory(b, b.load(b.element(first, "i8", b.mul(loop.index, apart)), kind, lanes), dtype)
    (total,) = loop.end(reductions.combine(b, accumulator.instruction.op, dtype, loop.values[0], value))
    return total
