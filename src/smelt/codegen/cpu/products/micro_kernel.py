"""The innermost loop of a tiled product: a tile of sums in registers, over one left and one right panel.

    left panel: rows numbers for each step of the sum, side by side; right panel: cols numbers
    sums[i, j] += left[k, i] * right[k, j]     for all k, then stored, or added to the sums in memory

All products of a module with the same tile share one function. Where only few right panels are multiplied, a left
factor that is contiguous along the sum is read in place (`micro_kernel_along`), because packing it would take longer.
With `is_transposed`, the tile is stored transposed.
"""

import functools
from collections.abc import Sequence

import torch

from smelt.codegen.cpu.entry_points import params
from smelt.codegen.cpu.products.panel_copies import transposed
from smelt.codegen.cpu.products.tile_shape import TileShape, vector_lanes
from smelt.codegen.loops.arrays import Array
from smelt.codegen.loops.builder import Builder, Term
from smelt.codegen.loops.scalars import VALUE_KINDS
from smelt.device import Target
from smelt.ir.loops import Function, Value

FINISH = _STEPS, _OUT, _STRIDE, _ADDS = params("i64 steps, ptr out, i64 stride, i1 adds")


@functools.cache
def micro_kernel(tile: TileShape, dtype: torch.dtype, target: Target) -> Function:
    """`(left, right, steps, out, stride of its rows, adds)`. One step in a round: the sums leave no registers for more,
    and processors look far enough ahead."""
    name = f"product.tile.{VALUE_KINDS[dtype]}.{tile.rows}x{tile.cols}"
    b = Builder(target, name)
    panels = params("ptr left, ptr right")
    zero = b.const(VALUE_KINDS[dtype], 0.0, tile.lanes)
    loop = b.begin(0, _STEPS, 1, [*panels, *[zero] * (tile.rows * tile.vectors)], guard=True)
    left, right = (Array(b, panel, dtype) for panel in loop.values[:2])
    across = vectors_of(right, tile.vectors, tile.lanes)
    down = spread(left, tile.rows, tile.lanes, 0 if tile.rows % tile.lanes else tile.lanes)
    sums = products_added(b, down, across, loop.values[2:])
    _, _, *sums = loop.end(left.at(tile.rows).pointer, right.at(tile.cols).pointer, *sums)
    finish_tile(Array(b, _OUT, dtype), sums, tile)
    return b.function(name, (*panels, _STEPS, _OUT, _STRIDE, _ADDS), "shared")


@functools.cache
def micro_kernel_along(tile: TileShape, dtype: torch.dtype, target: Target, *, is_transposed: bool = False) -> Function:
    """`(left, rows, right, steps, out, stride of its rows, adds)`: `rows` is a table of how far from `left` the rows of
    a tile are. As many steps in a round as a vector of a row has, each a lane of it."""
    lanes = tile.lanes
    name = f"product.tile_{'transposed' if is_transposed else 'along'}.{VALUE_KINDS[dtype]}.{tile.rows}x{tile.cols}"
    b = Builder(target, name)
    factors = left, rows, right = params("ptr left, ptr rows, ptr right")
    panel, table = Array(b, right, dtype), Array(b, rows, torch.int64)
    lines = [Array(b, left, dtype).at(table.load(i)) for i in range(tile.rows)]

    def multiplied(sums: list[Value], step: Value, down: list[Value]) -> list[Value]:
        return products_added(b, down, vectors_of(panel.at(b.mul(step, tile.cols)), tile.vectors, lanes), sums)

    def step_by_step(first: Term, last: Term, sums: Sequence[Value]) -> list[Value]:
        loop = b.begin(first, last, 1, sums, guard=True)
        single = [b.splat(line.load(loop.index), lanes) for line in lines]
        return list(loop.end(*multiplied(list(loop.values), loop.index, single)))

    whole = b.and_(_STEPS, -lanes)
    loop = b.begin(0, whole, lanes, [panel.zero(lanes)] * (tile.rows * tile.vectors), guard=True)
    sums = list(loop.values)
    if target.fma_by_lane:
        row_vectors = [line.load(loop.index, lanes) for line in lines]
        for lane in range(lanes):
            sums = multiplied(sums, b.add(loop.index, lane), [_spread_lane(b, vector, lane) for vector in row_vectors])
    else:
        # The rows of the next tile are too far away for the processor to expect them.
        apart = b.mul(b.sub(table.load(1), table.load(0)), tile.rows)
        for line in lines:
            b.prefetch(line.at(b.add(loop.index, apart)).pointer)
        sums = step_by_step(loop.index, b.add(loop.index, lanes), sums)
    sums = step_by_step(whole, _STEPS, loop.end(*sums))
    if is_transposed:
        sums, tile = _transposed_sums(b, sums, tile), TileShape(tile.cols, tile.rows, lanes)
    finish_tile(Array(b, _OUT, dtype), sums, tile)
    return b.function(name, (*factors, _STEPS, _OUT, _STRIDE, _ADDS), "shared")


