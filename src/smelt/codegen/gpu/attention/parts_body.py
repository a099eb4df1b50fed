"""Attention of few queries, as when text is generated token by token: `KeyParts`, blocks that each go through a part of
the keys for all queries of a head of keys, and `PartSums`, which adds up what the parts found.

    lanes:  eight numbers of a key each, so that some lanes have a key, a warp several, and a block many at once
    step:   keys and values of several steps → registers; scores by shuffles; maximum, sum and weighted sums so far
    at last lanes, warps and parts are merged, each relative to the larger maximum

Keys and values are read once, in place, sixteen bytes an access.
"""

import math
from collections.abc import Sequence

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.gpu.grids import Grid
from smelt.codegen.gpu.phase_body import Coordinates, PhaseBody
from smelt.codegen.gpu.simt import Mask, Simt
from smelt.codegen.gpu.vector_width import is_multiple
from smelt.codegen.loops.scalars import cast, compute, from_memory, memory_kind, to_memory
from smelt.ir.kernel import Axis, Contract, Factor, Index, Kernel, Role, Softmax, WeightedSum
from smelt.ir.loops import Value
from smelt.symbolic.shapes import Size, product

F32 = torch.float32
PARTS = ("found.most", "found.total", "found.sums")  # buffers of what parts leave for each query


@dataclass(frozen=True, slots=True)
class KeyParts(Grid):
    """`outer` number the heads of keys, `queries` what shares one. A lane reads `vector` numbers at once, `lanes` have
    a key, and a block goes through `chunk` keys, `unroll` at once a lane."""

    kernel: Kernel
    outer: tuple[Axis, ...]
    queries: tuple[Axis, ...]
    vector: int
    lanes: int
    parts: int
    chunk: Size
    unroll: int
    warp: int
    threads: int = 128

    @property
    def query_count(self) -> int:
        return int(product(axis.size for axis in self.queries))

    @property
    def outer_count(self) -> int:
        return int(product(axis.size for axis in self.outer))

    @property
    def blocks(self) -> int:
        return self.outer_count * self.parts

    @property
    def warps(self) -> int:
        return self.threads // self.warp

    @property
    def at_once(self) -> int:
        """Keys of a block, one a lane."""
        return self.threads // self.lanes


