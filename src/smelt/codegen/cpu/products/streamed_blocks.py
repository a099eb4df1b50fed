"""Blocks of a product that threads share out: each is computed into an array in the cache, then its epilogue runs.

    8 × 1024, 48 columns a block   →   21 blocks, each: its product into the array, then bias, activation, store

For schedules that read the right factor in place. The left factor is small: each thread keeps its own copy, in the
order the loops read it. The last block of a row takes the remainder, and is never narrower than a vector.
"""

from collections.abc import Callable
from dataclasses import field, replace

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu.entry_points import PART
from smelt.codegen.cpu.products.epilogue import Epilogue, epilogue_lanes
from smelt.codegen.cpu.products.parts import MINE, entry_function
from smelt.codegen.cpu.products.problem import Problem, ProductAxis, problem_of
from smelt.codegen.cpu.schedule import idempotent
from smelt.codegen.cpu.workspace import aligned
from smelt.codegen.generator import EntryCode
from smelt.codegen.loops.builder import Builder
from smelt.codegen.loops.runtime_sizes import Sizes
from smelt.codegen.loops.scalars import memory_kind
from smelt.device import Target
from smelt.ir.kernel import Factor
from smelt.ir.loops import Function, Value
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import greater, hint, is_symsize, known_at_least, known_equal, lesser

_GRAIN = 1 << 17  # multiplications that are worth a thread
_APART = 512  # bytes between arrays: those that are 4 KiB apart would be in each other's way


