"""`ProductTile`: blocks that each sum a tile of a contraction; `ProductBody` writes their grid.

    what a thread has of both factors, of the first terms        in registers
    loop over terms:
      those → shared memory; barrier; the next terms → registers
      of each term: a col of the one factor, a row of the other, all their products added up; barrier
    the points of the tile: what follows the sums, as in `PhaseBody`
"""

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.gpu.grids import Grid
from smelt.codegen.gpu.phase_body import Coordinates, PhaseBody
from smelt.codegen.gpu.simt import Mask
from smelt.codegen.loops.scalars import cast, constant, from_memory, memory_kind
from smelt.ir.kernel import Axis, Contract, Factor, Index, Kernel, Role
from smelt.ir.loops import Value
from smelt.ir.products.library_product import LibraryProduct
from smelt.symbolic.shapes import Size, product
from smelt.symbolic.symsize import is_symsize

# Elements from the end of a line in shared memory to the next: neighbours do not wait for each other, and lines begin
# at multiples of sixteen bytes.
_PADDING = 4


@dataclass(frozen=True, slots=True)
class TileShape:
    """Points of a block, terms that it has at a time, and of those points rows and cols of a thread."""

    height: int
    width: int
    depth: int
    down: int
    across: int

    @property
    def threads(self) -> int:
        return self.height // self.down * (self.width // self.across)


