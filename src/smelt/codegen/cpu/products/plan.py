"""The schedules of products: `PRODUCTS.plan` chooses one for a kernel with a contraction."""

from collections.abc import Iterator
from dataclasses import replace

from smelt.codegen.cpu.kernel_schedules import Limit, ProblemKind, Schedule
from smelt.codegen.cpu.products import direct, dot, few_rows, tiled
from smelt.codegen.cpu.products.problem import Problem, ProductAxis, problem_of, why_no_problem
from smelt.codegen.cpu.products.quantized_factors import schedule as quantized
from smelt.device import Target
from smelt.ir.check_kernel import contraction_of
from smelt.symbolic.symsize import hint, is_symsize

TILED = Schedule(
    "tiled", "products: both factors are packed for register tiles", tiled.why_not, tiled.cycles, tiled.write
)
SCHEDULES = (
    TILED,
    dot.SCHEDULE.named("dot", "x @ w.t() of few rows: vectors along the sum, w is read in place"),
    few_rows.SCHEDULE.named("few rows", "x @ w of few rows: vectors along the columns, w is read in place"),
    Schedule(
        "direct", "convolutions of few taps: the image is copied with its edges, all taps are unrolled",
        direct.why_not, direct.cycles, direct.write,
    ),
    quantized.SCHEDULE,
)  # fmt: skip
_COUNTS = tuple(1 << power for power in range(1, 11))  # that schedules are compared at


def _limits(problem: Problem, best: Schedule, target: Target) -> Iterator[Limit]:
    """Up to how many rows tiles are no better, where those vary; and where several sizes vary, up to where though all
    of them grow: an example of a few rows and columns says nothing of many."""
    if TILED.why_not(problem, target) is not None:
        return
    groups = (problem.m, problem.n, problem.k)
    axes = [group[0] for group in groups if len(group) == 1 and is_symsize(group[0].size)]
    for grown in ([axis for axis in axes if problem.m == (axis,)], axes if len(axes) > 1 else []):
        count = _outgrown(problem, grown, best, target) if grown else None
        if count is not None:
            yield tuple((axis.size, "sle", count) for axis in grown)


def _outgrown(problem: Problem, axes: list[ProductAxis], best: Schedule, target: Target) -> int | None:
    """The size up to which tiles are no better, if all of the axes have it."""
    for count in _COUNTS:
        larger = {axis.name: replace(axis, size=count) for axis in axes}
        m, n, k = (tuple(larger.get(axis.name, axis) for axis in group) for group in (problem.m, problem.n, problem.k))
        other = replace(problem, m=m, n=n, k=k)
        is_larger = count > max(hint(axis.size) for axis in axes)
        if is_larger and TILED.cycles(other, target) < best.cycles(other, target):
            return count // 2
    return None


PRODUCTS = ProblemKind(
    lambda kernel: contraction_of(kernel) is not None, why_no_problem, problem_of, SCHEDULES, TILED, _limits
)
