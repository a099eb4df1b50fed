"""Products in register tiles of packed panels, for sizes that are worth packing.

    for each block of cols, of rows:
      for each block of the sum:
        pack the right panels, pack the left panels
        for each left panel: for each right panel: a tile of sums; then the epilogue of these rows

What is packed and the tiles' sums are a part's own, in its workspace. The work is done by a few functions that all
products of a module share (`micro_kernel`, `packing`); what is written here for each kernel only drives them.
"""

from collections.abc import Callable, Sequence
from itertools import takewhile

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu.entry_points import DECLARE_PARALLEL_FOR, function_text
from smelt.codegen.cpu.products.epilogue import Epilogue, epilogue_lanes
from smelt.codegen.cpu.products.micro_kernel import Helper, micro_kernel
from smelt.codegen.cpu.products.packing import offsets, pack, pack_along, pack_bounded
from smelt.codegen.cpu.products.problem import Problem, ProductAxis, count
from smelt.codegen.cpu.products.tile_shape import TileShape, threads
from smelt.codegen.cpu.products.tiling import PanelSpace, Tiling
from smelt.codegen.cpu.products.window_packing import MOST_PLACES, pack_channels, pack_windows
from smelt.codegen.cpu.schedule import idempotent
from smelt.codegen.generator import EntryCode
from smelt.codegen.llvm.builder import Builder, LlvmValue
from smelt.codegen.llvm.scalars import VALUE_KINDS
from smelt.device import Target
from smelt.ir.kernel import Axis, Factor, Index
from smelt.torch_abi.symbols import PARALLEL_FOR

PART = "internal void @{}.part(ptr %buffers, ptr %mine, i64 %first, i64 %last, i1 %ends)"
_FLOATS = (torch.float32, torch.float64)


def why_not(problem: Problem, target: Target) -> str | None:
    return None if problem.dtype in _FLOATS else f"tiles are not summed in {problem.dtype}"