@functools.cache
def micro_kernel_of_rows(rows: int, cols: int, steps: int, dtype: torch.dtype, target: Target) -> Function:
    """`(weights, values, from one panel of those to the next, out, stride of its rows, columns)`: contiguous rows of
    weights, `steps` long, by all panels of columns; added to the sums in memory."""
    lanes = vector_lanes(dtype, target)
    name = f"product.rows.{VALUE_KINDS[dtype]}.{rows}x{cols}x{steps}"
    b = Builder(target, name)
    taken = params("ptr weights, ptr values, i64 apart, ptr out, i64 stride, i64 columns")
    weights, values, apart, out, stride, columns = taken
    panels = b.begin(0, columns, cols, [values])
    panel, vectors = Array(b, panels.values[0], dtype), cols // lanes
    lines = [Array(b, out, dtype).at(panels.index)]
    for _ in range(rows - 1):
        lines.append(lines[-1].at(stride))
    sums = [vector for line in lines for vector in vectors_of(line, vectors, lanes)]
    for first in range(0, steps, lanes):
        down = [spread(Array(b, weights, dtype).at(row * steps + first), lanes, lanes, lanes) for row in range(rows)]
        for lane in range(lanes):
            across = vectors_of(panel.at((first + lane) * cols), vectors, lanes)
            sums = products_added(b, [row[lane] for row in down], across, sums)
    for number, total in enumerate(sums):
        lines[number // vectors].store(total, number % vectors * lanes)
    panels.end(panel.at(apart).pointer)
    return b.function(name, taken, "shared")


def vectors_of(array: Array, count: int, lanes: int) -> list[Value]:
    return [array.load(number * lanes, lanes) for number in range(count)]


def products_added(b: Builder, down: Sequence[Value], across: Sequence[Value], sums: Sequence[Value]) -> list[Value]:
    """The sums of a tile, row by row, with one product more each."""
    pairs = [(one, other) for one in down for other in across]
    return [b.fma(one, other, total) for (one, other), total in zip(pairs, sums, strict=True)]


def spread(array: Array, count: int, lanes: int, group: int) -> list[Value]:
    """Adjacent numbers, each broadcast to a vector: by lanes of vectors of `group` numbers, if the target's
    multiply-add takes those; one by one, if that is 0."""
    b = array.b
    if not b.target.fma_by_lane or not group:
        return [b.splat(array.load(number), lanes) for number in range(count)]
    vectors = [array.load(first, group) for first in range(0, count, group)]
    return [_spread_lane(b, vectors[number // group], number % group, lanes) for number in range(count)]


def _spread_lane(b: Builder, vector: Value, lane: int, lanes: int = 0) -> Value:
    return b.permute(vector, [lane] * (lanes or vector.lanes))


def _transposed_sums(b: Builder, sums: list[Value], tile: TileShape) -> list[Value]:
    """Transpose the vectors of a tile of `tile.rows` rows into those of one of `tile.cols` rows, in four lanes."""
    vectors, groups = tile.vectors, tile.rows // tile.lanes
    squares = [
        [transposed(b, [sums[(g * tile.lanes + i) * vectors + v] for i in range(tile.lanes)]) for g in range(groups)]
        for v in range(vectors)
    ]
    return [squares[v][g][lane] for v in range(vectors) for lane in range(tile.lanes) for g in range(groups)]


def finish_tile(out: Array, sums: list[Value], tile: TileShape) -> None:
    """The end of a function that takes `FINISH`: store the tile, or add it to memory."""
    out.b.choice(_ADDS, lambda: _leave(out, sums, tile, adds=True), lambda: _leave(out, sums, tile, adds=False))


def _leave(row: Array, sums: list[Value], tile: TileShape, *, adds: bool) -> None:
    for number, total in enumerate(sums):
        if number and number % tile.vectors == 0:
            row = row.at(_STRIDE)
        place = row.at(number % tile.vectors * tile.lanes)
        place.store(row.b.fadd(place.load(0, tile.lanes), total) if adds else total)
