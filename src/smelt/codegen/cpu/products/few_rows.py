"""Products of few rows by a right factor that is contiguous along its columns, `x @ w`, with vectors along the columns.

    for 32 rows of w: for 12 columns: 8 × 12 sums, to which 32 products are added each; then the next columns
    → w is read in a few long runs side by side, each element once

The right factor is not copied. The left factor is: the rows of a tile side by side, for each step along the sum. The
block's array keeps the sums from one run of rows to the next. Long sums are computed in parts, which are added up at
their ends: this rounds less than one addition for each run.
"""

import functools

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu.entry_points import params
from smelt.codegen.cpu.products.micro_kernel import products_added, spread
from smelt.codegen.cpu.products.panel_copies import pack_matrix
from smelt.codegen.cpu.products.problem import Problem
from smelt.codegen.cpu.products.streamed_blocks import StreamedBlock, StreamedBlocks, StreamedSchedule, block_lanes
from smelt.codegen.cpu.products.tile_shape import Count, parts
from smelt.codegen.loops.arrays import Array
from smelt.codegen.loops.builder import Builder
from smelt.device import Target
from smelt.ir.loops import Function, Value
from smelt.ir.tensorspec import short_name
from smelt.symbolic.symsize import hint, known_at_least, known_equal

_REGISTER_BITS = 128
_MOST_ROWS = 8  # of a tile
_ROWS = 64  # of a block
_ARRAY_BYTES = 16 * 1024  # of a block's sums: they stay in the first cache
_LEAST_COLS = 64  # of a block
_DEPTH = 32  # rows of the right factor at a time
_REST_DEPTH = 64  # and for columns that are no whole tile
_CROWDED = 4096  # bytes between rows of which a multiple puts all of them in the same few places of the cache
_CROWDED_DEPTH = 16
_CACHE_LINE = 64
_ALONE_DEPTH, _ALONE_VECTORS, _ALONE_BYTES = 8, 8, 256  # where there is one row to multiply with
_RUNS = 32  # of steps in a part of the sum


