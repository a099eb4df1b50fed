"""The loops of a tiled product: one function for all products of a module with the same tile; `numbers` passes the
sizes.

    for each unit, which is a block of rows and of cols:
      for each block of the sum:
        pack the right panels, unless the unit before left them, and the left panels
        for each left panel: for each right panel: a tile of sums; then what follows for these rows

The epilogue is a function of the kernel's own, or absent: where results are plain sums, whole tiles are stored in place
and the others through the workspace.
"""

import functools

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu.products.numbers import HEAD, SIDE, read
from smelt.codegen.cpu.products.packing import FILL
from smelt.codegen.cpu.products.parts import MINE, params
from smelt.codegen.cpu.products.tile_shape import TileShape
from smelt.codegen.loops.builder import BUFFERS, Builder, param
from smelt.codegen.loops.scalars import VALUE_KINDS
from smelt.device import Target
from smelt.ir.loops import Function, Value

_NUMBERS, _FIRST, _LAST, _OUT, _FINISH = params("ptr numbers, i64 first, i64 last, ptr out, ptr finish")
_FROM = {side: param(f"from.{side}", "ptr") for side in ("left", "right")}
_POINTS = {side: param(f"points.{side}", "ptr") for side in ("left", "right")}
_PACK = {side: param(f"pack.{side}", "ptr") for side in ("left", "right")}


@dataclass(frozen=True, slots=True)
class DriveForm:
    """`in_place`: whole tiles are stored to the results; `stays`: the left factor is not packed, the micro-kernel is
    `micro_kernel_along`; `is_transposed`: that one stores blocks transposed, and the epilogue runs at their end."""

    in_place: bool = False
    stays: bool = False
    is_transposed: bool = False

    @property
    def name(self) -> str:
        parts = ("store" if self.in_place else "drive", "along" * self.stays, "transposed" * self.is_transposed)
        return "_".join(each for each in parts if each)


@functools.cache
def drive(tile: TileShape, dtype: torch.dtype, micro_kernel: str, target: Target, form: DriveForm) -> Function:
    """`(numbers, buffers, mine, first, last, left, right, helpers of each, epilogue or results)`."""
    writer = _Drive(tile, dtype, micro_kernel, target, form)
    writer.write()
    who = (_NUMBERS, BUFFERS, MINE, _FIRST, _LAST, *_FROM.values())
    by = (*_POINTS.values(), *_PACK.values(), _OUT if form.in_place else _FINISH)
    return writer.b.function(writer.name, (*who, *by), "shared")


