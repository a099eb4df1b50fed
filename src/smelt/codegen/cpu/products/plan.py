"""The schedules of products as a table: kernel with a contraction → `ProductPlan`, the cheapest schedule that fits.

    8 × 12 × 64, both factors contiguous along the sum   →   "tiled"

Each schedule gives the reason why it cannot take a problem, estimates its cycles on one thread, and writes the code.
For dynamic shapes, the schedule that is cheapest for the example sizes is used; the tiled schedule handles sizes that
it cannot take, or that are much larger.
"""

from collections.abc import Callable
from dataclasses import replace

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu.entry_points import ENTRY
from smelt.codegen.cpu.products import direct, dot, few_rows, tiled
from smelt.codegen.cpu.products.problem import Problem, problem_of, why_no_problem
from smelt.codegen.generator import EntryCode
from smelt.codegen.loops.builder import FALSE, TRUE, Builder
from smelt.codegen.loops.runtime_sizes import Sizes
from smelt.device import Target
from smelt.ir.kernel import Kernel
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import greater, hint, is_symsize

Needs = tuple[tuple[Size, int], ...]  # sizes that vary, and what each must be at least


def _nothing(problem: Problem, target: Target) -> Needs:
    return ()


@dataclass(frozen=True, slots=True)
class ProductSchedule:
    """A way to compute a product."""

    name: str
    why_not: Callable[[Problem, Target], str | None]
    cycles: Callable[[Problem, Target], float]  # in the example
    write: Callable[[str, Problem, Target, Sizes], EntryCode]
    needs: Callable[[Problem, Target], Needs] = _nothing


TILED = ProductSchedule("tiled", tiled.why_not, tiled.cycles, tiled.write)
SCHEDULES = (
    TILED,
    ProductSchedule("dot", dot.why_not, dot.cycles, dot.write, dot.needs),
    ProductSchedule("few rows", few_rows.why_not, few_rows.cycles, few_rows.write, few_rows.needs),
    ProductSchedule("direct", direct.why_not, direct.cycles, direct.write),
)
_ROWS = tuple(1 << power for power in range(1, 11))  # that schedules are compared at


@dataclass(frozen=True, slots=True)
class ProductPlan:
    """A kernel with a contraction, and how it is computed: in tiles where a size is less than `needs` says, where there
    are more rows than `most`, or where all of several sizes are above `crowd`."""

    kernel: Kernel
    problem: Problem
    schedule: ProductSchedule
    needs: Needs = ()
    most: tuple[Size, int] | None = None
    crowd: tuple[tuple[Size, ...], int] | None = None

    @property
    def has_fallback(self) -> bool:
        return bool(self.needs) or self.most is not None or self.crowd is not None


def why_not(kernel: Kernel, target: Target) -> str | None:
    """Why there is no code for a kernel with a contraction; None if there is."""
    reason = why_no_problem(kernel)
    if reason is not None:
        return reason
    problem = problem_of(kernel)
    reasons = [schedule.why_not(problem, target) for schedule in SCHEDULES]
    return None if None in reasons else "; ".join(f"{each}" for each in dict.fromkeys(reasons))


def plan_product(kernel: Kernel, target: Target, only: str | None = None) -> ProductPlan:
    """The schedule of a kernel that `why_not` has nothing against; with `only`, the one of that name, wherever it can
    be run."""
    problem = problem_of(kernel)
    fitting = [each for each in SCHEDULES if only in (None, each.name) and each.why_not(problem, target) is None]
    if not fitting:
        raise ValueError(f"kernel {kernel.name}: {why_not(kernel, target) or f'the schedule {only} does not take it'}")
    best = min(fitting, key=lambda each: each.cycles(problem, target))
    if only is not None or best is TILED:
        return ProductPlan(kernel, problem, best, best.needs(problem, target))
    limits = _most_rows(problem, best, target), _crowd(problem, best, target)
    return ProductPlan(kernel, problem, best, best.needs(problem, target), *limits)


def _most_rows(problem: Problem, best: ProductSchedule, target: Target) -> tuple[Size, int] | None:
    """Rows that vary, and up to how many of them tiles are no better."""
    if len(problem.m) != 1 or not is_symsize(problem.m[0].size):
        return None
    (rows,) = problem.m
    for count in _ROWS:
        other = replace(problem, m=(replace(rows, size=count),))
        if count > hint(rows.size) and TILED.cycles(other, target) < best.cycles(other, target):
            return rows.size, count // 2
    return None


def _crowd(problem: Problem, best: ProductSchedule, target: Target) -> tuple[tuple[Size, ...], int] | None:
    """Sizes that vary, if there are several, and up to where tiles are no better though all of them grow: an example
    of a few rows and columns says nothing of many."""
    axes = [group[0] for group in (problem.m, problem.n, problem.k) if len(group) == 1 and is_symsize(group[0].size)]
    if len(axes) < 2:
        return None
    for count in _ROWS:
        if count <= max(hint(axis.size) for axis in axes):
            continue
        grown = {axis.name: replace(axis, size=count) for axis in axes}
        m, n, k = (
            tuple([grown.get(axis.name, axis) for axis in group]) for group in (problem.m, problem.n, problem.k)
        )
        other = replace(problem, m=m, n=n, k=k)
        if TILED.cycles(other, target) < best.cycles(other, target):
            return tuple([axis.size for axis in axes]), count // 2
    return None


def emit(symbol: str, plan: ProductPlan, target: Target) -> EntryCode:
    """The functions of a planned kernel under the name `symbol`."""
    sizes = Sizes(len(plan.kernel.parameters))
    if not plan.has_fallback:
        code = plan.schedule.write(symbol, plan.problem, target, sizes)
        return replace(code, sizes=tuple(sizes.params))
    names = [f"{symbol}.{number}" for number in (0, 1)]
    first, other = (
        schedule.write(name, plan.problem, target, sizes)
        for name, schedule in zip(names, (plan.schedule, TILED), strict=True)
    )
    entry = Builder(target, symbol, sizes)
    fits = TRUE
    for size, least in plan.needs:
        fits = entry.and_(fits, entry.icmp("sge", entry.const("i64", size), least))
    if plan.most is not None:
        fits = entry.and_(fits, entry.icmp("sle", entry.const("i64", plan.most[0]), plan.most[1]))
    if plan.crowd is not None:
        few = FALSE
        for size in plan.crowd[0]:
            few = entry.or_(few, entry.icmp("sle", entry.const("i64", size), plan.crowd[1]))
        fits = entry.and_(fits, few)

    def launch(name: str) -> None:  # by name: addresses of what others see are not linked
        entry.call(name, *ENTRY)

    entry.choice(fits, lambda: launch(names[0]), lambda: launch(names[1]))
    return EntryCode(
        (*first.functions, *other.functions, entry.function(symbol, ENTRY, "entry")),
        tuple({**dict(first.helpers), **dict(other.helpers)}.items()),
        greater(first.per_thread_workspace, other.per_thread_workspace),
        tuple(sizes.params),
    )
