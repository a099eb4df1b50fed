"""Products in register tiles of packed panels, for sizes that are worth packing.

    k0(buffers, threads, workspace)      smelt_parallel_for(k0.part, …) over blocks of rows and cols
      k0.part                            product.drive…, with k0.numbers: packs panels, sums tiles
        k0.finish(…, sums, …)            the epilogue of some rows of a block

A part owns its panels and sums, in its workspace. The functions that do the work are shared by all products of a module
(`drive`, `packing`, `micro_kernel`); a kernel has its own table of numbers and its own epilogue.
"""

import torch

from smelt.codegen.cpu.addresses import MINE
from smelt.codegen.cpu.entry_points import PART, KernelFunctions, params
from smelt.codegen.cpu.products.drive import DriveForm, drive
from smelt.codegen.cpu.products.epilogue import Epilogue, epilogue_lanes
from smelt.codegen.cpu.products.micro_kernel import micro_kernel, micro_kernel_along
from smelt.codegen.cpu.products.numbers import HEAD, Numbers, read, stored
from smelt.codegen.cpu.products.packing import PanelForm, fill, pack, pack_along, pack_bounded, points
from smelt.codegen.cpu.products.problem import QUANTIZED, Problem, at_example, count
from smelt.codegen.cpu.products.step_runs import period, run
from smelt.codegen.cpu.products.tile_shape import TileShape, rounded
from smelt.codegen.cpu.products.tiling import PanelSpace, Tiling, left_stays, right_stays, tile_shape
from smelt.codegen.cpu.products.window_packing import pack_channels, pack_windows
from smelt.codegen.generator import EntryCode
from smelt.codegen.loops.arrays import Array, positions
from smelt.codegen.loops.builder import BUFFERS, Builder, param
from smelt.device import Target
from smelt.ir.kernel import Store
from smelt.ir.loops import Function, Value
from smelt.symbolic.symsize import known_equal

_FINISH = params("ptr buffers, ptr sums, i64 outer, i64 top, i64 rows, i64 left, i64 cols")
_NUMBERS = param("numbers", "ptr")
_FLOATS = (torch.float32, torch.float64)


def why_not(problem: Problem, target: Target) -> str | None:
    if problem.is_quantized:
        return QUANTIZED
    return None if problem.dtype in _FLOATS else f"tiles are not summed in {problem.dtype}"


def cycles(problem: Problem, target: Target) -> float:
    """Multiplications of whole tiles, and two cycles an element for packing."""
    stays, transposed = left_stays(problem, target), right_stays(problem, target)
    if transposed:
        problem = problem.transposed()
    problem = at_example(problem)
    tile = TileShape.transposed(problem.dtype, target) if transposed else tile_shape(problem, target)
    rows, cols = (rounded(size, step) for size, step in ((problem.rows, tile.rows), (problem.cols, tile.cols)))
    work = rows * cols * problem.depth / (2 * tile.lanes)
    packed = problem.depth * (cols if stays or transposed else rows + cols)
    return float(problem.batches * (work + 2 * packed + rows * cols))


def write(code: KernelFunctions, problem: Problem) -> EntryCode:
    tiling = Tiling.of(problem, code.target)
    space = PanelSpace.of(tiling)
    out, numbers = stored(tiling), Numbers.of(tiling, space)
    helpers = _helpers(tiling, code.target, in_place=out is not None)
    code.helpers.update({each.name: each for each in helpers.values()})
    part, finish, entry = code.begin(), code.begin(), code.begin()
    if not numbers.is_constant:
        filling = code.begin()
        numbers.write(filling, tiling, _NUMBERS)
        code.add(filling, "fill_numbers", (BUFFERS, _NUMBERS))
    _write_part(part, tiling, helpers, out, _table(part, numbers))
    code.add(part, "part", PART)
    if numbers.is_constant:
        code.functions[-1].tables += (numbers.table(f"{code.symbol}.numbers", tiling),)
    if out is None:
        _Finish(finish, tiling, space).write()
        code.add(finish, "finish", _FINISH)
    table = _table(entry, numbers)
    units, threads = (read(entry, table, HEAD, name) for name in ("units", "threads"))
    return code.end(threads, units, space.workspace.size, b=entry)


def _table(b: Builder, numbers: Numbers) -> Value:
    """The constant table, or one on the stack, filled in."""
    if numbers.is_constant:
        return Value(f"@{b.symbol}.numbers", "ptr")
    table = b.stack("numbers", "i64", numbers.length, 8)
    b.call(f"{b.symbol}.fill_numbers", BUFFERS, table)
    return table


