"""Many rows of bytes times quantized weights: tiles of sums of dot products of bytes, in panels of words.

    256 rows of x, 64 of w: for 8 groups of 64: for 32 rows of w: panels of 16 words × 32, tiles of 6 × 32 of all rows

A word has four bytes that are adjacent in the sum, of one row. A panel of w has, for each group, words of its rows side
by side, then scales and the rest; it is written once for all rows of a block. A tile of x has words of its rows, what
the sums begin with, scales, and if w has zero points or minima, scaled sums of x. The sums of a group are integers.
"""

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu.entry_points import params
from smelt.codegen.cpu.products.micro_kernel import FINISH, finish_tile, vectors_of
from smelt.codegen.cpu.products.problem import Problem
from smelt.codegen.cpu.products.quantized_factors.fixed_point import moved_by, sum_of_bytes, unsigned_bytes
from smelt.codegen.cpu.products.quantized_factors.layout import Beside, Layout
from smelt.codegen.cpu.products.quantized_factors.many_rows import RUN, words_of
from smelt.codegen.cpu.products.streamed_blocks import StreamedBlock, StreamedBlocks
from smelt.codegen.cpu.products.tile_shape import TileShape, divided, rounded
from smelt.codegen.loops.arrays import Array
from smelt.codegen.loops.builder import Builder
from smelt.device import Target
from smelt.ir.loops import Function, Value
from smelt.symbolic.symsize import hint, is_symsize, known_equal

_WORD = 4  # bytes
_LINE = 16  # words that are in one line of the cache: vectors of panels are
_VECTORS = 2  # of a row of a tile
_ROWS = {16: (2, 3), 32: (4, 5, 6)}  # of a tile, by the registers of the processor: integers, totals and a few more
_BLOCK_ROWS = 256
_BLOCK_BYTES = 1 << 20  # of a thread's copy of the left factor
_PANELS = 2  # of the right factor in a block
_PANEL_BYTES = 512  # of a row of the right factor in a panel: with a tile of x it stays in the first cache
_UNROLL = 2  # words of a row that are multiplied without a loop
# Cycles of a vector of words: with a row of x; of a group of a row, with its scales; to write it to a panel. Measured
# with AVX-512 VNNI, q4_0 of 2048 × 2048: 8 rows and 512.
_CYCLES_TO_MULTIPLY, _CYCLES_OF_GROUP, _CYCLES_TO_CONVERT = 0.7, 3, 25


