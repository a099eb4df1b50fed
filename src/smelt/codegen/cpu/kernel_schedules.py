"""The ways to compute a kernel: a table of schedules for each kind of problem. The cheapest that fits is chosen.

    8 × 12 × 64, both factors contiguous along the sum   →   "tiled"        1 query by 512 keys   →   "few queries"

Each schedule gives the reason why it cannot take a problem, estimates its cycles on one thread, and writes the code.
For dynamic shapes, the schedule that is cheapest for the example sizes is used; a fallback handles sizes that it cannot
take, or that are much larger.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from smelt.base.fast_dataclass import dataclass
from smelt.base.row import Row
from smelt.codegen.cpu.entry_points import ENTRY, KernelFunctions
from smelt.codegen.generator import EntryCode
from smelt.codegen.loops.builder import FALSE, TRUE, Builder
from smelt.codegen.loops.runtime_sizes import Sizes
from smelt.device import Target
from smelt.ir.kernel import Kernel
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import greater

Limit = tuple[tuple[Size, str, int], ...]  # comparisons of dynamic sizes: at least one must hold


@dataclass(frozen=True, slots=True)
class Schedule:
    """A way to compute a problem. `cycles` are those of the example, `needs` what it must be given at a launch."""

    name: str
    why: str  # one would choose it
    why_not: Callable[[Any, Target], str | None]
    cycles: Callable[[Any, Target], float]
    write: Callable[[KernelFunctions, Any], EntryCode]
    needs: Callable[[Any, Target], tuple[Limit, ...]] = lambda problem, target: ()

    @property
    def row(self) -> Row:
        """For the map of the compiler."""
        return Row(self.name, "kernel", "schedule", self.why_not, self.why)


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A kernel as a problem, and the schedule that computes it: the `fallback` does where one of the `limits` does not
    hold."""

    kernel: Kernel
    problem: Any
    schedule: Schedule
    limits: tuple[Limit, ...] = ()
    fallback: "Scheduled | None" = None

    def cycles(self, target: Target) -> float:
        """About how many of a thread it takes."""
        return self.schedule.cycles(self.problem, target)

    def emit(self, symbol: str, target: Target) -> EntryCode:
        """The functions under the name `symbol`."""
        sizes = Sizes(len(self.kernel.parameters))
        return replace(self._write(symbol, target, sizes), sizes=tuple(sizes.params))

    def _write(self, symbol: str, target: Target, sizes: Sizes) -> EntryCode:
        if not self.limits or self.fallback is None:
            return self.schedule.write(KernelFunctions(symbol, target, sizes), self.problem)
        first = replace(self, limits=())._write(f"{symbol}.0", target, sizes)
        other = self.fallback._write(f"{symbol}.1", target, sizes)
        entry, fits = Builder(target, symbol, sizes), TRUE
        for limit in self.limits:
            holds = FALSE
            for size, how, number in limit:
                holds = entry.or_(holds, entry.icmp(how, entry.const("i64", size), number))
            fits = entry.and_(fits, holds)

        def launch(name: str) -> None:  # by name: addresses of what others see are not linked
            entry.call(name, *ENTRY)

        entry.choice(fits, lambda: launch(f"{symbol}.0"), lambda: launch(f"{symbol}.1"))
        return EntryCode(
            (*first.functions, *other.functions, entry.function(symbol, ENTRY, "entry")),
            tuple({each.name: each for each in (*first.helpers, *other.helpers)}.values()),
            greater(first.per_thread_workspace, other.per_thread_workspace),
        )


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """Kernels that are read as one kind of problem. `limits`: beyond them the schedule that is best in the example may
    not be, and the `fallback` runs."""

    takes: Callable[[Kernel], bool]
    why_no_problem: Callable[[Kernel], str | None]
    problem_of: Callable[[Kernel], Any]
    schedules: tuple[Schedule, ...]
    fallback: Schedule | None = None
    limits: Callable[[Any, Schedule, Target], Iterable[Limit]] = lambda problem, best, target: ()

    def why_not(self, kernel: Kernel, target: Target) -> str | None:
        """Why there is no code for a kernel; None if there is."""
        reason = self.why_no_problem(kernel)
        if reason is not None:
            return reason
        problem = self.problem_of(kernel)
        reasons = [schedule.why_not(problem, target) for schedule in self.schedules]
        return None if None in reasons else "; ".join(f"{each}" for each in dict.fromkeys(reasons))

    def plan(self, kernel: Kernel, target: Target, only: str | None = None) -> Scheduled:
        """The schedule of a kernel that `why_not` has nothing against; with `only`, the one of that name, wherever it
        can be run."""
        problem = None if self.why_no_problem(kernel) else self.problem_of(kernel)
        named = [each for each in self.schedules if only in (None, each.name)] if problem else []
        fitting = [each for each in named if each.why_not(problem, target) is None]
        if not fitting:
            reason = self.why_not(kernel, target) or f"the schedule {only} does not take it"
            raise ValueError(f"kernel {kernel.name}: {reason}")
        best = min(fitting, key=lambda each: each.cycles(problem, target))
        if self.fallback is None or best is self.fallback:
            return Scheduled(kernel, problem, best)
        limits = () if only is not None else self.limits(problem, best, target)
        fallback = Scheduled(kernel, problem, self.fallback)
        return Scheduled(kernel, problem, best, (*best.needs(problem, target), *limits), fallback)
