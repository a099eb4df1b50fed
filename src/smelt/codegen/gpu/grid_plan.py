"""`GridPlan`: how a kernel runs on a GPU, as consecutive grids, each with its blocks and the work of a thread.

    rows(i:4096) cols(j:1024) f32, a softmax   →   4096 blocks of 256 threads, a block a row, 4 cols at once a thread

Adjacent threads go along the cols of a row, or along rows where rows are contiguous in memory. A team of threads shares
a row: part of a warp, a warp, or a block. Where all cols of a row fit into the registers of its team, loops are
unrolled, and values that one loop loads or stages stay in registers for the next.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import Enum
from functools import cached_property

from smelt.base.errors import SmeltError
from smelt.base.fast_dataclass import dataclass
from smelt.base.row import Row
from smelt.codegen.axes import indices, is_pointwise, merged, reduce_rows_first, without_unit_axes
from smelt.codegen.cpu.online_softmax import Online
from smelt.codegen.gpu.kernel_slices import has, with_axes
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
from smelt.codegen.gpu.products.library_parts import library_parts
from smelt.codegen.gpu.products.product_tiles import ProductTile, in_parts, product_tile, why_no_tile
from smelt.codegen.gpu.row_reductions import (
    OnePass,
    RowReductions,
    finishing,
    in_one_pass,
    preloadable,
    row_reads,
    with_room,
)
from smelt.codegen.gpu.scan_kernels import has_logs, scan_kernels, split_scan
from smelt.codegen.gpu.scatters.run_levels import RunLevel, run_levels
from smelt.codegen.gpu.scatters.scatter_kernels import any_order_is_right, last_ones, places_of, split_scatters
from smelt.codegen.gpu.scatters.stable_sort import sorted_events
from smelt.codegen.gpu.transpose_tiles import TransposeTile, transpose_tile
from smelt.codegen.gpu.vector_width import is_multiple, vector_width
from smelt.ir.check_kernel import contraction_of
from smelt.ir.kernel import Access, Accumulate, Axis, Buffer, Index, Kernel, Load, Role, Scan, Scatter, Store
from smelt.ir.products.library_product import LibraryProduct
from smelt.symbolic.shapes import Size, product
from smelt.symbolic.symsize import hint, is_symsize, known_equal

# What is chosen by these is right whatever they are; which are fastest is to be measured on a GPU.
_LEAST_WARP = 4  # with two, reductions over rows and cols together were wrong
_POINT_THREADS = 256
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
_TEAMS_THREADS = 128  # of a block that several teams make
_MOST_ROWS_EACH = 128  # that a block goes through one after the other: their sums are no longer chains than that
_FOLD_VALUES = 64  # that a thread has of a row and of the reductions over rows, where more threads can share it
_LEAST_WIDTH = 4  # points that are still read side by side then
_MOST_WARPS = 16  # that share rows side by side
_LEAST_BYTES = 64  # that a warp reads side by side
_LEAST_WORK = 8192  # points that are worth a block of their own
_WORTH_SPLITTING = 65536  # points of a block that are worth another grid
_TILES_RESIDENT = 2  # blocks with a tile of a product: while one waits for its factors, the other multiplies
_LEAST_SCAN = 128  # points that one thread scans, one after the other, before others help it
_LEAST_PART = 2048  # points of a row that are worth a block of their own in a scan


class Along(Enum):
    """What neighbouring threads go along."""

    POINTS = "points"  # all of them, in one line
    COLS = "cols"
    ROWS = "rows"


Work = RowReductions | Online | TransposeTile | ProductTile | RunLevel | None
"""What is done otherwise than row by row or point by point: rows that blocks go through one after the other, with
reductions over them; two loops over cols that are not unrolled, and run as one; tiles of a block whose reads go across,
or which sums up part of a contraction; what is reduced of a scatter's sorted points."""


