"""The host CPU's code generator: implements `codegen.generator.Generator`.

A kernel with steps, attention or a contraction is computed by the cheapest schedule of its kind, any other kernel by
loops, which the rows of `schedule_passes` decide.
"""

import itertools
import math
from collections.abc import Mapping, Sequence

from smelt.base.rewrite_budget import RewriteBudget
from smelt.base.row import Row
from smelt.codegen.cpu.kernel_schedules import Schedule, Scheduled
from smelt.codegen.cpu.online_loops import write
from smelt.codegen.cpu.schedule_passes import SCHEDULE, plan
from smelt.codegen.cpu.shared_bodies import MODULE, member
from smelt.codegen.cpu.shared_bodies import shared as share
from smelt.codegen.generator import EntryCode
from smelt.codegen.generator import numbered as symbols
from smelt.codegen.llvm.compile import assemble_module as assemble
from smelt.codegen.llvm.compile import load
from smelt.codegen.shared_functions import shared_functions as share_functions
from smelt.device import Target
from smelt.ir.check_kernel import contraction_of, is_attention
from smelt.ir.kernel import Kernel

LOOPS = Schedule(
    "loops", "every kernel without a contraction: rows in threads, cols in vectors",
    lambda loops, target: None, lambda loops, target: math.inf, write,
)  # fmt: skip

__all__ = ["assemble", "emit", "load", "member", "schedule", "share", "share_functions", "symbols", "tables"]


def tables() -> Mapping[str, Sequence[Row]]:
    from smelt.codegen.cpu.problem_kinds import KINDS

    schedules = (*itertools.chain.from_iterable(kind.schedules for kind in KINDS), LOOPS)
    return {
        "the kernels of a program": MODULE,
        "a kernel, the cheapest that takes it": [each.row for each in schedules],
        "a kernel's loops": SCHEDULE,
    }


def schedule(
    kernel: Kernel, target: Target, budget: RewriteBudget, *, check: bool = False, of: str = ""
) -> Scheduled:
    if kernel.stepped is not None or contraction_of(kernel) is not None or is_attention(kernel):
        from smelt.codegen.cpu.problem_kinds import KINDS

        return next(kind for kind in KINDS if kind.takes(kernel)).plan(kernel, target)
    loops = plan(kernel, target, budget, check=check, of=of)
    return Scheduled(loops.kernel, loops, LOOPS)


def emit(symbol: str, plan: Scheduled, target: Target, *, aligned: bool = True) -> EntryCode:
    return plan.emit(symbol, target)
