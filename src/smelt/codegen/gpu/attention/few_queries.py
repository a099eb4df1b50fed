"""Plans attention of few queries on a GPU: which lanes, warps and blocks go through which keys.

    8 heads of keys, 4 queries each, 4096 keys of 128 in bf16
    →  16 lanes have a key, a block of four warps goes through 128 keys, 32 blocks share a head; then a grid adds up
"""

from dataclasses import replace

import torch

from smelt.codegen.gpu.attention.parts_body import PARTS, KeyParts, PartSums, weighed_of
from smelt.codegen.gpu.grids import Grid
from smelt.codegen.gpu.simt import MOST_BYTES
from smelt.codegen.gpu.vector_width import is_multiple
from smelt.device import Target
from smelt.ir.check_kernel import is_attention
from smelt.ir.kernel import (
    Axis,
    Buffer,
    Cast,
    Compute,
    Const,
    Contract,
    Factor,
    Kernel,
    Load,
    Position,
    Role,
    Softmax,
    WeightedSum,
)
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import hint, is_symsize

_MOST_QUERIES, _MOST_SUMS = 8, 32  # of a lane, for all its queries
_BLOCKS = 2 * 132
_MOST_PARTS = 64
_MOST_THREADS, _FEW_STEPS = 256, 2  # of a block that goes through all keys of a head
_SHARED_BYTES = 40 << 10
_POINTS = Const | Load | Position | Compute | Cast


def few_queries(kernel: Kernel, target: Target) -> list[Grid] | str:
    """The grids, or the reason why the schedule does not apply."""
    if not is_attention(kernel):
        return "it weighs nothing"
    reason = _why_not(kernel)
    if reason is not None:
        return reason
    body = kernel.stages[0].body
    (contract,) = (i for i in body if isinstance(i, Contract))
    weighed, (key,) = weighed_of(kernel), kernel.cols
    queried, keyed = contract.factors if key.name in contract.factors[1].index.axes else contract.factors[::-1]
    shared = keyed.index.axes | weighed.factor.index.axes
    outer = tuple(axis for axis in kernel.rows if axis.name in shared)
    queries = tuple(axis for axis in kernel.rows if axis.name not in shared)
    width = int(contract.axes[0].size)
    vector = min(_vector(kernel, each, along) for each, along in (
        (queried, contract.axes[0]), (keyed, contract.axes[0]), (weighed.factor, weighed.axes[0]),
    ))  # fmt: skip
    lanes = min(target.warp_size, width // vector)
    if key.name in queried.index.axes or not vector or width % (lanes * vector) or lanes & (lanes - 1):
        return "the width is no power of two, or keys do not lie side by side"
    grid = KeyParts(kernel, outer, queries, vector, lanes, 1, 1, 1, target.warp_size)
    if grid.query_count > _MOST_QUERIES or grid.query_count * width // lanes > _MOST_SUMS:
        return "it has many queries"
    return _in_parts(replace(grid, unroll=4 if grid.query_count <= 4 else 2), key.size, width)


def _why_not(kernel: Kernel) -> str | None:
    if any(is_symsize(axis.size) for axis in kernel.rows):
        return "sizes other than the number of keys vary"
    body = kernel.stages[0].body
    kinds = [sum(isinstance(i, kind) for i in body) for kind in (Contract, Softmax, WeightedSum)]
    if len(kernel.stages) != 1 or kinds != [1, 1, 1] or len(kernel.cols) != 1:
        return "it has several scores or results"
    if any(isinstance(i, Softmax) and i.nan for i in body):
        return "rows without weights are NaN"
    folds = [i for i in body if isinstance(i, Contract | WeightedSum)]
    if any(not isinstance(i, _POINTS | Contract | Softmax | WeightedSum) for i in body):
        return "something is stored beside what is weighed"
    if any(len(i.axes) != 1 or i.dtype is not torch.float32 for i in folds):
        return "it sums in another dtype, or over several axes"
    weighed = weighed_of(kernel)
    widths = {i.axes[0].size for i in folds}
    if len(widths) != 1 or is_symsize(*widths) or kernel.cols[0].name in weighed.index.axes:
        return "keys and values have different widths"
    return None


def _vector(kernel: Kernel, factor: Factor, along: Axis) -> int:
    """Elements of an access; 0 if they do not lie side by side."""
    if factor.bounds or factor.index.stride(along.name) != 1:
        return 0
    size = kernel.buffer(factor.buffer).dtype.itemsize
    steps = [int(along.size), factor.index.offset, *(step for name, step in factor.index.terms if name != along.name)]
    width = MOST_BYTES // size
    while not all(is_multiple(step, width) for step in steps):
        width //= 2
    return width


def _in_parts(grid: KeyParts, keys: Size, width: int) -> list[Grid]:
    """With as many parts as keep the chip busy; where the number of keys varies, as many whatever it is. Few keys are
    one part, of more threads: adding up parts is another launch."""
    alone = _alone(grid, keys, width)
    if alone is not None:
        return [alone]
    step = grid.at_once * grid.unroll
    steps = -(-keys // step)
    parts = max(1, min(_BLOCKS // max(1, grid.outer_count), hint(steps), _MOST_PARTS))
    chunk = -(-steps // parts) * step
    if not is_symsize(chunk):
        parts = -(-int(keys) // int(chunk))
    grid = replace(grid, parts=parts, chunk=chunk)
    if parts == 1:
        return [grid]
    count = grid.outer_count * grid.query_count * parts
    sizes = zip(PARTS, (count, count, count * width), strict=True)
    buffers = [Buffer(name, torch.float32, size, Role.OUTPUT) for name, size in sizes]
    kernel = replace(grid.kernel, buffers=(*grid.kernel.buffers, *buffers))
    grid = replace(grid, kernel=kernel)
    return [grid, PartSums(kernel, grid)]


def _alone(grid: KeyParts, keys: Size, width: int) -> KeyParts | None:
    """A block for all keys of a head, if there are few."""
    while not is_symsize(keys) and grid.threads <= _MOST_THREADS:
        steps = -(-int(keys) // (grid.at_once * grid.unroll))
        if grid.warps * grid.query_count * (width + 2) * 4 > _SHARED_BYTES:
            return None
        if steps <= _FEW_STEPS:
            return replace(grid, chunk=steps * grid.at_once * grid.unroll)
        grid = replace(grid, threads=2 * grid.threads)
    return None
