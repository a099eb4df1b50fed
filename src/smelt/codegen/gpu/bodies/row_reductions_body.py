"""`RowReductions`: blocks that go through many rows each and accumulate over rows in registers, and what writes them.

    for every row of this block:          the next row is read; row and loop stages of this one as in `RowsBody`
        accumulate sum dw[j] = v          added to registers of the thread whose col that is; long rows: to its part
    between the teams of a block, then    dw.parts of this block
"""

from collections.abc import Sequence
from functools import partial

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.gpu.bodies.rows_body import Rows, RowsBody, flat, halved, named
from smelt.codegen.gpu.grids import MANY_THREADS
from smelt.codegen.gpu.phase_body import Coordinates, Values
from smelt.codegen.gpu.row_reductions import preloadable, row_reads
from smelt.codegen.gpu.simt import Mask, Simt
from smelt.codegen.gpu.team_reductions import reduce_team, reduce_teams
from smelt.codegen.loops.reductions import combine, start
from smelt.codegen.loops.scalars import from_memory, memory_kind, to_memory
from smelt.ir.kernel import Accumulate, Axis, Index, Instruction, Load, Reduce, Role
from smelt.ir.loops import BITS, Value
from smelt.symbolic.shapes import Size, product
from smelt.symbolic.symsize import known_equal


@dataclass(frozen=True, slots=True)
class RowReductions(Rows):
    """Rows that blocks go through one after the other, with reductions over them. `parts` blocks share each group, and
    come back to it `each` times."""

    groups: tuple[Axis, ...] = ()  # the first row axes of the kernel
    parts: Size = 1
    each: int = 1
    preloads: bool = False  # what is the same in all rows of a group is loaded once
    prefetches: bool = False  # the next row is read while one is computed

    @property
    def group_count(self) -> Size:
        return product(axis.size for axis in self.groups)

    @property
    def blocks(self) -> Size:
        return self.group_count * self.parts

    @property
    def has_predicates(self) -> bool:
        return self.unrolled and self.threads <= MANY_THREADS


