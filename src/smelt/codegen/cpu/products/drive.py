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
from collections.abc import Callable

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu.entry_points import function_text
from smelt.codegen.cpu.products.micro_kernel import Helper
from smelt.codegen.cpu.products.numbers import HEAD, SIDE, read
from smelt.codegen.cpu.products.packing import FILL
from smelt.codegen.cpu.products.tile_shape import TileShape
from smelt.codegen.llvm.builder import Builder, LlvmValue
from smelt.codegen.llvm.scalars import VALUE_KINDS
from smelt.device import Target

_WHO = "ptr %numbers, ptr %buffers, ptr %mine, i64 %first, i64 %last, ptr %from.left, ptr %from.right"
_BY = "ptr %points.left, ptr %points.right, ptr %pack.left, ptr %pack.right"


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
def drive(tile: TileShape, dtype: torch.dtype, micro_kernel: str, target: Target, form: DriveForm) -> Helper:
    """`(numbers, buffers, mine, first, last, left, right, helpers of each, epilogue or results)`."""
    writer = _Drive(tile, dtype, micro_kernel, target, form)
    writer.write()
    signature = f"internal void @{writer.name}({_WHO}, {_BY}, ptr %{'out' if form.in_place else 'finish'})"
    return Helper(writer.name, function_text(signature, writer.b), frozenset(writer.b.declared))


