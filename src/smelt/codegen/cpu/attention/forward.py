"""Attention in blocks: scores of a panel of queries in the first-level cache, their online softmax, then weighted sums.

    k0(buffers, threads, workspace)          smelt_parallel_for(k0.part, …) over blocks of queries
      k0.part                                packs queries; for each block of keys packs those and their values
        product.tile… keys by queries        the scores of a panel of queries
        k0.weights                           what is computed of them, and their softmax so far
        product.tile… queries by values      sums of values, scaled first where the largest score has grown
      k0.finish                              sums over what weights were divided by, as results

Each query has its own sums, whose order depends on sizes alone: it is the same for any number of threads.
"""

import math

from smelt.codegen.cpu.attention.blocks import AttentionBlocks
from smelt.codegen.cpu.attention.finish import Finish
from smelt.codegen.cpu.attention.panels import PanelForm, call_pack, pack
from smelt.codegen.cpu.attention.points import outer_axes
from smelt.codegen.cpu.attention.problem import AttentionProblem
from smelt.codegen.cpu.attention.softmax import write_weights
from smelt.codegen.cpu.entry_points import PART
from smelt.codegen.cpu.products.micro_kernel import micro_kernel
from smelt.codegen.cpu.products.parts import MINE, entry_function
from smelt.codegen.generator import EntryCode
from smelt.codegen.loops.builder import BUFFERS, Builder
from smelt.codegen.loops.scalars import VALUE_KINDS, memory_kind
from smelt.device import Target
from smelt.ir.kernel import Factor, Index
from smelt.ir.loops import Function, Value

_SOFTMAX = 14  # cycles for a vector of scores
_EACH = 3_000  # and for each attention


def why_not(problem: AttentionProblem, target: Target) -> str | None:
    softmax, body = problem.softmax, problem.kernel.stages[0].body
    if softmax is None:
        return "it has no softmax"
    after = body[body.index(softmax) + 1 :]
    alone = len(problem.sums) == len(problem.scores) == len(after) == 1 and not problem.products
    if not alone or problem.sums[0].sum.value != softmax.out or not problem.sums[0].over_keys:
        return "something else than one weighted sum follows the softmax"
    return None


