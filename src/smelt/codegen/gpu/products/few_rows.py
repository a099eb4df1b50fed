"""Products of few rows: `FewRows`, a grid that reads each weight once, with enough of them on the way at any time.

    p = contract (k:4096) x[4096*i + k], w[4096*j + k]     2 × 14336 points, bf16
    → teams of a warp for every two cols: a lane takes eight terms at once of both, four times before it multiplies

Three ways to multiply, by where the weights are contiguous: along the terms, each lane with some terms of a few cols
(`ALONG`) or warps as matrix units have them (`MATRIX`); along the cols, each lane with some cols of a few terms
(`ACROSS`). Warps of a team share the terms; what they sum meets in shared memory and is added in order.
"""

from dataclasses import replace

import torch

from smelt.codegen.axes import merged_axes
from smelt.codegen.gpu.products.few_rows_body import (
    MATRIX_TERMS,
    AcrossBody,
    AlongBody,
    FewRows,
    FewRowsBody,
    MatrixBody,
    Split,
    Way,
)
from smelt.codegen.gpu.products.quantized_rows import (
    QuantizedBody,
    QuantizedMatrixBody,
    bytes_at_once,
    in_bytes,
    units_of,
)
from smelt.codegen.gpu.simt import MOST_BYTES
from smelt.device import Target
from smelt.ir.kernel import Axis, Contract, Factor, Kernel
from smelt.symbolic.shapes import product
from smelt.symbolic.symsize import is_symsize

_MOST_ROWS = {1: 4, 2: 4, 4: 8, 8: 4}  # by lanes, for elements of so many bytes: with more, arithmetic takes longer
_MOST_MATRIX_ROWS = 16
_BLOCK_WARPS = 8
_MOST_SUMS = 32  # of a lane
_MOST_WARPS = 16  # of a team whose lanes have several cols
_LEAST_VECTORS = 4  # of a lane, of terms
_MOST_UNROLLED = 4  # vectors of weights that a lane asks for before it multiplies
_ACROSS_LANES, _FEW_BLOCKS = 4, 64  # lanes side by side along the cols, unless that leaves few blocks
_MOST_TERMS = 1 << 18  # weights of a block: of more, several blocks share the terms
_MATRIX_COLS = 16
_MULTIPROCESSORS = 132
_QUAD, _LEAST_TILE = 4, 4  # lanes that share a col; bytes of each of them
_BYTES_IN_FLIGHT = 128  # of quantized weights, that a lane asks for before it multiplies

BODIES: dict[Way, type[FewRowsBody]] = {Way.ALONG: AlongBody, Way.ACROSS: AcrossBody, Way.MATRIX: MatrixBody}


def few_rows(kernel: Kernel, contract: Contract, target: Target) -> FewRows | str:
    """The grid of a product of few rows, or why it is none."""
    axes = kernel.rows + kernel.cols
    sizes = [axis.size for axis in (*axes, *contract.axes)]
    if any(is_symsize(size) for size in sizes):
        return "its sizes vary"
    if target.form == "spirv" or any(factor.bounds for factor in contract.factors):
        return "its terms are padded"
    names = [factor.index.axes for factor in contract.factors]
    own = [tuple(axis for axis in axes if axis.name in names[side] - names[1 - side]) for side in (0, 1)]
    if len(own[0]) + len(own[1]) != len(axes):
        return "it has a batch"
    counts = [product(axis.size for axis in each) for each in own]
    sides = (0, 1) if counts[0] <= counts[1] else (1, 0)
    left, right = (contract.factors[side] for side in sides)
    dtype = kernel.buffer(right.buffer).dtype
    rows, cols = own[sides[0]], tuple(sorted(own[sides[1]], key=lambda axis: right.index.stride(axis.name) == 1))
    if right.quantized is not None or left.quantized is not None:
        return _quantized(kernel, contract, rows, cols, left, right, target)
    inner, walked = (tuple(merged_axes(contract.axes, [factor.index])) for factor in (right, left))
    way = _way(left, right, cols, inner[0]) if len(inner) == 1 else None
    if len(inner) != 1 or (len(walked) > 1 and way is not Way.ALONG):
        return "its terms have several axes"
    if way is None:
        return "weights are contiguous along neither terms nor cols"
    count = int(product(axis.size for axis in rows))
    if way is Way.ALONG and count > 1 and len(walked) == 1:
        way = Way.MATRIX if _fits_matrix_units(kernel, left, right, contract, inner[0], target) else way
    if count > (_MOST_MATRIX_ROWS if way is Way.MATRIX else _MOST_ROWS[dtype.itemsize]):
        return "it has many rows"
    along = cols if way is Way.ACROSS else inner
    vector = _vector(left if way is not Way.ACROSS else None, right, along[-1], dtype)
    while walked[-1].size % vector:
        vector //= 2
    while way is Way.ACROSS and vector * count > _MOST_SUMS:
        vector //= 2
    whole, body = Split(1, 1, 1, 1), BODIES[way]
    grid = FewRows(
        kernel, rows, cols, inner, left, right, way, vector, target.warp_size, whole, body=body, walked=walked
    )
    if grid.term_count < target.warp_size * vector and way is Way.ALONG:
        return "it has few terms"
    return _sized(grid)


