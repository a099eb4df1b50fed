"""`Tiling`: a problem in the shape that tiles walk, with its epilogue's axes, and where a part keeps what.

    rows(n:4, o:64) cols(h:56, w:56), p = contract (c, i, j) weight, x     NCHW: h and w are one axis of the result
    → outer (n)   m (o)   n (h, w), 3136 points   the epilogue: rows(n, o) cols(w:3136)

Small images are put side by side, so that the filters are packed for several of them at once:

    rows(n:4, o:512) cols(h:3, w:3)
    → m (o)   n (n, h, w), 36 points   the epilogue: rows(n, o) cols(w:9), of one image after the other
"""

from dataclasses import replace

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.axes import indices, without_axes
from smelt.codegen.cpu.products.problem import Problem, ProductAxis, contraction, count
from smelt.codegen.cpu.products.step_runs import run, table_bytes
from smelt.codegen.cpu.products.tile_shape import ALONG, KEPT, MOST, TURNED, Blocks, TileShape
from smelt.codegen.cpu.products.transposes import ACROSS
from smelt.codegen.cpu.workspace import aligned
from smelt.device import Target
from smelt.ir.kernel import Axis, Factor, Index, Kernel, Stage

_FEW_POINTS = 256  # of an image, say: other images are put beside it
_FEW_COLS = 160  # to multiply a number of the left factor with
_FEW_ROWS = 256  # and of the right one


def left_stays(problem: Problem, target: Target) -> bool:
    """Whether the left factor is read where it is, as filters for few pixels are: it is contiguous along the sum, and
    packing it takes longer than the multiplications save."""
    left, whole = problem.contract.left, count(problem.k)
    if not target.fma_by_lane or left.bounds or problem.left_dtype is not problem.dtype:
        return False
    return problem.cols <= min(_FEW_COLS, problem.rows) and run(left, problem.k) == whole


def right_stays(problem: Problem, target: Target) -> bool:
    """Whether the right factor is read where it is, as the weights of a layer are: the product of the transposes is
    computed, whose left factor it is, and its tiles are turned as they are stored."""
    right = problem.contract.right
    if not target.fma_by_lane or problem.is_bounded or problem.right_dtype is not problem.dtype:
        return False
    if TileShape.turned(problem.dtype, target).lanes != ACROSS or left_stays(problem, target):
        return False
    if not 2 * problem.rows <= problem.depth or problem.rows > _FEW_ROWS:  # turning sums takes longer
        return False
    return run(right, problem.k) == count(problem.k)


