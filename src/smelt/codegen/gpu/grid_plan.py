"""`GridPlan`: how a kernel runs on a GPU: grids one after the other, each with its blocks and what a thread does.

    rows(i:4096) cols(j:1024) f32, a softmax   →   4096 blocks of 256 threads, a block a row, 4 cols at once a thread

Neighbouring threads go along the cols of a row, or along rows where memory has those side by side. A team of threads
shares a row: part of a warp, a warp, or a block. Where all cols of a row fit into the registers of its team, loops are
unrolled: what one of them loads or keeps aside, the next finds in registers.
"""

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.axes import indices, is_pointwise, merged, without_unit_axes
from smelt.codegen.gpu.phase_kernels import Bound, PhaseKernel, folded_over_rows, scratch_in_memory, split_rows
from smelt.codegen.gpu.scan_kernels import has_scans, scan_kernels, split_scan
from smelt.ir.kernel import Access, Axis, Buffer, Gather, Index, Kernel, Load, Position, Role, Store
from smelt.symbolic.shapes import Size, product
from smelt.symbolic.symsize import hint, is_symsize

_BYTES_AT_ONCE = 16
_MOST_AT_ONCE = 8
_POINT_THREADS = 256
_MOST_THREADS = 1024
_MOST_TILES = 8  # of a row, a thread: more are not unrolled
_REGISTERS = 96  # of those a thread may spend on what it keeps of a row
_ENOUGH_BLOCKS = 264  # two for each multiprocessor of a large chip
_LEAST_WORK = 2048  # points of a row that are worth a block of their own
_LEAST_SCAN = 128  # points that one thread scans, one after the other, before others help it


class Along(Enum):
    """What neighbouring threads go along."""

    POINTS = "points"  # all of them, in one line
    COLS = "cols"
    ROWS = "rows"


