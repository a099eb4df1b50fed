"""Tiles of a contraction: the part of the result that a block computes, and the points of each thread.

    p = contract (k:768) x[768*i + k], w[768*j + k]     128 × 3072 points
    → a block for every 64 × 64 points; of both factors it has 16 terms at a time in shared memory
    → a thread for every 4 × 4 of them: what it reads there it multiplies four times

Axes that one factor depends on are rows of the tile, those of the other are its cols; the cols are the side along which
the result is contiguous. If there are few points with many terms, several blocks sum a part each, and another grid adds
the parts.
"""

from dataclasses import replace

from smelt.codegen.axes import dense_index
from smelt.codegen.gpu.kernel_slices import in_order, with_buffers
from smelt.codegen.gpu.products.product_body import ProductTile, TileShape
from smelt.ir.check_kernel import contraction_of, is_attention
from smelt.ir.kernel import Axis, Buffer, Contract, Factor, Index, Kernel, Load, Reduce, Role, Stage, Store
from smelt.symbolic.shapes import product
from smelt.symbolic.symsize import hint, is_symsize, known_equal

# What is chosen by these is right whatever they are; which are fastest is to be measured on a GPU.
_ENOUGH_BLOCKS, _ENOUGH_TILES = 132, 66  # that are wanted, and that keep a chip busy with tiles as large as can be
_LEAST = 16  # points of a side that a tile has, however few there are
_LEAST_TERMS = 256  # that are worth a block of their own
_MOST_PARTS = 64
_WIDE, _MOST_WIDE = 8, 16  # bytes of a wide sum, and how many of those a thread has


# From large to small. All have as many threads, and as many elements of a factor for each.
SHAPES = (
    TileShape(128, 128, 8, 8, 8),
    TileShape(64, 64, 16, 4, 4),
    TileShape(16, 64, 16, 1, 4),
    TileShape(64, 16, 16, 4, 1),
    TileShape(16, 16, 16, 1, 1),
)


def why_no_tile(kernel: Kernel) -> str | None:
    """Why there is no grid for a kernel with a contraction; None if there is."""
    if is_attention(kernel):
        return "a GPU's kernels have the scores of an attention in memory"
    contract = contraction_of(kernel)
    if contract is None or not contract.dtype.is_floating_point:
        return "a GPU's kernels multiply floats"
    if any(factor.quantized is not None for factor in contract.factors):
        return "a factor is quantized"
    return None


def product_tile(kernel: Kernel, contract: Contract) -> ProductTile:
    """The tile of a kernel with a contraction."""
    axes = kernel.rows + kernel.cols
    names = [_named(factor) for factor in contract.factors]
    own = [tuple(axis for axis in axes if axis.name in names[side] - names[1 - side]) for side in (0, 1)]
    batch = tuple(axis for axis in axes if axis not in own[0] and axis not in own[1])
    sides = (0, 1)
    store = next((i for i in kernel.instructions() if isinstance(i, Store)), None)
    if store is not None and any(known_equal(store.index.stride(axis.name), 1) for axis in own[0]):
        sides = (1, 0)  # threads side by side write what lies side by side
    left, right = (contract.factors[side] for side in sides)
    tile = ProductTile(kernel, batch, own[sides[0]], own[sides[1]], contract.axes, left, right, SHAPES[-1])
    shape = _shape(tile, contract.dtype.itemsize)
    return replace(tile, shape=shape, threads=shape.threads)


def _named(factor: Factor) -> frozenset[str]:
    return factor.index.axes.union(*(position.axes for position, _ in factor.bounds))


def _shape(tile: ProductTile, size: int) -> TileShape:
    """The largest tile that is not mostly empty and leaves enough blocks to occupy the chip."""
    rows, cols = hint(tile.row_count), hint(tile.col_count)
    sides = [((each.height, rows), (each.width, cols)) for each in SHAPES]
    full = [all(side <= _LEAST or 4 * count >= 3 * side for side, count in pair) for pair in sides]
    fitting = [each for each, is_full in zip(SHAPES, full, strict=True) if is_full]
    if size >= _WIDE:
        fitting = [each for each in fitting if each.down * each.across <= _MOST_WIDE] or fitting
    parts = 1 if is_symsize(tile.term_count) else max(1, min(int(tile.term_count) // _LEAST_TERMS, _MOST_PARTS))
    counts = {each: hint(replace(tile, shape=each).blocks) * parts for each in fitting}
    return next((each for each in fitting if counts[each] >= _ENOUGH_TILES), max(fitting, key=counts.__getitem__))


# Many terms of few points.


def in_parts(kernel: Kernel, contract: Contract) -> list[Kernel] | None:
    """A kernel whose rows are parts of the terms, and one that adds the parts and runs the epilogue; None if there are
    enough blocks, or the number of terms is dynamic."""
    tile = product_tile(kernel, contract)
    sizes = [axis.size for axis in contract.axes]
    if not sizes or any(is_symsize(size) for size in sizes) or tile.term_count < 2 * _LEAST_TERMS:
        return None
    wanted = min(-(-_ENOUGH_BLOCKS // max(1, hint(tile.blocks))), int(tile.term_count) // _LEAST_TERMS, _MOST_PARTS)
    axis = max(contract.axes, key=lambda each: int(each.size))
    chunk = -(-int(axis.size) // max(wanted, 1))
    part = Axis(f"{axis.name}.part", -(-int(axis.size) // chunk))
    if part.size < 2:
        return None
    order = (part, *kernel.rows, *kernel.cols)
    partial = Buffer(f"{contract.out}.parts", contract.dtype, product(each.size for each in order), Role.OUTPUT)
    read = {factor.buffer for factor in contract.factors}
    kept = tuple(replace(each, role=Role.INPUT) for each in kernel.buffers if each.name in read)
    body = (_of_part(contract, axis, part, chunk), Store(partial.name, dense_index(order), contract.out))
    first = replace(
        kernel, name=f"{kernel.name}.parts", rows=(part, *kernel.rows), buffers=(*kept, partial),
        stages=(Stage(True, body),),
    )  # fmt: skip
    return [first, _added_up(kernel, contract, partial, part)]


def _of_part(contract: Contract, axis: Axis, part: Axis, chunk: int) -> Contract:
    """The contraction over a part of its terms. In the last part there are none behind the last term."""

    def within(index: Index) -> Index:
        step = index.stride(axis.name)
        return index if known_equal(step, 0) else Index(((part.name, step * chunk), *index.terms), index.offset)

    def cut(factor: Factor) -> Factor:
        bounds = [(within(position), extent) for position, extent in factor.bounds]
        if axis.size % chunk:
            bounds.append((Index(((part.name, chunk), (axis.name, 1))), axis.size))
        return Factor(factor.buffer, within(factor.index), tuple(bounds))

    axes = tuple(Axis(axis.name, chunk) if each is axis else each for each in contract.axes)
    left, right = map(cut, contract.factors)
    return replace(contract, axes=axes, left=left, right=right)


def _added_up(kernel: Kernel, contract: Contract, partial: Buffer, part: Axis) -> Kernel:
    points = kernel.rows + kernel.cols
    value = f"{contract.out}.part"
    (stage,) = kernel.stages
    load = in_order(Load(value, partial.name, dense_index((part, *points))), (*points, part))
    loop = Stage(True, (load, Reduce(contract.out, "sum", value)))
    after = Stage(False, tuple(i for i in stage.body if i is not contract))
    summing = replace(kernel, rows=points, cols=(part,))
    return with_buffers(summing, [loop, after], [replace(partial, role=Role.INPUT)], f"{kernel.name}.sums")
