"""Products of two factors that are contiguous along the sum, `x @ w.t()`, with vectors along the sum.

    for 6 rows of w: for 4 rows of x: 24 vectors of sums; at each step along k 4 + 6 loads, 24 multiplications
    → at the end, 4 vectors of sums become one of their totals by adding neighbours, twice

The right factor is read once, in place. The left factor is copied first, 4 rows side by side, so that one pointer reads
it whatever its strides are, and its rows do not compete with each other or with the right factor for cache sets.
"""

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu.products import streamed_blocks as blocks
from smelt.codegen.cpu.products.parts import params
from smelt.codegen.cpu.products.problem import Problem, at_example
from smelt.codegen.cpu.products.streamed_blocks import StreamedBlock, StreamedBlocks
from smelt.codegen.generator import EntryCode
from smelt.codegen.loops.builder import Builder, param
from smelt.codegen.loops.runtime_sizes import Sizes
from smelt.codegen.loops.scalars import cast, from_memory, memory_kind
from smelt.device import Target
from smelt.ir.loops import BITS, Function, Value
from smelt.ir.tensorspec import short_name
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import hint, is_symsize, known_equal

_REGISTER_BITS = 128  # neighbours are added within so many bits, on every target
_DEPTH = 2048  # of a sum, before it is added to what the block's array has: more of the left factor fits no cache
_ROWS = 64  # of a block: more would be worth packing both factors
_COLS = 48
_AHEAD = 256  # bytes, where each row of the right factor is multiplied with several of the left
_ALONE_AHEAD = 1024  # and where it is with one
_STREAMED = 512 * 1024  # bytes of a right factor that is read from further away than the processor's own cache
_BYTES_A_CYCLE = 8  # at which it comes from there
_MOST_ROWS = 8  # of a tile


@dataclass(frozen=True, slots=True)
class DotTile:
    """`rows` × `cols` results at a time, in vectors of `lanes` along the sum, `unroll` of them a step."""

    rows: int
    cols: int
    lanes: int
    unroll: int
    ahead: int = 0  # bytes of the right factor that are asked for early


def why_not(problem: Problem, target: Target) -> str | None:
    problem = blocks.as_matrices(problem)
    reason = blocks.why_no_blocks(problem)
    if reason is not None:
        return reason
    if is_symsize(problem.depth):
        return "how long the sum is varies"
    if not known_equal(problem.k[0].right, 1):
        return "the right factor is not contiguous along the sum"
    if problem.depth < _group(problem):
        return "too few products for a vector"
    return None


def _group(problem: Problem) -> int:
    """How many sums a register of 128 bits has room for."""
    return _REGISTER_BITS // (8 * problem.dtype.itemsize)


def tile_of(problem: Problem, target: Target) -> DotTile:
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
        DotTile(rows, cols, lanes, 1, _AHEAD if _is_streamed(problem) and problem.rows <= rows else 0)
        for rows in range(1, _MOST_ROWS + 1)
        for cols in range(1, _MOST_ROWS + 1)
        if rows * cols <= most
    ]
    return min(tiles, key=lambda tile: _tiles_cost(problem, tile))


def _right_bytes(problem: Problem) -> int:
    return problem.cols * problem.depth * problem.right_dtype.itemsize


def _is_streamed(problem: Problem) -> bool:
    return _right_bytes(problem) > _STREAMED


