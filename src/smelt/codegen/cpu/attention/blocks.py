"""Chooses the blocks of keys and queries that are computed together, and lays out a thread's workspace for them.

    197 queries and keys of 64   →   one block of keys, two of queries; 17 panels of 12 queries
"""

from collections.abc import Sequence

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu.attention.panels import AttentionTiles
from smelt.codegen.cpu.attention.points import PackedLoad, packed_loads
from smelt.codegen.cpu.attention.problem import AttentionProblem
from smelt.codegen.cpu.workspace import aligned
from smelt.device import Target

_SCORE_BYTES = 24 * 1024  # of a panel of queries by a block of keys: in the first cache
_KEY_BYTES = 512 * 1024  # of a block of keys and their values: in the second one
_QUERY_PANELS = 20  # of a block: keys are packed once for each
_LEAST_PANELS = 2
_UNITS = 8  # so many at least are shared out, if each is worth a thread
_UNIT_WORTH = 1 << 17  # multiplications
_APART = 512  # bytes between arrays: those that are 4 KiB apart would be in each other's way


def padded(size: int, step: int) -> int:
    return -(-size // step) * step


@dataclass(frozen=True, slots=True)
class AttentionBlocks:
    """An attention in blocks, and the bytes where each array of a thread begins."""

    problem: AttentionProblem
    tiles: AttentionTiles
    keys: int  # of a block
    panels: int  # of queries, of a block
    packed: tuple[PackedLoad, ...]
    places: dict[str, int]
    workspace: int

    @classmethod
    def of(cls, problem: AttentionProblem, target: Target) -> "AttentionBlocks":
        tiles = AttentionTiles.of(problem.dtype, target, int(problem.query.size))
        size, keys = problem.dtype.itemsize, int(problem.key.size)
        width = int(problem.scores[0].axis.size) + int(problem.sums[0].axis.size)
        most = min(_SCORE_BYTES // (tiles.queries * size), _KEY_BYTES // (max(1, width) * size))
        step = tiles.scores.rows
        blocks = max(1, -(-keys // max(step, most)))
        block = max(step, padded(-(-keys // blocks), step))
        panels = -(-int(problem.query.size) // tiles.queries)
        wanted = min(_UNITS, max(1, problem.multiplications // _UNIT_WORTH))
        apart = max(-(-panels // _QUERY_PANELS), -(-wanted // max(1, problem.count)))
        each = max(min(_LEAST_PANELS, panels), -(-panels // max(1, apart)))
        packed = packed_loads(problem, tiles.queries)
        sizes = _sizes(problem, tiles, block, max(1, each), packed)
        places, place = {}, 0
        for name, bytes_ in sizes:
            places[name] = place
            place += int(aligned(bytes_)) + _APART
        return cls(problem, tiles, block, max(1, each), packed, places, place)

    @property
    def depth(self) -> int:
        return int(self.problem.scores[0].axis.size)

    @property
    def width(self) -> int:
        """Values of a key."""
        return int(self.problem.sums[0].axis.size)

    @property
    def pitch(self) -> int:
        """Elements from the sums of one query to those of the next."""
        return padded(self.width, self.tiles.values.cols)

    @property
    def query_blocks(self) -> int:
        return -(-int(self.problem.query.size) // (self.panels * self.tiles.queries))

    @property
    def units(self) -> int:
        return self.problem.count * self.query_blocks

    @property
    def threads(self) -> int:
        return max(1, min(self.units, self.problem.multiplications // _UNIT_WORTH))


def _sizes(
    problem: AttentionProblem, tiles: AttentionTiles, keys: int, panels: int, packed: Sequence[PackedLoad]
) -> list[tuple[str, int]]:
    """Bytes of the arrays."""
    size, queries = problem.dtype.itemsize, panels * tiles.queries
    depth, width = int(problem.scores[0].axis.size), padded(int(problem.sums[0].axis.size), tiles.values.cols)
    sizes = [
        ("queries", queries * depth * size),
        ("keys", keys * depth * size),
        ("values", keys * width * size),
        ("scores", (keys + 3) * tiles.queries * size),
        ("sums", queries * width * size),
        ("tops", queries * size),
        ("totals", queries * size),
        ("scales", tiles.queries * size),
    ]
    for number, each in enumerate(packed):
        sizes.append((f"packed{number}", tiles.queries * (keys if each.by_key else 1) * each.dtype.itemsize))
    return sizes
