"""Writes the functions around a kernel's loops: the entry that callers use, and the part that one thread runs.

    k0(buffers, threads, workspace)     smelt_parallel_for(k0.part, …), then for reductions over rows k0.finish
      k0.part(…, first, last, ends)     the points first up to last, in a workspace of its own

`smelt_parallel_for` is C (`csrc/executor/parallel.c`): it divides the points into chunks and runs each on some thread.
"""

from collections.abc import Mapping, Sequence

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu.addresses import WorkspaceLayout
from smelt.codegen.cpu.loop_nest import LoopNest
from smelt.codegen.cpu.online_loops import OnlineNest
from smelt.codegen.cpu.schedule import SchedulePlan, Split
from smelt.codegen.generator import EntryCode
from smelt.codegen.loops.builder import BUFFERS, THREADS, TRUE, WORKSPACE, Builder, Term, param
from smelt.codegen.loops.runtime_sizes import Sizes
from smelt.device import Target
from smelt.ir.loops import Function, Value
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import greater, lesser
from smelt.torch_abi.symbols import PARALLEL_FOR

ENTRY = (BUFFERS, THREADS, WORKSPACE)
MINE = param("mine", "ptr")  # the workspace of a part
PART = (BUFFERS, MINE, param("first"), param("last"), param("ends", "i1"))


@dataclass(frozen=True, slots=True)
class LoopPlan:
    """A kernel that is computed by the loops of its schedule."""

    schedule: SchedulePlan

    def emit(self, symbol: str, target: Target) -> EntryCode:
        return write(symbol, self.schedule, target)


def write(symbol: str, plan: SchedulePlan, target: Target) -> EntryCode:
    """The functions of a planned kernel under the name `symbol`, for buffers at any address."""
    sizes = Sizes(len(plan.kernel.parameters))
    variants = [(symbol, plan, WorkspaceLayout.of(plan))]
    while (fallback := variants[-1][1].fallback) is not None:
        variants.append((f"{symbol}.variant{len(variants)}", fallback, WorkspaceLayout.of(fallback)))
    workspace = variants[0][2].size
    for _, _, layout in variants[1:]:
        workspace = greater(workspace, layout.size)
    builders, functions = list[Builder](), list[Function]()
    for name, each, layout in variants:
        part = Builder(target, name, sizes)
        (OnlineNest if each.online else LoopNest).of(part, each, layout).write()
        builders.append(part)
        functions.append(part.function(f"{name}.part", PART))
    combine = plan.split in (Split.ROWS, Split.SCATTER_BUCKETS) and bool(plan.accumulators)
    if combine:
        finish = Builder(target, symbol, sizes)
        _write_finish(finish, plan, variants[0][2], workspace)
        builders.append(finish)
        functions.append(finish.function(f"{symbol}.finish", (BUFFERS, MINE, param("chunks"))))
    entry = Builder(target, symbol, sizes)
    _write_entry(entry, [(name, each) for name, each, _ in variants], workspace, combine=combine)
    functions.append(entry.function(symbol, ENTRY, "entry"))
    helpers = {name: helper for builder in builders for name, helper in builder.helpers.items()}
    return EntryCode(tuple(functions), tuple(helpers.items()), workspace, tuple(sizes.params))


def _write_finish(b: Builder, plan: SchedulePlan, layout: WorkspaceLayout, workspace: Size) -> None:
    nest = LoopNest.of(b, plan, layout)
    nest.at.load_pointers()
    nest.finish((param("chunks"), workspace))


def _write_entry(b: Builder, variants: Sequence[tuple[str, SchedulePlan]], workspace: Size, *, combine: bool) -> None:
    """Launch the first of `variants` that the extents are long enough for."""
    part, most, extent = _variant(b, *variants[-1])
    for name, plan in reversed(variants[:-1]):
        fits = TRUE
        for size, least in plan.needs:
            fits = b.and_(fits, b.icmp("sge", b.const("i64", size), least))
        better = _variant(b, name, plan)
        part, most, extent = (
            b.select(fits, one, other) for one, other in zip(better, (part, most, extent), strict=True)
        )
    shared = (THREADS, most, extent, b.const("i64", workspace))
    chunks = b.call(PARALLEL_FOR, part, BUFFERS, WORKSPACE, *shared, result="i64")
    if combine:
        b.call(f"{b.symbol}.finish", BUFFERS, WORKSPACE, chunks)


def _variant(b: Builder, name: str, plan: SchedulePlan) -> tuple[Value, Value, Value]:
    """The launcher's arguments: the part, the maximum number of threads, and the extent that is shared out."""
    most = lesser(plan.threads, plan.extent)
    return Value(f"@{name}.part", "ptr"), b.const("i64", most), b.const("i64", plan.extent)


# Functions that schedules of products and attentions write.


def params(text: str) -> tuple[Value, ...]:
    """The parameters of a function, from "ptr left, i64 steps"."""
    return tuple([param(name, kind) for kind, name in map(str.split, text.split(", "))])


def entry_code(
    functions: Sequence[Function], helpers: Mapping[str, tuple[Function, ...]], entry: Builder, most: Term, units: Term,
    workspace: Size,
) -> EntryCode:  # fmt: skip
    """The functions of a kernel and its entry: at most `most` threads run parts of the units, each with its own
    workspace."""
    part = Value(f"@{entry.symbol}.part", "ptr")
    entry.call(PARALLEL_FOR, part, BUFFERS, WORKSPACE, THREADS, most, units, workspace, result="i64")
    whole = (*functions, entry.function(entry.symbol, ENTRY, "entry"))
    return EntryCode(whole, tuple(helpers.items()), workspace)
