"""Writes the functions around a kernel's loops: the entry that callers use, and the part that one thread runs.

    k0(buffers, threads, workspace)     smelt_parallel_for(k0.part, …), then for reductions over rows k0.finish
      k0.part(…, first, last, ends)     the points first up to last, in a workspace of its own

`smelt_parallel_for` is C (`csrc/runner/parallel.c`): it divides the points into chunks and runs each on some thread.
"""

from collections.abc import Sequence

from smelt.codegen.cpu.loop_nest import LoopNest
from smelt.codegen.cpu.schedule import SchedulePlan, Split
from smelt.codegen.cpu.workspace import WorkspaceLayout
from smelt.codegen.generator import EntryCode
from smelt.codegen.llvm.builder import Builder, LlvmValue
from smelt.codegen.llvm.runtime_sizes import Sizes
from smelt.device import Target
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import greater, lesser
from smelt.torch_abi.symbols import PARALLEL_FOR

DECLARE_PARALLEL_FOR = f"declare i64 @{PARALLEL_FOR}(ptr, ptr, ptr, i64, i64, i64, i64)"


def write(symbol: str, plan: SchedulePlan, target: Target, *, aligned: bool = True) -> EntryCode:
    """The functions of a planned kernel under the name `symbol`, for buffers at any address."""
    sizes = Sizes(len(plan.kernel.parameters))
    variants = [(symbol, plan, WorkspaceLayout.of(plan))]
    while (fallback := variants[-1][1].fallback) is not None:
        variants.append((f"{symbol}.variant{len(variants)}", fallback, WorkspaceLayout.of(fallback)))
    workspace = variants[0][2].size
    for _, _, layout in variants[1:]:
        workspace = greater(workspace, layout.size)
    builders = []
    texts = []
    for name, each, layout in variants:
        part = Builder(target, name, sizes)
        LoopNest.of(part, each, layout).write()
        builders.append(part)
        signature = f"internal void @{name}.part(ptr %buffers, ptr %mine, i64 %first, i64 %last, i1 %ends)"
        texts += [part.pool_text, function_text(signature, part)]
    combine = plan.split in (Split.ROWS, Split.SCATTER_BUCKETS) and bool(plan.accumulators)
    if combine:
        finish = Builder(target, symbol, sizes)
        _write_finish(finish, plan, variants[0][2], workspace)
        builders.append(finish)
        texts.append(function_text(f"internal void @{symbol}.finish(ptr %buffers, ptr %mine, i64 %chunks)", finish))
    entry = Builder(target, symbol, sizes)
    _write_entry(entry, [(name, each) for name, each, _ in variants], workspace, combine=combine)
    texts.append(function_text(f"void @{symbol}(ptr %buffers, i64 %threads, ptr %workspace)", entry, label=False))
    declarations = frozenset({DECLARE_PARALLEL_FOR}).union(*(builder.declared for builder in builders))
    helpers = {name: text for builder in builders for name, text in builder.helpers.items()}
    return EntryCode("\n".join(texts), declarations, tuple(helpers.items()), workspace, tuple(sizes.params))


def function_text(signature: str, b: Builder, *, label: bool = True) -> str:
    """The function that a builder has written the body of."""
    body = "\n".join(line if line.endswith(":") else f"  {line}" for line in (*b.prologue, *b.lines))
    head = "entry:\n" if label else ""
    order = f' "tune-cpu"="{b.target.tune_cpu}"' if b.target.tune_cpu else ""
    # Nothing raises through it: without tables for that LLVM takes a tenth less.
    return f"define {signature} nounwind{order} {{\n{head}{body}\n}}\n"


def _write_finish(b: Builder, plan: SchedulePlan, layout: WorkspaceLayout, workspace: Size) -> None:
    nest = LoopNest.of(b, plan, layout)
    nest.at.load_pointers()
    nest.finish((LlvmValue("%chunks", "i64"), workspace))
    b.emit("ret void")


def _write_entry(b: Builder, variants: Sequence[tuple[str, SchedulePlan]], workspace: Size, *, combine: bool) -> None:
    """Launch the first of `variants` that the extents are long enough for."""
    part, most, extent = _variant(b, *variants[-1])
    for name, plan in reversed(variants[:-1]):
        fits = LlvmValue("true", "i1")
        for size, least in plan.needs:
            fits = b.and_(fits, b.icmp("sge", b.const("i64", size), least))
        better = _variant(b, name, plan)
        part, most, extent = (
            b.op(f"select {fits}, {one}, {other}", one.kind, 1)
            for one, other in zip(better, (part, most, extent), strict=True)
        )
    shared = f"i64 %threads, {most}, {extent}, {b.const('i64', workspace)}"
    b.emit(f"%chunks = call i64 @{PARALLEL_FOR}({part}, ptr %buffers, ptr %workspace, {shared})")
    if combine:
        b.emit(f"call void @{b.symbol}.finish(ptr %buffers, ptr %workspace, i64 %chunks)")
    b.emit("ret void")


def _variant(b: Builder, name: str, plan: SchedulePlan) -> tuple[LlvmValue, LlvmValue, LlvmValue]:
    """The launcher's arguments: the part, the maximum number of threads, and the extent that is shared out."""
    most = lesser(plan.threads, plan.extent)
    return LlvmValue(f"@{name}.part", "ptr"), b.const("i64", most), b.const("i64", plan.extent)
