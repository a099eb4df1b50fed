"""Computes the weights of a panel of queries for a block of keys: the operations on the scores, and the online softmax.

    n = max(m, the block's), p = exp(t - n), l = l · exp(m - n) + Σ p, m = n     for each query, in the lanes of vectors

Weights overwrite the scores. They are relative to the largest score so far; `scales` has the factors that correct
earlier sums. A query whose scores are all -inf has no weights: its maximum counts as zero.
"""

import math
from functools import partial

from smelt.codegen.cpu.addresses import MINE
from smelt.codegen.cpu.attention.blocks import AttentionBlocks
from smelt.codegen.cpu.attention.points import Points, side_by_side
from smelt.codegen.cpu.entry_points import KernelFunctions, params
from smelt.codegen.loops.arrays import Array
from smelt.codegen.loops.builder import BUFFERS, Builder
from smelt.codegen.loops.math import OF_NEGATIVE
from smelt.ir.loops import Value

WHERE = OUTER, _PANEL, _QUERY, _KEY, _KEYS = params("i64 outer, i64 panel, i64 query, i64 key, i64 keys")
_CHUNK = 32  # keys whose weights are summed before they are added to the others


def write_weights(code: KernelFunctions, blocks: AttentionBlocks) -> None:
    """The function of one kernel that does it."""
    code.write("weights", (BUFFERS, MINE, *WHERE), lambda b: _Weights(b, blocks).write())


class _Weights:
    def __init__(self, b: Builder, blocks: AttentionBlocks) -> None:
        self.b, self.blocks, self.lanes, self.width = b, blocks, blocks.tiles.lanes, blocks.tiles.queries
        self.places = range(0, self.width, self.lanes)  # of vectors in a panel

    def write(self) -> None:
        b, softmax, lanes = self.b, self.blocks.problem.softmax, self.lanes
        assert softmax is not None
        points = Points(b, self.blocks, OUTER)
        first = b.mul(_PANEL, self.width)
        names = "scores0", "tops", "totals", "scales"
        self.scores, tops, totals, scales = (self.blocks.workspace.array(b, name) for name in names)
        tops, totals = tops.at(first), totals.at(first)
        old = [tops.load(place, lanes) for place in self.places]
        new = self._largest(points, softmax.value, old)
        safe = [b.select(b.fcmp("oeq", each, -math.inf), tops.zero(lanes), each) for each in new]
        total = self._powers(safe)
        for place, top, before, sum_, reference in zip(self.places, new, old, total, safe, strict=True):
            scale = OF_NEGATIVE["exp"](b, b.fsub(before, reference))
            totals.store(b.fma(totals.load(place, lanes), scale, sum_), place)
            tops.store(top, place)
            scales.store(scale, place)

    def _row(self, key: Value) -> Array:
        return self.scores.at(self.b.mul(key, self.width))

    def _largest(self, points: Points, value: str, old: list[Value]) -> tuple[Value, ...]:
        """Apply the operations on the scores in place, and return the maxima."""
        b, score = self.b, self.blocks.problem.scores[0].contract.out
        b.open_loop()
        loop = b.begin(0, _KEYS, 1, old)
        key, row, maxima = b.add(_KEY, loop.index), self._row(loop.index), []
        vectors = [row.load(place, self.lanes) for place in self.places]
        for place, vector, before in zip(self.places, vectors, loop.values, strict=True):
            points.write(place, _QUERY, key, loop.index, {score: vector})
            scores = points.row.code.vector(value)
            row.store(scores, place)
            maxima.append(b.maximum(before, scores))
        largest = loop.end(*maxima)
        b.close_loop()
        return largest

    def _powers(self, reference: list[Value]) -> tuple[Value, ...]:
        """Exponentials of several keys, interleaved: a single chain of dependent instructions would stall."""
        b, vectors, lanes = self.b, len(self.places), self.lanes
        nothing, at_once = b.const(self.scores.kind, -math.inf, lanes), 2 if vectors > 2 else 4
        for n in range((at_once - 1) * vectors):  # keys more, in case the last are fewer: they have no weight
            self._row(_KEYS).store(nothing, n * lanes)
        zeros = [self.scores.zero(lanes)] * vectors
        chunk = b.begin(0, _KEYS, _CHUNK, zeros)
        loop = b.begin(chunk.index, b.smin(b.add(chunk.index, _CHUNK), _KEYS), at_once, zeros)
        row = self._row(loop.index)

        def power(place: int) -> Value:
            at = row.at(place * lanes)
            exponential = OF_NEGATIVE["exp"](b, b.fsub(at.load(0, lanes), reference[place % vectors]))
            at.store(exponential)
            return exponential

        powers = side_by_side(b, [partial(power, place) for place in range(at_once * vectors)])
        while len(powers) > vectors:
            half = len(powers) // 2
            powers = [b.fadd(powers[n], powers[n + half]) for n in range(half)]
        sums = loop.end(*(b.fadd(before, power) for before, power in zip(loop.values, powers, strict=True)))
        return chunk.end(*(b.fadd(before, each) for before, each in zip(chunk.values, sums, strict=True)))
