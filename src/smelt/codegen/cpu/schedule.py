"""`LoopSchedule`: how a kernel's loops run on a target, and queries of kernels that passes and loops share.

    rows(b:8, h:4) cols(i:16, j:64)   all accesses contiguous, no reductions
    → rows() cols(j:32768), 16 lanes, split over cols

Axes of extent one are dropped, and adjacent axes that every access walks together are merged. A reduction over rows and
cols becomes a reduction per row first. Rows that every reduction keeps apart become independent units, which share
nothing between threads.
"""

from collections.abc import Iterable, Sequence
from enum import Enum

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.axes import Pure, strides_keep_apart
from smelt.codegen.cpu.online_softmax import Online
from smelt.codegen.cpu.transpose_tiles import Tile
from smelt.codegen.loops.builder import SIGNED_LESS
from smelt.codegen.loops.math import FLOAT32
from smelt.codegen.loops.reductions import fold_dtype
from smelt.device import Target
from smelt.ir.check_kernel import operands, value_dtypes
from smelt.ir.kernel import (
    Accumulate,
    Axis,
    Compute,
    Gather,
    Index,
    Instruction,
    Kernel,
    Load,
    Position,
    Reduce,
    Role,
    Scan,
    Scatter,
    Stage,
    Store,
    WeightedSum,
)
from smelt.symbolic.shapes import Size, product
from smelt.symbolic.symsize import greater, hint, is_symsize, known_at_least, known_equal

# Work is counted in instructions per point; below a grain a second thread costs more than it saves.
GRAIN = 1 << 16
_BLOCK_WORTH = 32
BUCKETS = 1024  # places that are scattered to fall into so many, which threads share
_EARLY_MOST = 1  # two arrays are read faster as they come: the slope of gelu at 0.73 of a copy for 0.66
_COSTS = {"div": 4, "sqrt": 4, "rsqrt": 8, "reciprocal": 4}
_MATH = frozenset(FLOAT32) - {"sqrt", "rsqrt", "reciprocal"} | {"fmod", "remainder", "floordiv"}
_MATH_COST = 16
LIGHT = ("exp", "ndtr", "sigmoid")  # functions that keep two or three values of a point at a time
_LIGHT_MOST = 12  # instructions of a point, one of them such a function
_LONG_CODE = 8  # instructions of a point from which on LLVM takes tens of milliseconds for four vectors of them
_LONG_WORTH = 1 << 18  # points: some ten microseconds at each call, what four vectors gain of arithmetic
_LONG_MATH_WORTH = 1 << 14  # points of functions, which take up to 1.6 times as long with fewer vectors in flight
_FEW_VECTORS = 128  # of functions: 0.3 µs more at a call one by one, for which LLVM takes a half to two thirds as long


# How memory is read.
PREFETCH = "prefetch"  # by loops that read one array (`prefetched`)
PIPELINE_LOADS = "pipeline loads"  # one vector early, by loops with much to compute (`pipelined_loads`)
CONTIGUOUS_RUNS = "contiguous runs"  # at positions side by side, as whole vectors


class Split(Enum):
    """The axis that is divided between threads."""

    INDEPENDENT_ROWS = "independent rows"  # points of the leading row axes, each with its accumulators
    ROWS = "rows"  # points of all row axes; accumulators are combined at the end
    COLS = "cols"  # blocks of lanes of the one col axis
    TILES = "tiles"  # squares of a row axis and the col axis
    SCATTER_BUCKETS = "scatter buckets"  # where rows scatter to: a row is run by the part that its place belongs to


@dataclass(frozen=True, slots=True)
class Accumulator:
    """The private array behind one `Accumulate`: a dense `index` over the axes it keeps, in accumulator precision."""

    instruction: Accumulate
    axes: tuple[Axis, ...]
    index: Index
    dtype: torch.dtype
    value_dtype: torch.dtype

    @property
    def blocked(self) -> bool:
        """Whether rows are first summed in f32, a few at a time: half the memory traffic of summing each in f64."""
        in_f64 = self.dtype is not self.value_dtype and self.instruction.op == "sum"
        return in_f64 and hint(self.size) >= _BLOCK_WORTH

    @property
    def arrays(self) -> tuple[tuple[str, torch.dtype], ...]:
        """The private arrays it is kept in, the one each row adds to last."""
        name = self.instruction.buffer
        whole = ((f"{name}.fold", self.dtype),)
        return (*whole, (f"{name}.block", self.value_dtype)) if self.blocked else whole

    @property
    def size(self) -> Size:
        return product(axis.size for axis in self.axes)


