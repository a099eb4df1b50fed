"""Products of two factors that are contiguous along the sum, `x @ w.t()`, with vectors along the sum.

    for 6 rows of w: for 4 rows of x: 24 vectors of sums; at each step along k 4 + 6 loads, 24 multiplications
    → at the end, 4 vectors of sums become one of their totals by adding neighbours, twice

The right factor is read once, in place. The left factor is copied first, 4 rows side by side, so that one pointer reads
it whatever its strides are, and its rows do not compete with each other or with the right factor for cache sets.
"""

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu.entry_points import params
from smelt.codegen.cpu.products.micro_kernel import products_added, vectors_of
from smelt.codegen.cpu.products.problem import Problem
from smelt.codegen.cpu.products.streamed_blocks import (
    StreamedBlock,
    StreamedBlocks,
    StreamedSchedule,
    block_lanes,
    is_streamed,
)
from smelt.codegen.loops.arrays import Array
from smelt.codegen.loops.builder import Builder
from smelt.device import Target
from smelt.ir.loops import BITS, Function, Value
from smelt.ir.tensorspec import short_name
from smelt.symbolic.symsize import hint, is_symsize, known_equal

_REGISTER_BITS = 128  # neighbours are added within so many bits, on every target
_DEPTH = 2048  # of a sum, before it is added to what the block's array has: more of the left factor fits no cache
_LANE_DEPTH = 256  # and of a lane's share, for accuracy
_ROWS = 64  # of a block: more would be worth packing both factors
_COLS = 48
_AHEAD = 256  # bytes, where each row of the right factor is multiplied with several of the left
_ALONE_AHEAD = 1024  # and where it is with one
_MOST_ROWS = 8  # of a tile


@dataclass(frozen=True, slots=True)
class DotTile:
    """`rows` × `cols` results at a time, in vectors of `lanes` along the sum, `unroll` of them a step."""

    rows: int
    cols: int
    lanes: int
    unroll: int
    ahead: int = 0  # bytes of the right factor that are asked for early


def _why_no_tile(problem: Problem) -> str | None:
    if is_symsize(problem.depth):
        return "how long the sum is varies"
    if not known_equal(problem.k[0].right, 1):
        return "the right factor is not contiguous along the sum"
    return "too few products for a vector" if problem.depth < _group(problem) else None


def _group(problem: Problem) -> int:
    """How many sums a register of 128 bits has room for."""
    return _REGISTER_BITS // (8 * problem.dtype.itemsize)


def _tile_of(problem: Problem, target: Target) -> DotTile:
    """The shape with least to do: rows and columns that tiles leave over are computed in vain."""
    bits = max(target.vector_bits, _REGISTER_BITS)  # less than that is several registers at once
    lanes = bits // (8 * problem.dtype.itemsize)
    registers = target.vector_registers * target.vector_bits // bits
    while lanes > problem.depth:
        lanes //= 2
    if problem.rows <= 2 and problem.depth >= 16 * lanes:
        # Memory is what takes time: two or four rows of it at once, in steps of whole cache lines.
        return DotTile(1, 2, lanes, 8, _ALONE_AHEAD) if problem.rows == 1 else DotTile(2, 4, lanes, 2, _AHEAD)
    most = registers - 8 if registers >= 32 else registers - 4
    tiles = [
        DotTile(rows, cols, lanes, 1, _AHEAD if is_streamed(problem) and problem.rows <= rows else 0)
        for rows in range(1, _MOST_ROWS + 1)
        for cols in range(1, _MOST_ROWS + 1)
        if rows * cols <= most
    ]
    return min(tiles, key=lambda tile: _tiles_cost(problem, tile))


