"""The host CPU's code generator: implements `codegen.generator.Generator`.

An attention kernel has a plan of `attention.plan`, a kernel with a contraction a schedule of `products.plan`, any other
kernel one of `schedule_passes`.
"""

from collections.abc import Mapping, Sequence

from smelt.base.rewrite_budget import RewriteBudget
from smelt.base.row import Row
from smelt.codegen.cpu.attention.plan import AttentionPlan, plan_attention
from smelt.codegen.cpu.entry_points import write
from smelt.codegen.cpu.products.plan import ProductPlan, plan_product
from smelt.codegen.cpu.products.plan import emit as emit_product
from smelt.codegen.cpu.products.problem import contraction
from smelt.codegen.cpu.schedule import SchedulePlan
from smelt.codegen.cpu.schedule_passes import SCHEDULE, plan
from smelt.codegen.cpu.shared_bodies import MODULE, member
from smelt.codegen.cpu.shared_bodies import shared as share
from smelt.codegen.generator import EntryCode
from smelt.codegen.generator import numbered as symbols
from smelt.codegen.llvm.compile import assemble_module as assemble
from smelt.codegen.llvm.compile import load
from smelt.codegen.shared_functions import shared_functions as share_functions
from smelt.device import Target
from smelt.ir.check_kernel import is_attention
from smelt.ir.kernel import Kernel

TABLES: Mapping[str, Sequence[Row]] = {"the kernels of a program": MODULE, "each kernel": SCHEDULE}

__all__ = ["TABLES", "assemble", "emit", "load", "member", "schedule", "share", "share_functions", "symbols"]


def schedule(
    kernel: Kernel, target: Target, budget: RewriteBudget, *, check: bool = False, of: str = ""
) -> SchedulePlan | ProductPlan | AttentionPlan:
    if is_attention(kernel):
        return plan_attention(kernel, target)
    if contraction(kernel) is not None:
        return plan_product(kernel, target)
    return plan(kernel, target, budget, check=check, of=of)


def emit(
    symbol: str, plan: SchedulePlan | ProductPlan | AttentionPlan, target: Target, *, aligned: bool = True
) -> EntryCode:
    if isinstance(plan, AttentionPlan):
        return plan.write(symbol, target)
    if isinstance(plan, ProductPlan):
        return emit_product(symbol, plan, target)
    return write(symbol, plan, target, aligned=aligned)
