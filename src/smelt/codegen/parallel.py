"""The functions round a kernel's loops: the entry callers use, and the launcher that shares points between threads.

    k0(buffers, threads, workspace)     smelt.launch(k0.part, …), then for folds over rows k0.finish
      smelt.launch                      how many chunks; one: run it here; more: GOMP_parallel(smelt.worker, …)
        smelt.worker(task)              chunks thread, thread + team, …, so that a team of any size runs them all
          smelt.chunk                   points extent·chunk/chunks up to extent·(chunk + 1)/chunks → k0.part

The launcher is the same for every kernel and is built once in a process. Its team always has the size the caller asked
for, as PyTorch's own loops do: libgomp keeps its threads only while the size stays the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from smelt.base.sizes import Size
from smelt.base.symbols import Fact
from smelt.base.varying import greater, lesser
from smelt.codegen.body import Body, Layout
from smelt.codegen.builder import Builder, Value
from smelt.codegen.schedule import Plan, Split
from smelt.codegen.sizes import Sizes, Told
from smelt.device import Target

LAUNCH = "smelt.launch"
_DECLARE_LAUNCH = f"declare i64 @{LAUNCH}(ptr, ptr, ptr, i64, i64, i64, i64)"

# A task is {part, buffers, workspace, chunks, extent, bytes of workspace a chunk has}, eight bytes each.
_CHUNK = """
define internal void @smelt.chunk(ptr %task, i64 %chunk) {
  %part = load ptr, ptr %task
  %buffers.at = getelementptr i64, ptr %task, i64 1
  %buffers = load ptr, ptr %buffers.at
  %workspace.at = getelementptr i64, ptr %task, i64 2
  %workspace = load ptr, ptr %workspace.at
  %chunks.at = getelementptr i64, ptr %task, i64 3
  %chunks = load i64, ptr %chunks.at
  %extent.at = getelementptr i64, ptr %task, i64 4
  %extent = load i64, ptr %extent.at
  %bytes.at = getelementptr i64, ptr %task, i64 5
  %bytes = load i64, ptr %bytes.at
  %offset = mul i64 %chunk, %bytes
  %mine = getelementptr i8, ptr %workspace, i64 %offset
  %after = add i64 %chunk, 1
  %low = mul i64 %chunk, %extent
  %high = mul i64 %after, %extent
  %first = udiv i64 %low, %chunks
  %last = udiv i64 %high, %chunks
  %ends = icmp eq i64 %after, %chunks
  call void %part(ptr %buffers, ptr %mine, i64 %first, i64 %last, i1 %ends)
  ret void
}
"""

_WORKER = """
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()

define internal void @smelt.worker(ptr %task) {
entry:
  %chunks.at = getelementptr i64, ptr %task, i64 3
  %chunks = load i64, ptr %chunks.at
  %thread = call i32 @omp_get_thread_num()
  %team = call i32 @omp_get_num_threads()
  %begin = zext i32 %thread to i64
  %step = zext i32 %team to i64
  br label %test
test:
  %chunk = phi i64 [ %begin, %entry ], [ %next, %run ]
  %more = icmp ult i64 %chunk, %chunks
  br i1 %more, label %run, label %done
run:
  call void @smelt.chunk(ptr %task, i64 %chunk)
  %next = add i64 %chunk, %step
  br label %test
done:
  ret void
}
"""

_TEAM_CALL = "call void @GOMP_parallel(ptr @smelt.worker, ptr %task, i32 %size, i32 0)"
_ALONE_CALL = "call void @smelt.chunk(ptr %task, i64 0)"


def launcher_text(*, parallel: bool) -> str:
    """The module every kernel's entry calls; without OpenMP it runs everything on the calling thread."""
    team = f"""  %size = trunc i64 %threads to i32
  {_TEAM_CALL if parallel else _ALONE_CALL}"""
    most = "%most" if parallel else "1"
    return f"""{_CHUNK}{_WORKER if parallel else ""}
define i64 @{LAUNCH}(ptr %part, ptr %buffers, ptr %workspace, i64 %threads, i64 %most, i64 %extent, i64 %bytes) {{
  %few = icmp slt i64 %threads, {most}
  %least = select i1 %few, i64 %threads, i64 {most}
  %alone = icmp slt i64 %least, 2
  %chunks = select i1 %alone, i64 1, i64 %least
  %task = alloca [6 x i64]
  store ptr %part, ptr %task
  %buffers.at = getelementptr i64, ptr %task, i64 1
  store ptr %buffers, ptr %buffers.at
  %workspace.at = getelementptr i64, ptr %task, i64 2
  store ptr %workspace, ptr %workspace.at
  %chunks.at = getelementptr i64, ptr %task, i64 3
  store i64 %chunks, ptr %chunks.at
  %extent.at = getelementptr i64, ptr %task, i64 4
  store i64 %extent, ptr %extent.at
  %bytes.at = getelementptr i64, ptr %task, i64 5
  store i64 %bytes, ptr %bytes.at
  br i1 %alone, label %here, label %team
here:
  {_ALONE_CALL}
  br label %done
team:
{team}
  br label %done
done:
  ret i64 %chunks
}}
"""


