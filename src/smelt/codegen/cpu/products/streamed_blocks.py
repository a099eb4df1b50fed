"""Blocks of a product that threads share out: each is computed into an array in the cache, then its epilogue runs.

    8 × 1024, 48 columns a block   →   21 blocks, each: its product into the array, then bias, activation, store

For schedules that read the right factor in place. The left factor is small: each thread keeps its own copy, in the
order the loops read it. The last block of a row takes the remainder, and is never narrower than a vector.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu.addresses import Workspace
from smelt.codegen.cpu.entry_points import PART, KernelFunctions
from smelt.codegen.cpu.kernel_schedules import Limit, Schedule
from smelt.codegen.cpu.products.epilogue import Epilogue, epilogue_lanes
from smelt.codegen.cpu.products.problem import QUANTIZED, Problem, ProductAxis, at_example, count, problem_of
from smelt.codegen.generator import EntryCode
from smelt.codegen.loops.arrays import Array, positions
from smelt.codegen.loops.builder import Builder
from smelt.device import Target
from smelt.ir.kernel import Element, Factor
from smelt.ir.loops import Value
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import greater, hint, is_symsize, known_at_least, known_equal, lesser

_GRAIN = 1 << 17  # multiplications that are worth a thread
_STREAMED = 512 * 1024  # bytes of a right factor that is read from further away than the processor's own cache
_BYTES_A_CYCLE = 8  # at which it comes from there


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
    def workspace(self) -> Workspace:
        lengths = {"sums": self.block_rows * self.pitch, "left": self.left_size}
        return Workspace.of({name: (length, self.problem.dtype) for name, length in lengths.items()})

    @property
    def needs(self) -> tuple[Limit, ...]:
        """Columns, where they vary, and how many there must be."""
        cols = self.problem.cols
        return (((cols, "sge", self.least),),) if is_symsize(cols) and not known_at_least(cols, self.least) else ()


@dataclass(slots=True)
class StreamedBlock:
    """A block being written: where its rows and columns begin in each factor, and how many there are."""

    left: Array
    right: Array
    rows: Value
    cols: Value
    packed: Array  # the thread's copy of the left factor's rows
    sums: Array  # what the product is to be in
    fresh: Value  # whether `packed` is yet to be filled
    elements: tuple[Array, ...] = ()  # scales and the rest of a quantized right factor, from the first column on
    left_elements: tuple[Array, ...] = ()  # those of a quantized left factor, from the first row on


@dataclass(frozen=True, slots=True)
class StreamedSchedule:
    """A schedule of such blocks. A tile says how a block is computed, `compute` writes that."""

    why_no_tile: Callable[[Problem], str | None]
    tile_of: Callable[[Problem, Target], Any]
    tiles_cost: Callable[[Problem, Any], float]
    packing_cost: float  # cycles for an element of a left factor that is contiguous along the sum
    blocks_of: Callable[[Problem, Target, Any], StreamedBlocks]
    compute: Callable[..., None]  # given the builder, the blocks, one of them, and the `tile`

    def named(self, name: str, why: str) -> Schedule:
        return Schedule(name, why, self.why_not, self.cycles, self.write, self.needs)

    def why_not(self, problem: Problem, target: Target) -> str | None:
        problem = as_matrices(problem)
        return _why_no_blocks(problem) or self.why_no_tile(problem)

    def cycles(self, problem: Problem, target: Target) -> float:
        problem = at_example(as_matrices(problem))
        packing = problem.rows * problem.depth * (self.packing_cost if problem.k[0].left == 1 else 2)
        widened = 1.0 if problem.right_dtype is problem.dtype else 1.4
        computing = self.tiles_cost(problem, self.tile_of(problem, target)) * widened + packing
        reading = right_bytes(problem) / _BYTES_A_CYCLE if is_streamed(problem) else 0.0
        return problem.batches * (max(computing, reading) + 0.25 * min(computing, reading))

    def needs(self, problem: Problem, target: Target) -> tuple[Limit, ...]:
        return self._blocks(problem, target)[0].needs

    def _blocks(self, problem: Problem, target: Target) -> tuple[StreamedBlocks, Any]:
        problem = as_matrices(problem)
        tile = self.tile_of(at_example(problem), target)
        return self.blocks_of(problem, target, tile), tile

    def write(self, code: KernelFunctions, problem: Problem) -> EntryCode:
        blocks, tile = self._blocks(problem, code.target)
        return write_blocks(code, blocks, partial(self.compute, tile=tile))


def write_blocks(
    code: KernelFunctions, blocks: StreamedBlocks, compute: Callable[[Builder, StreamedBlocks, StreamedBlock], None]
) -> EntryCode:
    """The functions of a product whose blocks `compute` writes."""
    code.write("part", PART, lambda b: _Part(b, blocks, partial(compute, b, blocks)).write())
    most = lesser(blocks.extent, greater(1, blocks.problem.multiplications // _GRAIN))
    return code.end(most, blocks.extent, blocks.workspace.size)


def right_bytes(problem: Problem) -> int:
    return problem.cols * problem.depth * problem.right_dtype.itemsize


def is_streamed(problem: Problem) -> bool:
    return right_bytes(problem) > _STREAMED


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


def _why_no_blocks(problem: Problem) -> str | None:
    """Why a product is not one of plain, non-empty matrices."""
    if problem.is_quantized:
        return QUANTIZED
    if problem.is_bounded:
        return "a factor has bounds"
    if len(problem.k) != 1:
        return "the sum is over several axes"
    if problem.dtype not in (torch.float32, torch.float64):
        return f"sums of {problem.dtype}"
    if known_equal(problem.multiplications, 0):
        return "there is nothing to multiply"
    return None


def block_lanes(problem: Problem, target: Target, col_step: int) -> int:
    return epilogue_lanes(problem, target, min(col_step, hint(problem.cols)))


class _Part:
    """The part that a thread runs, being written."""

    def __init__(self, b: Builder, blocks: StreamedBlocks, compute: Callable[[StreamedBlock], None]) -> None:
        self.b, self.blocks, self.compute = b, blocks, compute
        self.epilogue = Epilogue(b, blocks.problem, blocks.lanes)

    def write(self) -> None:
        b, blocks, problem = self.b, self.blocks, self.blocks.problem
        _, _, first, last, _ = PART
        with b.loop(first, last, blocks.joined, guard=True) as unit:
            rest, number = self._split(unit, blocks.col_blocks)
            is_first = b.icmp("eq", number, 0)
            shared, other = self._batch_axes()
            if shared:
                rest, place = self._split(rest, count(shared))
                self.epilogue.axes.update(positions(b, shared, place))
                is_first = b.and_(is_first, b.icmp("eq", place, 0))
            rest, down = self._split(rest, blocks.row_blocks)
            self.epilogue.axes.update(positions(b, other, rest))
            top, left = b.mul(down, blocks.row_step), b.mul(number, blocks.col_step)
            after = b.add(number, 1)
            if blocks.joined > 1:
                after = b.smin(b.add(number, blocks.joined), last)
            right_end = b.select(b.icmp("eq", after, blocks.col_blocks), problem.cols, b.mul(after, blocks.col_step))
            block = StreamedBlock(
                self._start(problem.contract.left, problem.m, top),
                self._start(problem.contract.right, problem.n, left),
                b.smin(b.sub(problem.rows, top), blocks.row_step),
                b.sub(right_end, left),
                blocks.workspace.array(b, "left"),
                blocks.workspace.array(b, "sums"),
                b.or_(is_first, b.icmp("eq", unit, first)),
                tuple(self._start(each, problem.n, left) for each in problem.contract.right.elements[1:]),
                tuple(self._start(each, problem.m, top) for each in problem.contract.left.elements[1:]),
            )
            self.compute(block)
            self._finish(block, top, left)

    def _batch_axes(self) -> tuple[tuple[ProductAxis, ...], tuple[ProductAxis, ...]]:
        """The axes of the batch along which the left factor is the same, as those of heads, and the others."""
        problem = self.blocks.problem
        named = frozenset().union(*(index.axes for index in problem.contract.left.indices))
        shared = tuple(axis for axis in problem.batch if axis.name not in named)
        return shared, tuple(axis for axis in problem.batch if axis.name in named)

    def _split(self, number: Value, size: Size) -> tuple[Value, Value]:
        if known_equal(size, 1):
            return number, self.b.const("i64", 0)
        return self.b.udiv(number, size), self.b.urem(number, size)

    def _start(self, factor: Factor | Element, axes: tuple[ProductAxis, ...], first: Value) -> Array:
        """Where the block's rows or columns begin in a factor."""
        at, problem = self.epilogue.at, self.blocks.problem
        batch = {axis.name: at.axes[axis.name] for axis in problem.batch}
        return at.arrays[factor.buffer].at_index(factor.index, batch | {axis.name: first for axis in axes})

    def _finish(self, block: StreamedBlock, top: Value, left: Value) -> None:
        """The epilogue of a finished block, row by row."""
        blocks = self.blocks
        rest = 0 if known_equal(blocks.problem.cols % blocks.lanes, 0) else None  # only the last block may have one
        where = top, block.rows, left, block.cols, rest
        self.epilogue.write_block(block.sums, blocks.pitch, *where, least=blocks.least, masks=True)
