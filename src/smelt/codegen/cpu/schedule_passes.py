"""The schedule of a kernel as a table of passes: kernel → `LoopSchedule`. `loop_nest` writes out what they chose.

    rows(b:8, h:4) cols(i:16, j:64)   all accesses contiguous, no reductions
    → rows() cols(j:32768), 16 lanes, split over cols

Each pass takes the plan so far and the target, and returns the next plan. An optional pass that changes a plan counts
against the opt-bisect limit; without it the kernel computes the same, slower.
"""

from collections.abc import Callable
from dataclasses import replace

import torch

from smelt.base.rewrite_budget import RewriteBudget
from smelt.base.row import BudgetUse, Row, run_rows
from smelt.codegen.axes import (
    dense_index,
    flattened,
    forward_scans,
    is_pointwise,
    ordered,
    reduce_rows_first,
    without_unit_axes,
)
from smelt.codegen.cpu.online_softmax import online
from smelt.codegen.cpu.row_pairing import paired
from smelt.codegen.cpu.scans import in_blocks
from smelt.codegen.cpu.schedule import (
    CONTIGUOUS_RUNS,
    LIGHT,
    PIPELINE_LOADS,
    PREFETCH,
    Accumulator,
    LoopSchedule,
    Split,
    idempotent,
    keeps_apart,
    lanes_of,
    only_reads,
    pipelined_loads,
    placing,
    prefetchable,
    streams,
    useful_threads,
)
from smelt.codegen.cpu.transpose_tiles import fills_whole_lines, tiled
from smelt.codegen.loops.sign_analysis import never_positive
from smelt.device import Target
from smelt.ir.check_kernel import check_kernel, value_dtypes
from smelt.ir.kernel import Accumulate, Compute, Gather, Kernel, Load, Role, Scatter
from smelt.ir.substitute_sizes import shape_env_of
from smelt.symbolic.shapes import product
from smelt.symbolic.symsize import hint

_FEW_ROWS = 64
_UNITS_ENOUGH = 16
_LIGHT_WORTH = 1 << 18  # points: LLVM takes half as long again for twice the registers
# Elements of a row: fewer are all in flight at once anyway, more are gone from the cache before they are needed.
_FETCH_LEAST, _FETCH_MOST = 256, 4096
# Rows of a tile are read in pieces too short for the processor to guess the next: each is prefetched so much earlier.
_TILE_BYTES_AHEAD = 1536


def _order_axes(plan: LoopSchedule, target: Target) -> LoopSchedule:
    """Scans run forward, there are no axes of one point, a reduction over cols and rows is two, and the other axes are
    merged with their neighbours, in the order memory is written."""
    kernel = reduce_rows_first(without_unit_axes(forward_scans(plan.kernel)))
    return replace(plan, kernel=flattened(kernel) if is_pointwise(kernel) else in_blocks(ordered(kernel)))


def _independent_rows(plan: LoopSchedule, target: Target) -> LoopSchedule:
    """Row axes that every reduction over rows and every scatter names, moved to the front; none if they are too few to
    share out. No two points that differ along them write to one place."""
    kernel = plan.kernel
    folds = [i for i in kernel.instructions() if isinstance(i, Accumulate | Scatter)]
    shared = [axis for axis in kernel.rows if folds and all(axis.name in fold.index.axes for fold in folds)]
    if any(isinstance(fold, Scatter) and not keeps_apart(kernel, fold) for fold in folds):
        return plan
    if hint(product(axis.size for axis in shared)) < _UNITS_ENOUGH:
        return plan
    rest = [axis for axis in kernel.rows if axis not in shared]
    return replace(plan, kernel=replace(kernel, rows=(*shared, *rest)), units=len(shared))


def _pair_rows(plan: LoopSchedule, target: Target) -> LoopSchedule:
    """Of a kernel that only reads one array and reduces its columns."""
    instructions, cols = plan.kernel.instructions(), plan.kernel.cols
    folds = any(isinstance(i, Accumulate) and cols and cols[-1].name in i.index.axes for i in instructions)
    reads_one = folds and only_reads(instructions) and len(streams(plan.kernel, instructions)) == 1
    kernel = paired(plan.kernel) if target.pairs_rows and reads_one else None
    return plan if kernel is None else replace(plan, kernel=kernel)


def _online_softmax(plan: LoopSchedule, target: Target) -> LoopSchedule:
    kernel, loops = online(plan.kernel)
    return plan if loops is None else replace(plan, kernel=kernel, online=loops)