@dataclass(frozen=True, slots=True)
class Code:
    """LLVM text of one kernel: its functions, and what they need declared or defined once per module."""

    functions: str
    declarations: frozenset[str]
    helpers: tuple[tuple[str, str], ...]
    per_thread_workspace: Size
    sizes: tuple[Told, ...] = ()  # what the code is told at each launch
    facts: tuple[Fact, ...] = ()  # what it relies on of them


def write(symbol: str, plan: Plan, target: Target) -> Code:
    """The functions of a planned kernel under the name `symbol`."""
    sizes = Sizes(len(plan.kernel.parameters))
    ways = [(symbol, plan, Layout.of(plan))]
    while (otherwise := ways[-1][1].otherwise) is not None:
        ways.append((f"{symbol}.way{len(ways)}", otherwise, Layout.of(otherwise)))
    workspace = ways[0][2].size
    for _, _, layout in ways[1:]:
        workspace = greater(workspace, layout.size)
    builders = []
    texts = []
    for name, each, layout in ways:
        part = Builder(target, name, sizes)
        Body.of(part, each, layout).write()
        builders.append(part)
        signature = f"internal void @{name}.part(ptr %buffers, ptr %mine, i64 %first, i64 %last, i1 %ends)"
        texts += [part.pool_text, _function(signature, part)]
    combine = plan.split in (Split.ROWS, Split.PLACES) and bool(plan.accumulators)
    if combine:
        finish = Builder(target, symbol, sizes)
        _write_finish(finish, plan, ways[0][2], workspace)
        builders.append(finish)
        texts.append(_function(f"internal void @{symbol}.finish(ptr %buffers, ptr %mine, i64 %chunks)", finish))
    entry = Builder(target, symbol, sizes)
    _write_entry(entry, [(name, each) for name, each, _ in ways], workspace, combine=combine)
    texts.append(_function(f"void @{symbol}(ptr %buffers, i64 %threads, ptr %workspace)", entry, label=False))
    declarations = frozenset({_DECLARE_LAUNCH}).union(*(builder.declared for builder in builders))
    helpers = {name: text for builder in builders for name, text in builder.helpers.items()}
    return Code("\n".join(texts), declarations, tuple(helpers.items()), workspace, tuple(sizes.told))


def _function(signature: str, b: Builder, *, label: bool = True) -> str:
    body = "\n".join(line if line.endswith(":") else f"  {line}" for line in (*b.prologue, *b.lines))
    head = "entry:\n" if label else ""
    return f"define {signature} {{\n{head}{body}\n}}\n"


def _write_finish(b: Builder, plan: Plan, layout: Layout, workspace: Size) -> None:
    body = Body.of(b, plan, layout)
    body.load_pointers()
    body.finish((Value("%chunks", "i64"), workspace))
    b.emit("ret void")


def _write_entry(b: Builder, ways: Sequence[tuple[str, Plan]], workspace: Size, *, combine: bool) -> None:
    """Launch the first of `ways` that the extents are long enough for."""
    part, most, extent = _way(b, *ways[-1])
    for name, plan in reversed(ways[:-1]):
        fits = Value("true", "i1")
        for size, least in plan.needs:
            fits = b.and_(fits, b.icmp("sge", b.const("i64", size), least))
        better = _way(b, name, plan)
        part, most, extent = (
            b.op(f"select {fits}, {one}, {other}", one.kind, 1)
            for one, other in zip(better, (part, most, extent), strict=True)
        )
    shared = f"i64 %threads, {most}, {extent}, {b.const('i64', workspace)}"
    b.emit(f"%chunks = call i64 @{LAUNCH}({part}, ptr %buffers, ptr %workspace, {shared})")
    if combine:
        b.emit(f"call void @{b.symbol}.finish(ptr %buffers, ptr %workspace, i64 %chunks)")
    b.emit("ret void")


def _way(b: Builder, name: str, plan: Plan) -> tuple[Value, Value, Value]:
    """What the launcher is told: the part, how many threads at most, and what is shared out."""
    most = lesser(plan.threads, plan.extent)
    return Value(f"@{name}.part", "ptr"), b.const("i64", most), b.const("i64", plan.extent)
