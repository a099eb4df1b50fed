"""Chooses register tiles, cache blocks, and the units that threads share out.

    8 × 12 of f32 with 32 registers of 128 bits: 24 hold sums, 3 a row of the right panel, 2 a column of the left one

The right panels of a block (`depth` × `cols`) stay in the second cache while left panels pass by.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.loops.builder import TRUE, Builder, Term
from smelt.device import Target
from smelt.ir.loops import Value
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import is_symsize

_BLOCK_DEPTH = 256  # longer sums of one register round more than the library, and right panels leave the first cache
_BLOCK_ROWS = 256
_BLOCK_COLS = 516
KEPT = 1 << 20  # elements of the right factor that are kept in panels from one block of rows to the next
_FEW_PANELS = 4  # a block of cols has no fewer, if it has a choice
_UNITS = 8  # so many at least are shared out, if each is worth a thread
_UNIT_WORTH = 1 << 17  # multiplications


def vector_lanes(dtype: torch.dtype, target: Target) -> int:
    return max(1, target.vector_bits // (8 * dtype.itemsize))


@dataclass(frozen=True, slots=True)
class TileShape:
    """The sums that registers hold: `rows` × `cols`, in vectors of `lanes` along cols."""

    rows: int
    cols: int
    lanes: int

    @property
    def vectors(self) -> int:
        """Of a row."""
        return self.cols // self.lanes

    @classmethod
    def of(cls, dtype: torch.dtype, target: Target, rows: Size = 0) -> "TileShape":
        """Of a product of so many rows: 13 rows of a tile are better than 14 where fewer of the last tile are empty."""
        lanes = vector_lanes(dtype, target)
        if target.vector_registers < 32:
            return cls(6, 2 * lanes, lanes)
        if target.fma_by_lane:
            return cls(8, 3 * lanes, lanes)
        heights = (14,) if is_symsize(rows) else (14, 13)
        return cls(min(heights, key=lambda height: -(-rows // height) * (height + 1)), 2 * lanes, lanes)

    @classmethod
    def along(cls, dtype: torch.dtype, target: Target, cols: int) -> "TileShape":
        """Of a left factor that is not packed, and so many cols: as few rows as keep the processor busy, for registers
        hold several steps of each, or their addresses."""
        lanes = vector_lanes(dtype, target)
        if target.fma_by_lane:
            return cls(4, 3 * lanes, lanes)
        vectors = min((3, 4, 2, 1), key=lambda vectors: rounded(cols, vectors * lanes))
        return cls(6 if vectors == 4 else 8, vectors * lanes, lanes)

    @classmethod
    def transposed(cls, dtype: torch.dtype, target: Target) -> "TileShape":
        """Of a right factor that is not packed, and is the left one of a product of transposes."""
        lanes = vector_lanes(dtype, target)
        return cls(8, 2 * lanes, lanes)


# Counts of blocks: integers, or where sizes are given at launch, values of the code that computes them.


def _operation(op: str) -> "Callable[[Count, Count | int], Count]":
    return lambda count, other: count.compute(op, count, other)


class Count:
    """A number that is not negative, as a value of the code that `b` writes."""

    __slots__ = ("b", "value")

    def __init__(self, b: Builder, value: Value) -> None:
        self.b, self.value = b, value

    def compute(self, op: str, left: "Count | int", right: "Count | int") -> "Count":
        return Count(self.b, self.b.binary(op, _term(left), _term(right)))

    __add__, __sub__, __mul__, __floordiv__ = map(_operation, ("add", "sub", "mul", "udiv"))
    __rmul__ = __mul__

    def __rfloordiv__(self, other: int) -> "Count":
        return self.compute("udiv", other, self)


def _term(count: Count | int) -> Term:
    return count.value if isinstance(count, Count) else count


def parts(size: Any, each: Any) -> Any:
    """How many parts of a length there are, the last one perhaps shorter."""
    return (size + (each - 1)) // each


def smaller(one: Any, other: Any) -> Any:
    count = one if isinstance(one, Count) else other
    return count.compute("smin", one, other) if isinstance(count, Count) else min(one, other)


def larger(one: Any, other: Any) -> Any:
    count = one if isinstance(one, Count) else other
    return count.compute("smax", one, other) if isinstance(count, Count) else max(one, other)


def where_less(pairs: list[tuple[Any, Any]], yes: Any, no: Any) -> Any:
    """`yes` if of each pair the first is less than the second."""
    b = next((each.b for pair in pairs for each in pair if isinstance(each, Count)), None)
    if b is None:
        return yes if all(one < other for one, other in pairs) else no
    all_less = TRUE
    for one, other in pairs:
        all_less = b.and_(all_less, b.icmp("slt", _term(one), _term(other)))
    return Count(b, b.select(all_less, b.const("i64", yes) if isinstance(yes, int) else yes.value, _term(no)))


def divided(size: Any, most: Any, step: int) -> Any:
    """Of what size equal blocks are, multiples of `step`, that are no longer than about `most`."""
    each = parts(size, larger(1, parts(size, most)))
    return larger(step, parts(each, step) * step)


@dataclass(frozen=True, slots=True)
class Most:
    """What blocks have no more of than others have."""

    rows: int
    depth: int


MOST = Most(_BLOCK_ROWS, _BLOCK_DEPTH)
TRANSPOSED = Most(64, _BLOCK_DEPTH)  # so that the sums of a block stay there
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
    def of(cls, sizes: Sequence[Any], form: BlockForm) -> "Blocks":
        """`sizes`: m, n, k and the number of products, each at least one. The right panels of all blocks of the sum are
        kept for the blocks of rows that follow, if there are several of both, and not too much is in them."""
        (m, n, k, batches), tile, step = sizes, form.tile, form.step
        cols = divided(n, _BLOCK_COLS, step)
        depth = divided(k, min(_BLOCK_DEPTH, form.most.depth), 1)
        across = parts(n, cols)
        worth = m * n * k // across // _UNIT_WORTH
        wanted = larger(1, smaller(_UNITS // (batches * across), worth))
        # Where blocks of rows would pack much of the right factor each, blocks of cols pack less: the left one.
        by_cols = [(1, wanted), (m, n), (KEPT, cols * k)]
        narrower = divided(n, larger(_FEW_PANELS * tile.cols, parts(n, wanted * across)), step)
        cols, wanted = where_less(by_cols, narrower, cols), where_less(by_cols, 1, wanted)
        rows = divided(m, smaller(min(_BLOCK_ROWS, form.most.rows), larger(tile.rows, parts(m, wanted))), tile.rows)
        counts = parts(m, rows), parts(n, cols), larger(1, parts(k, depth))
        padded = parts(cols, tile.cols) * tile.cols
        kept = where_less([(1, counts[0]), (1, counts[2]), (counts[2] * depth * padded, form.kept + 1)], padded, 0)
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


def threads(multiplications: Any) -> Any:
    """How many have enough to do to be worth waking."""
    return larger(1, multiplications // _UNIT_WORTH)
