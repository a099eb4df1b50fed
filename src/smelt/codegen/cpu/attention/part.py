"""What attention schedules have in common: addresses, packing, tiles of products, and rows of results."""

from collections.abc import Sequence

from smelt.codegen.attention_problem import AttentionProblem
from smelt.codegen.cpu.addresses import MINE, parameters
from smelt.codegen.cpu.attention.blocks import AttentionBlocks
from smelt.codegen.cpu.products.micro_kernel import micro_kernel
from smelt.codegen.cpu.products.panel_copies import pack_matrix
from smelt.codegen.loops.arrays import Array, spans
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

    def pack(
        self, access: Factor | Load, axes: Sequence[str], width: int, counts: tuple[Term, Term], to: Array,
        **further: Value,
    ) -> None:  # fmt: skip
        """Panels of `width`, of so many points and steps, along an axis each; `further` is where axes stand."""
        point, step = (access.index.stride(axis) for axis in axes)
        pack_matrix(self.start(access, **further), (point, step), counts, to, width)

    def pack_queries(self, query: Value, count: Term) -> None:
        name = self.problem.query.name
        for number, score in enumerate(self.problem.scores):
            axes, to = (name, score.axis.name), self.arrays[f"queries{number}"]
            self.pack(score.query, axes, self.tiles.queries, (count, score.axis.size), to, **{name: query})

    def pack_keys(self, key: Value, count: Value) -> None:
        """A block of keys, and the values that their weights are for."""
        name, here = self.problem.key.name, {self.problem.key.name: key}
        for number, score in enumerate(self.problem.scores):
            axes, to = (name, score.axis.name), self.arrays[f"keys{number}"]
            self.pack(score.key, axes, self.tiles.scores.rows, (count, score.axis.size), to, **here)
        for number, each in enumerate(self.problem.sums):
            if each.over_keys:
                axes, to = (each.axis.name, name), self.arrays[f"values{number}"]
                self.pack(each.sum.factor, axes, self.tiles.values.cols, (each.axis.size, count), to, **here)

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
        for number, load in enumerate(problem.packed):
            counts = b.smin(b.sub(problem.queries, query), wide), count if problem.key.name in load.index.axes else 1
            self.pack(load, list(here), wide, counts, self.arrays[f"packed{number}"], **here)
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
    for first, last, wide in spans(width, lanes if step == 1 else 1):
        with b.loop(first, last, wide) as place:
            total = sums.load(place, wide)
            total = total if share is None else b.fmul(total, share)
            out.store(cast(b, total, sums.dtype, out.dtype), b.mul(place, step) if wide == 1 else place)
