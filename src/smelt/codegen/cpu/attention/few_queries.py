"""Attention of few queries, as in token-by-token generation: reads keys and values in place, once.

    scores[i, j] = Σ q[i, e] · k[j, e]     vectors along e, four keys at a time for all queries
    their softmax                          vectors along keys
    sums[i, d] = Σ p[i, j] · v[j, d]       vectors along d, kept in registers for all keys of a block

A thread owns the queries, widened, and their scores for all keys.
"""

import math

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu.addresses import Addresses
from smelt.codegen.cpu.attention import forward
from smelt.codegen.cpu.attention.finish import Finish
from smelt.codegen.cpu.attention.points import outer_axes
from smelt.codegen.cpu.attention.problem import AttentionProblem
from smelt.codegen.cpu.entry_points import PART
from smelt.codegen.cpu.instructions import InstructionWriter
from smelt.codegen.cpu.products.parts import MINE, entry_function
from smelt.codegen.cpu.schedule import SchedulePlan, loop_variant
from smelt.codegen.cpu.workspace import WorkspaceLayout, aligned
from smelt.codegen.generator import EntryCode
from smelt.codegen.loops.builder import BUFFERS, Builder, param
from smelt.codegen.loops.math import OF_NEGATIVE
from smelt.codegen.loops.scalars import VALUE_KINDS, cast, memory_kind
from smelt.device import Target
from smelt.ir.kernel import Factor
from smelt.ir.loops import Value

MOST = 4  # queries
_AT_ONCE = 4  # keys whose scores are summed side by side
_SUMS = 16  # vectors of sums that registers hold
_WIDE = 4  # vectors of scores side by side, in a softmax
_BLOCK = 64  # keys whose values are summed before they are added to the others
_UNIT_WORTH = 1 << 17  # multiplications
_APART = 512  # bytes between arrays
_AHEAD, _LINE = 8, 64  # keys that are prefetched, and bytes of what a cache holds

_OUTER = param("outer")


def why_not(problem: AttentionProblem, target: Target) -> str | None:
    reason = forward.why_not(problem, target)
    if reason is not None:
        return reason
    if int(problem.query.size) > MOST:
        return "it has many queries"
    score, weighed = problem.scores[0], problem.sums[0]
    along = score.key.index.stride(score.axis.name), weighed.sum.factor.index.stride(weighed.axis.name)
    if along != (1, 1):
        return "keys or values do not lie side by side"
    return None


def cycles(problem: AttentionProblem, target: Target) -> float:
    """What keys bring comes from far, and is multiplied for each query."""
    keys, queries = int(problem.key.size), int(problem.query.size)
    numbers = int(problem.scores[0].axis.size) + int(problem.sums[0].axis.size)
    return float(problem.count * (keys * (numbers * (0.5 + 0.2 * queries) + queries * 8) + 1_000))


