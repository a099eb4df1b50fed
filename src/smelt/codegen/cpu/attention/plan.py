"""Plans an attention kernel: kernel → `AttentionPlan`, or the reason why there is no code for it.

    1 query by 512 keys   →   "few queries"        128 by 128   →   "blocks"

Each schedule gives the reason why it cannot take a problem, estimates its cycles on one thread, and writes the code.
"""

from collections.abc import Callable

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu.attention import backward, few_queries, forward
from smelt.codegen.cpu.attention.problem import AttentionProblem, problem_of, why_no_problem
from smelt.codegen.generator import EntryCode
from smelt.device import Target
from smelt.ir.kernel import Kernel


@dataclass(frozen=True, slots=True)
class AttentionSchedule:
    """A way to compute an attention."""

    name: str
    why_not: Callable[[AttentionProblem, Target], str | None]
    cycles: Callable[[AttentionProblem, Target], float]
    write: Callable[[str, AttentionProblem, Target], EntryCode]


SCHEDULES = (
    AttentionSchedule("blocks", forward.why_not, forward.cycles, forward.write),
    AttentionSchedule("few queries", few_queries.why_not, few_queries.cycles, few_queries.write),
    AttentionSchedule("gradients", backward.why_not, backward.cycles, backward.write),
)


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """A kernel that weighs its scores, and how it is computed."""

    kernel: Kernel
    problem: AttentionProblem
    schedule: AttentionSchedule

    def cycles(self, target: Target) -> float:
        """About how many of a thread it takes."""
        return self.schedule.cycles(self.problem, target)

    def write(self, symbol: str, target: Target) -> EntryCode:
        return self.schedule.write(symbol, self.problem, target)


def why_not(kernel: Kernel, target: Target) -> str | None:
    """Why there is no code for a kernel that weighs its scores; None if there is."""
    reason = why_no_problem(kernel)
    if reason is not None:
        return reason
    problem = problem_of(kernel)
    reasons = [schedule.why_not(problem, target) for schedule in SCHEDULES]
    return None if None in reasons else "; ".join(f"{each}" for each in dict.fromkeys(reasons))


def plan_attention(kernel: Kernel, target: Target, only: str | None = None) -> AttentionPlan:
    """The schedule of a kernel that `why_not` has nothing against; with `only`, the one of that name."""
    reason = why_not(kernel, target)
    if reason is not None:
        raise ValueError(f"kernel {kernel.name}: {reason}")
    problem = problem_of(kernel)
    fitting = [each for each in SCHEDULES if only in (None, each.name) and each.why_not(problem, target) is None]
    if not fitting:
        raise ValueError(f"kernel {kernel.name}: the schedule {only} does not take it")
    return AttentionPlan(kernel, problem, min(fitting, key=lambda each: each.cycles(problem, target)))