class RowReductionsBody(RowsBody, of=RowReductions):
    """A grid with reductions over rows being written."""

    grid: RowReductions
    carried: dict[Accumulate, Values]  # what a thread has of each: of its cols, or one; none where it is in memory
    part: Value
    turn: Value

    def write(self) -> None:
        b = self.b
        self._find_team()
        self.carried = {fold: (self._nothing(fold),) * self._count(fold) for fold in self._folds()}
        preloaded = self._preloaded()
        ahead = self._read_row(b.index(0))

        def row(turn: Value, values: list[Value]) -> list[Value]:
            rest = iter(values)
            self.carried, self.turn = named(self.carried, rest), b.convert("trunc", turn, b.index_kind)
            known = self._unpacked(list(rest))
            following = self._read_row(b.add(self.turn, 1))
            self.rows, self.row_mask = self._row(self.turn)
            self.values, self.stored_once, self.registers = {}, {}, preloaded | known
            for stage in self.kernel.stages:
                self._stage(stage)
            if self._waits == 1:
                b.barrier()  # the next row writes to the shared memory that this one is read from
            return [*flat(self.carried), *following]

        self.carried = named(self.carried, b.carried_loop(self._turns(), [*flat(self.carried), *ahead], row))
        self._leave()

    def _dtype(self, fold: Accumulate) -> torch.dtype:
        return self.dtypes[fold.value]

    @property
    def _waits(self) -> int:
        """How many barriers a block passes per row. After two barriers nothing reads data written before the first."""
        if self.grid.team <= self.b.warp:
            return 0
        return sum(any(isinstance(i, Reduce) for i in stage.body) for stage in self.kernel.stages)

    # Rows.

    def _find_team(self) -> None:
        b, grid = self.b, self.grid
        shift = grid.team.bit_length() - 1
        if grid.rows_at_once == 1:
            self.team_number, self.first = b.index(0), b.mul(b.thread(), grid.width)
        else:
            if grid.team >= b.warp:
                self.team_number = b.lshr(b.warp_number(), shift - b.warp.bit_length() + 1)
            else:
                self.team_number = b.lshr(b.thread(), shift) if shift else b.thread()
            self.first = b.mul(b.and_(b.thread(), grid.team - 1), grid.width)
        if grid.team * grid.width > 1:
            self.is_first = b.icmp("eq", self.first, 0)
        self.part, group = b.block_number(), b.index(0)
        if grid.groups:
            count = b.index(grid.group_count)
            self.part = b.binary("udiv", b.block_number(), count)
            group = b.sub(b.block_number(), b.mul(self.part, count))
        self.group = self._coordinates(group, grid.groups)

    def _turns(self) -> Value:
        """How many iterations this block makes over rows, of one or several rows each; the last may have none."""
        b, grid = self.b, self.grid
        if self.grid.rows_at_once > 1:
            return b.const("i64", grid.each)
        count, parts = self.kernel.row_count // grid.group_count, b.const("i64", grid.parts)
        part = b.convert("zext", self.part, "i64")
        return b.binary("udiv", b.sub(b.const("i64", count + grid.parts - 1), part), parts)

    def _row(self, turn: Value, *, beyond: bool = False) -> tuple[Coordinates, Mask]:
        """The row of a turn, and whether it is one; if not, the first. `beyond`: there may be no such turn."""
        b, grid = self.b, self.grid
        axes = self.kernel.rows[len(grid.groups) :]
        count = self.kernel.row_count // grid.group_count
        number = b.add(b.mul(turn, b.index(grid.parts)), self.part)
        if grid.rows_at_once > 1:
            number = b.add(b.mul(number, grid.rows_at_once), self.team_number)
        at_once = grid.rows_at_once * grid.each * grid.parts
        mask: Mask = None
        if beyond or (grid.rows_at_once > 1 and not known_equal(count, at_once)):
            number, mask = b.below(number, count)
        return {**self.group, **self._coordinates(number, axes)}, mask

    # What is read while the row before is computed.

    @property
    def _reads(self) -> list[tuple[Load, int]]:
        """What differs from row to row, by tile; -1 where it is read once a row."""
        if not self.grid.prefetches:
            return []
        kernel, groups = self.kernel, len(self.grid.groups)
        loops = [(load, tile) for tile in range(int(self.grid.tiles)) for load in row_reads(kernel, groups)]
        return [(load, -1) for load in row_reads(kernel, groups, loop=False)] + loops

    def _read_row(self, turn: Value) -> list[Value]:
        """A whole row, unconverted, in words."""
        words: list[Value] = []
        rows, _ = self._row(turn, beyond=True) if self.grid.prefetches else ({}, None)
        for load, tile in self._reads:
            where = rows if tile < 0 else {**rows, **self._cols(self.b.index(tile))[0]}
            constant = self.kernel.buffer(load.buffer).role is Role.INPUT
            raw = self._load(load.buffer, load.index, where, constant=constant)
            words += _packed(self.b, raw)
        return words

    def _unpacked(self, words: Sequence[Value]) -> dict[tuple[str, Index, int], Values]:
        loaded: dict[tuple[str, Index, int], Values] = {}
        first = 0
        for load, tile in self._reads:
            dtype, step = self.kernel.buffer(load.buffer).dtype, self._step_of(load.index)
            width = 1 if known_equal(step, 0) else self.width
            count = _words_of(memory_kind(dtype), width)
            raw = _unpacked(self.b, words[first : first + count], memory_kind(dtype), width)
            loaded[load.buffer, load.index, tile] = tuple(from_memory(self.b, each, dtype) for each in raw)
            first += count
        return loaded

    def _preloaded(self) -> dict[tuple[str, Index, int], Values]:
        """Values that are the same in all rows of this block, loaded once."""
        if not self.grid.unrolled or not self.grid.preloads:
            return {}
        loaded: dict[tuple[str, Index, int], Values] = {}
        self.rows = dict(self.group)
        for tile in range(int(self.grid.tiles)):
            where, _ = self._cols(self.b.index(tile))
            for load in preloadable(self.kernel, len(self.grid.groups)):
                if self.kernel.buffer(load.buffer).role is Role.INPUT:
                    loaded[load.buffer, load.index, tile] = self._loaded(load, {**self.rows, **where}, tile)
        return loaded

    # Reductions.

    def _folds(self, *, looped: bool | None = None) -> list[Accumulate]:
        """All of them, or those in loops over cols or once a row."""
        stages = [stage for stage in self.kernel.stages if looped in (None, stage.loop)]
        return [i for stage in stages for i in stage.body if isinstance(i, Accumulate)]

    def _spans_cols(self, fold: Accumulate) -> bool:
        """Whether there is one result for each col, else one for all."""
        return bool(fold.index.axes & {axis.name for axis in self.kernel.cols})

    def _count(self, fold: Accumulate) -> int:
        """How many values a thread carries of a reduction."""
        if not self._spans_cols(fold):
            return 1
        return int(self.grid.tiles) * self.width if self.grid.unrolled else 0

    def _nothing(self, fold: Accumulate) -> Value:
        return start(self.b, fold.op, self._dtype(fold), 1)

    def _step(self, i: Instruction, where: Coordinates, mask: Mask, tile: int = 0) -> None:
        if not isinstance(i, Accumulate):
            super()._step(i, where, mask, tile)
            return
        values = self._masked(i, self.row_mask if tile < 0 else mask)
        if not self._spans_cols(i):
            values = values if tile < 0 else self._spread(values)
            self._add(i, 0, (halved(values, partial(self._combined, i)),))
        elif self.grid.unrolled:
            self._add(i, tile * self.width, self._spread(values))
        else:
            self._add_in_memory(i, where, self._spread(values))

    def _masked(self, fold: Accumulate, mask: Mask) -> Values:
        values = self.values[fold.value]
        if mask is None:
            return values
        return tuple(self.b.select(mask, each, self._nothing(fold)) for each in values)

    def _combined(self, fold: Accumulate, one: Value, other: Value) -> Value:
        return combine(self.b, fold.op, self._dtype(fold), one, other)

    def _add(self, fold: Accumulate, first: int, values: Values) -> None:
        old, end = self.carried[fold], first + len(values)
        new = tuple(self._combined(fold, *pair) for pair in zip(old[first:end], values, strict=True))
        self.carried[fold] = old[:first] + new + old[end:]

    def _add_in_memory(self, fold: Accumulate, where: Coordinates, values: Values) -> None:
        """Add to this thread's partials in memory. Cols beyond the last repeat the first."""
        b, dtype = self.b, self._dtype(fold)
        begins = b.icmp("eq", self.turn, 0)
        before = self._load(fold.buffer, fold.index, where, constant=False, base=self._base(fold))
        after = []
        for raw, value in zip(before, values, strict=True):
            so_far = b.select(begins, self._nothing(fold), from_memory(b, raw, dtype))
            after.append(self._combined(fold, so_far, value))
        self._put(fold, where, self.col_mask, tuple(after))

    def _base(self, fold: Accumulate) -> Value:
        """Where the partial of this block begins."""
        size = self.kernel.buffer(fold.buffer).size // self.grid.parts
        return self.b.mul(self.part, self.b.index(size))

    def _put(self, fold: Accumulate, where: Coordinates, mask: Mask, values: Values) -> None:
        b, dtype = self.b, self._dtype(fold)
        raw = [to_memory(b, each, dtype) for each in values]
        with b.where(mask):
            self._stored(fold.buffer, fold.index, where, raw, base=self._base(fold))

    # The end.

    def _leave(self) -> None:
        """Reduce the partials of this block's teams and store them to its part."""
        b, grid = self.b, self.grid
        self.rows = dict(self.group)
        spanning = [fold for fold in self.carried if self._spans_cols(fold) and self.carried[fold]]
        totals = self._between_teams(spanning)
        mask = None if grid.rows_at_once == 1 else b.icmp("slt", b.thread(), grid.team)
        for tile in range(int(grid.tiles) if spanning else 0):
            where, inside = self._cols(b.index(tile))
            for fold, values in zip(spanning, totals, strict=True):
                mine = values[tile * grid.width : (tile + 1) * grid.width]
                self._put(fold, {**self.rows, **where}, self._both(mask, inside), mine)
        once, looped = (
            [fold for fold in self._folds(looped=each) if not self._spans_cols(fold)] for each in (False, True)
        )
        wholes = self._between_threads(looped) + [values[0] for values in self._between_teams(once)]
        for fold, value in zip([*looped, *once], wholes, strict=True):
            self._put(fold, self.rows, b.icmp("eq", b.thread(), 0), (value,))

    def _between_threads(self, folds: Sequence[Accumulate]) -> list[Value]:
        if not folds:
            return []
        kinds, values = [(fold.op, self._dtype(fold)) for fold in folds], [self.carried[fold][0] for fold in folds]
        return reduce_team(self.b, kinds, values, self.grid.threads, self.grid.threads)

    def _between_teams(self, folds: Sequence[Accumulate]) -> list[Values]:
        values = [self.carried[fold] for fold in folds]
        if not values or self.grid.rows_at_once == 1:
            return values
        kinds = [(fold.op, self._dtype(fold)) for fold in folds]
        return reduce_teams(self.b, kinds, values, self.grid.team, self.grid.threads)


def _words_of(kind: str, count: int) -> int:
    """How many values so many numbers are carried as."""
    return count // 2 if _is_packed(kind, count) else count


def _is_packed(kind: str, count: int) -> bool:
    return BITS[kind] == 16 and count % 2 == 0


def _packed(b: Simt, values: Sequence[Value]) -> list[Value]:
    """Pairs of 16-bit numbers as words: each pair that a loop carries takes one register then."""
    if not _is_packed(values[0].kind, len(values)):
        return list(values)
    words = [b.convert("zext", b.bits(each) if each.kind.startswith("f") else each, "i32") for each in values]
    return [b.or_(low, b.shl(high, 16)) for low, high in zip(words[::2], words[1::2], strict=True)]


def _unpacked(b: Simt, words: Sequence[Value], kind: str, count: int) -> list[Value]:
    if not _is_packed(kind, count):
        return list(words)
    halves = [b.convert("trunc", each, "i16") for word in words for each in (word, b.lshr(word, 16))]
    return [b.from_bits(each) for each in halves] if kind.startswith("f") else halves
