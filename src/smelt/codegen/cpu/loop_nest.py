"""Writes the loops of a planned kernel: `void part(ptr buffers, ptr mine, i64 first, i64 last, i1 ends)`.

A part runs the points `first … last` of whatever the plan shares out. Per row: what does not change along cols once,
as scalars, then each stage's loop nest with its innermost axis in vectors. The last vector of an axis that is no
multiple of the lanes overlaps the one before it, so nothing runs lane by lane:

    13 columns, 8 lanes:   0…7, then 5…12     (a fold ignores lanes 5…7 the second time)
"""

from collections.abc import Callable, Sequence
from dataclasses import field
from functools import reduce
from typing import TypeGuard

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu import row_accumulators, scans, scatters, transpose_tiles
from smelt.codegen.cpu.contiguous_runs import FAR, Run, RunMemory, Span, near
from smelt.codegen.cpu.online_loops import Fold, OnlineFolds
from smelt.codegen.cpu.online_softmax import BLOCK, block_of
from smelt.codegen.cpu.schedule import (
    Accumulator,
    SchedulePlan,
    Split,
    asking,
    compute_bound,
    idempotent,
    loop_variant,
    pipelined_loads,
    placing,
    prefetched,
)
from smelt.codegen.cpu.workspace import WorkspaceLayout
from smelt.codegen.llvm import reductions
from smelt.codegen.llvm.builder import SIGNED_LESS, Builder, LlvmValue, Loop
from smelt.codegen.llvm.math import OF_NEGATIVE
from smelt.codegen.llvm.scalars import cast, compute, constant, from_memory, memory_kind, to_memory
from smelt.ir.check_kernel import value_dtypes
from smelt.ir.kernel import (
    Accumulate,
    Axis,
    Cast,
    Compute,
    Const,
    Gather,
    Index,
    Instruction,
    Load,
    Position,
    Reduce,
    Running,
    Scan,
    Scatter,
    Stage,
    Store,
)
from smelt.symbolic.shapes import Size, product
from smelt.symbolic.symsize import is_symsize

# Elements summed in f32, unless it would be noticed, before the sum moves on into f64: sums of equal ones drift.
_FLUSH = 512
_FLUSH_WORTH = 256
_CACHE_LINE = 64
_NOWHERE = LlvmValue("0", "i64")


