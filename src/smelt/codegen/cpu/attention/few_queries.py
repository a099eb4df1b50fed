"""Attention of few queries, as in token-by-token generation: reads keys and values in place, once.

    scores[i, j] = Σ q[i, e] · k[j, e]     vectors along e, four keys at a time for all queries
    their softmax                          vectors along keys
    sums[i, d] = Σ p[i, j] · v[j, d]       vectors along d, kept in registers for all keys of a block

A thread owns the queries, widened, and their scores for all keys.
"""

import math
from collections.abc import Sequence

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.attention_problem import AttentionProblem
from smelt.codegen.cpu.addresses import MINE, Workspace
from smelt.codegen.cpu.attention import forward
from smelt.codegen.cpu.attention.blocks import useful_threads
from smelt.codegen.cpu.attention.finish import write_finish
from smelt.codegen.cpu.attention.part import Part
from smelt.codegen.cpu.entry_points import PART, KernelFunctions
from smelt.codegen.cpu.instructions import PointCode
from smelt.codegen.cpu.products.tile_shape import vector_lanes
from smelt.codegen.generator import EntryCode
from smelt.codegen.loops import reductions
from smelt.codegen.loops.arrays import Array, positions, spans
from smelt.codegen.loops.builder import BUFFERS, Builder, param
from smelt.codegen.loops.math import OF_NEGATIVE
from smelt.device import Target
from smelt.ir.kernel import Factor
from smelt.ir.loops import Value

MOST = 4  # queries
_AT_ONCE = 4  # keys whose scores are summed side by side
_SUMS = 16  # vectors of sums that registers hold
_WIDE = 4  # vectors of scores side by side, in a softmax
_BLOCK = 64  # keys whose values are summed before they are added to the others
_AHEAD, _LINE = 8, 64  # keys that are prefetched, and bytes of what a cache holds

_OUTER = param("outer")


def why_not(problem: AttentionProblem, target: Target) -> str | None:
    reason = forward.why_not(problem, target)
    if reason is not None:
        return reason
    if problem.queries > MOST:
        return "it has many queries"
    score, weighed = problem.scores[0], problem.sums[0]
    along = score.key.index.stride(score.axis.name), weighed.sum.factor.index.stride(weighed.axis.name)
    if along != (1, 1):
        return "keys or values do not lie side by side"
    return None


def cycles(problem: AttentionProblem, target: Target) -> float:
    """What keys bring comes from far, and is multiplied for each query."""
    numbers = int(problem.scores[0].axis.size) + int(problem.sums[0].axis.size)
    of_key = numbers * (0.5 + 0.2 * problem.queries) + problem.queries * 8
    return float(problem.count * (problem.keys * of_key + 1_000))


def write(code: KernelFunctions, problem: AttentionProblem) -> EntryCode:
    sizes = _FewQueries.of(problem, code.target)
    code.write("weights", (BUFFERS, MINE, _OUTER), lambda b: _Weights(b, sizes).write())
    write_finish(code, problem, sizes.workspace, "sums", sizes.width, sizes.lanes)
    code.write("part", PART, lambda b: _Part(b, sizes).write())
    return code.end(useful_threads(problem, problem.count), problem.count, sizes.workspace.size)