def cycles(problem: AttentionProblem, target: Target) -> float:
    """Whole tiles of multiplications, packing, and what softmax takes."""
    blocks = AttentionBlocks.of(problem, target)
    wide, lanes = blocks.tiles.queries, blocks.tiles.lanes
    rows, keys = -(-int(problem.query.size) // wide) * wide, int(problem.key.size)
    points = rows * keys * (0.55 if problem.reach is not None else 1.0)
    packed = (keys * blocks.query_blocks + rows) * (blocks.depth + blocks.width)
    work = points * ((blocks.depth + blocks.pitch) * 0.56 + _SOFTMAX) / lanes + 1.2 * packed
    return float(problem.count * (work + rows * blocks.pitch + _EACH))


def write(symbol: str, problem: AttentionProblem, target: Target) -> EntryCode:
    """The functions of a kernel under the name `symbol`."""
    blocks = AttentionBlocks.of(problem, target)
    weights, weighing = write_weights(symbol, blocks, target)
    part, finish, entry = (Builder(target, symbol) for _ in range(3))
    driver = _Part(part, blocks, target)
    driver.write()
    functions = (
        weights,
        Finish(finish, problem, blocks.places, blocks.pitch, blocks.tiles.lanes).write(),
        part.function(f"{symbol}.part", PART),
        entry_function(entry, blocks.threads, blocks.units, blocks.workspace),
    )
    own = {each.name: (each,) for each in driver.helpers.values()}
    helpers = {**weighing.helpers, **finish.helpers, **own}
    return EntryCode(functions, tuple(helpers.items()), blocks.workspace)


class _Part:
    """The blocks that one thread computes."""

    def __init__(self, b: Builder, blocks: AttentionBlocks, target: Target) -> None:
        self.b, self.blocks, self.problem, self.target = b, blocks, blocks.problem, target
        self.kind, self.tiles = VALUE_KINDS[blocks.problem.dtype], blocks.tiles
        self.helpers: dict[str, Function] = {}
        for name, tile in (("scores", self.tiles.scores), ("values", self.tiles.values)):
            self.helpers[name] = micro_kernel(tile, self.problem.dtype, target)

    def write(self) -> None:
        b, problem, blocks = self.b, self.problem, self.blocks
        parameters = enumerate(problem.kernel.parameters)
        self.pointers = {buffer.name: b.load_pointer(number) for number, buffer in parameters}
        self.arrays = {name: b.element(MINE, "i8", place) for name, place in blocks.places.items()}
        units = b.begin(*PART[2:4], 1, (), guard=True)
        self.outer = b.binary("udiv", units.index, blocks.query_blocks)
        self.axes = outer_axes(b, problem, self.outer)
        each = blocks.panels * self.tiles.queries
        self.query = b.mul(b.sub(units.index, b.mul(self.outer, blocks.query_blocks)), each)
        self.rows = b.intrinsic("smin", b.sub(int(problem.query.size), self.query), b.const("i64", each))
        self.panels = b.binary("udiv", b.add(self.rows, self.tiles.queries - 1), self.tiles.queries)
        self._begin()
        end = self._reached(b.add(self.query, b.sub(self.rows, 1)), b.const("i64", int(problem.key.size)))
        keys = b.begin(b.const("i64", 0), end, blocks.keys, (), guard=True)
        self._block(keys.index, b.intrinsic("smin", b.sub(end, keys.index), b.const("i64", blocks.keys)))
        keys.end()
        b.call(f"{b.symbol}.finish", BUFFERS, MINE, self.outer, self.query, self.rows)
        units.end()

    def _reached(self, query: Value, most: Value) -> Value:
        """How many keys have weight for a query, of `most`."""
        reach = self.problem.reach
        if reach is None:
            return most
        return self.b.intrinsic("smin", self.b.add(query, reach + 1), most)

    def _start(self, factor_buffer: str, index: Index, **further: Value) -> Value:
        """The address of an index at this attention, and at further axes."""
        b = self.b
        total = b.const("i64", index.offset)
        for name, place in {**self.axes, **further}.items():
            step = index.stride(name)
            total = b.add(total, b.mul(place, step)) if step else total
        kind = memory_kind(self.problem.kernel.buffer(factor_buffer).dtype)
        return b.element(self.pointers[factor_buffer], kind, total)

    def _pack(
        self, factor: Factor, point: tuple[str, Value], axes: tuple[str, str], counts: tuple[Value, Value],
        width: int, array: str,
    ) -> None:  # fmt: skip
        """Panels of `width`: `axes` are that of points and that of steps, `counts` how many there are, and `point` is
        where the axis of blocks begins."""
        steps = [int(factor.index.stride(axis)) for axis in axes]
        form = PanelForm(self.problem.dtype_of(factor), self.problem.dtype, width, steps[0], steps[1])
        self._pack_form(form, self._start(factor.buffer, factor.index, **dict([point])), counts, array)

    def _pack_form(self, form: PanelForm, source: Value, counts: tuple[Value, Value], array: str) -> None:
        helper = pack(form, self.target)
        self.helpers[helper.name] = helper
        call_pack(self.b, helper, form, source, counts, self.arrays[array])

    def _begin(self) -> None:
        """Queries are packed, sums are zero."""
        b, blocks, score = self.b, self.blocks, self.problem.scores[0]
        query, depth = self.problem.query.name, b.const("i64", blocks.depth)
        axes = (query, score.axis.name)
        self._pack(score.query, (query, self.query), axes, (self.rows, depth), self.tiles.queries, "queries")
        count = b.mul(self.panels, self.tiles.queries)
        for name, start, number in (
            ("sums", 0.0, b.mul(count, blocks.pitch)), ("tops", -math.inf, count), ("totals", 0.0, count),
        ):  # fmt: skip
            loop = b.begin(b.const("i64", 0), number, self.tiles.lanes, (), guard=False)
            start_ = b.const(self.kind, start, self.tiles.lanes)
            b.store(start_, b.element(self.arrays[name], self.kind, loop.index))
            loop.end()

    def _block(self, key: Value, keys: Value) -> None:
        b, problem, blocks = self.b, self.problem, self.blocks
        score, weighed = problem.scores[0], problem.sums[0]
        name, depth, width = problem.key.name, b.const("i64", blocks.depth), b.const("i64", blocks.width)
        self._pack(score.key, (name, key), (name, score.axis.name), (keys, depth), self.tiles.scores.rows, "keys")
        self._pack(
            weighed.sum.factor, (name, key), (weighed.axis.name, name), (width, keys), self.tiles.values.cols, "values"
        )
        panels = b.begin(b.const("i64", 0), self.panels, 1, (), guard=False)
        query = b.add(self.query, b.mul(panels.index, self.tiles.queries))
        count = keys
        if problem.reach is not None:
            last = b.add(query, self.tiles.queries - 1)
            count = b.intrinsic("smin", b.sub(self._reached(last, b.add(key, keys)), key), keys)
        with b.when(b.icmp("sgt", count, 0)):
            self._panel(panels.index, query, key, keys, count)
        panels.end()

    def _panel(self, panel: Value, query: Value, key: Value, keys: Value, count: Value) -> None:
        """A panel of queries and the first `count` keys of a block of `keys`."""
        b, blocks, tiles = self.b, self.blocks, self.tiles
        depth, wide = blocks.depth, tiles.queries
        queries = b.element(self.arrays["queries"], self.kind, b.mul(panel, wide * depth))
        loop = b.begin(b.const("i64", 0), count, tiles.scores.rows, (), guard=False)
        left = b.element(self.arrays["keys"], self.kind, b.mul(loop.index, depth))
        out = b.element(self.arrays["scores"], self.kind, b.mul(loop.index, wide))
        self._tile("scores", left, queries, b.const("i64", depth), (out, wide), adds=False)
        loop.end()
        for number, packed in enumerate(blocks.packed):
            further = {self.problem.query.name: query, self.problem.key.name: key}
            source = self._start(packed.load.buffer, packed.load.index, **further)
            there = b.sub(int(self.problem.query.size), query)
            points = b.intrinsic("smin", there, b.const("i64", wide))
            steps = count if packed.by_key else b.const("i64", 1)
            self._pack_form(packed.form, source, (points, steps), f"packed{number}")
        b.call(f"{b.symbol}.weights", BUFFERS, MINE, self.outer, panel, query, key, count)
        sums = b.element(self.arrays["sums"], self.kind, b.mul(panel, wide * blocks.pitch))
        if blocks.keys < int(self.problem.key.size):
            with b.when(b.icmp("sgt", key, 0)):
                self._rescale(sums)
        loop = b.begin(b.const("i64", 0), b.const("i64", blocks.pitch), tiles.values.cols, (), guard=False)
        right = b.element(self.arrays["values"], self.kind, b.mul(loop.index, keys))
        out = b.element(sums, self.kind, loop.index)
        self._tile("values", self.arrays["scores"], right, count, (out, blocks.pitch), adds=True)
        loop.end()

    def _tile(self, name: str, left: Value, right: Value, steps: Value, out: tuple[Value, int], *, adds: bool) -> None:
        stride, how = self.b.const("i64", out[1]), self.b.const("i1", adds)
        self.b.call(self.helpers[name].name, left, right, steps, out[0], stride, how)

    def _rescale(self, sums: Value) -> None:
        """Rescale the sums of earlier blocks, which are relative to an older maximum."""
        b, pitch, lanes = self.b, self.blocks.pitch, self.tiles.lanes
        rows = b.begin(b.const("i64", 0), b.const("i64", self.tiles.queries), 1, (), guard=False)
        scale = b.splat(b.load(b.element(self.arrays["scales"], self.kind, rows.index), self.kind), lanes)
        row = b.element(sums, self.kind, b.mul(rows.index, pitch))
        cols = b.begin(b.const("i64", 0), b.const("i64", pitch), lanes, (), guard=False)
        place = b.element(row, self.kind, cols.index)
        b.store(b.fmul(b.load(place, self.kind, lanes), scale), place)
        cols.end()
        rows.end()
