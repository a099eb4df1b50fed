"""Products of few rows by a right factor that is contiguous along its columns, `x @ w`, with vectors along the columns.

    for 32 rows of w: for 12 columns: 8 × 12 sums, to which 32 products are added each; then the next columns
    → w is read in a few long runs side by side, each element once

The right factor is not copied. The left factor is: the rows of a tile side by side, for each step along the sum. The
block's array keeps the sums from one run of rows to the next.
"""

import functools

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu.products import streamed_blocks as blocks
from smelt.codegen.cpu.products.parts import params
from smelt.codegen.cpu.products.problem import Problem, at_example
from smelt.codegen.cpu.products.streamed_blocks import StreamedBlock, StreamedBlocks
from smelt.codegen.generator import EntryCode
from smelt.codegen.loops.builder import Builder
from smelt.codegen.loops.runtime_sizes import Sizes
from smelt.codegen.loops.scalars import cast, from_memory, memory_kind
from smelt.device import Target
from smelt.ir.loops import Function, Value
from smelt.ir.tensorspec import short_name
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import hint, known_equal

_REGISTER_BITS = 128
_MOST_ROWS = 8  # of a tile
_ROWS = 64  # of a block
_ARRAY_BYTES = 16 * 1024  # of a block's sums: they stay in the first cache
_LEAST_COLS = 64  # of a block
_DEPTH = 32  # rows of the right factor at a time
_REST_DEPTH = 256  # and for columns that are no whole tile
_CROWDED = 4096  # bytes between rows of which a multiple puts all of them in the same few places of the cache
_CROWDED_DEPTH = 16
_CACHE_LINE = 64
_ALONE_DEPTH, _ALONE_VECTORS = 2, 8  # where there is one row to multiply with
_STREAMED = 512 * 1024  # bytes of a right factor that is read from further away than the processor's own cache
_BYTES_A_CYCLE = 8  # at which it comes from there


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
    def stored_rows(self) -> int:
        return -(-self.rows // self.group) * self.group


def why_not(problem: Problem, target: Target) -> str | None:
    problem = blocks.as_matrices(problem)
    reason = blocks.why_no_blocks(problem)
    if reason is not None:
        return reason
    if not problem.n or not known_equal(problem.n[0].right, 1):
        return "the right factor is not contiguous along columns"
    return None


def tile_of(problem: Problem, target: Target) -> RowsTile:
    """The shape with least to do: rows that tiles leave over are computed in vain."""
    lanes = target.vector_bits // (8 * problem.dtype.itemsize)
    while lanes > problem.cols:
        lanes //= 2
    apart = problem.k[0].right * problem.right_dtype.itemsize
    depth = _CROWDED_DEPTH if apart % _CROWDED == 0 else _DEPTH
    group = _REGISTER_BITS // (8 * problem.dtype.itemsize)
    vectors = max(1, problem.cols // lanes)
    if problem.rows == 1:
        return RowsTile(1, min(_ALONE_VECTORS, vectors), lanes, _ALONE_DEPTH, False, group, _ALONE_DEPTH)
    most = target.vector_registers - 8 if target.vector_registers >= 32 else target.vector_registers - 4
    tiles = [
        RowsTile(rows, count, lanes, depth, True, group)
        for rows in range(1, _MOST_ROWS + 1)
        for count in (1, 2, 4)  # whole cache lines, or parts of one
        if count <= vectors and rows * count <= most
    ]
    return min(tiles, key=lambda tile: _tiles_cost(problem, tile))


def _tiles_cost(problem: Problem, tile: RowsTile) -> float:
    count = -(-problem.rows // tile.rows) * -(-problem.cols // tile.cols)
    return count * problem.depth * (_step_cost(tile) + tile.rows * tile.vectors * 1.5 / tile.depth)


def _step_cost(tile: RowsTile) -> float:
    """In cycles: two multiplications and two loads each, and what loops and waiting for the first of them take."""
    return max(tile.rows * tile.vectors / 2, 4.0) + 0.3 * (tile.vectors + tile.rows / 2) + 1.5


def needs(problem: Problem, target: Target) -> tuple[tuple[Size, int], ...]:
    problem = blocks.as_matrices(problem)
    return blocks_of(problem, target, tile_of(at_example(problem), target)).needs


def cycles(problem: Problem, target: Target) -> float:
    problem = at_example(blocks.as_matrices(problem))
    tile = tile_of(problem, target)
    packing = problem.rows * problem.depth * (1 if problem.k[0].left == 1 else 2)
    widened = 1.0 if problem.right_dtype is problem.dtype else 1.4
    computing = _tiles_cost(problem, tile) * widened + packing
    size = problem.cols * problem.depth * problem.right_dtype.itemsize
    reading = size / _BYTES_A_CYCLE if size > _STREAMED else 0.0
    return problem.batches * (max(computing, reading) + 0.25 * min(computing, reading))


def blocks_of(problem: Problem, target: Target, tile: RowsTile) -> StreamedBlocks:
    """Blocks as wide as the cache allows, so that rows of the right factor are read in long runs; if there is one row
    of blocks, it is cut into pieces that threads share, and each thread joins its own pieces."""
    row_step = min(_ROWS // tile.rows * tile.rows, hint(problem.rows))
    block_rows = -(-row_step // tile.rows) * tile.rows
    most = max(_LEAST_COLS, _ARRAY_BYTES // (block_rows * problem.dtype.itemsize))
    in_a_row = known_equal(problem.batches, 1) and known_equal(row_step, problem.rows)
    cols = hint(problem.cols)
    lanes = blocks.block_lanes(problem, target, cols)
    col_step = tile.cols
    while col_step % lanes or col_step < min(_LEAST_COLS if in_a_row else most, cols):
        col_step += tile.cols
    joined = max(1, most // col_step) if in_a_row else 1
    least = max(lanes, tile.cols)
    pitch = joined * col_step + least + tile.lanes
    left_size = block_rows // tile.rows * tile.stored_rows * problem.depth
    return StreamedBlocks(problem, lanes, least, row_step, col_step, pitch, block_rows, left_size, joined)


def write(symbol: str, problem: Problem, target: Target, given_sizes: Sizes) -> EntryCode:
    problem = blocks.as_matrices(problem)
    tile = tile_of(at_example(problem), target)
    blocking = blocks_of(problem, target, tile)
    along = known_equal(problem.k[0].left, 1)
    packer = _left_packer(problem.left_dtype, problem.dtype, tile, along, target)
    rows = _rows(problem.right_dtype, problem.dtype, tile, _REST_DEPTH, target)
    apart = problem.m[0].left if problem.m else 0

    def compute(b: Builder, block: StreamedBlock) -> None:
        with b.when(block.fresh):
            steps = b.const("i64", apart), b.const("i64", problem.k[0].left)
            b.call(packer.name, block.left, *steps, block.packed, block.rows, b.const("i64", problem.depth))
        factors = block.packed, block.right, b.const("i64", problem.k[0].right)
        sizes = block.rows, block.cols, b.const("i64", problem.depth)
        b.call(rows.name, *factors, block.array, b.const("i64", blocking.pitch), *sizes)

    shared = {function.name: function for function in (rows, packer)}
    return blocks.write(symbol, blocking, target, compute, shared, given_sizes)


@functools.cache
def _left_packer(source: torch.dtype, dtype: torch.dtype, tile: RowsTile, along: bool, target: Target) -> Function:
    return _LeftPacker(Builder(target), source, dtype, tile, along).write()


@functools.cache
def _rows(source: torch.dtype, dtype: torch.dtype, tile: RowsTile, rest_depth: int, target: Target) -> Function:
    return _Rows(Builder(target), source, dtype, tile, rest_depth).write()


# The left factor.

_LEFT, _APART, _STEP, _PACKED, _COUNT, _STEPS = params("ptr left, i64 apart, i64 step, ptr packed, i64 rows, i64 depth")


@dataclass(slots=True)
class _LeftPacker:
    """The function that copies rows of the left factor in tiles: of each step along the sum, all rows. Those that a
    last tile lacks are the last there is. Rows are `apart` from each other, steps `step`, or with `along` one."""

    b: Builder
    source: torch.dtype
    dtype: torch.dtype
    tile: RowsTile
    along: bool

    @property
    def name(self) -> str:
        kinds = f"{short_name(self.source)}.{short_name(self.dtype)}"
        return f"smelt.pack_rows{'_along' if self.along else ''}.{kinds}.{self.tile.rows}.{self.tile.group}"

    def write(self) -> Function:
        b, tile, kind = self.b, self.tile, memory_kind(self.source)
        last = b.sub(_COUNT, 1)
        tiles = b.begin(b.const("i64", 0), _COUNT, tile.rows, (), guard=False)
        lines = []
        for number in range(tile.rows):
            row = b.intrinsic("smin", b.add(tiles.index, number), last) if number else tiles.index
            lines.append(b.element(_LEFT, kind, b.mul(row, _APART)))
        lines += lines[-1:] * (tile.stored_rows - tile.rows)
        before = b.mul(b.binary("udiv", tiles.index, tile.rows), b.mul(_STEPS, tile.stored_rows))
        place = b.element(_PACKED, memory_kind(self.dtype), before)
        whole = self._write_groups(lines, place) if self.along and tile.rows > 1 else b.const("i64", 0)
        self._write_steps(lines, place, whole)
        tiles.end()
        return b.function(self.name, (_LEFT, _APART, _STEP, _PACKED, _COUNT, _STEPS), "shared")

    def _write_groups(self, lines: list[Value], place: Value) -> Value:
        """Steps that are read together, and transposed in registers; how many."""
        b, tile, group, kind = self.b, self.tile, self.tile.group, memory_kind(self.source)
        stored = memory_kind(self.dtype)
        whole = b.and_(_STEPS, -group)
        loop = b.begin(b.const("i64", 0), whole, group, (), guard=True)
        to = b.element(place, stored, b.mul(loop.index, tile.stored_rows))
        for first in range(0, tile.stored_rows, group):
            read = [b.load(b.element(line, kind, loop.index), kind, group) for line in lines[first : first + group]]
            for number, vector in enumerate(_transposed(b, [self._widened(raw) for raw in read])):
                b.store(vector, b.element(to, stored, number * tile.stored_rows + first))
        loop.end()
        return whole

    def _write_steps(self, lines: list[Value], place: Value, first: Value) -> None:
        b, kind, stored = self.b, memory_kind(self.source), memory_kind(self.dtype)
        loop = b.begin(first, _STEPS, 1, (), guard=True)
        to = b.element(place, stored, b.mul(loop.index, self.tile.stored_rows))
        step = loop.index if self.along else b.mul(loop.index, _STEP)
        for number, line in enumerate(lines):
            b.store(self._widened(b.load(b.element(line, kind, step), kind)), b.element(to, stored, number))
        loop.end()

    def _widened(self, raw: Value) -> Value:
        return cast(self.b, from_memory(self.b, raw, self.source), self.source, self.dtype)


def _transposed(b: Builder, vectors: list[Value]) -> list[Value]:
    """As many vectors as lanes, by interleaving the first half with the second."""
    half = len(vectors) // 2
    for _ in range(len(vectors).bit_length() - 1):
        pairs = zip(vectors[:half], vectors[half:], strict=True)
        vectors = [part for low, high in pairs for part in b.interleaved(low, high)]
    return vectors


# The sums.

_RIGHT, _ARRAY, _PITCH, _WIDTH = params("ptr right, ptr array, i64 pitch, i64 cols")


@dataclass(slots=True)
class _Rows:
    """The function that computes a block: rows of a packed left factor by `cols` columns of the right one, whose rows
    are `apart` from each other."""

    b: Builder
    source: torch.dtype
    dtype: torch.dtype
    tile: RowsTile
    rest_depth: int

    @property
    def name(self) -> str:
        kinds = f"{short_name(self.source)}.{short_name(self.dtype)}"
        tile = self.tile
        return f"smelt.rows.{kinds}.{tile.rows}x{tile.vectors}x{tile.lanes}.{tile.depth}"

    def write(self) -> Function:
        b, tile = self.b, self.tile
        zero, last = b.const("i64", 0), b.sub(_WIDTH, tile.cols)
        run = b.begin(zero, _STEPS, tile.depth, (), guard=False)
        until = b.intrinsic("smin", b.add(run.index, tile.depth), _STEPS)
        down = b.begin(zero, _COUNT, tile.rows, (), guard=False)
        panel, line = self._row(down.index)
        across = b.begin(zero, b.add(last, 1), tile.cols, (), guard=False)
        sums = self._along(panel, across.index, run.index, until)
        self._add(line, across.index, sums, b.icmp("sgt", run.index, 0))
        across.end()
        down.end()
        run.end()
        # Columns that are no whole tile: one that overlaps the tile before it, after all others.
        with b.when(b.icmp("ne", b.binary("urem", _WIDTH, tile.cols), 0)):
            self._write_rest(last)
        return b.function(self.name, (_LEFT, _RIGHT, _APART, _ARRAY, _PITCH, _COUNT, _WIDTH, _STEPS), "shared")

    def _write_rest(self, last: Value) -> None:
        """The tile that begins at column `last`."""
        b = self.b
        run = b.begin(b.const("i64", 0), _STEPS, self.rest_depth, (), guard=False)
        until = b.intrinsic("smin", b.add(run.index, self.rest_depth), _STEPS)
        down = b.begin(b.const("i64", 0), _COUNT, self.tile.rows, (), guard=False)
        panel, line = self._row(down.index)
        self._add(line, last, self._along(panel, last, run.index, until), b.icmp("sgt", run.index, 0))
        down.end()
        run.end()

    @property
    def _kind(self) -> str:
        return memory_kind(self.dtype)

    def _row(self, first: Value) -> tuple[Value, Value]:
        """Where the rows of a tile are in the left factor, and their sums in the array."""
        b, tile = self.b, self.tile
        steps = b.mul(b.binary("udiv", first, tile.rows), tile.stored_rows)
        panel = b.element(_LEFT, self._kind, b.mul(steps, _STEPS))
        return panel, b.element(_ARRAY, self._kind, b.mul(first, _PITCH))

    def _places(self, line: Value, column: Value) -> list[Value]:
        b, tile = self.b, self.tile
        places = []
        for row in range(tile.rows):
            first = b.element(line, self._kind, b.add(b.mul(_PITCH, row), column))
            places += [b.element(first, self._kind, number * tile.lanes) for number in range(tile.vectors)]
        return places

    def _add(self, line: Value, column: Value, sums: list[Value], goes_on: Value) -> None:
        """Add to the array's sums of a tile, which are zero at the beginning."""
        b = self.b

        def adds() -> None:
            places = self._places(line, column)
            before = [b.load(place, self._kind, self.tile.lanes) for place in places]
            self._store(line, column, [b.fadd(old, new) for old, new in zip(before, sums, strict=True)])

        b.choice(goes_on, adds, lambda: self._store(line, column, sums))

    def _store(self, line: Value, column: Value, sums: list[Value]) -> None:
        for place, total in zip(self._places(line, column), sums, strict=True):
            self.b.store(total, place)

    def _along(self, panel: Value, column: Value, first: Value, until: Value) -> list[Value]:
        """The loop along the sum of one tile, starting at zero: shorter partial sums are more accurate."""
        b, tile = self.b, self.tile
        started = [b.const(self._kind, 0.0, tile.lanes)] * (tile.rows * tile.vectors)
        here = b.element(_RIGHT, memory_kind(self.source), column)
        if tile.unroll == 1:
            loop = b.begin(first, until, 1, started, guard=False)
            return list(loop.end(*self._step(panel, here, loop.index, list(loop.values))))
        whole = b.add(first, b.and_(b.sub(until, first), -tile.unroll))
        several = b.begin(first, whole, tile.unroll, started, guard=True)
        sums = list(several.values)
        for number in range(tile.unroll):
            sums = self._step(panel, here, b.add(several.index, number), sums)
        sums = list(several.end(*sums))
        loop = b.begin(whole, until, 1, sums, guard=True)
        return list(loop.end(*self._step(panel, here, loop.index, list(loop.values))))

    def _step(self, panel: Value, here: Value, at: Value, sums: list[Value]) -> list[Value]:
        b, tile, source = self.b, self.tile, self.source
        kind = memory_kind(source)
        line = b.element(here, kind, b.mul(at, _APART))
        size = tile.cols * source.itemsize
        for place in range(0, size, _CACHE_LINE) if tile.prefetches else ():
            b.prefetch(b.element(line, "i8", max(_CACHE_LINE, size) + place))
        right = []
        for number in range(tile.vectors):
            raw = b.load(b.element(line, kind, number * tile.lanes), kind, tile.lanes)
            right.append(cast(b, from_memory(b, raw, source), source, self.dtype))
        left = self._spread(b.element(panel, self._kind, b.mul(at, tile.stored_rows)))
        pairs = [(one, other) for one in left for other in right]
        return [b.fma(one, other, total) for (one, other), total in zip(pairs, sums, strict=True)]

    def _spread(self, place: Value) -> list[Value]:
        """One step's numbers of the left factor, each in all lanes of a vector."""
        b, tile, kind = self.b, self.tile, self._kind
        if not b.target.fma_by_lane or tile.rows == 1:
            numbers = [b.load(b.element(place, kind, row), kind) for row in range(tile.rows)]
            return [b.splat(number, tile.lanes) for number in numbers]
        vectors = []
        for first in range(0, tile.rows, tile.group):
            vector = b.load(b.element(place, kind, first), kind, tile.group)
            lanes = range(min(tile.group, tile.rows - first))
            vectors += [b.permute(vector, [lane] * tile.lanes) for lane in lanes]
        return vectors
