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

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu.attention.panels import PanelForm
from smelt.codegen.cpu.attention.problem import AttentionProblem
from smelt.codegen.cpu.instructions import PointCode
from smelt.codegen.loops.arrays import Array, positions
from smelt.codegen.loops.builder import Builder
from smelt.ir.kernel import Load
from smelt.ir.loops import Node, Value

Written = TypeVar("Written")


@dataclass(frozen=True, slots=True)
class PackedLoad:
    """A load that differs between queries: the form of its panels, and whether it differs between keys too."""

    load: Load
    form: PanelForm
    by_key: bool


PackedPanel = tuple[PackedLoad, Array]


def packed_loads(problem: AttentionProblem, width: int) -> tuple[PackedLoad, ...]:
    loads = []
    for each in problem.body:
        if isinstance(each, Load) and problem.query.name in each.index.axes:
            dtype = problem.kernel.buffer(each.buffer).dtype
            point, step = (int(each.index.stride(axis.name)) for axis in (problem.query, problem.key))
            by_key = problem.key.name in each.index.axes
            loads.append(PackedLoad(each, PanelForm(dtype, dtype, width, point, step if by_key else 0), by_key))
    return tuple(loads)


class Points:
    """The operations of the attention `outer`, being written. `panels`: where each packed load is."""

    def __init__(
        self, b: Builder, problem: AttentionProblem, panels: Sequence[PackedPanel], lanes: int, outer: Value
    ) -> None:
        across = replace(problem.kernel, rows=problem.outer, cols=(problem.key, problem.query))  # lanes are queries
        self.b, self.problem, self.panels, self.lanes = b, problem, panels, lanes
        self.row = PointCode(b, across, problem.body, lanes)
        self.row.axes |= positions(b, problem.outer, outer)
        self.row.begin_row([each.load for each, _ in panels])

    def write(self, lane: int, query: Value, key: Value, row: Value, values: dict[str, Value]) -> None:
        """Of queries from `lane` of the panel on, which begins with `query`; `row` counts keys in the block."""
        b = self.b

        def load(packed: PackedLoad, panel: Array) -> Value:
            line = panel.at(b.mul(row, packed.form.width)) if packed.by_key else panel
            return line.load_as(panel.dtype, lane, self.lanes)

        loads = {packed.load: partial(load, packed, panel) for packed, panel in self.panels}
        self.row.axes[self.problem.key.name] = key
        self.row.write(b.add(query, lane) if lane else query, self.lanes, values, packed=loads)


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
