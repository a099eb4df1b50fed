"""Gradients of attention: recomputes the scores block by block and sums over keys and over queries.

    for each attention: for each block of keys: for each panel of queries:
      product.tile… keys by queries           the scores, and the gradients of their weights
      k0.weights                              what is computed of them: the weights p, their gradients s
      product.tile… queries by columns        sums over keys,    dq += s · k
      product.rows… keys by columns           sums over queries, dv += p · g and dk += s · q

A thread owns the sums of a block's keys, and those of all queries, until they are complete. One attention is never
divided among threads, so the order of its sums is the same for any number of threads.
"""

from functools import partial

from smelt.codegen.attention_problem import AttentionProblem, RowProduct, Weighed
from smelt.codegen.cpu.addresses import MINE
from smelt.codegen.cpu.attention.blocks import AttentionBlocks
from smelt.codegen.cpu.attention.part import BlockPart, call, store_row
from smelt.codegen.cpu.attention.points import Points, side_by_side
from smelt.codegen.cpu.attention.softmax import OUTER, WHERE
from smelt.codegen.cpu.entry_points import PART, KernelFunctions
from smelt.codegen.cpu.products.micro_kernel import micro_kernel_of_rows
from smelt.codegen.generator import EntryCode
from smelt.codegen.loops.arrays import Array, positions
from smelt.codegen.loops.builder import BUFFERS, Builder
from smelt.device import Target
from smelt.ir.loops import Value

_POINT = 24  # cycles for what is computed of a vector of scores


def why_not(problem: AttentionProblem, target: Target) -> str | None:
    if problem.softmax is not None or problem.last:
        return "it has a softmax, or something is left for each query"
    outer = {axis.name for axis in problem.outer}
    if any(not outer <= each.sum.index.axes for each in problem.sums):
        return "several attentions are summed up"
    if len(_weights(problem)) > len(problem.scores):
        return "it has more weights than scores"
    return None


def _weights(problem: AttentionProblem) -> list[str]:
    """The values that are weighed with, each in the place of a score."""
    return list(dict.fromkeys(each.sum.value for each in problem.sums))


def cycles(problem: AttentionProblem, target: Target) -> float:
    blocks = AttentionBlocks.of_gradients(problem, target)
    points = blocks.rows * problem.keys * (0.55 if problem.reach is not None else 1.0)
    depth = sum(int(each.axis.size) for each in problem.scores)
    width = sum(map(blocks.pitch, problem.sums))
    packed = (blocks.rows + problem.keys) * (depth + width) * 2
    work = points * (0.56 * depth + 0.62 * width + _POINT) / blocks.tiles.lanes
    return float(problem.count * (work + 0.85 * packed + 10_000))


def write(code: KernelFunctions, problem: AttentionProblem) -> EntryCode:
    blocks = AttentionBlocks.of_gradients(problem, code.target)
    code.write("weights", (BUFFERS, MINE, *WHERE), lambda b: _write_weights(b, blocks))
    code.write("part", PART, lambda b: _Part(b, blocks).write())
    return code.end(blocks.threads, blocks.units, blocks.workspace.size)


