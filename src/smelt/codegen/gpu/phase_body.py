"""`PhaseBody` writes the code of a thread's points over the primitives of `Simt`: coordinates, instructions, memory.

Each kind of grid has a body of its own, which says where the points are: `bodies`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from smelt.base.errors import SmeltError
from smelt.codegen.gpu.grids import Grid
from smelt.codegen.gpu.simt import Mask, Simt, both
from smelt.codegen.gpu.vector_width import is_multiple
from smelt.codegen.gpu.word_quads import QUAD, Quads, quads
from smelt.codegen.loops.philox import words_of_counter
from smelt.codegen.loops.reductions import combine
from smelt.codegen.loops.scalars import cast, compute, constant, from_memory, memory_kind, to_memory
from smelt.ir.check_kernel import value_dtypes
from smelt.ir.kernel import (
    Axis,
    Cast,
    Compute,
    Const,
    Gather,
    Index,
    Instruction,
    Load,
    Position,
    Reduction,
    Role,
    Scatter,
    Store,
)
from smelt.ir.loops import Value
from smelt.symbolic.shapes import Size, product
from smelt.symbolic.symsize import known_equal

Values = tuple[Value, ...]  # one for all points that a thread takes at once, or one for each
Coordinates = dict[str, Value]


# What chips have an instruction for, as LLVM's `atomicrmw` calls it.
_OF_INTEGERS = {"sum": "add", "max": "max", "min": "min"}
_OF_FLOATS = {"sum": "fadd"}
_PLAIN: dict[torch.dtype, dict[str, str]] = {
    torch.int32: _OF_INTEGERS,
    torch.int64: _OF_INTEGERS,
    torch.float32: _OF_FLOATS,
    torch.float64: _OF_FLOATS,
}


class PhaseBody:
    """A grid being written. A thread takes `width` adjacent points along `axis` together. `grid` is the record of its
    schedule."""

    keeps_loads = False  # values that are loaded stay in registers for later loads of the same tile

    def __init_subclass__(cls, of: type[Grid] | None = None) -> None:
        """`of`: the record of the grids that it writes."""
        if of is not None:
            of.body = cls

    def __init__(self, b: Simt, grid: Any, axis: Axis | None = None, width: int = 1) -> None:
        self.b = b
        self.grid, self.axis, self.width = grid, axis, width
        self.kernel = grid.kernel
        self.dtypes = value_dtypes(grid.kernel)
        self.values: dict[str, Values] = {}
        self.rows: Coordinates = {}
        self.registers: dict[tuple[str, Index, int], Values] = {}  # values loaded or staged, by tile; -1: once a row
        self.quads = self._quads()

    # Which points are this thread's.

    def _coordinates(self, number: Value, axes: Sequence[Axis]) -> Coordinates:
        """Of the point with this number, counted through all axes."""
        b = self.b
        coordinates: Coordinates = {}
        for axis in reversed(axes[1:]):
            extent = b.index(axis.size)
            rest = b.binary("udiv", number, extent)
            coordinates[axis.name] = b.sub(number, b.mul(rest, extent))
            number = rest
        if axes:
            coordinates[axes[0].name] = number
        return coordinates

    def _within(self, number: Value, axes: Sequence[Axis], at_once: int) -> tuple[Coordinates, Mask]:
        """The same, of the first point where there is none with this number, and whether there is one. Numbers come in
        groups of `at_once`."""
        b, count, mask = self.b, product(axis.size for axis in axes), None
        if not is_multiple(count, at_once):
            number, mask = b.below(number, count)
        return self._coordinates(number, axes), mask

    def _both(self, one: Mask, other: Mask) -> Mask:
        return both(self.b, one, other)

    # Instructions.

    def run(self, body: Iterable[Instruction], where: Coordinates, mask: Mask, tile: int = 0) -> None:
        for instruction in body:
            self._step(instruction, where, mask, tile)

    def _spread(self, values: Values) -> Values:
        return values if len(values) == self.width else values * self.width

    def _step(self, i: Instruction, where: Coordinates, mask: Mask, tile: int = 0) -> None:
        """`tile`: -1 for what runs once a row."""
        b = self.b
        match i:
            case Const(out, value, dtype):
                self.values[out] = (constant(b, value, dtype),)
            case Load(out):
                self.values[out] = self._loaded(i, where, tile)
            case Gather(out):
                self.values[out] = self._gathered(i, where)
            case Position(out, index):
                self.values[out] = self._position(index, where)
            case Compute(out, "philox", args) if out in self.quads.words:
                self.values[out] = self._words([self.values[arg] for arg in args[:3]])
            case Compute(out, op, args, _):
                # Comparisons give a bool and compare what their operands are.
                of, step = self.dtypes[args[-1]], QUAD if out in self.quads.same else 1
                operands = [self.values[arg] for arg in args]
                self.values[out] = self._each(operands, lambda *x: compute(b, op, x, of), step)
            case Cast(out, value, torch.bfloat16) if b.target.has_bfloat and self._is_paired(value):
                self.values[out] = b.as_bfloats(self.values[value])
            case Cast(out, value, dtype):
                source, step = self.dtypes[value], QUAD if out in self.quads.same else 1
                self.values[out] = self._each([self.values[value]], lambda x: cast(b, x, source, dtype), step)
            case Scatter():
                self._scatter(i, where, mask)
            case Store():
                self._store(i, where, mask, tile)
            case _:
                raise SmeltError("SM030", f"no GPU schedule has {type(i).__name__}")

    def _is_paired(self, value: str) -> bool:
        """Whether a thread has float32 numbers of points side by side."""
        return self.dtypes[value] is torch.float32 and len(self.values[value]) % 2 == 0

    def _each(self, operands: Sequence[Values], function: Callable[..., Value], step: int = 1) -> Values:
        """Of each point of a thread; once for so many side by side that have the same, if they are several."""
        ways = max(len(values) for values in operands)
        spread = [values if len(values) == ways else values * ways for values in operands]
        step = min(step, ways)
        results = [function(*(values[way] for values in spread)) for way in range(0, ways, step)]
        return tuple(each for each in results for _ in range(step))

    def _words(self, operands: Sequence[Values]) -> Values:
        """Random words of all points; four adjacent points share a counter."""
        spread = [self._spread(values) for values in operands]
        counters = range(0, self.width, QUAD)
        return tuple(word for way in counters for word in words_of_counter(self.b, *(each[way] for each in spread)))

    def _quads(self) -> Quads:
        """What four points side by side share, where vectors are whole quads."""
        axis, width = self.axis, self.width
        if axis is None or width % QUAD or not any(map(_is_philox, self.kernel.instructions())):
            return Quads()

        def is_in_row(index: Index) -> bool:
            rest = [index.offset, *(stride for name, stride in index.terms if name != axis.name)]
            return index.stride(axis.name) == 1 and all(is_multiple(each, QUAD) for each in rest)

        return quads(self.kernel.instructions(), is_in_row, lambda index: index.stride(axis.name) == 0)

    # Memory.

    def _offset(self, index: Index, where: Coordinates) -> Value:
        b = self.b
        total: Value | None = None
        for name, stride in index.terms:
            term = where[name] if known_equal(stride, 1) else b.mul(where[name], b.index(stride))
            total = term if total is None else b.add(total, term)
        if total is None:
            return b.index(index.offset)
        return total if known_equal(index.offset, 0) else b.add(total, b.index(index.offset))

    def _step_of(self, index: Index) -> Size:
        """How far apart neighbouring points of a thread are."""
        return 0 if self.axis is None or self.width == 1 else index.stride(self.axis.name)

    def _is_aligned(self, index: Index, further: int = 0) -> bool:
        """Whether groups of adjacent points start at multiples of their size, whatever the other indices are."""
        axis, width = self.axis, self.width
        steps = [index.offset + further, *(stride for name, stride in index.terms if axis is None or name != axis.name)]
        return self.b.aligned and all(is_multiple(step, width) for step in steps)

    def _loaded(self, i: Load, where: Coordinates, tile: int) -> Values:
        buffer = self.kernel.buffer(i.buffer)
        key = (i.buffer, i.index, tile)
        if key in self.registers:
            return self.registers[key]
        constant = buffer.role is Role.INPUT
        raw = self._load(i.buffer, i.index, where, constant=constant)
        loaded = tuple(from_memory(self.b, each, buffer.dtype) for each in raw)
        if constant and tile >= 0 and self.keeps_loads:
            self.registers[key] = loaded
        return loaded

    def _load(
        self, name: str, index: Index, where: Coordinates, *, constant: bool, base: Value | None = None
    ) -> list[Value]:
        """`base`: where the index counts from; a multiple of the width."""
        b, buffer = self.b, self.kernel.buffer(name)
        kind = memory_kind(buffer.dtype)
        if buffer.on_host:
            return [b.number(name, kind)]
        at, step, width = self._offset(index, where), self._step_of(index), self.width
        pointer, at = b.pointer(name), at if base is None else b.add(base, at)
        if known_equal(step, 0):
            return b.load_global(pointer, at, kind, constant=constant)
        if known_equal(step, 1):
            return b.load_global(pointer, at, kind, width, aligned=self._is_aligned(index), constant=constant)
        if known_equal(step, -1):
            lowest, aligned = b.sub(at, width - 1), self._is_aligned(index, 1 - width)
            return b.load_global(pointer, lowest, kind, width, aligned=aligned, constant=constant)[::-1]
        loaded = []
        for way in range(width):
            loaded += b.load_global(pointer, b.add(at, b.index(way * step)) if way else at, kind, constant=constant)
        return loaded

    def _store(self, i: Store, where: Coordinates, mask: Mask, tile: int) -> None:
        b, buffer = self.b, self.kernel.buffer(i.buffer)
        values = self.values[i.value]
        if buffer.role is Role.SCRATCH:
            self.registers[i.buffer, i.index, tile] = values
            return
        self.registers.pop((i.buffer, i.index, tile), None)
        with b.where_stored(mask):
            self._stored(i.buffer, i.index, where, [to_memory(b, each, buffer.dtype) for each in values])

    def _stored(
        self, name: str, index: Index, where: Coordinates, raw: list[Value], *, base: Value | None = None
    ) -> None:
        b, step = self.b, self._step_of(index)
        at = self._offset(index, where)
        pointer, at = b.pointer(name), at if base is None else b.add(base, at)
        if not known_equal(step, 0):
            raw = raw if len(raw) == self.width else raw * self.width
        elif len(raw) > 1:
            raise AssertionError(f"{name} is stored at one place by several points")
        if known_equal(step, 0) or known_equal(step, 1):
            b.store_global(pointer, at, raw, aligned=self._is_aligned(index))
        elif known_equal(step, -1):
            lowest, aligned = b.sub(at, len(raw) - 1), self._is_aligned(index, 1 - len(raw))
            b.store_global(pointer, lowest, raw[::-1], aligned=aligned)
        else:
            for way, each in enumerate(raw):
                b.store_global(pointer, b.add(at, b.index(way * step)) if way else at, [each])

    def _position(self, index: Index, where: Coordinates) -> Values:
        b, step = self.b, self._step_of(index)
        first = b.convert("sext", self._offset(index, where), "i64")
        if known_equal(step, 0):
            return (first,)
        return tuple(b.add(first, b.const("i64", way * step)) if way else first for way in range(self.width))

    def _gathered(self, i: Gather, where: Coordinates) -> Values:
        """At most the last element within each extent: nothing outside of the buffer is read. Points side by side that
        share their places are read together."""
        b, buffer = self.b, self.kernel.buffer(i.buffer)
        pointer, kind, constant = b.pointer(i.buffer), memory_kind(buffer.dtype), buffer.role is Role.INPUT

        def position(at: Value, *places: Value) -> Value:
            for place, (_, stride, extent) in zip(places, i.by, strict=True):
                last = b.const("i64", extent - 1)
                inside = b.icmp("ult", place, b.const("i64", extent))
                at = b.add(at, b.mul(b.select(inside, place, last), b.const("i64", stride)))
            return at

        def read(at: Value, *places: Value) -> Value:
            (raw,) = b.load_global(pointer, position(at, *places), kind, constant=constant)
            return from_memory(b, raw, buffer.dtype)

        first, places = self._position(i.index, where), [self.values[name] for name, _, _ in i.by]
        together = known_equal(self._step_of(i.index), 1) and not self.grid.padded
        if together and all(len(place) == 1 for place in places):
            aligned = self._is_aligned(i.index) and all(is_multiple(stride, self.width) for _, stride, _ in i.by)
            at = position(first[0], *(place[0] for place in places))
            raws = b.load_global(pointer, at, kind, self.width, aligned=aligned, constant=constant)
            return tuple(from_memory(b, raw, buffer.dtype) for raw in raws)
        return self._each([first, *places], read)

    def _scatter(self, i: Scatter, where: Coordinates, mask: Mask) -> None:
        """Each point by itself, in any order; one whose place is outside leaves nothing."""
        b, buffer, dtype = self.b, self.kernel.buffer(i.buffer), self.dtypes[i.value]
        pointer = b.pointer(i.buffer)
        places = [self.values[name] for name, _, _ in i.by]
        operands = [self._position(i.index, where), self.values[i.value], *places]
        for at, value, *indices in zip(*map(self._spread, operands), strict=True):
            counts = mask
            for place, (_, stride, extent) in zip(indices, i.by, strict=True):
                inside = b.icmp("ult", place, b.const("i64", extent))
                counts = self._both(counts, inside)
                at = b.add(at, b.mul(b.select(inside, place, 0), b.const("i64", stride)))
            with b.where(counts):
                _put(b, i.op, pointer, at, value, dtype, buffer.dtype)


def _is_philox(instruction: Instruction) -> bool:
    return isinstance(instruction, Compute) and instruction.op == "philox"


def _put(
    b: Simt, op: Reduction | None, pointer: Value, at: Value, value: Value, dtype: torch.dtype, to: torch.dtype
) -> None:
    """A value of `dtype` into an element of a buffer of dtype `to`, under the `where` that is open. What no instruction
    does is read, combined, compared and swapped until that works; bools are stored by those that decide: all of them
    store the same."""
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
