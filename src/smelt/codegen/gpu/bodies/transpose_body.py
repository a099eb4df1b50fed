"""`TransposeTile`: tiles whose transposed reads go through shared memory; `TransposeBody` writes their grid.

    reads along the other axis → shared memory     all of a thread's before it stores one
    barrier
    the points of the tile, along the writes       as in `PhaseBody`
"""

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.gpu.grids import Grid
from smelt.codegen.gpu.phase_body import Coordinates, PhaseBody, Values
from smelt.codegen.gpu.simt import Mask, Simt
from smelt.codegen.gpu.vector_width import is_multiple
from smelt.codegen.loops.scalars import from_memory, memory_kind
from smelt.ir.kernel import Axis, Index, Kernel, Load, Store
from smelt.ir.loops import Value
from smelt.symbolic.shapes import Size, product

WORD = 4  # bytes
_LINE = 128  # bytes that threads side by side go through, at least if they can


@dataclass(frozen=True, slots=True)
class TransposeTile(Grid):
    """`height` points of the axis `down`, which `reads` go along, by `width` points of the axis `along`. These are the
    cols of the kernel."""

    kernel: Kernel
    down: Axis
    along: Axis
    height: int
    width: int
    reads: tuple[Load, ...]
    read_at_once: int  # points of `down` that a thread reads in one access
    write_at_once: int  # points of `along` that it computes together
    threads: int = 0

    @property
    def tiles(self) -> tuple[Axis, Axis]:
        """Axes that count tiles."""
        return (
            Axis(f"{self.down.name}.tile", -(-self.down.size // self.height)),
            Axis(f"{self.along.name}.tile", -(-self.along.size // self.width)),
        )

    @property
    def blocks(self) -> Size:
        return product(axis.size for axis in (*self.kernel.rows, *self.tiles))

    def line(self, size: int) -> int:
        """From one line of the tile to the next in shared memory, in elements of so many bytes."""
        return self.height + max(1, WORD // size)


@dataclass(frozen=True, slots=True)
class _Place:
    """Of a thread in a tile: how far along each of its axes, and which points those are."""

    down: Value
    along: Value
    where: Coordinates
    mask: Mask


class TransposeBody(PhaseBody, of=TransposeTile):
    """A grid of tiles being written."""

    grid: TransposeTile
    keeps_loads = True
    arrays: dict[tuple[str, Index], int]  # what was read across, in shared memory
    place: _Place

    def __init__(self, b: Simt, grid: TransposeTile) -> None:
        super().__init__(b, grid, grid.along, grid.write_at_once)

    def write(self) -> None:
        b, tile = self.b, self.grid
        number = self._coordinates(b.block_number(), (*self.kernel.rows, *tile.tiles))
        down, along = tile.tiles
        self.rows = {axis.name: number[axis.name] for axis in self.kernel.rows}
        self.origin = b.mul(number[down.name], tile.height), b.mul(number[along.name], tile.width)
        self.arrays = {}
        self._read_across()
        b.barrier()
        (stage,) = self.kernel.stages
        stored = next(i for i in stage.body if isinstance(i, Store))
        lanes = self._lanes_of(tile.width, self.width, self.kernel.buffer(stored.buffer).dtype.itemsize)
        for turn in range(tile.height * tile.width // (self.width * tile.threads)):
            line, first = self._unit(turn, tile.width, self.width, lanes)
            self.place = self._at(line, first)
            self.values = {}
            self.run(stage.body, {**self.rows, **self.place.where}, self.place.mask, turn)

    def _lanes_of(self, side: int, at_once: int, size: int) -> int:
        """How many threads of a warp go along a line of a tile, each with so many points of so many bytes."""
        return min(self.b.warp, side // at_once, max(8, _LINE // (at_once * size)))

    def _unit(self, turn: int, side: int, at_once: int, lanes: int) -> tuple[Value, Value]:
        """Which line of the tile a thread has when it comes back for the time `turn`, and where along it."""
        b = self.b
        lines, pieces = b.warp // lanes, side // (lanes * at_once)
        warp = b.add(b.warp_number(), turn * (self.grid.threads // b.warp))
        line, along = b.mul(warp, lines), b.mul(b.and_(b.lane(), lanes - 1), at_once)
        if pieces > 1:
            line = b.mul(b.lshr(warp, pieces.bit_length() - 1), lines)
            along = b.add(along, b.mul(b.and_(warp, pieces - 1), lanes * at_once))
        if lines > 1:
            line = b.add(line, b.lshr(b.lane(), lanes.bit_length() - 1))
        return line, along

    def _at(self, down: Value, along: Value) -> _Place:
        b, tile = self.b, self.grid
        mask: Mask = None
        where: Coordinates = {}
        for axis, side, origin, inside in (
            (tile.down, tile.height, self.origin[0], down),
            (tile.along, tile.width, self.origin[1], along),
        ):
            where[axis.name] = b.add(origin, inside)
            if not is_multiple(axis.size, side):
                mask = self._both(mask, b.icmp("slt", where[axis.name], b.index(axis.size)))
        if mask is not None:
            where = {name: b.select(mask, value, 0) for name, value in where.items()}
        return _Place(down, along, where, mask)

    def _read_across(self) -> None:
        """All that a thread reads before it leaves the first: as much as there is comes at the same time."""
        b, tile, at_once = self.b, self.grid, self.grid.read_at_once
        loaded: list[tuple[int, Value, Value]] = []
        for read in tile.reads:
            buffer = self.kernel.buffer(read.buffer)
            kind, size = memory_kind(buffer.dtype), buffer.dtype.itemsize
            line = tile.line(size)
            array = self.arrays[read.buffer, read.index] = b.shared_array(kind, tile.width * line)
            lanes = self._lanes_of(tile.height, at_once, size)
            for turn in range(tile.height * tile.width // (at_once * tile.threads)):
                along, down = self._unit(turn, tile.height, at_once, lanes)
                place = self._at(down, along)
                offset = self._offset(read.index, {**self.rows, **place.where})
                pointer = b.pointer(read.buffer)
                raw = b.load_global(pointer, offset, kind, at_once, aligned=b.aligned, constant=True)
                first = b.add(b.mul(along, line), down)
                loaded += [(array, b.add(first, way) if way else first, each) for way, each in enumerate(raw)]
        for array, at, value in loaded:
            b.store_shared(array, at, value)

    def _loaded(self, i: Load, where: Coordinates, tile: int) -> Values:
        array = self.arrays.get((i.buffer, i.index))
        if array is None:
            return super()._loaded(i, where, tile)
        b, buffer = self.b, self.kernel.buffer(i.buffer)
        line, kind = self.grid.line(buffer.dtype.itemsize), memory_kind(buffer.dtype)
        first = b.add(b.mul(self.place.along, line), self.place.down)
        raw = [b.load_shared(array, b.add(first, way * line) if way else first, kind) for way in range(self.width)]
        return tuple(from_memory(b, each, buffer.dtype) for each in raw)
