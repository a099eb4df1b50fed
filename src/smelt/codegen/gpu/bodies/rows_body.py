"""`Rows`: whole rows, each shared by a team of threads; `RowsBody` writes such a grid.

    row, first col      from the block and the thread
    row stages          by every thread of the team; stored by its first
    loop stages         tile by tile: load, compute, store; reductions first in each thread, then between the threads
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.gpu.grids import Grid
from smelt.codegen.gpu.kernel_slices import updated_in_place
from smelt.codegen.gpu.phase_body import Coordinates, PhaseBody, Values
from smelt.codegen.gpu.phase_kernels import Bound
from smelt.codegen.gpu.simt import Mask, Simt
from smelt.codegen.gpu.team_reductions import reduce_team, reduce_teams
from smelt.codegen.gpu.team_scans import RunningFold, TeamScan
from smelt.codegen.gpu.vector_width import is_multiple
from smelt.codegen.loops.reductions import combine, start
from smelt.codegen.loops.scalars import cast
from smelt.ir.kernel import Accumulate, Axis, Index, Kernel, Load, Reduce, Role, Scan, Stage, Store
from smelt.ir.loops import Value
from smelt.symbolic.shapes import Size, product
from smelt.symbolic.symsize import is_symsize

Name = TypeVar("Name")
Carried = dict[str, Values]  # by a loop: for each reduction and scan, of what it defines

_TILES_OF_SUM = 16  # of a thread, that are added up before their sum is added to that of others
_NARROW_TILES = _TILES_OF_SUM**2  # of a thread, up to which those sums need not be added up in float64
_BYTES_AT_ONCE = 48  # that a thread reads before it computes, in a loop that is not unrolled
_MOST_TILES = 8


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
    resident: int = 0
    padded: bool = False  # the last of a row's points may be fewer than `width`: what follows them is left out

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

    def parameters(self) -> dict[str, Any]:
        """For a record of the same rows with more fields."""
        return {each.name: getattr(self, each.name) for each in fields(Rows)}


class RowsBody(PhaseBody, of=Rows):
    """A grid of rows being written."""

    grid: Rows
    scans: dict[str, TeamScan]  # of the loop being written

    def __init__(self, b: Simt, grid: Rows) -> None:
        super().__init__(b, grid, grid.vector_axis, grid.width)
        self.keeps_loads = grid.unrolled
        self.row_mask: Mask = None
        self.col_mask: Mask = None  # of the cols a thread is at
        self.lane_masks: Values = ()  # of each of those, if the last may be fewer
        self.first: Value = b.index(0)  # of a row's cols, what this thread begins with
        self.is_first: Mask = None  # whether this thread stores what there is once a row
        self.stored_once: dict[tuple[str, Index], Values] = {}
        self.reads_rewritten = False  # something was loaded that this kernel stores to as well
        self.inside = False  # whether the turns being written have no cols beyond the last

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
        folds = [i for i in stage.body if isinstance(i, Reduce)]
        carried = {i.out: (start(b, i.op, self.dtypes[i.value], 1),) * self.width for i in folds}
        self.scans = {}
        for i in stage.body:
            if isinstance(i, Scan):
                fold = RunningFold(i.op, self.dtypes[i.value])
                self.scans[i.out] = scan = TeamScan.of(b, fold, 0 if grid.along_rows else grid.team)
                carried[i.out] = scan.start(b, self.width)
        if grid.unrolled:
            for tile in range(int(grid.tiles)):
                carried = self._tile(stage, b.index(tile), tile, carried)
            dtypes = {fold.out: self.dtypes[fold.value] for fold in folds}
        else:
            carried, dtypes = self._long_loop(stage, folds, carried)
        self._finish(folds, dtypes, carried)

    def _long_loop(
        self, stage: Stage, folds: Sequence[Reduce], nothing: Carried
    ) -> tuple[Carried, dict[str, torch.dtype]]:
        """All tiles one after the other: returns the reductions and their dtypes. Sums are emptied into others every
        few tiles, into float64 if there are many, so that their error does not grow with the length."""
        b, tiles, at_once = self.b, self.grid.tiles, self._tiles_at_once(stage)
        dtypes = {fold.out: self.dtypes[fold.value] for fold in folds}
        sums = [fold.out for fold in folds if fold.op == "sum" and dtypes[fold.out].is_floating_point]
        is_wide = is_symsize(tiles) or tiles > _NARROW_TILES
        zero = b.const("f64", 0.0)
        totals = {
            name: (zero,) * len(values) if is_wide and name in sums else values
            for name, values in nothing.items()
        }
        step = max(1, _TILES_OF_SUM // at_once) if sums else 1
        last = b.const("i64", -(-tiles // at_once))

        def some_tiles(turn: Value, values: list[Value]) -> list[Value]:
            return flat(self._tiles(stage, turn, at_once, named(nothing, values)))

        def emptied(limit: Value, turn: Value, values: list[Value]) -> list[Value]:
            before = named(nothing, values)
            beyond = b.add(turn, step)
            end = b.select(b.icmp("slt", beyond, limit), beyond, limit)
            begin = {name: nothing[name] if name in sums else each for name, each in before.items()}
            after = named(nothing, b.carried_loop(end, flat(begin), some_tiles, first=turn))
            for name in (name for name in after if name in sums):
                pairs = zip(before[name], after[name], strict=True)
                wide = partial(b.convert, "fpext", kind="f64")
                after[name] = tuple(b.fadd(total, wide(value) if is_wide else value) for total, value in pairs)
            return flat(after)

        def turns(limit: Value, carried: Sequence[Value], first: Value | int, *, guard: bool) -> list[Value]:
            write = partial(emptied, limit) if sums else some_tiles
            return b.carried_loop(limit, carried, write, first=first, step=step, guard=guard)

        folded, whole = flat(totals), self._whole_turns(stage, at_once)
        if whole is not None:
            self.inside = True
            folded = turns(whole, folded, 0, guard=True)
            self.inside = False
            self.registers.clear()
        folded = turns(last, folded, 0 if whole is None else whole, guard=whole is not None or is_symsize(tiles))
        self.registers.clear()
        after = named(nothing, folded)
        for name in sums:  # the sums of all threads are added in float64
            after[name] = tuple(b.convert("fpext", value, "f64") for value in after[name])
        return after, dtypes | dict.fromkeys(sums, torch.float64)

    def _whole_turns(self, stage: Stage, at_once: int) -> Value | None:
        """How many iterations need no masks because all of their cols exist; None if all need them, or none do."""
        b, cols, step = self.b, self.kernel.cols, self.grid.stride * at_once
        if not any(isinstance(i, Reduce) for i in stage.body) or self.scans:
            return None
        count = self.kernel.col_count
        ends = [bound for bound in self.grid.bounds if not is_multiple(bound.size, bound.chunk)]
        if not ends:
            return None if is_multiple(count, step) else b.const("i64", count // step)
        names = [axis.name for axis in self.kernel.rows]
        below = self.kernel.rows[names.index(ends[0].part) + 1 :]
        one_part = self.grid.cluster == 1 and is_multiple(product(each.size for each in below), self.grid.rows_at_once)
        if len(ends) > 1 or not one_part or ends[0].inner != cols[-1].name or len(cols) > 1 or is_symsize(count):
            return None
        # The same for all threads of a block, so that they stay together.
        first_row = b.mul(b.block_number(), self.grid.rows_at_once)
        part = self._coordinates(first_row, self.kernel.rows)[ends[0].part]
        rest = b.sub(b.index(ends[0].size), b.mul(part, b.index(ends[0].chunk)))
        rest = b.select(b.icmp("slt", rest, b.index(count)), rest, b.index(count))
        return b.convert("zext", b.binary("udiv", rest, b.index(step)), "i64")

    def _tiles(self, stage: Stage, turn: Value, at_once: int, carried: Carried) -> Carried:
        """Several tiles, all read before the first is computed."""
        b = self.b
        number = b.convert("trunc", turn, b.index_kind)
        numbers = [b.add(b.mul(number, at_once), tile) for tile in range(at_once)] if at_once > 1 else [number]
        self._read_ahead(stage, numbers)
        for tile, each in enumerate(numbers):
            carried = self._tile(stage, each, tile, carried)
        return carried

    def _tiles_at_once(self, stage: Stage) -> int:
        """How many tiles an iteration of a loop that is not unrolled takes; missing ones are masked."""
        grid, kernel = self.grid, self.kernel
        scans = [i for i in stage.body if isinstance(i, Scan)]
        if any(scan.op == "logaddexp" for scan in scans):
            return 1  # that is long code
        cols = {axis.name for axis in kernel.cols}
        read = {(i.buffer, i.index) for i in stage.body if isinstance(i, Load | Accumulate) and i.index.axes & cols}
        size = sum(kernel.buffer(name).dtype.itemsize for name, _ in read) * grid.width
        most = 2 if scans and not grid.along_rows else _MOST_TILES  # in a scan each tile waits for the one before it
        wanted = 1
        while 2 * wanted <= most and wanted * size < _BYTES_AT_ONCE:
            wanted *= 2
        if not is_symsize(grid.tiles) and not self.kernel.col_count % grid.stride:
            while grid.tiles % wanted:
                wanted //= 2
        return wanted

    def _read_ahead(self, stage: Stage, numbers: Sequence[Value]) -> None:
        """Issue all loads of these tiles before the first use, but for those of what other threads or tiles write."""
        if len(numbers) == 1:
            return
        own = updated_in_place(self.kernel)
        for tile, number in enumerate(numbers):
            where, _ = self._cols(number)
            for i in stage.body:
                role = self.kernel.buffer(i.buffer).role if isinstance(i, Load) else None
                if isinstance(i, Load) and (role is Role.INPUT or i.buffer in own):
                    loaded = self._loaded(i, {**self.rows, **where}, tile)
                    self.registers[i.buffer, i.index, tile] = loaded

    def _tile(self, stage: Stage, number: Value, tile: int, carried: Carried) -> Carried:
        """One pass of a thread over its cols: what the loop carried → what it carries on."""
        where, self.col_mask = self._cols(number)
        mask = self._both(self.col_mask, self.row_mask)
        outside, carried = {**self.values}, {**carried}
        for i in stage.body:
            if isinstance(i, Reduce):
                carried[i.out] = self._folded(i, carried[i.out], mask)
            elif isinstance(i, Scan):
                values = self._spread(self.values[i.value])
                scanned = self.scans[i.out].step(self.b, values, mask, number, carried[i.out])
                self.values[i.out], carried[i.out] = scanned
            else:
                self._step(i, {**self.rows, **where}, mask, tile)
        self.values = outside
        return carried

    def _folded(self, fold: Reduce, so_far: Values, mask: Mask) -> Values:
        b, dtype = self.b, self.dtypes[fold.value]
        values = self._of_points(self._spread(self.values[fold.value]), mask, start(b, fold.op, dtype, 1))
        return tuple(combine(b, fold.op, dtype, old, value) for old, value in zip(so_far, values, strict=True))

    def _of_points(self, values: Values, mask: Mask, nothing: Value) -> Values:
        """The values of the points that there are, and `nothing` for others."""
        b = self.b
        if self.lane_masks:
            rows = self.row_mask
            inside = [each if rows is None else b.and_(each, rows) for each in self.lane_masks]
            return tuple(b.select(each, value, nothing) for each, value in zip(inside, values, strict=True))
        return values if mask is None else tuple(b.select(mask, value, nothing) for value in values)

    def _cols(self, number: Value) -> tuple[Coordinates, Mask]:
        """The first of the cols that a thread takes in iteration `number`."""
        b, grid = self.b, self.grid
        mask: Mask = None
        col = b.add(b.mul(number, grid.stride), self.first)
        if self.inside:
            self.lane_masks = ()
            return self._coordinates(col, self.kernel.cols), None
        count = self.kernel.col_count
        if grid.padded:
            self.lane_masks = tuple(b.icmp("slt", b.add(col, lane), b.index(count)) for lane in range(grid.width))
        if is_symsize(count) or count % grid.stride:  # of a size that varies, loops may come to tiles behind the last
            col, mask = b.below(col, count)
        where = self._coordinates(col, self.kernel.cols)
        for bound in grid.bounds:
            if is_symsize(bound.size) or is_symsize(bound.chunk) or bound.size % bound.chunk:
                reached = b.add(b.mul(self.rows[bound.part], b.index(bound.chunk)), where[bound.inner])
                inside = b.icmp("slt", reached, b.index(bound.size))
                mask = self._both(mask, inside)
                where = {name: b.select(inside, value, 0) for name, value in where.items()}
        return where, mask

    def _finish(self, folds: Sequence[Reduce], dtypes: Mapping[str, torch.dtype], carried: Carried) -> None:
        """Between the points of a thread, then between threads."""
        b, grid = self.b, self.grid
        if not folds:
            return
        kinds = [(fold.op, dtypes[fold.out]) for fold in folds]
        mine = [carried[fold.out] for fold in folds]
        if grid.along_rows:
            totals = reduce_teams(b, kinds, mine, grid.threads // grid.team, grid.threads)
        else:
            single = [halved(each, partial(combine, b, *kind)) for kind, each in zip(kinds, mine, strict=True)]
            totals = [(each,) for each in reduce_team(b, kinds, single, grid.team, grid.threads)]
        for fold, (_, dtype), values in zip(folds, kinds, totals, strict=True):
            self.values[fold.out] = tuple(cast(b, each, dtype, self.dtypes[fold.value]) for each in values)

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


def flat(carried: Mapping[Any, Values]) -> list[Value]:
    """All values, as a loop carries them."""
    return [each for values in carried.values() for each in values]


def named(like: Mapping[Name, Values], values: Iterable[Value]) -> dict[Name, Values]:
    """The same by names again, each as many as in `like`."""
    rest = iter(values)
    return {name: tuple(islice(rest, len(each))) for name, each in like.items()}
