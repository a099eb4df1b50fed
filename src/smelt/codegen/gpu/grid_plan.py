"""The schedules of a GPU: how a kernel runs, as consecutive grids, each with its blocks and the work of a thread.

    rows(i:4096) cols(j:1024) f32, a softmax   →   4096 blocks of 256 threads, a block a row, 4 cols at once a thread

Adjacent threads go along the cols of a row, or along rows where rows are contiguous in memory. A team of threads shares
a row: part of a warp, a warp, or a block. Where all cols of a row fit into the registers of its team, loops are
unrolled, and values that one loop loads or stages stay in registers for the next.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from smelt.base.errors import SmeltError
from smelt.base.fast_dataclass import dataclass
from smelt.base.row import Row
from smelt.codegen.axes import flattened, indices, is_pointwise, merged, reduce_rows_first, without_unit_axes
from smelt.codegen.gpu.attention.few_queries import few_queries
from smelt.codegen.gpu.attention.score_tiles import row_products_apart, score_tiles
from smelt.codegen.gpu.bodies.online_body import OnlineRows
from smelt.codegen.gpu.bodies.points_body import Points
from smelt.codegen.gpu.bodies.row_reductions_body import RowReductions
from smelt.codegen.gpu.bodies.rows_body import Rows
from smelt.codegen.gpu.grids import POINT_THREADS, Grid, KernelGrids
from smelt.codegen.gpu.kernel_slices import effects, has, is_pure, sliced, with_axes
from smelt.codegen.gpu.long_rows import online_loops, outputs_as_scratch, recomputed
from smelt.codegen.gpu.phase_kernels import (
    Bound,
    PhaseKernel,
    in_one_loop,
    scratch_in_memory,
    split_rows,
    staged_in_memory,
    transposed,
)
from smelt.codegen.gpu.products.few_rows import few_rows
from smelt.codegen.gpu.products.few_rows_body import FewRows
from smelt.codegen.gpu.products.library_parts import library_parts
from smelt.codegen.gpu.products.product_body import ProductTile
from smelt.codegen.gpu.products.product_tiles import in_parts, product_tile, why_no_tile
from smelt.codegen.gpu.row_reductions import OnePass, finishing, in_one_pass, preloadable, row_reads, with_room
from smelt.codegen.gpu.scan_kernels import has_logs, scan_kernels, split_scan
from smelt.codegen.gpu.scatters.run_reductions import run_levels
from smelt.codegen.gpu.scatters.scatter_kernels import any_order_is_right, last_ones, places_of, split_scatters
from smelt.codegen.gpu.scatters.stable_sort import sorted_events
from smelt.codegen.gpu.transpose_tiles import transpose_tile
from smelt.codegen.gpu.vector_width import padded_width, vector_width
from smelt.codegen.loops.math import FLOAT32
from smelt.device import Target
from smelt.ir.check_kernel import contraction_of, is_attention
from smelt.ir.kernel import (
    Access,
    Accumulate,
    Axis,
    Buffer,
    Compute,
    Index,
    Kernel,
    Load,
    Reduce,
    Role,
    Scan,
    Scatter,
    Store,
)
from smelt.symbolic.shapes import Size, product
from smelt.symbolic.symsize import hint, is_symsize, known_equal

# What is chosen by these is right whatever they are; which are fastest is to be measured on a GPU.
_LEAST_WARP = 4  # with two, reductions over rows and cols together were wrong
_MOST_VECTORS = 4  # that a thread reads before it computes
_BYTES_IN_FLIGHT = 64  # that it reads so
_MOST_THREADS = 1024
_MOST_TILES = 8  # of a row, a thread: more are not unrolled
_ROW_THREADS = 256  # that a row has before each of them has more values of it
_ROW_VALUES = 32
_FEW_TILES = 2  # of a row, that a thread has before there are more threads
_CLUSTER_RESIDENT = 1536  # threads of a multiprocessor that have rows under way
_CACHE_BYTES = 16 << 20  # of rows under way, that are still in the cache when they are read again
_CLUSTER_THREADS = 512  # of a block that shares its row with others
_CLUSTER_VALUES = 32  # that a thread keeps of a row that a cluster keeps in registers
_STREAM_TILES = 4  # of a row, a thread: of more, loops take a few at a time if they read them once
_STREAM_THREADS = 512  # where a row is reduced while it is read
_REGISTER_FILE = 65536  # of a multiprocessor, which has a block of 1024 threads at least
_REGISTERS = 80  # of those a thread may spend on what it keeps of a row
_WORKING_REGISTERS = 24
_LEAST_REGISTERS = 16  # beside what is kept: the assembler gets along with so few if that lets more blocks run
_MULTIPROCESSORS = 132  # of a large chip
_ENOUGH_BLOCKS = 2 * _MULTIPROCESSORS
_SHARED_BYTES = 40 << 10  # of a block: of the 48 KiB that there are, a few are for reductions within teams
_FOLD_WARPS = 2  # at least, that share a row whose values are also reduced over rows
_TEAMS_THREADS = 256  # of a block that several teams make
_MOST_ROWS_EACH = 128  # that a block goes through one after the other: their sums are no longer chains than that
_WARP_VALUES = 64  # of a row, that a thread keeps rather than share the row with other warps
_FOLD_VALUES = 88  # that a thread has of a row, the next and reductions over rows: two blocks of 256 threads fit (H200)
_MOST_SUMS = 16  # that a thread has of rows side by side, each in two registers
_LEAST_WIDTH = 4  # points that are still read side by side then
_LOOP_THREADS = 1024  # of a multiprocessor, at least, that go through cols in a loop
_LOOP_WORDS = 16  # that they read at once
_LEAST_LOOP_WIDTH = 2
_MOST_WARPS = 16  # that share rows side by side
_LEAST_LANES = 8  # of a warp, that have rows side by side where rows are few: with floats, a sector of memory
_LEAST_BYTES = 64  # that a warp reads side by side
_LEAST_WORK = 8192  # points that are worth a block of their own
_WORTH_SPLITTING = 65536  # points of a block that are worth another grid
_LEAST_SCAN = 128  # points that one thread scans, one after the other, before others help it
_LEAST_PART = 2048  # points of a row that are worth a block of their own in a scan


def plan(kernel: Kernel, target: Target, *, library: bool = False) -> KernelGrids:
    """How `kernel` runs on a target. `library`: where it runs, one may be installed that multiplies."""
    if target.warp_size < _LEAST_WARP:
        reason = f"GPU schedules are for {_LEAST_WARP} or more threads that run in step, not {target.warp_size}"
        raise SmeltError("SM030", reason)
    whole = in_one_loop(without_unit_axes(kernel))
    beside = _beside_library(whole, target) if library else None
    phases, reasons = (beside, []) if beside is not None else _chosen(whole, target)
    parameters = {buffer.name for buffer in kernel.parameters}
    own: dict[str, Buffer] = {}
    for phase in phases:
        own.update({each.name: each for each in phase.kernel.buffers if each.name not in parameters})
    places: list[tuple[str, Size]] = []
    end: Size = 0
    for buffer in own.values():
        if buffer.role is not Role.SCRATCH:
            places.append((buffer.name, end))
            end = end + -(-(buffer.size * buffer.dtype.itemsize) // 256) * 256
    return KernelGrids(kernel, tuple(phases), tuple(places), end, tuple(reasons))


Grids = list[Grid] | str  # the grids of a kernel, or why a schedule does not have it


def _chosen(kernel: Kernel, target: Target) -> tuple[list[Grid], list[tuple[str, str]]]:
    """The grids of the first schedule that has the kernel, and why those before it do not."""
    reasons = list[tuple[str, str]]()
    subject: Kernel | _Whole = kernel
    for row in SCHEDULES:
        if row.takes == "rows" and isinstance(subject, Kernel):
            subject = _Whole.of(kernel, target)
        phases = row.run(subject, target)
        if not isinstance(phases, str):
            return phases, reasons
        reasons.append((row.name, phases))
    raise AssertionError(f"no schedule has the kernel {kernel.name}")


def _phases(kernels: Iterable[Kernel], target: Target) -> list[Grid]:
    """The grids of kernels that run one after the other."""
    return [phase for each in kernels for phase in _chosen(each, target)[0]]


# Schedules, as the table at the end has them.


def _beside_library(kernel: Kernel, target: Target) -> list[Grid] | None:
    """Grids of a product alone, which a library may compute instead, and of what follows it; None if no library has
    it."""
    contract = contraction_of(kernel)
    if contract is None or why_no_tile(kernel) or any(known_equal(axis.size, 0) for axis in kernel.rows + kernel.cols):
        return None
    split = library_parts(kernel, contract)
    if split is None:
        return None
    multiplying, *more = _phases([split.kernel], target)
    if not isinstance(multiplying, ProductTile):
        return None  # it takes no longer than a library
    first = replace(multiplying, product=split.product, instead_of=1 + len(more))
    return [first, *more, *_phases([] if split.rest is None else [split.rest], target)]


def _product_tiles(kernel: Kernel, target: Target) -> Grids:
    """One grid of tiles, or where few points have many terms, one of parts of them and one that adds those up."""
    contract = contraction_of(kernel)
    if contract is None:
        return "it has no contraction"
    reason = why_no_tile(kernel)
    if reason is not None:
        raise SmeltError("SM030", f"no GPU schedule has the kernel {kernel.name}: {reason}")
    if any(known_equal(axis.size, 0) for axis in kernel.rows + kernel.cols):
        return []
    parts = in_parts(kernel, contract)
    return _phases(parts, target) if parts is not None else [product_tile(kernel, contract)]


def _score_tiles(kernel: Kernel, target: Target) -> Grids:
    before, rest = row_products_apart(kernel)
    grids = score_tiles(rest, target)
    return grids if isinstance(grids, str) else [*_phases(before, target), *grids]


def _few_rows(kernel: Kernel, target: Target) -> Grids:
    contract = contraction_of(kernel)
    is_plain = contract is not None and contract.dtype.is_floating_point and not is_attention(kernel)
    grid = few_rows(kernel, contract, target) if contract is not None and is_plain else "it has no contraction"
    return grid if isinstance(grid, str) else [grid]


def _scatters_apart(kernel: Kernel, target: Target) -> Grids:
    if not has(kernel, Scatter):
        return "it has no scatters"
    rest, scatters = split_scatters(kernel)
    phases = [] if rest is None else _phases([rest], target)
    return phases + [phase for each in scatters for phase in _scatter_phases(each, target)]


def _transposed(kernel: Kernel, target: Target) -> Grids:
    if not has(kernel, Accumulate):
        return "it has no reductions over rows"
    other = transposed(kernel)
    return _phases([other], target) if other is not None else "reductions keep different axes, or rows are whole"


def _nothing(kernel: Kernel, target: Target) -> Grids:
    return [] if _is_empty(kernel) else "it has rows"


def _is_empty(kernel: Kernel) -> bool:
    return any(known_equal(axis.size, 0) for axis in kernel.rows)


def _staged(kernel: Kernel, target: Target) -> Grids:
    if not has(kernel, Accumulate):
        return "it has no reductions over rows"
    return _phases(staged_in_memory(kernel), target)


def _pointwise(kernel: Kernel, target: Target) -> Grids:
    return [_points(kernel)] if is_pointwise(kernel) else "it is not pointwise"


def _copies_apart(kernel: Kernel, target: Target) -> Grids:
    """Values of single points go first, in a grid of points, if these have no padding and the rows that they are from
    do."""
    kernel = merged(merged(kernel, cols=False), cols=True)
    cols = {axis.name for axis in kernel.cols}
    written = effects(kernel)
    copies = [i for i in written if isinstance(i, Store) and i.index.axes & cols]
    if not copies or len(copies) == len(written):
        return "it has no values of single points beside reductions"
    rest, apart = sliced(kernel, [i for i in written if i not in copies]), sliced(kernel, copies)
    last = kernel.cols[-1]
    if padded_width(rest, last) <= vector_width(kernel, last, (last.size,)) or not is_pure(kernel, apart):
        return "rows are not padded, or not written as they are read"
    return _phases([apart, rest], target)


def _scans_apart(kernel: Kernel, target: Target) -> Grids:
    kernels = scan_kernels(kernel)
    return "no scan shares its kernel with another axis" if kernels[0] is kernel else _phases(kernels, target)


@dataclass(frozen=True, slots=True)
class _Whole:
    """A kernel with its axes merged, and one grid of its whole rows."""

    kernel: Kernel
    rows: Rows

    @classmethod
    def of(cls, kernel: Kernel, target: Target) -> "_Whole":
        kernel = merged(merged(kernel, cols=False), cols=True)
        return cls(kernel, _rows(PhaseKernel(kernel), target.warp_size))


def _scans(whole: _Whole, target: Target) -> Grids:
    """A scan whose rows are too few to keep the chip busy goes in parts."""
    kernel, rows = whole.kernel, whole.rows
    if not has(kernel, Scan):
        return "it has no scans"
    least = _LEAST_SCAN if rows.along_rows else _LEAST_PART
    part_count = min(-(-_ENOUGH_BLOCKS // max(hint(rows.blocks), 1)), hint(kernel.col_count) // least)
    parts = split_scan(kernel, part_count) if part_count > 1 else None
    return [rows] if parts is None else [_rows(part, target.warp_size) for part in parts]


def _split_rows(whole: _Whole, target: Target) -> Grids:
    kernel, rows = whole.kernel, whole.rows
    blocks = max(1, hint(rows.blocks))
    loops = sum(stage.loop for stage in kernel.stages)
    work = hint(kernel.col_count) * rows.rows_at_once
    part_count = min(-(-_ENOUGH_BLOCKS // blocks), work // _LEAST_WORK)
    if blocks > _MULTIPROCESSORS or loops * work < _WORTH_SPLITTING * (loops + 1) or part_count < 2:
        return "rows are many, or short"
    parts = split_rows(recomputed(kernel), part_count)
    if parts is None:
        return "later loops read what is stored once a row"
    return [_narrower(_rows(part, target.warp_size)) for part in parts]


def _whole_rows(whole: _Whole, target: Target) -> Grids:
    return [_narrower(whole.rows)]


def _clusters(whole: _Whole, target: Target) -> Grids:
    """Blocks that share a row: so few rows are in flight that re-reads hit the cache."""
    kernel, rows = whole.kernel, whole.rows
    if target.cluster_blocks == 1 or rows.along_rows or has_logs(kernel):
        return "the chip has no clusters, or not for such rows"
    if rows.unrolled:
        return "rows are short"
    if any(buffer.role is Role.SCRATCH for buffer in outputs_as_scratch(kernel).buffers):
        in_registers = _clustered_registers(whole, target)  # staged values would be recomputed
        if in_registers is not None:
            return [in_registers]
    threads = min(_CLUSTER_THREADS, target.warp_size**2)
    row = hint(kernel.col_count) * _bytes_again(rows)
    under_way = _MULTIPROCESSORS * max(1, _CLUSTER_RESIDENT // threads) * row
    cluster = 1
    while cluster < min(target.cluster_blocks, target.warp_size) and under_way > cluster * _CACHE_BYTES:
        cluster *= 2
    clustered = replace(rows, threads=threads, team=cluster * threads, cluster=cluster)
    if cluster == 1 or not row:
        return "rows are read once, or stay in the cache"
    return [clustered] if hint(clustered.blocks) >= _MULTIPROCESSORS // 2 else "rows are few"


def _bytes_again(rows: Rows) -> int:
    """Of a point, that are read by more than one pass over a row."""
    kernel, skipped = rows.kernel, rows.online.second if isinstance(rows, OnlineRows) else None
    loops = [stage for stage in kernel.stages if stage.loop and stage is not skipped]
    reads = [{(i.buffer, i.index) for i in stage.body if isinstance(i, Load) and i.index.terms} for stage in loops]
    again = {each for place, one in enumerate(reads) for other in reads[:place] for each in one & other}
    names = {axis.name for axis in kernel.cols}
    return sum(kernel.buffer(name).dtype.itemsize for name, index in again if index.axes & names)


def _clustered_registers(whole: _Whole, target: Target) -> Rows | None:
    """Each with a part of the row in its registers."""
    kernel, width = whole.kernel, whole.rows.width
    if is_symsize(kernel.col_count):
        return None
    order = {axis.name: axis for axis in kernel.cols}
    cols = tuple(order[axis.name] for axis in whole.rows.kernel.cols)
    kernel = outputs_as_scratch(with_axes(kernel, kernel.rows, cols))
    warp = target.warp_size
    threads, live = min(_MOST_THREADS, warp**2), _live(kernel)
    cluster, most = 1, min(target.cluster_blocks, warp)

    def kept() -> int:
        return -(-kernel.col_count // (cluster * threads * width)) * width * live

    while cluster < most and kept() > _CLUSTER_VALUES:
        cluster *= 2
    rows = Rows(kernel, (), False, threads, cluster * threads, width, True, warp, cluster)
    if cluster == 1 or kept() > _CLUSTER_VALUES:
        return None
    return rows if hint(rows.blocks) >= _MULTIPROCESSORS // 2 else None


# Kernels with reductions over rows beside others.


def _one_pass(kernel: Kernel, target: Target) -> Grids:
    """Blocks that go through many rows each, then a grid for their partials."""
    one_pass = None if _is_empty(kernel) else in_one_pass(kernel)
    if one_pass is None:
        return "it has no reductions over rows, or scans or no rows beside them"
    kernel = merged(merged(one_pass.kernel, cols=False), cols=True)
    along = _steps(kernel, kernel.cols)
    if _steps(kernel, kernel.rows)[1] > along[1]:
        return "rows are side by side in memory"
    first = _along_cols(PhaseKernel(kernel), along[0], target.warp_size)
    if not first.unrolled:
        first = _along_cols(PhaseKernel(reduce_rows_first(kernel)), along[0], target.warp_size)
    first = _several_teams(first)
    prefetches = _may_prefetch(first, one_pass)
    kept = {name for fold in one_pass.folds for name in fold.index.axes}
    groups = tuple(axis for axis in kernel.rows if axis.name in kept)
    folded = product(axis.size for axis in kernel.rows if axis.name not in kept)
    count = product(axis.size for axis in groups)
    many = -(-hint(folded) // first.rows_at_once)
    loops = sum(stage.loop for stage in kernel.stages)
    long = loops * hint(kernel.col_count) >= _WORTH_SPLITTING * (loops + 1)
    if hint(count) * many < _MULTIPROCESSORS // 2 and long:
        return "rows are few and long"
    resident_parts = max(1, _resident(first, prefetches) // max(1, hint(count)))
    waves = max(1, -(-many // (resident_parts * _MOST_ROWS_EACH)))  # of blocks, all of them full
    each = max(1, -(-many // (resident_parts * waves)))
    parts = -(-folded // (first.rows_at_once * each))
    same = preloadable(first.kernel, len(groups))
    more = sum(_loops_with(first.kernel, load) == 1 for load in same)  # others are kept anyhow
    more += len(row_reads(first.kernel, len(groups))) if prefetches else 0
    preloads = first.unrolled and first.points * (_live(first.kernel) + more) <= _registers(first.threads)
    resident = _resident(first, prefetches) // _MULTIPROCESSORS if prefetches or not first.unrolled else 0
    room = replace(first, kernel=with_room(first.kernel, parts), resident=resident).parameters()
    many_rows = RowReductions(**room, groups=groups, parts=parts, each=each, preloads=preloads, prefetches=prefetches)
    return [many_rows, *_phases(finishing(one_pass, parts), target)]


def _kept(rows: Rows, one_pass: OnePass) -> int:
    """Registers for what a thread has of a row, of the reductions over rows, and of the next row."""
    return int(rows.points * (_live(rows.kernel) + _words(row_reads(rows.kernel, len(one_pass.groups)), rows.kernel)))


def _words(loads: Sequence[Load], kernel: Kernel) -> float:
    """How many registers a point of each takes, unconverted."""
    return sum(kernel.buffer(load.buffer).dtype.itemsize for load in loads) / 4


def _may_prefetch(rows: Rows, one_pass: OnePass) -> bool:
    """Whether a thread's part of the next row fits into registers beside this one, and beside another block unless no
    more threads can share a row."""
    if not rows.unrolled or _kept(rows, one_pass) > max(_FOLD_VALUES, _registers(rows.threads)):
        return False
    return rows.tiles == 1 or _resident(rows, True) > _MULTIPROCESSORS


def _loops_with(kernel: Kernel, load: Load) -> int:
    """How many loops have this read."""
    at = (load.buffer, load.index)
    return sum(any(isinstance(i, Load) and (i.buffer, i.index) == at for i in stage.body) for stage in kernel.stages)


def _several_teams(rows: Rows) -> Rows:
    """With enough teams for a block of some size: fewer blocks leave fewer partials."""
    if not rows.unrolled:
        team = max(rows.team, rows.warp)  # a block's accumulators are in memory: one row at a time adds to them
        return replace(rows, team=team, threads=team)
    threads = max(rows.threads, rows.team * (min(_TEAMS_THREADS, rows.warp**2) // rows.team))
    return replace(rows, threads=threads) if rows.points * threads * 8 <= _SHARED_BYTES else rows


def _resident(rows: Rows, prefetches: bool) -> int:
    """How many blocks run at the same time, if they use as many registers as is likely."""
    used = _LEAST_REGISTERS + (rows.points * _live(rows.kernel) if rows.unrolled else 32)
    if prefetches:
        used += _WORKING_REGISTERS + int(rows.points * _words(row_reads(rows.kernel), rows.kernel))
    return max(1, _REGISTER_FILE // max(32, used) // rows.threads) * _MULTIPROCESSORS


def _scatter_phases(kernel: Kernel, target: Target) -> list[Grid]:
    if any(known_equal(axis.size, 0) for axis in kernel.cols):
        return []
    places = places_of(kernel)
    if any_order_is_right(places):
        return [_points(kernel)]
    if places.scatter.op is None:
        return [_points(each) for each in last_ones(places)]
    events = sorted_events(places)
    phases: list[Grid] = []
    for part in events.kernels:
        if part.bounds:
            phases.append(_rows(part, target.warp_size))
        elif part.kernel.rows or has(part.kernel, Scan):
            phases += _phases([part.kernel], target)
        else:
            phases.append(_points(part.kernel))
    return [*phases, *run_levels(places, events)]


# Pointwise kernels.


def _points(kernel: Kernel) -> Grid:
    """All points in one line, in the order that memory is written."""
    kernel = flattened(kernel)
    kernel = with_axes(kernel, (), kernel.rows + kernel.cols)
    last = kernel.cols[-1] if kernel.cols else None
    # Along a single axis, single points make up what is left of it.
    width = vector_width(kernel, last, () if len(kernel.cols) == 1 else (last.size,) if last else ())
    across = transpose_tile(kernel, width) if kernel.cols else None
    if across is not None:
        return across
    count = hint(kernel.col_count)
    while width > 1 and count // (width * POINT_THREADS) < _ENOUGH_BLOCKS:
        width //= 2
    points = Points(kernel, width)
    return replace(points, vectors=_vectors(points))


def _vectors(points: Points) -> int:
    """How many times a thread takes so many points, all read before the first are computed."""
    kernel, vectors = points.kernel, 1
    rows = {axis.name for axis in kernel.cols[:-1]} or {axis.name for axis in kernel.cols}
    read = {(i.buffer, i.index) for i in kernel.instructions() if isinstance(i, Load) and i.index.axes & rows}
    size = sum(kernel.buffer(name).dtype.itemsize for name, _ in read) * points.width
    while read and vectors < _MOST_VECTORS and size * 2 * vectors <= _BYTES_IN_FLIGHT:
        if hint(points.blocks) // (2 * vectors) < 4 * _ENOUGH_BLOCKS:
            break
        vectors *= 2
    return vectors


# Kernels with reductions, or values of whole rows.


def _rows(part: PhaseKernel, warp: int) -> Rows:
    kernel = part.kernel
    down, along = _steps(kernel, kernel.rows), _steps(kernel, kernel.cols)
    if kernel.rows and down[1] > along[1]:
        return _along_rows(part, down[0], warp)
    return _along_cols(part, along[0], warp)


def _steps(kernel: Kernel, axes: Sequence[Axis]) -> tuple[Axis | None, int]:
    """The axis that is gone along by single steps in most of the memory that is read and written, and how much that
    is."""
    sizes = {axis.name: hint(axis.size) for axis in kernel.rows + kernel.cols}
    best: tuple[Axis | None, int] = (axes[-1] if axes else None, 0)
    for axis in reversed(axes):
        moved = 0
        for i in kernel.instructions():
            if isinstance(i, Access) and abs(hint(i.index.stride(axis.name))) == 1:
                moved += kernel.buffer(i.buffer).dtype.itemsize * math.prod(sizes[name] for name in i.index.axes)
        if moved > best[1]:
            best = axis, moved
    return best


def _last(axes: Sequence[Axis], last: Axis | None) -> tuple[Axis, ...]:
    return tuple(axes) if last is None else (*(axis for axis in axes if axis is not last), last)


def _along_cols(part: PhaseKernel, last: Axis | None, warp: int) -> Rows:
    kernel = part.kernel
    kernel = with_axes(kernel, kernel.rows, _last(kernel.cols, last))
    cols = hint(kernel.col_count)
    width = _width(kernel, kernel.cols[-1:], part.bounds)
    padded = 1 if part.bounds else padded_width(kernel, last)
    is_padded = width < padded
    width = max(width, padded)
    while width > 1 and cols < width * warp:
        width //= 2
    team = 1
    folds = has(kernel, Accumulate)
    # One warp reduces the partials of a team's warps. Long code needs more registers than the largest block has.
    most = min(_MOST_THREADS // 2 if folds or has_logs(kernel) else _MOST_THREADS, warp * warp)
    while team < most and team * width < cols:
        team *= 2
    while team > 2 * warp and cols <= team // 2 * width * _FEW_TILES:
        team //= 2  # rather than twice the threads
    if folds and not is_symsize(kernel.col_count):
        team, width = _fold_team(kernel, team, width, most, warp)
    elif not folds and not is_symsize(kernel.col_count):
        live = _live(outputs_as_scratch(kernel))
        # A warp by itself exchanges no values through shared memory.
        if warp < team and -(-cols // (warp * width)) * width * max(1, live) <= _WARP_VALUES:
            team = warp
        # Blocks of fewer threads take turns better: while one waits for its row, others compute.
        while team > _ROW_THREADS and -(-cols // (team // 2 * width)) * width * max(1, live) <= _ROW_VALUES:
            team //= 2
    threads = team if team > warp else 4 * warp
    rows = Rows(kernel, part.bounds, False, threads, team, width, False, warp, padded=is_padded)
    return (None if folds else _streamed(rows)) or _unrolled(rows)


def _fold_team(kernel: Kernel, team: int, width: int, most: int, warp: int) -> tuple[int, int]:
    """Threads that share a row, and points side by side of each: as few threads as registers allow for the values of a
    row, of the next and of the reductions over rows, so that few wait for each other. Threads without points are
    avoided by narrower ones."""
    cols, each = kernel.col_count, _live(kernel) + _words(row_reads(kernel), kernel)
    widths = [wide for wide in (width, width // 2) if wide >= min(width, _LEAST_WIDTH)]
    best, least = (team, width), 2.0
    threads = _FOLD_WARPS * warp
    while threads <= most:
        for wide in widths:
            tiles = -(-cols // (threads * wide))
            idle = tiles * threads * wide / cols
            if tiles * wide * each <= _FOLD_VALUES and tiles <= _MOST_TILES and idle < least - 0.2:
                best, least = (threads, wide), idle
        if least < 1.2:
            break
        threads *= 2
    return best


def _streamed(rows: Rows) -> Rows | None:
    """In loops, where these read each point of a row once, and rows are not short; None where they do not. Nothing is
    gained by registers that keep a row then, and many threads fit side by side."""
    if is_symsize(rows.tiles) or rows.tiles <= _STREAM_TILES or has(rows.kernel, Scan):
        return None
    kernel = recomputed(rows.kernel)
    streamed = _in_loops(rows, kernel)
    if _bytes_again(streamed) or any(buffer.role is Role.SCRATCH for buffer in kernel.buffers):
        return None
    team = min(rows.team, _STREAM_THREADS) if isinstance(streamed, OnlineRows) else rows.team
    return replace(streamed, team=team, threads=team if team > rows.warp else rows.threads)


def _along_rows(part: PhaseKernel, last: Axis | None, warp: int) -> Rows:
    """Adjacent lanes have adjacent rows. Where rows are few, a warp has several cols of them."""
    kernel = with_axes(part.kernel, _last(part.kernel.rows, last), part.kernel.cols)
    width = _width(kernel, kernel.rows[-1:], part.bounds)
    rows = hint(kernel.row_count)
    folds = max(sum(isinstance(i, Reduce) for i in stage.body) for stage in kernel.stages)
    while width > _LEAST_WIDTH and folds * width > _MOST_SUMS:
        width //= 2
    if has(kernel, Scan):
        while width > 1 and rows < width * warp:
            width //= 2
        return _unrolled(Rows(kernel, part.bounds, True, warp, 1, width, False, warp))
    lanes = warp
    while lanes > 1 and lanes // 2 * width >= rows:
        lanes //= 2
    warps = 1
    while warps < _MOST_WARPS and warps * (warp // lanes) * 4 < hint(kernel.col_count):
        warps *= 2
    grid = _unrolled(Rows(kernel, part.bounds, True, warps * warp, warps * warp // lanes, width, False, warp))
    if grid.unrolled or lanes < warp:
        return grid
    most = _REGISTER_FILE // _LOOP_THREADS
    while grid.width > _LEAST_LOOP_WIDTH and _loop_registers(kernel, grid.width) > most:
        grid = replace(grid, width=grid.width // 2)
    return replace(grid, resident=_LOOP_THREADS // grid.threads if _loop_registers(kernel, grid.width) <= most else 0)


def _loop_registers(kernel: Kernel, width: int) -> int:
    """How many registers a thread uses that goes through the cols of so many rows side by side: two for each sum, one
    for what all cols have in common, what it reads at once, and more where functions overlap."""
    cols = {axis.name for axis in kernel.cols}
    most, functions = 0, 1
    for body in (stage.body for stage in kernel.stages if stage.loop):
        common = {(i.buffer, i.index) for i in body if isinstance(i, Load) and not i.index.axes & cols}
        most = max(most, len(common) + 2 * sum(isinstance(i, Reduce) for i in body))
        functions = max(functions, len({i.op for i in body if isinstance(i, Compute) and i.op in FLOAT32}))
    return width * most + _LOOP_WORDS + _WORKING_REGISTERS * functions


def _narrower(rows: Rows) -> Rows:
    """Along rows: with fewer of them a thread, where there would be few blocks."""
    if not rows.along_rows:
        return rows
    kernel = rows.kernel
    sizes = [kernel.buffer(i.buffer).dtype.itemsize for i in kernel.instructions() if isinstance(i, Load)]
    while rows.width > 1 and hint(rows.blocks) < _ENOUGH_BLOCKS:
        if rows.width // 2 * rows.warp * min(sizes, default=1) < _LEAST_BYTES:
            break
        rows = replace(rows, width=rows.width // 2)
    # A warp has fewer rows side by side then, and more of their cols.
    team, cols = rows.team, hint(kernel.col_count)
    while rows.threads // team > _LEAST_LANES and hint(rows.blocks) * team // rows.team < _MULTIPROCESSORS:
        if team * 4 > cols:
            break
        team *= 2
    return rows if team == rows.team else _unrolled(replace(rows, team=team))


def _unrolled(rows: Rows) -> Rows:
    """With its loops unrolled, if a thread's part of a row fits into registers; else the scratch of a row is
    recomputed, or in memory."""
    few = not is_symsize(rows.tiles) and rows.tiles <= (1 if has_logs(rows.kernel) else _MOST_TILES)
    kernel = outputs_as_scratch(rows.kernel)
    if few and (rows.tiles <= 1 or rows.points * _live(kernel) <= _registers(rows.threads)):
        return replace(rows, kernel=kernel, unrolled=True)
    return _in_loops(rows, scratch_in_memory(recomputed(rows.kernel)))


def _in_loops(rows: Rows, kernel: Kernel) -> Rows:
    """The rows of a kernel whose loops are not unrolled."""
    rows, online = replace(rows, kernel=kernel), None if rows.along_rows else online_loops(kernel)
    return rows if online is None else OnlineRows(**rows.parameters(), online=online)


def _registers(threads: int) -> int:
    """How many values of its row a thread of a block may keep, besides temporaries."""
    return min(_REGISTERS, _REGISTER_FILE // threads - _WORKING_REGISTERS)


def _live(kernel: Kernel) -> int:
    """How many values of a point are kept from one loop to a later one, or from row to row, at most."""
    names = {axis.name for axis in kernel.cols}
    folds = sum(isinstance(i, Accumulate) and bool(i.index.axes & names) for i in kernel.instructions())
    loops = [stage.body for stage in kernel.stages if stage.loop]
    most = 0
    for place in range(1, len(loops)):
        before = {(i.buffer, i.index) for body in loops[:place] for i in body if isinstance(i, Load | Store)}
        after = {(i.buffer, i.index) for body in loops[place:] for i in body if isinstance(i, Load)}
        most = max(most, len(before & after))
    return most + folds


def _width(kernel: Kernel, last: Sequence[Axis], bounds: Sequence[Bound]) -> int:
    if not last or any(each.part == last[0].name for each in bounds):
        return 1
    parts = [size for each in bounds if each.inner == last[0].name for size in (each.chunk, each.size)]
    return vector_width(kernel, last[0], (last[0].size, *parts))


SCHEDULES = tuple(
    Row(name, takes, "grids", run, why)
    for name, takes, run, why in (
        ("few queries", "kernel", few_queries, "first: few queries leave most of a tile empty"),
        ("score tiles", "kernel", _score_tiles, "attention of many queries"),
        ("few rows", "kernel", _few_rows, "before tiles: whoever reads weights once waits for nothing but them"),
        ("product tiles", "kernel", _product_tiles, "before the rest, which have no contractions"),
        ("scatters apart", "kernel", _scatters_apart, "before the rest, which is scheduled without them"),
        ("transposed", "kernel", _transposed, "reductions over rows: over cols of the transposed kernel, if possible"),
        ("one pass", "kernel", _one_pass, "else by blocks that go through many rows: operands are computed once"),
        ("staged", "kernel", _staged, "else of operands in memory, which any kernel can leave there"),
        ("nothing", "kernel", _nothing, "reductions over no rows have results, all others have none"),
        ("points", "kernel", _pointwise, "before what shares rows between threads"),
        ("copies apart", "kernel", _copies_apart, "before rows: what reads padded rows takes whole vectors of them"),
        ("scans apart", "kernel", _scans_apart, "so that a kernel has one scanned axis, its cols"),
        ("scans", "rows", _scans, "before clusters and parts of rows, which reduce in any order"),
        ("clusters", "rows", _clusters, "before parts of rows: one grid, and rows are read once"),
        ("split rows", "rows", _split_rows, "few long rows keep few blocks busy"),
        ("rows", "rows", _whole_rows, "all others"),
    )
)
"""Of each kernel the first that has it. Those that take it apart schedule what they make of it."""


def uses_wide_positions(grids: KernelGrids) -> bool:
    """Whether positions need 64 bits."""
    for phase in grids.phases:
        kernel = phase.kernel
        sizes = [buffer.size for buffer in kernel.buffers] + [kernel.row_count, kernel.col_count]
        axes = kernel.rows + kernel.cols + (phase.inner if isinstance(phase, ProductTile | FewRows) else ())
        sizes += [_reach(index, axes) for index in indices(kernel)]
        if any(is_symsize(size) or size >= 1 << 30 for size in sizes):
            return True
    return False


def _reach(index: Index, axes: Sequence[Axis]) -> Size:
    """No position on the way to one of `index` is further from zero. Those of a `Position` are in no buffer."""
    reach = index.offset if is_symsize(index.offset) else abs(index.offset)
    for axis in axes:
        stride = index.stride(axis.name)
        reach = reach + (stride if is_symsize(stride) else abs(stride)) * axis.size
    return reach
