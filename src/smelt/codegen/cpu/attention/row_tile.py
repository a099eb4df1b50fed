"""A tile of sums over a panel of queries: rows of weights, contiguous along queries, by rows of columns.

    sums[j, c] += Σ weights[j, i] * values[i, c]     for the queries i of one panel

All attentions of a module with the same tile share one function.
"""

import torch

from smelt.codegen.cpu.products.parts import params
from smelt.codegen.loops.builder import Builder
from smelt.codegen.loops.scalars import VALUE_KINDS
from smelt.device import Target
from smelt.ir.loops import Function, Value


def row_tile(rows: int, cols: int, steps: int, dtype: torch.dtype, target: Target) -> Function:
    """`(weights, values, from one panel of those to the next, out, stride of its rows, columns)`: of weights that are
    `steps` from one row to the next, all panels of columns."""
    kind = VALUE_KINDS[dtype]
    lanes = max(1, target.vector_bits // (8 * dtype.itemsize))
    name = f"attention.rows.{kind}.{rows}x{cols}x{steps}"
    b = Builder(target, name)
    taken = params("ptr weights, ptr values, i64 apart, ptr out, i64 stride, i64 columns")
    all_weights, all_values, apart, out, stride, columns = taken
    panels = b.begin(b.const("i64", 0), columns, cols, [all_values], guard=False)
    (panel,) = panels.values
    places, vectors = [b.element(out, kind, panels.index)], cols // lanes
    for _ in range(rows - 1):
        places.append(b.element(places[-1], kind, stride))
    sums = [[b.load(b.element(place, kind, v * lanes), kind, lanes) for v in range(vectors)] for place in places]
    for first in range(0, steps, lanes):
        weights = [_weights(b, kind, b.element(all_weights, kind, row * steps + first), lanes) for row in range(rows)]
        for lane in range(lanes):
            start = (first + lane) * cols
            values = [b.load(b.element(panel, kind, start + v * lanes), kind, lanes) for v in range(vectors)]
            for row in range(rows):
                weight = weights[row][lane]
                sums[row] = [b.fma(weight, value, old) for value, old in zip(values, sums[row], strict=True)]
    for place, row_sums in zip(places, sums, strict=True):
        for v, value in enumerate(row_sums):
            b.store(value, b.element(place, kind, v * lanes))
    panels.end(b.element(panel, kind, apart))
    return b.function(name, taken, "shared")


def _weights(b: Builder, kind: str, place: Value, lanes: int) -> list[Value]:
    """Some weights of a row, each broadcast to a vector: by lanes of one loaded vector, if the target's multiply-add
    takes those."""
    if b.target.fma_by_lane:
        loaded = b.load(place, kind, lanes)
        return [b.permute(loaded, [lane] * lanes) for lane in range(lanes)]
    return [b.splat(b.load(b.element(place, kind, n), kind), lanes) for n in range(lanes)]