def _split(plan: LoopSchedule, target: Target) -> LoopSchedule:
    """What threads share out, how many are of use, and the accumulators each has."""
    kernel, units = plan.kernel, plan.units
    folds = [instruction for instruction in kernel.instructions() if isinstance(instruction, Accumulate)]
    accumulators = tuple(_accumulator(kernel, fold, units) for fold in folds)
    split = Split.ROWS if folds and not units else Split.INDEPENDENT_ROWS
    scatters = any(isinstance(instruction, Scatter) for instruction in kernel.instructions())
    if scatters and not units and placing(kernel):
        split = Split.SCATTER_BUCKETS
    rows, cols = hint(kernel.row_count), hint(kernel.col_count)
    if is_pointwise(kernel) and rows < _FEW_ROWS and cols > rows:
        split = Split.COLS
    if not folds and not scatters:
        units = len(kernel.rows)
    # Rows that may write to one place, and do not say beforehand which, are run by one thread.
    threads = useful_threads(kernel) if units or not scatters or split is Split.SCATTER_BUCKETS else 1
    return replace(plan, split=split, units=units, threads=threads, accumulators=accumulators)


def _accumulator(kernel: Kernel, fold: Accumulate, units: int) -> Accumulator:
    axes = kernel.rows[units:] + kernel.cols
    kept = tuple(axis for axis in axes if axis.name in fold.index.axes)
    value = value_dtypes(kernel)[fold.value]
    kept_in = torch.float64 if fold.op in ("sum", "prod") and value is torch.float32 else value
    return Accumulator(fold, kept, dense_index(kept), kept_in, value)


def _vectorize(plan: LoopSchedule, target: Target) -> LoopSchedule:
    return replace(plan, lanes=lanes_of(plan.kernel, target))


def _unroll(plan: LoopSchedule, target: Target) -> LoopSchedule:
    """Where a point may be so little work, of so many, that more vectors side by side are worth their code."""
    kernel, lanes = plan.kernel, plan.lanes
    light = any(isinstance(i, Compute) and i.op in LIGHT for i in kernel.instructions())
    if light and hint(kernel.row_count * kernel.col_count) >= _LIGHT_WORTH:
        lanes = lanes_of(kernel, target, unroll=True)
    return plan if lanes == plan.lanes else replace(plan, lanes=lanes)


def _prefetch_next_row(plan: LoopSchedule, target: Target) -> LoopSchedule:
    """The first reads of the next row, for rows of several passes: later passes do not wait for memory."""
    kernel, loops = plan.kernel, [stage for stage in plan.kernel.stages if stage.loop]
    if not target.prefetch_next_row or not loops or not kernel.rows or len(kernel.cols) != 1:
        return plan
    if not _FETCH_LEAST <= hint(kernel.col_count) <= _FETCH_MOST:
        return plan
    down, along = kernel.rows[-1].name, kernel.cols[-1].name
    outside = {buffer.name for buffer in kernel.buffers if buffer.role is Role.INPUT}
    for load in loops[0].body:
        if isinstance(load, Load) and load.buffer in outside:
            steps = load.index.stride(down), load.index.stride(along)
            if steps[0] and steps[1] in (1, -1) and (len(loops) > 1 or steps[0] * steps[1] < 0):
                return replace(plan, fetched=(load,))
    return plan


Pass = Callable[[LoopSchedule, Target], LoopSchedule]


def _uses(what: str) -> Callable[[Callable[[LoopSchedule, Target], bool]], Pass]:
    """A row that says how memory is read, if a function says that this pays."""
    return lambda pays: lambda plan, target: replace(plan, uses=plan.uses | {what}) if pays(plan, target) else plan


@_uses(PREFETCH)
def _prefetch(plan: LoopSchedule, target: Target) -> bool:
    wanted = bool(plan.online or target.prefetch_distance)
    return wanted and any(prefetchable(plan.kernel, stage) for stage in plan.kernel.stages if stage.loop)


@_uses(PIPELINE_LOADS)
def _pipeline_loads(plan: LoopSchedule, target: Target) -> bool:
    return any(pipelined_loads(plan.kernel, stage, target) for stage in plan.kernel.stages if stage.loop)


@_uses(CONTIGUOUS_RUNS)
def _runs(plan: LoopSchedule, target: Target) -> bool:
    return any(isinstance(instruction, Gather) for instruction in plan.kernel.instructions())