@dataclass(frozen=True, slots=True)
class PartSums(Grid):
    """A thread for each result: what the parts of its query found."""

    kernel: Kernel
    of: KeyParts
    threads: int = 128

    @property
    def blocks(self) -> int:
        of = self.of
        width = int(weighed_of(self.kernel).axes[0].size)
        return -(-of.outer_count * of.query_count * width // self.threads)


def weighed_of(kernel: Kernel) -> WeightedSum:
    return next(i for i in kernel.instructions() if isinstance(i, WeightedSum))


class _Body(PhaseBody):
    """What both grids do with maxima and sums."""

    def exp(self, x: Value) -> Value:
        return compute(self.b, "exp", [x], F32)

    def reference(self, most: Value) -> Value:
        """What distances are from: any number where there is no maximum yet."""
        return self.b.select(self.b.fcmp("oeq", most, -math.inf), 0.0, most)

    def merged(self, one: Sequence[Value], other: Sequence[Value]) -> list[Value]:
        """Two maxima, each with sums relative to it, as one."""
        b = self.b
        most = b.maximum(one[0], other[0])
        near = self.reference(most)
        scales = [self.exp(b.fsub(each[0], near)) for each in (one, other)]
        sums = [b.fma(x, scales[0], b.fmul(y, scales[1])) for x, y in zip(one[1:], other[1:], strict=True)]
        return [most, *sums]

    def stored(self, where: Coordinates, total: Value, value: Value, mask: Mask) -> None:
        """A result: zero where nothing has weight."""
        b, weighed = self.b, weighed_of(self.kernel)
        share = b.select(b.fcmp("oeq", total, 0.0), 0.0, b.fdiv(value, total))
        dtype = self.kernel.buffer(weighed.buffer).dtype
        with b.where_stored(mask):
            self._stored(weighed.buffer, weighed.index, where, [to_memory(b, cast(b, share, F32, dtype), dtype)])


class PartsBody(_Body, of=KeyParts):
    """A grid of parts being written."""

    grid: KeyParts

    def __init__(self, b: Simt, grid: KeyParts) -> None:
        super().__init__(b, grid)
        body = self.kernel.stages[0].body
        (self.contract,) = (i for i in body if isinstance(i, Contract))
        (self.softmax,) = (i for i in body if isinstance(i, Softmax))
        self.weighed = weighed_of(self.kernel)
        self.score = [i for i in body if not isinstance(i, Contract | Softmax | WeightedSum)]
        (self.key,) = self.kernel.cols
        sides = self.contract.factors
        self.query_side, self.key_side = sides if self.key.name in sides[1].index.axes else sides[::-1]
        self.width = 1
        self.each = int(self.contract.axes[0].size) // grid.lanes  # numbers of a lane

    def write(self) -> None:
        b, grid = self.b, self.grid
        shift = grid.lanes.bit_length() - 1
        self.lane = b.and_(b.lane(), grid.lanes - 1)
        block = b.block_number()
        part = b.binary("urem", block, grid.parts) if grid.parts > 1 else b.index(0)
        outer = b.binary("udiv", block, grid.parts) if grid.parts > 1 else block
        self.outer_number, self.part = outer, part
        self.where = self._coordinates(outer, grid.outer)
        self.begin = b.mul(part, b.index(grid.chunk))
        self.own = b.lshr(b.thread(), shift)  # which key of the block's next ones
        self.query_places = [self._row(number) for number in range(grid.query_count)]
        self.queries = [self._read(self.query_side, {**self.where, **row}, None) for row in self.query_places]
        of_queries = self._of_keys()
        if grid.warp > grid.lanes:
            of_queries = [self._across(each, grid.lanes, grid.warp) for each in of_queries]
        self._merge_warps(of_queries)

    def _row(self, number: int) -> Coordinates:
        """Where a query is."""
        where: Coordinates = {}
        for axis in reversed(self.grid.queries):
            number, at = divmod(number, int(axis.size))
            where[axis.name] = self.b.index(at)
        return where

    def _read(self, factor: Factor, where: Coordinates, mask: Mask) -> list[Value]:
        """A lane's numbers of a row of a factor, as float32."""
        b, grid, buffer = self.b, self.grid, self.kernel.buffer(factor.buffer)
        index = Index(tuple(term for term in factor.index.terms if term[0] in where), factor.index.offset)
        at = self._offset(index, where)
        if mask is not None:
            at = b.select(mask, at, 0)
        values = []
        for piece in range(self.each // grid.vector):
            place = b.add(at, b.add(b.mul(self.lane, grid.vector), piece * grid.lanes * grid.vector))
            values += b.load_global(
                b.pointer(factor.buffer), place, memory_kind(buffer.dtype), grid.vector,
                aligned=b.aligned, constant=buffer.role is Role.INPUT,
            )  # fmt: skip
        return [cast(b, from_memory(b, each, buffer.dtype), buffer.dtype, F32) for each in values]

    def _of_keys(self) -> list[list[Value]]:
        """Of each query: the maximum, the sum and the weighted sums of a lane's keys."""
        b, grid = self.b, self.grid
        count = 2 + self.each
        begin = [b.const("f32", -math.inf), *[b.const("f32", 0.0)] * (count - 1)] * grid.query_count
        step = grid.at_once * grid.unroll

        def some_keys(turn: Value, values: list[Value]) -> list[Value]:
            so_far = [values[first : first + count] for first in range(0, len(values), count)]
            return [each for one in self._further(b.convert("trunc", turn, b.index_kind), so_far) for each in one]

        values = b.carried_loop(grid.chunk, begin, some_keys, step=step)
        return [values[first : first + count] for first in range(0, len(values), count)]

    def _further(self, turn: Value, before: list[list[Value]]) -> list[list[Value]]:
        b, grid = self.b, self.grid
        places: list[tuple[Coordinates, Mask]] = []
        for number in range(grid.unroll):
            key = b.add(b.add(self.begin, turn), b.add(self.own, number * grid.at_once))
            mask = None
            if not is_multiple(self.key.size, grid.at_once * grid.unroll * grid.parts):
                key, mask = b.below(key, self.key.size)
            places.append(({**self.where, self.key.name: key}, mask))
        keys = [self._read(self.key_side, where, mask) for where, mask in places]
        values = [self._read(self.weighed.factor, where, mask) for where, mask in places]
        after = []
        for row, query, so_far in zip(self.query_places, self.queries, before, strict=True):
            scores = [
                self._scored({**where, **row}, mask, query, key)
                for (where, mask), key in zip(places, keys, strict=True)
            ]
            most = so_far[0]
            for each in scores:
                most = b.maximum(most, each)
            near = self.reference(most)
            scale = self.exp(b.fsub(so_far[0], near))
            weights = [self.exp(b.fsub(each, near)) for each in scores]
            sums = [b.fmul(each, scale) for each in so_far[1:]]
            for weight, (_, mask), value in zip(weights, places, values, strict=True):
                # What is not there, has no weight: but there may be no number in its place.
                own = value if mask is None else [b.select(mask, each, 0.0) for each in value]
                sums = [b.fadd(sums[0], weight), *(b.fma(weight, x, s) for x, s in zip(own, sums[1:], strict=True))]
            after.append([most, *sums])
        return after

    def _scored(self, where: Coordinates, mask: Mask, query: list[Value], key: list[Value]) -> Value:
        b = self.b
        total = b.fmul(query[0], key[0])
        for x, y in zip(query[1:], key[1:], strict=True):
            total = b.fma(x, y, total)
        total = b.across_lanes(total, b.fadd, 1, self.grid.lanes)
        self.values = {self.contract.out: (total,)}
        self.registers.clear()
        self.run(self.score, where, None)
        (score,) = self.values[self.softmax.value]
        return score if mask is None else b.select(mask, score, -math.inf)

    def _across(self, mine: list[Value], first: int, last: int) -> list[Value]:
        """Merged with what other lanes of the warp found, for other keys."""
        distance = first
        while distance < last:
            others = [self.b.shuffle_xor(each, distance) for each in mine]
            mine, distance = self.merged(mine, others), 2 * distance
        return mine

    def _merge_warps(self, of_queries: list[list[Value]]) -> None:
        b, grid = self.b, self.grid
        width, queries = self.each * grid.lanes, grid.query_count
        line = width + 2
        array = b.shared_array("f32", grid.warps * queries * line)
        with b.where(b.icmp("slt", b.lane(), grid.lanes)):
            for row, values in enumerate(of_queries):
                base = b.mul(b.add(b.mul(b.warp_number(), queries), row), line)
                for place, value in enumerate(values[:2]):
                    b.store_shared(array, b.add(base, width + place), value)
                for number, value in enumerate(values[2:]):
                    piece, way = divmod(number, grid.vector)
                    within = b.add(b.mul(self.lane, grid.vector), piece * grid.lanes * grid.vector + way)
                    b.store_shared(array, b.add(base, within), value)
        b.barrier()
        count = queries * width
        for turn in range(-(-count // grid.threads)):
            point = b.add(b.thread(), turn * grid.threads) if turn else b.thread()
            mask: Mask = None
            if (turn + 1) * grid.threads > count:
                point, mask = b.below(point, count)
            query = b.binary("udiv", point, width)
            of_width = b.sub(point, b.mul(query, width))
            whole: list[Value] = []
            for warp in range(grid.warps):
                base = b.mul(b.add(query, warp * queries), line)
                each = [b.load_shared(array, b.add(base, place), "f32") for place in (width, width + 1)]
                one = [*each, b.load_shared(array, b.add(base, of_width), "f32")]
                whole = self.merged(whole, one) if whole else one
            self._leave(whole, query, of_width, mask)

    def _leave(self, whole: list[Value], row: Value, at: Value, mask: Mask) -> None:
        b, grid = self.b, self.grid
        if grid.parts == 1:
            where = {**self.where, **self._coordinates(row, grid.queries), self.weighed.axes[0].name: at}
            self.stored(where, whole[1], whole[2], mask)
            return
        most, total, sums = map(b.pointer, PARTS)
        query = b.add(b.mul(self.outer_number, grid.query_count), row)
        place = b.add(b.mul(query, grid.parts), self.part)
        with b.where_stored(mask):
            b.store_global(sums, b.add(b.mul(place, self.each * grid.lanes), at), [whole[2]])
            b.store_global(most, place, [whole[0]])
            b.store_global(total, place, [whole[1]])


class SumsBody(_Body, of=PartSums):
    """A grid of results being written."""

    grid: PartSums

    def write(self) -> None:
        b, of = self.b, self.grid.of
        (axis,) = weighed_of(self.kernel).axes
        width = int(axis.size)
        number = b.add(b.mul(b.block_number(), self.grid.threads), b.thread())
        count, mask = of.outer_count * of.query_count * width, None
        if count % self.grid.threads:
            number, mask = b.below(number, count)
        query = b.binary("udiv", number, width)
        at = b.sub(number, b.mul(query, width))
        pointers = [b.pointer(name) for name in PARTS]
        first = b.mul(query, of.parts)

        def read(part: Value) -> list[Value]:
            place = b.add(first, part)
            places = (place, place, b.add(b.mul(place, width), at))
            return [b.load_global(pointer, each, "f32")[0] for pointer, each in zip(pointers, places, strict=True)]

        def with_next(turn: Value, values: list[Value]) -> list[Value]:
            return self.merged(values, read(b.convert("trunc", turn, b.index_kind)))

        whole = b.carried_loop(of.parts, read(b.index(0)), with_next, first=1)
        outer = b.binary("udiv", query, of.query_count)
        row = b.sub(query, b.mul(outer, of.query_count))
        where = {**self._coordinates(outer, of.outer), **self._coordinates(row, of.queries), axis.name: at}
        self.stored(where, whole[1], whole[2], mask)