@dataclass(frozen=True, slots=True)
class PhasePlan:
    """One grid. `width` points side by side are a thread's at once: of the last col axis, or along rows of the last
    row axis."""

    kernel: Kernel
    bounds: tuple[Bound, ...]
    along: Along
    threads: int  # of a block
    team: int  # threads that share a row; along rows: warps that share them
    width: int
    unrolled: bool
    warp: int  # threads that run in step

    @property
    def vector_axis(self) -> Axis | None:
        axes = self.kernel.rows if self.along is Along.ROWS else self.kernel.cols
        return axes[-1] if axes else None

    @property
    def stride(self) -> int:
        """How many cols all threads of a team go through at once."""
        return self.team if self.along is Along.ROWS else self.team * self.width

    @property
    def tiles(self) -> Size:
        """How many times a thread comes back to its row's cols."""
        if self.along is Along.POINTS:
            return 1
        return -(-self.kernel.col_count // self.stride)

    @property
    def rows_at_once(self) -> int:
        """Rows of a block."""
        return self.warp * self.width if self.along is Along.ROWS else max(1, self.threads // self.team)

    @property
    def blocks(self) -> Size:
        if self.along is Along.POINTS:
            return -(-self.kernel.col_count // (self.threads * self.width))
        return -(-self.kernel.row_count // self.rows_at_once)


@dataclass(frozen=True, slots=True)
class GridPlan:
    """A kernel as grids that run one after the other, and where in the workspace they leave things for each other."""

    kernel: Kernel
    phases: tuple[PhasePlan, ...]
    places: tuple[tuple[str, Size], ...]  # buffers of the workspace, each with its first byte
    workspace: Size


def plan(kernel: Kernel, warp: int) -> GridPlan:
    """How `kernel` runs."""
    simple = without_unit_axes(kernel)
    if any(not is_symsize(axis.size) and axis.size == 0 for axis in simple.rows):
        return GridPlan(kernel, (), (), 0)
    phases: list[PhasePlan] = []
    for part in [simple] if is_pointwise(simple) else folded_over_rows(simple):
        for each in scan_kernels(part):
            phases += _phases(each, warp)
    given = {buffer.name for buffer in kernel.parameters}
    own: dict[str, Buffer] = {}
    for phase in phases:
        own.update({each.name: each for each in phase.kernel.buffers if each.name not in given})
    places: list[tuple[str, Size]] = []
    end: Size = 0
    for buffer in own.values():
        if buffer.role is not Role.SCRATCH:
            places.append((buffer.name, end))
            end = end + _rounded(buffer.size * buffer.dtype.itemsize)
    return GridPlan(kernel, tuple(phases), tuple(places), end)


def _rounded(size: Size) -> Size:
    return -(-size // 256) * 256


def _phases(kernel: Kernel, warp: int) -> list[PhasePlan]:
    if is_pointwise(kernel):
        return [_points(kernel, warp)]
    kernel = merged(merged(kernel, cols=False), cols=True)
    rows, cols = hint(kernel.row_count), hint(kernel.col_count)
    whole = _rows(PhaseKernel(kernel), warp)
    blocks = hint(whole.blocks)
    if has_scans(kernel):
        return _scan_phases(kernel, whole, warp)
    if blocks < _ENOUGH_BLOCKS and cols >= 2 * _LEAST_WORK and rows * cols >= _ENOUGH_BLOCKS * _LEAST_WORK // 4:
        wanted = min(-(-_ENOUGH_BLOCKS // max(blocks, 1)), cols // _LEAST_WORK)
        parts = split_rows(kernel, wanted) if wanted > 1 else None
        if parts is not None:
            return [_rows(part, warp) for part in parts]
    return [whole]


def _scan_phases(kernel: Kernel, whole: PhasePlan, warp: int) -> list[PhasePlan]:
    """A scan whose rows are too few to keep the chip busy goes in parts."""
    blocks, least = hint(whole.blocks), _LEAST_WORK if whole.along is Along.COLS else _LEAST_SCAN
    wanted = min(-(-_ENOUGH_BLOCKS // max(blocks, 1)), hint(kernel.col_count) // least)
    parts = split_scan(kernel, wanted) if wanted > 1 else None
    return [whole] if parts is None else [_rows(part, warp) for part in parts]


# Pointwise kernels.


def _points(kernel: Kernel, warp: int) -> PhasePlan:
    """All points in one line, in the order that memory is written."""
    store = next((i for i in kernel.instructions() if isinstance(i, Store)), None)
    axes = list(kernel.rows + kernel.cols)
    if store is not None:
        axes.sort(key=lambda axis: -abs(hint(store.index.stride(axis.name))))
    kernel = merged(replace(kernel, rows=(), cols=tuple(axes)), cols=True)
    kernel = _terms_in_order(kernel)
    width = _width(kernel, kernel.cols[-1:], ())
    count = hint(kernel.col_count)
    while width > 1 and count // (width * _POINT_THREADS) < _ENOUGH_BLOCKS:
        width //= 2
    return PhasePlan(kernel, (), Along.POINTS, _POINT_THREADS, _POINT_THREADS, width, True, warp)


def _terms_in_order(kernel: Kernel) -> Kernel:
    order = kernel.rows + kernel.cols

    def fixed(instruction: object) -> object:
        if not isinstance(instruction, Access | Position):
            return instruction
        index = instruction.index
        terms = tuple((axis.name, index.stride(axis.name)) for axis in order if axis.name in index.axes)
        return replace(instruction, index=Index(terms, index.offset))

    stages = tuple(replace(stage, body=tuple(fixed(i) for i in stage.body)) for stage in kernel.stages)  # type: ignore[misc]
    return replace(kernel, stages=stages)


# Kernels with folds, or values of whole rows.


def _rows(part: PhaseKernel, warp: int) -> PhasePlan:
    kernel = part.kernel
    down, along = _steps(kernel, kernel.rows), _steps(kernel, kernel.cols)
    if kernel.rows and down[1] > along[1]:
        return _along_rows(part, down[0], warp)
    return _along_cols(part, along[0], warp)


def _steps(kernel: Kernel, axes: Sequence[Axis]) -> tuple[Axis | None, int]:
    """The axis that most accesses go along by single steps, and how many do."""
    best: tuple[Axis | None, int] = (axes[-1] if axes else None, 0)
    for axis in reversed(axes):
        count = sum(
            index.stride(axis.name) in (1, -1) for index in indices(kernel) if not is_symsize(index.stride(axis.name))
        )
        if count > best[1]:
            best = axis, count
    return best


def _last(axes: Sequence[Axis], last: Axis | None) -> tuple[Axis, ...]:
    return tuple(axes) if last is None else (*(axis for axis in axes if axis is not last), last)


def _along_cols(part: PhaseKernel, last: Axis | None, warp: int) -> PhasePlan:
    kernel = part.kernel
    kernel = _terms_in_order(replace(kernel, cols=_last(kernel.cols, last)))
    cols = hint(kernel.col_count)
    width = _width(kernel, kernel.cols[-1:], part.bounds)
    while width > 1 and cols < width * warp:
        width //= 2
    team = 1
    most = min(_MOST_THREADS, warp * warp)  # what the warps of a team found, one warp folds
    while team < most and team * width < cols:
        team *= 2
    while team > 2 * warp and cols <= team // 2 * width * 2:
        team //= 2  # two tiles a thread rather than twice the threads
    threads = team if team > warp else 4 * warp
    made = PhasePlan(kernel, part.bounds, Along.COLS, threads, team, width, False, warp)
    return _unrolled(made)


def _along_rows(part: PhaseKernel, last: Axis | None, warp: int) -> PhasePlan:
    kernel = _terms_in_order(replace(part.kernel, rows=_last(part.kernel.rows, last)))
    width = _width(kernel, kernel.rows[-1:], part.bounds)
    rows = hint(kernel.row_count)
    while width > 1 and rows < width * warp:
        width //= 2
    team = 1
    while not has_scans(kernel) and team < 16 and team * 4 < hint(kernel.col_count):
        team *= 2
    made = PhasePlan(kernel, part.bounds, Along.ROWS, team * warp, team, width, False, warp)
    return _unrolled(made)


def _unrolled(made: PhasePlan) -> PhasePlan:
    """With its loops unrolled, if what a thread has of a row fits into registers; else the scratch of a row is in
    memory."""
    kernel = made.kernel
    loops = [stage for stage in kernel.stages if stage.loop]
    kept = sum(buffer.role is Role.SCRATCH for buffer in kernel.buffers)
    read = {(i.buffer, i.index) for stage in loops for i in stage.body if isinstance(i, Load)}
    tiles = made.tiles
    if not is_symsize(tiles) and tiles <= _MOST_TILES:
        several = len(loops) > 1 or kept
        if not several or tiles * made.width * (kept + len(read)) <= _REGISTERS or tiles <= 1:
            return replace(made, unrolled=True)
    return replace(made, kernel=scratch_in_memory(kernel))


def _width(kernel: Kernel, last: Sequence[Axis], bounds: Sequence[Bound]) -> int:
    """How many points side by side a thread takes at once, so that what it reads there comes in one access."""
    if not last or is_symsize(last[0].size):
        return 1
    axis = last[0]
    sizes = [
        kernel.buffer(i.buffer).dtype.itemsize
        for i in kernel.instructions()
        if isinstance(i, Access) and not isinstance(i, Gather) and _is_one(i.index.stride(axis.name))
    ]
    if not sizes:
        return 1
    width = min(_MOST_AT_ONCE, _BYTES_AT_ONCE // max(2, min(sizes)))
    extents = [axis.size, *(each.chunk for each in bounds if each.inner == axis.name)]
    extents += [each.size for each in bounds if each.inner == axis.name]
    if any(is_symsize(extent) for extent in extents):
        return 1
    while any(extent % width for extent in extents):
        width //= 2
    return width


def _is_one(stride: Size) -> bool:
    return not is_symsize(stride) and abs(stride) == 1


def uses_wide_positions(made: GridPlan) -> bool:
    """Whether positions need 64 bits."""
    for phase in made.phases:
        sizes = [buffer.size for buffer in phase.kernel.buffers]
        sizes += [product(axis.size for axis in phase.kernel.rows), phase.kernel.col_count]
        sizes += [index.offset for index in indices(phase.kernel)]
        sizes += [stride for index in indices(phase.kernel) for _, stride in index.terms]
        if any(is_symsize(size) or abs(size) >= 1 << 30 for size in sizes):
            return True
    return False
