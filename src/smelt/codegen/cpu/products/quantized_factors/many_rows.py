"""Many rows times quantized weights: integers become floats in panels, which register tiles multiply with all rows.

    182 rows of x, 64 of w: for 256 steps of the sum: for 32 rows of w: a panel of 256 × 32 floats, 13 tiles of 14 × 32

A panel is written once for all rows of a block. The bytes of a run of w are transposed in registers, four at a time,
before they are converted. x is packed for tiles in the order of memory; panels have its order.
"""

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu.entry_points import params
from smelt.codegen.cpu.products.micro_kernel import micro_kernel
from smelt.codegen.cpu.products.panel_copies import pack_matrix, transposed
from smelt.codegen.cpu.products.problem import Problem
from smelt.codegen.cpu.products.quantized_factors.layout import Beside, Layout
from smelt.codegen.cpu.products.streamed_blocks import StreamedBlock, StreamedBlocks
from smelt.codegen.cpu.products.tile_shape import MOST, TileShape, divided, rounded
from smelt.codegen.loops.arrays import Array
from smelt.codegen.loops.builder import Builder
from smelt.device import Target
from smelt.ir.loops import Function, Value
from smelt.symbolic.symsize import is_symsize

RUN = 16  # bytes of a row of the right factor that are read together
_LANES = 4  # 4-byte integers in a run
_PANELS = 2  # of the right factor in a block
_CYCLES_TO_MULTIPLY, _CYCLES_TO_CONVERT = 0.6, 3  # a vector of weights: with a row of x, and for a panel


