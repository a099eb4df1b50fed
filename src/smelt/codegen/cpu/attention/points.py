"""Pointwise operations on attention scores: the instructions between the products, by panels of queries.

    s = contract …; c = const 0.125; t = mul s, c     given the vector of s at a key and some queries → the vector of t

Lanes are adjacent queries. Operands that differ between queries are packed into panels like the queries, so that
nothing is read out of bounds; operands shared by all queries are read in place.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import TypeVar

from smelt.codegen.cpu.attention.blocks import AttentionBlocks
from smelt.codegen.cpu.instructions import PointCode
from smelt.codegen.loops.arrays import Array, positions
from smelt.codegen.loops.builder import Builder
from smelt.ir.kernel import Load
from smelt.ir.loops import Node, Value

Written = TypeVar("Written")


class Points:
    """The operations of the attention `outer`, being written."""

    def __init__(self, b: Builder, blocks: AttentionBlocks, outer: Value) -> None:
        self.b, self.problem, self.tiles = b, blocks.problem, blocks.tiles
        packed = enumerate(self.problem.packed)
        self.panels = [(load, blocks.workspace.array(b, f"packed{number}")) for number, load in packed]
        rows, cols = self.problem.outer, (self.problem.key, self.problem.query)  # lanes are queries
        self.row = PointCode(b, replace(self.problem.kernel, rows=rows, cols=cols), self.problem.body, self.tiles.lanes)
        self.row.axes |= positions(b, self.problem.outer, outer)
        self.row.begin_row([load for load, _ in self.panels])

    def write(self, lane: int, query: Value, key: Value, row: Value, values: dict[str, Value]) -> None:
        """Of queries from `lane` of the panel on, which begins with `query`; `row` counts keys in the block."""
        b, lanes = self.b, self.tiles.lanes

        def read(load: Load, panel: Array) -> Value:
            line = panel.at(b.mul(row, self.tiles.queries)) if self.problem.key.name in load.index.axes else panel
            return line.load_as(panel.dtype, lane, lanes)

        loads = {load: partial(read, load, panel) for load, panel in self.panels}
        self.row.axes[self.problem.key.name] = key
        self.row.write(b.add(query, lane) if lane else query, lanes, values, packed=loads)


def side_by_side(b: Builder, writers: Sequence[Callable[[], Written]]) -> list[Written]:
    """What several writers write, a node of each at a time."""
    before, bodies, results = b.body, list[list[Node]](), list[Written]()
    for write in writers:
        b.body = []
        results.append(write())
        bodies.append(b.body)
    b.body = before
    for nodes in zip_longest(*bodies):
        before.extend(node for node in nodes if node is not None)
    return results
