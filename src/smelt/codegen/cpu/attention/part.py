"""What attention schedules have in common: addresses, packing, tiles of products, and rows of results."""

from smelt.codegen.cpu.addresses import MINE, parameters
from smelt.codegen.cpu.attention.blocks import AttentionBlocks
from smelt.codegen.cpu.attention.panels import PanelForm, packer
from smelt.codegen.cpu.attention.problem import AttentionProblem
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
        self.buffers = parameters(b, problem.kernel)

    def start(self, access: Factor | Load, **further: Value) -> Array:
        """Where an access begins at this attention, and at further axes."""
        return self.buffers[access.buffer].at_index(access.index, {**self.axes, **further})


class BlockPart(Part):
    """One that computes tiles of products, block by block. `outer`: the number of the attention."""

    outer: Value

    def __init__(self, b: Builder, blocks: AttentionBlocks) -> None:
        super().__init__(b, blocks.problem)
        self.blocks, self.tiles = blocks, blocks.tiles
        self.arrays = blocks.workspace.arrays(b)
        self.multiply_scores = micro_kernel(self.tiles.scores, self.dtype, b.target)
        self.multiply_values = micro_kernel(self.tiles.values, self.dtype, b.target)

    def fill(self, array: str, count: Term, value: float = 0.0) -> None:
        start = self.b.const(self.arrays[array].kind, value, self.tiles.lanes)
        with self.b.loop(0, count, self.tiles.lanes) as place:
            self.arrays[array].store(start, place)

    # Packing.

    def form_of(self, factor: Factor, axes: tuple[str, str], width: int) -> PanelForm:
        """Of panels of `width`; `axes` are that of points and that of steps."""
        point, step = (int(factor.index.stride(axis)) for axis in axes)
        return PanelForm(self.problem.dtype_of(factor), self.dtype, width, point, step)

    def pack(
        self, form: PanelForm, access: Factor | Load, counts: tuple[Term, Term], to: Array, **further: Value
    ) -> None:
        """Panels of so many points and steps; `further` is where axes stand."""
        (points, steps), source = counts, self.start(access, **further)
        call(packer(form, self.b.target), source, points, form.point, steps, form.step, to)

    def pack_queries(self, query: Value, count: Term) -> None:
        name = self.problem.query.name
        for number, score in enumerate(self.problem.scores):
            form = self.form_of(score.query, (name, score.axis.name), self.tiles.queries)
            self.pack(form, score.query, (count, score.axis.size), self.arrays[f"queries{number}"], **{name: query})

    def pack_keys(self, key: Value, count: Value) -> None:
        """A block of keys, and the values that their weights are for."""
        name, here = self.problem.key.name, {self.problem.key.name: key}
        for number, score in enumerate(self.problem.scores):
            form = self.form_of(score.key, (name, score.axis.name), self.tiles.scores.rows)
            self.pack(form, score.key, (count, score.axis.size), self.arrays[f"keys{number}"], **here)
        for number, each in enumerate(self.problem.sums):
            if each.over_keys:
                form = self.form_of(each.sum.factor, (each.axis.name, name), self.tiles.values.cols)
                self.pack(form, each.sum.factor, (each.axis.size, count), self.arrays[f"values{number}"], **here)

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
                call(self.multiply_scores, keys, queries, depth, scores, wide, FALSE)
        here = {problem.query.name: query, problem.key.name: key}
        for number, packed in enumerate(self.blocks.packed):
            counts = b.smin(b.sub(problem.queries, query), wide), count if packed.by_key else 1
            self.pack(packed.form, packed.load, counts, self.arrays[f"packed{number}"], **here)
        b.call(f"{b.symbol}.weights", BUFFERS, MINE, self.outer, panel, query, key, count)

    def sum_keys(self, number: int, weights: Array, panel: Value, keys: Value, count: Value) -> None:
        """Add the values of the first `count` of `keys` to the sums of the panel."""
        b, pitch = self.b, self.blocks.pitch(self.problem.sums[number])
        sums = self.arrays[f"sums{number}"].at(b.mul(panel, self.tiles.queries * pitch))
        with b.loop(0, pitch, self.tiles.values.cols) as column:
            values = self.arrays[f"values{number}"].at(b.mul(column, keys))
            call(self.multiply_values, weights, values, count, sums.at(column), pitch, TRUE)


def call(helper: Function, first: Array, *arguments: Array | Term) -> None:
    """Call a function that kernels share, arrays by their addresses."""
    values = [each.pointer if isinstance(each, Array) else each for each in arguments]
    first.b.call_helper(helper, first.pointer, *values)


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