def _quantized(
    kernel: Kernel,
    contract: Contract,
    rows: tuple[Axis, ...],
    cols: tuple[Axis, ...],
    left: Factor,
    right: Factor,
    target: Target,
) -> FewRows | str:
    """With weights of eight or four bits."""
    if right.quantized is None or left.quantized is not None or contract.dtype is not torch.float32:
        return "what is quantized has few rows"
    if product(axis.size for axis in rows) > _MOST_ROWS[1]:
        return "it has many rows"
    units, weights = units_of(contract, left, right), in_bytes(right, contract)
    if isinstance(units, str) or weights is None:
        return units if isinstance(units, str) else "cols begin within a byte"
    vector = bytes_at_once(kernel, left, weights, units, contract)
    axes, warp = (Axis("units", units.count),), target.warp_size
    grid = FewRows(
        kernel, rows, cols, axes, left, weights, Way.QUANTIZED, vector, warp, Split(1, 1, 1, 1),
        body=QuantizedBody, units=units,
    )  # fmt: skip
    tile = min(vector, units.group // _QUAD)
    is_half = kernel.buffer(left.buffer).dtype in (torch.bfloat16, torch.float16)
    if target.multiplies_matrices and is_half and tile >= _LEAST_TILE and tile & (tile - 1) == 0:
        grid = replace(grid, way=Way.QUANTIZED_MATRIX, vector=tile, body=QuantizedMatrixBody)
    return _sized(grid)


def _sized(grid: FewRows) -> FewRows | str:
    split = split_of(grid)
    sized = replace(grid, split=split, threads=split.warps * split.teams * grid.warp)
    return "it has many terms of few cols" if grid.term_count * sized.block_cols > _MOST_TERMS else sized


def _way(left: Factor, right: Factor, cols: tuple[Axis, ...], inner: Axis) -> Way | None:
    if right.index.stride(inner.name) == 1 and left.index.stride(inner.name) == 1:
        return Way.ALONG
    return Way.ACROSS if cols and right.index.stride(cols[-1].name) == 1 else None


def _fits_matrix_units(
    kernel: Kernel, left: Factor, right: Factor, contract: Contract, inner: Axis, target: Target
) -> bool:
    dtype = kernel.buffer(right.buffer).dtype
    if not target.multiplies_matrices or dtype not in (torch.bfloat16, torch.float16):
        return False
    if kernel.buffer(left.buffer).dtype is not dtype:
        return False
    if contract.dtype is not torch.float32 or inner.size < MATRIX_TERMS:
        return False
    return _vector(left, right, inner, dtype) == MOST_BYTES // dtype.itemsize


def _vector(left: Factor | None, right: Factor, axis: Axis, dtype: torch.dtype) -> int:
    """Elements of an access along an axis, which all begin at multiples of so many."""
    steps = [axis.size]
    for factor in (right,) if left is None else (left, right):
        steps += [factor.index.offset, *(stride for name, stride in factor.index.terms if name != axis.name)]
    width = MOST_BYTES // dtype.itemsize
    while any(step % width for step in steps):
        width //= 2
    return width


def split_of(grid: FewRows) -> Split:
    """Which splits are fastest was measured on an H200 by `python -m benchmarks.gpu_products --sweep`."""
    if grid.way is Way.MATRIX:
        return _shared(grid, _MATRIX_COLS, MATRIX_TERMS)
    if grid.way is Way.QUANTIZED_MATRIX:  # all that a warp reads at once: then few warps, else as many as there may be
        unroll, steps, warps = _BYTES_IN_FLIGHT // (2 * grid.vector), -(-grid.term_count // grid.tile), 1
        while warps < _MOST_WARPS and warps * unroll < steps:
            warps *= 2
        while unroll > 1 and warps * unroll // 2 >= steps:
            unroll //= 2
        teams = min(_BLOCK_WARPS // warps, grid.col_count // (_MATRIX_COLS * _MULTIPROCESSORS))
        return Split(_MATRIX_COLS, warps, max(1, teams & -teams), unroll)
    if grid.way in (Way.ALONG, Way.QUANTIZED):
        return _shared(grid, 1, grid.warp * grid.vector)
    lanes = min(_ACROSS_LANES, grid.warp // 2)
    while lanes > 2 and grid.col_count // (grid.vector * lanes) < _FEW_BLOCKS:
        lanes //= 2
    cols = grid.vector * lanes
    return replace(_shared(grid, cols, grid.warp // lanes), warps=_MOST_WARPS, teams=1, unroll=2)


def _shared(grid: FewRows, cols: int, terms: int) -> Split:
    """With so many warps that each takes `terms` a few times, as many times at once as it can."""
    steps, warps, unroll = -(-grid.term_count // terms), 1, 1
    while warps < _BLOCK_WARPS and steps // (2 * warps) >= _LEAST_VECTORS:
        warps *= 2
    while unroll < _MOST_UNROLLED and steps // warps >= 2 * unroll:
        unroll *= 2
    return Split(cols, warps, _BLOCK_WARPS // warps, unroll)