def _known_signs(plan: LoopSchedule, target: Target) -> LoopSchedule:
    values = never_positive(plan.kernel)
    return replace(plan, never_positive=values) if values else plan


def _short_rows(plan: LoopSchedule, target: Target) -> LoopSchedule:
    return replace(plan, fallback=replace(plan, lanes=1, fetched=())) if plan.needs else plan


def _transpose_tiles(plan: LoopSchedule, target: Target) -> LoopSchedule:
    """Where extents may turn out too short for tiles, the plan without them is the fallback."""
    kernel = plan.kernel
    if not is_pointwise(kernel):
        return plan
    tiling = tiled(kernel, plan.lanes, target, idempotent=idempotent(kernel.instructions()))
    if tiling is None:
        return plan
    kernel, tile = tiling
    across = tuple(streams(kernel, kernel.instructions())) if target.prefetch_next_row else ()
    line = tile.width * max((kernel.buffer(load.buffer).dtype.itemsize for load in across), default=1)
    rows_ahead = -(-_TILE_BYTES_AHEAD // line)
    tiled_plan = replace(
        plan, kernel=kernel, split=Split.TILES, tile=tile, fallback=None, fetched=across, fetched_rows=rows_ahead
    )
    return replace(tiled_plan, fallback=plan) if tiled_plan.needs else tiled_plan


def _nontemporal_stores(plan: LoopSchedule, target: Target) -> LoopSchedule:
    if plan.tile is None or not fills_whole_lines(plan.kernel, plan.tile.along, plan.lanes, target):
        return plan
    return replace(plan, tile=replace(plan.tile, nontemporal=True))


KERNEL, PLAN = "kernel", "schedule"

SCHEDULE = (
    Row("order axes", KERNEL, PLAN, _order_axes, "first: kernels that compute the same have one form from here on"),
    Row("independent rows", PLAN, PLAN, _independent_rows, "before rows are paired: pairs share what is not theirs"),
    Row("pair rows", PLAN, PLAN, _pair_rows, "after row order is fixed: it halves the last axis", BudgetUse.ONE),
    Row("online softmax", PLAN, PLAN, _online_softmax, "after pairing, which makes two maxima of one", BudgetUse.ONE),
    Row("split", PLAN, PLAN, _split, "once the kernel's loops are final: what threads share out of them"),
    Row("vectorize", PLAN, PLAN, _vectorize, "after the split: lanes of the last axis, as registers allow"),
    Row("unroll", PLAN, PLAN, _unroll, "after vectors: more of them where a point takes few registers", BudgetUse.ONE),
    Row("prefetch next row", PLAN, PLAN, _prefetch_next_row, "before single loops: across rows", BudgetUse.ONE),
    Row(PREFETCH, PLAN, PLAN, _prefetch, "after rows: what loops prefetch that no row before did", BudgetUse.ONE),
    Row(PIPELINE_LOADS, PLAN, PLAN, _pipeline_loads, "once loops are final: loads before stores", BudgetUse.ONE),
    Row(CONTIGUOUS_RUNS, PLAN, PLAN, _runs, "any time: how places side by side are read", BudgetUse.ONE),
    Row("known signs", PLAN, PLAN, _known_signs, "any time: shorter code for values never positive", BudgetUse.ONE),
    Row("short rows", PLAN, PLAN, _short_rows, "after vectors: code for sizes that turn out shorter than one"),
    Row("transpose tiles", PLAN, PLAN, _transpose_tiles, "after the fallback it may need is made", BudgetUse.ONE),
    Row("non-temporal stores", PLAN, PLAN, _nontemporal_stores, "after tiles, which write whole lines", BudgetUse.ONE),
)


def plan(
    kernel: Kernel, target: Target, budget: RewriteBudget | None = None, *, check: bool = False, of: str = ""
) -> LoopSchedule:
    """The schedule of `kernel` on `target`. `of`: what `bisect` calls the kernel's program."""
    budget = RewriteBudget() if budget is None else budget
    checks = _check if check and shape_env_of(kernel) is None else None
    last: LoopSchedule = run_rows(LoopSchedule(kernel), SCHEDULE, target, budget, f"{of}generate", checks, kernel.name)
    return last


def _check(plan: LoopSchedule, after: str) -> None:
    if plan.tile is None:  # in a tile, positions in its squares count from where the axes start
        check_kernel(plan.kernel, after, scheduled=True)
