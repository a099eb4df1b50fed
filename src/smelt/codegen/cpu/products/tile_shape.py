"""How much of a product is computed at once: tiles of registers, blocks for the caches, and what threads share out.

    8 × 12 of f32 with 32 registers of 128 bits: 24 hold sums, 3 a row of the right panel, 2 a column of the left one

The right panels of a block (`depth` × `cols`) stay in the second cache while left panels pass by.
"""

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.device import Target

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
    def turned(cls, dtype: torch.dtype, target: Target) -> "TileShape":
        """Of a right factor that is not packed, and is the left one of a product of transposes."""
        lanes = max(1, target.vector_bits // (8 * dtype.itemsize))
        return cls(8, 2 * lanes, lanes)


def divided(size: int, most: int, step: int) -> int:
    """Of what size equal blocks are, multiples of `step`, that are no longer than about `most`."""
    blocks = max(1, -(-size // most))
    each = -(-size // blocks)
    return max(step, -(-each // step) * step)


@dataclass(frozen=True, slots=True)
class Most:
    """What blocks have no more of than others have."""

    rows: int
    depth: int


MOST = Most(_BLOCK_ROWS, _BLOCK_DEPTH)
ALONG = Most(_BLOCK_ROWS, 512)  # rows of the left factor are read side by side, which leaves less of the first cache
TURNED = Most(64, 512)  # so that the sums of a block stay there


@dataclass(frozen=True, slots=True)
class Blocks:
    """Extents of the parts that a product is computed in: how long each is, and how many there are."""

    rows: int
    cols: int
    depth: int
    row_count: int
    col_count: int
    depth_count: int

    @classmethod
    def of(
        cls, sizes: tuple[int, int, int], batches: int, tile: TileShape, step: int = 0, most: Most = MOST
    ) -> "Blocks":
        """With a `step`, blocks have multiples of it as cols."""
        m, n, k = (max(1, size) for size in sizes)
        step = step or tile.cols
        cols = divided(n, _BLOCK_COLS, step)
        depth = divided(k, min(_BLOCK_DEPTH, most.depth), 1)
        units = batches * -(-n // cols)
        wanted = max(1, min(_UNITS // max(1, units), m * n * k // max(1, -(-n // cols)) // _UNIT_WORTH))
        if wanted > 1 and m < n and cols * k > KEPT:
            # Blocks of rows would pack the right factor each; blocks of cols pack the left one, which is less.
            each = -(-n // (wanted * -(-n // cols)))
            cols, wanted = divided(n, max(_FEW_PANELS * tile.cols, each), step), 1
        rows = divided(m, min(_BLOCK_ROWS, most.rows, max(tile.rows, -(-m // wanted))), tile.rows)
        return cls(rows, cols, depth, -(-m // rows), -(-n // cols), max(1, -(-k // depth)))


def threads(multiplications: int) -> int:
    """How many have enough to do to be worth waking."""
    return max(1, multiplications // _UNIT_WORTH)
