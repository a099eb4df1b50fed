"""Writes grids of `FewRows`: the sums of a team's warps, in shared memory, and the points of a block.

a warp:   weights of several steps → registers; the same terms of all rows; their products added up; …
          the sums of its lanes → shared memory
barrier
threads:  the sums of all warps of a point, in order; what follows the sums, as in `PhaseBody`
"""

from collections.abc import Sequence
from dataclasses import field
from enum import Enum

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.axes import merged_axes
from smelt.codegen.gpu.grids import Grid
from smelt.codegen.gpu.phase_body import PhaseBody
from smelt.codegen.gpu.simt import Mask, Simt
from smelt.codegen.loops.scalars import cast, constant, from_memory, memory_kind
from smelt.ir.kernel import Axis, Contract, Element, Factor, Index, Kernel, Role
from smelt.ir.loops import Value
from smelt.symbolic.shapes import product

ROW_TILE = 8  # rows of a product of matrices
MATRIX_TERMS = 32  # of two of them, one after the other
_CYCLES, _CYCLE_BYTES = 2_900, 2_620  # of a launch, and what an H200 reads in each after that
_QUAD = 4  # lanes that share a row of a matrix


class Way(Enum):
    ALONG = "along"
    QUANTIZED = "quantized"
    QUANTIZED_MATRIX = "quantized matrix"
    ACROSS = "across"
    MATRIX = "matrix"


@dataclass(frozen=True, slots=True)
class Split:
    """Cols of a team, its warps, teams of a block, and steps whose weights are read before any is multiplied."""

    cols: int
    warps: int
    teams: int
    unroll: int


