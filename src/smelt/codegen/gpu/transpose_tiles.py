"""Tiles of pointwise kernels that read along another axis than they write, staged through shared memory.

    store y[2048*i + j] = load x[i + 2048*j]        neighbouring threads would read x a line apart
    → a block for every 64 × 64 tile: its threads read x along i, sixteen bytes at once, and leave that in shared
      memory; then they go along j, find what was x there, and write y sixteen bytes at once

A line of the tile in shared memory is padded by one word, so that neither direction has bank conflicts.
"""

from collections.abc import Sequence
from dataclasses import replace

from smelt.codegen.gpu.bodies.transpose_body import WORD, TransposeTile
from smelt.ir.kernel import Axis, Kernel, Load, Store
from smelt.symbolic.symsize import hint, is_symsize, known_equal

# What is chosen by these is right whatever they are; which are fastest is to be measured on a GPU.
_SIDE = 64  # of a tile, in elements
_LEAST_SIDE = 32
_LEAST_EXTENT = 8  # of an axis that is worth tiles
_THREADS = 256
_SHARED_BYTES = 48 << 10
_ENOUGH_TILES = 528


def transpose_tile(kernel: Kernel, at_once: int) -> TransposeTile | None:
    """The tile of a pointwise `kernel`; None if no read is transposed, or no store is contiguous. `at_once`: adjacent
    points along the last col axis that a thread takes."""
    along = kernel.cols[-1]
    stores = [i for i in kernel.instructions() if isinstance(i, Store)]
    if hint(along.size) < _LEAST_EXTENT or not stores or not all(_steps_by_one(i, along) for i in stores):
        return None
    long = [axis for axis in kernel.cols[:-1] if hint(axis.size) >= _LEAST_EXTENT]
    down = max(long, key=lambda axis: _bytes(kernel, _reads(kernel, axis, along)), default=along)
    reads = _reads(kernel, down, along)
    if not reads:
        return None
    sizes = [kernel.buffer(read.buffer).dtype.itemsize for read in reads]
    rows = tuple(axis for axis in kernel.cols if axis is not down and axis is not along)
    tiled, read_at_once = replace(kernel, rows=rows, cols=(down, along)), _at_once(kernel, down, reads)
    tile = TransposeTile(tiled, down, along, _LEAST_SIDE, _LEAST_SIDE, tuple(reads), read_at_once, at_once)
    large = replace(tile, height=_side(down), width=_side(along))
    room = sum(large.width * large.line(size) * size for size in sizes)
    if max(sizes) <= WORD and room <= _SHARED_BYTES and hint(large.blocks) >= _ENOUGH_TILES:
        tile = large
    while sum(tile.width * tile.line(size) * size for size in sizes) > _SHARED_BYTES:
        if len(tile.reads) == 1:
            return None
        tile, sizes = replace(tile, reads=tile.reads[:-1]), sizes[:-1]  # the rest are read as they come
    threads = min(_THREADS, tile.height * tile.width // max(at_once, tile.read_at_once))
    return replace(tile, threads=threads)


def _side(axis: Axis) -> int:
    return _SIDE if hint(axis.size) > _LEAST_SIDE else _LEAST_SIDE


def _steps_by_one(access: Load | Store, axis: Axis) -> bool:
    return known_equal(access.index.stride(axis.name), 1)


def _reads(kernel: Kernel, down: Axis, along: Axis) -> list[Load]:
    """Reads with stride one along `down` and a larger one along `along`, of buffers that are not written here."""
    written = {i.buffer for i in kernel.instructions() if isinstance(i, Store)}
    loads: dict[tuple[str, object], Load] = {}
    for i in kernel.instructions():
        if isinstance(i, Load) and i.buffer not in written and _steps_by_one(i, down):
            across = i.index.stride(along.name)
            if is_symsize(across) or abs(across) > 1:
                loads.setdefault((i.buffer, i.index), i)
    return list(loads.values())


def _bytes(kernel: Kernel, reads: Sequence[Load]) -> int:
    return sum(kernel.buffer(read.buffer).dtype.itemsize for read in reads)


def _at_once(kernel: Kernel, down: Axis, reads: Sequence[Load]) -> int:
    """How many points of `down` are one aligned access in all reads."""
    width = 16 // max(kernel.buffer(read.buffer).dtype.itemsize for read in reads)
    steps = [down.size]
    for read in reads:
        steps += [read.index.offset, *(stride for name, stride in read.index.terms if name != down.name)]
    if any(is_symsize(step) for step in steps):
        return 1
    width = min(width, 8)
    while any(step % width for step in steps):
        width //= 2
    return width
