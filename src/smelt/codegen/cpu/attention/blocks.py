"""Chooses the blocks of keys and queries that are computed together, and lays out a thread's workspace for them.

    197 queries and keys of 64          →   one block of keys, two of queries; 17 panels of 12 queries
    gradients of 512 queries and keys   →   blocks of 128 keys; all queries packed, twice, and their sums
"""

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.attention_problem import AttentionProblem, Weighed
from smelt.codegen.cpu.addresses import Workspace
from smelt.codegen.cpu.products.tile_shape import TileShape, rounded, vector_lanes
from smelt.device import Target

_SCORE_BYTES = 24 * 1024  # of a panel of queries by a block of keys: in the first cache
_GRADIENT_BYTES = 16 * 1024  # of all scores of a panel of queries by a block of keys, where there are several
_KEY_BYTES = 512 * 1024  # of a block of keys and their values: in the second one
_QUERY_PANELS = 20  # of a block: keys are packed once for each
_LEAST_PANELS = 2
_UNITS = 8  # so many at least are shared out, if each is worth a thread
_UNIT_WORTH = 1 << 17  # multiplications


# By the vectors of a panel of queries: the keys of a tile of scores and the vectors of one of values, and what a score
# takes compared with the widest.
_TILES = {3: (8, 2), 2: (8, 2), 1: (16, 4)}
_NARROWER = {3: 1.0, 2: 1.05, 1: 1.15}


@dataclass(frozen=True, slots=True)
class AttentionTiles:
    """How many queries are side by side, and tiles of sums that registers hold: keys × queries, queries × values.

    So the queries of a tile of scores are contiguous, and it is a panel that the values are multiplied by next."""

    queries: int
    lanes: int
    scores: TileShape
    values: TileShape

    @classmethod
    def of(cls, dtype: torch.dtype, target: Target, queries: int) -> "AttentionTiles":
        """Panels as wide as fits registers, or less where so many queries fill those better."""
        lanes = vector_lanes(dtype, target)
        if target.fma_by_lane:
            vectors = min((3, 2, 1), key=lambda each: -(-queries // (each * lanes)) * each * _NARROWER[each])
            wide, (keys, values) = vectors * lanes, _TILES[vectors]
            return cls(wide, lanes, TileShape(keys, wide, lanes), TileShape(wide, values * lanes, lanes))
        keys = 12 if target.vector_registers < 32 else 24
        return cls(lanes, lanes, TileShape(keys, lanes, lanes), TileShape(lanes, lanes, lanes))


def useful_threads(problem: AttentionProblem, units: int) -> int:
    return max(1, min(units, problem.multiplications // _UNIT_WORTH))


@dataclass(frozen=True, slots=True)
class AttentionBlocks:
    """An attention in blocks, and the arrays of a thread, numbered as the scores, the sums and the row products of the
    problem."""

    problem: AttentionProblem
    tiles: AttentionTiles
    keys: int  # of a block
    panels: int  # of queries, of a block
    workspace: Workspace

    @classmethod
    def of(cls, problem: AttentionProblem, target: Target) -> "AttentionBlocks":
        """Of a softmax and the sum that it weighs."""
        tiles = AttentionTiles.of(problem.dtype, target, problem.queries)
        size, step = problem.dtype.itemsize, tiles.scores.rows
        width = int(problem.scores[0].axis.size) + int(problem.sums[0].axis.size)
        most = min(_SCORE_BYTES // (tiles.queries * size), _KEY_BYTES // (max(1, width) * size))
        blocks = max(1, -(-problem.keys // max(step, most)))
        block = max(step, rounded(-(-problem.keys // blocks), step))
        panels = -(-problem.queries // tiles.queries)
        wanted = min(_UNITS, max(1, problem.multiplications // _UNIT_WORTH))
        apart = max(-(-panels // _QUERY_PANELS), -(-wanted // max(1, problem.count)))
        panels = max(1, min(_LEAST_PANELS, panels), -(-panels // max(1, apart)))
        rows = panels * tiles.queries
        # Three keys more of scores, in case the last are fewer than are computed side by side: they have no weight.
        further = {"scores0": (block + 3) * tiles.queries, "tops": rows, "totals": rows, "scales": tiles.queries}
        return cls._laid_out(problem, tiles, block, panels, further)

    @classmethod
    def of_gradients(cls, problem: AttentionProblem, target: Target) -> "AttentionBlocks":
        """Of all queries: one attention is never divided among threads."""
        tiles = AttentionTiles.of(problem.dtype, target, problem.queries)
        wide, step, size = tiles.queries, tiles.scores.rows, problem.dtype.itemsize
        most = max(step, _GRADIENT_BYTES // (wide * size * len(problem.scores)))
        block = rounded(-(-problem.keys // -(-problem.keys // most)), step)
        panels = -(-problem.queries // wide)
        further: dict[str, int] = {}
        for number, product in enumerate(problem.products):
            further |= {f"products{number}": panels * wide}
            further |= {f"side{side}": wide * int(product.axis.size) for side in range(2)}
        return cls._laid_out(problem, tiles, block, panels, further)

    @classmethod
    def _laid_out(
        cls, problem: AttentionProblem, tiles: AttentionTiles, keys: int, panels: int, further: dict[str, int]
    ) -> "AttentionBlocks":
        """`further`: elements of arrays beside panels, scores and sums, or more of those."""
        wide, rows = tiles.queries, panels * tiles.queries
        counts: dict[str, int] = {}
        for number, score in enumerate(problem.scores):
            depth = int(score.axis.size)
            counts |= {f"queries{number}": rows * depth, f"keys{number}": keys * depth, f"scores{number}": keys * wide}
        for number, each in enumerate(problem.sums):
            pitch = rounded(int(each.axis.size), tiles.values.cols)
            of_values, of_sums = (keys, rows) if each.over_keys else (rows, keys)
            counts |= {f"values{number}": of_values * pitch, f"sums{number}": of_sums * pitch}
        lengths = {name: (count, problem.dtype) for name, count in (counts | further).items()}
        for number, load in enumerate(problem.packed):
            by_key = problem.key.name in load.index.axes
            lengths[f"packed{number}"] = wide * (keys if by_key else 1), problem.kernel.buffer(load.buffer).dtype
        return cls(problem, tiles, keys, panels, Workspace.of(lengths))

    def pitch(self, each: Weighed) -> int:
        """Elements from one row of sums to the next."""
        return rounded(int(each.axis.size), self.tiles.values.cols)

    @property
    def rows(self) -> int:
        """Queries of a block, in whole panels."""
        return self.panels * self.tiles.queries

    @property
    def query_blocks(self) -> int:
        return -(-self.problem.queries // self.rows)

    @property
    def units(self) -> int:
        return self.problem.count * self.query_blocks

    @property
    def threads(self) -> int:
        return useful_threads(self.problem, self.units)
