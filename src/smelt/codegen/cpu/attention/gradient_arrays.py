"""Chooses the blocks in which an attention's gradients are computed, and lays out a thread's workspace for them.

    512 queries and keys of 64   →   blocks of 128 keys; all queries packed, twice, and their sums
"""

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu.attention.blocks import padded
from smelt.codegen.cpu.attention.panels import AttentionTiles
from smelt.codegen.cpu.attention.points import PackedLoad, packed_loads
from smelt.codegen.cpu.attention.problem import AttentionProblem, Weighed
from smelt.codegen.cpu.workspace import aligned
from smelt.device import Target

_SCORE_BYTES = 16 * 1024  # of all scores of a panel of queries by a block of keys
_UNIT_WORTH = 1 << 17  # multiplications
_APART = 512  # bytes between arrays: those that are 4 KiB apart would be in each other's way


@dataclass(frozen=True, slots=True)
class GradientArrays:
    """The sizes of an attention's gradients, and the bytes where each array of a thread begins."""

    problem: AttentionProblem
    tiles: AttentionTiles
    rows: int  # queries, in whole panels
    keys: int  # of a block
    weights: tuple[str, ...]  # the values that are weighed with, each in the place of a score
    packed: tuple[PackedLoad, ...]
    places: dict[str, int]
    size: int

    @classmethod
    def of(cls, problem: AttentionProblem, target: Target) -> "GradientArrays":
        tiles = AttentionTiles.of(problem.dtype, target, int(problem.query.size))
        wide, step, size = tiles.queries, tiles.scores.rows, problem.dtype.itemsize
        rows, keys = padded(int(problem.query.size), wide), int(problem.key.size)
        most = max(step, _SCORE_BYTES // (wide * size * len(problem.scores)))
        block = padded(-(-keys // -(-keys // most)), step)
        packed = packed_loads(problem, wide)
        counts: dict[str, int] = {}
        for number, score in enumerate(problem.scores):
            depth = int(score.axis.size)
            counts |= {f"queries{number}": rows * depth, f"keys{number}": block * depth}
            counts[f"scores{number}"] = block * wide
        for number, each in enumerate(problem.sums):
            pitch = padded(int(each.axis.size), tiles.values.cols)
            counts[f"values{number}"] = (block if each.over_keys else rows) * pitch
            counts[f"sums{number}"] = (rows if each.over_keys else block) * pitch
        for number, product in enumerate(problem.products):
            counts |= {f"products{number}": rows}
            counts |= {f"side{side}": wide * int(product.axis.size) for side in range(2)}
        bytes_ = {name: count * size for name, count in counts.items()}
        for number, load in enumerate(packed):
            bytes_[f"packed{number}"] = wide * (block if load.by_key else 1) * load.dtype.itemsize
        places, place = {}, 0
        for name, length in bytes_.items():
            places[name] = place
            place += int(aligned(length)) + _APART
        weights = tuple(dict.fromkeys(each.sum.value for each in problem.sums))
        return cls(problem, tiles, rows, block, weights, packed, places, place)

    def pitch(self, each: Weighed) -> int:
        """Elements from one row of sums to the next."""
        return padded(int(each.axis.size), self.tiles.values.cols)

    @property
    def threads(self) -> int:
        return max(1, min(self.problem.count, self.problem.multiplications // _UNIT_WORTH))
