"""Pointwise operations on attention scores: the instructions between the products, by panels of queries.

    s = contract …; c = const 0.125; t = mul s, c     given the vector of s at a key and some queries → the vector of t

Lanes are adjacent queries. Operands that differ between queries are packed into panels like the queries, so that
nothing is read out of bounds; operands shared by all queries are read in place.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TypeVar

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu.addresses import Addresses
from smelt.codegen.cpu.attention.panels import PanelForm
from smelt.codegen.cpu.attention.problem import AttentionProblem
from smelt.codegen.cpu.instructions import InstructionWriter
from smelt.codegen.cpu.schedule import SchedulePlan, loop_variant
from smelt.codegen.cpu.workspace import WorkspaceLayout
from smelt.codegen.loops.builder import Builder
from smelt.codegen.loops.scalars import from_memory, memory_kind
from smelt.ir.kernel import Instruction, Kernel, Load
from smelt.ir.loops import Node, Value

Written = TypeVar("Written")


@dataclass(frozen=True, slots=True)
class PackedLoad:
    """A load that differs between queries: the form of its panels, and whether it differs between keys too."""

    load: Load
    form: PanelForm
    by_key: bool

    @property
    def dtype(self) -> torch.dtype:
        return self.form.dtype


def packed_loads(problem: AttentionProblem, width: int) -> tuple[PackedLoad, ...]:
    loads = []
    for each in problem.body:
        if isinstance(each, Load) and problem.query.name in each.index.axes:
            dtype = problem.kernel.buffer(each.buffer).dtype
            point, step = (int(each.index.stride(axis.name)) for axis in (problem.query, problem.key))
            by_key = problem.key.name in each.index.axes
            loads.append(PackedLoad(each, PanelForm(dtype, dtype, width, point, step if by_key else 0), by_key))
    return tuple(loads)


def outer_axes(b: Builder, problem: AttentionProblem, number: Value) -> dict[str, Value]:
    """The positions of the outer axes in attention `number`."""
    positions: dict[str, Value] = {}
    for place, axis in enumerate(reversed(problem.outer)):
        if place == len(problem.outer) - 1:
            positions[axis.name] = number
        else:
            positions[axis.name] = b.binary("urem", number, int(axis.size))
            number = b.binary("udiv", number, int(axis.size))
    return positions


@dataclass(slots=True)
class Points:
    """The state of writing it. `panels` has where each packed load's panel is."""

    b: Builder
    problem: AttentionProblem
    at: Addresses
    code: InstructionWriter
    inside: tuple[Instruction, ...]
    outside: tuple[Instruction, ...]
    packed: dict[Load, PackedLoad]
    panels: dict[Load, Value]
    width: int

    @classmethod
    def of(cls, b: Builder, problem: AttentionProblem, width: int, lanes: int) -> "Points":
        """Reads the buffers' addresses where it stands."""
        kernel = _across(problem)
        plan = SchedulePlan(kernel, lanes=lanes)
        at = Addresses(b, plan, WorkspaceLayout.of(plan))
        at.load_pointers()
        moving = {id(i) for i in loop_variant(kernel, kernel.stages[0])}
        inside = tuple(i for i in problem.body if id(i) in moving)
        outside = tuple(i for i in problem.body if id(i) not in moving)
        packed = {each.load: each for each in packed_loads(problem, width)}
        return cls(b, problem, at, InstructionWriter.of(b, plan, at), inside, outside, packed, {}, width)

    def begin(self, outer: Value) -> None:
        """At the attention `outer`."""
        self.code.begin_row()
        self.at.axes |= outer_axes(self.b, self.problem, outer)
        self.at.lanes = 1
        for instruction in self.outside:
            self.code.write(instruction)
        self.code.hold_addresses([i for i in self.inside if i not in self.packed])

    def write(self, lane: int, lanes: int, query: Value, row: Value, scores: dict[str, Value]) -> None:
        """Of `lanes` queries from `lane` of the panel on, which begins with `query`; `row` counts keys in the block."""
        b, at = self.b, self.at
        at.axes[self.problem.query.name] = b.add(query, lane) if lane else query
        at.lanes = lanes
        self.code.values.update(scores)
        for instruction in self.inside:
            if isinstance(instruction, Load) and instruction in self.packed:
                self._load(self.packed[instruction], lane, lanes, row)
            else:
                self.code.write(instruction)

    def _load(self, packed: PackedLoad, lane: int, lanes: int, row: Value) -> None:
        b, kind = self.b, memory_kind(packed.dtype)
        panel = self.panels[packed.load]
        place = b.element(panel, kind, b.mul(row, self.width)) if packed.by_key else panel
        raw = b.load(b.element(place, kind, lane), kind, lanes)
        self.code.values[packed.load.out] = from_memory(b, raw, packed.dtype)


def _across(problem: AttentionProblem) -> Kernel:
    """The kernel with keys and queries as its cols, queries last: lanes are theirs."""
    return replace(problem.kernel, rows=problem.outer, cols=(problem.key, problem.query))


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
