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

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu.entry_points import function_text
from smelt.codegen.cpu.products.tile_shape import TileShape
from smelt.codegen.cpu.products.transposes import transposed
from smelt.codegen.llvm.builder import Builder, LlvmValue
from smelt.codegen.llvm.scalars import VALUE_KINDS
from smelt.device import Target


@dataclass(frozen=True, slots=True)
class Helper:
    """A function that is defined once in a module, for all kernels that call it."""

    name: str
    text: str
    declared: frozenset[str]


@functools.cache
def micro_kernel(tile: TileShape, dtype: torch.dtype, target: Target) -> Helper:
    """`(left, right, steps, out, stride of its rows, adds)`. One step in a round: the sums leave no registers for more,
    and processors look far enough ahead."""
    kind = VALUE_KINDS[dtype]
    name = f"product.tile.{kind}.{tile.rows}x{tile.cols}"
    b = Builder(target, name)
    vectors = tile.cols // tile.lanes
    zero = b.const(kind, 0.0, tile.lanes)
    ends = [LlvmValue("%left", "ptr"), LlvmValue("%right", "ptr")]
    first, last = b.const("i64", 0), LlvmValue("%steps", "i64")
    loop = b.begin(first, last, 1, [*ends, *[zero] * (tile.rows * vectors)], guard=True)
    left, right = loop.values[0].name, loop.values[1].name
    sums = list(loop.values[2:])
    across = [_load(b, right, kind, v * tile.lanes, tile.lanes) for v in range(vectors)]
    down = _spread(b, left, kind, tile)
    for i in range(tile.rows):
        for v in range(vectors):
            sums[i * vectors + v] = b.fma(down[i], across[v], sums[i * vectors + v])
    following = [
        LlvmValue(b.element(left, kind, tile.rows), "ptr"),
        LlvmValue(b.element(right, kind, tile.cols), "ptr"),
    ]
    _, _, *sums = loop.end(*following, *sums)
    _finished(b, sums, kind, tile)
    signature = f"internal void @{name}(ptr %left, ptr %right, i64 %steps, ptr %out, i64 %stride, i1 %adds)"
    return Helper(name, function_text(signature, b), frozenset(b.declared))


@functools.cache
def micro_kernel_along(tile: TileShape, dtype: torch.dtype, target: Target, *, is_transposed: bool = False) -> Helper:
    """`(left, rows, right, steps, out, stride of its rows, adds)`: `rows` is a table of how far from `left` the rows of
    a tile are. As many steps in a round as a vector of a row has, each a lane of it."""
    kind, lanes = VALUE_KINDS[dtype], tile.lanes
    name = f"product.tile_{'transposed' if is_transposed else 'along'}.{kind}.{tile.rows}x{tile.cols}"
    b = Builder(target, name)
    vectors, steps = tile.cols // lanes, LlvmValue("%steps", "i64")
    lines = [b.element("%left", kind, b.load(b.element("%rows", "i64", i), "i64")) for i in range(tile.rows)]
    zero, whole = b.const(kind, 0.0, lanes), b.and_(steps, -lanes)

    def multiplied(sums: list[LlvmValue], step: LlvmValue, down: Callable[[int], LlvmValue]) -> list[LlvmValue]:
        right = b.element("%right", kind, b.mul(step, tile.cols))
        across = [_load(b, right, kind, v * lanes, lanes) for v in range(vectors)]
        return [b.fma(down(n // vectors), across[n % vectors], each) for n, each in enumerate(sums)]

    loop = b.begin(b.const("i64", 0), whole, lanes, [zero] * (tile.rows * vectors), guard=True)
    row_vectors = [b.load(b.element(line, kind, loop.index), kind, lanes) for line in lines]
    sums = list(loop.values)
    for lane in range(lanes):
        spread = [_spread_lane(b, vector, lane) for vector in row_vectors]
        sums = multiplied(sums, b.add(loop.index, lane), spread.__getitem__)
    sums = list(loop.end(*sums))
    rest = b.begin(whole, steps, 1, sums, guard=True)
    single = [b.splat(b.load(b.element(line, kind, rest.index), kind), lanes) for line in lines]
    sums = list(rest.end(*multiplied(list(rest.values), rest.index, single.__getitem__)))
    if is_transposed:
        sums, tile = _transposed_sums(b, sums, tile), TileShape(tile.cols, tile.rows, lanes)
    _finished(b, sums, kind, tile)
    parameters = "ptr %left, ptr %rows, ptr %right, i64 %steps, ptr %out, i64 %stride, i1 %adds"
    return Helper(name, function_text(f"internal void @{name}({parameters})", b), frozenset(b.declared))


def _transposed_sums(b: Builder, sums: list[LlvmValue], tile: TileShape) -> list[LlvmValue]:
    """Transpose the vectors of a tile of `tile.rows` rows into those of one of `tile.cols` rows, in four lanes."""
    vectors, groups = tile.cols // tile.lanes, tile.rows // tile.lanes
    squares = [
        [transposed(b, [sums[(g * tile.lanes + i) * vectors + v] for i in range(tile.lanes)]) for g in range(groups)]
        for v in range(vectors)
    ]
    return [squares[v][g][lane] for v in range(vectors) for lane in range(tile.lanes) for g in range(groups)]


def _load(b: Builder, base: str, kind: str, offset: int, lanes: int) -> LlvmValue:
    return b.load(b.element(base, kind, offset), kind, lanes)


def _spread(b: Builder, base: str, kind: str, tile: TileShape) -> list[LlvmValue]:
    """One step of the left panel, each number broadcast to a vector: by lanes of loaded vectors, if the target's
    multiply-add takes those."""
    if not b.target.fma_by_lane or tile.rows % tile.lanes:
        return [b.splat(_load(b, base, kind, i, 1), tile.lanes) for i in range(tile.rows)]
    spread = []
    for first in range(0, tile.rows, tile.lanes):
        vector = _load(b, base, kind, first, tile.lanes)
        spread += [_spread_lane(b, vector, lane) for lane in range(tile.lanes)]
    return spread


def _spread_lane(b: Builder, vector: LlvmValue, lane: int) -> LlvmValue:
    order = b.iota("i32", [lane] * vector.lanes)
    return b.op(f"shufflevector {vector}, {vector.type} poison, {order}", vector.kind, vector.lanes)


def _finished(b: Builder, sums: list[LlvmValue], kind: str, tile: TileShape) -> None:
    """The end of a function: store the tile, or add it to memory."""
    adding, storing = b.new_label("adding"), b.new_label("storing")
    b.branch(LlvmValue("%adds", "i1"), adding, storing)
    for label, adds in ((adding, True), (storing, False)):
        b.label(label)
        _leave(b, sums, kind, tile, adds=adds)
        b.emit("ret void")


def _leave(b: Builder, sums: list[LlvmValue], kind: str, tile: TileShape, *, adds: bool) -> None:
    vectors = tile.cols // tile.lanes
    row = "%out"
    for i in range(tile.rows):
        for v in range(vectors):
            place = b.element(row, kind, v * tile.lanes)
            total = sums[i * vectors + v]
            b.store(b.fadd(b.load(place, kind, tile.lanes), total) if adds else total, place)
        if i + 1 < tile.rows:
            row = b.element(row, kind, LlvmValue("%stride", "i64"))