@dataclass(frozen=True, slots=True)
class LoopSchedule:
    """A kernel in the shape its code will have, as far as the rows of `schedule_passes` have come. `units` counts the
    leading row axes that `Split.INDEPENDENT_ROWS` shares out."""

    kernel: Kernel
    split: Split = Split.INDEPENDENT_ROWS
    units: int = 0
    lanes: int = 1
    threads: Size = 1
    accumulators: tuple[Accumulator, ...] = ()
    tile: Tile | None = None
    fallback: "LoopSchedule | None" = None  # what is run where extents are shorter than this one needs
    fetched: tuple[Load, ...] = ()  # what a loop of each row (see `asking`) prefetches, for a row after it
    fetched_rows: int = 1  # which row that is
    online: Online | None = None  # loops that run as one
    uses: frozenset[str] = frozenset()  # of `PREFETCH`, `PIPELINE_LOADS`, `CONTIGUOUS_RUNS`
    never_positive: frozenset[str] = frozenset()  # values of which that is known

    @property
    def unit_axes(self) -> tuple[Axis, ...]:
        return self.kernel.rows[: self.units]

    @property
    def inner_axes(self) -> tuple[Axis, ...]:
        return self.kernel.rows[self.units :]

    @property
    def width(self) -> Size:
        """Extent of the vector axis."""
        return self.kernel.cols[-1].size if self.kernel.cols else 1

    @property
    def needs(self) -> tuple[tuple[Size, int], ...]:
        """Dynamic extents and their minimums; `fallback` runs if one is smaller."""
        wanted = [(self.width, self.lanes)]
        if self.tile is not None:
            wanted += [(self.tile.down.size, self.tile.height), (self.tile.along.size, self.tile.width)]
        return tuple(each for each in wanted if is_symsize(each[0]) and not known_at_least(*each))

    @property
    def extent(self) -> Size:
        """How many points are shared out between threads."""
        match self.split:
            case Split.INDEPENDENT_ROWS:
                return product(axis.size for axis in self.unit_axes)
            case Split.ROWS:
                return self.kernel.row_count
            case Split.COLS:
                overlaps = idempotent(self.kernel.stages[0].body)  # the last vector may repeat what others wrote
                return -(-self.width // self.lanes) if overlaps else self.width // self.lanes
            case Split.TILES:
                return product(axis.size for axis in self.tile_axes)
            case Split.SCATTER_BUCKETS:
                return BUCKETS

    @property
    def tile_axes(self) -> tuple[Axis, ...]:
        """What `Split.TILES` shares out: the rows outside of tiles, and the tiles' numbers."""
        assert self.tile is not None
        return (*self.kernel.rows[:-1], *self.tile.blocks)


def keeps_apart(kernel: Kernel, scatter: Scatter) -> bool:
    """Whether a position determines the index along each axis, and the places."""
    steps = [(abs(scatter.index.stride(axis.name)), axis.size) for axis in kernel.rows + kernel.cols]
    steps += [(abs(stride), extent) for _, stride, extent in scatter.by]
    return strides_keep_apart((step, size) for step, size in steps if step and not known_equal(size, 1))


def placing(kernel: Kernel) -> list[Instruction]:
    """What works out the places that a row scatters to, before anything else of the row; empty if they differ along
    cols, or follow from a reduction."""
    scatters = [i for i in kernel.instructions() if isinstance(i, Scatter)]
    if len(scatters) != 1 or not keeps_apart(kernel, scatters[0]):
        return []
    wanted = {place for place, _, _ in scatters[0].by}
    cols = {axis.name for axis in kernel.cols}
    written = {i.buffer for i in kernel.instructions() if isinstance(i, Store | Accumulate | Scatter)}
    needed: list[Instruction] = []
    for instruction in reversed(kernel.instructions()):
        if isinstance(instruction, Store | Accumulate | Scatter | WeightedSum) or instruction.out not in wanted:
            continue
        if isinstance(instruction, Reduce):
            return []
        if isinstance(instruction, Load | Gather) and instruction.buffer in written:
            return []
        if isinstance(instruction, Load | Gather | Position) and instruction.index.axes & cols:
            return []
        wanted.update(operands(instruction))
        needed.insert(0, instruction)
    return needed


# Sizes of things.


def loop_variant(kernel: Kernel, stage: Stage) -> list[Instruction]:
    """The instructions of a loop stage whose value changes along cols, or that must run at every point."""
    cols = {axis.name for axis in kernel.cols}
    stored = {i.buffer for i in stage.body if isinstance(i, Store)}
    inside: set[str] = set()
    variant: list[Instruction] = []
    for instruction in stage.body:
        moves = not isinstance(instruction, Pure) or not inside.isdisjoint(operands(instruction))
        if isinstance(instruction, Load | Gather | Position):
            moves |= bool(instruction.index.axes & cols)
        if isinstance(instruction, Load):
            moves |= instruction.buffer in stored
        if moves:
            inside.add(getattr(instruction, "out", ""))
            variant.append(instruction)
    return variant


def idempotent(body: Iterable[Instruction]) -> bool:
    """Whether running a point twice does not show: no reductions, and nothing is read that is also written."""
    body = tuple(body)
    loaded = {i.buffer for i in body if isinstance(i, Load | Gather)}
    once = any(isinstance(i, Reduce | Scan | Accumulate | Scatter) for i in body)
    return not once and not any(isinstance(i, Store) and i.buffer in loaded for i in body)


def _only_compared(body: Sequence[Instruction]) -> set[str]:
    """Positions that are compared with something or read at, which takes a number for all lanes, not one for each."""
    positions = {i.out for i in body if isinstance(i, Position)}
    for instruction in body:
        compares = isinstance(instruction, Compute) and instruction.op in SIGNED_LESS
        if not isinstance(instruction, Gather) and not compares:
            positions -= set(operands(instruction))
    return positions


def lanes_of(kernel: Kernel, target: Target, *, unroll: bool = False) -> int:
    """A power of two: several registers of the widest value in flight, no more than the vector axis is long. With
    `unroll`, more of them where a point takes few."""
    dtypes = value_dtypes(kernel)
    widths = [4]
    math = most_folds = 0
    light = False
    for stage in kernel.stages:
        inside = loop_variant(kernel, stage) if stage.loop else []
        narrow = _only_compared(inside)
        outs = [i.out for i in inside if not isinstance(i, Store | Accumulate | Scatter | WeightedSum)]
        widths += [dtypes[out].itemsize for out in outs if out not in narrow]
        widths += [fold_dtype(i.op, dtypes[i.value]).itemsize for i in inside if isinstance(i, Scan)]
        functions = [i.op for i in inside if isinstance(i, Compute) and i.op in _MATH]
        math = max(math, len(functions))
        light |= len(functions) == 1 and functions[0] in LIGHT and len(inside) <= _LIGHT_MOST
        most_folds = max(most_folds, sum(isinstance(i, Reduce) for i in inside))
    # Long chains of arithmetic want several vectors to overlap, as far as there are registers to hold them.
    registers = 4 if not math or target.vector_registers >= 32 else 2
    if unroll and light and math == 1:
        registers = max(registers, target.unroll_light)
    while registers > 1 and registers * most_folds > target.vector_registers:
        registers //= 2
    size = kernel.cols[-1].size if kernel.cols else 1
    one = target.vector_bits // (8 * max(widths))
    fewer = _vectors_of_long_code(kernel, one, has_functions=math > 0)
    if fewer is not None:
        return _lanes_of_long_code(kernel, one, min(registers, fewer))
    most = registers * one
    if is_symsize(size):
        return most  # where it turns out shorter, `LoopSchedule.fallback` is run
    while most > max(1, size):
        most //= 2
    return max(1, most)


def _vectors_of_long_code(kernel: Kernel, one: int, *, has_functions: bool) -> int | None:
    """How many vectors side by side are worth the time LLVM takes for them, where points take many instructions, as a
    function alone does, and are not many; else None. The result of a reduction depends on its lanes, which do not
    change. `one`: the lanes of a vector."""
    points = kernel.row_count * kernel.col_count
    if is_symsize(points) or any(isinstance(i, Reduce | Scan) for i in kernel.instructions()):
        return None
    if has_functions and points < _FEW_VECTORS * one:
        return 1
    if points >= (_LONG_MATH_WORTH if has_functions else _LONG_WORTH):
        return None
    if all(len(loop_variant(kernel, stage)) < _LONG_CODE for stage in kernel.stages if stage.loop):
        return None
    return 2 if has_functions else 1


def _lanes_of_long_code(kernel: Kernel, one: int, registers: int) -> int:
    """As few lanes as avoid a remainder vector, which would duplicate the code; where points may be computed twice
    there is no remainder."""
    size = kernel.cols[-1].size if kernel.cols else 1
    lanes = registers * one
    overlaps = all(idempotent(stage.body) for stage in kernel.stages)
    while lanes > max(1, size) or (lanes > one and not overlaps and size % lanes):
        lanes //= 2
    return max(1, lanes)


def asking(kernel: Kernel) -> Stage:
    """The loop of a row that asks for the next one's memory: of those after the first, the one with most to do."""
    loops = [stage for stage in kernel.stages if stage.loop]
    return max(reversed(loops[1:] or loops), key=lambda stage: sum(map(_cost, stage.body)))


def streams(kernel: Kernel, body: Iterable[Instruction], steps: tuple[int, ...] = (1,)) -> list[Load]:
    """Reads of whole arrays from outside: along cols by single steps, and not the same in every row."""
    if not kernel.cols:
        return []
    along, rows = kernel.cols[-1].name, {axis.name for axis in kernel.rows}
    outside = {buffer.name for buffer in kernel.buffers if buffer.role is Role.INPUT}
    loads = [i for i in body if isinstance(i, Load) and i.buffer in outside and i.index.stride(along) in steps]
    return [load for load in loads if not rows or load.index.axes & rows]


def only_reads(body: Iterable[Instruction]) -> bool:
    return not any(isinstance(i, Store | Scatter) for i in body)


def prefetchable(kernel: Kernel, stage: Stage) -> list[Load]:
    """The loads that a loop over one array may prefetch. With a second array, the hardware prefetcher is as good or
    better."""
    loads = streams(kernel, stage.body, (1, -1))
    # Of rows that run in reverse, the next does not begin where this one ends.
    loads = [load for load in loads if all(step * load.index.terms[-1][1] > 0 for _, step in load.index.terms)]
    return loads if len({load.buffer for load in loads}) == 1 else []


def prefetched(plan: LoopSchedule, stage: Stage) -> list[Load]:
    """The loads that a loop prefetches, unless the previous row did."""
    return prefetchable(plan.kernel, stage) if PREFETCH in plan.uses and not plan.fetched else []


def pipelined_loads(kernel: Kernel, stage: Stage, target: Target) -> list[Load]:
    """The loads that a compute-bound loop issues one vector early, before it stores the current one."""
    if not target.hoist_loads_over_stores or only_reads(stage.body) or not compute_bound(stage.body):
        return []
    loads = streams(kernel, stage.body)
    return loads if len(loads) <= _EARLY_MOST else []


def compute_bound(body: Iterable[Instruction]) -> bool:
    """Whether a loop has so much to compute that it is this it takes time for."""
    return sum(map(_cost, body)) >= _MATH_COST


def useful_threads(kernel: Kernel) -> Size:
    """How many threads have enough to do to be worth waking."""
    return greater(1, _total_cost(kernel) // GRAIN)


def _total_cost(kernel: Kernel) -> Size:
    cost = 0
    for stage in kernel.stages:
        each = sum(_cost(instruction) for instruction in stage.body)
        cost += each * (kernel.col_count if stage.loop else 1)
    return cost * kernel.row_count


def _cost(instruction: Instruction) -> int:
    if isinstance(instruction, Compute):
        return _MATH_COST if instruction.op in _MATH else _COSTS.get(instruction.op, 1)
    return 1
