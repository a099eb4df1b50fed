"""The steps of fusion as tables, and `build_program`, which runs them: functional ATen graph → planned kernel program.

    READ    graph → values and library calls         GROUP   values → groups → steps in order → program
    MEMORY  program → where its buffers are

If no kernel can be built for a group, the group is split for good and `GROUP` runs again.
"""

from collections.abc import Sequence

from smelt.base import events
from smelt.base.errors import LibraryError
from smelt.base.fast_dataclass import dataclass
from smelt.base.options import Options, config
from smelt.base.rewrite_budget import RewriteBudget
from smelt.base.row import BudgetUse, Check, Row, run_rows
from smelt.device.fusion_limits import Limits
from smelt.fuse.buffer_reuse import reuse_in_place, write_in_place
from smelt.fuse.emit_program import CannotBuild, build_kernels
from smelt.fuse.fusion_graph import lower
from smelt.fuse.greedy_fusion import form_groups, join_siblings, join_sums, recompute
from smelt.fuse.hoist_updates import hoist_updates
from smelt.fuse.launches.group_launches import group_launches
from smelt.fuse.launches.overlap_launches import overlap_launches
from smelt.fuse.launches.side_by_side import side_by_side
from smelt.fuse.launches.written_attention import attend_directly
from smelt.fuse.lowering.values import Call, Lowered
from smelt.fuse.memory_plan import plan
from smelt.fuse.program_order import Grouped, Ordered, Ranked, rank, sort
from smelt.fuse.rematerialize import rematerialize
from smelt.fuse.target_choice import TargetChoice
from smelt.ir.graph import Traced
from smelt.ir.program import Program
from smelt.ir.provenance import origin_of
from smelt.ops.registry import kernels_alone


@dataclass(slots=True)
class FusionContext:
    """What every step gets besides its input."""

    name: str
    traced: Traced
    targets: TargetChoice
    budget: RewriteBudget
    products: str = "auto"  # as the option says
    convolutions: str = "auto"  # as the option says
    library: bool = True  # whether there may be library calls
    alone: frozenset[int] = frozenset()  # ids of values that get kernels of their own

    @property
    def writes(self) -> Sequence[tuple[int, int]]:
        """Outputs that are new values of inputs, by position."""
        return self.traced.writes


def _read(traced: Traced, context: FusionContext) -> Lowered:
    if context.library:
        return lower(traced, context.targets, context.products, context.convolutions)
    with kernels_alone():
        lowered = lower(traced, context.targets, context.products, context.convolutions)
    _forbid_calls(lowered, context.name, traced)
    return lowered


def _forbid_calls(lowered: Lowered, name: str, traced: Traced) -> None:
    """Raise if library calls remain. Calls that exist only to raise may stay."""
    reasons: dict[str, dict[str, None]] = {}
    lines: dict[str, dict[str, None]] = {}
    origins = {node.name: origin_of(node) for node in traced.graph.nodes}
    for item in lowered.items:
        if isinstance(item, Call) and item.unless is None and item.kernel is None:
            origin = origins.get(item.name)
            reasons.setdefault(str(item.op), {})[item.why] = None
            lines.setdefault(str(item.op), {})["" if origin is None else origin.line] = None
    if reasons:
        joined = {op: "; ".join(why) for op, why in reasons.items()}
        raise LibraryError(name, joined, {op: ", ".join(filter(None, places)) for op, places in lines.items()})


def _rematerialize(lowered: Lowered, context: FusionContext) -> Lowered:
    return rematerialize(lowered, context.traced.graph, context.budget)


def _group(lowered: Lowered, context: FusionContext) -> Grouped:
    return Grouped(lowered, form_groups(lowered, context.targets, context.budget, context.alone))


def _join_siblings(grouped: Grouped, context: FusionContext) -> Grouped:
    join_siblings(grouped.groups, grouped.lowered, context.budget, context.alone)
    return grouped


def _join_sums(grouped: Grouped, context: FusionContext) -> Grouped:
    join_sums(grouped.groups, grouped.lowered, context.budget, context.alone)
    return grouped


def _recompute(grouped: Grouped, context: FusionContext) -> Grouped:
    recompute(grouped.groups, context.budget, context.alone)
    return grouped


def _rank(grouped: Grouped, context: FusionContext) -> Ranked:
    return rank(grouped)


def _hoist_updates(ranked: Ranked, context: FusionContext) -> Ranked:
    return hoist_updates(ranked, context.writes, context.budget)


def _sort(ranked: Ranked, context: FusionContext) -> Ordered:
    return sort(ranked)


def _build_kernels(ordered: Ordered, context: FusionContext) -> Program:
    return build_kernels(ordered, context.name, context.targets)


def _attend_directly(program: Program, context: FusionContext) -> Program:
    return attend_directly(program, context.products)


def _write_in_place(program: Program, context: FusionContext) -> Program:
    return write_in_place(program, context.writes, context.budget)


def _reuse_in_place(program: Program, context: FusionContext) -> Program:
    return reuse_in_place(program, context.budget)