class _Drive:
    def __init__(self, tile: TileShape, dtype: torch.dtype, micro_kernel: str, target: Target, form: DriveForm) -> None:
        self.tile, self.micro_kernel = tile, micro_kernel
        self.in_place, self.stays, self.is_transposed = form.in_place, form.stays, form.is_transposed
        self.kind, self.size = VALUE_KINDS[dtype], dtype.itemsize
        self.name = f"product.{form.name}.{self.kind}.{tile.rows}x{tile.cols}"
        self.b = Builder(target, self.name)

    def write(self) -> None:
        b = self.b
        self.numbers = {name: read(b, "%numbers", HEAD, name) for name in HEAD}
        numbers = self.numbers
        self.sides = {name: b.element("%numbers", "i64", numbers[name]) for name in ("left", "right")}
        self.sums = b.element("%mine", "i8", numbers["sums"])
        self.panels = {
            name: b.element("%mine", "i8", read(b, side, SIDE, "panels")) for name, side in self.sides.items()
        }
        self.alone = b.icmp("eq", numbers["depth_blocks"], 1)
        units = b.begin(LlvmValue("%first", "i64"), LlvmValue("%last", "i64"), 1, [b.const("i64", -1)], guard=True)
        group = b.binary("udiv", units.index, numbers["row_blocks"])
        self.outer = b.binary("udiv", group, numbers["col_blocks"])
        self.i0 = b.mul(b.sub(units.index, b.mul(group, numbers["row_blocks"])), numbers["rows"])
        self.j0 = b.mul(b.sub(group, b.mul(self.outer, numbers["col_blocks"])), numbers["cols"])
        self.height, self.width = self._rest("m", "rows", self.i0), self._rest("n", "cols", self.j0)
        self.down, self.across = self._panels(self.height, self.tile.rows), self._panels(self.width, self.tile.cols)
        self._points("left", self.i0, b.mul(self.down, self.tile.rows))
        fresh = b.icmp("ne", group, units.values[0])
        self._where(fresh, lambda: self._points("right", self.j0, b.mul(self.across, self.tile.cols)))
        # Consecutive units have the right panels in common, where there is one block of the sum, or all are kept.
        apart = read(b, self.sides["right"], SIDE, "apart")
        kept = b.or_(self.alone, b.icmp("ne", apart, 0))
        packs = b.or_(fresh, b.not_(kept))
        if self.in_place:
            self._locate()
        depth = b.begin(b.const("i64", 0), numbers["depth_blocks"], 1, (), guard=False)
        start = b.mul(depth.index, numbers["depth"])
        self.steps = self._rest("k", "depth", start)
        self._where(packs, lambda: self._pack("right", start, self.across))
        if not self.stays:
            self._pack("left", start, self.down)
        self.start = start
        self._block(depth.index, b.element(self.panels["right"], self.kind, b.mul(start, apart)))
        depth.end()
        if self.is_transposed:
            spans = f"{self.j0}, {self.width}, {self.i0}, {self.height}"
            b.emit(f"call void %finish(ptr %buffers, ptr {self.sums}, {self.outer}, {spans})")
        units.end(group)
        b.emit("ret void")

    def _rest(self, size: str, block: str, start: LlvmValue) -> LlvmValue:
        return self.b.intrinsic("llvm.smin", self.b.sub(self.numbers[size], start), self.numbers[block])

    def _panels(self, extent: LlvmValue, width: int) -> LlvmValue:
        return self.b.binary("udiv", self.b.add(extent, width - 1), width)

    def _where(self, condition: LlvmValue, write: Callable[[], None]) -> None:
        doing, after = self.b.new_label("doing"), self.b.new_label("after")
        self.b.branch(condition, doing, after)
        self.b.label(doing)
        write()
        self.b.jump(after)
        self.b.label(after)

    def _points(self, name: str, first: LlvmValue, number: LlvmValue) -> None:
        args = f"ptr {self.sides[name]}, ptr %mine, {first}, {number}, {self.outer}"
        self.b.emit(f"call void %points.{name}({args})")

    def _pack(self, name: str, start: LlvmValue, panels: LlvmValue) -> None:
        args = f"ptr {self.sides[name]}, ptr %mine, ptr %from.{name}, {start}, {self.steps}, {panels}"
        self.b.emit(f"call void %pack.{name}({args})")

    def _locate(self) -> None:
        """Where the results of a unit begin."""
        b, numbers = self.b, self.numbers
        axes = b.element("%numbers", "i64", numbers["out_axes"])
        args = f"ptr {self.sums}, {self.outer}, i64 1, {self.outer}, ptr {axes}"
        b.emit(f"call void @{FILL.format('i64')}({args}, {numbers['outer_count']}, {numbers['out_base']})")
        begin = b.add(b.load(self.sums, "i64"), b.add(b.mul(self.i0, numbers["out_step"]), self.j0))
        self.out = b.element("%out", self.kind, begin)

    # Tiles.

    def _block(self, number: LlvmValue, panels: str) -> None:
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
        height = b.intrinsic("llvm.smin", b.sub(self.height, top), b.const("i64", tile.rows))
        across = b.begin(b.const("i64", 0), self.across, 1, (), guard=True)
        right = b.element(panels, self.kind, b.mul(across.index, lengths[1]))
        start = b.mul(across.index, tile.cols)
        stride = numbers["stride"]
        place = b.element(sums, self.kind, b.add(b.mul(start, stride), top) if self.is_transposed else start)
        args = f"{left}, ptr {right}, {self.steps}"
        if self.in_place:
            self._store(args, adds, finished, (place, top, start, height))
        else:
            b.emit(f"call void @{self.micro_kernel}({args}, ptr {place}, {stride}, {adds})")
        across.end()
        if not self.in_place and not self.is_transposed:
            spans = f"{b.add(self.i0, top)}, {height}, {self.j0}, {self.width}"
            finish = f"call void %finish(ptr %buffers, ptr {sums}, {self.outer}, {spans})"
            self._where(finished, lambda: b.emit(finish))
        down.end()

    def _rows_apart(self) -> LlvmValue:
        b = self.b
        return b.select(self.alone, b.const("i64", 0), b.mul(self.numbers["stride"], self.tile.rows))

    def _left(self, panel: LlvmValue, length: LlvmValue) -> str:
        """The left argument of a micro-kernel: a panel, or the address of the first step and the rows."""
        b = self.b
        if not self.stays:
            return f"ptr {b.element(self.panels['left'], self.kind, b.mul(panel, length))}"
        points = b.element("%mine", "i8", read(b, self.sides["left"], SIDE, "xs"))
        rows = b.element(points, "i64", b.mul(panel, self.tile.rows))
        return f"ptr {b.element('%from.left', self.kind, self.start)}, ptr {rows}"

    def _store(
        self, args: str, adds: LlvmValue, finished: LlvmValue, where: tuple[str, LlvmValue, LlvmValue, LlvmValue]
    ) -> None:
        """Store a tile in place; a partial tile goes through the workspace, and its elements are copied one by one."""
        b, tile, numbers = self.b, self.tile, self.numbers
        place, top, start, height = where
        width = b.intrinsic("llvm.smin", b.sub(self.width, start), b.const("i64", tile.cols))
        whole = b.and_(b.icmp("eq", height, tile.rows), b.icmp("eq", width, tile.cols))
        out = b.element(b.element(self.out, self.kind, b.mul(top, numbers["out_step"])), self.kind, start)
        to = b.op(f"select {whole}, ptr {out}, ptr {place}", "ptr", 1).name
        stride = b.select(whole, numbers["out_step"], numbers["stride"])
        b.emit(f"call void @{self.micro_kernel}({args}, ptr {to}, {stride}, {adds})")

        def copy() -> None:
            rows = b.begin(b.const("i64", 0), height, 1, (), guard=False)
            source = b.element(place, self.kind, b.mul(rows.index, numbers["stride"]))
            target = b.element(out, self.kind, b.mul(rows.index, numbers["out_step"]))
            cols = b.begin(b.const("i64", 0), width, 1, (), guard=False)
            number = b.load(b.element(source, self.kind, cols.index), self.kind)
            b.store(number, b.element(target, self.kind, cols.index))
            cols.end()
            rows.end()

        self._where(b.and_(finished, b.not_(whole)), copy)
