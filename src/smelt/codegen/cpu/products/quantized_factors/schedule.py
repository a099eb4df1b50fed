"""Products with a quantized right factor, `x @ w.t()`: integers become floats in registers, vectors run along the sum.

    for 4 rows of w: for each group of 64: 4 scales, then 2 times 16 bytes of each row
    → 32 integers, the lower halves of the bytes and then the upper ones, times 32 elements of x

The right factor is read once, in place. The left factor is copied first, in the order in which the loops read it: what
lower halves are multiplied with, then what upper halves are. With few rows of x, products are added up for a group and
scaled then; offsets are multiplied with the sums of x. With more rows, each weight is scaled before it is used. With
many rows, all weights are converted first, for tiles (`many_rows.py`). Few rows of finite numbers are multiplied in
fixed point (`fixed_point.py`) where the processor has dot products of bytes. Those also multiply a left factor of bytes
with scales: few rows in fixed point, many in tiles of their own (`byte_tiles.py`).
"""

from dataclasses import replace
from functools import partial

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu.entry_points import KernelFunctions, params
from smelt.codegen.cpu.kernel_schedules import Schedule
from smelt.codegen.cpu.products.dot import store_totals
from smelt.codegen.cpu.products.problem import QUANTIZED, Problem, at_example
from smelt.codegen.cpu.products.quantized_factors.byte_tiles import ByteTiles, byte_tiles_of, multiply_bytes
from smelt.codegen.cpu.products.quantized_factors.fixed_point import (
    FixedPoint,
    FixedPointDots,
    fixed_point_of,
    group_size,
    pack_bytes,
    pack_fixed,
)
from smelt.codegen.cpu.products.quantized_factors.layout import (
    Beside,
    Layout,
    first_half,
    is_scaled_bytes,
    layout_of,
    left_vectors,
    oriented,
)
from smelt.codegen.cpu.products.quantized_factors.many_rows import ManyRows, many_rows_of, multiply_many
from smelt.codegen.cpu.products.streamed_blocks import StreamedBlock, StreamedBlocks, block_lanes, write_blocks
from smelt.codegen.cpu.products.tile_shape import TileShape
from smelt.codegen.generator import EntryCode
from smelt.codegen.loops.arrays import Array
from smelt.codegen.loops.builder import Builder
from smelt.device import Target
from smelt.ir.kernel import Index
from smelt.ir.loops import Function, Value
from smelt.ir.tensorspec import short_name
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import hint, is_symsize, known_equal

_REGISTER_BITS = 128
_ROWS = 64  # of a block
_LEFT_ELEMENTS = 128 * 1024  # of a thread's copy of the left factor: they stay in the second cache
_CYCLES_OF_VECTOR = 1.2  # an instruction with a row of x in fixed point: AVX-512 VNNI, 4 rows of 2048
_VARYING_ROWS = 256  # for which a product of bytes is scheduled, where their number varies
_COLS = 32
_MOST_ROWS = 5  # of a tile
_TILE_COLS = 4
_UNROLL = 4  # vectors of integers in a round
_BYTES_A_CYCLE = 5  # of integers that are read from memory
_TABLE_LANES = 16  # of a table with a float for each integer of 4 bits


@dataclass(frozen=True, slots=True)
class _Tile:
    """`rows` × `cols` results at a time; `lanes` bytes of each row of the right factor a step, `unroll` steps a round.
    `late`: scales are multiplied with the sums of a group. `exact`: zero points are subtracted from integers, so that
    an infinite element of x times a weight that is zero is NaN, as in eager."""

    rows: int
    cols: int
    lanes: int
    unroll: int
    late: bool
    exact: bool = False


def _why_not(problem: Problem, target: Target) -> str | None:
    if not problem.is_quantized:
        return "no factor is quantized"
    problem = oriented(problem)
    if problem.contract.right.quantized is None:
        return QUANTIZED
    if problem.is_bounded:
        return "a factor has bounds"
    if problem.dtype is not torch.float32:
        return f"integers are multiplied in f32, not in {short_name(problem.dtype)}"
    if known_equal(problem.multiplications, 0):
        return "there is nothing to multiply"
    if not problem.n:
        return "the right factor has one row"
    layout = layout_of(problem)
    if isinstance(layout, str):
        return layout
    left = problem.contract.left.quantized
    if left is not None and not is_scaled_bytes(left):
        return "both factors are quantized, and none is bytes with nothing but a scale"
    if left is not None and _byte_form(problem, layout, target) is None:
        return "there are no dot products of bytes, or groups are no whole vectors of bytes"
    return None if _lanes(layout, target) else "groups are no whole vectors"