@dataclass(frozen=True, slots=True)
class Tiling:
    """`outer` are batches, and axes of n that the epilogue does not walk as one with the last, unless there is little
    without them: then they are the first axes of `n`, as `beside`."""

    problem: Problem
    tile: TileShape
    blocks: Blocks
    outer: tuple[ProductAxis, ...]
    m: tuple[ProductAxis, ...]
    n: tuple[ProductAxis, ...]
    epilogue: Problem  # its kernel has rows `outer`, `beside` and `epilogue.m`, and one col axis at most
    beside: tuple[ProductAxis, ...] = ()
    stays: bool = False  # the left factor, where it is: see `left_stays`
    turned: bool = False  # `problem`, `m` and `n` are those of the transposed product: see `right_stays`

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
        beside = others if n and count(n) <= _FEW_POINTS else ()
        outer = problem.batch if beside else (*problem.batch, *others)
        kept_m = problem.m[-1:] if problem.m and _trailing(kernel, problem.m) == len(problem.m) else problem.m
        gone = {axis.name for axis in (*problem.m, *n)} - {axis.name for axis in (*kept_m, *n[-1:])}
        rows = [Axis(axis.name, axis.size) for axis in (*outer, *beside)]
        rows += [Axis(axis.name, count(problem.m) if len(kept_m) == 1 else axis.size) for axis in kept_m]
        cols = [Axis(axis.name, count(n)) for axis in n[-1:]]
        kernel = without_axes(kernel, gone, rows, cols)
        found = contraction(kernel)
        assert found is not None
        epilogue = replace(problem, kernel=kernel, contract=found, batch=(*outer, *beside), m=kept_m, n=n[-1:])
        stays = left_stays(problem, target)
        if n and n == problem.n and right_stays(problem, target):
            tile = TileShape.turned(problem.dtype, target)
            blocks = Blocks.of((count(n), count(problem.m), count(problem.k)), count(outer), tile, most=TURNED)
            return cls(problem.turned(), tile, blocks, outer, n, problem.m, epilogue, stays=True, turned=True)
        tile = (TileShape.along if stays else TileShape.of)(problem.dtype, target)
        step = count(n) if beside else tile.cols  # a block has whole rows of the epilogue
        n = (*beside, *n)
        sizes = (count(problem.m), count(n), count(problem.k))
        blocks = Blocks.of(sizes, count(outer), tile, step, ALONG if stays else MOST)
        return cls(problem, tile, blocks, outer, problem.m, n, epilogue, beside, stays)

    @property
    def row_points(self) -> int:
        """How many points of `n` follow each other in a row of the epilogue."""
        return count(self.n[len(self.beside) :])

    @property
    def units(self) -> int:
        """What threads share out: blocks of rows, of cols, of the outer axes."""
        blocks = count(self.outer) * self.blocks.col_count * self.blocks.row_count
        return blocks if count(self.m) and count(self.n) else 0

    @property
    def keeps_right(self) -> bool:
        """Whether the right panels of all blocks of the sum are kept for the blocks of rows that follow."""
        blocks = self.blocks
        return blocks.row_count > 1 < blocks.depth_count and blocks.depth_count * blocks.depth * blocks.cols <= KEPT

    @property
    def stride(self) -> int:
        """How far the rows of sums are apart that an epilogue is given."""
        return self.padded_rows if self.turned else self.padded_cols

    @property
    def padded_rows(self) -> int:
        return -(-self.blocks.rows // self.tile.rows) * self.tile.rows

    @property
    def padded_cols(self) -> int:
        return -(-self.blocks.cols // self.tile.cols) * self.tile.cols


def _trailing(kernel: Kernel, axes: tuple[ProductAxis, ...]) -> int:
    """How many of the last axes everything walks as one."""
    found = min(1, len(axes))
    while found < len(axes):
        outer, inner = axes[-found - 1], axes[-found]
        if any(index.stride(outer.name) != index.stride(inner.name) * inner.size for index in indices(kernel)):
            break
        found += 1
    return found


@dataclass(frozen=True, slots=True)
class PanelSpace:
    """Where the arrays of a part begin in its workspace, in bytes."""

    starts: dict[str, int]
    size: int

    @classmethod
    def of(cls, tiling: Tiling) -> "PanelSpace":
        blocks, item = tiling.blocks, tiling.problem.dtype.itemsize
        sums = tiling.tile.rows if blocks.depth_count == 1 and not tiling.turned else tiling.padded_rows
        sizes = {"sums": sums * tiling.padded_cols * item}
        lengths = (tiling.padded_rows, tiling.padded_cols)
        for name, length, factor in zip(("left", "right"), lengths, tiling.problem.contract.factors, strict=True):
            kept = blocks.depth_count if name == "right" and tiling.keeps_right else 1
            sizes[name] = length * blocks.depth * kept * item if name == "right" or not tiling.stays else 0
            sizes[f"{name}_steps"] = blocks.depth * 8
            sizes[f"{name}_points"] = length * 8
            sizes[f"{name}_step_positions"] = len(factor.bounds) * blocks.depth * 4
            sizes[f"{name}_positions"] = len(factor.bounds) * length * 4
        if tiling.problem.is_bounded:
            sizes["windows"] = table_bytes(max(tiling.tile.rows, tiling.tile.cols))
        starts, end = {}, 0
        for name, size in sizes.items():
            starts[name] = end
            end += int(aligned(size))
        return cls(starts, end)