@dataclass(frozen=True, slots=True)
class _FewQueries:
    """The sizes of such an attention, and the arrays of a thread."""

    problem: AttentionProblem
    lanes: int
    depth: int
    width: int
    pitch: int  # elements from the scores of one query to those of the next
    workspace: Workspace

    @classmethod
    def of(cls, problem: AttentionProblem, target: Target) -> "_FewQueries":
        lanes, queries = vector_lanes(problem.dtype, target), problem.queries
        depth, width = int(problem.scores[0].axis.size), int(problem.sums[0].axis.size)
        pitch = -(-problem.keys // (_WIDE * lanes)) * _WIDE * lanes
        elements = {"queries": depth, "scores": pitch, "sums": width, "tops": 1, "totals": 1}
        workspace = Workspace.of({name: (queries * each, problem.dtype) for name, each in elements.items()})
        return cls(problem, lanes, depth, width, pitch, workspace)

    def reached(self, query: int) -> int:
        """How many keys have weight for a query."""
        keys, reach = self.problem.keys, self.problem.reach
        return keys if reach is None else max(0, min(keys, query + reach + 1))


class _Part(Part):
    def __init__(self, b: Builder, plan: _FewQueries) -> None:
        super().__init__(b, plan.problem)
        self.plan, self.arrays, self.queries = plan, plan.workspace.arrays(b), range(plan.problem.queries)
        self.score, self.weighed = plan.problem.scores[0], plan.problem.sums[0]
        self.keys = plan.reached(len(self.queries) - 1)

    def write(self) -> None:
        b = self.b
        with b.loop(*PART[2:4], guard=True) as outer:
            self.axes = positions(b, self.problem.outer, outer)
            self._copy_queries()
            keys = self.start(self.score.key)
            for first, last, count in spans(self.keys, _AT_ONCE):
                with b.loop(first, last, count) as key:
                    self._scores(keys, key, count)
            b.call(f"{b.symbol}.weights", BUFFERS, MINE, outer)
            self._sums()
            b.call(f"{b.symbol}.finish", BUFFERS, MINE, outer, 0, len(self.queries))

    def _row(self, factor: Factor, matrix: Array, key: Value) -> Array:
        return matrix.at(self.b.mul(key, int(factor.index.stride(self.problem.key.name))))

    def _prefetch(self, factor: Factor, row: Array, width: int) -> None:
        """Prefetch a later key, if other heads are between consecutive keys in memory: the hardware prefetcher does not
        follow those. Any address is safe."""
        stride, size = int(factor.index.stride(self.problem.key.name)), row.dtype.itemsize
        if stride > 2 * width and self.b.target.prefetch_distance:
            for start in range(0, width * size, _LINE):
                self.b.prefetch(self.b.element(row.pointer, "i8", stride * _AHEAD * size + start))

    def _copy_queries(self) -> None:
        b, factor, depth = self.b, self.score.query, self.plan.depth
        matrix = self.start(factor)
        down, along = (int(factor.index.stride(axis.name)) for axis in (self.problem.query, self.score.axis))
        with b.loop(0, len(self.queries)) as row, b.loop(0, depth, guard=True) as place:
            element = matrix.load_as(self.dtype, b.add(b.mul(row, down), b.mul(place, along)))
            self.arrays["queries"].store(element, b.add(b.mul(row, depth), place))

    def _scores(self, matrix: Array, key: Value, count: int) -> None:
        """Of `count` keys, for all queries."""
        b, lanes, depth, factor = self.b, self.plan.lanes, self.plan.depth, self.score.key
        queries, scores = self.arrays["queries"], self.arrays["scores"]
        rows = [self._row(factor, matrix, b.add(key, n) if n else key) for n in range(count)]
        for row in rows:
            self._prefetch(factor, row, depth)
        whole = depth // lanes * lanes
        totals = [scores.zero()] * (len(self.queries) * count)
        if whole:
            loop = b.begin(0, whole, lanes, [scores.zero(lanes)] * len(totals))
            keys = [row.load_as(self.dtype, loop.index, lanes) for row in rows]
            sums = []
            for i in self.queries:
                query = queries.load(b.add(loop.index, i * depth) if i else loop.index, lanes)
                sums += [b.fma(query, each, loop.values[i * count + n]) for n, each in enumerate(keys)]
            totals = [reductions.reduce_lanes(b, "sum", self.dtype, each) for each in loop.end(*sums)]
        for rest in range(whole, depth):
            keys = [row.load_as(self.dtype, rest) for row in rows]
            for i in self.queries:
                query = queries.load(i * depth + rest)
                for n, each in enumerate(keys, i * count):
                    totals[n] = b.fma(query, each, totals[n])
        for i in self.queries:
            row = scores.at(i * self.plan.pitch).at(key)
            for n in range(count):
                row.store(totals[i * count + n], n)

    def _sums(self) -> None:
        """Block by block of keys, which is in the first cache then, of all values some at a time."""
        b, lanes, width, sums = self.b, self.plan.lanes, self.plan.width, self.arrays["sums"]
        matrix = self.start(self.weighed.sum.factor)
        most, vectors = max(1, _SUMS // len(self.queries)), width // lanes
        pieces = [(first * lanes, lanes, min(most, vectors - first)) for first in range(0, vectors, most)]
        pieces += [(place, 1, 1) for place in range(vectors * lanes, width)]
        with b.loop(0, len(self.queries) * width, guard=True) as place:
            sums.store(sums.zero(), place)
        with b.loop(0, self.keys, _BLOCK, guard=True) as block:
            stop = b.smin(b.add(block, _BLOCK), self.keys)
            for first, wide, count in pieces:
                loop = b.begin(block, stop, 1, [sums.zero(wide)] * (count * len(self.queries)))
                totals = self._weighed(matrix, loop.index, (first, wide, count), loop.values)
                for number, total in enumerate(loop.end(*totals)):
                    some = sums.at(number // count * width + first + number % count * wide)
                    some.store(b.fadd(some.load(0, wide), total))

    def _weighed(self, matrix: Array, key: Value, piece: tuple[int, int, int], before: Sequence[Value]) -> list[Value]:
        b, factor, (first, wide, count) = self.b, self.weighed.sum.factor, piece
        row = self._row(factor, matrix, key)
        if first == 0:
            self._prefetch(factor, row, self.plan.width)
        values = [row.load_as(self.dtype, first + n * wide, wide) for n in range(count)]
        sums = []
        for i in self.queries:
            weight = b.splat(self.arrays["scores"].load(b.add(key, i * self.plan.pitch)), wide)
            sums += [b.fma(weight, value, before[i * count + n]) for n, value in enumerate(values)]
        return sums


class _Weights:
    """The operations on the scores of an attention, and their softmax, for each query along its keys."""

    def __init__(self, b: Builder, plan: _FewQueries) -> None:
        self.b, self.plan, self.problem, self.wide = b, plan, plan.problem, plan.lanes * _WIDE

    def write(self) -> None:
        self.row = PointCode(self.b, self.problem.kernel, self.problem.body, self.wide)
        self.arrays = self.plan.workspace.arrays(self.b)
        self.row.axes |= positions(self.b, self.problem.outer, _OUTER)
        for query in range(self.problem.queries):
            self._row(query)

    def _row(self, query: int) -> None:
        b, arrays = self.b, self.arrays
        keys, last = self.plan.reached(query), self.plan.reached(self.problem.queries - 1)
        scores = arrays["scores"].at(query * self.plan.pitch)
        for key in range(keys, last):  # behind what this query looks at
            scores.store(scores.zero(), key)
        self.row.axes[self.problem.query.name] = b.const("i64", query)
        self.row.begin_row()
        top, total = b.const(scores.kind, -math.inf), scores.zero()
        for span in spans(keys, self.wide):
            top = b.maximum(top, self._largest(scores, span))
        safe = b.select(b.fcmp("oeq", top, -math.inf), scores.zero(), top)
        for span in spans(keys, self.wide):
            total = b.fadd(total, self._powers(scores, span, safe))
        arrays["tops"].store(top, query)
        arrays["totals"].store(total, query)

    def _largest(self, scores: Array, span: tuple[int, int, int]) -> Value:
        b, (first, last, wide), softmax = self.b, span, self.problem.softmax
        assert softmax is not None
        b.open_loop()
        loop = b.begin(first, last, wide, [b.const(scores.kind, -math.inf, wide)])
        place = scores.at(loop.index)
        self.row.write(loop.index, wide, {self.problem.scores[0].contract.out: place.load(0, wide)})
        vector = self.row.code.vector(softmax.value)
        place.store(vector)
        (largest,) = loop.end(b.maximum(loop.values[0], vector))
        b.close_loop()
        return b.reduce_lanes("fmaximum", largest)

    def _powers(self, scores: Array, span: tuple[int, int, int], safe: Value) -> Value:
        b, (first, last, wide) = self.b, span
        reference = b.splat(safe, wide)
        loop = b.begin(first, last, wide, [scores.zero(wide)])
        place = scores.at(loop.index)
        power = OF_NEGATIVE["exp"](b, b.fsub(place.load(0, wide), reference))
        place.store(power)
        return reductions.reduce_lanes(b, "sum", scores.dtype, *loop.end(b.fadd(loop.values[0], power)))
