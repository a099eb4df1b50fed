"""Packs panels of an attention from matrices with any strides, and chooses the width of the tiles.

    panel of 12 queries, for e = 0, 1, …     q0 q1 … q11 (e=0)  q0 q1 … q11 (e=1)  …

Scores are summed in tiles of some keys by as many queries as a panel has. So the queries of a tile are contiguous, and
the tile is a panel that the values are multiplied by next. Points past the last one repeat it; their results are
ignored.
"""

import functools

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu.entry_points import params
from smelt.codegen.cpu.products.panel_copies import PanelCopy
from smelt.codegen.cpu.products.tile_shape import TileShape, vector_lanes
from smelt.codegen.loops.arrays import Array
from smelt.codegen.loops.builder import Builder
from smelt.device import Target
from smelt.ir.loops import Function, Value
from smelt.ir.tensorspec import short_name

# By the vectors of a panel of queries: the keys of a tile of scores and the vectors of one of values, and what a score
# takes compared with the widest.
_TILES = {3: (8, 2), 2: (8, 2), 1: (16, 4)}
_NARROWER = {3: 1.0, 2: 1.05, 1: 1.15}


@dataclass(frozen=True, slots=True)
class AttentionTiles:
    """How many queries are side by side, and tiles of sums that registers hold: keys × queries, queries × values."""

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


@dataclass(frozen=True, slots=True)
class PanelForm:
    """Source and panel dtypes, points per panel, and the strides of points and steps."""

    source: torch.dtype
    dtype: torch.dtype
    width: int
    point: int
    step: int

    @property
    def how(self) -> str:
        """What is contiguous: steps of the sum, points of a panel, or neither."""
        if self.step == 1 and self.point != 1:
            return "along"
        return "across" if self.point == 1 else "any"


_FROM, _POINTS, _POINT, _STEPS, _STEP, _TO = params("ptr from, i64 points, i64 point, i64 steps, i64 step, ptr to")


def packer(form: PanelForm, target: Target) -> Function:
    """`(from, points, elements from one to the next, steps, elements from one to the next, to)`: panels of all points,
    one behind the other."""
    return _packer(form.how, form.source, form.dtype, form.width, target)


@functools.cache
def _packer(how: str, source: torch.dtype, dtype: torch.dtype, width: int, target: Target) -> Function:
    name = f"attention.pack.{how}.{short_name(source)}.{short_name(dtype)}.{width}"
    b = Builder(target, name)
    matrix, panels = Array(b, _FROM, source), Array(b, _TO, dtype)
    with b.loop(0, _POINTS, width, guard=True) as begin:
        copy = PanelCopy(panels.at(b.mul(begin, _STEPS)), width, b.const("i64", 0), _STEPS)

        def source_of(point: Value) -> Array:
            return matrix.at(b.mul(b.smin(b.add(begin, point), b.sub(_POINTS, 1)), _POINT))

        def offset_of(step: Value) -> Value:
            return b.mul(step, _STEP)

        def one_by_one() -> None:
            copy.one_by_one(source_of, offset_of)

        if how == "along":
            copy.along(source_of)
        elif how == "across":
            is_whole = b.icmp("sle", b.add(begin, width), _POINTS)
            b.choice(is_whole, lambda: copy.vectors(matrix.at(begin), offset_of), one_by_one)
        else:
            one_by_one()
    return b.function(name, (_FROM, _POINTS, _POINT, _STEPS, _STEP, _TO), "shared")
