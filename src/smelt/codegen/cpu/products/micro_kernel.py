"""The innermost loop of a tiled product: a tile of sums in registers, over one left and one right panel.

    left panel: rows numbers for each step of the sum, side by side; right panel: cols numbers
    sums[i, j] += left[k, i] * right[k, j]     for all k, then stored, or added to what is there

All products of a module with the same tile share one function. Where only few right panels are multiplied, a left
factor that is contiguous along the sum is read in place (`micro_kernel_along`), because packing it would take longer.
With `is_transposed`, the tile is stored transposed.
"""

import functools
from collections.abc import Callable

import torch

from smelt.codegen.cpu.products.parts import params
from smelt.codegen.cpu.products.tile_shape import TileShape
from smelt.codegen.cpu.products.transposes import transposed
from smelt.codegen.loops.builder import Builder
from smelt.codegen.loops.scalars import VALUE_KINDS
from smelt.device import Target
from smelt.ir.loops import Function, Value

_STEPS, _OUT, _STRIDE, _ADDS = params("i64 steps, ptr out, i64 stride, i1 adds")


@functools.cache
def micro_kernel(tile: TileShape, dtype: torch.dtype, target: Target) -> Function:
    """`(left, right, steps, out, stride of its rows, adds)`. One step in a round: the sums leave no registers for more,
    and processors look far enough ahead."""
    kind = VALUE_KINDS[dtype]
    name = f"product.tile.{kind}.{tile.rows}x{tile.cols}"
    b = Builder(target, name)
    vectors = tile.cols // tile.lanes
    zero = b.const(kind, 0.0, tile.lanes)
    panels = params("ptr left, ptr right")
    loop = b.begin(b.const("i64", 0), _STEPS, 1, [*panels, *[zero] * (tile.rows * vectors)], guard=True)
    left, right, *sums = loop.values
    across = [_load(b, right, kind, v * tile.lanes, tile.lanes) for v in range(vectors)]
    down = _spread(b, left, kind, tile)
    for i in range(tile.rows):
        for v in range(vectors):
            sums[i * vectors + v] = b.fma(down[i], across[v], sums[i * vectors + v])
    _, _, *sums = loop.end(b.element(left, kind, tile.rows), b.element(right, kind, tile.cols), *sums)
    _finished(b, sums, kind, tile)
    return b.function(name, (*panels, _STEPS, _OUT, _STRIDE, _ADDS), "shared")


@functools.cache
def micro_kernel_along(tile: TileShape, dtype: torch.dtype, target: Target, *, is_transposed: bool = False) -> Function:
    """`(left, rows, right, steps, out, stride of its rows, adds)`: `rows` is a table of how far from `left` the rows of
    a tile are. As many steps in a round as a vector of a row has, each a lane of it."""
    kind, lanes = VALUE_KINDS[dtype], tile.lanes
    name = f"product.tile_{'transposed' if is_transposed else 'along'}.{kind}.{tile.rows}x{tile.cols}"
    b = Builder(target, name)
    factors = left, rows, panel = params("ptr left, ptr rows, ptr right")
    vectors = tile.cols // lanes
    lines = [b.element(left, kind, b.load(b.element(rows, "i64", i), "i64")) for i in range(tile.rows)]
    zero, whole = b.const(kind, 0.0, lanes), b.and_(_STEPS, -lanes)

    def multiplied(sums: list[Value], step: Value, down: Callable[[int], Value]) -> list[Value]:
        right = b.element(panel, kind, b.mul(step, tile.cols))
        across = [_load(b, right, kind, v * lanes, lanes) for v in range(vectors)]
        return [b.fma(down(n // vectors), across[n % vectors], each) for n, each in enumerate(sums)]

    loop = b.begin(b.const("i64", 0), whole, lanes, [zero] * (tile.rows * vectors), guard=True)
    row_vectors = [b.load(b.element(line, kind, loop.index), kind, lanes) for line in lines]
    sums = list(loop.values)
    for lane in range(lanes):
        spread = [_spread_lane(b, vector, lane) for vector in row_vectors]
        sums = multiplied(sums, b.add(loop.index, lane), spread.__getitem__)
    sums = list(loop.end(*sums))
    rest = b.begin(whole, _STEPS, 1, sums, guard=True)
    single = [b.splat(b.load(b.element(line, kind, rest.index), kind), lanes) for line in lines]
    sums = list(rest.end(*multiplied(list(rest.values), rest.index, single.__getitem__)))
    if is_transposed:
        sums, tile = _transposed_sums(b, sums, tile), TileShape(tile.cols, tile.rows, lanes)
    _finished(b, sums, kind, tile)
    return b.function(name, (*factors, _STEPS, _OUT, _STRIDE, _ADDS), "shared")


def _transposed_sums(b: Builder, sums: list[Value], tile: TileShape) -> list[Value]:
    """Transpose the vectors of a tile of `tile.rows` rows into those of one of `tile.cols` rows, in four lanes."""
    vectors, groups = tile.cols // tile.lanes, tile.rows // tile.lanes
    squares = [
        [transposed(b, [sums[(g * tile.lanes + i) * vectors + v] for i in range(tile.lanes)]) for g in range(groups)]
        for v in range(vectors)
    ]
    return [squares[v][g][lane] for v in range(vectors) for lane in range(tile.lanes) for g in range(groups)]


def _load(b: Builder, base: Value, kind: str, offset: int, lanes: int) -> Value:
    return b.load(b.element(base, kind, offset), kind, lanes)


def _spread(b: Builder, base: Value, kind: str, tile: TileShape) -> list[Value]:
    """One step of the left panel, each number broadcast to a vector: by lanes of loaded vectors, if the target's
    multiply-add takes those."""
    if not b.target.fma_by_lane or tile.rows % tile.lanes:
        return [b.splat(_load(b, base, kind, i, 1), tile.lanes) for i in range(tile.rows)]
    spread = []
    for first in range(0, tile.rows, tile.lanes):
        vector = _load(b, base, kind, first, tile.lanes)
        spread += [_spread_lane(b, vector, lane) for lane in range(tile.lanes)]
    return spread


def _spread_lane(b: Builder, vector: Value, lane: int) -> Value:
    return b.permute(vector, [lane] * vector.lanes)


def _finished(b: Builder, sums: list[Value], kind: str, tile: TileShape) -> None:
    """The end of a function: store the tile, or add it to memory."""
    b.choice(_ADDS, lambda: _leave(b, sums, kind, tile, adds=True), lambda: _leave(b, sums, kind, tile, adds=False))


def _leave(b: Builder, sums: list[Value], kind: str, tile: TileShape, *, adds: bool) -> None:
    vectors = tile.cols // tile.lanes
    row = _OUT
    for i in range(tile.rows):
        for v in range(vectors):
            place = b.element(row, kind, v * tile.lanes)
            total = sums[i * vectors + v]
            b.store(b.fadd(b.load(place, kind, tile.lanes), total) if adds else total, place)
        if i + 1 < tile.rows:
            row = b.element(row, kind, _STRIDE)
