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
from smelt.codegen.cpu.addresses import MINE
from smelt.codegen.cpu.entry_points import params
from smelt.codegen.cpu.products.numbers import HEAD, SIDE, read
from smelt.codegen.cpu.products.packing import FILL
from smelt.codegen.cpu.products.tile_shape import TileShape
from smelt.codegen.loops.arrays import Array
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
        self.tile, self.micro_kernel, self.form, self.dtype = tile, micro_kernel, form, dtype
        self.name = f"product.{form.name}.{VALUE_KINDS[dtype]}.{tile.rows}x{tile.cols}"
        self.b = Builder(target, self.name)

    def write(self) -> None:
        b, tile = self.b, self.tile
        self.numbers = numbers = {name: read(b, _NUMBERS, HEAD, name) for name in HEAD}
        self.sides = {name: b.element(_NUMBERS, "i64", numbers[name]) for name in ("left", "right")}
        self.sums = self._array(numbers["sums"])
        self.panels = {name: self._array(read(b, side, SIDE, "panels")) for name, side in self.sides.items()}
        self.alone = b.icmp("eq", numbers["depth_blocks"], 1)
        units = b.begin(_FIRST, _LAST, 1, [b.const("i64", -1)], guard=True)
        group = b.udiv(units.index, numbers["row_blocks"])
        self.outer = b.udiv(group, numbers["col_blocks"])
        self.i0 = b.mul(b.sub(units.index, b.mul(group, numbers["row_blocks"])), numbers["rows"])
        self.j0 = b.mul(b.sub(group, b.mul(self.outer, numbers["col_blocks"])), numbers["cols"])
        self.height, self.width = self._rest("m", "rows", self.i0), self._rest("n", "cols", self.j0)
        self.down, self.across = (
            b.udiv(b.add(extent, width - 1), width)
            for extent, width in ((self.height, tile.rows), (self.width, tile.cols))
        )
        self._points("left", self.i0, b.mul(self.down, tile.rows))
        fresh = b.icmp("ne", group, units.values[0])
        with b.when(fresh):
            self._points("right", self.j0, b.mul(self.across, tile.cols))
        # Consecutive units have the right panels in common, where there is one block of the sum, or all are kept.
        apart = read(b, self.sides["right"], SIDE, "apart")
        packs = b.or_(fresh, b.not_(b.or_(self.alone, b.icmp("ne", apart, 0))))
        if self.form.in_place:
            self._locate()
        with b.loop(0, numbers["depth_blocks"]) as block:
            self.start = b.mul(block, numbers["depth"])
            self.steps = self._rest("k", "depth", self.start)
            with b.when(packs):
                self._pack("right", self.across)
            if not self.form.stays:
                self._pack("left", self.down)
            self._block(block, self.panels["right"].at(b.mul(self.start, apart)))
        if self.form.is_transposed:
            b.call(_FINISH, BUFFERS, self.sums.pointer, self.outer, self.j0, self.width, self.i0, self.height)
        units.end(group)

    def _array(self, place: Value) -> Array:
        return Array(self.b, self.b.element(MINE, "i8", place), self.dtype)

    def _rest(self, size: str, block: str, start: Value) -> Value:
        return self.b.smin(self.b.sub(self.numbers[size], start), self.numbers[block])

    def _points(self, name: str, first: Value, number: Value) -> None:
        self.b.call(_POINTS[name], self.sides[name], MINE, first, number, self.outer)

    def _pack(self, name: str, panels: Value) -> None:
        self.b.call(_PACK[name], self.sides[name], MINE, _FROM[name], self.start, self.steps, panels)

    def _locate(self) -> None:
        """Where the results of a unit begin."""
        b, numbers = self.b, self.numbers
        axes = (b.element(_NUMBERS, "i64", numbers["out_axes"]), numbers["outer_count"], numbers["out_base"])
        b.call(FILL.format("i64"), self.sums.pointer, self.outer, 1, self.outer, *axes)
        begin = b.add(b.load(self.sums.pointer, "i64"), b.add(b.mul(self.i0, numbers["out_step"]), self.j0))
        self.out = Array(b, _OUT, self.dtype).at(begin)

    # Tiles.

    def _block(self, number: Value, panels: Array) -> None:
        """All tiles of a unit, for one block of the sum with these right panels."""
        b, tile, stride, is_transposed = self.b, self.tile, self.numbers["stride"], self.form.is_transposed
        adds = b.icmp("sgt", number, 0)
        finished = b.icmp("eq", b.add(number, 1), self.numbers["depth_blocks"])
        lengths = b.mul(self.steps, tile.rows), b.mul(self.steps, tile.cols)
        # With one block of the sum, the rows of a panel are done with before the next.
        apart = b.const("i64", 0) if is_transposed else b.select(self.alone, 0, b.mul(stride, tile.rows))
        with b.loop(0, self.down, guard=True) as down:
            left, sums = self._left(down, lengths[0]), self.sums.at(b.mul(down, apart))
            top = b.mul(down, tile.rows)
            height = b.smin(b.sub(self.height, top), tile.rows)
            with b.loop(0, self.across, guard=True) as across:
                right, start = panels.at(b.mul(across, lengths[1])), b.mul(across, tile.cols)
                place = sums.at(b.add(b.mul(start, stride), top) if is_transposed else start)
                factors = (*left, right.pointer, self.steps)
                if self.form.in_place:
                    self._store(factors, adds, finished, place, (top, start, height))
                else:
                    b.call(self.micro_kernel, *factors, place.pointer, stride, adds)
            if not self.form.in_place and not is_transposed:
                row = b.add(self.i0, top)
                with b.when(finished):
                    b.call(_FINISH, BUFFERS, sums.pointer, self.outer, row, height, self.j0, self.width)

    def _left(self, panel: Value, length: Value) -> tuple[Value, ...]:
        """The left argument of a micro-kernel: a panel, or the address of the first step and the rows."""
        b = self.b
        if not self.form.stays:
            return (self.panels["left"].at(b.mul(panel, length)).pointer,)
        points = b.element(MINE, "i8", read(b, self.sides["left"], SIDE, "xs"))
        rows = b.element(points, "i64", b.mul(panel, self.tile.rows))
        return Array(b, _FROM["left"], self.dtype).at(self.start).pointer, rows

    def _store(
        self, factors: tuple[Value, ...], adds: Value, finished: Value, place: Array, where: tuple[Value, Value, Value]
    ) -> None:
        """Store a tile in place; a partial tile goes through the workspace, and its elements are copied one by one."""
        b, tile, (top, start, height) = self.b, self.tile, where
        out_step, stride = self.numbers["out_step"], self.numbers["stride"]
        width = b.smin(b.sub(self.width, start), tile.cols)
        whole = b.and_(b.icmp("eq", height, tile.rows), b.icmp("eq", width, tile.cols))
        out = self.out.at(b.mul(top, out_step)).at(start)
        to = b.select(whole, out.pointer, place.pointer)
        b.call(self.micro_kernel, *factors, to, b.select(whole, out_step, stride), adds)
        with b.when(b.and_(finished, b.not_(whole))), b.loop(0, height) as row:
            source, target = place.at(b.mul(row, stride)), out.at(b.mul(row, out_step))
            with b.loop(0, width) as column:
                target.store(source.load(column), column)
