"""The functions round a kernel's loops: the entry callers use, and the worker each OpenMP thread runs.

    k0(buffers, threads, workspace)     how many chunks; one: run it here; more: GOMP_parallel(k0.worker, …)
      k0.worker(data)                   chunks thread, thread + team, …, so that a team of any size runs them all
        k0.chunk(buffers, workspace, chunk, chunks)     its share of the points → k0.part
    then, for folds over rows, k0.finish combines what the chunks left, in order

The team always has the size the caller asked for, as PyTorch's own loops do: libgomp keeps its threads only while the
size stays the same.
"""

from dataclasses import dataclass

from smelt.codegen.body import Body, Layout
from smelt.codegen.builder import Builder, Value
from smelt.codegen.schedule import Plan, Split
from smelt.device import Target

_OPENMP = (
    "declare void @GOMP_parallel(ptr, ptr, i32, i32)",
    "declare i32 @omp_get_thread_num()",
    "declare i32 @omp_get_num_threads()",
)


@dataclass(frozen=True, slots=True)
class Code:
    """LLVM text of one kernel: its functions, and what they need declared or defined once per module."""

    functions: str
    declarations: frozenset[str]
    helpers: tuple[tuple[str, str], ...]
    per_thread_workspace: int


def write(symbol: str, plan: Plan, target: Target, *, parallel: bool) -> Code:
    """The functions of a planned kernel under the name `symbol`; `parallel` says whether OpenMP is at hand."""
    layout = Layout.of(plan)
    part = Builder(target)
    Body.of(part, plan, layout).write()
    builders = [part]
    texts = [_function(f"internal void @{symbol}.part(ptr %buffers, ptr %mine, i64 %first, i64 %last, i1 %ends)", part)]
    texts.append(_chunk(symbol, plan, layout))
    combine = plan.split is Split.ROWS and bool(plan.accumulators)
    if combine:
        finish = Builder(target)
        _write_finish(finish, plan, layout)
        builders.append(finish)
        texts.append(_function(f"internal void @{symbol}.finish(ptr %buffers, ptr %mine, i64 %chunks)", finish))
    shared = parallel and plan.threads > 1 and plan.extent > 1
    if shared:
        texts.append(_worker(symbol))
    texts.append(_entry(symbol, plan, shared=shared, combine=combine))
    declarations = frozenset().union(*(builder.declared for builder in builders))
    if shared:
        declarations |= frozenset(_OPENMP)
    helpers = {name: text for builder in builders for name, text in builder.helpers.items()}
    return Code("\n".join(texts), declarations, tuple(helpers.items()), layout.size)


def _function(signature: str, b: Builder) -> str:
    body = "\n".join(line if line.endswith(":") else f"  {line}" for line in b.lines)
    return f"define {signature} {{\nentry:\n{body}\n}}\n"


def _write_finish(b: Builder, plan: Plan, layout: Layout) -> None:
    body = Body.of(b, plan, layout)
    body.load_pointers()
    for accumulator in plan.accumulators:
        body.finish(accumulator, (Value("%chunks", "i64"), layout.size))
    b.emit("ret void")


def _chunk(symbol: str, plan: Plan, layout: Layout) -> str:
    """Points extent·chunk/chunks up to extent·(chunk + 1)/chunks."""
    return f"""define internal void @{symbol}.chunk(ptr %buffers, ptr %workspace, i64 %chunk, i64 %chunks) {{
  %offset = mul i64 %chunk, {layout.size}
  %mine = getelementptr i8, ptr %workspace, i64 %offset
  %after = add i64 %chunk, 1
  %low = mul i64 %chunk, {plan.extent}
  %high = mul i64 %after, {plan.extent}
  %first = udiv i64 %low, %chunks
  %last = udiv i64 %high, %chunks
  %ends = icmp eq i64 %after, %chunks
  call void @{symbol}.part(ptr %buffers, ptr %mine, i64 %first, i64 %last, i1 %ends)
  ret void
}}
"""


def _worker(symbol: str) -> str:
    return f"""define internal void @{symbol}.worker(ptr %data) {{
entry:
  %buffers = load ptr, ptr %data
  %workspace.at = getelementptr i64, ptr %data, i64 1
  %workspace = load ptr, ptr %workspace.at
  %chunks.at = getelementptr i64, ptr %data, i64 2
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
  call void @{symbol}.chunk(ptr %buffers, ptr %workspace, i64 %chunk, i64 %chunks)
  %next = add i64 %chunk, %step
  br label %test
done:
  ret void
}}
"""


def _entry(symbol: str, plan: Plan, *, shared: bool, combine: bool) -> str:
    finish = f"  call void @{symbol}.finish(ptr %buffers, ptr %workspace, i64 %chunks)\n" if combine else ""
    signature = f"define void @{symbol}(ptr %buffers, i64 %threads, ptr %workspace)"
    if not shared:
        finish = finish.replace("%chunks", "1")
        return f"""{signature} {{
  call void @{symbol}.chunk(ptr %buffers, ptr %workspace, i64 0, i64 1)
{finish}  ret void
}}
"""
    most = min(plan.threads, plan.extent)
    return f"""{signature} {{
entry:
  %few = icmp slt i64 %threads, {most}
  %chunks = select i1 %few, i64 %threads, i64 {most}
  %alone = icmp slt i64 %chunks, 2
  br i1 %alone, label %here, label %team
here:
  call void @{symbol}.chunk(ptr %buffers, ptr %workspace, i64 0, i64 1)
  br label %done
team:
  %data = alloca [3 x i64]
  store ptr %buffers, ptr %data
  %workspace.at = getelementptr i64, ptr %data, i64 1
  store ptr %workspace, ptr %workspace.at
  %chunks.at = getelementptr i64, ptr %data, i64 2
  store i64 %chunks, ptr %chunks.at
  %size = trunc i64 %threads to i32
  call void @GOMP_parallel(ptr @{symbol}.worker, ptr %data, i32 %size, i32 0)
  br label %done
done:
{finish}  ret void
}}
"""
