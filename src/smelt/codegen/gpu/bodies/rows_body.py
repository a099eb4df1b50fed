"""`Rows`: whole rows, each shared by a team of threads; `RowsBody` writes such a grid.

    row, first col      from the block and the thread
    row stages          by every thread of the team; stored by its first
    loop stages         tile by tile: load, compute, store; reductions first in each thread, then between the threads
"""

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.gpu.grids import Grid
from smelt.codegen.gpu.phase_body import Coordinates, PhaseBody, Values
from smelt.codegen.gpu.phase_kernels import Bound
from smelt.codegen.gpu.simt import Mask, Simt
from smelt.codegen.gpu.team_reductions import reduce_team, reduce_teams
from smelt.codegen.gpu.team_scans import RunningFold, StageScans
from smelt.codegen.loops.reductions import combine, start
from smelt.codegen.loops.scalars import cast
from smelt.ir.kernel import Accumulate, Axis, Index, Kernel, Load, Reduce, Role, Scan, Stage, Store
from smelt.ir.loops import Value
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import is_symsize

_TILES_OF_SUM = 16  # of a thread, that are added up in the dtype they have
_POINTS = 16  # that a thread reads at once in a loop that is not unrolled; to be measured
_MOST_TILES = 4


@dataclass(frozen=True, slots=True)
class Rows(Grid):
    """Rows, each shared by a team of threads. Adjacent threads go along the cols of a row, or along rows that are side
    by side in memory. A thread takes `width` adjacent points together: of the last axis that these go along."""

    kernel: Kernel
    bounds: tuple[Bound, ...]
    along_rows: bool
    threads: int
    team: int  # threads that share a row
    width: int
    unrolled: bool
    warp: int  # threads that run in step
    cluster: int = 1  # blocks that share a row

    @property
    def vector_axis(self) -> Axis | None:
        axes = self.kernel.rows if self.along_rows else self.kernel.cols
        return axes[-1] if axes else None

    @property
    def stride(self) -> int:
        """How many cols the threads of a team take together."""
        return self.team if self.along_rows else self.team * self.width

    @property
    def tiles(self) -> Size:
        """How many times a thread comes back to its row's cols."""
        return -(-self.kernel.col_count // self.stride)

    @property
    def points(self) -> int:
        """Of a row, that a thread has. Only of loops that are unrolled."""
        return int(self.tiles) * self.width

    @property
    def rows_at_once(self) -> int:
        """Rows of a block, or of a cluster."""
        if self.cluster > 1:
            return 1
        return self.threads // self.team * (self.width if self.along_rows else 1)

    @property
    def blocks(self) -> Size:
        return -(-self.kernel.row_count // self.rows_at_once) * self.cluster

    def parameters(self) -> tuple[Any, ...]:
        """For a record of the same rows with more fields."""
        return tuple(getattr(self, each.name) for each in fields(Rows))

    def write(self, b: Simt) -> None:
        RowsBody(b, self).write()


class RowsBody(PhaseBody):
    """A grid of rows being written."""

    grid: Rows
    scans: StageScans  # of the loop being written

    def __init__(self, b: Simt, grid: Rows) -> None:
        super().__init__(b, grid, grid.vector_axis, grid.width)
        self.keeps_loads = grid.unrolled
        self.row_mask: Mask = None
        self.col_mask: Mask = None  # of the cols a thread is at
        self.first: Value = b.index(0)  # of a row's cols, what this thread begins with
        self.is_first: Mask = None  # whether this thread stores what there is once a row
        self.stored_once: dict[tuple[str, Index], Values] = {}
        self.reads_rewritten = False  # something was loaded that this kernel stores to as well

    def write(self) -> None:
        self._find_row()
        for stage in self.kernel.stages:
            self._stage(stage)
        if self.grid.cluster > 1:
            self.b.leave_cluster()

    def _find_row(self) -> None:
        b, grid = self.b, self.grid
        if grid.along_rows:
            lanes = grid.threads // grid.team
            row = b.mul(b.add(b.mul(b.block_number(), lanes), b.and_(b.lane(), lanes - 1)), grid.width)
            self.first = b.warp_number() if lanes == b.warp else b.lshr(b.thread(), lanes.bit_length() - 1)
        elif grid.cluster > 1:
            row = b.lshr(b.block_number(), grid.cluster.bit_length() - 1)
            self.first = b.mul(b.add(b.mul(b.cluster_rank(), grid.threads), b.thread()), grid.width)
        elif grid.team > b.warp:
            row, self.first = b.block_number(), b.mul(b.thread(), grid.width)
        elif grid.team == b.warp:
            row = b.add(b.mul(b.block_number(), grid.threads // grid.team), b.warp_number())
            self.first = b.mul(b.lane(), grid.width)
        else:
            number = b.add(b.mul(b.block_number(), grid.threads), b.thread())
            shift = grid.team.bit_length() - 1
            row = b.lshr(number, shift) if shift else number
            self.first = b.mul(b.and_(number, grid.team - 1), grid.width)
        self.rows, self.row_mask = self._within(row, self.kernel.rows, grid.rows_at_once)
        threads_of_row = grid.team if grid.along_rows else grid.team * grid.width
        if threads_of_row > 1:
            self.is_first = b.icmp("eq", self.first, 0)

    # Stages.

    def _stage(self, stage: Stage) -> None:
        if stage.loop:
            self._loop(stage)
        else:
            self.run(stage.body, self.rows, self._both(self.row_mask, self.is_first), tile=-1)

    def _loop(self, stage: Stage) -> None:
        b, grid = self.b, self.grid
        folds = self._reduces(stage)
        partial = [start(b, fold.op, self.dtypes[fold.value], 1) for fold in folds for _ in range(self.width)]
        self.scans = self._scans_of(stage)
        partial += self.scans.start()
        tiles = grid.tiles
        if grid.unrolled:
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
        b, tiles, at_once = self.b, self.grid.tiles, self._tiles_at_once(stage)
        dtypes = [self.dtypes[fold.value] for fold in folds]
        kept = [fold.op == "sum" and dtype.is_floating_point for fold, dtype in zip(folds, dtypes, strict=True)]
        is_sum = [each for each in kept for _ in range(self.width)]
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
        grid = self.grid
        scans = [i for i in stage.body if isinstance(i, Scan)]
        if any(scan.op == "logaddexp" for scan in scans):
            return 1  # that is long code
        if scans and not grid.along_rows:
            points = min(points, 2 * grid.width)  # each tile waits for the one before it
        read = {(i.buffer, i.index) for i in stage.body if isinstance(i, Load | Accumulate) and i.index.terms}
        wanted = max(1, min(_MOST_TILES, points // (grid.width * max(1, len(read)))))
        if not is_symsize(grid.tiles) and not self.kernel.col_count % grid.stride:
            while grid.tiles % wanted:
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
                    loaded = self._loaded(i, {**self.rows, **where}, tile)
                    self.registers[i.buffer, i.index, tile] = loaded

    def _scans_of(self, stage: Stage) -> StageScans:
        grid = self.grid
        scans = [(i.out, RunningFold(i.op, self.dtypes[i.value])) for i in stage.body if isinstance(i, Scan)]
        return StageScans(self.b, scans, grid.team, grid.width, rows_apart=grid.along_rows)

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
                values, behind = self._spread(self.values[instruction.value]), len(folds) * self.width
                scanned, after = self.scans.step(instruction.out, values, mask, number, partial[behind:])
                self.values[instruction.out] = scanned
                partial = partial[:behind] + after
            else:
                self._step(instruction, {**self.rows, **where}, mask, tile)
        self.values = outside
        return partial

    def _folded(self, fold: Reduce, place: int, partial: list[Value], mask: Mask) -> list[Value]:
        b, dtype = self.b, self.dtypes[fold.value]
        values = self._spread(self.values[fold.value])
        for way, value in enumerate(values):
            if mask is not None:
                value = b.select(mask, value, start(b, fold.op, dtype, 1))
            slot = place * self.width + way
            partial[slot] = combine(b, fold.op, dtype, partial[slot], value)
        return partial

    def _cols(self, number: Value) -> tuple[Coordinates, Mask]:
        """The first of the cols that a thread takes in iteration `number`."""
        b, grid = self.b, self.grid
        mask: Mask = None
        col = b.add(b.mul(number, grid.stride), self.first)
        count = self.kernel.col_count
        if is_symsize(count) or count % grid.stride:  # of a size that varies, loops may come to tiles behind the last
            mask = b.icmp("slt", col, b.index(count))
            col = b.select(mask, col, 0)
        where = self._coordinates(col, self.kernel.cols)
        for bound in grid.bounds:
            if is_symsize(bound.size) or is_symsize(bound.chunk) or bound.size % bound.chunk:
                reached = b.add(b.mul(self.rows[bound.part], b.index(bound.chunk)), where[bound.inner])
                inside = b.icmp("slt", reached, b.index(bound.size))
                mask = self._both(mask, inside)
                where = {name: b.select(inside, value, 0) for name, value in where.items()}
        return where, mask

    def _finish(self, folds: Sequence[Reduce], dtypes: Sequence[torch.dtype], partial: list[Value]) -> None:
        """Between the points of a thread, then between threads."""
        b, grid, ways = self.b, self.grid, self.width
        if not folds:
            return
        kinds = [(fold.op, dtype) for fold, dtype in zip(folds, dtypes, strict=True)]
        mine = [tuple(partial[place * ways : (place + 1) * ways]) for place in range(len(folds))]
        if grid.along_rows:
            totals = reduce_teams(b, kinds, mine, grid.threads // grid.team, grid.threads)
        else:
            single = []
            for (op, dtype), values in zip(kinds, mine, strict=True):
                single.append(halved(values, lambda x, y, op=op, dtype=dtype: combine(b, op, dtype, x, y)))  # type: ignore[misc]
            totals = [(each,) for each in reduce_team(b, kinds, single, grid.team, grid.threads)]
        for fold, dtype, values in zip(folds, dtypes, totals, strict=True):
            want = self.dtypes[fold.value]
            self.values[fold.out] = tuple(cast(b, each, dtype, want) for each in values)

    # Memory.

    def _loaded(self, i: Load, where: Coordinates, tile: int) -> Values:
        if (i.buffer, i.index) in self.stored_once:
            return self.stored_once[i.buffer, i.index]
        if (i.buffer, i.index, tile) not in self.registers:
            self.reads_rewritten = self.reads_rewritten or self.kernel.buffer(i.buffer).role is Role.INOUT
        return super()._loaded(i, where, tile)

    def _store(self, i: Store, where: Coordinates, mask: Mask, tile: int) -> None:
        if tile < 0:
            self.stored_once[i.buffer, i.index] = self.values[i.value]
            self._wait_for_team()
        super()._store(i, where, mask, tile)

    def _wait_for_team(self) -> None:
        """Before one thread stores what others of its team load: all of them have."""
        if not self.reads_rewritten or self.is_first is None:
            return
        if self.grid.cluster > 1:
            self.b.cluster_barrier()
        elif self.grid.along_rows or self.grid.team > self.b.warp:
            self.b.barrier()
        else:
            self.b.warp_barrier()
        self.reads_rewritten = False


def halved(values: Sequence[Value], join: Callable[[Value, Value], Value]) -> Value:
    """All of `values` in one, neighbours first."""
    while len(values) > 1:
        pairs = [join(left, right) for left, right in zip(values[::2], values[1::2], strict=False)]
        values = [*pairs, values[-1]] if len(values) % 2 else pairs
    return values[0]