class _Drive:
    def __init__(self, tile: TileShape, dtype: torch.dtype, micro_kernel: str, target: Target, form: DriveForm) -> None:
        self.tile, self.micro_kernel = tile, micro_kernel
        self.in_place, self.stays, self.is_transposed = form.in_place, form.stays, form.is_transposed
        self.kind, self.size = VALUE_KINDS[dtype], dtype.itemsize
        self.name = f"product.{form.name}.{self.kind}.{tile.rows}x{tile.cols}"
        self.b = Builder(target, self.name)

    def write(self) -> None:
        b = self.b
        self.numbers = {name: read(b, _NUMBERS, HEAD, name) for name in HEAD}
        numbers = self.numbers
        self.sides = {name: b.element(_NUMBERS, "i64", numbers[name]) for name in ("left", "right")}
        self.sums = b.element(MINE, "i8", numbers["sums"])
        self.panels = {name: b.element(MINE, "i8", read(b, side, SIDE, "panels")) for name, side in self.sides.items()}
        self.alone = b.icmp("eq", numbers["depth_blocks"], 1)
        units = b.begin(_FIRST, _LAST, 1, [b.const("i64", -1)], guard=True)
        group = b.binary("udiv", units.index, numbers["row_blocks"])
        self.outer = b.binary("udiv", group, numbers["col_blocks"])
        self.i0 = b.mul(b.sub(units.index, b.mul(group, numbers["row_blocks"])), numbers["rows"])
        self.j0 = b.mul(b.sub(group, b.mul(self.outer, numbers["col_blocks"])), numbers["cols"])
        self.height, self.width = self._rest("m", "rows", self.i0), self._rest("n", "cols", self.j0)
        self.down, self.across = self._panels(self.height, self.tile.rows), self._panels(self.width, self.tile.cols)
        self._points("left", self.i0, b.mul(self.down, self.tile.rows))
        fresh = b.icmp("ne", group, units.values[0])
        with b.when(fresh):
            self._points("right", self.j0, b.mul(self.across, self.tile.cols))
        # Consecutive units have the right panels in common, where there is one block of the sum, or all are kept.
        apart = read(b, self.sides["right"], SIDE, "apart")
        kept = b.or_(self.alone, b.icmp("ne", apart, 0))
        packs = b.or_(fresh, b.not_(kept))
        if self.in_place:
            self._locate()
        depth = b.begin(b.const("i64", 0), numbers["depth_blocks"], 1, (), guard=False)
        start = b.mul(depth.index, numbers["depth"])
        self.steps = self._rest("k", "depth", start)
        with b.when(packs):
            self._pack("right", start, self.across)
        if not self.stays:
            self._pack("left", start, self.down)
        self.start = start
        self._block(depth.index, b.element(self.panels["right"], self.kind, b.mul(start, apart)))
        depth.end()
        if self.is_transposed:
            b.call(_FINISH, BUFFERS, self.sums, self.outer, self.j0, self.width, self.i0, self.height)
        units.end(group)

    def _rest(self, size: str, block: str, start: Value) -> Value:
        return self.b.intrinsic("smin", self.b.sub(self.numbers[size], start), self.numbers[block])

    def _panels(self, extent: Value, width: int) -> Value:
        return self.b.binary("udiv", self.b.add(extent, width - 1), width)

    def _points(self, name: str, first: Value, number: Value) -> None:
        self.b.call(_POINTS[name], self.sides[name], MINE, first, number, self.outer)

    def _pack(self, name: str, start: Value, panels: Value) -> None:
        self.b.call(_PACK[name], self.sides[name], MINE, _FROM[name], start, self.steps, panels)

    def _locate(self) -> None:
        """Where the results of a unit begin."""
        b, numbers = self.b, self.numbers
        axes = (b.element(_NUMBERS, "i64", numbers["out_axes"]), numbers["outer_count"], numbers["out_base"])
        b.call(FILL.format("i64"), self.sums, self.outer, b.const("i64", 1), self.outer, *axes)
        begin = b.add(b.load(self.sums, "i64"), b.add(b.mul(self.i0, numbers["out_step"]), self.j0))
        self.out = b.element(_OUT, self.kind, begin)

    # Tiles.

    def _block(self, number: Value, panels: Value) -> None:
        """All tiles of a unit, for one block of the sum with these right panels."""
        b, tile, numbers = self.b, self.tile, self.numbers
        adds = b.icmp("sgt", number, 0)
        finished = b.icmp("eq", b.add(number, 1), numbers["depth_blocks"])
        lengths = b.mul(self.steps, tile.rows), b.mul(self.steps, tile.cols)
        # With one block of the sum, the rows of a panel are done with before the next.
        rows_apart = b.const("i64", 0) if self.is_transposed else self._rows_apart()
        down = b.begin(b.const("i64", 0), self.down, 1, (), guard=True)
        left = self._left(down.index, lengths[0])
        sums = b.element(self.sums, self.kind, b.mul(down.index, rows_apart))
        top = b.mul(down.index, tile.rows)
        height = b.intrinsic("smin", b.sub(self.height, top), b.const("i64", tile.rows))
        across = b.begin(b.const("i64", 0), self.across, 1, (), guard=True)
        right = b.element(panels, self.kind, b.mul(across.index, lengths[1]))
        start = b.mul(across.index, tile.cols)
        stride = numbers["stride"]
        place = b.element(sums, self.kind, b.add(b.mul(start, stride), top) if self.is_transposed else start)
        factors = (*left, right, self.steps)
        if self.in_place:
            self._store(factors, adds, finished, (place, top, start, height))
        else:
            b.call(self.micro_kernel, *factors, place, stride, adds)
        across.end()
        if not self.in_place and not self.is_transposed:
            row = b.add(self.i0, top)
            with b.when(finished):
                b.call(_FINISH, BUFFERS, sums, self.outer, row, height, self.j0, self.width)
        down.end()

    def _rows_apart(self) -> Value:
        b = self.b
        return b.select(self.alone, b.const("i64", 0), b.mul(self.numbers["stride"], self.tile.rows))

    def _left(self, panel: Value, length: Value) -> tuple[Value, ...]:
        """The left argument of a micro-kernel: a panel, or the address of the first step and the rows."""
        b = self.b
        if not self.stays:
            return (b.element(self.panels["left"], self.kind, b.mul(panel, length)),)
        points = b.element(MINE, "i8", read(b, self.sides["left"], SIDE, "xs"))
        rows = b.element(points, "i64", b.mul(panel, self.tile.rows))
        return b.element(_FROM["left"], self.kind, self.start), rows

    def _store(
        self, factors: tuple[Value, ...], adds: Value, finished: Value, where: tuple[Value, Value, Value, Value]
    ) -> None:
        """Store a tile in place; a partial tile goes through the workspace, and its elements are copied one by one."""
        b, tile, numbers = self.b, self.tile, self.numbers
        place, top, start, height = where
        width = b.intrinsic("smin", b.sub(self.width, start), b.const("i64", tile.cols))
        whole = b.and_(b.icmp("eq", height, tile.rows), b.icmp("eq", width, tile.cols))
        out = b.element(b.element(self.out, self.kind, b.mul(top, numbers["out_step"])), self.kind, start)
        to = b.select(whole, out, place)
        stride = b.select(whole, numbers["out_step"], numbers["stride"])
        b.call(self.micro_kernel, *factors, to, stride, adds)
        with b.when(b.and_(finished, b.not_(whole))):
            rows = b.begin(b.const("i64", 0), height, 1, (), guard=False)
            source = b.element(place, self.kind, b.mul(rows.index, numbers["stride"]))
            target = b.element(out, self.kind, b.mul(rows.index, numbers["out_step"]))
            cols = b.begin(b.const("i64", 0), width, 1, (), guard=False)
            number = b.load(b.element(source, self.kind, cols.index), self.kind)
            b.store(number, b.element(target, self.kind, cols.index))
            cols.end()
            rows.end()
