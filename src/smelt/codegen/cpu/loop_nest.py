"""Writes the loops of a planned kernel: `void part(ptr buffers, ptr mine, i64 first, i64 last, i1 ends)`.

A part runs the points `first … last` of whatever the plan shares out. Each row computes what does not change along cols
once, as scalars, then runs each stage's loop nest with its innermost axis in vectors. If the lanes do not divide an
axis, its last vector overlaps the previous one, so nothing runs lane by lane:

    13 columns, 8 lanes:   0…7, then 5…12     (a reduction ignores lanes 5…7 the second time)

`addresses` computes where elements are, `instructions` writes the operations at a point. Loops carry reductions as
partial results in lanes; every few hundred elements, those of a long row are added to a double.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import field

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu import row_accumulators, scatters, transpose_tiles
from smelt.codegen.cpu.addresses import Addresses, Workspace
from smelt.codegen.cpu.instructions import InstructionWriter, LoopReduction
from smelt.codegen.cpu.online_softmax import BLOCK, block_of
from smelt.codegen.cpu.schedule import (
    PIPELINE_LOADS,
    LoopSchedule,
    Split,
    asking,
    compute_bound,
    idempotent,
    loop_variant,
    pipelined_loads,
    placing,
    prefetched,
)
from smelt.codegen.loops import reductions
from smelt.codegen.loops.arrays import Array, positions
from smelt.codegen.loops.builder import Builder, Loop, param
from smelt.ir.kernel import Axis, Compute, Instruction, Load, Reduce, Scan, Scatter, Stage, Store
from smelt.ir.loops import Value
from smelt.symbolic.shapes import Size, product
from smelt.symbolic.symsize import is_symsize

# Elements summed in f32, unless it would be noticed, before the sum moves on into f64: sums of equal ones drift.
_FLUSH = 512
_FLUSH_WORTH = 256
_CACHE_LINE = 64
_NOWHERE = Value("", "i64", number=0)


@dataclass(slots=True)
class LoopNest:
    """The state of writing one part."""

    b: Builder
    plan: LoopSchedule
    at: Addresses
    code: InstructionWriter
    edges: tuple[Value, Value] | None = None  # of the tile being written, along the vector axis
    point: Value = _NOWHERE  # of the loop over rows, flattened
    next_row: list[Array] = field(default_factory=list)  # what the next row begins with
    prefetched: list[Load] = field(default_factory=list)  # reads of the loop being written to prefetch
    flush_every: int = BLOCK  # elements summed in f32, in the loop being written, before the sum moves on into f64
    prefetch_by: int = 0  # how many elements before; 0 for as many bytes as the target says
    in_blocks: bool = False  # whether the loop being written has something to do before each block (`begin_block`)
    pipelined: list[Load] = field(default_factory=list)  # reads of the loop being written to do one vector before

    @classmethod
    def of(cls, b: Builder, plan: LoopSchedule, workspace: Workspace) -> "LoopNest":
        """Reads the buffers' addresses where it stands."""
        at = Addresses.begin(b, plan.kernel, workspace)
        return cls(b, plan, at, InstructionWriter.of(b, plan, at))

    # Rows.

    def write(self) -> None:
        """The loops of a part."""
        first, last = param("first"), param("last")
        rows = self.plan.kernel.rows
        match self.plan.split:
            case Split.INDEPENDENT_ROWS if self.plan.accumulators or self.plan.units < len(rows):
                self._each(self.plan.unit_axes, first, last, self._unit)
            case Split.COLS:
                self._each(rows, self.number(0), self.number(product(axis.size for axis in rows)), self._row)
            case Split.TILES:
                self._each(self.plan.tile_axes, first, last, self._tile)
                if self.plan.tile is not None and self.plan.tile.nontemporal:
                    self.b.fence()
            case Split.SCATTER_BUCKETS:
                self._clear()
                self._each(rows, self.number(0), self.number(self.plan.kernel.row_count), self._placed_row)
                self._empty_blocks()
            case _:
                self._clear()
                self._each(rows, first, last, self._row)
                self._empty_blocks()

    def _each(self, axes: Sequence[Axis], first: Value, last: Value, write: Callable[[], None]) -> None:
        """A loop over the flattened points of `axes`, their positions found by division."""
        if any(axis.size == 0 for axis in axes):
            return
        if not axes and first.is_constant:
            write()
            return
        with self.b.loop(first, last, guard=not first.is_constant) as self.point:
            self.at.axes |= positions(self.b, axes, self.point)
            write()

    def _unit(self) -> None:
        """One unit: its accumulators cleared, its rows run, its results stored."""
        self._clear()
        count = product(axis.size for axis in self.plan.inner_axes)
        self._each(self.plan.inner_axes, self.number(0), self.number(count), self._row)
        self._empty_blocks()
        self.finish()

    def _placed_row(self) -> None:
        """A row, if the places it scatters to are this part's."""
        b = self.b
        self.code.begin_row()
        self.at.lanes = 1
        for instruction in placing(self.plan.kernel):
            self.code.write(instruction)
        (scatter,) = (i for i in self.plan.kernel.instructions() if isinstance(i, Scatter))
        number = scatters.bucket(b, [(self.code.values[place], stride) for place, stride, _ in scatter.by])
        first, last = param("first"), param("last")
        with b.when(b.and_(b.icmp("sge", number, first), b.icmp("slt", number, last))):
            self.stages()
        self._flush_blocks()

    def _row(self) -> None:
        self.stages()
        self._flush_blocks()

    def _flush_blocks(self) -> None:
        """Empty the blocks after every so many rows."""
        b = self.b
        if any(accumulator.blocked for accumulator in self.plan.accumulators):
            count = b.and_(self.point, row_accumulators.BLOCK_ROWS - 1)
            with b.when(b.icmp("eq", count, row_accumulators.BLOCK_ROWS - 1)):
                self._empty_blocks()

    def stages(self) -> None:
        self.code.begin_row()
        for stage in self.plan.kernel.stages:
            self.stage(stage)

    def stage(self, stage: Stage) -> None:
        if stage.loop:
            self._loop_stage(stage)
            return
        self.at.lanes = 1
        for instruction in stage.body:
            self.code.write(instruction)

    def _tile(self) -> None:
        """One tile: its reads transposed, then its rows."""
        tile = self.plan.tile
        assert tile is not None
        top, left = (
            transpose_tiles.first_of(self.b, self.at.axes[number.name], side, axis.size)
            for axis, number, side in zip((tile.down, tile.along), tile.blocks, (tile.height, tile.width), strict=True)
        )
        self.at.axes[tile.down.name], self.at.axes[tile.along.name] = top, left
        whole = dict(self.at.arrays)
        for each in tile.transposed:
            source, square = whole[each.source.buffer], whole[each.square]
            stride = each.source.index.stride(tile.along.name)
            transpose_tiles.transpose(tile, source.at(self.at.offset(each.source.index)), square, stride)
            # Rows find their place in the square as if it reached back to where the axes start.
            before = self.b.sub(0, self.b.add(self.b.mul(top, tile.width), left))
            self.at.arrays[each.square] = square.at(before)
        self.edges = (left, self.b.add(left, tile.width))
        if tile.nontemporal:
            self._tile_in_lines(tile, top)
        else:
            self._tile_rows(tile, top)
        self.at.arrays = whole

    def _tile_rows(self, tile: transpose_tiles.Tile, top: Value) -> None:
        with self.b.loop(top, self.b.add(top, tile.height)) as self.at.axes[tile.down.name]:
            self._row()

    def _tile_in_lines(self, tile: transpose_tiles.Tile, top: Value) -> None:
        """Write the rows of a tile by non-temporal stores, if they start at cache lines."""
        self.at.rows.clear()
        stores = [i for i in self.plan.kernel.instructions() if isinstance(i, Store)]
        places = [self.at.of(each.buffer, each.index).pointer for each in stores]
        whole = transpose_tiles.whole_lines(self.b, places)

        def rows(nontemporal: bool) -> None:
            self.code.nontemporal = nontemporal
            self._tile_rows(tile, top)

        self.b.choice(whole, lambda: rows(True), lambda: rows(False))

    # Loop stages.

    def enter(self, stage: Stage) -> list[Instruction]:
        """Before a loop stage: what does not change along cols. What does is left to do."""
        inside = loop_variant(self.plan.kernel, stage)
        moving = {id(instruction) for instruction in inside}
        self.at.lanes = 1
        for instruction in stage.body:
            if id(instruction) not in moving:
                self.code.write(instruction)
        self.at.lanes = self.plan.lanes
        self.code.hold_addresses(inside)
        self.attend(stage)
        return inside

    def attend(self, stage: Stage, prefetch_by: int = 0) -> None:
        """Prefetch the reads of a loop, so many elements ahead or, for 0, as far as the target says."""
        self._hold_next_row(stage)
        self.prefetch_by = prefetch_by
        self.prefetched = prefetched(self.plan, stage) if prefetch_by or self.b.target.prefetch_distance else []
        pipelines = PIPELINE_LOADS in self.plan.uses and self.edges is None
        self.pipelined = pipelined_loads(self.plan.kernel, stage, self.b.target) if pipelines else []

    def _loop_stage(self, stage: Stage) -> None:
        inside = self.enter(stage)
        self.flush_every = BLOCK if compute_bound(inside) else _FLUSH
        started = [self.start(each) for each in inside if isinstance(each, Reduce) or self.code.runs_along_lanes(each)]
        self.b.open_loop()
        if all(axis.size > 0 for axis in self.plan.kernel.cols):
            self._nest(inside, list(self.plan.kernel.cols), started)
        self.b.close_loop()
        self.at.lanes = 1
        for fold in started:
            if isinstance(fold.instruction, Reduce):
                self.code.values[fold.instruction.out] = self._finished(fold)

    def start(self, instruction: Reduce | Scan) -> LoopReduction:
        dtype = self.code.dtypes[instruction.value]
        if isinstance(instruction, Scan):
            kept_in = reductions.fold_dtype(instruction.op, dtype)
            return LoopReduction(instruction, kept_in, reductions.start(self.b, instruction.op, kept_in, 1))
        fold = LoopReduction(instruction, dtype, reductions.start(self.b, instruction.op, dtype, self.plan.lanes))
        if instruction.op == "sum" and dtype is torch.float32 and self.plan.kernel.col_count > 2 * self.flush_every:
            fold.f64_accumulator = self.b.const("f64", 0.0)
        return fold

    def _begin(
        self, first: Value, last: Value, step: int, started: list[LoopReduction], more: Sequence[Value] = ()
    ) -> tuple[Loop, list[Value]]:
        """A loop that carries reductions and `more`, and the values of those."""
        loop = self.b.begin(first, last, step, [*_carried(started), *more])
        return loop, _assign(started, loop.values)

    def _flush(self, started: list[LoopReduction]) -> None:
        """Add partial f32 sums to their f64 accumulators."""
        for fold in started:
            if fold.f64_accumulator is not None:
                fold.f64_accumulator = self._whole(fold, fold.f64_accumulator)
                fold.partial = reductions.start(self.b, "sum", fold.dtype, self.plan.lanes)

    def _whole(self, fold: LoopReduction, before: Value) -> Value:
        total = reductions.reduce_lanes(self.b, "sum", fold.dtype, fold.partial)
        return self.b.fadd(before, self.b.convert("fpext", total, "f64"))

    def _finished(self, fold: LoopReduction) -> Value:
        """The result of a reduction, once its loops are done."""
        if fold.f64_accumulator is not None:
            return self.b.convert("fptrunc", self._whole(fold, fold.f64_accumulator), "f32")
        assert isinstance(fold.instruction, Reduce)
        return reductions.reduce_lanes(self.b, fold.instruction.op, fold.dtype, fold.partial)

    def _hold_next_row(self, stage: Stage) -> None:
        """Compute, in the loop that prefetches it, the addresses of the next row's first reads."""
        self.next_row = []
        for load in self.plan.fetched if stage is asking(self.plan.kernel) else ():
            further = load.index.stride(self.plan.kernel.rows[-1].name) * self.plan.fetched_rows
            here = self.at.of_row(load.buffer, load.index)
            self.next_row.append(here.at(self.number(further)))

    def _fetch(self, column: Value) -> None:
        """Prefetch every cache line that a vector of this loop reads, each at its distance."""
        starts: list[tuple[Load, Value]] = []
        for load, row in zip(self.plan.fetched, self.next_row, strict=False):
            further = column if load.index.stride(self.at.vector_axis) == 1 else self.b.sub(0, column)
            starts.append((load, row.at(further).pointer))
        for load in self.prefetched:
            here = self.at.of(load.buffer, load.index).pointer
            distance = self.prefetch_by * self.plan.kernel.buffer(load.buffer).dtype.itemsize
            distance = (distance or self.b.target.prefetch_distance) * load.index.stride(self.at.vector_axis)
            starts.append((load, self.b.element(here, "i8", distance)))
        for load, start in starts:
            size = self.at.lanes * self.plan.kernel.buffer(load.buffer).dtype.itemsize
            for line in range(0, size, _CACHE_LINE):
                self.b.prefetch(self.b.element(start, "i8", line * load.index.stride(self.at.vector_axis)))

    def _nest(self, inside: list[Instruction], axes: list[Axis], started: list[LoopReduction]) -> None:
        """Loops over `axes`, the last in vectors; partial reductions are carried through."""
        if len(axes) <= 1:
            self._vectors(inside, axes[0] if axes else None, started)
            return
        loop, _ = self._begin(self.number(0), self.number(axes[0].size), 1, started)
        self.at.axes[axes[0].name] = loop.index
        self._nest(inside, axes[1:], started)
        outermost = len(axes) == len(self.plan.kernel.cols)
        if outermost or product(axis.size for axis in axes[1:]) >= _FLUSH_WORTH:
            self._flush(started)
        _assign(started, loop.end(*_carried(started)))

    def _vectors(self, inside: list[Instruction], axis: Axis | None, started: list[LoopReduction]) -> None:
        """The innermost loop, in whole vectors, and the overlapping last one."""
        for fold in started:
            if isinstance(fold.instruction, Scan):
                fold.partial = reductions.start(self.b, fold.instruction.op, fold.dtype, 1)
        size = axis.size if axis else 1
        name = axis.name if axis else ""
        full = size // self.at.lanes * self.at.lanes
        more = self.has_tail()
        overlaps = more and idempotent(inside) and not self.in_blocks
        if self.edges is not None:
            self.run(inside, name, *self.edges, started)
            return
        if self.plan.split is Split.COLS:
            most = self.number((size if overlaps else full) - self.at.lanes)
            column = self.b.mul(param("first"), self.at.lanes) if self.pipelined else _NOWHERE
            held = self._read_pipelined(name, column, most)
            loop = self.b.begin(param("first"), param("last"), 1, held, guard=True)
            column = self.b.mul(loop.index, self.at.lanes)
            held = self._read_pipelined(name, self.b.add(column, self.at.lanes) if self.pipelined else column, most)
            self.code.read = dict(zip(self.pipelined, loop.values, strict=True))
            self._point(inside, name, self._within(column, size) if overlaps else column, started)
            loop.end(*held)
        elif self.in_blocks or (any(fold.f64_accumulator for fold in started) and size > 2 * self.flush_every):
            block = block_of(self.at.lanes) if self.in_blocks else self.flush_every // self.at.lanes * self.at.lanes
            outer, _ = self._begin(self.number(0), self.number(full), block, started)
            stop = self.b.smin(self.b.add(outer.index, block), full)
            if self.in_blocks:
                self.begin_block(outer.index)
            self.run(inside, name, outer.index, stop, started)
            self._flush(started)
            _assign(started, outer.end(*_carried(started)))
        else:
            stop = self.number(size if overlaps else full)
            self.run(inside, name, self.number(0), stop, started, size if overlaps else None)
        if more and not overlaps:
            if self.in_blocks:
                self.begin_block(self.number(full))
            self.tail(inside, name, size, started)

    def begin_block(self, column: Value) -> None:
        """Before the block of a loop that begins at `column`."""

    def has_tail(self) -> bool:
        """Whether vectors leave a rest of the last axis; if that is not known, code for it does no harm."""
        rest = self.plan.width % self.at.lanes
        return is_symsize(rest) or rest > 0

    def number(self, value: Size) -> Value:
        return self.b.const("i64", value)

    def _within(self, column: Value, size: Size) -> Value:
        return self.b.smin(column, size - self.at.lanes)

    def run(
        self, inside: list[Instruction], name: str, first: Value, last: Value, started: list[LoopReduction],
        size: Size | None = None,
    ) -> None:  # fmt: skip
        """Vectors from `first` to `last`; with `size`, one that would reach past it starts earlier."""
        most = self.b.sub(last, self.at.lanes) if self.pipelined else last
        held = self._read_pipelined(name, first, most)
        loop, early = self._begin(first, last, self.at.lanes, started, held)
        held = self._read_pipelined(name, self.b.add(loop.index, self.at.lanes) if self.pipelined else first, most)
        self.code.read = dict(zip(self.pipelined, early, strict=True))
        self._point(inside, name, loop.index if size is None else self._within(loop.index, size), started)
        _assign(started, loop.end(*_carried(started), *held))

    def _read_pipelined(self, name: str, column: Value, most: Value) -> list[Value]:
        """The loads that the loop issues one vector early, at `column` or at the last one."""
        if self.pipelined:
            self.at.axes[name] = self.b.smin(column, most)
        return [self.code.load_raw(load.buffer, load.index) for load in self.pipelined]

    def tail(self, inside: list[Instruction], name: str, size: Size, started: list[LoopReduction]) -> None:
        """The last vector, its first lanes masked; with cols shared out, only by the part that ends there."""
        ends = self.b.when(param("ends", "i1")) if self.plan.split is Split.COLS else contextlib.nullcontext()
        with ends:
            self.code.mask = self._fresh_lanes(size % self.at.lanes)
            self._point(inside, name, self.number(size - self.at.lanes), started)
            self.code.mask = None

    def _fresh_lanes(self, fresh: Size) -> Value:
        """Which lanes of the last vector were not seen before: the last `fresh` ones."""
        if is_symsize(fresh):
            return self.b.icmp("sge", self.b.iota("i64", range(self.at.lanes)), self.at.lanes - fresh)
        return self.b.last_lanes(fresh, self.at.lanes)

    def _point(self, inside: list[Instruction], name: str, column: Value, started: list[LoopReduction]) -> None:
        """The body once, at `column` and the lanes after it."""
        if name:
            self.at.axes[name] = column
        self._fetch(column)
        by_name = {fold.instruction.out: fold for fold in started}
        self.code.products = {i.out: i.args for i in inside if isinstance(i, Compute) and i.op == "mul"}
        for instruction in inside:
            if isinstance(instruction, Reduce):
                fold = by_name[instruction.out]
                fold.partial = self.code.folded(instruction, fold.dtype, fold.partial)
            elif isinstance(instruction, Scan) and instruction.out in by_name:
                self.code.scan_lanes(instruction, by_name[instruction.out])
            else:
                self.code.write(instruction)
        self.code.read = {}

    def _clear(self) -> None:
        row_accumulators.clear(self.b, self.plan.accumulators, self.at.arrays)

    def _empty_blocks(self) -> None:
        row_accumulators.empty_blocks(self.b, self.plan.accumulators, self.at.arrays)

    def finish(self, parts: row_accumulators.CompiledParts | None = None) -> None:
        """Store the results of reductions over rows; with `parts`, reduce the parts in order first."""
        apart = self.plan.unit_axes if self.plan.split is Split.INDEPENDENT_ROWS else ()
        outs = {}
        for fold in (accumulator.instruction for accumulator in self.plan.accumulators):
            offset = self.at.add(self.number(fold.index.offset), self.at.terms(fold.index, apart))
            outs[fold.buffer] = self.at.arrays[fold.buffer].at(offset)
        row_accumulators.finish(self.b, self.plan.accumulators, self.at.arrays, outs, parts)


def _carried(started: list[LoopReduction]) -> list[Value]:
    """The values that a loop passes from one iteration to the next."""
    sums = [fold.f64_accumulator for fold in started if fold.f64_accumulator is not None]
    return [fold.partial for fold in started] + sums


def _assign(started: list[LoopReduction], values: Sequence[Value]) -> list[Value]:
    """Set reductions to what a loop passes on; the values that are left."""
    left = list(values)
    for fold in started:
        fold.partial = left.pop(0)
    for fold in started:
        if fold.f64_accumulator is not None:
            fold.f64_accumulator = left.pop(0)
    return left
