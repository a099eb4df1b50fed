"""`PhaseBody` writes one grid of a plan over the primitives of `Simt`.

    row, first col      from the block and the thread
    row stages          by every thread of the team; stored by its first
    loop stages         tile by tile: load, compute, store; reductions first in each thread, then between the threads
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.base.errors import SmeltError
from smelt.codegen.gpu.grid_plan import Along, PhasePlan
from smelt.codegen.gpu.scatters.scatter_updates import put
from smelt.codegen.gpu.simt import Mask, Simt, both
from smelt.codegen.gpu.team_reductions import reduce_team, reduce_teams
from smelt.codegen.gpu.team_scans import RunningFold, StageScans
from smelt.codegen.gpu.vector_width import is_multiple
from smelt.codegen.gpu.word_quads import QUAD, Quads, quads
from smelt.codegen.loops.philox import words_of_counter
from smelt.codegen.loops.reductions import combine, start
from smelt.codegen.loops.scalars import cast, compute, constant, from_memory, memory_kind, to_memory
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
    Role,
    Scan,
    Scatter,
    Stage,
    Store,
)
from smelt.ir.loops import Value
from smelt.symbolic.shapes import Size, product
from smelt.symbolic.symsize import is_symsize, known_equal

Values = tuple[Value, ...]  # one for all points that a thread takes at once, or one for each
Coordinates = dict[str, Value]

_TILES_OF_SUM = 16  # of a thread, that are added up in the dtype they have
_POINTS = 16  # that a thread reads at once in a loop that is not unrolled; to be measured
_MOST_TILES = 4


class PhaseBody:
    """A phase being written."""

    work: Any  # of the phase

    def __init__(self, b: Simt, plan: PhasePlan) -> None:
        self.b = b
        self.plan, self.work = plan, plan.work
        self.kernel = plan.kernel
        self.dtypes = value_dtypes(plan.kernel)
        self.values: dict[str, Values] = {}
        self.rows: Coordinates = {}
        self.row_mask: Mask = None
        self.col_mask: Mask = None  # of the cols a thread is at
        self.first: Value = b.index(0)  # of a row's cols, what this thread begins with
        self.is_first: Mask = None  # whether this thread stores what there is once a row
        self.registers: dict[tuple[str, Index, int], Values] = {}  # values loaded or staged, by tile
        self.scans: StageScans  # of the loop being written
        self.stored_once: dict[tuple[str, Index], Values] = {}
        self.quads = self._quads()
        self.reads_rewritten = False  # something was loaded that this kernel stores to as well

    def write(self) -> None:
        if self.plan.along is not Along.POINTS:
            self._find_row()
        for stage in self.kernel.stages:
            self._stage(stage)
        if self.plan.cluster > 1:
            self.b.leave_cluster()

    # Which points are this thread's.

    def _find_row(self) -> None:
        b, plan = self.b, self.plan
        if plan.along is Along.ROWS:
            lanes = plan.threads // plan.team
            row = b.mul(b.add(b.mul(b.block_number(), lanes), b.and_(b.lane(), lanes - 1)), plan.width)
            self.first = b.warp_number() if lanes == b.warp else b.lshr(b.thread(), lanes.bit_length() - 1)
        elif plan.cluster > 1:
            row = b.lshr(b.block_number(), plan.cluster.bit_length() - 1)
            self.first = b.mul(b.add(b.mul(b.cluster_rank(), plan.threads), b.thread()), plan.width)
        elif plan.team > b.warp:
            row, self.first = b.block_number(), b.mul(b.thread(), plan.width)
        elif plan.team == b.warp:
            row = b.add(b.mul(b.block_number(), plan.threads // plan.team), b.warp_number())
            self.first = b.mul(b.lane(), plan.width)
        else:
            number = b.add(b.mul(b.block_number(), plan.threads), b.thread())
            shift = plan.team.bit_length() - 1
            row = b.lshr(number, shift) if shift else number
            self.first = b.mul(b.and_(number, plan.team - 1), plan.width)
        self.rows, self.row_mask = self._within(row, self.kernel.rows, plan.rows_at_once)
        threads_of_row = plan.team if plan.along is Along.ROWS else plan.team * plan.width
        if threads_of_row > 1:
            self.is_first = b.icmp("eq", self.first, 0)

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
            mask = b.icmp("slt", number, b.index(count))
            number = b.select(mask, number, 0)
        return self._coordinates(number, axes), mask

    def _both(self, one: Mask, other: Mask) -> Mask:
        return both(self.b, one, other)

    # Stages.

    def _stage(self, stage: Stage) -> None:
        if stage.loop:
            self._loop(stage)
        else:
            self._run_once(stage)

    def _run_once(self, stage: Stage) -> None:
        for instruction in stage.body:
            self._step(instruction, self.rows, self._both(self.row_mask, self.is_first), once=True)

    def _loop(self, stage: Stage) -> None:
        b, plan = self.b, self.plan
        folds = self._reduces(stage)
        partial = [start(b, fold.op, self.dtypes[fold.value], 1) for fold in folds for _ in range(self.plan.width)]
        self.scans = self._scans_of(stage)
        partial += self.scans.start()
        tiles = plan.tiles
        if plan.unrolled:
            assert not is_symsize(tiles)
            for tile in range(int(tiles)):
                partial = self._tile(stage, folds, b.index(tile), tile, partial)
            kinds = [self.dtypes[fold.value] for fold in folds]
        else:
            partial, kinds = self._long_loop(stage, folds, partial)
        self._finish(folds, kinds, partial)

    def _long_loop(
        self, stage: Stage, folds: Sequence[Reduce], nothing: list[Value]
    ) -> tuple[list[Value], list[torch.dtype]]:
        """All tiles one after the other: returns the reductions and their dtypes. Sums are emptied into a float64 every
        few tiles, so that their error does not grow with the length."""
        b, tiles, at_once = self.b, self.plan.tiles, self._tiles_at_once(stage)
        dtypes = [self.dtypes[fold.value] for fold in folds]
        kept = [fold.op == "sum" and dtype.is_floating_point for fold, dtype in zip(folds, dtypes, strict=True)]
        is_sum = [each for each in kept for _ in range(self.plan.width)]
        is_sum += [False] * (len(nothing) - len(is_sum))  # what scans carry along
        zero = b.const("f64", 0.0)
        totals = [zero if each else start for each, start in zip(is_sum, nothing, strict=True)]
        step = max(1, _TILES_OF_SUM // at_once) if any(is_sum) else 1
        last = b.const("i64", -(-tiles // at_once))

        def some_tiles(turn: Value, values: list[Value]) -> list[Value]:
            return self._tiles(stage, folds, turn, at_once, values)

        def emptied(turn: Value, values: list[Value]) -> list[Value]:
            begin = [start if each else value for each, start, value in zip(is_sum, nothing, values, strict=True)]
            beyond = b.add(turn, step)
            end = b.select(b.icmp("slt", beyond, last), beyond, last)
            after = b.carried_loop(end, begin, some_tiles, first=turn)
            return [
                b.fadd(total, b.convert("fpext", value, "f64")) if each else value
                for each, total, value in zip(is_sum, values, after, strict=True)
            ]

        turns = emptied if any(is_sum) else some_tiles
        folded = b.carried_loop(last, totals, turns, step=step, guard=is_symsize(tiles))
        self.registers.clear()
        return folded, [torch.float64 if each else dtype for each, dtype in zip(kept, dtypes, strict=True)]

    def _tiles(
        self, stage: Stage, folds: Sequence[Reduce], turn: Value, at_once: int, partial: list[Value]
    ) -> list[Value]:
        """Several tiles, all read before the first is computed."""
        b = self.b
        number = b.convert("trunc", turn, b.index_kind)
        numbers = [b.add(b.mul(number, at_once), tile) for tile in range(at_once)] if at_once > 1 else [number]
        self._read_ahead(stage, numbers)
        for tile, each in enumerate(numbers):
            partial = self._tile(stage, folds, each, tile, partial)
        return partial

    def _tiles_at_once(self, stage: Stage, points: int = _POINTS) -> int:
        """How many tiles an iteration of a loop that is not unrolled takes; missing ones are masked."""
        plan = self.plan
        scans = [i for i in stage.body if isinstance(i, Scan)]
        if any(scan.op == "logaddexp" for scan in scans):
            return 1  # that is long code
        if scans and plan.along is Along.COLS:
            points = min(points, 2 * plan.width)  # each tile waits for the one before it
        read = {(i.buffer, i.index) for i in stage.body if isinstance(i, Load | Accumulate) and i.index.terms}
        wanted = max(1, min(_MOST_TILES, points // (plan.width * max(1, len(read)))))
        if not is_symsize(plan.tiles) and not self.kernel.col_count % plan.stride:
            while plan.tiles % wanted:
                wanted //= 2
        return wanted

    def _read_ahead(self, stage: Stage, numbers: Sequence[Value]) -> None:
        """Issue all loads of these tiles that read unwritten buffers before the first use."""
        if len(numbers) == 1:
            return
        for tile, number in enumerate(numbers):
            where, _ = self._cols(number)
            for i in stage.body:
                if isinstance(i, Load) and self.kernel.buffer(i.buffer).role is Role.INPUT:
                    loaded = self._loaded(i, {**self.rows, **where}, tile, once=False)
                    self.registers[i.buffer, i.index, tile] = loaded

    def _scans_of(self, stage: Stage) -> StageScans:
        plan = self.plan
        scans = [(i.out, RunningFold(i.op, self.dtypes[i.value])) for i in stage.body if isinstance(i, Scan)]
        return StageScans(self.b, scans, plan.team, plan.width, rows_apart=plan.along is Along.ROWS)

    def _reduces(self, stage: Stage) -> list[Reduce]:
        return [i for i in stage.body if isinstance(i, Reduce)]

    def _tile(
        self, stage: Stage, folds: Sequence[Reduce], number: Value, tile: int, partial: list[Value]
    ) -> list[Value]:
        """One pass of a thread over its cols: old partials → new partials."""
        where, self.col_mask = self._cols(number)
        mask = self._both(self.col_mask, self.row_mask)
        outside = {**self.values}
        for instruction in stage.body:
            if isinstance(instruction, Reduce):
                partial = self._folded(instruction, folds.index(instruction), partial, mask)
            elif isinstance(instruction, Scan):
                values, behind = self._spread(self.values[instruction.value]), len(folds) * self.plan.width
                scanned, after = self.scans.step(instruction.out, values, mask, number, partial[behind:])
                self.values[instruction.out] = scanned
                partial = partial[:behind] + after
            else:
                self._step(instruction, {**self.rows, **where}, mask, tile=tile)
        self.values = outside
        return partial

    def _cols(self, number: Value) -> tuple[Coordinates, Mask]:
        """The first of the cols that a thread takes in iteration `number`."""
        b, plan = self.b, self.plan
        mask: Mask = None
        if plan.along is Along.POINTS:
            first = b.add(b.mul(b.block_number(), plan.vectors), number) if plan.vectors > 1 else b.block_number()
            thread = b.add(b.mul(first, plan.threads), b.thread())
            col = b.mul(thread, plan.width) if plan.width > 1 else thread
            whole = plan.threads * plan.width * plan.vectors
        else:
            col = b.add(b.mul(number, plan.stride), self.first)
            whole = plan.stride
        count = self.kernel.col_count
        if is_symsize(count) or count % whole:  # of a size that varies, loops may come to tiles behind the last
            mask = b.icmp("slt", col, b.index(count - count % plan.width if plan.leaves_some else count))
            col = b.select(mask, col, 0)
        where = self._coordinates(col, self.kernel.cols)
        for bound in plan.bounds:
            if is_symsize(bound.size) or is_symsize(bound.chunk) or bound.size % bound.chunk:
                reached = b.add(b.mul(self.rows[bound.part], b.index(bound.chunk)), where[bound.inner])
                inside = b.icmp("slt", reached, b.index(bound.size))
                mask = self._both(mask, inside)
                where = {name: b.select(inside, value, 0) for name, value in where.items()}
        return where, mask

    def _folded(self, fold: Reduce, place: int, partial: list[Value], mask: Mask) -> list[Value]:
        b, dtype = self.b, self.dtypes[fold.value]
        values = self._spread(self.values[fold.value])
        for way, value in enumerate(values):
            if mask is not None:
                value = b.select(mask, value, start(b, fold.op, dtype, 1))
            slot = place * self.plan.width + way
            partial[slot] = combine(b, fold.op, dtype, partial[slot], value)
        return partial

    def _spread(self, values: Values) -> Values:
        return values if len(values) == self.plan.width else values * self.plan.width

    def _finish(self, folds: Sequence[Reduce], dtypes: Sequence[torch.dtype], partial: list[Value]) -> None:
        """Between the points of a thread, then between threads."""
        b, plan, ways = self.b, self.plan, self.plan.width
        if not folds:
            return
        kinds = [(fold.op, dtype) for fold, dtype in zip(folds, dtypes, strict=True)]
        mine = [tuple(partial[place * ways : (place + 1) * ways]) for place in range(len(folds))]
        if plan.along is Along.ROWS:
            totals = reduce_teams(b, kinds, mine, plan.threads // plan.team, plan.threads)
        else:
            single = []
            for (op, dtype), values in zip(kinds, mine, strict=True):
                single.append(halved(values, lambda x, y, op=op, dtype=dtype: combine(b, op, dtype, x, y)))  # type: ignore[misc]
            totals = [(each,) for each in reduce_team(b, kinds, single, plan.team, plan.threads)]
        for fold, dtype, values in zip(folds, dtypes, totals, strict=True):
            want = self.dtypes[fold.value]
            self.values[fold.out] = tuple(cast(b, each, dtype, want) for each in values)

    # Instructions.

    def _step(self, i: Instruction, where: Coordinates, mask: Mask, *, tile: int = 0, once: bool = False) -> None:
        b = self.b
        match i:
            case Const(out, value, dtype):
                self.values[out] = (constant(b, value, dtype),)
            case Load(out):
                self.values[out] = self._loaded(i, where, tile, once=once)
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
            case Cast(out, value, dtype):
                source, step = self.dtypes[value], QUAD if out in self.quads.same else 1
                self.values[out] = self._each([self.values[value]], lambda x: cast(b, x, source, dtype), step)
            case Scatter():
                self._scatter(i, where, mask)
            case Store():
                self._store(i, where, mask, tile, once=once)
            case _:
                raise SmeltError("SM030", f"no GPU schedule has {type(i).__name__}")

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
        counters = range(0, self.plan.width, QUAD)
        return tuple(word for way in counters for word in words_of_counter(self.b, *(each[way] for each in spread)))

    def _quads(self) -> Quads:
        """What four points side by side share, where vectors are whole quads."""
        axis, width = self.plan.vector_axis, self.plan.width
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
        axis = self.plan.vector_axis
        return 0 if axis is None or self.plan.width == 1 else index.stride(axis.name)

    def _is_aligned(self, index: Index, further: int = 0) -> bool:
        """Whether groups of adjacent points start at multiples of their size, whatever the other indices are."""
        axis, width = self.plan.vector_axis, self.plan.width
        steps = [index.offset + further, *(stride for name, stride in index.terms if axis is None or name != axis.name)]
        return self.b.aligned and all(is_multiple(step, width) for step in steps)

    def _loaded(self, i: Load, where: Coordinates, tile: int, *, once: bool) -> Values:
        buffer = self.kernel.buffer(i.buffer)
        known = self.stored_once.get((i.buffer, i.index))
        if known is not None:
            return known
        key = (i.buffer, i.index, -1 if once else tile)
        if key in self.registers:
            return self.registers[key]
        constant = buffer.role is Role.INPUT
        self.reads_rewritten = self.reads_rewritten or buffer.role is Role.INOUT
        raw = self._load(i.buffer, i.index, where, constant=constant)
        loaded = tuple(from_memory(self.b, each, buffer.dtype) for each in raw)
        if constant and not once and self.plan.unrolled:
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
        at, step, width = self._offset(index, where), self._step_of(index), self.plan.width
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

    def _store(self, i: Store, where: Coordinates, mask: Mask, tile: int, *, once: bool) -> None:
        b, buffer = self.b, self.kernel.buffer(i.buffer)
        values = self.values[i.value]
        if buffer.role is Role.SCRATCH:
            self.registers[i.buffer, i.index, tile] = values
            return
        if once:
            self.stored_once[i.buffer, i.index] = values
            self._wait_for_team()
        else:
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
            raw = raw if len(raw) == self.plan.width else raw * self.plan.width
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

    def _wait_for_team(self) -> None:
        """Before one thread stores what others of its team load: all of them have."""
        if not self.reads_rewritten or self.is_first is None:
            return
        if self.plan.cluster > 1:
            self.b.cluster_barrier()
        elif self.plan.along is Along.ROWS or self.plan.team > self.b.warp:
            self.b.barrier()
        else:
            self.b.warp_barrier()
        self.reads_rewritten = False

    def _position(self, index: Index, where: Coordinates) -> Values:
        b, step = self.b, self._step_of(index)
        first = b.convert("sext", self._offset(index, where), "i64")
        if known_equal(step, 0):
            return (first,)
        return tuple(b.add(first, b.const("i64", way * step)) if way else first for way in range(self.plan.width))

    def _gathered(self, i: Gather, where: Coordinates) -> Values:
        """At most the last element within each extent: nothing outside of the buffer is read."""
        b, buffer = self.b, self.kernel.buffer(i.buffer)
        pointer, kind = b.pointer(i.buffer), memory_kind(buffer.dtype)

        def read(at: Value, *places: Value) -> Value:
            for place, (_, stride, extent) in zip(places, i.by, strict=True):
                last = b.const("i64", extent - 1)
                inside = b.icmp("ult", place, b.const("i64", extent))
                at = b.add(at, b.mul(b.select(inside, place, last), b.const("i64", stride)))
            (raw,) = b.load_global(pointer, at, kind, constant=buffer.role is Role.INPUT)
            return from_memory(b, raw, buffer.dtype)

        return self._each([self._position(i.index, where), *(self.values[name] for name, _, _ in i.by)], read)

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
                put(b, i.op, pointer, at, value, dtype, buffer.dtype)


def halved(values: Sequence[Value], join: Callable[[Value, Value], Value]) -> Value:
    """All of `values` in one, neighbours first."""
    while len(values) > 1:
        pairs = [join(left, right) for left, right in zip(values[::2], values[1::2], strict=False)]
        values = [*pairs, values[-1]] if len(values) % 2 else pairs
    return values[0]


def _is_philox(instruction: Instruction) -> bool:
    return isinstance(instruction, Compute) and instruction.op == "philox"
