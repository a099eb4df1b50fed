"""The host CPU's code generator: implements `codegen.generator.Generator`.

A kernel with attention or a contraction is computed by the cheapest schedule of its kind, any other kernel by the loops
of `schedule_passes`.
"""

from collections.abc import Mapping, Sequence

from smelt.base.rewrite_budget import RewriteBudget
from smelt.base.row import Row
from smelt.codegen.cpu.attention.plan import ATTENTION
from smelt.codegen.cpu.entry_points import LoopPlan
from smelt.codegen.cpu.kernel_schedules import ProblemPlan
from smelt.codegen.cpu.products.plan import PRODUCTS
from smelt.codegen.cpu.schedule_passes import SCHEDULE, plan
from smelt.codegen.cpu.shared_bodies import MODULE, member
from smelt.codegen.cpu.shared_bodies import shared as share
from smelt.codegen.generator import EntryCode
from smelt.codegen.generator import numbered as symbols
from smelt.codegen.llvm.compile import assemble_module as assemble
from smelt.codegen.llvm.compile import load
from smelt.codegen.shared_functions import shared_functions as share_functions
from smelt.device import Target
from smelt.ir.kernel import Kernel

KINDS = (ATTENTION, PRODUCTS)  # attention first: its kernels have contractions too

TABLES: Mapping[str, Sequence[Row]] = {
    "the kernels of a program": MODULE,
    "a kernel with contractions, the cheapest that takes it": [row for kind in KINDS for row in kind.rows],
    "each other kernel": SCHEDULE,
}

__all__ = ["KINDS", "TABLES", "assemble", "emit", "load", "member", "schedule", "share", "share_functions", "symbols"]


def schedule(
    kernel: Kernel, target: Target, budget: RewriteBudget, *, check: bool = False, of: str = ""
) -> ProblemPlan | LoopPlan:
    for kind in KINDS:
        if kind.takes(kernel):
            return kind.plan(kernel, target)
    return LoopPlan(plan(kernel, target, budget, check=check, of=of))


def emit(symbol: str, plan: ProblemPlan | LoopPlan, target: Target, *, aligned: bool = True) -> EntryCode:
    return plan.emit(symbol, target)