def _lanes(problem: AttentionProblem, target: Target) -> int:
    return max(1, target.vector_bits // (8 * problem.dtype.itemsize))


@dataclass(frozen=True, slots=True)
class _Arrays:
    """Where a thread keeps what, in bytes."""

    places: dict[str, int]
    pitch: int  # elements from the scores of one query to those of the next
    size: int

    @classmethod
    def of(cls, problem: AttentionProblem, lanes: int) -> "_Arrays":
        queries, size = int(problem.query.size), problem.dtype.itemsize
        pitch = -(-int(problem.key.size) // (_WIDE * lanes)) * _WIDE * lanes
        sizes = {
            "queries": queries * int(problem.scores[0].axis.size),
            "scores": queries * pitch,
            "sums": queries * int(problem.sums[0].axis.size),
            "tops": queries,
            "totals": queries,
        }
        places, place = {}, 0
        for name, count in sizes.items():
            places[name] = place
            place += int(aligned(count * size)) + _APART
        return cls(places, pitch, place)


def write(symbol: str, problem: AttentionProblem, target: Target) -> EntryCode:
    """The functions of a kernel under the name `symbol`."""
    lanes = _lanes(problem, target)
    arrays = _Arrays.of(problem, lanes)
    part, weights, finish, entry = (Builder(target, symbol) for _ in range(4))
    _Part(part, problem, arrays, lanes).write()
    _Weights(weights, problem, arrays, lanes).write()
    threads = max(1, min(problem.count, problem.multiplications // _UNIT_WORTH))
    functions = (
        weights.function(f"{symbol}.weights", (BUFFERS, MINE, _OUTER)),
        Finish(finish, problem, arrays.places, int(problem.sums[0].axis.size), lanes).write(),
        part.function(f"{symbol}.part", PART),
        entry_function(entry, threads, problem.count, arrays.size),
    )
    return EntryCode(functions, tuple({**weights.helpers, **finish.helpers}.items()), arrays.size)


def reached(problem: AttentionProblem, query: int) -> int:
    """How many keys have weight for a query."""
    keys = int(problem.key.size)
    return keys if problem.reach is None else max(0, min(keys, query + problem.reach + 1))


class _Part:
    """The attentions that one thread computes."""

    def __init__(self, b: Builder, problem: AttentionProblem, arrays: _Arrays, lanes: int) -> None:
        self.b, self.problem, self.arrays, self.lanes = b, problem, arrays, lanes
        self.kind, self.queries = VALUE_KINDS[problem.dtype], int(problem.query.size)
        self.score, self.weighed = problem.scores[0], problem.sums[0]
        self.keys = reached(problem, self.queries - 1)

    def write(self) -> None:
        b, problem = self.b, self.problem
        parameters = enumerate(problem.kernel.parameters)
        self.pointers = {buffer.name: b.load_pointer(number) for number, buffer in parameters}
        self.at = {name: b.element(MINE, "i8", place) for name, place in self.arrays.places.items()}
        units = b.begin(*PART[2:4], 1, (), guard=True)
        self.axes = outer_axes(b, problem, units.index)
        self._copy_queries()
        self._scores()
        b.call(f"{b.symbol}.weights", BUFFERS, MINE, units.index)
        self._sums()
        queries = b.const("i64", 0), b.const("i64", self.queries)
        b.call(f"{b.symbol}.finish", BUFFERS, MINE, units.index, *queries)
        units.end()

    def _start(self, factor: Factor) -> Value:
        b = self.b
        total = b.const("i64", factor.index.offset)
        for name, place in self.axes.items():
            step = factor.index.stride(name)
            total = b.add(total, b.mul(place, step)) if step else total
        return b.element(self.pointers[factor.buffer], memory_kind(self.problem.dtype_of(factor)), total)

    def _load(self, factor: Factor, base: Value, offset: Value | int, lanes: int) -> Value:
        """Load adjacent elements, converted to the accumulator dtype."""
        dtype = self.problem.dtype_of(factor)
        kind = memory_kind(dtype)
        raw = self.b.load(self.b.element(base, kind, offset), kind, lanes)
        return cast(self.b, raw, dtype, self.problem.dtype)

    def _apart(self, factor: Factor) -> bool:
        """Whether other heads are between consecutive keys in memory: the hardware prefetcher does not follow those."""
        width = int(self.score.axis.size if factor is self.score.key else self.weighed.axis.size)
        far = int(factor.index.stride(self.problem.key.name)) > 2 * width
        return far and bool(self.b.target.prefetch_distance)

    def _prefetch(self, row: Value, factor: Factor, width: int) -> None:
        """Prefetch a later key; any address is safe."""
        b, dtype = self.b, self.problem.dtype_of(factor)
        ahead = int(factor.index.stride(self.problem.key.name)) * _AHEAD
        for start in range(0, width * dtype.itemsize, _LINE):
            b.prefetch(b.element(row, "i8", ahead * dtype.itemsize + start))

    def _copy_queries(self) -> None:
        b, factor, depth = self.b, self.score.query, int(self.score.axis.size)
        base = self._start(factor)
        down, along = (int(factor.index.stride(axis.name)) for axis in (self.problem.query, self.score.axis))
        rows = b.begin(b.const("i64", 0), b.const("i64", self.queries), 1, (), guard=False)
        loop = b.begin(b.const("i64", 0), b.const("i64", depth), 1, (), guard=True)
        element = self._load(factor, base, b.add(b.mul(rows.index, down), b.mul(loop.index, along)), 1)
        b.store(element, b.element(self.at["queries"], self.kind, b.add(b.mul(rows.index, depth), loop.index)))
        loop.end()
        rows.end()

    def _scores(self) -> None:
        b, whole = self.b, self.keys // _AT_ONCE * _AT_ONCE
        base = self._start(self.score.key)
        for first, last, count in ((0, whole, _AT_ONCE), (whole, self.keys, 1)):
            if first < last:
                loop = b.begin(b.const("i64", first), b.const("i64", last), count, (), guard=False)
                self._some_scores(base, loop.index, count)
                loop.end()

    def _some_scores(self, base: Value, key: Value, count: int) -> None:
        """Of `count` keys, for all queries."""
        b, lanes, depth = self.b, self.lanes, int(self.score.axis.size)
        factor, queries = self.score.key, range(self.queries)
        step, kind = int(factor.index.stride(self.problem.key.name)), memory_kind(self.problem.dtype_of(self.score.key))
        rows = [b.element(base, kind, b.mul(b.add(key, n) if n else key, step)) for n in range(count)]
        for row in rows if self._apart(factor) else ():
            self._prefetch(row, factor, depth)
        whole = depth // lanes * lanes
        totals = [b.const(self.kind, 0.0)] * (self.queries * count)
        if whole:
            zero = b.const(self.kind, 0.0, lanes)
            loop = b.begin(b.const("i64", 0), b.const("i64", whole), lanes, [zero] * len(totals), guard=False)
            keys = [self._load(factor, row, loop.index, lanes) for row in rows]
            sums = []
            for i in queries:
                place = b.add(loop.index, i * depth) if i else loop.index
                query = b.load(b.element(self.at["queries"], self.kind, place), self.kind, lanes)
                sums += [b.fma(query, each, loop.values[i * count + n]) for n, each in enumerate(keys)]
            negative = b.const(self.kind, -0.0)
            totals = [b.reduce_lanes("fadd", each, negative, flags="reassoc") for each in loop.end(*sums)]
        for rest in range(whole, depth):
            keys = [self._load(factor, row, rest, 1) for row in rows]
            for i in queries:
                query = b.load(b.element(self.at["queries"], self.kind, i * depth + rest), self.kind)
                for n, each in enumerate(keys):
                    totals[i * count + n] = b.fma(query, each, totals[i * count + n])
        for i in queries:
            row = b.element(b.element(self.at["scores"], self.kind, i * self.arrays.pitch), self.kind, key)
            for n in range(count):
                b.store(totals[i * count + n], b.element(row, self.kind, n))

    def _sums(self) -> None:
        """Block by block of keys, which is in the first cache then, of all values some at a time."""
        b, lanes, width = self.b, self.lanes, int(self.weighed.axis.size)
        base = self._start(self.weighed.sum.factor)
        most, vectors = max(1, _SUMS // self.queries), width // lanes
        pieces = [(first * lanes, lanes, min(most, vectors - first)) for first in range(0, vectors, most)]
        pieces += [(place, 1, 1) for place in range(vectors * lanes, width)]
        zeros = b.begin(b.const("i64", 0), b.const("i64", self.queries * width), 1, (), guard=True)
        b.store(b.const(self.kind, 0.0), b.element(self.at["sums"], self.kind, zeros.index))
        zeros.end()
        block = b.begin(b.const("i64", 0), b.const("i64", self.keys), _BLOCK, (), guard=True)
        stop = b.intrinsic("smin", b.add(block.index, _BLOCK), b.const("i64", self.keys))
        for first, wide, count in pieces:
            starts = [b.const(self.kind, 0.0, wide)] * (count * self.queries)
            loop = b.begin(block.index, stop, 1, starts, guard=False)
            sums = self._weighed(base, loop.index, (first, wide, count), loop.values)
            for number, total in enumerate(loop.end(*sums)):
                place = b.element(self.at["sums"], self.kind, number // count * width + first + number % count * wide)
                b.store(b.fadd(b.load(place, self.kind, wide), total), place)
        block.end()

    def _weighed(self, base: Value, key: Value, piece: tuple[int, int, int], before: tuple[Value, ...]) -> list[Value]:
        b, factor = self.b, self.weighed.sum.factor
        first, wide, count = piece
        offset = b.mul(key, int(factor.index.stride(self.problem.key.name)))
        row = b.element(base, memory_kind(self.problem.dtype_of(factor)), offset)
        if first == 0 and self._apart(factor):
            self._prefetch(row, factor, int(self.weighed.axis.size))
        values = [self._load(factor, row, first + n * wide, wide) for n in range(count)]
        sums = []
        for i in range(self.queries):
            scores = b.element(self.at["scores"], self.kind, b.add(key, i * self.arrays.pitch))
            weight = b.splat(b.load(scores, self.kind), wide)
            sums += [b.fma(weight, value, before[i * count + n]) for n, value in enumerate(values)]
        return sums


class _Weights:
    """The operations on the scores of an attention, and their softmax, for each query along its keys."""

    def __init__(self, b: Builder, problem: AttentionProblem, arrays: _Arrays, lanes: int) -> None:
        self.b, self.problem, self.arrays = b, problem, arrays
        self.kind, self.wide = VALUE_KINDS[problem.dtype], lanes * _WIDE

    def write(self) -> None:
        b, problem = self.b, self.problem
        plan = SchedulePlan(problem.kernel, lanes=self.wide)
        self.at = Addresses(b, plan, WorkspaceLayout.of(plan))
        self.at.load_pointers()
        self.code = InstructionWriter.of(b, plan, self.at)
        self.at.axes |= outer_axes(b, problem, _OUTER)
        moving = {id(i) for i in loop_variant(problem.kernel, problem.kernel.stages[0])}
        self.inside = [i for i in problem.body if id(i) in moving]
        self.outside = [i for i in problem.body if id(i) not in moving]
        for query in range(int(problem.query.size)):
            self._row(query)

    def _row(self, query: int) -> None:
        b, kind = self.b, self.kind
        keys, last = reached(self.problem, query), reached(self.problem, int(self.problem.query.size) - 1)
        scores = b.element(b.element(MINE, "i8", self.arrays.places["scores"]), kind, query * self.arrays.pitch)
        for key in range(keys, last):  # behind what this query looks at
            b.store(b.const(kind, 0.0), b.element(scores, kind, key))
        self.at.axes[self.problem.query.name] = b.const("i64", query)
        self.code.begin_row()
        self.at.lanes = 1
        for instruction in self.outside:
            self.code.write(instruction)
        self.code.hold_addresses(self.inside)
        top, total = b.const(kind, -math.inf), b.const(kind, 0.0)
        whole = keys // self.wide * self.wide
        spans = [span for span in ((0, whole, self.wide), (whole, keys, 1)) if span[0] < span[1]]
        for span in spans:
            top = b.maximum(top, self._largest(scores, span))
        safe = b.select(b.fcmp("oeq", top, -math.inf), b.const(kind, 0.0), top)
        for span in spans:
            total = b.fadd(total, self._powers(scores, span, safe))
        for name, value in (("tops", top), ("totals", total)):
            b.store(value, b.element(b.element(MINE, "i8", self.arrays.places[name]), kind, query))

    def _largest(self, scores: Value, span: tuple[int, int, int]) -> Value:
        b, (first, last, wide), softmax = self.b, span, self.problem.softmax
        assert softmax is not None
        start = b.const(self.kind, -math.inf, wide)
        b.open_loop()
        loop = b.begin(b.const("i64", first), b.const("i64", last), wide, [start], guard=False)
        self.at.axes[self.problem.key.name], self.at.lanes = loop.index, wide
        place = b.element(scores, self.kind, loop.index)
        self.code.values[self.problem.scores[0].contract.out] = b.load(place, self.kind, wide)
        for instruction in self.inside:
            self.code.write(instruction)
        scores_vector = self.code.vector(softmax.value)
        b.store(scores_vector, place)
        (largest,) = loop.end(b.maximum(loop.values[0], scores_vector))
        b.close_loop()
        return b.reduce_lanes("fmaximum", largest)

    def _powers(self, scores: Value, span: tuple[int, int, int], safe: Value) -> Value:
        b, (first, last, wide) = self.b, span
        reference = b.splat(safe, wide)
        zero = b.const(self.kind, 0.0, wide)
        loop = b.begin(b.const("i64", first), b.const("i64", last), wide, [zero], guard=False)
        place = b.element(scores, self.kind, loop.index)
        power = OF_NEGATIVE["exp"](b, b.fsub(b.load(place, self.kind, wide), reference))
        b.store(power, place)
        (total,) = loop.end(b.fadd(loop.values[0], power))
        return total if wide == 1 else b.reduce_lanes("fadd", total, b.const(self.kind, -0.0), flags="reassoc")
