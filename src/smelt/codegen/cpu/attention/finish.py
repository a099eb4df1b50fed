"""Results of some queries of an attention: the weighted sums divided by the sum of the weights.

    y[i, d] = sums[i, d] / totals[i]        l[i] = tops[i] + log(totals[i])    or zeros, if nothing had weight
"""

from smelt.codegen.attention_problem import AttentionProblem
from smelt.codegen.cpu.addresses import MINE, Workspace
from smelt.codegen.cpu.attention.part import store_row
from smelt.codegen.cpu.entry_points import KernelFunctions, params
from smelt.codegen.cpu.instructions import PointCode
from smelt.codegen.loops.arrays import positions
from smelt.codegen.loops.builder import BUFFERS
from smelt.codegen.loops.scalars import compute

_OUTER, _QUERY, _ROWS = params("i64 outer, i64 query, i64 rows")


def write_finish(
    code: KernelFunctions, problem: AttentionProblem, workspace: Workspace, sums: str, pitch: int, lanes: int
) -> None:
    """The function of a kernel that does it. `sums` names the array of sums, `pitch` elements from one query to the
    next."""
    b = code.begin()
    all_sums, tops, totals = (workspace.array(b, name) for name in (sums, "tops", "totals"))
    row = PointCode(b, problem.kernel, ())
    at, weighed, softmax = row.at, problem.sums[0], problem.softmax
    at.axes |= positions(b, problem.outer, _OUTER)
    out, step = weighed.sum.buffer, int(weighed.sum.index.stride(weighed.axis.name))
    with b.loop(0, _ROWS) as number:
        at.axes[problem.query.name] = b.add(_QUERY, number)
        row.begin_row()
        top, total = tops.load(number), totals.load(number)
        nothing, zero = b.fcmp("oeq", total, 0.0), all_sums.zero()
        share = b.select(nothing, zero, b.fdiv(b.const(all_sums.kind, 1.0), total))
        results = at.arrays[out].at(at.offset(weighed.sum.index))
        store_row(all_sums.at(b.mul(number, pitch)), results, step, int(weighed.axis.size), lanes, share)
        if softmax is not None and softmax.sums and problem.last:
            logarithm = b.fadd(top, compute(b, "log", [total], problem.dtype))
            row.code.values[softmax.sums] = b.select(nothing, zero, logarithm)
        for instruction in problem.last:
            row.code.write(instruction)
    code.add(b, "finish", (BUFFERS, MINE, _OUTER, _QUERY, _ROWS))
