"""Results of some queries of an attention: the weighted sums divided by the sum of the weights.

    y[i, d] = sums[i, d] / totals[i]        l[i] = tops[i] + log(totals[i])    or zeros, if nothing had weight
"""

from collections.abc import Mapping

from smelt.codegen.cpu.addresses import Addresses
from smelt.codegen.cpu.attention.points import outer_axes
from smelt.codegen.cpu.attention.problem import AttentionProblem
from smelt.codegen.cpu.instructions import InstructionWriter
from smelt.codegen.cpu.products.parts import MINE, params
from smelt.codegen.cpu.schedule import SchedulePlan
from smelt.codegen.cpu.workspace import WorkspaceLayout
from smelt.codegen.loops.builder import BUFFERS, Builder
from smelt.codegen.loops.scalars import VALUE_KINDS, cast, compute, memory_kind
from smelt.ir.loops import Function, Value

_OUTER, _QUERY, _ROWS = params("i64 outer, i64 query, i64 rows")


class Finish:
    """Being written. `places` has where a thread's arrays begin; sums of queries are `pitch` elements apart."""

    def __init__(
        self, b: Builder, problem: AttentionProblem, places: Mapping[str, int], pitch: int, lanes: int
    ) -> None:
        self.b, self.problem, self.places, self.pitch, self.lanes = b, problem, places, pitch, lanes
        self.kind, self.dtype = VALUE_KINDS[problem.dtype], problem.dtype

    def write(self) -> Function:
        b, problem = self.b, self.problem
        plan = SchedulePlan(problem.kernel)
        at = Addresses(b, plan, WorkspaceLayout.of(plan))
        at.load_pointers()
        code = InstructionWriter.of(b, plan, at)
        at.axes |= outer_axes(b, problem, _OUTER)
        arrays = {name: b.element(MINE, "i8", self.places[name]) for name in ("sums", "tops", "totals")}
        rows = b.begin(b.const("i64", 0), _ROWS, 1, (), guard=False)
        at.axes[problem.query.name] = b.add(_QUERY, rows.index)
        code.begin_row()
        top, total = (b.load(b.element(arrays[name], self.kind, rows.index), self.kind) for name in ("tops", "totals"))
        nothing, zero = b.fcmp("oeq", total, 0.0), b.const(self.kind, 0.0)
        share = b.select(nothing, zero, b.fdiv(b.const(self.kind, 1.0), total))
        self._store(at, b.element(arrays["sums"], self.kind, b.mul(rows.index, self.pitch)), share)
        softmax = problem.softmax
        if softmax is not None and softmax.sums and problem.last:
            logarithm = b.fadd(top, compute(b, "log", [total], self.dtype))
            code.values[softmax.sums] = b.select(nothing, zero, logarithm)
        for instruction in problem.last:
            code.write(instruction)
        rows.end()
        return b.function(f"{b.symbol}.finish", (BUFFERS, MINE, _OUTER, _QUERY, _ROWS))

    def _store(self, at: Addresses, sums: Value, share: Value) -> None:
        """A row of sums, each its share."""
        b, weighed, lanes = self.b, self.problem.sums[0], self.lanes
        out = weighed.sum.buffer
        dtype, step = self.problem.kernel.buffer(out).dtype, int(weighed.sum.index.stride(weighed.axis.name))
        kind, width = memory_kind(dtype), int(weighed.axis.size)
        start = b.element(at.pointers[out], kind, at.offset(weighed.sum.index))
        whole = width // lanes * lanes if step == 1 else 0
        if whole:
            loop = b.begin(b.const("i64", 0), b.const("i64", whole), lanes, (), guard=False)
            scaled = b.fmul(b.load(b.element(sums, self.kind, loop.index), self.kind, lanes), share)
            b.store(cast(b, scaled, self.dtype, dtype), b.element(start, kind, loop.index))
            loop.end()
        if whole < width:
            loop = b.begin(b.const("i64", whole), b.const("i64", width), 1, (), guard=False)
            scaled = b.fmul(b.load(b.element(sums, self.kind, loop.index), self.kind), share)
            b.store(cast(b, scaled, self.dtype, dtype), b.element(start, kind, b.mul(loop.index, step)))
            loop.end()
