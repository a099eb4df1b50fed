"""A tile of sums over a panel of queries: rows of weights, contiguous along queries, by rows of columns.

    sums[j, c] += Σ weights[j, i] * values[i, c]     for the queries i of one panel

All attentions of a module with the same tile share one function.
"""

import torch

from smelt.codegen.cpu.entry_points import function_text
from smelt.codegen.cpu.products.micro_kernel import Helper
from smelt.codegen.llvm.builder import Builder, LlvmValue
from smelt.codegen.llvm.scalars import VALUE_KINDS
from smelt.device import Target


def row_tile(rows: int, cols: int, steps: int, dtype: torch.dtype, target: Target) -> Helper:
    """`(weights, values, from one panel of those to the next, out, stride of its rows, columns)`: of weights that are
    `steps` from one row to the next, all panels of columns."""
    kind = VALUE_KINDS[dtype]
    lanes = max(1, target.vector_bits // (8 * dtype.itemsize))
    name = f"attention.rows.{kind}.{rows}x{cols}x{steps}"
    b = Builder(target, name)
    panels = b.begin(b.const("i64", 0), LlvmValue("%columns", "i64"), cols, [LlvmValue("%values", "ptr")], guard=False)
    panel = panels.values[0].name
    places, vectors = [b.element("%out", kind, panels.index)], cols // lanes
    for _ in range(rows - 1):
        places.append(b.element(places[-1], kind, LlvmValue("%stride", "i64")))
    sums = [[b.load(b.element(place, kind, v * lanes), kind, lanes) for v in range(vectors)] for place in places]
    for first in range(0, steps, lanes):
        weights = _weights(b, kind, (rows, steps, first), lanes)
        for lane in range(lanes):
            start = (first + lane) * cols
            values = [b.load(b.element(panel, kind, start + v * lanes), kind, lanes) for v in range(vectors)]
            for row in range(rows):
                weight = weights[row][lane]
                sums[row] = [b.fma(weight, value, old) for value, old in zip(values, sums[row], strict=True)]
    for place, row_sums in zip(places, sums, strict=True):
        for v, value in enumerate(row_sums):
            b.store(value, b.element(place, kind, v * lanes))
    panels.end(LlvmValue(b.element(panel, kind, LlvmValue("%apart", "i64")), "ptr"))
    b.emit("ret void")
    parameters = "ptr %weights, ptr %values, i64 %apart, ptr %out, i64 %stride, i64 %columns"
    signature = f"internal void @{name}({parameters})"
    return Helper(name, function_text(signature, b), frozenset(b.declared))


def _weights(b: Builder, kind: str, where: tuple[int, int, int], lanes: int) -> list[list[LlvmValue]]:
    """Some weights of each row, each broadcast to a vector: by lanes of one loaded vector, if the target's multiply-add
    takes those."""
    rows, steps, first = where
    weights = []
    for row in range(rows):
        place = b.element("%weights", kind, row * steps + first)
        if b.target.fma_by_lane:
            loaded = b.load(place, kind, lanes)
            orders = [b.iota("i32", [lane] * lanes) for lane in range(lanes)]
            weights.append([b.op(f"shufflevector {loaded}, {loaded.type} poison, {o}", kind, lanes) for o in orders])
        else:
            weights.append([b.splat(b.load(b.element(place, kind, n), kind), lanes) for n in range(lanes)])
    return weights
