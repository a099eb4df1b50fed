"""Gradients of attention: recomputes the scores block by block and sums over keys and over queries.

    for each attention: for each block of keys: for each panel of queries:
      product.tile… keys by queries           the scores, and the gradients of their weights
      k0.weights                              what is computed of them: the weights p, their gradients s
      product.tile… queries by columns        sums over keys,    dq += s · k
      attention.rows… keys by columns         sums over queries, dv += p · g and dk += s · q

A thread owns the sums of a block's keys, and those of all queries, until they are complete. One attention is never
divided among threads, so the order of its sums is the same for any number of threads.
"""

from functools import partial

from smelt.codegen.cpu.attention.gradient_arrays import GradientArrays
from smelt.codegen.cpu.attention.panels import PanelForm, call_pack, pack
from smelt.codegen.cpu.attention.points import Points, outer_axes, side_by_side
from smelt.codegen.cpu.attention.problem import AttentionProblem, Weighed
from smelt.codegen.cpu.attention.row_tile import row_tile
from smelt.codegen.cpu.attention.softmax import WHERE
from smelt.codegen.cpu.entry_points import PART
from smelt.codegen.cpu.products.micro_kernel import micro_kernel
from smelt.codegen.cpu.products.parts import MINE, entry_function
from smelt.codegen.generator import EntryCode
from smelt.codegen.loops.builder import BUFFERS, FALSE, TRUE, Builder
from smelt.codegen.loops.scalars import VALUE_KINDS, cast, memory_kind
from smelt.device import Target
from smelt.ir.kernel import Factor, Index
from smelt.ir.loops import Function, Value

_POINT = 24  # cycles for what is computed of a vector of scores


def why_not(problem: AttentionProblem, target: Target) -> str | None:
    if problem.softmax is not None or problem.last:
        return "it has a softmax, or something is left for each query"
    outer = {axis.name for axis in problem.outer}
    if any(not outer <= each.sum.index.axes for each in problem.sums):
        return "several attentions are summed up"
    if len({each.sum.value for each in problem.sums}) > len(problem.scores):
        return "it has more weights than scores"
    return None


def cycles(problem: AttentionProblem, target: Target) -> float:
    arrays = GradientArrays.of(problem, target)
    lanes, keys = arrays.tiles.lanes, int(problem.key.size)
    points = arrays.rows * keys * (0.55 if problem.reach is not None else 1.0)
    depth = sum(int(each.axis.size) for each in problem.scores)
    width = sum(arrays.pitch(each) for each in problem.sums)
    packed = (arrays.rows + keys) * (depth + width) * 2
    return float(problem.count * (points * (0.56 * depth + 0.62 * width + _POINT) / lanes + 0.85 * packed + 10_000))


def write(symbol: str, problem: AttentionProblem, target: Target) -> EntryCode:
    """The functions of a kernel under the name `symbol`."""
    arrays = GradientArrays.of(problem, target)
    part, weights, entry = (Builder(target, symbol) for _ in range(3))
    driver = _Part(part, arrays, target)
    driver.write()
    _Weights(weights, arrays).write()
    functions = (
        weights.function(f"{symbol}.weights", (BUFFERS, MINE, *WHERE)),
        part.function(f"{symbol}.part", PART),
        entry_function(entry, arrays.threads, problem.count, arrays.size),
    )
    helpers = {**weights.helpers, **{each.name: (each,) for each in driver.helpers.values()}}
    return EntryCode(functions, tuple(helpers.items()), arrays.size)