def _group_launches(program: Program, context: FusionContext) -> Program:
    return group_launches(program, context.targets.limits_for, context.budget)


def _side_by_side(program: Program, context: FusionContext) -> Program:
    return side_by_side(program, context.targets.limits_for, context.budget)


def _overlap_launches(program: Program, context: FusionContext) -> Program:
    return overlap_launches(program, context.targets.limits_for)


def _plan_memory(program: Program, context: FusionContext) -> Program:
    # With sizes that vary, offsets are worked out for each combination of sizes.
    return program if any(buffer.spec.varies for buffer in program.buffers) else plan(program)


PURE, VALUES, GROUPS, RANKS = "functional graph", "values and calls", "groups", "ranked groups"
ORDER, PROGRAM = "groups in order", "kernel program"

READ = (
    Row("read graph", PURE, VALUES, _read, "first: views and writes are gone after it"),
    Row(
        "rematerialize", VALUES, VALUES, _rematerialize,
        "before grouping: what is recomputed joins the kernel that reads it", BudgetUse.EACH,
    ),
)  # fmt: skip

GROUP = (
    Row("group", VALUES, GROUPS, _group, "in the graph's order: what a value reads is grouped already", BudgetUse.EACH),
    Row(
        "join siblings", GROUPS, GROUPS, _join_siblings,
        "after all producers are joined: kernels that are left read the same memory", BudgetUse.EACH,
    ),
    Row(
        "join sums", GROUPS, GROUPS, _join_sums,
        "after siblings: sums that share a kernel with other work stay there", BudgetUse.EACH,
    ),
    Row(
        "recompute", GROUPS, GROUPS, _recompute,
        "once groups are final: what crosses from one to the other is known", BudgetUse.EACH,
    ),
    Row("rank", GROUPS, RANKS, _rank, "once groups are final: a group stands where its last member does"),
    Row(
        "hoist updates", RANKS, RANKS, _hoist_updates,
        "before the order is fixed: an update right behind its gradient lets the gradient go", BudgetUse.EACH,
    ),
    Row("sort", RANKS, ORDER, _sort, "after ranks: each step behind all that it needs"),
    Row("build kernels", ORDER, PROGRAM, _build_kernels, "in order, so that kernels are numbered as they run"),
)  # fmt: skip

MEMORY = (
    Row(
        "attend directly", PROGRAM, PROGRAM, _attend_directly,
        "before buffers are reused: scores and their softmax have buffers of their own",
    ),
    Row(
        "write in place", PROGRAM, PROGRAM, _write_in_place,
        "before buffers are reused: an input's new value belongs where the old one is", BudgetUse.EACH,
    ),
    Row("reuse in place", PROGRAM, PROGRAM, _reuse_in_place, "before offsets: fewer buffers to place", BudgetUse.EACH),
    Row(
        "group launches", PROGRAM, PROGRAM, _group_launches,
        "once kernels are final, before offsets: what is launched as one is in memory at the same time", BudgetUse.EACH,
    ),
    Row(
        "side by side", PROGRAM, PROGRAM, _side_by_side,
        "after launches of one body, which may be many; before offsets, as those", BudgetUse.EACH,
    ),
    Row(
        "overlap launches", PROGRAM, PROGRAM, _overlap_launches,
        "once it is known what all steps write in place", BudgetUse.ONE,
    ),
    Row("plan memory", PROGRAM, PROGRAM, _plan_memory, "last: lifetimes are known when no step changes any more"),
)  # fmt: skip


def build_program(
    traced: Traced, name: str, options: Options, limits: Limits | None = None, budget: RewriteBudget | None = None
) -> Program:
    """Fuse a functional ATen graph into kernels and library calls, and plan their memory. `budget` is shared with
    earlier passes; `limits` default to those of the targets."""
    budget = budget or RewriteBudget(options.max_rewrites)
    library = options.library != "none"
    targets = TargetChoice(options.target, limits, for_files=not library)
    context = FusionContext(name, traced, targets, budget, options.products, options.convolutions, library)
    check = _check_of_forms() if options.check_specs or config.check_specs else None
    stage = f"{name}: fuse"
    lowered: Lowered = run_rows(traced, READ, context, budget, stage, check)
    limit = budget.left
    while True:
        budget.left = limit
        try:
            grouped: Program = run_rows(lowered, GROUP, context, budget, stage, check)
        except CannotBuild as first:
            known = context.alone
            for failed in (first, *first.others):
                events.emit("fusion", f"{failed.group} is split: {failed.reason}")
                parts = {value.id for value in failed.values}
                if parts <= known:
                    reason = f"{failed.group} cannot be computed even by itself: {failed.reason}"
                    raise AssertionError(reason) from failed
                context.alone |= parts
            continue
        program: Program = run_rows(grouped, MEMORY, context, budget, stage, check)
        return program


def _check_of_forms() -> Check:
    from smelt.fuse.check_fusion import FusionCheck

    return FusionCheck()
