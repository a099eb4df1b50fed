"""`Tiling`: a problem in the shape that tiles walk, with the axes of its epilogue and the layout of a part's workspace.

    rows(n:4, o:64) cols(h:56, w:56), p = contract (c, i, j) weight, x     NCHW: h and w are one axis of the result
    → outer (n)   m (o)   n (h, w), 3136 points   the epilogue: rows(n, o) cols(w:3136)

Small images are processed side by side, so that the filters are packed once for several images:

    rows(n:4, o:512) cols(h:3, w:3)
    → m (o)   n (n, h, w), 36 points   the epilogue: rows(n, o) cols(w:9), of one image after the other
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.axes import indices, walked_as_one, without_axes
from smelt.codegen.cpu.addresses import Workspace
from smelt.codegen.cpu.products.panel_copies import ACROSS
from smelt.codegen.cpu.products.problem import Problem, ProductAxis, count
from smelt.codegen.cpu.products.step_runs import run, table_bytes
from smelt.codegen.cpu.products.tile_shape import (
    KEPT,
    MOST,
    SINGLE_DEPTH,
    TRANSPOSED,
    BlockForm,
    Blocks,
    Most,
    TileShape,
    larger,
    longest_blocks,
    rounded,
    smaller,
)
from smelt.device import Target
from smelt.ir.check_kernel import contraction_of
from smelt.ir.kernel import Axis, Factor, Index, Kernel, Stage
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import is_symsize, known_at_least, known_equal

_FEW_POINTS = 256  # of an image, say: other images are put beside it
_FEW_COLS = 160  # to multiply a number of the left factor with
_FEW_ROWS = 256  # and of the right one


def left_stays(problem: Problem, target: Target) -> bool:
    """Whether the left factor is read where it is, as filters for few pixels are: it is contiguous along the sum, and
    packing it takes longer than the multiplications save. Not where that depends on sizes of a launch."""
    left, whole = problem.contract.left, count(problem.k)
    if not (target.fma_by_lane or target.vector_registers >= 32) or left.bounds or _varies(problem):
        return False
    return (
        problem.left_dtype is problem.dtype
        and problem.cols <= min(_FEW_COLS, problem.rows)
        and run(left, problem.k) == whole
    )


def right_stays(problem: Problem, target: Target) -> bool:
    """Whether the right factor is read where it is, as the weights of a layer are: the product of the transposes is
    computed, whose left factor it is, and its tiles are transposed as they are stored."""
    right = problem.contract.right
    if not target.fma_by_lane or problem.is_bounded or problem.right_dtype is not problem.dtype or _varies(problem):
        return False
    if TileShape.transposed(problem.dtype, target).lanes != ACROSS or left_stays(problem, target):
        return False
    if not 2 * problem.rows <= problem.depth or problem.rows > _FEW_ROWS:  # turning sums takes longer
        return False
    return run(right, problem.k) == count(problem.k)


def tile_shape(problem: Problem, target: Target) -> TileShape:
    """The tile of a product whose right factor is packed."""
    if left_stays(problem, target):
        return TileShape.along(problem.dtype, target, int(problem.cols))
    return TileShape.of(problem.dtype, target, problem.rows)


def _varies(problem: Problem) -> bool:
    return any(map(is_symsize, (problem.rows, problem.cols, problem.depth, problem.batches)))


@dataclass(frozen=True, slots=True)
class Tiling:
    """`outer` are batches, and axes of n that the epilogue does not walk as one with the last, unless there is little
    without them: then they are the first axes of `n`, as `beside`."""

    problem: Problem
    tile: TileShape
    outer: tuple[ProductAxis, ...]
    m: tuple[ProductAxis, ...]
    n: tuple[ProductAxis, ...]
    epilogue: Problem  # its kernel has rows `outer`, `beside` and `epilogue.m`, and one col axis at most
    beside: tuple[ProductAxis, ...] = ()
    stays: bool = False  # the left factor, where it is: see `left_stays`
    is_transposed: bool = False  # `problem`, `m` and `n` are those of the transposed product: see `right_stays`

    @classmethod
    def of(cls, problem: Problem, target: Target) -> "Tiling":
        contract = problem.contract
        # Beside the contraction only: that reads by tables.
        left, right = (Factor(each.buffer, Index()) for each in contract.factors)
        bare = replace(contract, left=left, right=right)
        body = tuple(bare if i is contract else i for i in problem.stage.body)
        kernel = replace(problem.kernel, stages=(Stage(True, body),))
        last = problem.kernel.cols[-1].name if problem.kernel.cols else ""
        tail = len(problem.n) - _trailing(kernel, problem.n)
        n = problem.n[tail:] if problem.n and problem.n[-1].name == last else ()
        others = tuple(axis for axis in problem.n if axis not in n)
        beside = others if n and known_at_least(_FEW_POINTS, count(n)) else ()
        outer = problem.batch if beside else (*problem.batch, *others)
        kept_m = problem.m[-1:] if problem.m and _trailing(kernel, problem.m) == len(problem.m) else problem.m
        gone = {axis.name for axis in (*problem.m, *n)} - {axis.name for axis in (*kept_m, *n[-1:])}
        rows = [Axis(axis.name, axis.size) for axis in (*outer, *beside)]
        rows += [Axis(axis.name, count(problem.m) if len(kept_m) == 1 else axis.size) for axis in kept_m]
        cols = [Axis(axis.name, count(n)) for axis in n[-1:]]
        kernel = without_axes(kernel, gone, rows, cols)
        merged = contraction_of(kernel)
        assert merged is not None
        epilogue = replace(problem, kernel=kernel, contract=merged, batch=(*outer, *beside), m=kept_m, n=n[-1:])
        stays = left_stays(problem, target)
        if n and n == problem.n and right_stays(problem, target):
            tile = TileShape.transposed(problem.dtype, target)
            return cls(problem.transposed(), tile, outer, n, problem.m, epilogue, stays=True, is_transposed=True)
        return cls(problem, tile_shape(problem, target), outer, problem.m, (*beside, *n), epilogue, beside, stays)

    @property
    def row_points(self) -> Size:
        """How many points of `n` follow each other in a row of the epilogue."""
        return count(self.n[len(self.beside) :])

    @property
    def col_step(self) -> int:
        """A block has multiples of this as cols: whole rows of the epilogue, where several are beside each other."""
        return (int(self.row_points) if self.beside else 0) or self.tile.cols

    @property
    def sizes(self) -> tuple[Size, Size, Size, Size]:
        """m, n, k, and how many such products there are."""
        return count(self.m), count(self.n), count(self.problem.k), count(self.outer)

    @property
    def varies(self) -> bool:
        """Whether blocks are not known before a launch."""
        return any(map(is_symsize, self.sizes))

    @property
    def most(self) -> Most:
        """What blocks have at most."""
        most = TRANSPOSED if self.is_transposed else MOST
        single = any(known_equal(size, 1) for size in self.sizes[:2])
        return replace(most, depth=min(most.depth, SINGLE_DEPTH)) if single else most

    @property
    def most_kept(self) -> int:
        """Elements of right panels that are kept for blocks of rows to come, where room for them must be there even
        if the sum is short."""
        return KEPT // 4 if is_symsize(self.sizes[2]) else KEPT

    def blocks(self, sizes: Sequence[Any]) -> Blocks:
        """The blocks of `sizes`, which are integers or counts."""
        form = BlockForm(self.tile, self.col_step, self.most_kept, self.most)
        return Blocks.of([larger(1, size) for size in sizes], form)


def units(blocks: Blocks, sizes: Sequence[Any]) -> Any:
    """What threads share out: blocks of rows, of cols, of the outer axes."""
    m, n, _, batches = sizes
    return batches * blocks.col_count * blocks.row_count * smaller(1, m * n)


def _trailing(kernel: Kernel, axes: tuple[ProductAxis, ...]) -> int:
    """How many of the last axes everything walks as one."""
    count = min(1, len(axes))
    while count < len(axes) and walked_as_one(axes[-count - 1], axes[-count], indices(kernel)):
        count += 1
    return count


@dataclass(frozen=True, slots=True)
class PanelSpace:
    """The arrays of a part."""

    workspace: Workspace
    rows: int  # of the longest block, with those that its last panel lacks
    cols: int
    depth: int
    stride: int  # from a row of sums that an epilogue is given to the next

    @classmethod
    def of(cls, tiling: Tiling) -> "PanelSpace":
        """For blocks of the sizes that are known, or the longest there may be."""
        dtype, (m, n, k, _) = tiling.problem.dtype, tiling.sizes
        if tiling.varies:
            rows, cols, depth = longest_blocks((m, n, k), tiling.tile, tiling.col_step)
            depth = min(depth, tiling.most.depth)
            several, kept = is_symsize(k) or k > depth, tiling.most_kept
        else:
            blocks = tiling.blocks(tiling.sizes)
            rows, cols, depth, several = blocks.rows, blocks.cols, blocks.depth, blocks.depth_count > 1
            kept = blocks.kept * depth * blocks.depth_count
        cols = rounded(cols, tiling.tile.cols)
        rows_of_sums = rows if several or tiling.is_transposed else tiling.tile.rows
        lengths: dict[str, tuple[Size, torch.dtype]] = {"sums": (rows_of_sums * cols, dtype)}
        for name, length, factor in zip(("left", "right"), (rows, cols), tiling.problem.contract.factors, strict=True):
            panels = max(length * depth, kept if name == "right" and several else 0)
            lengths[name] = panels if name == "right" or not tiling.stays else 0, dtype
            lengths[f"{name}_steps"], lengths[f"{name}_points"] = (depth, torch.int64), (length, torch.int64)
            lengths[f"{name}_step_positions"] = len(factor.bounds) * depth, torch.int32
            lengths[f"{name}_positions"] = len(factor.bounds) * length, torch.int32
        if tiling.problem.is_bounded:
            lengths["windows"] = table_bytes(max(tiling.tile.rows, tiling.tile.cols)), torch.uint8
        workspace = Workspace.of(lengths, apart=0)
        return cls(workspace, rows, cols, depth, rows if tiling.is_transposed else cols)

    def start(self, name: str) -> Size:
        return self.workspace.places[name][0]