def _tiles_cost(problem: Problem, tile: DotTile) -> float:
    count = -(-problem.rows // tile.rows) * -(-problem.cols // tile.cols)
    steps = problem.depth / tile.lanes
    waits = _is_streamed(problem) and not tile.ahead
    return count * (steps * _step_cost(tile, waits=waits) + _sum_cost(problem, tile))


def _step_cost(tile: DotTile, *, waits: bool) -> float:
    """In cycles: two multiplications and two loads each, and what loops and waiting for the first of them take."""
    return max(tile.rows * tile.cols / 2, 4.0) + 0.15 * (tile.rows + tile.cols) + (2 if waits else 1)


def _sum_cost(problem: Problem, tile: DotTile) -> float:
    vectors = tile.rows * -(-tile.cols // _group(problem))
    return 8 + vectors * (2 * _group(problem) + tile.lanes // _group(problem))


def needs(problem: Problem, target: Target) -> tuple[tuple[Size, int], ...]:
    problem = blocks.as_matrices(problem)
    return blocks_of(problem, target, tile_of(at_example(problem), target)).needs


def cycles(problem: Problem, target: Target) -> float:
    problem = at_example(blocks.as_matrices(problem))
    tile = tile_of(problem, target)
    packing = problem.rows * problem.depth * (0.5 if problem.k[0].left == 1 else 2)
    widened = 1.0 if problem.right_dtype is problem.dtype else 1.4
    computing = _tiles_cost(problem, tile) * widened + packing
    reading = _right_bytes(problem) / _BYTES_A_CYCLE if _is_streamed(problem) else 0.0
    return problem.batches * (max(computing, reading) + 0.25 * min(computing, reading))


def blocks_of(problem: Problem, target: Target, tile: DotTile) -> StreamedBlocks:
    col_step = -(-min(_COLS, hint(problem.cols)) // tile.cols) * tile.cols
    lanes = blocks.block_lanes(problem, target, col_step)
    while col_step % lanes:
        col_step += tile.cols
    row_step = min(_ROWS // tile.rows * tile.rows, hint(problem.rows))
    block_rows = -(-row_step // tile.rows) * tile.rows
    pitch = -(-(col_step + lanes) // tile.cols) * tile.cols + _group(problem)
    steps = -(-problem.depth // tile.lanes)
    return StreamedBlocks(problem, lanes, lanes, row_step, col_step, pitch, block_rows, block_rows * steps * tile.lanes)


def write(symbol: str, problem: Problem, target: Target, given_sizes: Sizes) -> EntryCode:
    problem = blocks.as_matrices(problem)
    tile = tile_of(at_example(problem), target)
    blocking = blocks_of(problem, target, tile)
    steps = -(-problem.depth // tile.lanes)
    right_kind, kind = memory_kind(problem.right_dtype), memory_kind(problem.dtype)
    apart = problem.n[0].right if problem.n else 0
    helpers: dict[str, Function] = {}

    def compute(b: Builder, block: StreamedBlock) -> None:
        with b.when(block.fresh):
            _pack_left(b, problem, tile, block)
        for first in range(0, problem.depth, _DEPTH):
            depth = min(_DEPTH, problem.depth - first)
            dots = _Dots(Builder(target, symbol), problem, tile, depth % tile.lanes, adds=first > 0)
            if dots.name not in helpers:
                helpers[dots.name] = dots.write()
            packed = b.element(block.packed, kind, first * tile.rows)
            right = b.element(block.right, right_kind, first)
            steep, across, pitch, deep = (b.const("i64", n) for n in (steps * tile.lanes, apart, blocking.pitch, depth))
            b.call(dots.name, packed, steep, right, across, block.array, pitch, block.rows, block.cols, deep)

    return blocks.write(symbol, blocking, target, compute, helpers, given_sizes)


# The left factor.


def _pack_left(b: Builder, problem: Problem, tile: DotTile, block: StreamedBlock) -> None:
    """Pack the rows of a block in tiles: at each step along the sum, a vector of each row. A last vector is zero where
    it overlaps the previous one; missing rows of a last tile repeat the last row."""
    source, kind, stored = problem.left_dtype, memory_kind(problem.left_dtype), memory_kind(problem.dtype)
    lanes, apart, step = tile.lanes, problem.m[0].left if problem.m else 0, problem.k[0].left
    tiles = b.begin(b.const("i64", 0), block.rows, tile.rows, (), guard=False)
    steps = -(-problem.depth // lanes)
    place = b.element(block.packed, stored, b.mul(tiles.index, steps * lanes))
    lines = []
    for number in range(tile.rows):
        row = b.intrinsic("smin", b.add(tiles.index, number), b.sub(block.rows, 1))
        lines.append(b.element(block.left, kind, b.mul(row, apart)))

    def vector(line: Value, at: Value) -> Value:
        first = b.element(line, kind, b.mul(at, step))
        if known_equal(step, 1):
            raw = b.load(first, kind, lanes)
        else:
            raw = b.gathered([b.load(b.element(first, kind, lane * step), kind) for lane in range(lanes)])
        return cast(b, from_memory(b, raw, source), source, problem.dtype)

    whole = problem.depth // lanes * lanes
    loop = b.begin(b.const("i64", 0), b.const("i64", whole), lanes, (), guard=False)
    to = b.element(place, stored, b.mul(loop.index, tile.rows))
    for number, line in enumerate(lines):
        b.store(vector(line, loop.index), b.element(to, stored, number * lanes))
    loop.end()
    if whole < problem.depth:
        to = b.element(place, stored, whole * tile.rows)
        fresh = _fresh_lanes(b, problem.depth % lanes, lanes)
        for number, line in enumerate(lines):
            last = vector(line, b.const("i64", problem.depth - lanes))
            b.store(b.select(fresh, last, 0.0), b.element(to, stored, number * lanes))
    tiles.end()


def _fresh_lanes(b: Builder, count: int, lanes: int) -> Value:
    return b.flags([lane >= lanes - count for lane in range(lanes)])


# The sums.

_DOTS = "ptr left, i64 steep, ptr right, i64 apart, ptr array, i64 pitch, i64 rows, i64 cols, i64 depth"


@dataclass(slots=True)
class _Dots:
    """The function that computes a block: rows of a packed left factor, `steep` elements each, by `cols` rows of the
    right factor, `apart` from each other; `depth` elements, of which the last `rest` do not fill a vector."""

    b: Builder
    problem: Problem
    tile: DotTile
    rest: int
    adds: bool  # to what is in the array already

    @property
    def name(self) -> str:
        kinds = f"{short_name(self.problem.right_dtype)}.{short_name(self.problem.dtype)}"
        tile = f"{self.tile.rows}x{self.tile.cols}x{self.tile.lanes}.{self.tile.unroll}"
        more = (f".ahead{self.tile.ahead}" if self.tile.ahead else "") + (".adds" if self.adds else "")
        return f"smelt.dot.{kinds}.{tile}.rest{self.rest}{more}"

    def write(self) -> Function:
        b, tile = self.b, self.tile
        taken = left, steep, right, apart, array, pitch, rows, cols, _ = params(_DOTS)
        over = b.begin(b.const("i64", 0), cols, tile.cols, (), guard=False)
        lines = []
        for number in range(tile.cols):
            col = b.intrinsic("smin", b.add(over.index, number), b.sub(cols, 1))
            lines.append(b.element(right, memory_kind(self.problem.right_dtype), b.mul(col, apart)))
        down = b.begin(b.const("i64", 0), rows, tile.rows, (), guard=False)
        panel = b.element(left, self._kind, b.mul(down.index, steep))
        sums = self._along(lines, panel)
        corner = b.element(array, self._kind, b.add(b.mul(down.index, pitch), over.index))
        for row in range(tile.rows):
            place = b.element(corner, self._kind, b.mul(pitch, row))
            self._store_totals(sums[row * tile.cols : (row + 1) * tile.cols], place)
        down.end()
        over.end()
        return b.function(self.name, taken, "shared")

    @property
    def _kind(self) -> str:
        return memory_kind(self.problem.dtype)

    def _along(self, lines: list[Value], panel: Value) -> list[Value]:
        """The loop along the sum of one tile, in as many sets of sums as the processor keeps in flight."""
        b, tile, depth = self.b, self.tile, param("depth")
        count, sets = tile.rows * tile.cols, 2 if tile.unroll > 1 else 1
        step = tile.lanes * tile.unroll
        whole = b.and_(depth, -step)
        started = [b.const(self._kind, 0.0, tile.lanes)] * (count * sets)
        loop = b.begin(b.const("i64", 0), whole, step, started, guard=tile.unroll > 1 or self.rest > 0)
        sums = list(loop.values)
        for line in lines if tile.ahead else ():
            here = b.element(line, memory_kind(self.problem.right_dtype), loop.index)
            b.prefetch(b.element(here, "i8", tile.ahead))
        for number in range(tile.unroll):
            taken = slice(number % sets * count, (number % sets + 1) * count)
            sums[taken] = self._step(lines, panel, b.add(loop.index, number * tile.lanes), sums[taken])
        sums = list(loop.end(*sums))
        if sets > 1:
            sums = [b.fadd(one, other) for one, other in zip(sums[:count], sums[count:], strict=True)]
            single = b.begin(whole, b.and_(depth, -tile.lanes), tile.lanes, sums, guard=True)
            sums = list(single.end(*self._step(lines, panel, single.index, list(single.values))))
        return self._with_rest(lines, panel, sums) if self.rest else sums

    def _step(self, lines: list[Value], panel: Value, at: Value, sums: list[Value]) -> list[Value]:
        return self._multiplied(self._left(panel, at), [self._right(line, at) for line in lines], sums)

    def _multiplied(self, left: list[Value], right: list[Value], sums: list[Value]) -> list[Value]:
        pairs = [(one, other) for one in left for other in right]
        return [self.b.fma(one, other, total) for (one, other), total in zip(pairs, sums, strict=True)]

    def _left(self, panel: Value, at: Value) -> list[Value]:
        first = self.b.element(panel, self._kind, self.b.mul(at, self.tile.rows))
        places = [self.b.element(first, self._kind, row * self.tile.lanes) for row in range(self.tile.rows)]
        return [self.b.load(place, self._kind, self.tile.lanes) for place in places]

    def _right(self, line: Value, at: Value) -> Value:
        source = self.problem.right_dtype
        raw = self.b.load(self.b.element(line, memory_kind(source), at), memory_kind(source), self.tile.lanes)
        return cast(self.b, from_memory(self.b, raw, source), source, self.problem.dtype)

    def _with_rest(self, lines: list[Value], panel: Value, sums: list[Value]) -> list[Value]:
        """A last vector that overlaps the previous one: elements seen before are zero in both factors."""
        b, lanes, depth = self.b, self.tile.lanes, param("depth")
        fresh = _fresh_lanes(b, self.rest, lanes)
        right = [b.select(fresh, self._right(line, b.sub(depth, lanes)), 0.0) for line in lines]
        return self._multiplied(self._left(panel, b.and_(depth, -lanes)), right, sums)

    def _store_totals(self, sums: list[Value], place: Value) -> None:
        """Store the totals of a row, a register at a time. The excess is overwritten by the next tile or not read."""
        group = _group(self.problem)
        for first in range(0, len(sums), group):
            together = sums[first : first + group]
            beyond = self.b.const(self._kind, 0.0, self.tile.lanes) if self.adds else together[-1]
            totals = _totals(self.b, together + [beyond] * (group - len(together)))
            to = self.b.element(place, self._kind, first)
            if self.adds:
                totals = self.b.fadd(totals, self.b.load(to, self._kind, group))
            self.b.store(totals, to)


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