def _byte_form(problem: Problem, layout: Layout, target: Target) -> FixedPoint | ByteTiles | None:
    """How a left factor of bytes is multiplied. If the number of rows varies, as that of a prompt does, there may be
    many more than in the example."""
    varies = is_symsize(problem.rows)
    problem = at_example(problem)
    if varies and problem.m:
        problem = replace(problem, m=(replace(problem.m[0], size=max(_VARYING_ROWS, hint(problem.rows))),))
    few, many = fixed_point_of(problem, layout, target), byte_tiles_of(problem, layout, target)
    if few is None or many is None:
        return few or many
    return many if _bytes_cycles(problem, layout, many) < _bytes_cycles(problem, layout, few) else few


def _bytes_cycles(problem: Problem, layout: Layout, form: FixedPoint | ByteTiles) -> float:
    if isinstance(form, ByteTiles):
        computing = form.cycles(problem)
    else:
        tiles = -(-problem.rows // form.rows)
        products = tiles * form.rows * (form.parts + 3 / form.steps)
        computing = problem.cols * form.vectors * (1 + _CYCLES_OF_VECTOR * products)
    reading = problem.cols * layout.groups * layout.units / _BYTES_A_CYCLE
    return float(max(computing, reading) + problem.rows * problem.depth / 4)


def _lanes(layout: Layout, target: Target) -> int:
    """Elements of a vector; 0 where a group is not whole vectors."""
    lanes = max(target.vector_bits, _REGISTER_BITS) // 32
    while layout.units % lanes:
        lanes //= 2
    return lanes if lanes * 32 >= _REGISTER_BITS else 0


def _tile_of(problem: Problem, layout: Layout, target: Target) -> _Tile:
    """Few rows scale late. Of the others, tiles of rows that leave few over."""
    lanes = _lanes(layout, target)
    steps = layout.units // lanes
    unroll = next(count for count in range(min(_UNROLL, steps), 0, -1) if steps % count == 0)
    rows, cols = hint(problem.rows), min(_TILE_COLS, hint(problem.cols))
    if rows <= 2:
        return _Tile(rows, cols if target.vector_registers >= 32 or rows == 1 else 2, lanes, unroll, late=True)
    most = _MOST_ROWS if target.vector_registers >= 32 else 3
    cols = cols if target.vector_registers >= 32 else min(cols, 3)
    best = min(range(2, most + 1), key=lambda each: -(-rows // each) * (each + 3))
    return _Tile(best, cols, lanes, min(unroll, 2) if unroll % 2 == 0 else unroll, late=False)


def _cycles(problem: Problem, target: Target) -> float:
    problem = at_example(oriented(problem))
    layout = layout_of(problem)
    assert not isinstance(layout, str)
    of_bytes = _byte_form(problem, layout, target) if problem.contract.left.quantized else None
    if of_bytes is not None:
        return problem.batches * _bytes_cycles(problem, layout, of_bytes)
    tile = _tile_of(problem, layout, target)
    many = _many_rows(problem, layout, tile, target)
    return problem.batches * (_tiles_cycles(problem, layout, tile) if many is None else many.cycles(problem))


def _many_rows(problem: Problem, layout: Layout, tile: _Tile, target: Target) -> ManyRows | None:
    """The form with panels of floats, if that is faster than tiles."""
    many = many_rows_of(problem, layout, target)
    return many if many is not None and many.cycles(problem) < _tiles_cycles(problem, layout, tile) else None


def _tiles_cycles(problem: Problem, layout: Layout, tile: _Tile) -> float:
    vectors = problem.depth / tile.lanes
    tiles = -(-problem.rows // tile.rows)
    step = 1.5 * len(layout.parts) ** 0.5 + (0 if tile.late else 0.5) + tile.rows * 0.55
    computing = problem.cols * tiles * (vectors * step + layout.groups * (1 + tile.late))
    reading = problem.cols * layout.groups * layout.units / _BYTES_A_CYCLE
    packing = problem.rows * problem.depth * (0.5 if layout.unit_left == 1 else 1)
    return float(max(computing, reading) + packing)


def _blocks_of(
    problem: Problem, target: Target, tile: _Tile | TileShape, steep: int, rows: int, cols: int, more: int
) -> StreamedBlocks:
    """Blocks of at most `rows` and `cols`. The problem that they have reads bytes, from the first of a row on. `steep`:
    elements of the copy of a tile of the left factor; behind all copies are `more`."""
    right = problem.contract.right
    packed = 2 if right.quantized is not None and right.quantized.is_packed else 1
    inside = {axis.name for axis in problem.k}
    terms = tuple((name, step // packed) for name, step in right.index.terms if name not in inside)
    first = (right.index.offset - first_half(problem)) // packed
    contract = replace(problem.contract, right=replace(right, index=Index(terms, first)))
    n = tuple(replace(axis, right=axis.right // packed) for axis in problem.n)
    problem = replace(problem.with_contract(contract), n=n)
    col_step = -(-min(cols, hint(problem.cols)) // tile.cols) * tile.cols
    lanes = block_lanes(problem, target, col_step)
    while col_step % lanes:
        col_step += tile.cols
    row_step = max(tile.rows, rows // tile.rows * tile.rows)
    if not is_symsize(problem.rows):
        row_step = min(row_step, problem.rows)
    block_rows = -(-row_step // tile.rows) * tile.rows
    pitch = -(-(col_step + lanes) // tile.cols) * tile.cols + _REGISTER_BITS // 32
    left_size = block_rows // tile.rows * steep + more
    return StreamedBlocks(problem, lanes, lanes, row_step, col_step, pitch, block_rows, left_size)


def _steep(layout: Layout, tile: _Tile) -> int:
    """Elements of the copy of a tile of the left factor: its own, and its sums if scales are multiplied late."""
    return tile.rows * layout.groups * (layout.units * len(layout.parts) + (tile.lanes if tile.late else 0))


def _write(code: KernelFunctions, problem: Problem) -> EntryCode:
    problem = oriented(problem)
    layout = layout_of(problem)
    assert not isinstance(layout, str)
    example = at_example(problem)
    if problem.contract.left.quantized is not None:
        form = _byte_form(problem, layout, code.target)
        assert form is not None
        return _write_bytes(code, problem, layout, form)
    tile = _tile_of(example, layout, code.target)
    many = _many_rows(example, layout, tile, code.target)
    if many is not None:
        sizes = many.tile.rows * int(problem.depth), many.rows(hint(problem.rows)), many.cols, many.panel_elements
        blocks = _blocks_of(problem, code.target, many.tile, *sizes)
        return write_blocks(code, blocks, partial(multiply_many, layout=layout, form=many))
    fixed = fixed_point_of(example, layout, code.target)
    plain = replace(tile, late=False, exact=True) if tile.late else None
    steep = max(_steep(layout, tile), fixed.elements if fixed else 0)
    rows = min(_ROWS, _LEFT_ELEMENTS // steep * tile.rows)
    blocks = _blocks_of(problem, code.target, tile, steep, rows, _COLS, 1)
    end = int(blocks.left_size) - 1

    def compute(b: Builder, blocks: StreamedBlocks, block: StreamedBlock) -> None:
        """With few rows, `plain` tiles multiply infinite and undefined elements."""
        is_even = block.packed.at(end)
        with b.when(block.fresh):
            is_even.store(b.const("f32", 1.0))
            _pack_left(b, blocks.problem, layout, fixed or tile, block, is_even)
            if plain is not None:
                with b.when(b.fcmp("oeq", is_even.load(), 0.0)):
                    _pack_left(b, blocks.problem, layout, plain, block, is_even)
        if plain is None:
            _call_dots(b, blocks, layout, tile, block)
            return
        b.choice(
            b.fcmp("oeq", is_even.load(), 1.0),
            lambda: _call_dots(b, blocks, layout, fixed or tile, block),
            lambda: _call_dots(b, blocks, layout, plain, block),
        )

    return write_blocks(code, blocks, compute)


def _write_bytes(code: KernelFunctions, problem: Problem, layout: Layout, form: FixedPoint | ByteTiles) -> EntryCode:
    """With a left factor of bytes."""
    if isinstance(form, ByteTiles):
        rows = max(_VARYING_ROWS, hint(problem.rows)) if is_symsize(problem.rows) else hint(problem.rows)
        sizes = form.groups * form.left_group, form.rows(rows), form.cols, form.panel_elements
        blocks = _blocks_of(problem, code.target, form.tile, *sizes)
        return write_blocks(code, blocks, partial(multiply_bytes, layout=layout, form=form))
    tile = _Tile(form.rows, 1, form.lanes, 1, late=True)
    rows = min(_ROWS, _LEFT_ELEMENTS // form.elements * form.rows)

    def compute(b: Builder, blocks: StreamedBlocks, block: StreamedBlock) -> None:
        problem, (scale,) = blocks.problem, block.left_elements
        of_scale = problem.contract.left.elements[1].index
        apart, scale_apart = (problem.m[0].left, of_scale.stride(problem.m[0].name)) if problem.m else (0, 0)
        with b.when(block.fresh), b.loop(0, block.rows, form.rows) as first:
            place = block.packed.at(b.mul(b.udiv(first, form.rows), form.elements))
            numbers = [b.smin(b.add(first, number), b.sub(block.rows, 1)) for number in range(form.rows)]
            lines = [block.left.at(b.mul(row, apart)) for row in numbers]
            pack_bytes(b, form, layout, lines, [scale.at(b.mul(row, scale_apart)) for row in numbers], place)
        _call_dots(b, blocks, layout, form, block)

    return write_blocks(code, _blocks_of(problem, code.target, tile, form.elements, rows, _COLS, 0), compute)


SCHEDULE = Schedule(
    "quantized", "x @ w.t() of integers with scales: they become numbers in registers, w is read in place",
    _why_not, _cycles, _write,
)  # fmt: skip


# The left factor.


def _pack_left(
    b: Builder, problem: Problem, layout: Layout, tile: _Tile | FixedPoint, block: StreamedBlock, is_even: Array
) -> None:
    """Pack the rows of a block in tiles. Missing rows of a last tile repeat the last row. `is_even` becomes 0 where
    the tile needs finite numbers and a row has others."""
    apart = problem.m[0].left if problem.m else 0
    elements = tile.elements if isinstance(tile, FixedPoint) else _steep(layout, tile)
    with b.loop(0, block.rows, tile.rows) as first:
        place = block.packed.at(b.mul(b.udiv(first, tile.rows), elements))
        numbers = [b.smin(b.add(first, number), b.sub(block.rows, 1)) for number in range(tile.rows)]
        lines = [block.left.at(b.mul(row, apart)) for row in numbers]
        if isinstance(tile, FixedPoint):
            pack_fixed(b, tile, layout, problem.dtype, lines, place, is_even)
        else:
            _pack_floats(b, tile, layout, problem.dtype, lines, place, is_even)


def _pack_floats(
    b: Builder, tile: _Tile, layout: Layout, dtype: torch.dtype, lines: list[Array], place: Array, is_even: Array
) -> None:
    """At each step of a group a vector of each row for each integer of a byte; after the group, the sum of these
    vectors."""
    lanes = tile.lanes
    with b.loop(0, layout.groups) as group:
        to = place.at(b.mul(group, _steep(layout, tile) // layout.groups))
        starts = [line.at(b.mul(group, layout.group_left)) for line in lines]
        with b.loop(0, layout.units, lanes) as unit:
            step = to.at(b.mul(unit, tile.rows * len(layout.parts)))
            for row, start in enumerate(starts):
                vectors = left_vectors(b, dtype, start, layout, unit, lanes)
                for part, vector in enumerate(vectors):
                    step.store(vector, (row * len(vectors) + part) * lanes)
        for row, start in enumerate(starts if tile.late else ()):
            size = group_size(b, layout, dtype, start, lanes)
            to.store(size.sums, tile.rows * layout.units * len(layout.parts) + row * lanes)
            with b.when(size.is_uneven):
                is_even.store(is_even.zero())


# The sums.

_TAKEN = params("ptr left, ptr right, i64 apart, ptr sums, i64 pitch, i64 rows, i64 cols, i64 groups")
_LEFT, _RIGHT, _APART, _SUMS, _PITCH, _ROW_COUNT, _WIDTH, _GROUPS = _TAKEN


def _call_dots(
    b: Builder, blocks: StreamedBlocks, layout: Layout, tile: _Tile | FixedPoint, block: StreamedBlock
) -> None:
    problem = blocks.problem
    args: list[Value | Size] = [block.packed.pointer, block.right.pointer, problem.n[0].right]
    args += [block.sums.pointer, blocks.pitch, block.rows, block.cols]
    if isinstance(tile, FixedPoint):
        beside = Beside(problem, block, along=False)
        dots = FixedPointDots(b.target, tile, layout, beside).write()
    else:
        beside = Beside(problem, block)
        dots, args = _Dots(b.target, tile, layout, beside).write(), [*args, layout.groups]
    b.call_helper(dots, *args, *beside.args(layout))


class _Dots:
    """The function that computes a block: rows of a packed left factor by rows of bytes, `apart` from each other."""

    def __init__(self, target: Target, tile: _Tile, layout: Layout, beside: Beside) -> None:
        quantized = beside.quantized
        self.layout, self.tile, self.beside, self.quantized = layout, tile, beside, quantized
        self.b = Builder(target)
        self.count = len(layout.parts)
        self.looks_up = quantized.is_packed and target.has_lane_lookup and tile.lanes == _TABLE_LANES
        # Signed halves of bytes are read as unsigned ones that are 8 too many. A table has the offset in its values.
        self.offset = 0 if self.looks_up else quantized.offset + (8 if quantized.kind == "i4" else 0)
        self.is_moved = bool(self.offset) or quantized.zero is not None
        # A zero point times a scale is rounded if one of them has 24 bits. Otherwise a weight of zero stays zero.
        self.subtracts = tile.exact or (quantized.zero is not None and torch.float32 in beside.dtypes[:2])

    @property
    def name(self) -> str:
        quantized, tile, layout = self.quantized, self.tile, self.layout
        order = ".late" if tile.late else ".exact" if tile.exact else ""
        shape = f"{tile.rows}x{tile.cols}x{tile.lanes}.{tile.unroll}.units{layout.units}{order}"
        kind = f"{quantized.kind}.less{quantized.offset}{'.table' if self.looks_up else ''}"
        return f"smelt.quantized_dot.{kind}.{self.beside.text}.{shape}.{layout.group_right}"

    def write(self) -> Function:
        b, tile = self.b, self.tile
        left, sums = (Array(b, each, torch.float32) for each in (_LEFT, _SUMS))
        right = Array(b, _RIGHT, torch.uint8)
        steep = _steep(self.layout, tile) // self.layout.groups
        with b.loop(0, _WIDTH, tile.cols) as column:
            cols = [b.smin(b.add(column, number), b.sub(_WIDTH, 1)) for number in range(tile.cols)]
            lines = [right.at(b.mul(col, _APART)) for col in cols]
            elements = self.beside.arrays(b, cols)
            with b.loop(0, _ROW_COUNT, tile.rows) as row:
                panel = left.at(b.mul(b.mul(b.udiv(row, tile.rows), steep), _GROUPS))
                totals = self._along(lines, elements, panel)
                corner = sums.at(b.add(b.mul(row, _PITCH), column))
                for number in range(tile.rows):
                    of_row = totals[number * tile.cols : (number + 1) * tile.cols]
                    store_totals(of_row, corner.at(b.mul(_PITCH, number)))
        return b.function(self.name, (*_TAKEN, *self.beside.all_params), "shared")

    def _along(self, lines: list[Array], elements: list[list[Array]], panel: Array) -> list[Value]:
        """The loop over the groups of a tile."""
        b, tile, layout = self.b, self.tile, self.layout
        zero = panel.zero(tile.lanes)
        loop = b.begin(0, _GROUPS, 1, [zero] * (tile.rows * tile.cols))
        here = panel.at(b.mul(loop.index, _steep(layout, tile) // layout.groups))
        integers = [line.at(b.mul(loop.index, layout.group_right)) for line in lines]
        numbers = [
            [b.splat(each.load_as(torch.float32, b.mul(loop.index, along)), tile.lanes) for each in some]
            for some, (_, _, along) in zip(elements, self.beside.params, strict=True)
        ]
        scales, zeros, lows = self.beside.apart(numbers)
        moves = self._moves(zeros)
        if tile.late:
            sums = self._scaled_late(list(loop.values), integers, here, scales, moves, lows)
        else:
            subtracted, folded = (moves, None) if self.subtracts else (None, moves)
            added = [self._added(number, scales, folded, lows) for number in range(tile.cols)]
            sums = self._steps(list(loop.values), integers, here, scales, added, subtracted)
        return list(loop.end(*sums))

    def _moves(self, zeros: list[Value] | None) -> list[Value] | None:
        """What is subtracted from the integers of each column; None if nothing is."""
        b, tile = self.b, self.tile
        if zeros is None:
            return [b.const("f32", float(self.offset), tile.lanes)] * tile.cols if self.offset else None
        return [b.fadd(zero, float(self.offset)) for zero in zeros] if self.offset else zeros

    def _added(
        self, number: int, scales: list[Value], moves: list[Value] | None, lows: list[Value] | None
    ) -> Value | None:
        """What is added to each scaled integer of a column."""
        b = self.b
        low = lows[number] if lows is not None else None
        if moves is None:
            return low
        moved = b.fneg(b.fmul(moves[number], scales[number]))
        return moved if low is None else b.fadd(low, moved)

    def _scaled_late(
        self,
        totals: list[Value],
        integers: list[Array],
        here: Array,
        scales: list[Value],
        moves: list[Value] | None,
        lows: list[Value] | None,
    ) -> list[Value]:
        """The totals with a group more, whose products are added up first."""
        b, tile, layout = self.b, self.tile, self.layout
        sums = here.at(tile.rows * layout.units * self.count)
        sums_of_left = [sums.load(row * tile.lanes, tile.lanes) for row in range(tile.rows)]
        starts = [
            b.fneg(b.fmul(sums_of_left[row], moves[col])) if moves is not None else here.zero(tile.lanes)
            for row in range(tile.rows)
            for col in range(tile.cols)
        ]
        groups = self._steps(starts, integers, here, None, [None] * tile.cols)
        for number, group in enumerate(groups):
            row, col = divmod(number, tile.cols)
            totals[number] = b.fma(group, scales[col], totals[number])
            if lows is not None:
                totals[number] = b.fma(sums_of_left[row], lows[col], totals[number])
        return totals

    def _steps(
        self,
        sums: list[Value],
        integers: list[Array],
        here: Array,
        scales: list[Value] | None,
        added: list[Value | None],
        subtracted: list[Value] | None = None,
    ) -> list[Value]:
        """The sums with the products of a group more."""
        b, tile, layout = self.b, self.tile, self.layout
        each_round = tile.unroll * tile.lanes
        if layout.units == each_round:
            return self._round(sums, integers, here, scales, added, subtracted)
        loop = b.begin(0, layout.units, each_round, sums)
        moved = [line.at(loop.index) for line in integers]
        place = here.at(b.mul(loop.index, tile.rows * self.count))
        return list(loop.end(*self._round(list(loop.values), moved, place, scales, added, subtracted)))

    def _round(
        self,
        sums: list[Value],
        integers: list[Array],
        here: Array,
        scales: list[Value] | None,
        added: list[Value | None],
        subtracted: list[Value] | None = None,
    ) -> list[Value]:
        """`unroll` steps: a vector of bytes of each column, times vectors of each row."""
        b, tile = self.b, self.tile
        for step in range(tile.unroll):
            place = here.at(step * tile.lanes * tile.rows * self.count)
            weights = [self._weights(line.load(step * tile.lanes, tile.lanes)) for line in integers]
            for part in range(self.count):
                rows = [place.load((row * self.count + part) * tile.lanes, tile.lanes) for row in range(tile.rows)]
                for col in range(tile.cols):
                    weight = weights[col][part]
                    if subtracted is not None:
                        weight = b.fsub(weight, subtracted[col])
                    if scales is not None:
                        scale, low = scales[col], added[col]
                        weight = b.fmul(weight, scale) if low is None else b.fma(weight, scale, low)
                    for row, vector in enumerate(rows):
                        number = row * tile.cols + col
                        sums[number] = b.fma(vector, weight, sums[number])
        return sums

    def _weights(self, taken: Value) -> list[Value]:
        """A vector of bytes as floats: one vector, or those of the lower and of the upper halves."""
        b, kind = self.b, self.quantized.kind
        if not self.quantized.is_packed:
            return [b.convert("sitofp", b.convert("sext" if kind == "i8" else "zext", taken, "i32"), "f32")]
        if self.looks_up:
            return self._looked_up(b.convert("zext", taken, "i32"))
        halves = b.xor(taken, -0x78) if kind == "i4" else taken  # 0x88
        wide = b.convert("zext", halves, "i32")
        return [b.convert("sitofp", each, "f32") for each in (b.and_(wide, 15), b.lshr(wide, 4))]

    def _looked_up(self, wide: Value) -> list[Value]:
        """Both halves of each byte as indices to a table of floats: only the lowest four bits of an index count."""
        values = [half - 16 if self.quantized.kind == "i4" and half > 7 else half for half in range(_TABLE_LANES)]
        table = self.b.floats([float(value - self.quantized.offset) for value in values])
        return [self.b.looked_up(table, each) for each in (wide, self.b.lshr(wide, 4))]