class _Part(BlockPart):
    def __init__(self, b: Builder, blocks: AttentionBlocks) -> None:
        super().__init__(b, blocks)
        rows, columns = self.tiles.scores.rows, self.tiles.values.cols
        self.multiply_rows = micro_kernel_of_rows(rows, columns, self.tiles.queries, self.dtype, b.target)
        self.weighed = _weights(blocks.problem)

    def write(self) -> None:
        b, problem, zero = self.b, self.problem, self.b.const("i64", 0)
        with b.loop(*PART[2:4], guard=True) as self.outer:
            self.axes = positions(b, problem.outer, self.outer)
            self.pack_queries(zero, problem.queries)
            for number, each in enumerate(problem.sums):
                if each.over_keys:
                    self.fill(f"sums{number}", self.blocks.rows * self.blocks.pitch(each))
                else:
                    self._pack_rows(number, each)
            for number, product in enumerate(problem.products):
                self._row_products(product, self.arrays[f"products{number}"])
            with b.loop(0, problem.keys, self.blocks.keys) as key:
                self._block(key, b.smin(b.sub(problem.keys, key), self.blocks.keys))
            for number, each in enumerate(problem.sums):
                if each.over_keys:
                    self._store(number, each, problem.query.name, zero, b.const("i64", problem.queries))

    def _pack_rows(self, number: int, each: Weighed) -> None:
        """What queries bring to be weighed: panels of columns, and zeros for queries that are not there."""
        b, columns, lanes, rows = self.b, self.tiles.values.cols, self.tiles.lanes, self.blocks.rows
        width, axes = int(each.axis.size), (each.axis.name, self.problem.query.name)
        with b.loop(0, width, columns) as column:
            to, points = self.arrays[f"values{number}"].at(b.mul(column, rows)), b.smin(b.sub(width, column), columns)
            counts = points, self.problem.queries
            self.pack(each.sum.factor, axes, columns, counts, to, **{each.axis.name: column})
            for place in range(self.problem.queries * columns, rows * columns, lanes):
                to.store(to.zero(lanes), place)

    def _row_products(self, product: RowProduct, out: Array) -> None:
        """Both factors packed, panel by panel, and multiplied lane by lane."""
        b, wide, lanes, name = self.b, self.tiles.queries, self.tiles.lanes, self.problem.query.name
        sides = [self.arrays[f"side{side}"] for side in range(2)]
        with b.loop(0, self.problem.queries, wide) as query:
            points = b.smin(b.sub(self.problem.queries, query), wide)
            for factor, side in zip(product.contract.factors, sides, strict=True):
                counts = points, int(product.axis.size)
                self.pack(factor, (name, product.axis.name), wide, counts, side, **{name: query})
            places = range(0, wide, lanes)
            loop = b.begin(0, product.axis.size, 1, [out.zero(lanes)] * len(places))
            start, totals = b.mul(loop.index, wide), []
            for place, total in zip(places, loop.values, strict=True):
                left, right = (side.load(b.add(start, place), lanes) for side in sides)
                totals.append(b.fma(left, right, total))
            for place, total in zip(places, loop.end(*totals), strict=True):
                out.store(total, b.add(query, place))

    def _block(self, key: Value, keys: Value) -> None:
        b, problem, wide, first = self.b, self.problem, self.tiles.queries, self.b.const("i64", 0)
        self.pack_keys(key, keys)
        for number, each in enumerate(problem.sums):
            if not each.over_keys:
                self.fill(f"sums{number}", self.blocks.keys * self.blocks.pitch(each))
        if problem.reach is not None:  # queries before it do not look at any key of the block
            first = b.udiv(b.smax(b.sub(key, problem.reach), 0), wide)
        with b.loop(first, self.blocks.panels, guard=True) as panel:
            query, count = b.mul(panel, wide), keys
            if problem.reach is not None:
                count = b.smin(keys, b.sub(b.add(query, wide + problem.reach), key))
            with b.when(b.icmp("sgt", count, 0)):
                self.weights(panel, query, key, count)
                for number, each in enumerate(problem.sums):
                    weights = self.arrays[f"scores{self.weighed.index(each.sum.value)}"]
                    if each.over_keys:
                        self.sum_keys(number, weights, panel, keys, count)
                    else:
                        self._sum_queries(number, weights, query, count)
        for number, each in enumerate(problem.sums):
            if not each.over_keys:
                self._store(number, each, problem.key.name, key, keys)

    def _sum_queries(self, number: int, weights: Array, query: Value, count: Value) -> None:
        b, pitch, columns = self.b, self.blocks.pitch(self.problem.sums[number]), self.tiles.values.cols
        values = self.arrays[f"values{number}"].at(b.mul(query, columns))
        with b.loop(0, count, self.tiles.scores.rows) as row:
            left, sums = weights.at(b.mul(row, self.tiles.queries)), self.arrays[f"sums{number}"].at(b.mul(row, pitch))
            call(self.multiply_rows, left, values, self.blocks.rows * columns, sums, pitch, pitch)

    def _store(self, number: int, each: Weighed, axis: str, first: Value, count: Value) -> None:
        """So many rows of complete sums, as results along an axis from `first` on."""
        b, index = self.b, each.sum.index
        down, step = int(index.stride(axis)), int(index.stride(each.axis.name))
        out = self.buffers[each.sum.buffer].at_index(index, {**self.axes, axis: first})
        with b.loop(0, count) as row:
            sums = self.arrays[f"sums{number}"].at(b.mul(row, self.blocks.pitch(each)))
            store_row(sums, out.at(b.mul(row, down)), step, int(each.axis.size), self.tiles.lanes)


def _write_weights(b: Builder, blocks: AttentionBlocks) -> None:
    """Replaces the scores of a panel of queries by the weights and their gradients; zeros for keys up to whole
    tiles."""
    problem, wide, lanes = blocks.problem, blocks.tiles.queries, blocks.tiles.lanes
    _, _, query, key, keys = WHERE
    scores = [blocks.workspace.array(b, f"scores{number}") for number in range(len(problem.scores))]
    products = [blocks.workspace.array(b, f"products{number}") for number in range(len(problem.products))]
    points, totals = Points(b, blocks, OUTER), [each.at(query) for each in products]
    b.open_loop()
    with b.loop(0, keys) as row:
        here, start = b.add(key, row), b.mul(row, wide)
        lines = [array.at(start) for array in scores]

        def some(lane: int) -> None:
            scores_at = {}
            for product, total in zip(problem.products, totals, strict=True):
                scores_at[product.contract.out] = total.load(lane, lanes)
            for score, line in zip(problem.scores, lines, strict=True):
                scores_at[score.contract.out] = line.load(lane, lanes)
            points.write(lane, query, here, row, scores_at)
            for name, line in zip(_weights(problem), lines, strict=False):
                line.store(points.row.code.vector(name), lane)

        side_by_side(b, [partial(some, lane) for lane in range(0, wide, lanes)])
    b.close_loop()
    step = blocks.tiles.scores.rows
    whole = b.mul(b.udiv(b.add(keys, step - 1), step), step)
    with b.loop(keys, whole, guard=True) as row:
        for array in scores[: len(_weights(problem))]:
            line = array.at(b.mul(row, wide))
            for lane in range(0, wide, lanes):
                line.store(line.zero(lanes), lane)
