"""Chooses register tiles, cache blocks, and the units that threads share out.

    8 × 12 of f32 with 32 registers of 128 bits: 24 hold sums, 3 a row of the right panel, 2 a column of the left one

The right panels of a block (`depth` × `cols`) stay in the second cache while left panels pass by.
"""

from collections.abc import Sequence
from typing import Any

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.device import Target
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import is_symsize

_BLOCK_DEPTH = 1024
_BLOCK_ROWS = 256
_BLOCK_COLS = 516
KEPT = 1 << 20  # elements of the right factor that are kept in panels from one block of rows to the next
_FEW_PANELS = 4  # a block of cols has no fewer, if it has a choice
_UNITS = 8  # so many at least are shared out, if each is worth a thread
_UNIT_WORTH = 1 << 17  # multiplications


@dataclass(frozen=True, slots=True)
class TileShape:
    """The sums that registers hold: `rows` × `cols`, in vectors of `lanes` along cols."""

    rows: int
    cols: int
    lanes: int

    @classmethod
    def of(cls, dtype: torch.dtype, target: Target) -> "TileShape":
        lanes = max(1, target.vector_bits // (8 * dtype.itemsize))
        if target.vector_registers < 32:
            return cls(6, 2 * lanes, lanes)
        return cls(8, 3 * lanes, lanes) if target.fma_by_lane else cls(14, 2 * lanes, lanes)


    @classmethod
    def along(cls, dtype: torch.dtype, target: Target) -> "TileShape":
        """Of a left factor that is not packed: as few rows as keep the processor busy, for registers hold several steps
        of each."""
        lanes = max(1, target.vector_bits // (8 * dtype.itemsize))
        return cls(4, 3 * lanes, lanes)

    @classmethod
    def transposed(cls, dtype: torch.dtype, target: Target) -> "TileShape":
        """Of a right factor that is not packed, and is the left one of a product of transposes."""
        lanes = max(1, target.vector_bits // (8 * dtype.itemsize))
        return cls(8, 2 * lanes, lanes)


def divided(of: "Arithmetic", size: Any, most: Any, step: int) -> Any:
    """Of what size equal blocks are, multiples of `step`, that are no longer than about `most`."""
    blocks = of.larger(1, of.parts(size, most))
    each = of.parts(size, blocks)
    return of.larger(step, of.times(of.parts(each, step), step))


class Arithmetic:
    """How the extents of blocks are computed: here in integers. See `numbers` for how machine code does the same."""

    def times(self, one: Any, other: Any) -> Any:
        return one * other

    def quotient(self, one: Any, other: Any) -> Any:
        return one // other

    def parts(self, size: Any, each: Any) -> Any:
        """How many parts of a length there are, the last one perhaps shorter."""
        return (size + each - 1) // each

    def smaller(self, one: Any, other: Any) -> Any:
        return min(one, other)

    def larger(self, one: Any, other: Any) -> Any:
        return max(one, other)

    def where_less(self, pairs: Sequence[tuple[Any, Any]], yes: Any, no: Any) -> Any:
        """`yes` if of each pair the first is less than the second."""
        return yes if all(one < other for one, other in pairs) else no


@dataclass(frozen=True, slots=True)
class Most:
    """What blocks have no more of than others have."""

    rows: int
    depth: int


MOST = Most(_BLOCK_ROWS, _BLOCK_DEPTH)
ALONG = Most(_BLOCK_ROWS, 512)  # rows of the left factor are read side by side, which leaves less of the first cache
TRANSPOSED = Most(64, 512)  # so that the sums of a block stay there
SINGLE_DEPTH = 128  # of one row or column: the library has many sums for each of its results, and rounds less


@dataclass(frozen=True, slots=True)
class BlockForm:
    """The unit sizes of blocks: tiles, and multiples of `step` as cols. Right panels of up to `kept` elements are kept
    from one block of rows to the next."""

    tile: TileShape
    step: int
    kept: int = KEPT
    most: Most = MOST


@dataclass(frozen=True, slots=True)
class Blocks:
    """Extents of the parts that a product is computed in: how long each is, and how many there are. Integers, or where
    sizes are given at launch, values of the code that computes them."""

    rows: Any
    cols: Any
    depth: Any
    row_count: Any
    col_count: Any
    depth_count: Any
    kept: Any  # elements from a step of kept right panels to the next; 0 where those are not kept

    @classmethod
    def of(cls, sizes: Sequence[Any], form: BlockForm, of: Arithmetic) -> "Blocks":
        """`sizes`: m, n, k and the number of products, each at least one. The right panels of all blocks of the sum are
        kept for the blocks of rows that follow, if there are several of both, and not too much is in them."""
        (m, n, k, batches), tile, step = sizes, form.tile, form.step
        cols = divided(of, n, _BLOCK_COLS, step)
        depth = divided(of, k, min(_BLOCK_DEPTH, form.most.depth), 1)
        across = of.parts(n, cols)
        worth = of.quotient(of.quotient(of.times(of.times(m, n), k), across), _UNIT_WORTH)
        wanted = of.larger(1, of.smaller(of.quotient(_UNITS, of.times(batches, across)), worth))
        # Where blocks of rows would pack much of the right factor each, blocks of cols pack less: the left one.
        by_cols = [(1, wanted), (m, n), (KEPT, of.times(cols, k))]
        each = of.parts(n, of.times(wanted, across))
        narrower = divided(of, n, of.larger(_FEW_PANELS * tile.cols, each), step)
        cols, wanted = of.where_less(by_cols, narrower, cols), of.where_less(by_cols, 1, wanted)
        share = of.smaller(min(_BLOCK_ROWS, form.most.rows), of.larger(tile.rows, of.parts(m, wanted)))
        rows = divided(of, m, share, tile.rows)
        counts = of.parts(m, rows), of.parts(n, cols), of.larger(1, of.parts(k, depth))
        padded = of.times(of.parts(cols, tile.cols), tile.cols)
        panels = of.times(of.times(counts[2], depth), padded)
        kept = of.where_less([(1, counts[0]), (1, counts[2]), (panels, form.kept + 1)], padded, 0)
        return cls(rows, cols, depth, *counts, kept)


def longest(size: Size, of_block: int, step: int) -> int:
    """The maximum rows, cols and steps of a block, whatever the other sizes are."""
    most = rounded(of_block, step)
    return most if is_symsize(size) else max(step, min(most, rounded(size, step)))


def rounded(size: int, step: int) -> int:
    return -(-size // step) * step


def longest_blocks(sizes: tuple[Size, Size, Size], tile: TileShape, step: int) -> tuple[int, int, int]:
    """Rows, cols and steps that a block has at most; cols are multiples of `step`."""
    m, n, k = sizes
    cols = max(_BLOCK_COLS, _FEW_PANELS * tile.cols)
    return longest(m, _BLOCK_ROWS, tile.rows), longest(n, cols, step), longest(k, _BLOCK_DEPTH, 1)


def threads(of: Arithmetic, multiplications: Any) -> Any:
    """How many have enough to do to be worth waking."""
    return of.larger(1, of.quotient(multiplications, _UNIT_WORTH))
