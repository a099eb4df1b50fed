"""Plans attention of many queries on a GPU by tensor cores: which blocks have which rows of the scores.

    12 heads, 512 queries by 512 keys of 64 in bf16
    →  a block of four warps has 128 queries of a head, 32 a warp, and goes through the keys 64 at a time

The scores of a block are never in memory. A grid sums over the keys, with a softmax or without; gradients of keys and
values have grids of their own, whose rows are keys and which go through the queries.
"""

from dataclasses import replace

import torch

from smelt.codegen.attention_problem import AttentionProblem, Weighed, problem_of, why_no_problem
from smelt.codegen.axes import dense_index
from smelt.codegen.gpu.attention.score_tiles_body import MATRIX, ScoreTiles
from smelt.codegen.gpu.grids import Grid
from smelt.device import Target
from smelt.device.product_costs import MOST_ATTENTION_WIDTH
from smelt.ir.check_kernel import is_attention
from smelt.ir.kernel import (
    Axis,
    Buffer,
    Cast,
    Compute,
    Contract,
    Instruction,
    Kernel,
    Load,
    Reduce,
    Role,
    Stage,
    Store,
    WeightedSum,
)
from smelt.symbolic.shapes import product

_NARROW = (torch.bfloat16, torch.float16)
_MOST_SUMS = 64  # that a thread has of results
_MOST_KEPT = 128  # registers of a thread for results, scores, and factors of its rows: with more, some are spilled
_MULTIPROCESSORS = 132


def score_tiles(kernel: Kernel, target: Target) -> list[Grid] | str:
    """The grids, or the reason why the schedule does not apply."""
    reason = why_no_tiles(kernel, target)
    if reason is not None:
        return reason
    problem = problem_of(kernel)
    grids: list[Grid] = []
    for by_query in (True, False):
        sums = tuple(each for each in problem.sums if each.over_keys is by_query)
        if sums:
            grids.append(_sized(_of_sums(problem, sums), sums, by_query, target))
    return grids


def row_products_apart(kernel: Kernel) -> tuple[list[Kernel], Kernel]:
    """Kernels of the sums that have one number for each row, as in gradients, and what reads those."""
    if not is_attention(kernel) or len(kernel.cols) != 1:
        return [], kernel
    key, before, rest = kernel.cols[0].name, list[Kernel](), kernel
    for each in kernel.instructions():
        if isinstance(each, Contract) and all(key not in factor.index.axes for factor in each.factors):
            named = frozenset[str]().union(*(factor.index.axes for factor in each.factors))
            rows = tuple(axis for axis in kernel.rows if axis.name in named)
            sums = Buffer(f"{each.out}.sums", each.dtype, product(axis.size for axis in rows), Role.OUTPUT)
            where = dense_index(rows)
            before.append(_of_product(kernel, each, rows, Store(sums.name, where, each.out), sums))
            first, *more = rest.stages
            body = tuple(Load(each.out, sums.name, where) if i is each else i for i in first.body)
            buffers = (*rest.buffers, replace(sums, role=Role.INPUT))
            rest = replace(rest, buffers=buffers, stages=(replace(first, body=body), *more))
    return before, rest


def _of_product(kernel: Kernel, each: Contract, rows: tuple[Axis, ...], store: Store, sums: Buffer) -> Kernel:
    body: list[Instruction] = []
    for name, factor in zip(("left", "right"), each.factors, strict=True):
        body += [Load(f"{name}.raw", factor.buffer, factor.index), Cast(name, f"{name}.raw", each.dtype)]
    body += [Compute("both", "mul", ("left", "right"), each.dtype), Reduce(each.out, "sum", "both")]
    read = {factor.buffer for factor in each.factors}
    buffers = (*(buffer for buffer in kernel.buffers if buffer.name in read), sums)
    stages = (Stage(True, tuple(body)), Stage(False, (store,)))
    return Kernel(f"{kernel.name}.{each.out}", rows, each.axes, buffers, stages, kernel.target)


def why_no_tiles(kernel: Kernel, target: Target) -> str | None:
    if not is_attention(kernel):
        return "it weighs nothing"
    if not target.multiplies_matrices:
        return "the chip does not multiply matrices"
    reason = why_no_problem(kernel)
    if reason is not None:
        return reason
    problem = problem_of(kernel)
    factors = [side for each in problem.scores for side in each.contract.factors]
    factors += [each.sum.factor for each in problem.sums]
    if {kernel.buffer(factor.buffer).dtype for factor in factors} not in ({each} for each in _NARROW):
        return "it multiplies other numbers than float16 or bfloat16"
    if problem.dtype is not torch.float32 or problem.products or any(factor.bounds for factor in factors):
        return "it sums in another dtype, or sums something else"
    axes = [*(each.axis for each in problem.scores), *(each.axis for each in problem.sums)]
    if any(axis.size > MOST_ATTENTION_WIDTH for axis in axes) or not problem.keys or not problem.queries:
        return "keys are wide, or there are none"
    outer = {axis.name for axis in problem.outer}
    if any(not outer <= each.sum.index.axes for each in problem.sums):
        return "several attentions are summed up"
    if problem.softmax is not None and (len(problem.sums) != 1 or problem.sums[0].sum.value != problem.softmax.out):
        return "something else than one weighted sum follows the softmax"
    return None


def _of_sums(problem: AttentionProblem, sums: tuple[Weighed, ...]) -> AttentionProblem:
    """The part of a problem that has these sums."""
    own = {id(each.sum) for each in sums}
    first, *more = problem.kernel.stages
    body = tuple(i for i in first.body if not isinstance(i, WeightedSum) or id(i) in own)
    return replace(problem, kernel=replace(problem.kernel, stages=(replace(first, body=body), *more)), sums=sums)


def _sized(problem: AttentionProblem, sums: tuple[Weighed, ...], by_query: bool, target: Target) -> ScoreTiles:
    """Large blocks read what they go through less often; small ones keep the chip busy with few rows. Measured on an
    H200 by `python -m benchmarks.gpu_attention_tiles --sweep`."""
    results = sum(-(-int(each.axis.size) // MATRIX) * MATRIX for each in sums)
    own = problem.queries if by_query else problem.keys
    one = len(problem.scores) == 1
    row_tiles = 2 if results <= (2 if one else 1) * _MOST_SUMS else 1
    warps = 8 // row_tiles
    cols = 64 if one and results <= _MOST_SUMS else 32
    terms = sum(-(-int(each.axis.size) // MATRIX) for each in problem.scores) * 4 * row_tiles
    scores = len(problem.scores) * cols
    stays = (results + scores) // 2 * row_tiles + terms <= _MOST_KEPT
    grid = ScoreTiles(problem.kernel, problem, by_query, row_tiles, warps, cols, target.warp_size, stays)
    while grid.rows > 64 and (grid.rows >= 2 * own or grid.blocks < _MULTIPROCESSORS):
        smaller = replace(grid, row_tiles=1) if grid.row_tiles > 1 else replace(grid, warps=grid.warps // 2)
        grid = smaller
    return grid