@dataclass(frozen=True, slots=True)
class RowsTile:
    """`rows` × `vectors` of `lanes` sums at a time; `depth` steps along the sum before the columns that follow."""

    rows: int
    vectors: int
    lanes: int
    depth: int
    prefetches: bool  # what is beside it: the processor sees two rows go on by itself, but not thirty
    group: int  # rows of a step are stored in whole registers of so many
    unroll: int = 1

    @property
    def cols(self) -> int:
        return self.vectors * self.lanes

    @property
    def part(self) -> int:
        """Steps of a sum before it is added to those before it."""
        return _RUNS * self.depth

    @property
    def stored_rows(self) -> int:
        return -(-self.rows // self.group) * self.group


def _why_no_tile(problem: Problem) -> str | None:
    along = problem.n and known_equal(problem.n[0].right, 1)
    return None if along else "the right factor is not contiguous along columns"


def _tile_of(problem: Problem, target: Target) -> RowsTile:
    """The shape with least to do: rows that tiles leave over are computed in vain."""
    lanes = target.vector_bits // (8 * problem.dtype.itemsize)
    while lanes > problem.cols:
        lanes //= 2
    apart = problem.k[0].right * problem.right_dtype.itemsize
    depth = _CROWDED_DEPTH if apart % _CROWDED == 0 else _DEPTH
    group = _REGISTER_BITS // (8 * problem.dtype.itemsize)
    vectors = max(1, problem.cols // lanes)
    if problem.rows == 1:
        vectors = min(_ALONE_VECTORS, vectors, max(1, _ALONE_BYTES * 8 // target.vector_bits))
        return RowsTile(1, vectors, lanes, _ALONE_DEPTH, False, group, _ALONE_DEPTH)
    most = target.vector_registers - 8 if target.vector_registers >= 32 else target.vector_registers - 4
    tiles = [
        RowsTile(rows, count, lanes, depth, True, group)
        for rows in range(1, _MOST_ROWS + 1)
        for count in (1, 2, 4)  # whole cache lines, or parts of one
        if count <= vectors and rows * count <= most
    ]
    return min(tiles, key=lambda tile: _tiles_cost(problem, tile))


def _tiles_cost(problem: Problem, tile: RowsTile) -> float:
    """In cycles: two multiplications and two loads each, and what loops and waiting for the first of them take."""
    count = -(-problem.rows // tile.rows) * -(-problem.cols // tile.cols)
    step = max(tile.rows * tile.vectors / 2, 4.0) + 0.3 * (tile.vectors + tile.rows / 2) + 1.5
    return count * problem.depth * (step + tile.rows * tile.vectors * 1.5 / tile.depth)


def _blocks_of(problem: Problem, target: Target, tile: RowsTile) -> StreamedBlocks:
    """Blocks as wide as the cache allows, so that rows of the right factor are read in long runs; if there is one row
    of blocks, it is cut into pieces that threads share, and each thread joins its own pieces."""
    row_step = min(_ROWS // tile.rows * tile.rows, hint(problem.rows))
    block_rows = -(-row_step // tile.rows) * tile.rows
    most = max(_LEAST_COLS, _ARRAY_BYTES // (block_rows * problem.dtype.itemsize))
    in_a_row = known_equal(problem.batches, 1) and known_equal(row_step, problem.rows)
    cols = hint(problem.cols)
    lanes = block_lanes(problem, target, cols)
    col_step = tile.cols
    while col_step % lanes or col_step < min(_LEAST_COLS if in_a_row else most, cols):
        col_step += tile.cols
    joined = max(1, most // col_step) if in_a_row else 1
    least = max(lanes, tile.cols)
    pitch = joined * col_step + least + tile.lanes
    left_size = block_rows // tile.rows * tile.stored_rows * problem.depth
    array_rows = block_rows if known_at_least(tile.part, problem.depth) else 2 * block_rows
    return StreamedBlocks(problem, lanes, least, row_step, col_step, pitch, array_rows, left_size, joined)


def _compute(b: Builder, blocks: StreamedBlocks, block: StreamedBlock, tile: RowsTile) -> None:
    problem = blocks.problem
    rows = _rows(problem.right_dtype, problem.dtype, tile, _REST_DEPTH, b.target)
    with b.when(block.fresh):
        strides = problem.m[0].left if problem.m else 0, problem.k[0].left
        pack_matrix(block.left, strides, (block.rows, problem.depth), block.packed, tile.stored_rows, tile.rows)
    packed, right, sums = (each.pointer for each in (block.packed, block.right, block.sums))
    sizes = (block.rows, block.cols, problem.depth)
    b.call_helper(rows, packed, right, problem.k[0].right, sums, blocks.pitch, *sizes)


SCHEDULE = StreamedSchedule(_why_no_tile, _tile_of, _tiles_cost, 1, _blocks_of, _compute)


# The sums.

_TAKEN = _LEFT, _RIGHT, _APART, _SUMS, _PITCH, _COUNT, _WIDTH, _STEPS = params(
    "ptr left, ptr right, i64 apart, ptr sums, i64 pitch, i64 rows, i64 cols, i64 depth"
)


@functools.cache
def _rows(source: torch.dtype, dtype: torch.dtype, tile: RowsTile, rest_depth: int, target: Target) -> Function:
    """Computes a block: rows of a packed left factor by `cols` columns of the right one, whose rows are `apart` from
    each other. Parts of the sum after the first are computed in rows behind those of the sums, if there are any."""
    b = Builder(target)
    last, behind = b.sub(_WIDTH, tile.cols), b.mul(b.mul(parts(Count(b, _COUNT), tile.rows).value, tile.rows), _PITCH)
    with b.loop(0, _STEPS, tile.part) as first:
        end, is_later = b.smin(b.add(first, tile.part), _STEPS), b.icmp("sgt", first, 0)
        writer = _Rows(b, source, dtype, tile, first, b.select(is_later, behind, 0))
        with b.loop(first, end, tile.depth) as run:
            until = b.smin(b.add(run, tile.depth), end)
            with b.loop(0, _COUNT, tile.rows) as row:
                panel, line = writer.row(row)
                with b.loop(0, b.add(last, 1), tile.cols) as column:
                    writer.tile(panel, line, column, (run, until))
        # Columns that are no whole tile: one that overlaps the tile before it, after all others.
        is_cut = b.icmp("ne", b.urem(_WIDTH, tile.cols), 0)
        with b.when(is_cut), b.loop(first, end, rest_depth) as run:
            until = b.smin(b.add(run, rest_depth), end)
            with b.loop(0, _COUNT, tile.rows) as row:
                writer.tile(*writer.row(row), last, (run, until))
        with b.when(is_later), b.loop(0, _COUNT) as row:
            line = Array(b, _SUMS, dtype).at(b.mul(row, _PITCH))
            with b.loop(0, _WIDTH, tile.lanes) as column:
                line.store(b.fadd(line.load(column, tile.lanes), line.at(behind).load(column, tile.lanes)), column)
    name = f"smelt.rows.{short_name(source)}.{short_name(dtype)}.{tile.rows}x{tile.vectors}x{tile.lanes}.{tile.depth}"
    return b.function(name, _TAKEN, "shared")


class _Rows:
    """Writes the tiles of a part of the sum: from `first` on, into the array from `place` on."""

    def __init__(
        self, b: Builder, source: torch.dtype, dtype: torch.dtype, tile: RowsTile, first: Value, place: Value
    ) -> None:
        self.b, self.shape, self.dtype, self.first = b, tile, dtype, first
        self.left, self.right = Array(b, _LEFT, dtype), Array(b, _RIGHT, source)
        self.sums = Array(b, _SUMS, dtype).at(place)

    def row(self, first: Value) -> tuple[Array, Array]:
        """Where the rows of a tile are in the left factor, and their sums in the array."""
        b, tile = self.b, self.shape
        panel = self.left.at(b.mul(b.mul(b.udiv(first, tile.rows), tile.stored_rows), _STEPS))
        return panel, self.sums.at(b.mul(first, _PITCH))

    def tile(self, panel: Array, line: Array, column: Value, run: tuple[Value, Value]) -> None:
        """Add the products of a run of steps to the sums of a tile, which are zero at the beginning."""
        b, tile = self.b, self.shape
        sums = self._along(panel, column, *run)

        def places() -> list[Array]:
            starts = [line.at(b.add(b.mul(_PITCH, number), column)) for number in range(tile.rows)]
            return [start.at(number * tile.lanes) for start in starts for number in range(tile.vectors)]

        def store(totals: list[Value]) -> None:
            for place, total in zip(places(), totals, strict=True):
                place.store(total)

        def adds() -> None:
            before = [place.load(0, tile.lanes) for place in places()]
            store([b.fadd(old, new) for old, new in zip(before, sums, strict=True)])

        b.choice(b.icmp("sgt", run[0], self.first), adds, lambda: store(sums))

    def _along(self, panel: Array, column: Value, first: Value, until: Value) -> list[Value]:
        """The loop along the sum of one tile, starting at zero: shorter partial sums are more accurate."""
        b, tile = self.b, self.shape
        sums = [panel.zero(tile.lanes)] * (tile.rows * tile.vectors)
        here = self.right.at(column)
        if tile.unroll > 1:
            whole = b.add(first, b.and_(b.sub(until, first), -tile.unroll))
            several = b.begin(first, whole, tile.unroll, sums, guard=True)
            sums = list(several.values)
            for number in range(tile.unroll):
                sums = self._step(panel, here, b.add(several.index, number), sums)
            first, sums = whole, list(several.end(*sums))
        loop = b.begin(first, until, 1, sums, guard=tile.unroll > 1)
        return list(loop.end(*self._step(panel, here, loop.index, list(loop.values))))

    def _step(self, panel: Array, here: Array, at: Value, sums: list[Value]) -> list[Value]:
        b, tile = self.b, self.shape
        line = here.at(b.mul(at, _APART))
        size = tile.cols * line.dtype.itemsize
        for place in range(0, size, _CACHE_LINE) if tile.prefetches else ():
            b.prefetch(b.element(line.pointer, "i8", max(_CACHE_LINE, size) + place))
        right = [line.load_as(self.dtype, number * tile.lanes, tile.lanes) for number in range(tile.vectors)]
        column = panel.at(b.mul(at, tile.stored_rows))
        left = spread(column, tile.rows, tile.lanes, tile.group if tile.rows > 1 else 0)
        return products_added(b, left, right, sums)