def cycles(problem: Problem, target: Target) -> float:
    """Multiplications of whole tiles, and two cycles an element for packing."""
    tile = TileShape.of(problem.dtype, target)
    rows, cols = (-(-size // step) * step for size, step in ((problem.rows, tile.rows), (problem.cols, tile.cols)))
    work = rows * cols * problem.depth / (2 * tile.lanes)
    return float(problem.batches * (work + 2 * problem.depth * (rows + cols) + rows * cols))


def write(symbol: str, problem: Problem, target: Target) -> EntryCode:
    """The functions of a kernel under the name `symbol`."""
    tiling = Tiling.of(problem, target)
    part = _Part(symbol, tiling, target)
    part.write()
    entry = Builder(target, symbol)
    work = min(threads(problem.multiplications), tiling.units)
    shared = f"i64 %threads, i64 {work}, i64 {tiling.units}, i64 {part.space.size}"
    entry.emit(f"call i64 @{PARALLEL_FOR}(ptr @{symbol}.part, ptr %buffers, ptr %workspace, {shared})")
    entry.emit("ret void")
    texts = [
        *part.tables.values(),
        part.b.pool_text,
        function_text(PART.format(symbol), part.b),
        function_text(f"void @{symbol}(ptr %buffers, i64 %threads, ptr %workspace)", entry, label=False),
    ]
    declared = frozenset({DECLARE_PARALLEL_FOR}).union(part.b.declared, *(each.declared for each in part.helpers))
    helpers = {**part.b.helpers, **{each.name: each.text for each in part.helpers}}
    return EntryCode("\n".join(texts), declared, tuple(helpers.items()), part.space.size)


@dataclass(frozen=True, slots=True)
class _Span:
    """Points of axes, from the first on."""

    axes: Sequence[ProductAxis]
    first: LlvmValue
    number: LlvmValue


@dataclass(frozen=True, slots=True)
class _Table:
    """Offsets or positions of points, in the workspace."""

    kind: str
    name: str
    place: str


class _Side:
    """One factor: what is packed of it, by which functions, and where to."""

    def __init__(self, part: "_Part", number: int) -> None:
        tiling, problem = part.tiling, part.tiling.problem
        self.part, self.number, self.name = part, number, ("left", "right")[number]
        self.factor: Factor = problem.contract.factors[number]
        self.dtype = (problem.left_dtype, problem.right_dtype)[number]
        self.points = (tiling.m, tiling.n)[number]
        self.width = (tiling.tile.rows, tiling.tile.cols)[number]
        self.length = (tiling.padded_rows, tiling.padded_cols)[number]
        self.period = self._period(problem.k)
        self.run = 0 if self.period else self._run(problem.k)
        self.along = not self.factor.bounds and self.run == count(problem.k)
        # Vectors across are at least as good, where both lie side by side.
        self.along &= not (len(self.points) == 1 and self.step(self.points[0]) == 1)

    def step(self, axis: ProductAxis) -> int:
        return (axis.left, axis.right)[self.number]

    def _is_bounded(self, axis: ProductAxis) -> bool:
        return any(position.stride(axis.name) for position, _ in self.factor.bounds)

    def _period(self, k: tuple[ProductAxis, ...]) -> int:
        """After how many steps positions in bounds repeat, while what is read moves on; 0 if never or after many."""
        inner = tuple(takewhile(self._is_bounded, reversed(k)))
        outer = k[: len(k) - len(inner)]
        repeats = outer and not any(self._is_bounded(axis) or self.step(axis) < 0 for axis in outer)
        return count(inner) if inner and repeats and count(inner) <= MOST_PLACES else 0

    def _run(self, k: tuple[ProductAxis, ...]) -> int:
        """How many steps are side by side with one position in bounds; 0 if none."""
        length = 1
        for axis in reversed(k):
            if self._is_bounded(axis) or self.step(axis) != length:
                break
            length *= axis.size
        return length if length > 1 else 0

    @property
    def ascending(self) -> bool:
        """Whether each point lies behind the one before it."""
        reach = 0
        for axis in reversed(self.points):
            if self.step(axis) <= reach:
                return False
            reach += self.step(axis) * (axis.size - 1)
        return True

    def helper(self) -> Helper:
        given = (self.dtype, self.part.tiling.problem.dtype, self.width)
        if self.factor.bounds:
            packing = pack_windows if self.period else pack_channels if self.run else pack_bounded
            return packing(*given, len(self.factor.bounds), self.part.b.target)
        return (pack_along if self.along else pack)(*given, self.part.b.target)


class _Part:
    """Writing the part that one thread runs: the units `first` up to `last`."""

    def __init__(self, symbol: str, tiling: Tiling, target: Target) -> None:
        self.symbol, self.tiling = symbol, tiling
        self.b = Builder(target, symbol)
        self.space = PanelSpace.of(tiling)
        self.kind = VALUE_KINDS[tiling.problem.dtype]
        self.tables: dict[str, str] = {}
        self.sides = (_Side(self, 0), _Side(self, 1))
        self.tile = micro_kernel(tiling.tile, tiling.problem.dtype, target)
        self.packers = tuple(side.helper() for side in self.sides)
        self.offsets = offsets(target, "i64")
        bounded = tiling.problem.is_bounded
        self.positions = offsets(target, "i32") if bounded else None
        self.helpers = [self.tile, *self.packers, self.offsets, *([self.positions] if self.positions else [])]
        self.lanes = 1

    def write(self) -> None:
        b, tiling = self.b, self.tiling
        blocks = tiling.blocks
        widths = [blocks.cols] if blocks.col_count > 1 else []
        widths.append(count(tiling.n) - blocks.cols * (blocks.col_count - 1))
        self.lanes = epilogue_lanes(tiling.epilogue, b.target, min(widths))
        self.rest = Epilogue.of(b, tiling.epilogue, self.lanes)
        self.where = {name: b.element("%mine", "i8", place) for name, place in self.space.starts.items()}
        units = b.begin(LlvmValue("%first", "i64"), LlvmValue("%last", "i64"), 1, [b.const("i64", -1)], guard=True)
        row_block = b.binary("urem", units.index, blocks.row_count)
        group = b.binary("udiv", units.index, blocks.row_count)
        col_block = b.binary("urem", group, blocks.col_count)
        self._place(tiling.outer, b.binary("udiv", group, blocks.col_count))
        self.i0, self.j0 = b.mul(row_block, blocks.rows), b.mul(col_block, blocks.cols)
        self.row_extent = self._rest(self.i0, count(tiling.m), blocks.rows)
        self.col_extent = self._rest(self.j0, count(tiling.n), blocks.cols)
        self.panels = (
            self._panels(self.row_extent, tiling.tile.rows), self._panels(self.col_extent, tiling.tile.cols)
        )
        self._points(self.sides[0], self.i0)
        # Consecutive units of a part have the right panels in common, where there is one block of the sum.
        kept = blocks.depth_count == 1
        self._unless(b.icmp("eq", group, units.values[0]), lambda: self._right_of_group(packs=kept))
        depth = b.begin(b.const("i64", 0), b.const("i64", blocks.depth_count), 1, (), guard=False)
        self._depth_block(depth.index, packs_right=not kept)
        depth.end()
        units.end(group)
        b.emit("ret void")

    # Where things are.

    def _place(self, axes: Sequence[ProductAxis], point: LlvmValue) -> None:
        """The positions of axes of which `point` counts the points."""
        for number, axis in enumerate(reversed(axes)):
            last = number == len(axes) - 1
            self.rest.at.axes[axis.name] = point if last else self.b.binary("urem", point, axis.size)
            point = point if last else self.b.binary("udiv", point, axis.size)

    def _rest(self, start: LlvmValue, size: int, block: int) -> LlvmValue:
        return self.b.intrinsic("llvm.smin", self.b.sub(size, start), self.b.const("i64", block))

    def _panels(self, extent: LlvmValue, width: int) -> LlvmValue:
        return self.b.binary("udiv", self.b.add(extent, width - 1), width)

    def _unless(self, condition: LlvmValue, write: Callable[[], None]) -> None:
        doing, after = self.b.new_label("doing"), self.b.new_label("after")
        self.b.branch(condition, after, doing)
        self.b.label(doing)
        write()
        self.b.jump(after)
        self.b.label(after)

    def _table(self, axes: Sequence[ProductAxis], steps: Sequence[int], tag: str) -> str:
        """A constant of the kernel's: size and step of each axis, and how many they are."""
        numbers = [each for axis, step in zip(axes, steps, strict=True) for each in (axis.size, step)] or [1, 0]
        values = ", ".join(f"i64 {number}" for number in numbers)
        name = f"@{self.symbol}.{tag}"
        self.tables[name] = f"{name} = private constant [{len(numbers)} x i64] [{values}]"
        return f"ptr {name}, i64 {len(numbers) // 2}"

    def _fill(self, to: "_Table", index: Index, span: "_Span", base: LlvmValue) -> None:
        """A table of what `index` adds for the points of a span."""
        axes = self._table(span.axes, [int(index.stride(axis.name)) for axis in span.axes], to.name)
        last = self.b.const("i64", max(0, count(tuple(span.axes)) - 1))
        args = f"ptr {to.place}, {span.first}, {span.number}, {last}, {axes}, {base}"
        self.b.emit(f"call void @product.offsets.{to.kind}({args})")

    def _base(self, index: Index) -> LlvmValue:
        """What the axes outside of blocks add."""
        axes = [Axis(axis.name, axis.size) for axis in self.tiling.outer]
        return self.rest.at.add(self.b.const("i64", index.offset), self.rest.at.terms(index, axes))

    # Packing.

    def _points(self, side: _Side, start: LlvmValue) -> None:
        """Offsets of the points of a block, and their positions in its bounds: as many as whole panels hold."""
        span = _Span(side.points, start, self.b.mul(self.panels[side.number], side.width))
        table = _Table("i64", f"{side.name}.x", self.where[f"{side.name}_points"])
        self._fill(table, side.factor.index, span, self._base(side.factor.index))
        for place, (position, _) in enumerate(side.factor.bounds):
            at = self.b.element(self.where[f"{side.name}_positions"], "i32", place * side.length)
            self._fill(_Table("i32", f"{side.name}.x{place}", at), position, span, self._base(position))

    def _right_of_group(self, *, packs: bool) -> None:
        self._points(self.sides[1], self.j0)
        if packs:
            self._pack(self.sides[1], self.b.const("i64", 0), self.b.const("i64", count(self.tiling.problem.k)))

    def _pack(self, side: _Side, first: LlvmValue, steps: LlvmValue) -> None:
        b, problem = self.b, self.tiling.problem
        ks, zero = self.where[f"{side.name}_steps"], b.const("i64", 0)
        span = _Span(problem.k, first, b.const("i64", 1) if side.along else steps)
        self._fill(_Table("i64", f"{side.name}.k", ks), side.factor.index, span, zero)
        source, to = self.rest.at.pointers[side.factor.buffer], self.where[side.name]
        more = self._bounds(side, span) if side.factor.bounds else ""
        xs = self.where[f"{side.name}_points"]
        args = f"ptr {to}, ptr {source}, ptr {ks}, ptr {xs}, {steps}, {self.panels[side.number]}"
        args += f", i1 {'true' if side.ascending else 'false'}"
        b.emit(f"call void @{self.packers[side.number].name}({args}{more})")

    def _bounds(self, side: _Side, span: "_Span") -> str:
        """Positions of steps, of all bounds together for each; and what else the packer is given."""
        b, depth = self.b, self.tiling.blocks.depth
        pk, px = self.where[f"{side.name}_step_positions"], self.where[f"{side.name}_positions"]
        for place, (position, _) in enumerate(side.factor.bounds):
            table = _Table("i32", f"{side.name}.k{place}", b.element(pk, "i32", place * depth))
            # What the axes outside add, and the offset, is in the positions of points.
            self._fill(table, position, span, b.const("i64", 0))
        extents = ", ".join(f"i32 {extent}" for _, extent in side.factor.bounds)
        name = f"@{self.symbol}.{side.name}.extents"
        self.tables[name] = f"{name} = private constant [{len(side.factor.bounds)} x i32] [{extents}]"
        size = self.tiling.problem.kernel.buffer(side.factor.buffer).size
        more = ""
        if side.period:
            more = f", i64 {side.period}, ptr {self.where['windows']}"
        elif side.run:
            more = f", i64 {side.run}, {b.binary('urem', span.first, side.run)}"
        return f", ptr {pk}, i64 {depth}, ptr {px}, i64 {side.length}, ptr {name}, i64 {size}{more}"

    # Tiles.

    def _depth_block(self, number: LlvmValue, *, packs_right: bool) -> None:
        b, blocks = self.b, self.tiling.blocks
        first = b.mul(number, blocks.depth)
        steps = self._rest(first, count(self.tiling.problem.k), blocks.depth)
        self._pack(self.sides[0], first, steps)
        if packs_right:
            self._pack(self.sides[1], first, steps)
        tile = self.tiling.tile
        several = blocks.depth_count > 1
        adds = b.icmp("sgt", number, 0)
        left_length, right_length = b.mul(steps, tile.rows), b.mul(steps, tile.cols)
        stride = self.tiling.padded_cols
        down = b.begin(b.const("i64", 0), self.panels[0], 1, (), guard=True)
        left = b.element(self.where["left"], self.kind, b.mul(down.index, left_length))
        sums = self.where["sums"]
        if several:
            sums = b.element(sums, self.kind, b.mul(down.index, tile.rows * stride))
        across = b.begin(b.const("i64", 0), self.panels[1], 1, (), guard=True)
        right = b.element(self.where["right"], self.kind, b.mul(across.index, right_length))
        out = b.element(sums, self.kind, b.mul(across.index, tile.cols))
        b.emit(f"call void @{self.tile.name}(ptr {left}, ptr {right}, {steps}, ptr {out}, i64 {stride}, {adds})")
        across.end()
        finished = b.icmp("eq", number, blocks.depth_count - 1)
        if several:
            self._unless(b.not_(finished), lambda: self._finish(b.mul(down.index, tile.rows), sums))
        else:
            self._finish(b.mul(down.index, tile.rows), sums)
        down.end()

    # What follows a tile.

    def _finish(self, top: LlvmValue, sums: str) -> None:
        """The epilogue of one panel's rows."""
        b, tile = self.b, self.tiling.tile
        rows = self._rest_of_panel(top, tile.rows)
        loop = b.begin(b.const("i64", 0), rows, 1, (), guard=False)
        point = b.add(b.add(self.i0, top), loop.index)
        self._place(self.rest.problem.m, point)
        line = b.element(sums, self.kind, b.mul(loop.index, self.tiling.padded_cols))
        self.rest.begin_row()
        b.open_loop()
        self._row(line)
        b.close_loop()
        loop.end()

    def _rest_of_panel(self, top: LlvmValue, rows: int) -> LlvmValue:
        return self.b.intrinsic("llvm.smin", self.b.sub(self.row_extent, top), self.b.const("i64", rows))

    def _row(self, line: str) -> None:
        """Vectors of a row of the block; the last begins earlier where it would reach past the end, if it does no harm
        to do a point twice, and otherwise what it would hold is done point by point."""
        b = self.b
        overlaps = idempotent(self.rest.inside)
        width = self.col_extent
        whole = b.and_(width, -self.lanes)
        last = width if overlaps or self.lanes == 1 else whole
        loop = b.begin(b.const("i64", 0), last, self.lanes, (), guard=not overlaps)
        column = loop.index
        if overlaps and self.lanes > 1:
            column = b.intrinsic("llvm.smin", column, b.sub(width, self.lanes))
        self._vector(line, column, self.lanes)
        loop.end()
        if not overlaps and self.lanes > 1:
            rest = b.begin(whole, width, 1, (), guard=True)
            self._vector(line, rest.index, 1)
            rest.end()

    def _vector(self, line: str, column: LlvmValue, lanes: int) -> None:
        found = self.b.load(self.b.element(line, self.kind, column), self.kind, lanes)
        self.rest.write(self.b.add(self.j0, column), found)