@dataclass(frozen=True, slots=True)
class PhasePlan:
    """One grid. A thread takes `width` adjacent points together: of the last col axis, or along rows of the last row
    axis."""

    kernel: Kernel
    bounds: tuple[Bound, ...]
    along: Along
    threads: int  # of a block
    team: int  # threads that share a row
    width: int
    unrolled: bool
    warp: int  # threads that run in step
    work: Work = None
    vectors: int = 1  # of `width` points each, that a thread of a pointwise kernel has
    preloads: bool = False  # what is the same in all of those rows is loaded once
    prefetches: bool = False  # the next of those rows is read while one is computed
    resident: int = 0  # blocks that a multiprocessor has to run at the same time; 0 for as many as there happen to fit
    cluster: int = 1  # blocks that share a row
    product: LibraryProduct | None = None  # what a library may do instead of this grid and `instead_of - 1` after it
    instead_of: int = 0

    @property
    def vector_axis(self) -> Axis | None:
        axes = self.kernel.rows if self.along is Along.ROWS else self.kernel.cols
        return axes[-1] if axes else None

    @property
    def stride(self) -> int:
        """How many cols the threads of a team take together."""
        return self.team if self.along is Along.ROWS else self.team * self.width

    @property
    def tiles(self) -> Size:
        """How many times a thread comes back to its row's cols."""
        if self.along is Along.POINTS:
            return self.vectors
        return -(-self.kernel.col_count // self.stride)

    @property
    def leaves_some(self) -> bool:
        """Whether vectors along points leave a few for single ones."""
        line = self.along is Along.POINTS and self.work is None and len(self.kernel.cols) == 1
        return line and not is_multiple(self.kernel.col_count, self.width)

    @property
    def points(self) -> int:
        """Of a row, that a thread has. Only of loops that are unrolled."""
        return int(self.tiles) * self.width

    @property
    def rows_at_once(self) -> int:
        """Rows of a block, or of a cluster."""
        if self.cluster > 1:
            return 1
        return self.threads // self.team * (self.width if self.along is Along.ROWS else 1)

    @property
    def blocks(self) -> Size:
        match self.work:
            case RowReductions():
                return self.work.group_count * self.work.parts
            case TransposeTile():
                return self.work.blocks(self.kernel.rows)
            case ProductTile():
                return self.work.blocks
            case RunLevel():
                return -(-self.work.thread_count // self.threads)
        if self.along is Along.POINTS:
            return -(-self.kernel.col_count // (self.threads * self.width * self.vectors))
        return -(-self.kernel.row_count // self.rows_at_once) * self.cluster


@dataclass(frozen=True, slots=True)
class GridPlan:
    """A kernel as grids that run one after the other, and where in the workspace they leave things for each other."""

    kernel: Kernel
    phases: tuple[PhasePlan, ...]
    places: tuple[tuple[str, Size], ...]  # buffers of the workspace, each with its first byte
    workspace: Size
    why_not: tuple[tuple[str, str], ...] = ()  # schedules that it does not have, each with the reason


@dataclass(frozen=True, slots=True)
class Chip:
    """What a plan depends on."""

    warp: int  # threads that run in step
    cluster: int  # blocks that read each other's shared memory, at most; 1 where none do
    library: bool = False  # whether a library may multiply, where it is installed


class _Case:
    """A kernel to be scheduled."""

    def __init__(self, kernel: Kernel, warp: int) -> None:
        self.kernel, self.warp = kernel, warp

    @cached_property
    def rows(self) -> PhasePlan:
        """One grid of whole rows, of the kernel with its axes merged."""
        return _rows(PhaseKernel(self.merged), self.warp)

    @cached_property
    def merged(self) -> Kernel:
        return merged(merged(self.kernel, cols=False), cols=True)


def plan(kernel: Kernel, warp: int, cluster: int = 1, *, library: bool = False) -> GridPlan:
    """How `kernel` runs on a chip with so many threads in a warp and at most so many blocks in a cluster. `library`:
    where it runs, one may be installed that multiplies."""
    if warp < _LEAST_WARP:
        raise SmeltError("SM030", f"GPU schedules are for {_LEAST_WARP} or more threads that run in step, not {warp}")
    phases, reasons = _chosen(in_one_loop(without_unit_axes(kernel)), Chip(warp, cluster, library))
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
    return GridPlan(kernel, tuple(phases), tuple(places), end, tuple(reasons))


Grids = list[PhasePlan] | str  # the grids of a kernel, or why a schedule does not have it


def _chosen(kernel: Kernel, chip: Chip) -> tuple[list[PhasePlan], list[tuple[str, str]]]:
    """The grids of the first schedule that has the kernel, and why those before it do not."""
    case, reasons = _Case(kernel, chip.warp), list[tuple[str, str]]()
    for row in SCHEDULES:
        phases = row.run(case, chip)
        if not isinstance(phases, str):
            return phases, reasons
        reasons.append((row.name, phases))
    raise AssertionError(f"no schedule has the kernel {kernel.name}")


def _phases(kernels: Iterable[Kernel], chip: Chip) -> list[PhasePlan]:
    """The grids of kernels that run one after the other."""
    return [phase for each in kernels for phase in _chosen(each, chip)[0]]


# Schedules, as the table at the end has them.


def _product_tiles(case: _Case, chip: Chip) -> Grids:
    """One grid of tiles, or where few points have many terms, one of parts of them and one that adds those up. Where a
    library may multiply, these are the product alone."""
    kernel, contract = case.kernel, contraction_of(case.kernel)
    if contract is None:
        return "it has no contraction"
    reason = why_no_tile(kernel)
    if reason is not None:
        raise SmeltError("SM030", f"no GPU schedule has the kernel {kernel.name}: {reason}")
    if any(known_equal(axis.size, 0) for axis in kernel.rows + kernel.cols):
        return []
    if chip.library and (split := library_parts(kernel, contract)) is not None:
        multiplying, *more = _phases([split.kernel], replace(chip, library=False))
        first = replace(multiplying, product=split.product, instead_of=1 + len(more))
        return [first, *more, *_phases([] if split.rest is None else [split.rest], chip)]
    parts = in_parts(kernel, contract)
    if parts is not None:
        return _phases(parts, chip)
    tile = product_tile(kernel, contract)
    threads = tile.shape.threads
    phase = PhasePlan(kernel, (), Along.POINTS, threads, threads, 1, False, chip.warp, tile)
    return [replace(phase, resident=_TILES_RESIDENT)]


def _scatters_apart(case: _Case, chip: Chip) -> Grids:
    if not has(case.kernel, Scatter):
        return "it has no scatters"
    rest, scatters = split_scatters(case.kernel)
    phases = [] if rest is None else _phases([rest], chip)
    return phases + [phase for each in scatters for phase in _scatter_phases(each, chip)]


def _transposed(case: _Case, chip: Chip) -> Grids:
    if not has(case.kernel, Accumulate):
        return "it has no reductions over rows"
    other = transposed(case.kernel)
    return _phases([other], chip) if other is not None else "reductions keep different axes, or rows are whole"


def _nothing(case: _Case, chip: Chip) -> Grids:
    return [] if _is_empty(case.kernel) else "it has rows"


def _is_empty(kernel: Kernel) -> bool:
    return any(known_equal(axis.size, 0) for axis in kernel.rows)


def _staged(case: _Case, chip: Chip) -> Grids:
    if not has(case.kernel, Accumulate):
        return "it has no reductions over rows"
    return _phases(staged_in_memory(case.kernel), chip)


def _pointwise(case: _Case, chip: Chip) -> Grids:
    return [_points(case.kernel, chip.warp)] if is_pointwise(case.kernel) else "it is not pointwise"


def _scans_apart(case: _Case, chip: Chip) -> Grids:
    kernels = scan_kernels(case.kernel)
    return "no scan shares its kernel with another axis" if kernels[0] is case.kernel else _phases(kernels, chip)


def _scans(case: _Case, chip: Chip) -> Grids:
    """A scan whose rows are too few to keep the chip busy goes in parts."""
    if not has(case.kernel, Scan):
        return "it has no scans"
    blocks, least = hint(case.rows.blocks), _LEAST_PART if case.rows.along is Along.COLS else _LEAST_SCAN
    part_count = min(-(-_ENOUGH_BLOCKS // max(blocks, 1)), hint(case.kernel.col_count) // least)
    parts = split_scan(case.merged, part_count) if part_count > 1 else None
    return [case.rows] if parts is None else [_rows(part, chip.warp) for part in parts]


def _split_rows(case: _Case, chip: Chip) -> Grids:
    kernel, whole = case.merged, case.rows
    blocks = max(1, hint(whole.blocks))
    loops = sum(stage.loop for stage in kernel.stages)
    work = hint(kernel.col_count) * whole.rows_at_once
    least = _WORTH_SPLITTING if whole.along is Along.COLS else 2 * _WORTH_SPLITTING
    part_count = min(-(-_ENOUGH_BLOCKS // blocks), work // _LEAST_WORK)
    if blocks > _MULTIPROCESSORS or loops * work < least * (loops + 1) or part_count < 2:
        return "rows are many, or short"
    parts = split_rows(recomputed(kernel), part_count)
    if parts is None:
        return "later loops read what is stored once a row"
    return [_narrower(_rows(part, chip.warp)) for part in parts]


def _whole_rows(case: _Case, chip: Chip) -> Grids:
    return [_narrower(case.rows)]


def _clusters(case: _Case, chip: Chip) -> Grids:
    """Blocks that share a row: so few rows are in flight that re-reads hit the cache."""
    kernel, whole = case.merged, case.rows
    if chip.cluster == 1 or whole.along is not Along.COLS or has_logs(kernel):
        return "the chip has no clusters, or not for such rows"
    if whole.unrolled:
        return "rows are short"
    if any(buffer.role is Role.SCRATCH for buffer in outputs_as_scratch(kernel).buffers):
        in_registers = _clustered_registers(kernel, whole, chip)  # staged values would be recomputed
        if in_registers is not None:
            return [in_registers]
    threads = min(_CLUSTER_THREADS, chip.warp**2)
    row = hint(kernel.col_count) * _bytes_again(whole)
    under_way = _MULTIPROCESSORS * max(1, _CLUSTER_RESIDENT // threads) * row
    cluster = 1
    while cluster < min(chip.cluster, chip.warp) and under_way > cluster * _CACHE_BYTES:
        cluster *= 2
    clustered = replace(whole, threads=threads, team=cluster * threads, cluster=cluster)
    if cluster == 1 or not row:
        return "rows are read once, or stay in the cache"
    return [clustered] if hint(clustered.blocks) >= _MULTIPROCESSORS // 2 else "rows are few"


def _bytes_again(phase: PhasePlan) -> int:
    """Of a point, that are read by more than one pass over a row."""
    kernel, skipped = phase.kernel, phase.work.second if isinstance(phase.work, Online) else None
    loops = [stage for stage in kernel.stages if stage.loop and stage is not skipped]
    reads = [{(i.buffer, i.index) for i in stage.body if isinstance(i, Load) and i.index.terms} for stage in loops]
    again = {each for place, one in enumerate(reads) for other in reads[:place] for each in one & other}
    names = {axis.name for axis in kernel.cols}
    return sum(kernel.buffer(name).dtype.itemsize for name, index in again if index.axes & names)


def _clustered_registers(kernel: Kernel, whole: PhasePlan, chip: Chip) -> PhasePlan | None:
    """Each with a part of the row in its registers."""
    if is_symsize(kernel.col_count):
        return None
    order = {axis.name: axis for axis in kernel.cols}
    cols = tuple(order[axis.name] for axis in whole.kernel.cols)
    kernel = outputs_as_scratch(with_axes(kernel, kernel.rows, cols))
    threads, live = min(_MOST_THREADS, chip.warp**2), _live(kernel)
    cluster, most = 1, min(chip.cluster, chip.warp)

    def kept() -> int:
        return -(-kernel.col_count // (cluster * threads * whole.width)) * whole.width * live

    while cluster < most and kept() > _CLUSTER_VALUES:
        cluster *= 2
    phase = PhasePlan(kernel, (), Along.COLS, threads, cluster * threads, whole.width, True, chip.warp, cluster=cluster)
    if cluster == 1 or kept() > _CLUSTER_VALUES:
        return None
    return phase if hint(phase.blocks) >= _MULTIPROCESSORS // 2 else None


# Kernels with reductions over rows beside others.


def _one_pass(case: _Case, chip: Chip) -> Grids:
    """Blocks that go through many rows each, then a grid for their partials."""
    one_pass = None if _is_empty(case.kernel) else in_one_pass(case.kernel)
    if one_pass is None:
        return "it has no reductions over rows, or scans or no rows beside them"
    kernel = merged(merged(one_pass.kernel, cols=False), cols=True)
    along = _steps(kernel, kernel.cols)
    if _steps(kernel, kernel.rows)[1] > along[1]:
        return "rows are side by side in memory"
    first = _along_cols(PhaseKernel(kernel), along[0], chip.warp)
    if not first.unrolled:
        first = _along_cols(PhaseKernel(reduce_rows_first(kernel)), along[0], chip.warp)
    first = _several_teams(first)
    first = replace(first, prefetches=_may_prefetch(first, one_pass))
    kept = {name for fold in one_pass.folds for name in fold.index.axes}
    groups = tuple(axis for axis in kernel.rows if axis.name in kept)
    folded = product(axis.size for axis in kernel.rows if axis.name not in kept)
    count = product(axis.size for axis in groups)
    many = -(-hint(folded) // first.rows_at_once)
    loops = sum(stage.loop for stage in kernel.stages)
    long = loops * hint(kernel.col_count) >= _WORTH_SPLITTING * (loops + 1)
    if hint(count) * many < _MULTIPROCESSORS // 2 and long:
        return "rows are few and long"
    wanted = max(1, _resident(first) // max(1, hint(count)))
    waves = max(1, -(-many // (wanted * _MOST_ROWS_EACH)))  # of blocks, all of them full
    each = max(1, -(-many // (wanted * waves)))
    parts = -(-folded // (first.rows_at_once * each))
    folds = RowReductions(groups, parts, each)
    same = preloadable(first.kernel, len(groups))
    more = sum(_loops_with(first.kernel, load) == 1 for load in same)  # others are kept anyhow
    more += len(row_reads(first.kernel, len(groups))) if first.prefetches else 0
    preloads = first.unrolled and first.points * (_live(first.kernel) + more) <= _registers(first.threads)
    first = replace(first, kernel=with_room(first.kernel, parts), work=folds, preloads=preloads)
    if first.prefetches or not first.unrolled:
        first = replace(first, resident=_resident(first) // _MULTIPROCESSORS)
    return [first, *_phases(finishing(one_pass, parts), chip)]


def _kept(phase: PhasePlan, one_pass: OnePass) -> int:
    """Values that a thread has of a row, of the reductions over rows, and of the next row."""
    return phase.points * (_live(phase.kernel) + len(row_reads(phase.kernel, len(one_pass.groups))))


def _may_prefetch(phase: PhasePlan, one_pass: OnePass) -> bool:
    """Whether a thread's part of the next row fits into registers beside this one, and beside another block unless no
    more threads can share a row."""
    if not phase.unrolled or _kept(phase, one_pass) > _registers(phase.threads):
        return False
    return phase.tiles == 1 or _resident(replace(phase, prefetches=True)) > _MULTIPROCESSORS


def _loops_with(kernel: Kernel, load: Load) -> int:
    """How many loops have this read."""
    at = (load.buffer, load.index)
    return sum(any(isinstance(i, Load) and (i.buffer, i.index) == at for i in stage.body) for stage in kernel.stages)


def _several_teams(phase: PhasePlan) -> PhasePlan:
    """With enough teams for a block of some size: fewer blocks leave fewer partials."""
    if not phase.unrolled:
        team = max(phase.team, phase.warp)  # a block's accumulators are in memory: one row at a time adds to them
        return replace(phase, team=team, threads=team)
    threads = max(phase.threads, phase.team * (min(_TEAMS_THREADS, phase.warp**2) // phase.team))
    return replace(phase, threads=threads) if phase.points * threads * 8 <= _SHARED_BYTES else phase


def _resident(phase: PhasePlan) -> int:
    """How many blocks run at the same time, if they use as many registers as is likely."""
    used = _LEAST_REGISTERS + (phase.points * _live(phase.kernel) if phase.unrolled else 32)
    if phase.prefetches:
        used += 8 + phase.points * len(row_reads(phase.kernel))
    return max(1, _REGISTER_FILE // max(32, used) // phase.threads) * _MULTIPROCESSORS


def _scatter_phases(kernel: Kernel, chip: Chip) -> list[PhasePlan]:
    if any(known_equal(axis.size, 0) for axis in kernel.cols):
        return []
    places = places_of(kernel)
    if any_order_is_right(places):
        return [_points(kernel, chip.warp)]
    if places.scatter.op is None:
        return [_points(each, chip.warp) for each in last_ones(places)]
    events = sorted_events(places)
    phases: list[PhasePlan] = []
    for part in events.kernels:
        if part.bounds:
            phases.append(_rows(part, chip.warp))
        elif part.kernel.rows or has(part.kernel, Scan):
            phases += _phases([part.kernel], chip)
        else:
            phases.append(_points(part.kernel, chip.warp))
    for folded, level in run_levels(places, events):
        phase = PhasePlan(folded, (), Along.POINTS, _POINT_THREADS, _POINT_THREADS, 1, False, chip.warp, level)
        phases.append(phase)
    return phases


# Pointwise kernels.


def _points(kernel: Kernel, warp: int) -> PhasePlan:
    """All points in one line, in the order that memory is written."""
    store = next((i for i in kernel.instructions() if isinstance(i, Store)), None)
    axes = list(kernel.rows + kernel.cols)
    if store is not None:
        axes.sort(key=lambda axis: -abs(hint(store.index.stride(axis.name))))
    kernel = merged(replace(kernel, rows=(), cols=tuple(axes)), cols=True)
    kernel = with_axes(kernel, (), kernel.cols)
    last = kernel.cols[-1] if kernel.cols else None
    # Along a single axis, single points make up what is left of it.
    width = vector_width(kernel, last, () if len(kernel.cols) == 1 else (last.size,) if last else ())
    across = transpose_tile(kernel, width) if kernel.cols else None
    if across is not None:
        kernel, tile, threads = across
        return PhasePlan(kernel, (), Along.POINTS, threads, threads, width, True, warp, tile)
    count = hint(kernel.col_count)
    while width > 1 and count // (width * _POINT_THREADS) < _ENOUGH_BLOCKS:
        width //= 2
    phase = PhasePlan(kernel, (), Along.POINTS, _POINT_THREADS, _POINT_THREADS, width, True, warp)
    return replace(phase, vectors=_vectors(phase))


def _vectors(phase: PhasePlan) -> int:
    """How many times a thread takes so many points, all read before the first are computed."""
    kernel, vectors = phase.kernel, 1
    read = {(i.buffer, i.index) for i in kernel.instructions() if isinstance(i, Load) and i.index.terms}
    size = sum(kernel.buffer(name).dtype.itemsize for name, _ in read) * phase.width
    while read and vectors < _MOST_VECTORS and size * 2 * vectors <= _BYTES_IN_FLIGHT:
        if hint(phase.blocks) // (2 * vectors) < 4 * _ENOUGH_BLOCKS:
            break
        vectors *= 2
    return vectors


# Kernels with reductions, or values of whole rows.


def _rows(part: PhaseKernel, warp: int) -> PhasePlan:
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


def _along_cols(part: PhaseKernel, last: Axis | None, warp: int) -> PhasePlan:
    kernel = part.kernel
    kernel = with_axes(kernel, kernel.rows, _last(kernel.cols, last))
    cols = hint(kernel.col_count)
    width = _width(kernel, kernel.cols[-1:], part.bounds)
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
        team, width = _fold_team(kernel, team, width, most)
    elif not folds and not is_symsize(kernel.col_count):
        live = _live(outputs_as_scratch(kernel))
        # Blocks of fewer threads take turns better: while one waits for its row, others compute.
        while team > _ROW_THREADS and -(-cols // (team // 2 * width)) * width * max(1, live) <= _ROW_VALUES:
            team //= 2
    threads = team if team > warp else 4 * warp
    phase = PhasePlan(kernel, part.bounds, Along.COLS, threads, team, width, False, warp)
    return (None if folds else _streamed(phase)) or _unrolled(phase)


def _fold_team(kernel: Kernel, team: int, width: int, most: int) -> tuple[int, int]:
    """Threads that share a row, and points side by side of each: more threads, where each would have more values of a
    row, of the next and of the reductions over rows than leave registers for many threads."""
    cols, reads = kernel.col_count, len(row_reads(kernel))
    each = _live(kernel) + reads
    while -(-cols // (team * width)) * width * each > _FOLD_VALUES and 2 * team <= most:
        if cols <= team * width:
            if width <= _LEAST_WIDTH:
                break
            width //= 2
        team *= 2
    return team, width


def _streamed(phase: PhasePlan) -> PhasePlan | None:
    """In loops, where these read each point of a row once, and rows are not short; None where they do not. Nothing is
    gained by registers that keep a row then, and many threads fit side by side."""
    if is_symsize(phase.tiles) or phase.tiles <= _STREAM_TILES or has(phase.kernel, Scan):
        return None
    kernel = recomputed(phase.kernel)
    streamed = replace(phase, kernel=kernel, work=online_loops(kernel))
    if _bytes_again(streamed) or any(buffer.role is Role.SCRATCH for buffer in kernel.buffers):
        return None
    team = phase.team if streamed.work is None else min(phase.team, _STREAM_THREADS)
    return replace(streamed, team=team, threads=team if team > phase.warp else phase.threads)


def _along_rows(part: PhaseKernel, last: Axis | None, warp: int) -> PhasePlan:
    """Adjacent lanes have adjacent rows. Where rows are few, a warp has several cols of them."""
    kernel = with_axes(part.kernel, _last(part.kernel.rows, last), part.kernel.cols)
    width = _width(kernel, kernel.rows[-1:], part.bounds)
    rows = hint(kernel.row_count)
    if has(kernel, Scan):
        while width > 1 and rows < width * warp:
            width //= 2
        return _unrolled(PhasePlan(kernel, part.bounds, Along.ROWS, warp, 1, width, False, warp))
    lanes = warp
    while lanes > 1 and lanes // 2 * width >= rows:
        lanes //= 2
    warps = 1
    while warps < _MOST_WARPS and warps * (warp // lanes) * 4 < hint(kernel.col_count):
        warps *= 2
    phase = PhasePlan(kernel, part.bounds, Along.ROWS, warps * warp, warps * warp // lanes, width, False, warp)
    return _unrolled(phase)


def _narrower(phase: PhasePlan) -> PhasePlan:
    """Along rows: with fewer of them a thread, where there would be few blocks."""
    if phase.along is not Along.ROWS:
        return phase
    kernel = phase.kernel
    sizes = [kernel.buffer(i.buffer).dtype.itemsize for i in kernel.instructions() if isinstance(i, Load)]
    while phase.width > 1 and hint(phase.blocks) < _ENOUGH_BLOCKS:
        if phase.width // 2 * phase.warp * min(sizes, default=1) < _LEAST_BYTES:
            break
        phase = replace(phase, width=phase.width // 2)
    return phase


def _unrolled(phase: PhasePlan) -> PhasePlan:
    """With its loops unrolled, if a thread's part of a row fits into registers; else the scratch of a row is
    recomputed, or in memory."""
    few = not is_symsize(phase.tiles) and phase.tiles <= (1 if has_logs(phase.kernel) else _MOST_TILES)
    kernel = outputs_as_scratch(phase.kernel)
    if few and (phase.tiles <= 1 or phase.points * _live(kernel) <= _registers(phase.threads)):
        return replace(phase, kernel=kernel, unrolled=True)
    kernel = scratch_in_memory(recomputed(phase.kernel))
    return replace(phase, kernel=kernel, work=online_loops(kernel) if phase.along is Along.COLS else None)


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
    Row(name, "kernel or grids", "kernel or grids", run, why)
    for name, run, why in (
        ("product tiles", _product_tiles, "first: no other schedule has contractions"),
        ("scatters apart", _scatters_apart, "before the rest, which is scheduled without them"),
        ("transposed", _transposed, "reductions over rows: over cols of the transposed kernel, if rows may be split"),
        ("one pass", _one_pass, "else by blocks that go through many rows each: each operand is computed once"),
        ("staged", _staged, "else of operands in memory, which any kernel can leave there"),
        ("nothing", _nothing, "reductions over no rows have results, all others have none"),
        ("points", _pointwise, "before what shares rows between threads"),
        ("scans apart", _scans_apart, "so that a kernel has one scanned axis, its cols"),
        ("scans", _scans, "before clusters and parts of rows, which reduce in any order"),
        ("clusters", _clusters, "before parts of rows: one grid, and rows are read once"),
        ("split rows", _split_rows, "few long rows keep few blocks busy"),
        ("rows", _whole_rows, "all others"),
    )
)
"""Of each kernel the first that has it. Those that take it apart schedule what they make of it."""


def uses_wide_positions(grid: GridPlan) -> bool:
    """Whether positions need 64 bits."""
    for phase in grid.phases:
        kernel = phase.kernel
        sizes = [buffer.size for buffer in kernel.buffers] + [kernel.row_count, kernel.col_count]
        axes = kernel.rows + kernel.cols + (phase.work.inner if isinstance(phase.work, ProductTile) else ())
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
