"""Tiles for kernels that read along another axis than they write: a small private array holds the transposed tile.

    store y[2048*i + j] = load x[i + 2048*j]        x is read down its columns: a cache line for every element
    → for every 256 × 64 tile: read eight lines of x at a time along i, transpose 4 × 4 blocks in registers (16 × 16
      where a register holds that much), keep what they come to; then load that along j

Both sides of memory are then walked several cache lines at a time. More than eight lines of x would be slower: they are
often a power of two apart, so that no more of them fit a cache set. Tiles overlap where the tile size does not divide
an axis.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import reduce

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.axes import rewritten
from smelt.codegen.loops.arrays import Array
from smelt.codegen.loops.builder import Builder
from smelt.device import Target
from smelt.ir.kernel import Axis, Buffer, Index, Kernel, Load, Role, Store
from smelt.ir.loops import Value
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import hint, is_symsize, known_equal

_BLOCK_BITS = 128  # registers that are transposed in at least, on every target
_BLOCK_MOST = 16  # elements along each side of what is transposed at a time
_LINES = 8  # read side by side
_CACHE_LINE = 64
_ASKED = 4 * _CACHE_LINE  # of the lines read next: with so much asked for, the processor sees by itself how they go on


@dataclass(frozen=True, slots=True)
class TransposedRead:
    """A read through a transposed tile: `source` in memory, `square` the private array."""

    source: Load
    square: str


@dataclass(frozen=True, slots=True)
class Tile:
    """`height` points of the row axis `down` by `width` points of the col axis `along`, and the reads to turn, in
    squares of registers `block` wide or of as many elements as one holds."""

    down: Axis
    along: Axis
    height: int
    width: int
    block: int
    transposed: tuple[TransposedRead, ...]
    nontemporal: bool = False  # whether what is written bypasses the cache

    @property
    def blocks(self) -> tuple[Axis, Axis]:
        """Axes that count tiles, the one that writes run along innermost: each row goes on where it stopped."""
        return (
            Axis(f"{self.down.name}.tile", (self.down.size + self.height - 1) // self.height),
            Axis(f"{self.along.name}.tile", (self.along.size + self.width - 1) // self.width),
        )


def tiled(kernel: Kernel, lanes: int, target: Target, *, idempotent: bool) -> tuple[Kernel, Tile] | None:
    """A pointwise `kernel` with its transposed reads replaced by reads from squares; None where that does not pay."""
    if not kernel.rows:
        return None
    along = kernel.cols[-1]
    down = max(kernel.rows, key=lambda axis: len(_transposed_reads(kernel, axis, along)))
    reads = _transposed_reads(kernel, down, along)
    if not reads:
        return None
    sizes = [kernel.buffer(read.buffer).dtype.itemsize for read in reads]
    widths = target.transpose_register_bits, _BLOCK_BITS
    block, least = (max(_block(8 * size, bits) for size in sizes) for bits in widths)
    height = width = 0
    while block >= least and not (height and width):
        height = _side(down.size, block, target.transpose_tile_bytes[0] // max(sizes), idempotent)
        width = _side(along.size, max(block, lanes), target.transpose_tile_bytes[1] // max(sizes), idempotent)
        block //= 2
    if not height or not width:
        return None
    transposed = tuple(TransposedRead(read, f"{read.buffer}.square{number}") for number, read in enumerate(reads))
    inside = Index(((down.name, width), (along.name, 1)))
    squares = {each.source: Load(each.source.out, each.square, inside) for each in transposed}
    rows = (*(axis for axis in kernel.rows if axis is not down), down)
    kernel = rewritten(kernel, lambda i: [squares.get(i, i) if isinstance(i, Load) else i])
    private = [Buffer(t.square, kernel.buffer(t.source.buffer).dtype, height * width, Role.SCRATCH) for t in transposed]
    changed = replace(kernel, rows=rows, buffers=(*kernel.buffers, *private))
    return changed, Tile(down, along, height, width, 2 * block, transposed)


def _transposed_reads(kernel: Kernel, down: Axis, along: Axis) -> list[Load]:
    """Reads with stride one along `down` and a larger one along `along`, of buffers that are not written here."""
    written = {i.buffer for i in kernel.instructions() if isinstance(i, Store)}
    return [
        i
        for i in kernel.instructions()
        if isinstance(i, Load)
        and i.buffer not in written
        and i.index.stride(down.name) == 1
        and i.index.stride(along.name) not in (0, 1)
    ]


def _block(bits: int, register: int) -> int:
    """How many elements of so many bits are transposed at a time in each direction."""
    return min(_BLOCK_MOST, max(2, register // bits))


def fills_whole_lines(kernel: Kernel, along: Axis, lanes: int, target: Target) -> bool:
    """Whether all that is written is so much that no cache keeps it, in whole lines if one begins where one does."""
    read = {i.buffer for i in kernel.instructions() if isinstance(i, Load)}

    def lines(store: Store) -> bool:
        buffer = kernel.buffer(store.buffer)
        size = buffer.dtype.itemsize
        steps = [store.index.stride(axis.name) * size for axis in kernel.rows]
        return (
            store.buffer not in read
            and hint(buffer.size * size) >= target.nontemporal_min_bytes
            and store.index.stride(along.name) == 1
            and all(known_equal(step % _CACHE_LINE, 0) for step in (*steps, lanes * size))
        )

    return target.nontemporal_min_bytes > 0 and all(lines(i) for i in kernel.instructions() if isinstance(i, Store))


def _side(size: Size, step: int, most: int, idempotent: bool) -> int:
    """The longest side up to `most` in whole steps; it divides `size` if points must not be computed twice."""
    sides = [side for side in range(step, max(step, most) + 1, step) if is_symsize(size) or side <= size]
    return max((side for side in sides if idempotent or known_equal(size % side, 0)), default=0)


def first_of(b: Builder, number: Value, side: int, size: Size) -> Value:
    """Where the tile with this number starts along an axis: the last one ends where the axis does."""
    return b.smin(b.mul(number, side), size - side)


def transpose(tile: Tile, source: Array, square: Array, stride: Size) -> None:
    """Fill `square` from memory at `source`, which is where the tile starts; `stride` is that of the col axis."""
    b, size = source.b, source.dtype.itemsize
    block = min(tile.block, _block(8 * size, b.target.transpose_register_bits))
    lines = max(block, _LINES) if tile.width % max(block, _LINES) == 0 else block
    with b.loop(0, tile.width, lines) as column:
        start = source.at(b.mul(column, stride))
        if b.target.prefetch_distance:  # this too only reads
            for number in range(lines, 2 * lines):
                for further in range(0, min(_ASKED, tile.height * size), _CACHE_LINE):
                    b.prefetch(b.element(start.at(number * stride).pointer, "i8", further))
        with b.loop(0, tile.height, block) as row:
            first, place = start.at(row), square.at(b.add(b.mul(row, tile.width), column))
            read = [first.load(number * stride, block) for number in range(lines)]
            for left in range(0, lines, block):
                for number, vector in enumerate(transposed(b, read[left : left + block])):
                    place.store(vector, number * tile.width + left)


def transposed(b: Builder, vectors: list[Value]) -> list[Value]:
    """By interleaving the first half with the second, as often as the side is a power of two."""
    half = len(vectors) // 2
    for _ in range(len(vectors).bit_length() - 1):
        pairs = zip(vectors[:half], vectors[half:], strict=True)
        vectors = [part for low, high in pairs for part in b.interleaved(low, high)]
    return vectors


def whole_lines(b: Builder, places: Iterable[Value]) -> Value:
    """Whether a cache line begins at each of these addresses."""
    bits = [b.convert("ptrtoint", place, "i64") for place in places]
    return b.icmp("eq", b.and_(reduce(b.or_, bits), _CACHE_LINE - 1), 0)