class _Part:
    """The attentions that one thread computes."""

    def __init__(self, b: Builder, arrays: GradientArrays, target: Target) -> None:
        self.b, self.arrays, self.problem, self.target = b, arrays, arrays.problem, target
        self.kind, self.tiles = VALUE_KINDS[arrays.problem.dtype], arrays.tiles
        dtype, columns = self.problem.dtype, self.tiles.values.cols
        self.helpers: dict[str, Function] = {
            "scores": micro_kernel(self.tiles.scores, dtype, target),
            "values": micro_kernel(self.tiles.values, dtype, target),
            "rows": row_tile(self.tiles.scores.rows, columns, self.tiles.queries, dtype, target),
        }

    def write(self) -> None:
        b, problem = self.b, self.problem
        parameters = enumerate(problem.kernel.parameters)
        self.pointers = {buffer.name: b.load_pointer(number) for number, buffer in parameters}
        self.at = {name: b.element(MINE, "i8", place) for name, place in self.arrays.places.items()}
        self.queries, self.keys = int(problem.query.size), int(problem.key.size)
        units = b.begin(*PART[2:4], 1, (), guard=True)
        self.outer = units.index
        self.axes = outer_axes(b, problem, units.index)
        self._begin()
        blocks = b.begin(b.const("i64", 0), b.const("i64", self.keys), self.arrays.keys, (), guard=False)
        rest = b.sub(self.keys, blocks.index)
        self._block(blocks.index, b.intrinsic("smin", rest, b.const("i64", self.arrays.keys)))
        blocks.end()
        for number, each in enumerate(problem.sums):
            if each.over_keys:
                self._store(number, each, problem.query.name, b.const("i64", 0), b.const("i64", self.queries))
        units.end()

    # Packing.

    def _start(self, buffer: str, index: Index, **further: Value) -> Value:
        """The address of an index at this attention, and at further axes."""
        b = self.b
        total = b.const("i64", index.offset)
        for name, place in {**self.axes, **further}.items():
            step = index.stride(name)
            total = b.add(total, b.mul(place, step)) if step else total
        return b.element(self.pointers[buffer], memory_kind(self.problem.kernel.buffer(buffer).dtype), total)

    def _pack(self, factor: Factor, axes: tuple[str, str], counts: tuple[Value, Value], width: int,
              array: str, **further: Value) -> None:  # fmt: skip
        """Panels of `width`: `axes` are that of points and that of steps, `counts` how many there are."""
        point, step = (int(factor.index.stride(axis)) for axis in axes)
        form = PanelForm(self.problem.dtype_of(factor), self.problem.dtype, width, point, step)
        self._pack_form(form, self._start(factor.buffer, factor.index, **further), counts, array)

    def _pack_form(self, form: PanelForm, source: Value, counts: tuple[Value, Value], array: str) -> None:
        helper = pack(form, self.target)
        self.helpers[helper.name] = helper
        call_pack(self.b, helper, form, source, counts, self.at[array])

    def _begin(self) -> None:
        """What queries bring is packed, and their sums are zero."""
        b, problem, tiles = self.b, self.problem, self.tiles
        name, count = problem.query.name, b.const("i64", self.queries)
        for number, score in enumerate(problem.scores):
            depth = b.const("i64", int(score.axis.size))
            self._pack(score.query, (name, score.axis.name), (count, depth), tiles.queries, f"queries{number}")
        for number, each in enumerate(problem.sums):
            if each.over_keys:
                self._zero(f"sums{number}", self.arrays.rows * self.arrays.pitch(each))
            else:
                self._pack_rows(number, each)
        for number in range(len(problem.products)):
            self._row_products(number)

    def _pack_rows(self, number: int, each: Weighed) -> None:
        """What queries bring to be weighed: panels of columns, and zeros for queries that are not there."""
        b, columns, rows = self.b, self.tiles.values.cols, self.arrays.rows
        factor, name = each.sum.factor, self.problem.query.name
        point, step = (int(factor.index.stride(axis)) for axis in (each.axis.name, name))
        form = PanelForm(self.problem.dtype_of(factor), self.problem.dtype, columns, point, step)
        helper = pack(form, self.target)
        self.helpers[helper.name] = helper
        base, width = self._start(factor.buffer, factor.index), int(each.axis.size)
        array, kind = self.at[f"values{number}"], memory_kind(self.problem.dtype_of(factor))
        loop = b.begin(b.const("i64", 0), b.const("i64", width), columns, (), guard=False)
        source = b.element(base, kind, b.mul(loop.index, point))
        to = b.element(array, self.kind, b.mul(loop.index, rows))
        points = b.intrinsic("smin", b.sub(width, loop.index), b.const("i64", columns))
        call_pack(b, helper, form, source, (points, b.const("i64", self.queries)), to)
        zero = b.const(self.kind, 0.0, self.tiles.lanes)
        for place in range(self.queries * columns, rows * columns, self.tiles.lanes):
            b.store(zero, b.element(to, self.kind, place))
        loop.end()

    def _row_products(self, number: int) -> None:
        """Both factors packed, panel by panel, and multiplied lane by lane."""
        b, tiles, product = self.b, self.tiles, self.problem.products[number]
        name, lanes, depth = self.problem.query.name, tiles.lanes, int(product.axis.size)
        panels = b.begin(b.const("i64", 0), b.const("i64", self.queries), tiles.queries, (), guard=False)
        points = b.intrinsic("smin", b.sub(self.queries, panels.index), b.const("i64", tiles.queries))
        for side, factor in enumerate(product.contract.factors):
            counts = (points, b.const("i64", depth))
            axes = (name, product.axis.name)
            self._pack(factor, axes, counts, tiles.queries, f"side{side}", **{name: panels.index})
        vectors = tiles.queries // lanes
        zeros = [b.const(self.kind, 0.0, lanes)] * vectors
        loop = b.begin(b.const("i64", 0), b.const("i64", depth), 1, zeros, guard=False)
        start = b.mul(loop.index, tiles.queries)
        totals = []
        for n in range(vectors):
            left, right = (
                b.load(b.element(self.at[f"side{side}"], self.kind, b.add(start, n * lanes)), self.kind, lanes)
                for side in range(2)
            )
            totals.append(b.fma(left, right, loop.values[n]))
        for n, total in enumerate(loop.end(*totals)):
            b.store(total, b.element(self.at[f"products{number}"], self.kind, b.add(panels.index, n * lanes)))
        panels.end()

    def _zero(self, array: str, count: int) -> None:
        b, lanes = self.b, self.tiles.lanes
        loop = b.begin(b.const("i64", 0), b.const("i64", count), lanes, (), guard=False)
        b.store(b.const(self.kind, 0.0, lanes), b.element(self.at[array], self.kind, loop.index))
        loop.end()

    # Blocks.

    def _block(self, key: Value, keys: Value) -> None:
        b, problem, tiles = self.b, self.problem, self.tiles
        name = problem.key.name
        for number, score in enumerate(problem.scores):
            counts = (keys, b.const("i64", int(score.axis.size)))
            self._pack(score.key, (name, score.axis.name), counts, tiles.scores.rows, f"keys{number}", **{name: key})
        for number, each in enumerate(problem.sums):
            if each.over_keys:
                counts = (b.const("i64", int(each.axis.size)), keys)
                axes = (each.axis.name, name)
                self._pack(each.sum.factor, axes, counts, tiles.values.cols, f"values{number}", **{name: key})
            else:
                self._zero(f"sums{number}", self.arrays.keys * self.arrays.pitch(each))
        first = b.const("i64", 0)
        if problem.reach is not None:  # queries before it do not look at any key of the block
            earliest = b.intrinsic("smax", b.sub(key, problem.reach), b.const("i64", 0))
            first = b.binary("udiv", earliest, tiles.queries)
        panels = b.begin(first, b.const("i64", self.arrays.rows // tiles.queries), 1, (), guard=True)
        query = b.mul(panels.index, tiles.queries)
        count = keys
        if problem.reach is not None:
            seen = b.sub(b.add(query, tiles.queries + problem.reach), key)
            count = b.intrinsic("smin", keys, seen)
        with b.when(b.icmp("sgt", count, 0)):
            self._panel((panels.index, query), (key, keys), count)
        panels.end()
        for number, each in enumerate(problem.sums):
            if not each.over_keys:
                self._store(number, each, name, key, keys)

    def _panel(
        self, panel: tuple[Value, Value], block: tuple[Value, Value], count: Value
    ) -> None:
        """A panel of queries, which begins at `panel[1]`, and the first `count` keys of a block."""
        b, tiles, problem = self.b, self.tiles, self.problem
        (number_of, query), (key, keys) = panel, block
        wide = tiles.queries
        for number, score in enumerate(problem.scores):
            depth = int(score.axis.size)
            queries = b.element(self.at[f"queries{number}"], self.kind, b.mul(query, depth))
            loop = b.begin(b.const("i64", 0), count, tiles.scores.rows, (), guard=False)
            left = b.element(self.at[f"keys{number}"], self.kind, b.mul(loop.index, depth))
            out = b.element(self.at[f"scores{number}"], self.kind, b.mul(loop.index, wide))
            self._tile("scores", left, queries, depth, out, wide, FALSE)
            loop.end()
        for number, packed in enumerate(self.arrays.packed):
            further = {problem.query.name: query, problem.key.name: key}
            source = self._start(packed.load.buffer, packed.load.index, **further)
            points = b.intrinsic("smin", b.sub(self.queries, query), b.const("i64", wide))
            steps = count if packed.by_key else b.const("i64", 1)
            self._pack_form(packed.form, source, (points, steps), f"packed{number}")
        b.call(f"{b.symbol}.weights", BUFFERS, MINE, self.outer, number_of, query, key, count)
        for number, each in enumerate(problem.sums):
            weights = self.at[f"scores{self.arrays.weights.index(each.sum.value)}"]
            if each.over_keys:
                self._sum_keys(number, each, weights, (query, keys, count))
            else:
                self._sum_queries(number, each, weights, (query, count))

    def _tile(self, name: str, *arguments: Value | int) -> None:
        values = [self.b.const("i64", each) if isinstance(each, int) else each for each in arguments]
        self.b.call(self.helpers[name].name, *values)

    def _sum_keys(self, number: int, each: Weighed, weights: Value, where: tuple[Value, Value, Value]) -> None:
        b, pitch, columns = self.b, self.arrays.pitch(each), self.tiles.values.cols
        query, keys, count = where
        sums = b.element(self.at[f"sums{number}"], self.kind, b.mul(query, pitch))
        loop = b.begin(b.const("i64", 0), b.const("i64", pitch), columns, (), guard=False)
        right = b.element(self.at[f"values{number}"], self.kind, b.mul(loop.index, keys))
        out = b.element(sums, self.kind, loop.index)
        self._tile("values", weights, right, count, out, pitch, TRUE)
        loop.end()

    def _sum_queries(self, number: int, each: Weighed, weights: Value, where: tuple[Value, Value]) -> None:
        b, pitch, columns = self.b, self.arrays.pitch(each), self.tiles.values.cols
        query, count = where
        rows = b.begin(b.const("i64", 0), count, self.tiles.scores.rows, (), guard=False)
        left = b.element(weights, self.kind, b.mul(rows.index, self.tiles.queries))
        sums = b.element(self.at[f"sums{number}"], self.kind, b.mul(rows.index, pitch))
        values = b.element(self.at[f"values{number}"], self.kind, b.mul(query, columns))
        self._tile("rows", left, values, self.arrays.rows * columns, sums, pitch, pitch)
        rows.end()

    def _store(self, number: int, each: Weighed, axis: str, first: Value, count: Value) -> None:
        """So many rows of complete sums, as results along an axis from `first` on."""
        b, lanes, width = self.b, self.tiles.lanes, int(each.axis.size)
        index, buffer = each.sum.index, each.sum.buffer
        dtype = self.problem.kernel.buffer(buffer).dtype
        kind, down, step = memory_kind(dtype), int(index.stride(axis)), int(index.stride(each.axis.name))
        base = self._start(buffer, index, **{axis: first})
        rows = b.begin(b.const("i64", 0), count, 1, (), guard=False)
        source = b.element(self.at[f"sums{number}"], self.kind, b.mul(rows.index, self.arrays.pitch(each)))
        to = b.element(base, kind, b.mul(rows.index, down))
        whole = width // lanes * lanes if step == 1 else 0
        for start, stop, wide in ((0, whole, lanes), (whole, width, 1)):
            if start < stop:
                loop = b.begin(b.const("i64", start), b.const("i64", stop), wide, (), guard=False)
                sums = b.load(b.element(source, self.kind, loop.index), self.kind, wide)
                place = b.element(to, kind, b.mul(loop.index, step) if wide == 1 else loop.index)
                b.store(cast(b, sums, self.problem.dtype, dtype), place)
                loop.end()
        rows.end()


class _Weights:
    """Replaces the scores of a panel of queries by the weights and their gradients; zeros for keys up to whole
    tiles."""

    def __init__(self, b: Builder, arrays: GradientArrays) -> None:
        self.b, self.arrays, self.problem, self.tiles = b, arrays, arrays.problem, arrays.tiles
        self.kind, self.lanes = VALUE_KINDS[arrays.problem.dtype], arrays.tiles.lanes

    def write(self) -> None:
        b, problem, wide, lanes = self.b, self.problem, self.tiles.queries, self.lanes
        at = {name: b.element(MINE, "i8", place) for name, place in self.arrays.places.items()}
        points = Points.of(b, problem, wide, lanes)
        for number, each in enumerate(self.arrays.packed):
            points.panels[each.load] = at[f"packed{number}"]
        outer, _, query, key, keys = WHERE
        points.begin(outer)
        totals = [b.element(at[f"products{number}"], self.kind, query) for number in range(len(problem.products))]
        rows = [at[f"scores{number}"] for number in range(len(problem.scores))]
        b.open_loop()
        loop = b.begin(b.const("i64", 0), keys, 1, (), guard=False)
        points.at.axes[problem.key.name] = b.add(key, loop.index)
        places = [b.element(row, self.kind, b.mul(loop.index, wide)) for row in rows]

        def some(lane: int) -> None:
            scores = {}
            for product, total in zip(problem.products, totals, strict=True):
                scores[product.contract.out] = b.load(b.element(total, self.kind, lane), self.kind, lanes)
            for score, place in zip(problem.scores, places, strict=True):
                scores[score.contract.out] = b.load(b.element(place, self.kind, lane), self.kind, lanes)
            points.write(lane, lanes, query, loop.index, scores)
            for number, name in enumerate(self.arrays.weights):
                b.store(points.code.vector(name), b.element(places[number], self.kind, lane))

        side_by_side(b, [partial(some, lane) for lane in range(0, wide, lanes)])
        loop.end()
        b.close_loop()
        step = self.tiles.scores.rows
        whole = b.mul(b.binary("udiv", b.add(keys, step - 1), step), step)
        rest = b.begin(keys, whole, 1, (), guard=True)
        for number in range(len(self.arrays.weights)):
            row = b.element(rows[number], self.kind, b.mul(rest.index, wide))
            for lane in range(0, wide, lanes):
                b.store(b.const(self.kind, 0.0, lanes), b.element(row, self.kind, lane))
        rest.end()