def _helpers(tiling: Tiling, target: Target, *, in_place: bool) -> dict[str, Function]:
    """The functions that a product shares with others, by purpose."""
    problem, tile = tiling.problem, tiling.tile
    if tiling.stays:
        innermost = micro_kernel_along(tile, problem.dtype, target, is_transposed=tiling.is_transposed)
    else:
        innermost = micro_kernel(tile, problem.dtype, target)
    helpers = {"tile": innermost, "fill.i64": fill(torch.int64, target)}
    if problem.is_bounded:
        helpers["fill.i32"] = fill(torch.int32, target)
    widths, kinds = (tile.rows, tile.cols), (problem.left_dtype, problem.right_dtype)
    for number, name in enumerate(("left", "right")):
        form = PanelForm(kinds[number], problem.dtype, widths[number])
        helpers[f"points.{name}"] = points(bool(problem.contract.factors[number].bounds), target)
        if number or not tiling.stays:
            helpers[f"pack.{name}"] = _packer(tiling, number, form, target)
    how = DriveForm(in_place, tiling.stays, tiling.is_transposed)
    helpers["drive"] = drive(tile, problem.dtype, innermost.name, target, how)
    return helpers


def _packer(tiling: Tiling, number: int, form: PanelForm, target: Target) -> Function:
    k, points = tiling.problem.k, (tiling.m, tiling.n)[number]
    factor = tiling.problem.contract.factors[number]
    if factor.bounds:
        packing = pack_windows if period(factor, k) else pack_channels if run(factor, k) else pack_bounded
        return packing(form, len(factor.bounds), target)
    # Vectors across are at least as good as along, where both lie side by side.
    across = len(points) == 1 and known_equal(factor.index.stride(points[0].name), 1)
    return (pack_along if known_equal(run(factor, k), count(k)) and not across else pack)(form, target)


def _write_part(b: Builder, tiling: Tiling, helpers: dict[str, Function], out: Store | None, table: Value) -> None:
    """The units of one thread, by the loops that are shared."""
    names = [buffer.name for buffer in tiling.problem.kernel.parameters]

    def address(buffer: str) -> Value:
        return b.load_pointer(names.index(buffer))

    def helper(name: str) -> Value:
        """The address of a function, or of nothing where the loops call none."""
        if name in helpers:
            return Value(f"@{helpers[name].name}", "ptr")
        return b.convert("inttoptr", b.const("i64", 0), "ptr")

    factors = [address(factor.buffer) for factor in tiling.problem.contract.factors]
    by = [helper(f"{what}.{side}") for what in ("points", "pack") for side in ("left", "right")]
    last = Value(f"@{b.symbol}.finish", "ptr") if out is None else address(out.buffer)
    _, _, *units, _ = PART
    b.call(helpers["drive"].name, table, BUFFERS, MINE, *units, *factors, *by, last)


class _Finish:
    """Writes the epilogue for the rows of one panel."""

    def __init__(self, b: Builder, tiling: Tiling, space: PanelSpace) -> None:
        self.b, self.tiling, self.stride = b, tiling, space.stride
        self.least = 0 if tiling.varies else self._narrowest()  # cols that a row of a block has
        lanes = epilogue_lanes(tiling.epilogue, b.target, self.least or space.cols)
        self.epilogue = Epilogue(b, tiling.epilogue, lanes)

    def _narrowest(self) -> int:
        tiling = self.tiling
        blocks = tiling.blocks(tiling.sizes)
        each, number = (blocks.rows, blocks.row_count) if tiling.is_transposed else (blocks.cols, blocks.col_count)
        widths = [each] if number > 1 else []
        widths.append(tiling.sizes[0 if tiling.is_transposed else 1] - each * (number - 1))
        return int(min([*widths, tiling.row_points] if tiling.beside else widths))

    def write(self) -> None:
        b, (_, pointer, outer, _, _, left, width) = self.b, _FINISH
        sums = Array(b, pointer, self.tiling.problem.dtype)
        self.epilogue.axes.update(positions(b, self.tiling.outer, outer))
        if not self.tiling.beside:
            self._rows(sums, left, width)
            return
        each = self.tiling.row_points
        with b.loop(0, b.udiv(width, each)) as number:
            self.epilogue.axes.update(positions(b, self.tiling.beside, b.add(b.udiv(left, each), number)))
            self._rows(sums.at(b.mul(number, each)), b.const("i64", 0), b.const("i64", each))

    def _rows(self, sums: Array, left: Value, width: Value) -> None:
        """Rows of the epilogue, from a column on."""
        _, _, _, top, rows, _, _ = _FINISH
        self.epilogue.write_block(sums, self.stride, top, rows, left, width, None, least=self.least, masks=False)