@dataclass(slots=True)
class Body:
    """The state of writing one part."""

    b: Builder
    plan: SchedulePlan
    layout: WorkspaceLayout
    dtypes: dict[str, torch.dtype]
    pointers: dict[str, str] = field(default_factory=dict)
    axes: dict[str, LlvmValue] = field(default_factory=dict)  # axis → where the loops stand now
    values: dict[str, LlvmValue] = field(default_factory=dict)
    rows_at: dict[tuple[str, Index], str] = field(default_factory=dict)  # addresses that hold for the whole row
    edges: tuple[LlvmValue, LlvmValue] | None = None  # of the tile being written, along the vector axis
    point: LlvmValue = _NOWHERE  # of the loop over rows, flattened
    lanes: int = 1
    products: dict[str, tuple[str, ...]] = field(default_factory=dict)  # of the loop being written: name → factors
    next_row: list[str] = field(default_factory=list)  # addresses of what the next row begins with
    prefetched: list[Load] = field(default_factory=list)  # reads of the loop being written to prefetch
    flush_every: int = BLOCK  # elements summed in f32, in the loop being written, before the sum moves on into f64
    prefetch_by: int = 0  # how many elements before; 0 for as many bytes as the target says
    before_block: Callable[[LlvmValue], None] | None = None  # what a loop does before each block, given where it begins
    pipelined: list[Load] = field(default_factory=list)  # reads of the loop being written to do one vector before
    read: dict[Load, LlvmValue] = field(default_factory=dict)  # what they gave for the vector being written
    below: frozenset[str] = frozenset()  # values that are never above zero
    iotas: dict[str, tuple[LlvmValue, int]] = field(default_factory=dict)  # positions: the first lane, and the step
    spans: dict[str, Span] = field(default_factory=dict)  # masks that are true from one lane to another
    nontemporal: bool = False  # whether what is stored now bypasses the cache
    mask: LlvmValue | None = None  # lanes that count, in a last vector that overlaps

    @classmethod
    def of(cls, b: Builder, plan: SchedulePlan, layout: WorkspaceLayout) -> "Body":
        below = plan.never_positive | ({plan.online.distance} if plan.online else set())
        return cls(b, plan, layout, value_dtypes(plan.kernel), below=below)

    # Rows.

    def write(self) -> None:
        """The whole part, from loading pointers to the end of its loops."""
        self.load_pointers()
        first, last = LlvmValue("%first", "i64"), LlvmValue("%last", "i64")
        rows = self.plan.kernel.rows
        match self.plan.split:
            case Split.INDEPENDENT_ROWS if self.plan.accumulators or self.plan.units < len(rows):
                self._each(self.plan.unit_axes, first, last, self._unit)
            case Split.COLS:
                everything = self.number(product(axis.size for axis in rows))
                self._each(rows, self.number(0), everything, self._row)
            case Split.TILES:
                self._each(self.plan.tile_axes, first, last, self._tile)
                if self.plan.tile is not None and self.plan.tile.nontemporal:
                    self.b.emit("fence seq_cst")
            case Split.SCATTER_BUCKETS:
                self._clear()
                self._each(rows, self.number(0), self.number(self.plan.kernel.row_count), self._placed_row)
                self._empty_blocks()
            case _:
                self._clear()
                self._each(rows, first, last, self._row)
                self._empty_blocks()
        self.b.emit("ret void")

    def load_pointers(self) -> None:
        for number, buffer in enumerate(self.plan.kernel.parameters):
            slot = self.b.element("%buffers", "ptr", number)
            self.pointers[buffer.name] = self.b.op(f"load ptr, ptr {slot}", "ptr", 1).name
        for name, offset in self.layout.offsets.items():
            self.pointers[name] = self.b.element("%mine", "i8", offset)

    def _each(self, axes: Sequence[Axis], first: LlvmValue, last: LlvmValue, write: Callable[[], None]) -> None:
        """A loop over the flattened points of `axes`, their positions found by division."""
        if any(axis.size == 0 for axis in axes):
            return
        if not axes and not first.name.startswith("%"):
            write()
            return
        loop = self.b.begin(first, last, 1, (), guard=first.name.startswith("%"))
        left = loop.index
        for number, axis in enumerate(reversed(axes)):
            if number == len(axes) - 1:
                self.axes[axis.name] = left
            else:
                self.axes[axis.name] = self.b.binary("urem", left, axis.size)
                left = self.b.binary("udiv", left, axis.size)
        self.point = loop.index
        write()
        loop.end()

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
        mine, after = b.new_label("mine"), b.new_label("after")
        self.rows_at.clear()
        self.values.clear()
        self.lanes = 1
        for instruction in placing(self.plan.kernel):
            self._instruction(instruction)
        (scatter,) = (i for i in self.plan.kernel.instructions() if isinstance(i, Scatter))
        number = scatters.bucket(b, [(self.values[place], stride) for place, stride, _ in scatter.by])
        first, last = LlvmValue("%first", "i64"), LlvmValue("%last", "i64")
        b.branch(b.and_(b.icmp("sge", number, first), b.icmp("slt", number, last)), mine, after)
        b.label(mine)
        self._stages()
        b.jump(after)
        b.label(after)
        self._flush_blocks()

    def _row(self) -> None:
        self._stages()
        self._flush_blocks()

    def _flush_blocks(self) -> None:
        if any(accumulator.blocked for accumulator in self.plan.accumulators):
            self._empty_blocks_sometimes()

    def _stages(self) -> None:
        self.rows_at.clear()
        self.values.clear()
        found = self.plan.online
        as_one = (found.first, found.second, found.third) if found else ()
        online = OnlineFolds(self, found) if found else None
        for stage in self.plan.kernel.stages:
            if online and any(stage is each for each in as_one):
                online.write(stage)
            elif stage.loop:
                self.loop_stage(stage)
            else:
                self.lanes = 1
                for instruction in stage.body:
                    self._instruction(instruction)

    def _tile(self) -> None:
        """One tile: its reads transposed, then its rows."""
        tile = self.plan.tile
        assert tile is not None
        top, left = (
            transpose_tiles.first_of(self.b, self.axes[number.name], side, axis.size)
            for axis, number, side in zip((tile.down, tile.along), tile.blocks, (tile.height, tile.width), strict=True)
        )
        self.axes[tile.down.name], self.axes[tile.along.name] = top, left
        whole = dict(self.pointers)
        for each in tile.transposed:
            kind = self.layout.kinds[each.square]
            corner = self._add(self._row_offset(each.source.index), self._col_offset(each.source.index))
            source = self.b.element(self.pointers[each.source.buffer], kind, corner)
            stride = each.source.index.stride(tile.along.name)
            transpose_tiles.transpose(self.b, tile, source, self.pointers[each.square], kind, stride)
            # Rows find their place in the square as if it reached back to where the axes start.
            before = self.b.sub(0, self.b.add(self.b.mul(top, tile.width), left))
            self.pointers[each.square] = self.b.element(self.pointers[each.square], kind, before)
        self.edges = (left, self.b.add(left, tile.width))
        if tile.nontemporal:
            self._tile_in_lines(tile, top)
        else:
            self._tile_rows(tile, top)
        self.pointers = whole

    def _tile_rows(self, tile: transpose_tiles.Tile, top: LlvmValue) -> None:
        loop = self.b.begin(top, self.b.add(top, tile.height), 1, (), guard=False)
        self.axes[tile.down.name] = loop.index
        self._row()
        loop.end()

    def _tile_in_lines(self, tile: transpose_tiles.Tile, top: LlvmValue) -> None:
        """Its rows by non-temporal stores, if what they write begins where cache lines do."""
        self.rows_at.clear()
        stores = [i for i in self.plan.kernel.instructions() if isinstance(i, Store)]
        whole = transpose_tiles.whole_lines(self.b, [self._address(each.buffer, each.index) for each in stores])
        past, through, after = (self.b.new_label(stem) for stem in ("past", "through", "after"))
        self.b.branch(whole, past, through)
        for label, self.nontemporal in ((past, True), (through, False)):
            self.b.label(label)
            self._tile_rows(tile, top)
            self.b.jump(after)
        self.b.label(after)

    # Loop stages.

    def enter(self, stage: Stage) -> list[Instruction]:
        """Before a loop stage: what does not change along cols. What does is left to do."""
        inside = loop_variant(self.plan.kernel, stage)
        moving = {id(instruction) for instruction in inside}
        self.lanes = 1
        for instruction in stage.body:
            if id(instruction) not in moving:
                self._instruction(instruction)
        self.lanes = self.plan.lanes
        self._hold_addresses(inside)
        self.attend(stage)
        return inside

    def attend(self, stage: Stage, prefetch_by: int = 0) -> None:
        """What a loop reads before it comes there; asked for so many elements before or, for 0, as the target says."""
        self._hold_next_row(stage)
        self.prefetch_by = prefetch_by
        self.prefetched = prefetched(self.plan, stage) if prefetch_by or self.b.target.prefetch_distance else []
        pipelines = self.plan.pipelines_loads and self.edges is None
        self.pipelined = pipelined_loads(self.plan.kernel, stage, self.b.target) if pipelines else []

    def loop_stage(self, stage: Stage) -> None:
        inside = self.enter(stage)
        self.flush_every = BLOCK if compute_bound(inside) else _FLUSH
        started = [self.start(each) for each in inside if isinstance(each, Reduce) or self._runs_along_lanes(each)]
        self.b.open_loop()
        if all(axis.size > 0 for axis in self.plan.kernel.cols):
            self._nest(inside, list(self.plan.kernel.cols), started)
        self.b.close_loop()
        self.lanes = 1
        for fold in started:
            if isinstance(fold.instruction, Reduce):
                self.values[fold.instruction.out] = self._finish_reduction(fold)

    def start(self, instruction: Reduce | Scan) -> Fold:
        dtype = self.dtypes[instruction.value]
        if isinstance(instruction, Scan):
            kept_in = scans.fold_dtype(instruction, dtype)
            return Fold(instruction, kept_in, reductions.start(self.b, instruction.op, kept_in, 1))
        fold = Fold(instruction, dtype, reductions.start(self.b, instruction.op, dtype, self.plan.lanes))
        if instruction.op == "sum" and dtype is torch.float32 and self.plan.kernel.col_count > 2 * self.flush_every:
            fold.f64_accumulator = self.b.const("f64", 0.0)
        return fold

    def _hold_addresses(self, instructions: Sequence[Instruction]) -> None:
        """Work out before the loops what each access adds for its row."""
        for instruction in instructions:
            if isinstance(instruction, Load | Gather | Store | Scatter):
                self._row_address(instruction.buffer, instruction.index)
            elif isinstance(instruction, Scan) and not self._runs_along_lanes(instruction):
                state = self._state(instruction)
                self._row_address(state.name, state.index)
            elif isinstance(instruction, Accumulate):
                accumulator = self._accumulator(instruction)
                self._row_address(accumulator.arrays[-1][0], accumulator.index)

    def _hold_next_row(self, stage: Stage) -> None:
        """In the loop that asks for it, where each read lies that the next row begins with."""
        self.next_row = []
        for load in self.plan.fetched if stage is asking(self.plan.kernel) else ():
            further = load.index.stride(self.plan.kernel.rows[-1].name) * self.plan.fetched_rows
            here = self._row_address(load.buffer, load.index)
            self.next_row.append(self.b.element(here, self.layout.kinds[load.buffer], self.number(further)))

    def _fetch(self, column: LlvmValue) -> None:
        """Every cache line of what a vector of this loop reads, as far ahead as each is prefetched."""
        starts: list[tuple[Load, str]] = []
        for load, start in zip(self.plan.fetched, self.next_row, strict=False):
            further = column if load.index.stride(self._vector_axis) == 1 else self.b.sub(0, column)
            starts.append((load, self.b.element(start, self.layout.kinds[load.buffer], further)))
        for load in self.prefetched:
            here = self._address(load.buffer, load.index)
            distance = self.prefetch_by * self.plan.kernel.buffer(load.buffer).dtype.itemsize
            distance = (distance or self.b.target.prefetch_distance) * load.index.stride(self._vector_axis)
            starts.append((load, self.b.element(here, "i8", distance)))
        for load, start in starts:
            size = self.lanes * self.plan.kernel.buffer(load.buffer).dtype.itemsize
            for line in range(0, size, _CACHE_LINE):
                self.b.prefetch(self.b.element(start, "i8", line * load.index.stride(self._vector_axis)))

    def _nest(self, inside: list[Instruction], axes: list[Axis], started: list[Fold]) -> None:
        """Loops over `axes`, the last in vectors; partial folds are carried through."""
        if len(axes) <= 1:
            self._vectors(inside, axes[0] if axes else None, started)
            return
        loop = self._begin(self.number(0), self.number(axes[0].size), 1, started)
        self.axes[axes[0].name] = loop.index
        self._nest(inside, axes[1:], started)
        outermost = len(axes) == len(self.plan.kernel.cols)
        if outermost or product(axis.size for axis in axes[1:]) >= _FLUSH_WORTH:
            self._flush(started)
        self._end(loop, started)

    def _vectors(self, inside: list[Instruction], axis: Axis | None, started: list[Fold]) -> None:
        """The innermost loop, in whole vectors, and the overlapping last one."""
        for fold in started:
            if isinstance(fold.instruction, Scan):
                fold.partial = reductions.start(self.b, fold.instruction.op, fold.dtype, 1)
        size = axis.size if axis else 1
        name = axis.name if axis else ""
        full = size // self.lanes * self.lanes
        more = self.has_tail()
        overlaps = more and idempotent(inside) and self.before_block is None
        if self.edges is not None:
            self.run(inside, name, *self.edges, started)
            return
        if self.plan.split is Split.COLS:
            most = self.number((size if overlaps else full) - self.lanes)
            column = self.b.mul(LlvmValue("%first", "i64"), self.lanes) if self.pipelined else _NOWHERE
            held = self._read_pipelined(name, column, most)
            loop = self.b.begin(LlvmValue("%first", "i64"), LlvmValue("%last", "i64"), 1, held, guard=True)
            column = self.b.mul(loop.index, self.lanes)
            held = self._read_pipelined(name, self.b.add(column, self.lanes) if self.pipelined else column, most)
            self.read = dict(zip(self.pipelined, loop.values, strict=True))
            self._point(inside, name, self._within(column, size) if overlaps else column, started)
            loop.end(*held)
        elif self.before_block or (any(fold.f64_accumulator for fold in started) and size > 2 * self.flush_every):
            block = block_of(self.lanes) if self.before_block else self.flush_every // self.lanes * self.lanes
            outer = self._begin(self.number(0), self.number(full), block, started)
            stop = self.b.intrinsic("llvm.smin", self.b.add(outer.index, block), self.number(full))
            self._announce(outer.index)
            self.run(inside, name, outer.index, stop, started)
            self._flush(started)
            self._end(outer, started)
        else:
            stop = self.number(size if overlaps else full)
            self.run(inside, name, self.number(0), stop, started, size if overlaps else None)
        if more and not overlaps:
            self._announce(self.number(full))
            self.tail(inside, name, size, started)

    def _announce(self, column: LlvmValue) -> None:
        if self.before_block is not None:
            self.before_block(column)

    def has_tail(self) -> bool:
        """Whether vectors leave a rest of the last axis; if that is not known, code for it does no harm."""
        rest = self.plan.width % self.lanes
        return is_symsize(rest) or rest > 0

    def number(self, value: Size) -> LlvmValue:
        return self.b.const("i64", value)

    def _within(self, column: LlvmValue, size: Size) -> LlvmValue:
        return self.b.intrinsic("llvm.smin", column, self.number(size - self.lanes))

    def run(
        self,
        inside: list[Instruction],
        name: str,
        first: LlvmValue,
        last: LlvmValue,
        started: list[Fold],
        size: Size | None = None,
    ) -> None:
        """Vectors from `first` to `last`; with `size`, one that would reach past it starts earlier."""
        most = self.b.sub(last, self.lanes) if self.pipelined else last
        held = self._read_pipelined(name, first, most)
        loop = self.b.begin(first, last, self.lanes, [*self._carried(started), *held], guard=False)
        self._assign(started, loop.values)
        held = self._read_pipelined(name, self.b.add(loop.index, self.lanes) if self.pipelined else first, most)
        self.read = dict(zip(self.pipelined, loop.values[len(loop.values) - len(held) :], strict=True))
        self._point(inside, name, loop.index if size is None else self._within(loop.index, size), started)
        self._assign(started, loop.end(*self._carried(started), *held))

    def _read_pipelined(self, name: str, column: LlvmValue, most: LlvmValue) -> list[LlvmValue]:
        """What the loop reads one vector before, at `column` or at the last there is."""
        if self.pipelined:
            self.axes[name] = self.b.intrinsic("llvm.smin", column, most)
        return [self._load_raw(load.buffer, load.index) for load in self.pipelined]

    def tail(self, inside: list[Instruction], name: str, size: Size, started: list[Fold]) -> None:
        """The last vector, its first lanes masked; with cols shared out, only by the part that ends there."""
        done = self.b.new_label("done")
        if self.plan.split is Split.COLS:
            last = self.b.new_label("last")
            self.b.branch(LlvmValue("%ends", "i1"), last, done)
            self.b.label(last)
        self.mask = self._fresh_lanes(size % self.lanes)
        self._point(inside, name, self.number(size - self.lanes), started)
        self.mask = None
        if self.plan.split is Split.COLS:
            self.b.jump(done)
            self.b.label(done)

    def _fresh_lanes(self, fresh: Size) -> LlvmValue:
        """Which lanes of the last vector were not seen before: the last `fresh` ones."""
        if is_symsize(fresh):
            return self.b.icmp("sge", self.b.iota("i64", range(self.lanes)), self.lanes - fresh)
        flags = ", ".join("i1 true" if lane >= self.lanes - fresh else "i1 false" for lane in range(self.lanes))
        return LlvmValue(f"<{flags}>", "i1", self.lanes)

    def _point(self, inside: list[Instruction], name: str, column: LlvmValue, started: list[Fold]) -> None:
        """The body once, at `column` and the lanes after it."""
        if name:
            self.axes[name] = column
        self._fetch(column)
        by_name = {fold.instruction.out: fold for fold in started}
        self.products = {i.out: i.args for i in inside if isinstance(i, Compute) and i.op == "mul"}
        for instruction in inside:
            if isinstance(instruction, Reduce):
                fold = by_name[instruction.out]
                fold.partial = self._folded(instruction, fold.dtype, fold.partial)
            elif isinstance(instruction, Scan) and instruction.out in by_name:
                self._scan_lanes(instruction, by_name[instruction.out])
            else:
                self._instruction(instruction)
        self.read = {}

    def _folded(self, instruction: Reduce | Accumulate, dtype: torch.dtype, partial: LlvmValue) -> LlvmValue:
        """A fold with one more value; a product goes into a sum in one step, rounded once less."""
        factors = self.products.get(instruction.value)
        if instruction.op == "sum" and factors and dtype in (torch.float32, torch.float64) and self.mask is None:
            return self.b.fma(self._vector(factors[0]), self._vector(factors[1]), partial)
        value = self._counted(self._vector(instruction.value), instruction.op, dtype)
        return reductions.combine(self.b, instruction.op, dtype, partial, value)

    def _counted(self, value: LlvmValue, op: Running, dtype: torch.dtype) -> LlvmValue:
        """`value`, neutral in lanes that were seen before."""
        if self.mask is None:
            return value
        return self.b.select(self.mask, value, reductions.start(self.b, op, dtype, self.lanes))

    # Carrying folds through loops.

    def _carried(self, started: list[Fold]) -> list[LlvmValue]:
        sums = [fold.f64_accumulator for fold in started if fold.f64_accumulator is not None]
        return [fold.partial for fold in started] + sums

    def _assign(self, started: list[Fold], values: Sequence[LlvmValue]) -> None:
        left = list(values)
        for fold in started:
            fold.partial = left.pop(0)
        for fold in started:
            if fold.f64_accumulator is not None:
                fold.f64_accumulator = left.pop(0)

    def _begin(self, first: LlvmValue, last: LlvmValue, step: int, started: list[Fold]) -> Loop:
        loop = self.b.begin(first, last, step, self._carried(started), guard=False)
        self._assign(started, loop.values)
        return loop

    def _end(self, loop: Loop, started: list[Fold]) -> None:
        self._assign(started, loop.end(*self._carried(started)))

    def _flush(self, started: list[Fold]) -> None:
        for fold in started:
            if fold.f64_accumulator is not None:
                total = reductions.fold_lanes(self.b, "sum", fold.dtype, fold.partial)
                fold.f64_accumulator = self.b.fadd(fold.f64_accumulator, self.b.convert("fpext", total, "f64"))
                fold.partial = reductions.start(self.b, "sum", fold.dtype, self.plan.lanes)

    def _finish_reduction(self, fold: Fold) -> LlvmValue:
        assert isinstance(fold.instruction, Reduce)
        total = reductions.fold_lanes(self.b, fold.instruction.op, fold.dtype, fold.partial)
        if fold.f64_accumulator is None:
            return total
        whole = self.b.fadd(fold.f64_accumulator, self.b.convert("fpext", total, "f64"))
        return self.b.convert("fptrunc", whole, "f32")

    # Instructions.

    def _vector(self, name: str) -> LlvmValue:
        return self.b.splat(self.values[name], self.lanes)

    def _instruction(self, instruction: Instruction) -> None:
        b = self.b
        match instruction:
            case Const(out, value, dtype):
                self.values[out] = constant(b, value, dtype)
            case Load(out, buffer, index):
                raw = self.read.get(instruction) or self._load_raw(buffer, index)
                self.values[out] = from_memory(b, raw, self.dtypes[out])
            case Gather(out, buffer, index, by):
                self.values[out] = from_memory(b, self._gather_raw(buffer, index, by), self.dtypes[out])
            case Position(out, index):
                self.values[out] = self._position(out, index)
            case Compute(out, op, (left, right), _) if (mask := self._by_position(out, op, left, right)) is not None:
                self.values[out] = mask
            case Compute(out, op, args, _):  # comparisons give bools: what counts is the dtype they compare
                vectors = [self._vector(arg) for arg in args]
                short = OF_NEGATIVE.get(op) if self.below.issuperset(args) else None
                self.values[out] = short(b, *vectors) if short else compute(b, op, vectors, self.dtypes[args[-1]])
            case Cast(out, source, dtype):
                self.values[out] = cast(b, self._vector(source), self.dtypes[source], dtype)
            case Store(buffer, index, source):
                self._store(buffer, index, to_memory(b, self._vector(source), self.dtypes[source]))
            case Scan():
                self._scan(instruction)
            case Accumulate():
                self._accumulate(instruction)
            case Scatter():
                self._scatter(instruction)

    def _position(self, out: str, index: Index) -> LlvmValue:
        total = self._row_offset(index)
        total = self._add(total, self._col_offset(index))
        stride = index.stride(self._vector_axis)
        self.iotas.pop(out, None)
        if self.lanes == 1 or stride == 0:
            return total
        if is_symsize(stride):
            iota = self.b.mul(self.b.iota("i64", range(self.lanes)), stride)
        else:
            iota = self.b.iota("i64", [lane * stride for lane in range(self.lanes)])
            self.iotas[out] = (total, stride)
        return self.b.add(self.b.splat(total, self.lanes), iota)

    def _by_position(self, out: str, op: str, left: str, right: str) -> LlvmValue | None:
        """The mask of a position beside one number for all lanes, or of several such; None for anything else."""
        self.spans.pop(out, None)
        span = self._both(left, right) if op == "and" else None
        if op in SIGNED_LESS and left in self.iotas and self.values[right].lanes == 1:
            first, step = self.iotas[left]
            apart = near(self.b, self.b.sub(self.values[right], first))
            span = Span.of(self.b, op, apart) if step == 1 else None
            if span is None and abs(step) * self.lanes < FAR:
                return self.b.icmp(SIGNED_LESS[op], self.b.iota("i32", range(0, step * self.lanes, step)), apart)
        if span is None:
            return None
        self.spans[out] = span
        return span.mask(self.b, self.lanes)

    def _both(self, left: str, right: str) -> Span | None:
        """The lanes that two masks have in common, where one at least is a span and the other the same for all."""
        if left in self.spans and right in self.spans:
            return self.spans[left].both(self.b, self.spans[right])
        for one, other in ((left, right), (right, left)):
            if one in self.spans and self.values[other].lanes == 1:
                return self.spans[one].where(self.b, self.values[other])
        return None

    @property
    def _vector_axis(self) -> str:
        return self.plan.kernel.cols[-1].name if self.plan.kernel.cols else ""

    def _add(self, left: LlvmValue, right: LlvmValue | None) -> LlvmValue:
        if right is None:
            return left
        return self.b.add(left, right)

    def _terms(self, index: Index, axes: Sequence[Axis]) -> LlvmValue | None:
        total: LlvmValue | None = None
        for axis in axes:
            stride = index.stride(axis.name)
            if stride:
                step = self.axes[axis.name] if stride == 1 else self.b.mul(self.axes[axis.name], stride)
                total = step if total is None else self.b.add(total, step)
        return total

    def _row_offset(self, index: Index) -> LlvmValue:
        base = self.number(index.offset)
        total = self._terms(index, self.plan.kernel.rows)
        if total is None:
            return base
        return self.b.add(total, base) if index.offset else total

    def _col_offset(self, index: Index) -> LlvmValue | None:
        return self._terms(index, self.plan.kernel.cols)

    def _row_address(self, array: str, index: Index) -> str:
        """Where the row's part of `index` lies."""
        key = (array, index)
        if key not in self.rows_at:
            kind = self.layout.kinds[array]
            self.rows_at[key] = self.b.element(self.pointers[array], kind, self._row_offset(index))
        return self.rows_at[key]

    def _address(self, array: str, index: Index) -> str:
        offset = self._col_offset(index)
        base = self._row_address(array, index)
        return base if offset is None else self.b.element(base, self.layout.kinds[array], offset)

    def _lane_addresses(self, array: str, index: Index, stride: Size) -> list[str]:
        first = self._address(array, index)
        kind = self.layout.kinds[array]
        if is_symsize(stride):
            step = self.number(stride)
            return [first, *(self.b.element(first, kind, self.b.mul(step, lane)) for lane in range(1, self.lanes))]
        return [self.b.element(first, kind, lane * stride) for lane in range(self.lanes)]

    def _lowest(self, array: str, index: Index) -> str:
        """Where the last lane lies, for lanes that run down through memory."""
        return self.b.element(self._address(array, index), self.layout.kinds[array], 1 - self.lanes)

    def _load_raw(self, array: str, index: Index) -> LlvmValue:
        kind = self.layout.kinds[array]
        stride = index.stride(self._vector_axis) if self.lanes > 1 else 0
        if stride == 0:
            return self.b.load(self._address(array, index), kind)
        if stride == 1:
            return self.b.load(self._address(array, index), kind, self.lanes)
        if stride == -1:
            return self.b.reverse(self.b.load(self._lowest(array, index), kind, self.lanes))
        return self.b.gathered([self.b.load(place, kind) for place in self._lane_addresses(array, index, stride)])

    def _gather_raw(self, array: str, index: Index, by: Sequence[tuple[str, Size, Size]]) -> LlvmValue:
        """As a load whose row begins elsewhere, where the places are one for all lanes; otherwise lane by lane."""
        b, kind = self.b, self.layout.kinds[array]
        base = self._add(self._row_offset(index), self._col_offset(index))
        apart = [each for each in by if self.values[each[0]].lanes > 1]
        wanted: LlvmValue | None = None
        for name, step, extent in by:
            if self.values[name].lanes == 1:
                base = b.add(base, b.mul(self._held(self.values[name], extent), step))
                inside = b.icmp("ult", self.values[name], extent)
                wanted = inside if wanted is None else b.and_(wanted, inside)
        stride = index.stride(self._vector_axis) if self.lanes > 1 else 0
        alone = self.plan.reads_runs and stride == 0 and len(apart) == 1
        if alone and (run := Run.of(*apart[0], self.iotas)) is not None:
            memory = RunMemory(self.pointers[array], kind, self.plan.kernel.buffer(array).size, base)
            return run.read(b, memory, wanted, self.lanes)
        first = b.element(self.pointers[array], kind, base)
        if not apart and stride in (0, 1):
            return b.load(first, kind, self.lanes if stride else 1)
        iota = b.mul(b.iota("i64", range(self.lanes)), stride)
        offsets = [b.mul(self._held(self.values[name], extent), step) for name, step, extent in apart]
        total = reduce(b.add, offsets, iota)
        places = [b.element(first, kind, b.extract(total, lane)) for lane in range(self.lanes)]
        return b.gathered([b.load(place, kind) for place in places])

    def _held(self, value: LlvmValue, extent: Size) -> LlvmValue:
        """A place within 0 … extent - 1: the last, for one outside, which as an unsigned number is above it."""
        return self.b.intrinsic("llvm.umin", value, self.b.splat(self.number(extent - 1), value.lanes))

    def _store(self, array: str, index: Index, raw: LlvmValue) -> None:
        stride = index.stride(self._vector_axis) if self.lanes > 1 else 0
        if stride == 0:
            self.b.store(self.b.extract(raw, 0), self._address(array, index))
        elif stride == 1 and self.mask is None:
            write = self.b.store_nontemporal if self.nontemporal else self.b.store
            write(raw, self._address(array, index))
        elif stride == -1 and self.mask is None:
            self.b.store(self.b.reverse(raw), self._lowest(array, index))
        elif self.mask is not None and is_symsize(self.plan.width % self.lanes):
            for lane, place in enumerate(self._lane_addresses(array, index, stride)):
                old, new = self.b.load(place, raw.kind), self.b.extract(raw, lane)
                self.b.store(self.b.select(self.b.extract(self.mask, lane), new, old), place)
        else:
            skipped = 0 if self.mask is None else self.lanes - self.plan.width % self.lanes
            for lane, place in enumerate(self._lane_addresses(array, index, stride)):
                if lane >= skipped:
                    self.b.store(self.b.extract(raw, lane), place)

    def _scatter(self, instruction: Scatter) -> None:
        b = self.b
        inside = LlvmValue("true", "i1")
        for name, _, extent in instruction.by:
            inside = b.and_(inside, b.icmp("ult", self.values[name], self.number(extent)))
        scatters.ScatterPut(
            instruction.op,
            self.plan.kernel.buffer(instruction.buffer).dtype,
            self.dtypes[instruction.value],
            self._vector(instruction.value),
            self._address(instruction.buffer, instruction.index),
            instruction.index.stride(self._vector_axis),
            scatters.offset(b, [(self.values[name], stride) for name, stride, _ in instruction.by]),
            inside,
            self.mask,
            self.pointers[scatters.nowhere(instruction.buffer)],
        ).write(b)

    # Folds up to a point.

    def _runs_along_lanes(self, instruction: Instruction) -> TypeGuard[Scan]:
        return isinstance(instruction, Scan) and instruction.axis == self._vector_axis

    def _scan_lanes(self, scan: Scan, fold: Fold) -> None:
        given = self.dtypes[scan.value]
        value = self._counted(cast(self.b, self._vector(scan.value), given, fold.dtype), scan.op, fold.dtype)
        found, fold.partial = scans.run_lanes(self.b, scan.op, fold.dtype, fold.partial, value)
        self.values[scan.out] = cast(self.b, found, fold.dtype, given)

    def _scan(self, scan: Scan) -> None:
        """What the points before this one came to, which is nothing where the axis begins, folded with its value."""
        b, state, given = self.b, self._state(scan), self.dtypes[scan.value]
        value = self._counted(cast(b, self._vector(scan.value), given, state.dtype), scan.op, state.dtype)
        place = self._address(state.name, state.index)
        kept = from_memory(b, b.load(place, self.layout.kinds[state.name], self.lanes), state.dtype)
        begins = b.icmp("eq", self.axes[scan.axis], 0)
        before = b.select(begins, reductions.start(b, scan.op, state.dtype, self.lanes), kept)
        found = reductions.run_on(b, scan.op, state.dtype, before, value)
        after = found if self.mask is None else b.select(self.mask, found, kept)
        b.store(to_memory(b, after, state.dtype), place)
        self.values[scan.out] = cast(b, found, state.dtype, given)

    def _state(self, scan: Scan) -> scans.State:
        return scans.State.of(scan, self.dtypes[scan.value], self.plan.kernel.cols)

    # Folds over rows.

    def _accumulator(self, instruction: Accumulate) -> Accumulator:
        return next(a for a in self.plan.accumulators if a.instruction.buffer == instruction.buffer)

    def _accumulate(self, instruction: Accumulate) -> None:
        accumulator = self._accumulator(instruction)
        array, dtype = accumulator.arrays[-1]
        old = from_memory(self.b, self._load_raw(array, accumulator.index), dtype)
        if accumulator.index.stride(self._vector_axis) and dtype is accumulator.value_dtype:
            new = self._folded(instruction, dtype, old)
        else:
            value = self._counted(self._vector(instruction.value), instruction.op, accumulator.value_dtype)
            if accumulator.index.stride(self._vector_axis) == 0:
                value = reductions.fold_lanes(self.b, instruction.op, accumulator.value_dtype, value)
            given = cast(self.b, value, accumulator.value_dtype, dtype)
            new = reductions.combine(self.b, instruction.op, dtype, old, given)
        mask, self.mask = self.mask, None
        self._store(array, accumulator.index, to_memory(self.b, new, dtype))
        self.mask = mask

    def _clear(self) -> None:
        for accumulator in self.plan.accumulators:
            row_accumulators.clear(self.b, accumulator, self.pointers)

    def _empty_blocks(self) -> None:
        for accumulator in self.plan.accumulators:
            if accumulator.blocked:
                row_accumulators.empty_block(self.b, accumulator, self.pointers)

    def _empty_blocks_sometimes(self) -> None:
        """After every so many rows."""
        b = self.b
        full, after = b.new_label("full"), b.new_label("after")
        count = b.and_(self.point, row_accumulators.BLOCK_ROWS - 1)
        b.branch(b.icmp("eq", count, row_accumulators.BLOCK_ROWS - 1), full, after)
        b.label(full)
        self._empty_blocks()
        b.jump(after)
        b.label(after)

    def finish(self, parts: row_accumulators.Parts | None = None) -> None:
        """Store what the folds over rows came to; with `parts`, folded over those in order first."""
        for accumulator in self.plan.accumulators:
            wanted = self.plan.kernel.buffer(accumulator.instruction.buffer).dtype
            place = self.b.element(
                self.pointers[accumulator.instruction.buffer], memory_kind(wanted), self._unit_offset(accumulator)
            )
            row_accumulators.finish(self.b, accumulator, self.pointers, place, wanted, parts)

    def _unit_offset(self, accumulator: Accumulator) -> LlvmValue:
        """What the axes shared out between threads add to the place of a result."""
        index = accumulator.instruction.index
        base = self.number(index.offset)
        apart = self.plan.unit_axes if self.plan.split is Split.INDEPENDENT_ROWS else ()
        return self._add(base, self._terms(index, apart))