@dataclass(frozen=True, slots=True)
class StreamedBlocks:
    """A product of matrices in blocks of `row_step` × `col_step`, and the sizes of the arrays that a thread keeps."""

    problem: Problem
    lanes: int  # of the epilogue
    least: int  # columns that a block has: no fewer than a vector or a tile
    row_step: int
    col_step: int
    pitch: int  # elements from a row of the block's array to the next
    block_rows: int  # of the array: whole tiles
    left_size: Size  # elements of the thread's copy of the left factor's rows
    joined: int = 1  # how many blocks side by side a thread computes as one; more than one if they are all in a row

    @property
    def row_blocks(self) -> Size:
        return (self.problem.rows + self.row_step - 1) // self.row_step

    @property
    def col_blocks(self) -> Size:
        return greater(1, (self.problem.cols - self.least) // self.col_step + 1)

    @property
    def extent(self) -> Size:
        return self.problem.batches * self.row_blocks * self.col_blocks

    @property
    def left_place(self) -> int:
        return int(aligned(self.block_rows * self.pitch * self.problem.dtype.itemsize)) + _APART

    @property
    def workspace(self) -> Size:
        return self.left_place + aligned(self.left_size * self.problem.dtype.itemsize) + _APART

    @property
    def needs(self) -> tuple[tuple[Size, int], ...]:
        """Columns, where they vary, and how many there must be."""
        cols = self.problem.cols
        return ((cols, self.least),) if is_symsize(cols) and not known_at_least(cols, self.least) else ()


@dataclass(slots=True)
class StreamedBlock:
    """A block being written: where its rows and columns begin in each factor, and how many there are."""

    left: Value
    right: Value
    rows: Value
    cols: Value
    packed: Value  # the thread's copy of the left factor's rows
    array: Value  # what the product is to be in
    fresh: Value  # whether `packed` is yet to be filled


def as_matrices(problem: Problem) -> Problem:
    """The product as one of matrices, or a batch of them: each factor keeps one of its own axes, and the others become
    batch axes. The result is contiguous along columns; for a matrix by a vector, along its only axis."""
    kernel = problem.kernel
    along = (problem.n or problem.m)[-1:]
    if [axis.name for axis in kernel.cols[-1:]] != [axis.name for axis in along]:
        names = {axis.name for axis in along}
        axes = kernel.rows + kernel.cols
        rows, cols = (tuple(axis for axis in axes if (axis.name in names) == inside) for inside in (False, True))
        problem = problem_of(replace(kernel, rows=rows, cols=cols))
    down = max(problem.m, key=lambda axis: hint(axis.size), default=None)
    outer = (*problem.n[:-1], *(axis for axis in problem.m if axis is not down))
    return replace(problem, batch=problem.batch + outer, m=() if down is None else (down,), n=problem.n[-1:])


def why_no_blocks(problem: Problem) -> str | None:
    """Why a product is not one of plain, non-empty matrices."""
    if problem.is_bounded:
        return "a factor has bounds"
    if len(problem.k) != 1:
        return "the sum is over several axes"
    if problem.dtype not in (torch.float32, torch.float64):
        return f"sums of {problem.dtype}"
    if any(not dtype.is_floating_point for dtype in (problem.left_dtype, problem.right_dtype)):
        return "a factor is not of floating point"
    if known_equal(problem.multiplications, 0):
        return "there is nothing to multiply"
    return None


def block_lanes(problem: Problem, target: Target, col_step: int) -> int:
    return epilogue_lanes(problem, target, min(col_step, hint(problem.cols)))


@dataclass(slots=True)
class StreamedBlocksWriter:
    """The state of writing the part that a thread runs."""

    b: Builder
    blocks: StreamedBlocks
    epilogue: Epilogue
    compute: Callable[[Builder, StreamedBlock], None]
    batch: dict[str, Value] = field(default_factory=dict)

    def write(self) -> None:
        b, blocks = self.b, self.blocks
        _, _, first, last, _ = PART
        loop = b.begin(first, last, blocks.joined, (), guard=True)
        rest, number = self._split(loop.index, blocks.col_blocks)
        rest, down = self._split(rest, blocks.row_blocks)
        for position, axis in enumerate(reversed(blocks.problem.batch)):
            outermost = position == len(blocks.problem.batch) - 1
            rest, self.epilogue.at.axes[axis.name] = (rest, rest) if outermost else self._split(rest, axis.size)
        top, left = b.mul(down, blocks.row_step), b.mul(number, blocks.col_step)
        rows = b.intrinsic("smin", b.sub(blocks.problem.rows, top), b.const("i64", blocks.row_step))
        after = b.add(number, 1)
        if blocks.joined > 1:
            after = b.intrinsic("smin", b.add(number, blocks.joined), last)
        is_last = b.icmp("eq", after, blocks.col_blocks)
        right_end = b.select(is_last, blocks.problem.cols, b.mul(after, blocks.col_step))
        block = StreamedBlock(
            self._start(blocks.problem.contract.left, blocks.problem.m, top),
            self._start(blocks.problem.contract.right, blocks.problem.n, left),
            rows,
            b.sub(right_end, left),
            b.element(MINE, "i8", blocks.left_place),
            MINE,
            b.or_(b.icmp("eq", number, 0), b.icmp("eq", loop.index, first)),
        )
        self.compute(b, block)
        self._finish(block, top, left, is_last)
        loop.end()

    def _split(self, number: Value, size: Size) -> tuple[Value, Value]:
        if known_equal(size, 1):
            return number, self.b.const("i64", 0)
        return self.b.binary("udiv", number, size), self.b.binary("urem", number, size)

    def _start(self, factor: Factor, axes: tuple[ProductAxis, ...], first: Value) -> Value:
        """Where the block's rows or columns begin in a factor."""
        b, at = self.b, self.epilogue.at
        total = b.const("i64", factor.index.offset)
        for axis in self.blocks.problem.batch:
            stride = factor.index.stride(axis.name)
            total = b.add(total, b.mul(at.axes[axis.name], stride)) if stride else total
        for axis in axes:
            total = b.add(total, b.mul(first, factor.index.stride(axis.name)))
        return b.element(at.pointers[factor.buffer], at.layout.kinds[factor.buffer], total)

    def _finish(self, block: StreamedBlock, top: Value, left: Value, is_last: Value) -> None:
        """The epilogue of a finished block, row by row, in vectors; the last one overlaps the previous one."""
        b, blocks, lanes = self.b, self.blocks, self.blocks.lanes
        problem, kind = blocks.problem, memory_kind(blocks.problem.dtype)
        rows = b.begin(b.const("i64", 0), block.rows, 1, (), guard=False)
        for axis in problem.m:
            self.epilogue.at.axes[axis.name] = b.add(top, rows.index)
        self.epilogue.begin_row()
        line = b.element(block.array, kind, b.mul(rows.index, blocks.pitch))
        b.open_loop()
        overlaps = idempotent(problem.epilogue)
        whole = block.cols if overlaps else b.and_(block.cols, -lanes)
        loop = b.begin(b.const("i64", 0), whole, lanes, (), guard=False)
        column = b.intrinsic("smin", loop.index, b.sub(block.cols, lanes)) if overlaps else loop.index
        self.epilogue.write(b.add(left, column), b.load(b.element(line, kind, column), kind, lanes))
        loop.end()
        b.close_loop()
        if not overlaps and not known_equal(problem.cols % lanes, 0):
            more = b.and_(b.const("i64", problem.cols), lanes - 1)
            with b.when(b.and_(is_last, b.icmp("ne", more, 0))):
                column = b.sub(block.cols, lanes)
                product = b.load(b.element(line, kind, column), kind, lanes)
                fresh = b.icmp("uge", b.iota("i64", range(lanes)), b.splat(b.sub(lanes, more), lanes))
                self.epilogue.write(b.add(left, column), product, fresh)
        rows.end()


def write(
    symbol: str,
    blocks: StreamedBlocks,
    target: Target,
    compute: Callable[[Builder, StreamedBlock], None],
    helpers: dict[str, Function],
    sizes: Sizes,
) -> EntryCode:
    """The functions of a product in blocks. `helpers` are by name, for any kernel of a module to share."""
    part, entry = Builder(target, symbol, sizes), Builder(target, symbol, sizes)
    StreamedBlocksWriter(part, blocks, Epilogue.of(part, blocks.problem, blocks.lanes), compute).write()
    most = lesser(blocks.extent, greater(1, blocks.problem.multiplications // _GRAIN))
    functions = (part.function(f"{symbol}.part", PART), entry_function(entry, most, blocks.extent, blocks.workspace))
    shared = {**part.helpers, **{name: (helper,) for name, helper in helpers.items()}}
    return EntryCode(functions, tuple(shared.items()), blocks.workspace)