@dataclass(frozen=True, slots=True)
class FewRows(Grid):
    """How a product of few rows is shared. `left` is the factor whose own axes are `rows`; a lane reads `vector`
    elements at once."""

    kernel: Kernel
    rows: tuple[Axis, ...]
    cols: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    left: Factor
    right: Factor
    way: Way
    vector: int
    warp: int
    split: Split
    threads: int = 0
    body: type["FewRowsBody"] = field(kw_only=True)
    walked: tuple[Axis, ...] = ()  # how the left factor goes along the terms
    units: object = None  # of quantized weights, how the sum runs over their bytes: `quantized_rows.Units`

    @property
    def row_count(self) -> int:
        return int(product(axis.size for axis in self.rows))

    @property
    def col_count(self) -> int:
        return int(product(axis.size for axis in self.cols))

    @property
    def term_count(self) -> int:
        return int(self.inner[0].size)

    @property
    def block_cols(self) -> int:
        return self.split.cols * self.split.teams

    @property
    def blocks(self) -> int:
        return -(-self.col_count // self.block_cols)

    @property
    def by_matrix(self) -> bool:
        """Whether matrix units multiply."""
        return self.way in (Way.MATRIX, Way.QUANTIZED_MATRIX)

    @property
    def held_rows(self) -> int:
        """Rows that a team has sums of."""
        return -(-self.row_count // ROW_TILE) * ROW_TILE if self.by_matrix else self.row_count

    @property
    def tile(self) -> int:
        """Terms that a warp takes at once with matrix units."""
        return _QUAD * self.vector

    @property
    def step(self) -> int:
        """Terms that a team takes at once."""
        if self.by_matrix:
            return self.tile * self.split.warps
        lanes = self.warp * self.vector
        return (lanes // self.split.cols if self.way is Way.ACROSS else lanes) * self.split.warps

    @property
    def cycles(self) -> float:
        """About how many cycles of a large GPU it takes to read the weights."""
        bytes_read = self.col_count * self.term_count * self.kernel.buffer(self.right.buffer).dtype.itemsize
        return _CYCLES + bytes_read / _CYCLE_BYTES


class FewRowsBody(PhaseBody):
    """A grid being written. The ways to multiply differ in `places` and `multiplied`."""

    grid: FewRows
    term: Value  # the first of a thread

    def __init__(self, b: Simt, grid: FewRows) -> None:
        super().__init__(b, grid)
        (self.stage,) = self.kernel.stages
        (self.contract,) = (i for i in self.stage.body if isinstance(i, Contract))
        self.zero = constant(b, 0.0, self.contract.dtype)

    def write(self) -> None:
        b, grid, split = self.b, self.grid, self.grid.split
        warp = b.warp_number()
        self.team = b.lshr(warp, split.warps.bit_length() - 1)
        self.part = b.and_(warp, split.warps - 1)
        self.block = b.mul(b.block_number(), grid.block_cols)
        self.first = b.add(self.block, b.mul(self.team, split.cols))
        self.places()
        sums = self._summed()
        array = b.shared_array(sums[0].kind, split.teams * split.warps * grid.held_rows * split.cols)
        self.kept(array, sums)
        b.barrier()
        self._points(array)

    def places(self) -> None:
        """Where a thread's first terms and weights are."""
        raise NotImplementedError

    def count(self) -> int:
        """How many sums a thread has."""
        raise NotImplementedError

    def multiplied(self, first: Value, steps: int, masks: Sequence[Mask], sums: list[Value]) -> list[Value]:
        """With the products of so many steps from the term `first` on; of each, only where its mask holds."""
        raise NotImplementedError

    def kept(self, array: int, sums: list[Value]) -> None:
        """Store a warp's sums."""
        raise NotImplementedError

    def _summed(self) -> list[Value]:
        """The sums over all terms: full rounds of several steps, then the remaining terms."""
        b, grid, step, terms = self.b, self.grid, self.grid.step, self.grid.term_count
        unroll = grid.split.unroll
        sums = [self.zero] * self.count()
        whole = terms // (step * unroll) * (step * unroll)
        free: list[Mask] = [None] * unroll
        first = 0
        if b.overlaps and whole > step * unroll:  # its first weights are read before it waits for earlier launches
            sums, first = self.multiplied(b.index(0), unroll, free, sums), step * unroll
        if whole - first > step * unroll:

            def some_steps(turn: Value, values: list[Value]) -> list[Value]:
                return self.multiplied(b.convert("trunc", turn, b.index_kind), unroll, free, values)

            sums = b.carried_loop(whole, sums, some_steps, first=first, step=step * unroll)
        elif whole > first:
            sums = self.multiplied(b.index(first), unroll, free, sums)
        if whole < terms:
            sums = self.multiplied(b.index(whole), *self.rest(terms - whole), sums)
        return sums

    def rest(self, terms: int) -> tuple[int, list[Mask]]:
        """Steps for the last terms, and which threads have some in each."""
        b, step = self.b, self.grid.step
        ends = [terms - number * step for number in range(-(-terms // step))]
        masks = [None if end >= step else b.icmp("slt", self.term, b.index(end)) for end in ends]
        return len(masks), masks

    def own_base(self, factor: Factor | Element, axes: tuple[Axis, ...], number: Value) -> Value:
        """Where a row or col of a factor begins. Numbers past the last one count as the last one."""
        b, only = self.b, Index(tuple(each for each in factor.index.terms if each[0] not in self._inner()))
        count = 1
        for axis in axes:
            count *= int(axis.size)
        at = number if number.is_constant else b.smin(number, count - 1)
        walked = merged_axes(axes, [only]) if axes else []
        merged = Index(tuple((axis.name, only.stride(axis.name)) for axis in walked), factor.index.offset)
        return self._offset(merged, self._coordinates(at, tuple(walked)))

    def _inner(self) -> set[str]:
        return {axis.name for axis in self.contract.axes}

    def row_base(self, row: int) -> int:
        """Where a row of the left factor begins, which is known."""
        factor, at = self.grid.left, int(self.grid.left.index.offset)
        for axis in reversed(self.grid.rows):
            row, coordinate = divmod(row, int(axis.size))
            at += coordinate * int(factor.index.stride(axis.name))
        return at

    def read(self, factor: Factor, at: Value, mask: Mask, kind: str = "", width: int = 0) -> list[Value]:
        """Elements side by side; the first ones of the buffer where there is nothing to read."""
        b, buffer = self.b, self.kernel.buffer(factor.buffer)
        at = at if mask is None else b.select(mask, at, 0)
        kind, width = kind or memory_kind(buffer.dtype), width or self.grid.vector
        constant = buffer.role is Role.INPUT
        if factor.buffer not in (self.kernel.early or ()):
            b.wait_for_launches()
        return b.load_global(b.pointer(factor.buffer), at, kind, width, aligned=b.aligned, constant=constant)

    def wide(self, factor: Factor, raw: Sequence[Value], mask: Mask) -> list[Value]:
        """As the sums are; zero where there is nothing."""
        b, dtype = self.b, self.kernel.buffer(factor.buffer).dtype
        values = [cast(b, from_memory(b, each, dtype), dtype, self.contract.dtype) for each in raw]
        return values if mask is None else [b.select(mask, each, self.zero) for each in values]

    def held(self, row: int | Value, col: Value | int) -> Value:
        """Where a warp's sum is in shared memory."""
        b, grid, cols = self.b, self.grid, self.grid.split.cols
        warp = b.mul(b.warp_number(), grid.held_rows * cols)
        return b.add(b.add(warp, b.mul(row, cols) if isinstance(row, Value) else row * cols), col)

    def _points(self, array: int) -> None:
        b, grid, split = self.b, self.grid, self.grid.split
        cols, apart = grid.block_cols, grid.held_rows * split.cols
        total = cols * grid.row_count
        after = [i for i in self.stage.body if i is not self.contract]
        for turn in range(-(-total // grid.threads)):
            number = b.add(b.thread(), turn * grid.threads) if turn else b.thread()
            mask: Mask = None
            if (turn + 1) * grid.threads > total:
                number, mask = b.below(number, total)
            col, row = b.and_(number, cols - 1), b.lshr(number, cols.bit_length() - 1)
            team = b.lshr(col, split.cols.bit_length() - 1)
            at = b.add(b.mul(team, split.warps * apart), b.add(b.mul(row, split.cols), b.and_(col, split.cols - 1)))
            kind = self.zero.kind
            value = b.load_shared(array, at, kind)
            for warp in range(1, split.warps):
                value = b.fadd(value, b.load_shared(array, b.add(at, warp * apart), kind))
            across, within = self._within(b.add(self.block, col), grid.cols, cols)
            down = self._coordinates(row, grid.rows)
            self.values = {self.contract.out: (value,)}
            self.run(after, {**down, **across}, self._both(mask, within), turn)


class AlongBody(FewRowsBody):
    """Weights contiguous along the terms: a lane has some terms of each col of its team."""

    def places(self) -> None:
        b, grid, split = self.b, self.grid, self.grid.split
        self.term = b.mul(b.add(b.mul(self.part, grid.warp), b.lane()), grid.vector)
        self.bases = [
            b.add(self.own_base(grid.right, grid.cols, b.add(self.first, col)), self.term) for col in range(split.cols)
        ]

    def count(self) -> int:
        return self.grid.row_count * self.grid.split.cols

    def multiplied(self, first: Value, steps: int, masks: Sequence[Mask], sums: list[Value]) -> list[Value]:
        b, grid, cols = self.b, self.grid, self.grid.split.cols
        firsts = [b.add(first, number * grid.step) if number else first for number in range(steps)]
        weights = [
            [self.read(grid.right, b.add(base, at), mask) for base in self.bases]
            for at, mask in zip(firsts, masks, strict=True)
        ]
        b.wait_for_launches()
        sums = list(sums)
        for at, mask, raw in zip(firsts, masks, weights, strict=True):
            ours = [self.wide(grid.right, each, mask) for each in raw]
            term = self._left_place(b.add(at, self.term))
            for row in range(grid.row_count):
                theirs = self.wide(grid.left, self.read(grid.left, b.add(term, self.row_base(row)), mask), mask)
                for col, own in enumerate(ours):
                    total = sums[row * cols + col]
                    for x, w in zip(theirs, own, strict=True):
                        total = b.fma(x, w, total)
                    sums[row * cols + col] = total
        return sums

    def _left_place(self, term: Value) -> Value:
        """Where the left factor has a term, from the beginning of its row."""
        walked = self.grid.walked
        if len(walked) == 1:
            return term
        steps = tuple((axis.name, self.grid.left.index.stride(axis.name)) for axis in walked)
        return self._offset(Index(steps), self._coordinates(term, walked))

    def kept(self, array: int, sums: list[Value]) -> None:
        b, cols = self.b, self.grid.split.cols
        whole = [b.across_lanes(each, b.fadd, 1, self.grid.warp) for each in sums]
        with b.where(b.icmp("eq", b.lane(), 0)):
            for place, each in enumerate(whole):
                b.store_shared(array, self.held(place // cols, b.index(place % cols)), each)


class AcrossBody(FewRowsBody):
    """Weights contiguous along the cols: a lane has some cols of each of its terms."""

    def places(self) -> None:
        b, grid = self.b, self.grid
        self.lanes = grid.split.cols // grid.vector
        shift = self.lanes.bit_length() - 1
        self.term = b.add(b.mul(self.part, grid.warp // self.lanes), b.lshr(b.lane(), shift))
        self.col = b.mul(b.and_(b.lane(), self.lanes - 1), grid.vector)
        (inner,) = grid.inner
        self.down = int(grid.right.index.stride(inner.name)), int(grid.left.index.stride(inner.name))
        own = self.own_base(grid.right, grid.cols, self._whole(b.add(self.first, self.col)))
        self.base = b.add(own, b.mul(self.term, self.down[0]))

    def _whole(self, col: Value) -> Value:
        """The first column that a lane reads; past the end, the last columns."""
        return self.b.smin(col, self.grid.col_count - self.grid.vector)

    def count(self) -> int:
        return self.grid.row_count * self.grid.vector

    def multiplied(self, first: Value, steps: int, masks: Sequence[Mask], sums: list[Value]) -> list[Value]:
        b, grid, vector = self.b, self.grid, self.grid.vector
        firsts = [b.add(first, number * grid.step) if number else first for number in range(steps)]
        weights = [
            self.read(grid.right, b.add(self.base, b.mul(at, self.down[0])), mask)
            for at, mask in zip(firsts, masks, strict=True)
        ]
        b.wait_for_launches()
        sums = list(sums)
        for at, mask, raw in zip(firsts, masks, weights, strict=True):
            own = self.wide(grid.right, raw, mask)
            term = b.mul(b.add(at, self.term), self.down[1])
            for row in range(grid.row_count):
                place = b.add(term, self.row_base(row))
                (x,) = self.wide(grid.left, self.read(grid.left, place, mask, width=1), mask)
                for col, w in enumerate(own):
                    sums[row * vector + col] = b.fma(x, w, sums[row * vector + col])
        return sums

    def kept(self, array: int, sums: list[Value]) -> None:
        b, grid = self.b, self.grid
        whole = [b.across_lanes(each, b.fadd, self.lanes, grid.warp) for each in sums]
        with b.where(b.icmp("slt", b.lane(), self.lanes)):
            for place, each in enumerate(whole):
                row, way = divmod(place, grid.vector)
                b.store_shared(array, self.held(row, b.add(self.col, way)), each)


class MatrixBody(FewRowsBody):
    """By matrix units, whose rows are cols of the weights. The order of terms is free as long as both factors have the
    same one: a lane reads eight terms in a row, which are its elements of two products."""

    def places(self) -> None:
        b, grid = self.b, self.grid
        self.group, self.place = b.lshr(b.lane(), 2), b.and_(b.lane(), _QUAD - 1)
        # A warp's steps at once lie side by side: in rows of the weights, it reads long runs.
        self.term = b.add(b.mul(self.part, grid.tile * grid.split.unroll), b.mul(self.place, grid.vector))
        cols = [
            b.add(self.first, b.add(self.group, more)) if more else b.add(self.first, self.group) for more in (0, 8)
        ]
        self.bases = [b.add(self.own_base(grid.right, grid.cols, col), self.term) for col in cols]
        rows = [b.add(self.group, more) if more else self.group for more in range(0, grid.held_rows, ROW_TILE)]
        self.lefts = [self.own_base(grid.left, grid.rows, row) for row in rows]

    def count(self) -> int:
        return 4 * len(self.lefts)

    @property
    def kind(self) -> str:
        """What is multiplied."""
        return "f16" if self.kernel.buffer(self.grid.left.buffer).dtype is torch.float16 else "bf16"

    def rest(self, terms: int) -> tuple[int, list[Mask]]:
        b, unroll = self.b, self.grid.split.unroll
        masks = [b.icmp("slt", self.term, b.index(terms - number * self.grid.tile)) for number in range(unroll)]
        return unroll, list(masks)

    def firsts(self, first: Value, steps: int) -> list[Value]:
        """Where a warp's tiles begin."""
        return [self.b.add(first, number * self.grid.tile) if number else first for number in range(steps)]

    def pairs(self, factor: Factor, at: Value, mask: Mask, count: int) -> list[Value]:
        """So many words, each of two terms; zero where there is nothing."""
        b = self.b
        if b.aligned:
            words = self.read(factor, b.lshr(at, 1), mask, "i32", count)
        else:
            halves = [b.convert("bitcast", each, "i16") for each in self.read(factor, at, mask, width=2 * count)]
            wide = [b.convert("zext", each, "i32") for each in halves]
            words = [b.or_(low, b.shl(high, 16)) for low, high in zip(wide[::2], wide[1::2], strict=True)]
        return words if mask is None else [b.select(mask, each, 0) for each in words]

    def multiplied(self, first: Value, steps: int, masks: Sequence[Mask], sums: list[Value]) -> list[Value]:
        b, grid = self.b, self.grid
        places = list(zip(self.firsts(first, steps), masks, strict=True))
        weights = [
            [self.pairs(grid.right, b.add(base, at), mask, grid.vector // 2) for base in self.bases]
            for at, mask in places
        ]
        b.wait_for_launches()
        lefts = [
            [self.pairs(grid.left, b.add(base, b.add(at, self.term)), mask, grid.vector // 2) for base in self.lefts]
            for at, mask in places
        ]
        sums = list(sums)
        for (upper, lower), rows in zip(weights, lefts, strict=True):
            for half in (0, 2):
                a = [upper[half], lower[half], upper[half + 1], lower[half + 1]]
                for tile, words in enumerate(rows):
                    place = slice(4 * tile, 4 * tile + 4)
                    sums[place] = b.mma(self.kind, a, words[half : half + 2], sums[place])
        return sums

    def kept(self, array: int, sums: list[Value]) -> None:
        b = self.b
        for number, each in enumerate(sums):
            tile, place = divmod(number, 4)
            row = b.add(b.mul(self.place, 2), tile * ROW_TILE + place % 2)
            b.store_shared(array, self.held(row, b.add(self.group, place // 2 * 8)), each)

