"""The schedules of products as a table: kernel with a contraction → `ProductPlan`, the cheapest of those that fit.

    8 × 12 × 64, both factors contiguous along the sum   →   "tiled"

Each says why it does not take a problem, about how many cycles of a thread it would need, and writes the code.
"""

from collections.abc import Callable

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu.products import direct, dot, few_rows, tiled
from smelt.codegen.cpu.products.problem import Problem, problem_of, why_no_problem
from smelt.codegen.generator import EntryCode
from smelt.device import Target
from smelt.ir.kernel import Kernel


@dataclass(frozen=True, slots=True)
class ProductSchedule:
    """A way to compute a product."""

    name: str
    why_not: Callable[[Problem, Target], str | None]
    cycles: Callable[[Problem, Target], float]
    write: Callable[[str, Problem, Target], EntryCode]


SCHEDULES = (
    ProductSchedule("tiled", tiled.why_not, tiled.cycles, tiled.write),
    ProductSchedule("dot", dot.why_not, dot.cycles, dot.write),
    ProductSchedule("few rows", few_rows.why_not, few_rows.cycles, few_rows.write),
    ProductSchedule("direct", direct.why_not, direct.cycles, direct.write),
)


@dataclass(frozen=True, slots=True)
class ProductPlan:
    """A kernel with a contraction, and how it is computed."""

    kernel: Kernel
    problem: Problem
    schedule: ProductSchedule


def why_not(kernel: Kernel, target: Target) -> str | None:
    """Why there is no code for a kernel with a contraction; None if there is."""
    reason = why_no_problem(kernel)
    if reason is not None:
        return reason
    problem = problem_of(kernel)
    reasons = [schedule.why_not(problem, target) for schedule in SCHEDULES]
    return None if None in reasons else "; ".join(f"{each}" for each in dict.fromkeys(reasons))


def plan_product(kernel: Kernel, target: Target, only: str | None = None) -> ProductPlan:
    """The schedule of a kernel that `why_not` has nothing against; with `only`, the one of that name."""
    problem = problem_of(kernel)
    fitting = [each for each in SCHEDULES if only in (None, each.name) and each.why_not(problem, target) is None]
    if not fitting:
        raise ValueError(f"kernel {kernel.name}: {why_not(kernel, target) or f'the schedule {only} does not take it'}")
    return ProductPlan(kernel, problem, min(fitting, key=lambda each: each.cycles(problem, target)))