def _tiles_cost(problem: Problem, tile: DotTile) -> float:
    """In cycles: two multiplications and two loads each, and what loops and waiting for the first of them take; then
    the sums of lanes."""
    count = -(-problem.rows // tile.rows) * -(-problem.cols // tile.cols)
    waits = 2 if is_streamed(problem) and not tile.ahead else 1
    step = max(tile.rows * tile.cols / 2, 4.0) + 0.15 * (tile.rows + tile.cols) + waits
    group, vectors = _group(problem), tile.rows * -(-tile.cols // _group(problem))
    return count * (problem.depth / tile.lanes * step + 8 + vectors * (2 * group + tile.lanes // group))


def _blocks_of(problem: Problem, target: Target, tile: DotTile) -> StreamedBlocks:
    col_step = -(-min(_COLS, hint(problem.cols)) // tile.cols) * tile.cols
    lanes = block_lanes(problem, target, col_step)
    while col_step % lanes:
        col_step += tile.cols
    row_step = min(_ROWS // tile.rows * tile.rows, hint(problem.rows))
    block_rows = -(-row_step // tile.rows) * tile.rows
    pitch = -(-(col_step + lanes) // tile.cols) * tile.cols + _group(problem)
    steps = -(-problem.depth // tile.lanes)
    return StreamedBlocks(problem, lanes, lanes, row_step, col_step, pitch, block_rows, block_rows * steps * tile.lanes)


def _compute(b: Builder, blocks: StreamedBlocks, block: StreamedBlock, tile: DotTile) -> None:
    problem = blocks.problem
    with b.when(block.fresh):
        _pack_left(b, problem, tile, block)
    steep, apart = -(-problem.depth // tile.lanes) * tile.lanes, problem.n[0].right if problem.n else 0
    most = min(_DEPTH, _LANE_DEPTH * tile.lanes)
    for first in range(0, problem.depth, most):
        depth = min(most, problem.depth - first)
        dots = _Dots(b.target, problem, tile, depth % tile.lanes, adds=first > 0)
        left, right = block.packed.at(first * tile.rows).pointer, block.right.at(first).pointer
        sizes = (block.sums.pointer, blocks.pitch, block.rows, block.cols, depth)
        b.call_helper(dots.write(), left, steep, right, apart, *sizes)


SCHEDULE = StreamedSchedule(_why_no_tile, _tile_of, _tiles_cost, 0.5, _blocks_of, _compute)


# The left factor.


def _pack_left(b: Builder, problem: Problem, tile: DotTile, block: StreamedBlock) -> None:
    """Pack the rows of a block in tiles: at each step along the sum, a vector of each row. A last vector is zero where
    it overlaps the previous one; missing rows of a last tile repeat the last row."""
    lanes, apart, step = tile.lanes, problem.m[0].left if problem.m else 0, problem.k[0].left
    whole = problem.depth // lanes * lanes
    with b.loop(0, block.rows, tile.rows) as first:
        place = block.packed.at(b.mul(first, -(-problem.depth // lanes) * lanes))
        numbers = [b.smin(b.add(first, number), b.sub(block.rows, 1)) for number in range(tile.rows)]
        lines = [block.left.at(b.mul(row, apart)) for row in numbers]

        def vector(line: Array, at: Value) -> Value:
            start = line.at(b.mul(at, step))
            if known_equal(step, 1):
                return start.load_as(problem.dtype, 0, lanes)
            return b.gathered([start.load_as(problem.dtype, lane * step) for lane in range(lanes)])

        with b.loop(0, whole, lanes) as column:
            to = place.at(b.mul(column, tile.rows))
            for number, line in enumerate(lines):
                to.store(vector(line, column), number * lanes)
        if whole < problem.depth:
            to, fresh = place.at(whole * tile.rows), b.last_lanes(problem.depth % lanes, lanes)
            for number, line in enumerate(lines):
                last = vector(line, b.const("i64", problem.depth - lanes))
                to.store(b.select(fresh, last, 0.0), number * lanes)


# The sums.

_TAKEN = _LEFT, _STEEP, _RIGHT, _APART, _SUMS, _PITCH, _ROW_COUNT, _WIDTH, _STEPS = params(
    "ptr left, i64 steep, ptr right, i64 apart, ptr sums, i64 pitch, i64 rows, i64 cols, i64 depth"
)


class _Dots:
    """The function that computes a block: rows of a packed left factor, `steep` elements each, by `cols` rows of the
    right factor, `apart` from each other; `depth` elements; the last `rest` do not fill a vector. With `adds`,
    to what is in the array already."""

    def __init__(self, target: Target, problem: Problem, tile: DotTile, rest: int, *, adds: bool) -> None:
        self.problem, self.tile, self.rest, self.adds, self.dtype = problem, tile, rest, adds, problem.dtype
        kinds = f"{short_name(problem.right_dtype)}.{short_name(problem.dtype)}"
        shape = f"{tile.rows}x{tile.cols}x{tile.lanes}.{tile.unroll}"
        more = (f".ahead{tile.ahead}" if tile.ahead else "") + (".adds" if adds else "")
        self.name = f"smelt.dot.{kinds}.{shape}.rest{rest}{more}"
        self.b = Builder(target)

    def write(self) -> Function:
        b, tile, right = self.b, self.tile, Array(self.b, _RIGHT, self.problem.right_dtype)
        left, sums = (Array(b, each, self.dtype) for each in (_LEFT, _SUMS))
        with b.loop(0, _WIDTH, tile.cols) as column:
            cols = [b.smin(b.add(column, number), b.sub(_WIDTH, 1)) for number in range(tile.cols)]
            lines = [right.at(b.mul(col, _APART)) for col in cols]
            with b.loop(0, _ROW_COUNT, tile.rows) as row:
                vectors = self._along(lines, left.at(b.mul(row, _STEEP)))
                corner = sums.at(b.add(b.mul(row, _PITCH), column))
                for number in range(tile.rows):
                    totals = vectors[number * tile.cols : (number + 1) * tile.cols]
                    store_totals(totals, corner.at(b.mul(_PITCH, number)), adds=self.adds)
        return b.function(self.name, _TAKEN, "shared")

    def _along(self, lines: list[Array], panel: Array) -> list[Value]:
        """The loop along the sum of one tile, in as many sets of sums as the processor keeps in flight."""
        b, tile = self.b, self.tile
        count, sets = tile.rows * tile.cols, 2 if tile.unroll > 1 else 1
        whole = b.and_(_STEPS, -tile.lanes * tile.unroll)
        started = [panel.zero(tile.lanes)] * (count * sets)
        loop = b.begin(0, whole, tile.lanes * tile.unroll, started, guard=tile.unroll > 1 or self.rest > 0)
        sums = list(loop.values)
        for line in lines if tile.ahead else ():
            b.prefetch(b.element(line.at(loop.index).pointer, "i8", tile.ahead))
        for number in range(tile.unroll):
            taken = slice(number % sets * count, (number % sets + 1) * count)
            sums[taken] = self._step(lines, panel, b.add(loop.index, number * tile.lanes), sums[taken])
        sums = list(loop.end(*sums))
        if sets > 1:
            sums = [b.fadd(one, other) for one, other in zip(sums[:count], sums[count:], strict=True)]
            single = b.begin(whole, b.and_(_STEPS, -tile.lanes), tile.lanes, sums, guard=True)
            sums = list(single.end(*self._step(lines, panel, single.index, list(single.values))))
        if not self.rest:
            return sums
        # A last vector that overlaps the previous one: elements seen before are zero in both factors.
        fresh = b.last_lanes(self.rest, tile.lanes)
        last = [b.select(fresh, self._right(line, b.sub(_STEPS, tile.lanes)), 0.0) for line in lines]
        return products_added(b, self._left(panel, b.and_(_STEPS, -tile.lanes)), last, sums)

    def _step(self, lines: list[Array], panel: Array, at: Value, sums: list[Value]) -> list[Value]:
        return products_added(self.b, self._left(panel, at), [self._right(line, at) for line in lines], sums)

    def _left(self, panel: Array, at: Value) -> list[Value]:
        return vectors_of(panel.at(self.b.mul(at, self.tile.rows)), self.tile.rows, self.tile.lanes)

    def _right(self, line: Array, at: Value) -> Value:
        return line.load_as(self.dtype, at, self.tile.lanes)


def store_totals(sums: list[Value], place: Array, *, adds: bool = False) -> None:
    """Store the lane sums of a row of vectors, a register at a time; with `adds`, added to what is there. The excess is
    overwritten by the next tile or not read."""
    b, lanes, group = place.b, sums[0].lanes, _REGISTER_BITS // BITS[sums[0].kind]
    for first in range(0, len(sums), group):
        together, to = sums[first : first + group], place.at(first)
        beyond = to.zero(lanes) if adds else together[-1]
        totals = _totals(b, together + [beyond] * (group - len(together)))
        to.store(b.fadd(totals, to.load(0, group)) if adds else totals)


def _totals(b: Builder, sums: list[Value]) -> Value:
    """The lane sums of several vectors as one vector of 128 bits."""
    while len(sums) > 1:
        sums = [_neighbours_added(b, *sums[place : place + 2]) for place in range(0, len(sums), 2)]
    (total,) = sums
    while total.lanes > _REGISTER_BITS // BITS[total.kind]:
        half = total.lanes // 2
        low, high = (b.permute(total, range(first, first + half)) for first in (0, half))
        total = b.fadd(low, high)
    return total


def _neighbours_added(b: Builder, one: Value, other: Value) -> Value:
    """In each 128 bits: the sums of adjacent elements of `one`, then those of `other`."""
    group = _REGISTER_BITS // BITS[one.kind]
    parts = []
    for odd in (0, 1):
        order = []
        for first in range(0, one.lanes, group):
            even = range(first + odd, first + group, 2)
            order += [*even, *(place + one.lanes for place in even)]
        parts.append(b.permute(one, order, other))
    return b.fadd(*parts)