@dataclass(frozen=True, slots=True)
class ProductTile(Grid):
    """How a contraction is cut up. `left` is the factor whose own axes are `rows`."""

    kernel: Kernel
    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    cols: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    left: Factor
    right: Factor
    shape: TileShape
    threads: int = 0
    resident: int = 2  # while one block waits for its factors, the other multiplies
    product: LibraryProduct | None = None
    instead_of: int = 0

    @property
    def row_count(self) -> Size:
        return product(axis.size for axis in self.rows)

    @property
    def col_count(self) -> Size:
        return product(axis.size for axis in self.cols)

    @property
    def term_count(self) -> Size:
        return product(axis.size for axis in self.inner)

    @property
    def tiles(self) -> tuple[Axis, Axis]:
        """Axes that count tiles."""
        return (
            Axis("rows.tile", -(-self.row_count // self.shape.height)),
            Axis("cols.tile", -(-self.col_count // self.shape.width)),
        )

    @property
    def blocks(self) -> Size:
        return product(axis.size for axis in (*self.batch, *self.tiles))


@dataclass(frozen=True, slots=True)
class _Read:
    """An element of a factor that a thread fetches for its block, at each turn of another term."""

    factor: Factor
    term: Value  # counted from the first of the turn
    place: Value  # in shared memory
    base: Value  # in the buffer, of the term 0
    positions: tuple[Value, ...]  # of its bounds, of the term 0
    mask: Mask


@dataclass(frozen=True, slots=True)
class _Side:
    """A block's part of a factor in shared memory: a line of so many elements for each term."""

    array: int
    line: int
    reads: tuple[_Read, ...]


class ProductBody(PhaseBody, of=ProductTile):
    """A grid of tiles being written."""

    grid: ProductTile

    def write(self) -> None:
        b, tile = self.b, self.grid
        (stage,) = self.kernel.stages
        (self.contract,) = (i for i in stage.body if isinstance(i, Contract))
        tiles = self._coordinates(b.block_number(), (*tile.batch, *tile.tiles))
        self.rows = {axis.name: tiles[axis.name] for axis in tile.batch}
        down, across = (tiles[axis.name] for axis in tile.tiles)
        top, left = b.mul(down, tile.shape.height), b.mul(across, tile.shape.width)
        sides = (
            self._side(tile.left, tile.rows, top, tile.shape.height),
            self._side(tile.right, tile.cols, left, tile.shape.width),
        )
        beside = tile.shape.width // tile.shape.across
        self.down = b.mul(b.lshr(b.thread(), beside.bit_length() - 1), tile.shape.down)
        self.along, self.beside = b.and_(b.thread(), beside - 1), beside
        sums = self._summed(sides)
        self._points(sums, top, left)

    # The factors.

    def _side(self, factor: Factor, axes: tuple[Axis, ...], origin: Value, length: int) -> _Side:
        b, shape = self.b, self.grid.shape
        line = length + _PADDING
        array = b.shared_array(memory_kind(self.contract.dtype), shape.depth * line)
        reads = []
        for turn in range(length * shape.depth // shape.threads):
            number = b.add(b.thread(), turn * shape.threads) if turn else b.thread()
            fast = shape.depth if self._runs_along_terms(factor) else length
            low, high = b.and_(number, fast - 1), b.lshr(number, fast.bit_length() - 1)
            term, point = (low, high) if self._runs_along_terms(factor) else (high, low)
            place = b.add(b.mul(term, line), point)
            at, mask = self._within(b.add(origin, point), axes, length)
            where = {**self.rows, **at}
            base = self._offset(_only(factor.index, where), where)
            positions = tuple(self._offset(_only(position, where), where) for position, _ in factor.bounds)
            reads.append(_Read(factor, term, place, base, positions, mask))
        return _Side(array, line, tuple(reads))

    def _runs_along_terms(self, factor: Factor) -> bool:
        """Whether its terms are contiguous in memory."""
        return bool(self.grid.inner) and factor.index.stride(self.grid.inner[-1].name) == 1

    def _fetched(self, read: _Read, first: Value) -> Value:
        """The element of the iteration that begins with the term `first`; zero if there is none."""
        b, tile, factor = self.b, self.grid, read.factor
        term = b.add(first, read.term)
        inside = b.icmp("slt", term, b.index(tile.term_count))
        where = self._coordinates(b.select(inside, term, 0), tile.inner)
        mask = self._both(read.mask, inside)
        for base, (position, extent) in zip(read.positions, factor.bounds, strict=True):
            at = self._moved(base, position, where)
            mask = self._both(mask, b.icmp("ult", at, b.index(extent)))
        assert mask is not None
        at = b.select(mask, self._moved(read.base, factor.index, where), 0)
        buffer = self.kernel.buffer(factor.buffer)
        (raw,) = b.load_global(
            b.pointer(factor.buffer), at, memory_kind(buffer.dtype), constant=buffer.role is Role.INPUT
        )
        value = cast(b, from_memory(b, raw, buffer.dtype), buffer.dtype, self.contract.dtype)
        return b.select(mask, value, constant(b, 0.0, self.contract.dtype))

    def _moved(self, base: Value, index: Index, where: Coordinates) -> Value:
        terms = _only(index, where)
        return self.b.add(base, self._offset(Index(terms.terms), where)) if terms.terms else base

    # The sums.

    def _summed(self, sides: tuple[_Side, _Side]) -> list[Value]:
        b, shape, terms = self.b, self.grid.shape, self.grid.term_count
        zero = constant(b, 0.0, self.contract.dtype)
        reads = [(side, read) for side in sides for read in side.reads]
        ahead = [self._fetched(read, b.index(0)) for _, read in reads]
        count = shape.down * shape.across

        def some_terms(turn: Value, values: list[Value]) -> list[Value]:
            first, sums = b.convert("trunc", turn, b.index_kind), values[:count]
            for (side, read), prefetched in zip(reads, values[count:], strict=True):
                b.store_shared(side.array, read.place, prefetched)
            b.barrier()
            following = b.add(first, shape.depth)
            ahead = [self._fetched(read, following) for _, read in reads]
            for term in range(shape.depth):
                sums = self._term(sides, term, sums)
            b.barrier()
            return [*sums, *ahead]

        guard = is_symsize(terms) or terms == 0
        return b.carried_loop(terms, [*[zero] * count, *ahead], some_terms, step=shape.depth, guard=guard)[:count]

    def _term(self, sides: tuple[_Side, _Side], term: int, sums: list[Value]) -> list[Value]:
        b, shape, kind = self.b, self.grid.shape, memory_kind(self.contract.dtype)
        left, right = sides
        ours = b.load_shared_vector(left.array, b.add(self.down, term * left.line), kind, shape.down)
        theirs = [
            b.load_shared(right.array, b.add(self.along, term * right.line + way * self.beside), kind)
            for way in range(shape.across)
        ]
        totals = []
        for place, total in enumerate(sums):
            down, across = divmod(place, shape.across)
            totals.append(b.fma(ours[down], theirs[across], total))
        return totals

    # What follows.

    def _points(self, sums: list[Value], top: Value, left: Value) -> None:
        b, tile = self.b, self.grid
        (stage,) = self.kernel.stages
        rows = [b.add(top, b.add(self.down, way)) for way in range(tile.shape.down)]
        cols = [b.add(left, b.add(self.along, way * self.beside)) for way in range(tile.shape.across)]
        downs = [self._within(at, tile.rows, tile.shape.height) for at in rows]
        acrosses = [self._within(at, tile.cols, tile.shape.width) for at in cols]
        for place, total in enumerate(sums):
            down, across = divmod(place, tile.shape.across)
            (above, inside), (beside, within) = downs[down], acrosses[across]
            self.values = {self.contract.out: (total,)}
            after = [i for i in stage.body if i is not self.contract]
            self.run(after, {**self.rows, **above, **beside}, self._both(inside, within), place)


def _only(index: Index, where: Coordinates) -> Index:
    """The index without the axes that are counted elsewhere."""
    return Index(tuple(term for term in index.terms if term[0] in where), index.offset)
