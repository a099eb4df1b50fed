"""Computes the weights of a panel of queries for a block of keys: the operations on the scores, and the online softmax.

    n = max(m, the block's), p = exp(t - n), l = l · exp(m - n) + Σ p, m = n     for each query, in the lanes of vectors

Weights overwrite the scores. They are relative to the largest score so far; `scales` has the factors that correct
earlier sums. A query whose scores are all -inf has no weights: its maximum counts as zero.
"""

import math
from functools import partial

from smelt.codegen.cpu.attention.blocks import AttentionBlocks
from smelt.codegen.cpu.attention.points import Points, side_by_side
from smelt.codegen.cpu.products.parts import MINE, params
from smelt.codegen.loops.builder import BUFFERS, Builder
from smelt.codegen.loops.math import OF_NEGATIVE
from smelt.codegen.loops.scalars import VALUE_KINDS
from smelt.device import Target
from smelt.ir.loops import Function, Value

WHERE = _OUTER, _PANEL, _QUERY, _KEY, _KEYS = params("i64 outer, i64 panel, i64 query, i64 key, i64 keys")
_CHUNK = 32  # keys whose weights are summed before they are added to the others


def write_weights(symbol: str, blocks: AttentionBlocks, target: Target) -> tuple[Function, Builder]:
    """The function of one kernel that does it."""
    b = Builder(target, symbol)
    _Weights(b, blocks).write()
    return b.function(f"{symbol}.weights", (BUFFERS, MINE, *WHERE)), b


class _Weights:
    def __init__(self, b: Builder, blocks: AttentionBlocks) -> None:
        self.b, self.blocks = b, blocks
        self.kind, self.lanes = VALUE_KINDS[blocks.problem.dtype], blocks.tiles.lanes
        self.width = blocks.tiles.queries
        self.vectors = self.width // self.lanes

    def write(self) -> None:
        b, places = self.b, self.blocks.places
        softmax = self.blocks.problem.softmax
        assert softmax is not None
        points = Points.of(b, self.blocks.problem, self.width, self.lanes)
        for number, each in enumerate(self.blocks.packed):
            points.panels[each.load] = b.element(MINE, "i8", places[f"packed{number}"])
        points.begin(_OUTER)
        self.scores = b.element(MINE, "i8", places["scores"])
        first = b.mul(_PANEL, self.width)
        tops, totals, scales = (b.element(MINE, "i8", places[name]) for name in ("tops", "totals", "scales"))
        tops, totals = b.element(tops, self.kind, first), b.element(totals, self.kind, first)
        old = self._vectors(tops)
        new = self._largest(points, softmax.value, old)
        nothing = b.const(self.kind, -math.inf, self.lanes)
        safe = [b.select(b.fcmp("oeq", each, nothing), b.const(self.kind, 0.0, self.lanes), each) for each in new]
        total = self._powers(safe)
        for place, (top, before, sum_, reference) in enumerate(zip(new, old, total, safe, strict=True)):
            scale = OF_NEGATIVE["exp"](b, b.fsub(before, reference))
            at = place * self.lanes
            kept = b.load(b.element(totals, self.kind, at), self.kind, self.lanes)
            b.store(b.fma(kept, scale, sum_), b.element(totals, self.kind, at))
            b.store(top, b.element(tops, self.kind, at))
            b.store(scale, b.element(scales, self.kind, at))

    def _vectors(self, base: Value) -> list[Value]:
        b = self.b
        return [b.load(b.element(base, self.kind, n * self.lanes), self.kind, self.lanes) for n in range(self.vectors)]

    def _row(self, key: Value) -> Value:
        return self.b.element(self.scores, self.kind, self.b.mul(key, self.width))

    def _largest(self, points: Points, value: str, old: list[Value]) -> tuple[Value, ...]:
        """Apply the operations on the scores in place, and return the maxima."""
        b, problem = self.b, self.blocks.problem
        b.open_loop()
        loop = b.begin(b.const("i64", 0), _KEYS, 1, old, guard=False)
        points.at.axes[problem.key.name] = b.add(_KEY, loop.index)
        row = self._row(loop.index)
        maxima = []
        for n, score in enumerate(self._vectors(row)):
            inputs = {problem.scores[0].contract.out: score}
            points.write(n * self.lanes, self.lanes, _QUERY, loop.index, inputs)
            scores = points.code.vector(value)
            b.store(scores, b.element(row, self.kind, n * self.lanes))
            maxima.append(b.maximum(loop.values[n], scores))
        largest = loop.end(*maxima)
        b.close_loop()
        return largest

    def _powers(self, reference: list[Value]) -> tuple[Value, ...]:
        """Exponentials of several keys, interleaved: a single chain of dependent instructions would stall."""
        b, last = self.b, _KEYS
        nothing, at_once = b.const(self.kind, -math.inf, self.lanes), 2 if self.vectors > 2 else 4
        for n in range((at_once - 1) * self.vectors):  # keys more, in case the last are fewer: they have no weight
            b.store(nothing, b.element(self._row(last), self.kind, n * self.lanes))
        zeros = [b.const(self.kind, 0.0, self.lanes)] * self.vectors
        chunk = b.begin(b.const("i64", 0), last, _CHUNK, zeros, guard=False)
        stop = b.intrinsic("smin", b.add(chunk.index, _CHUNK), last)
        loop = b.begin(chunk.index, stop, at_once, zeros, guard=False)
        row = self._row(loop.index)

        def power(place: int) -> Value:
            at = b.element(row, self.kind, place * self.lanes)
            distance = b.fsub(b.load(at, self.kind, self.lanes), reference[place % self.vectors])
            exponential = OF_NEGATIVE["exp"](b, distance)
            b.store(exponential, at)
            return exponential

        powers = side_by_side(b, [partial(power, place) for place in range(at_once * self.vectors)])
        while len(powers) > self.vectors:
            half = len(powers) // 2
            powers = [b.fadd(powers[n], powers[n + half]) for n in range(half)]
        sums = loop.end(*(b.fadd(before, power) for before, power in zip(loop.values, powers, strict=True)))
        return chunk.end(*(b.fadd(before, each) for before, each in zip(chunk.values, sums, strict=True)))
