"""What attention schedules have in common: addresses, packing, tiles of products, and rows of results."""

from smelt.codegen.cpu.attention.blocks import AttentionBlocks
from smelt.codegen.cpu.attention.panels import PanelForm, packer
from smelt.codegen.cpu.attention.problem import AttentionProblem
from smelt.codegen.cpu.entry_points import MINE
from smelt.codegen.cpu.products.micro_kernel import micro_kernel
from smelt.codegen.loops.arrays import Array
from smelt.codegen.loops.builder import BUFFERS, FALSE, TRUE, Builder, Term
from smelt.codegen.loops.scalars import cast
from smelt.ir.kernel import Factor, Load
from smelt.ir.loops import Function, Value


class Part:
    """The attentions that one thread computes, being written. `axes`: where the outer ones stand."""

    axes: dict[str, Value]

    def __init__(self, b: Builder, problem: AttentionProblem) -> None:
        self.b, self.problem, self.dtype = b, problem, problem.dtype
        parameters = enumerate(problem.kernel.parameters)
        self.buffers = {buffer.name: Array(b, b.load_pointer(number), buffer.dtype) for number, buffer in parameters}

    def start(self, access: Factor | Load, **further: Value) -> Array:
        """Where an access begins at this attention, and at further axes."""
        return self.buffers[access.buffer].at_index(access.index, {**self.axes, **further})


class BlockPart(Part):
    """One that computes tiles of products, block by block. `outer`: the number of the attention."""

    outer: Value

    def __init__(self, b: Builder, blocks: AttentionBlocks) -> None:
        super().__init__(b, blocks.problem)
        self.blocks, self.tiles = blocks, blocks.tiles
        self.arrays = {name: blocks.array(b, name) for name in blocks.places}
        tiles = {"scores": self.tiles.scores, "values": self.tiles.values}
        self.helpers: dict[str, Function] = {
            name: micro_kernel(tile, self.dtype, b.target) for name, tile in tiles.items()
        }

    def call(self, helper: str, *arguments: Array | Term) -> None:
        values = [each.pointer if isinstance(each, Array) else each for each in arguments]
        self.b.call(self.helpers[helper].name, *values)

    def fill(self, array: str, count: Term, value: float = 0.0) -> None:
        start = self.b.const(self.arrays[array].kind, value, self.tiles.lanes)
        with self.b.loop(0, count, self.tiles.lanes) as place:
            self.arrays[array].store(start, place)

    # Packing.

    def form_of(self, factor: Factor, axes: tuple[str, str], width: int) -> PanelForm:
        """Of panels of `width`; `axes` are that of points and that of steps."""
        point, step = (int(factor.index.stride(axis)) for axis in axes)
        return PanelForm(self.problem.dtype_of(factor), self.dtype, width, point, step)

    def pack(self, form: PanelForm, source: Array, counts: tuple[Term, Term], to: Array) -> None:
        """Panels of so many points and steps."""
        helper = packer(form, self.b.target)
        self.helpers[helper.name] = helper
        points, steps = counts
        self.call(helper.name, source, points, form.point, steps, form.step, to)

    def pack_queries(self, query: Value, count: Term) -> None:
        name = self.problem.query.name
        for number, score in enumerate(self.problem.scores):
            form = self.form_of(score.query, (name, score.axis.name), self.tiles.queries)
            source = self.start(score.query, **{name: query})
            self.pack(form, source, (count, score.axis.size), self.arrays[f"queries{number}"])

    def pack_keys(self, key: Value, count: Value) -> None:
        """A block of keys, and the values that their weights are for."""
        name, here = self.problem.key.name, {self.problem.key.name: key}
        for number, score in enumerate(self.problem.scores):
            form = self.form_of(score.key, (name, score.axis.name), self.tiles.scores.rows)
            source = self.start(score.key, **here)
            self.pack(form, source, (count, score.axis.size), self.arrays[f"keys{number}"])
        for number, each in enumerate(self.problem.sums):
            if each.over_keys:
                form = self.form_of(each.sum.factor, (each.axis.name, name), self.tiles.values.cols)
                source = self.start(each.sum.factor, **here)
                self.pack(form, source, (each.axis.size, count), self.arrays[f"values{number}"])

    # Products of a panel of queries, which begins at `query`, and a block of keys.

    def weights(self, panel: Value, query: Value, key: Value, count: Value) -> None:
        """Scores of `count` keys, then what the kernel's function makes of them."""
        b, problem, wide = self.b, self.problem, self.tiles.queries
        for number, score in enumerate(problem.scores):
            depth = int(score.axis.size)
            queries = self.arrays[f"queries{number}"].at(b.mul(panel, wide * depth))
            with b.loop(0, count, self.tiles.scores.rows) as row:
                keys = self.arrays[f"keys{number}"].at(b.mul(row, depth))
                scores = self.arrays[f"scores{number}"].at(b.mul(row, wide))
                self.call("scores", keys, queries, depth, scores, wide, FALSE)
        for number, packed in enumerate(self.blocks.packed):
            source = self.start(packed.load, **{problem.query.name: query, problem.key.name: key})
            points = b.smin(b.sub(problem.queries, query), wide)
            self.pack(packed.form, source, (points, count if packed.by_key else 1), self.arrays[f"packed{number}"])
        b.call(f"{b.symbol}.weights", BUFFERS, MINE, self.outer, panel, query, key, count)

    def sum_keys(self, number: int, weights: Array, panel: Value, keys: Value, count: Value) -> None:
        """Add the values of the first `count` of `keys` to the sums of the panel."""
        b, pitch = self.b, self.blocks.pitch(self.problem.sums[number])
        sums = self.arrays[f"sums{number}"].at(b.mul(panel, self.tiles.queries * pitch))
        with b.loop(0, pitch, self.tiles.values.cols) as column:
            values = self.arrays[f"values{number}"].at(b.mul(column, keys))
            self.call("values", weights, values, count, sums.at(column), pitch, TRUE)


def store_row(sums: Array, out: Array, step: int, width: int, lanes: int, share: Value | None = None) -> None:
    """A row of sums as results that are `step` elements apart, each multiplied by `share`."""
    b = sums.b
    whole = width // lanes * lanes if step == 1 else 0
    for first, last, wide in ((0, whole, lanes), (whole, width, 1)):
        if first < last:
            with b.loop(first, last, wide) as place:
                total = sums.load(place, wide)
                total = total if share is None else b.fmul(total, share)
                out.store(cast(b, total, sums.dtype, out.dtype), b.mul(place, step) if wide == 1 else place)