@dataclass(frozen=True, slots=True)
class ManyRows:
    """How a block is multiplied. A group is divided into `pieces` of `units` bytes, and a panel has whole pieces.
    `unit` and `parts`: steps of the sum from one byte to the next, and from a byte to its integers."""

    tile: TileShape
    pieces: int
    units: int
    unit: int
    parts: tuple[int, ...]
    along: int  # elements of the left factor from one step to the next

    @property
    def steps(self) -> int:
        """Of a piece."""
        return self.units * len(self.parts)

    @property
    def together(self) -> int:
        """Pieces of a panel."""
        return max(1, MOST.depth // self.steps)

    @property
    def panel_elements(self) -> int:
        return self.together * self.steps * self.tile.cols

    @property
    def cols(self) -> int:
        """Of a block."""
        return _PANELS * self.tile.cols

    def rows(self, count: int) -> int:
        """Of a block, if there are so many."""
        return int(divided(count, MOST.rows, self.tile.rows))

    def cycles(self, problem: Problem) -> float:
        rows, cols = rounded(problem.rows, self.tile.rows), rounded(problem.cols, self.tile.cols)
        vectors = problem.depth * cols / self.tile.lanes
        blocks = -(-rows // self.rows(rows))
        return float(
            vectors * (_CYCLES_TO_MULTIPLY * rows + _CYCLES_TO_CONVERT * blocks) + rows * (problem.depth + cols)
        )


def many_rows_of(problem: Problem, layout: Layout, target: Target) -> ManyRows | None:
    """The form, if pieces of groups are contiguous in the left factor and whole runs in the right one."""
    steps = (layout.group_left, layout.unit_left, *layout.parts)
    if any(is_symsize(each) for each in steps) or layout.units % RUN or problem.dtype is not torch.float32:
        return None
    tile, count = TileShape.of(problem.dtype, target), len(layout.parts)
    along = min(abs(int(each)) for each in steps if each) if any(steps) else 0
    if tile.lanes % _LANES or not along or any(each % along for each in steps):
        return None
    group, unit, *parts = (int(each) // along for each in steps)
    units = layout.units
    if unit == count:
        units = max(each for each in range(RUN, MOST.depth // count + 1, RUN) if units % each == 0)
    places = sorted(place * unit + part for place in range(units) for part in parts)
    is_contiguous = places == list(range(units * count)) and (layout.groups == 1 or group == layout.units * count)
    if not is_contiguous or units * count > MOST.depth:
        return None
    return ManyRows(tile, layout.units // units, units, unit, tuple(parts), along)


def multiply_many(b: Builder, blocks: StreamedBlocks, block: StreamedBlock, layout: Layout, form: ManyRows) -> None:
    """All tiles of a block."""
    problem, tile = blocks.problem, form.tile
    depth, longest = int(problem.depth), form.together * form.steps
    apart, col = problem.m[0].left if problem.m else 0, problem.n[0]
    kernel = micro_kernel(tile, problem.dtype, b.target)
    beside = Beside(problem, block)
    convert = Panel(b.target, form, layout, beside).write()
    panel = block.packed.at(blocks.block_rows * depth)
    args = beside.args(layout)
    with b.loop(0, depth, longest) as first:
        steps = b.smin(b.sub(depth, first), longest)
        left, pieces = block.packed.at(b.mul(first, blocks.block_rows)), b.udiv(steps, form.steps)
        with b.when(block.fresh):
            source = block.left.at(b.mul(first, form.along))
            pack_matrix(source, (apart, form.along), (block.rows, steps), left, tile.rows)
        with b.loop(0, block.cols, tile.cols) as column:
            right = (block.right.pointer, col.right, column, block.cols)
            b.call_helper(convert, panel.pointer, *right, b.udiv(first, form.steps), pieces, *args)
            with b.loop(0, block.rows, tile.rows) as row:
                out = block.sums.at(b.add(b.mul(row, blocks.pitch), column))
                factors = left.at(b.mul(row, steps)).pointer, panel.pointer
                b.call_helper(kernel, *factors, steps, out.pointer, blocks.pitch, b.icmp("sgt", first, 0))


_TAKEN = params("ptr panel, ptr right, i64 apart, i64 column, i64 cols, i64 first, i64 pieces")
_PANEL, _RIGHT, _APART, _COLUMN, _WIDTH, _FIRST, _PIECES = _TAKEN


class Panel:
    """The function that writes a panel: some pieces of the rows of the right factor from `column` on."""

    def __init__(self, target: Target, form: ManyRows, layout: Layout, beside: Beside) -> None:
        self.form, self.layout, self.beside, self.quantized = form, layout, beside, beside.quantized
        self.b = Builder(target)

    @property
    def name(self) -> str:
        form, quantized = self.form, self.quantized
        shape = f"{form.tile.cols}.{form.pieces}x{form.units}.{form.unit}.{'_'.join(map(str, form.parts))}"
        kind = f"{quantized.kind}.less{quantized.offset}"
        return f"smelt.quantized_panel.{kind}.{self.beside.text}.{shape}.{self.layout.group_right}"

    def write(self) -> Function:
        b, form, beside = self.b, self.form, self.beside
        panel, right = Array(b, _PANEL, torch.float32), Array(b, _RIGHT, torch.uint8)
        lanes = form.tile.lanes
        with b.loop(0, form.tile.cols, lanes) as across:
            first = b.add(_COLUMN, across)
            cols = [b.smin(b.add(first, lane), b.sub(_WIDTH, 1)) for lane in range(lanes)]
            lines = [right.at(b.mul(col, _APART)) for col in cols]
            elements = beside.arrays(b, cols)
            with b.loop(0, _PIECES) as number:
                piece = b.add(_FIRST, number)
                group = b.udiv(piece, form.pieces)
                inside = b.mul(b.urem(piece, form.pieces), form.units)
                start = b.add(b.mul(group, self.layout.group_right), inside)
                numbers = [
                    b.gathered([one.load_as(torch.float32, b.mul(group, each[2])) for one in some])
                    for some, each in zip(elements, beside.params, strict=True)
                ]
                to = panel.at(b.add(b.mul(number, form.steps * form.tile.cols), across))
                with b.loop(0, form.units, RUN) as unit:
                    place = to.at(b.mul(unit, form.unit * form.tile.cols))
                    self._run([line.at(b.add(start, unit)) for line in lines], numbers, place)
        return b.function(self.name, (*_TAKEN, *beside.all_params), "shared")

    def _run(self, lines: list[Array], numbers: list[Value], to: Array) -> None:
        """Convert a run of each row."""
        b, form, quantized, lanes = self.b, self.form, self.quantized, self.form.tile.lanes
        bits, is_signed = (4 if quantized.is_packed else 8), quantized.kind.startswith("i")
        scale, move, low = self.beside.apart(numbers)
        if quantized.offset:
            move = b.fadd(move, float(quantized.offset)) if move else b.const("f32", float(quantized.offset), lanes)
        for word, column in enumerate(words_of(b, lines)):
            for byte in range(4):
                for half, part in enumerate(form.parts):
                    shift = 8 * byte + 4 * half
                    if is_signed:
                        whole = b.ashr(b.shl(column, 32 - bits - shift), 32 - bits)
                    else:
                        whole = b.and_(b.lshr(column, shift), (1 << bits) - 1)
                    weight = b.convert("sitofp", whole, "f32")
                    weight = b.fsub(weight, move) if move is not None else weight
                    weight = b.fmul(weight, scale) if low is None else b.fma(weight, scale, low)
                    to.store(weight, ((4 * word + byte) * form.unit + part) * form.tile.cols)


def words_of(b: Builder, lines: list[Array]) -> list[Value]:
    """The four words of a run of each line: vectors with a lane for each line."""
    runs = [b.load(line.pointer, "i32", _LANES, align=1) for line in lines]
    return transposed(b, [_joined(b, runs[first::_LANES]) for first in range(_LANES)])


def _joined(b: Builder, runs: list[Value]) -> Value:
    """Runs side by side in a vector."""
    while len(runs) > 1:
        runs = [
            b.permute(runs[place], range(2 * runs[place].lanes), runs[place + 1]) for place in range(0, len(runs), 2)
        ]
    return runs[0]