@dataclass(frozen=True, slots=True)
class ByteTiles:
    """How a block is multiplied. A group has `units` bytes of the right factor, of `parts` integers each. `moved`: what
    is subtracted from the unsigned integers. `elements`: numbers beside the integers."""

    tile: TileShape
    groups: int
    units: int
    parts: int
    moved: int
    elements: int
    has_sums: bool

    @property
    def words(self) -> int:
        """Of a group of a row."""
        return self.units * self.parts // _WORD

    @property
    def left_group(self) -> int:
        """Elements of a group of a tile of the left factor."""
        return self.tile.rows * (self.words + bool(self.moved) + 1 + self.has_sums)

    @property
    def right_group(self) -> int:
        """Elements of a group of a panel of the right factor."""
        return self.tile.cols * (self.words + self.elements)

    @property
    def together(self) -> int:
        """Groups of a panel."""
        return max(1, min(self.groups, _PANEL_BYTES // (self.words * _WORD)))

    @property
    def panel_elements(self) -> int:
        return self.together * self.right_group + _LINE

    @property
    def cols(self) -> int:
        """Of a block."""
        return _PANELS * self.tile.cols

    def rows(self, count: int) -> int:
        """Of a block, if there are so many."""
        most = min(_BLOCK_ROWS, _BLOCK_BYTES // (_WORD * self.groups * self.words))
        return int(divided(count, max(most, self.tile.rows), self.tile.rows))

    def cycles(self, problem: Problem) -> float:
        rows, cols = rounded(problem.rows, self.tile.rows), rounded(problem.cols, self.tile.cols)
        vectors = self.groups * cols / self.tile.lanes
        multiplying = rows * (self.words * _CYCLES_TO_MULTIPLY + _CYCLES_OF_GROUP)
        converting = -(-rows // self.rows(rows)) * self.words * _CYCLES_TO_CONVERT
        return float(vectors * (multiplying + converting) + rows * (problem.depth + cols) / 2)


def byte_tiles_of(problem: Problem, layout: Layout, target: Target) -> ByteTiles | None:
    """The form, if the target multiplies bytes and groups are whole runs of the right factor."""
    quantized = problem.contract.right.quantized
    assert quantized is not None
    if not target.dots_bytes or target.vector_bits < 256 or layout.units % RUN:
        return None
    if any(is_symsize(each) for each in (layout.unit_left, *layout.parts)):
        return None
    moved, parts = moved_by(quantized), len(layout.parts)
    largest = max((15 if quantized.is_packed else 255) - moved, moved)
    if layout.units * parts * largest * 128 >= 1 << 31:
        return None
    lanes, rows = target.vector_bits // 32, hint(problem.rows)
    tried = _ROWS[32 if target.vector_registers >= 32 else 16]
    best = min(tried[::-1], key=lambda count: -(-rows // count) * (count + 1))
    has_sums = quantized.zero is not None or quantized.low is not None
    tile = TileShape(best, _VECTORS * lanes, lanes)
    return ByteTiles(tile, layout.groups, layout.units, parts, moved, len(quantized.elements), has_sums)


def multiply_bytes(b: Builder, blocks: StreamedBlocks, block: StreamedBlock, layout: Layout, form: ByteTiles) -> None:
    """All tiles of a block."""
    problem, tile = blocks.problem, form.tile
    col, steep = problem.n[0], form.groups * form.left_group
    beside = Beside(problem, block)
    multiply = _multiply(b.target, form, beside)
    convert = BytePanel(b.target, form, layout, beside).write()
    panel = block.packed.at(int(rounded(blocks.block_rows // tile.rows * steep, _LINE)))
    args = beside.args(layout)
    with b.when(block.fresh):
        _pack_left(b, problem, layout, form, block)
    with b.loop(0, form.groups, form.together) as first:
        groups = b.smin(b.sub(form.groups, first), form.together)
        left = block.packed.at(b.mul(first, form.left_group))
        with b.loop(0, block.cols, tile.cols) as column:
            source = block.right.pointer, col.right, column, block.cols
            b.call_helper(convert, panel.pointer, *source, first, groups, *args)
            with b.loop(0, block.rows, tile.rows) as row:
                of_tile = left.at(b.mul(b.udiv(row, tile.rows), steep))
                out = block.sums.at(b.add(b.mul(row, blocks.pitch), column))
                finish = groups, out.pointer, blocks.pitch, b.icmp("sgt", first, 0)
                b.call_helper(multiply, of_tile.pointer, panel.pointer, *finish)


# The left factor.


def _pack_left(b: Builder, problem: Problem, layout: Layout, form: ByteTiles, block: StreamedBlock) -> None:
    """Missing rows of a last tile repeat the last row."""
    rows, (scale,) = form.tile.rows, block.left_elements
    of_scale = problem.contract.left.elements[1].index
    apart, scale_apart = (problem.m[0].left, of_scale.stride(problem.m[0].name)) if problem.m else (0, 0)
    with b.loop(0, block.rows, rows) as first:
        place = block.packed.at(b.mul(b.udiv(first, rows), form.groups * form.left_group))
        for row in range(rows):
            number = b.smin(b.add(first, row), b.sub(block.rows, 1))
            line, scales = block.left.at(b.mul(number, apart)), scale.at(b.mul(number, scale_apart))
            with b.loop(0, form.groups) as group:
                start = line.at(b.mul(group, layout.group_left))
                to = place.at(b.add(b.mul(group, form.left_group), row))
                _pack_words(b, layout, form, start, to)
                factor = scales.load_as(torch.float32, b.mul(group, layout.left_scale))
                to = to.at(form.words * rows)
                if form.moved or form.has_sums:
                    total = sum_of_bytes(b, layout, start, RUN)
                if form.moved:
                    b.store(b.mul(total, -form.moved), to.pointer)
                    to = to.at(rows)
                to.store(factor)
                if form.has_sums:
                    to.at(rows).store(b.fmul(b.convert("sitofp", total, "f32"), factor))


def _pack_words(b: Builder, layout: Layout, form: ByteTiles, start: Array, to: Array) -> None:
    """The words of a group of a row, in the order of `BytePanel`."""
    step, parts, rows = layout.unit_left, layout.parts, form.tile.rows
    with b.loop(0, form.units, _WORD) as unit:
        here, place = start.at(b.mul(unit, step)), to.at(b.mul(b.udiv(unit, _WORD), len(parts) * rows))
        if known_equal(step, 2) and set(parts) == {0, 1}:
            both = here.load(0, 2 * _WORD)
            words = [b.permute(both, range(part, 2 * _WORD, 2)) for part in parts]
        elif known_equal(step, 1):
            words = [here.load(part, _WORD) for part in parts]
        else:
            words = [b.gathered([here.load(part + byte * step) for byte in range(_WORD)]) for part in parts]
        for number, word in enumerate(words):
            b.store(word, place.at(number * rows).pointer, 1)


# The right factor.

_TAKEN = params("ptr panel, ptr right, i64 apart, i64 column, i64 cols, i64 first, i64 groups")
_PANEL, _RIGHT, _APART, _COLUMN, _WIDTH, _FIRST, _GROUPS = _TAKEN


class BytePanel:
    """The function that writes a panel: some groups of the rows of the right factor from `column` on."""

    def __init__(self, target: Target, form: ByteTiles, layout: Layout, beside: Beside) -> None:
        self.form, self.layout, self.beside = form, layout, beside
        self.b = Builder(target)

    @property
    def name(self) -> str:
        shape = f"{self.form.tile.cols}.{self.form.units}.{self.layout.group_right}"
        return f"smelt.byte_panel.{self.beside.quantized.kind}.{self.beside.text}.{shape}"

    def write(self) -> Function:
        b, form, beside = self.b, self.form, self.beside
        panel, right = Array(b, _PANEL, torch.float32), Array(b, _RIGHT, torch.uint8)
        lanes, cols = form.tile.lanes, form.tile.cols
        with b.loop(0, cols, lanes) as across:
            first = b.add(_COLUMN, across)
            numbers = [b.smin(b.add(first, lane), b.sub(_WIDTH, 1)) for lane in range(lanes)]
            lines = [right.at(b.mul(number, _APART)) for number in numbers]
            elements = beside.arrays(b, numbers)
            with b.loop(0, _GROUPS) as number:
                group = b.add(_FIRST, number)
                start = b.mul(group, self.layout.group_right)
                to = panel.at(b.add(b.mul(number, form.right_group), across))
                with b.loop(0, form.units, RUN) as unit:
                    words = words_of(b, [line.at(b.add(start, unit)) for line in lines])
                    place = to.at(b.mul(unit, form.parts * cols // _WORD))
                    unsigned = [each for column in words for each in unsigned_bytes(b, beside.quantized, column)]
                    for step, word in enumerate(unsigned):
                        b.store(word, place.at(step * cols).pointer)
                for place_of, (some, each) in enumerate(zip(elements, beside.params, strict=True)):
                    vector = b.gathered([one.load_as(torch.float32, b.mul(group, each[2])) for one in some])
                    to.store(vector, (form.words + place_of) * cols)
        return b.function(self.name, (*_TAKEN, *beside.all_params), "shared")


# The sums.


def _multiply(target: Target, form: ByteTiles, beside: Beside) -> Function:
    """`(left, right, groups, out, stride of its rows, adds)`: the tile of sums of some groups."""
    more = "".join(name[0] for name in ("zero", "low") if getattr(beside.quantized, name) is not None)
    name = f"smelt.byte_tile.{form.tile.rows}x{form.tile.cols}.{form.words}.{'moved' if form.moved else ''}.{more}"
    b, tile, panels = Builder(target, name), form.tile, params("ptr left, ptr right")
    groups, out = FINISH[:2]
    zero = b.const("f32", 0.0, tile.lanes)
    loop = b.begin(0, groups, 1, [*panels, *[zero] * (tile.rows * tile.vectors)], guard=True)
    left, right = (Array(b, panel, torch.float32) for panel in loop.values[:2])
    sums = _group(b, form, beside, left, right, list(loop.values[2:]))
    _, _, *sums = loop.end(left.at(form.left_group).pointer, right.at(form.right_group).pointer, *sums)
    finish_tile(Array(b, out, torch.float32), sums, tile)
    return b.function(name, (*panels, *FINISH), "shared")


def _group(
    b: Builder, form: ByteTiles, beside: Beside, left: Array, right: Array, totals: list[Value]
) -> list[Value]:
    """The totals with a group more."""
    tile, rows = form.tile, form.tile.rows
    beside_left, beside_right = left.at(form.words * rows), right.at(form.words * tile.cols)
    if form.moved:
        starts = [b.splat(b.load(beside_left.at(row).pointer, "i32"), tile.lanes) for row in range(rows)]
        beside_left = beside_left.at(rows)
    else:
        starts = [b.const("i32", 0, tile.lanes)] * rows
    integers = _integers(b, form, left, right, [start for start in starts for _ in range(tile.vectors)])
    elements = [vectors_of(beside_right.at(n * tile.cols), tile.vectors, tile.lanes) for n in range(form.elements)]
    scales, zeros, lows = beside.apart(elements)
    for row in range(rows):
        factor = b.splat(beside_left.load(row), tile.lanes)
        sums_of_x = b.splat(beside_left.load(rows + row), tile.lanes) if form.has_sums else None
        for vector in range(tile.vectors):
            number = row * tile.vectors + vector
            value = b.fmul(b.convert("sitofp", integers[number], "f32"), factor)
            if zeros is not None and sums_of_x is not None:
                value = b.fma(b.fneg(zeros[vector]), sums_of_x, value)
            totals[number] = b.fma(value, scales[vector], totals[number])
            if lows is not None and sums_of_x is not None:
                totals[number] = b.fma(lows[vector], sums_of_x, totals[number])
    return totals


def _integers(b: Builder, form: ByteTiles, left: Array, right: Array, sums: list[Value]) -> list[Value]:
    """The integer sums of a group."""
    tile = form.tile
    count = next(each for each in range(min(_UNROLL, form.words), 0, -1) if form.words % each == 0)

    def multiplied(left: Array, right: Array, sums: list[Value]) -> list[Value]:
        for step in range(count):
            words = [
                b.load(right.at(step * tile.cols + vector * tile.lanes).pointer, "i32", tile.lanes)
                for vector in range(tile.vectors)
            ]
            for row in range(tile.rows):
                of_row = b.splat(b.load(left.at(step * tile.rows + row).pointer, "i32"), tile.lanes)
                for vector, word in enumerate(words):
                    number = row * tile.vectors + vector
                    sums[number] = b.dotted_bytes(sums[number], word, of_row)
        return sums

    if count == form.words:
        return multiplied(left, right, sums)
    loop = b.begin(0, form.words, count, sums)
    here = left.at(b.mul(loop.index, tile.rows)), right.at(b.mul(loop.index, tile.cols))
    return list(loop.end(*multiplied(*here, list(loop.values))))
