"""All steps of some rows by one thread, with the weights packed once, in the order in which they are read.

    k0(buffers, threads, workspace)     smelt_parallel_for(k0.part, …) over tiles of rows
      k0.part                           packs the weights; then for each block of rows what is before the steps, and
        for each step                     for each panel of columns, for each tile of rows:
                                            rows × products × columns of sums in registers, over the whole state
                                            for each row of the tile: what a step does with its sums
                                        and what is after the steps

A step reads one copy of the state and writes the other. Columns that are no whole panel: the last one overlaps the one
before it, and computes the same again. A row has its own sums, whose order does not depend on other rows: they are the
same for any number of threads.
"""

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu.addresses import Workspace
from smelt.codegen.cpu.entry_points import PART, KernelFunctions
from smelt.codegen.cpu.instructions import PointCode
from smelt.codegen.cpu.kernel_schedules import ProblemKind, Schedule
from smelt.codegen.cpu.products.panel_copies import pack_matrix
from smelt.codegen.cpu.products.tile_shape import vector_lanes
from smelt.codegen.cpu.recurrence.problem import NEXT, RecurrenceProblem, is_recurrence, problem_of, why_no_problem
from smelt.codegen.generator import EntryCode
from smelt.codegen.loops.arrays import Array
from smelt.codegen.loops.builder import Builder
from smelt.device import Target
from smelt.ir.kernel import Contract, Load
from smelt.ir.loops import Value
from smelt.symbolic.symsize import greater, hint

_MOST_ROWS = 8  # of a tile
_MOST_VECTORS = 4  # of a product's columns, of a tile
_BLOCK_ROWS = 32  # a panel of weights is read from the second cache once for each block
_DEPTH = 256  # longer sums of one register round more than the library
_LATENCY = 4.0  # cycles until a sum may be added to again
_LINE = 1.6  # cycles until a vector from the second cache is there, one after the other
_THREAD_WORTH = 1 << 17  # multiplications


@dataclass(frozen=True, slots=True)
class _Tiles:
    """Sums in registers: `rows` × products × `vectors` of `lanes`; and blocks of rows that go through a step at a
    time."""

    problem: RecurrenceProblem
    rows: int
    vectors: int
    lanes: int
    block: int
    workspace: Workspace

    @property
    def cols(self) -> int:
        """Of a panel, and for each product."""
        return self.vectors * self.lanes

    @property
    def panels(self) -> int:
        return -(-self.problem.width // self.cols)

    @classmethod
    def of(cls, problem: RecurrenceProblem, target: Target) -> "_Tiles":
        lanes, count = vector_lanes(problem.dtype, target), len(problem.products)
        while lanes > problem.width:
            lanes //= 2
        registers = target.vector_registers - (8 if target.vector_registers >= 32 else 4)
        shapes = [
            (rows, vectors)
            for rows in range(1, _MOST_ROWS + 1)
            for vectors in (1, 2, _MOST_VECTORS)
            if (rows * count * vectors <= registers and vectors * lanes <= problem.width) or rows * vectors == 1
        ]
        known = hint(problem.row.size)

        def cycles(shape: tuple[int, int]) -> float:
            """Two multiplications and two loads in each; weights come from the second cache."""
            rows, vectors = shape
            across = count * vectors
            step = max(rows * across / 2, (across + rows) / 2, across * _LINE, _LATENCY)
            return -(-known // rows) * -(-problem.width // (vectors * lanes)) * (step + 0.5)

        rows, vectors = min(shapes, key=cycles)
        block = rows * max(1, min(_BLOCK_ROWS // rows, -(-known // rows)))
        panels, wide = -(-problem.width // (vectors * lanes)), count * vectors * lanes
        elements = {"panels": panels * wide * problem.depth, "sums": rows * wide}
        elements["states"] = 2 * block * sum(int(each.size) for each in problem.scratch)
        workspace = Workspace.of({name: (length, problem.dtype) for name, length in elements.items()})
        return cls(problem, rows, vectors, lanes, block, workspace)


class _Part:
    """The function of one thread, being written."""

    def __init__(self, b: Builder, tiles: _Tiles) -> None:
        self.b, self.tiles, self.problem = b, tiles, tiles.problem
        self.arrays = tiles.workspace.arrays(b)
        kernel = self.problem.inside()
        others = tuple(each for each in kernel.stages[0].body if not isinstance(each, Contract))
        self.inside = PointCode(b, kernel, others, tiles.cols)
        around = [(self.problem.outside(body), body) for body in (self.problem.before, self.problem.after)]
        self.before, self.after = (PointCode(b, outer, body, tiles.cols) for outer, body in around)
        self.weights = dict(self.inside.at.arrays)

    def write(self) -> None:
        b, tiles, problem = self.b, self.tiles, self.problem
        self._pack()
        half = tiles.block * sum(int(each.size) for each in problem.scratch)
        states = self.arrays["states"]
        with b.loop(*PART[2:4], tiles.block // tiles.rows, guard=True) as tile:
            top, most = b.mul(tile, tiles.rows), b.mul(b.sub(PART[3], tile), tiles.rows)
            rows = b.smin(b.smin(b.sub(b.const("i64", problem.row.size), top), most), tiles.block)
            with b.loop(0, 2 * half) as place:  # rows of a tile that are none are multiplied, too
                states.store(states.zero(), place)
            self._around(self.before, states, top, rows)
            steps = b.begin(0, problem.steps.size, 1, [states.pointer, states.at(half).pointer])
            old, new = (Array(b, each, problem.dtype) for each in steps.values)
            self._step(steps.index, old, new, top, rows)
            last, _ = steps.end(new.pointer, old.pointer)
            self._around(self.after, Array(b, last, problem.dtype), top, rows)

    def _pack(self) -> None:
        """Panels of the weights: for each step along the sum the columns of one product after the other."""
        b, tiles, problem = self.b, self.tiles, self.problem
        wide = tiles.cols * len(problem.products)
        with b.loop(0, tiles.panels) as panel:
            to, start = self.arrays["panels"].at(b.mul(panel, wide * problem.depth)), self._start(panel)
            for number, product in enumerate(problem.products):
                index = product.right.index
                col, step = index.stride(problem.col.name), index.stride(product.axes[0].name)
                source = self.weights[product.right.buffer].at(b.const("i64", index.offset)).at(b.mul(start, col))
                counts = tiles.cols, problem.depth
                pack_matrix(source, (col, step), counts, to.at(number * tiles.cols), wide, tiles.cols)

    def _start(self, panel: Value) -> Value:
        """The first column of a panel."""
        return self.b.smin(self.b.mul(panel, self.tiles.cols), self.problem.width - self.tiles.cols)

    def _place(self, code: PointCode, states: Array, row: Value, behind: str = "") -> None:
        """Have `code` find the scratch buffers of a row of the block."""
        place = 0
        for buffer in self.problem.scratch:
            first = states.at(place * self.tiles.block)
            code.at.arrays[buffer.name + behind] = first.at(self.b.mul(row, int(buffer.size)))
            place += int(buffer.size)

    def _around(self, code: PointCode, states: Array, top: Value, rows: Value) -> None:
        """What is done once for each row."""
        b, tiles = self.b, self.tiles
        if not code.inside:
            return
        with b.loop(0, rows) as row:
            code.axes[self.problem.row.name] = b.add(top, row)
            self._place(code, states, row)
            code.begin_row()
            with b.loop(0, tiles.panels) as panel:
                code.write(self._start(panel), tiles.cols, {})

    def _step(self, step: Value, old: Array, new: Array, top: Value, rows: Value) -> None:
        b, tiles, problem, sums = self.b, self.tiles, self.problem, self.arrays["sums"]
        wide, code = tiles.cols * len(problem.products), self.inside
        code.axes[problem.steps.name] = step
        with b.loop(0, tiles.panels) as panel, b.loop(0, rows, tiles.rows) as first:
            weights = self.arrays["panels"].at(b.mul(panel, wide * problem.depth))
            for number, total in enumerate(self._sums(old, first, weights)):
                sums.store(total, number * tiles.lanes)
            with b.loop(0, b.smin(b.sub(rows, first), tiles.rows)) as row:
                place, line = b.add(first, row), sums.at(b.mul(row, wide))
                code.axes[problem.row.name] = b.add(top, place)
                self._place(code, old, place)
                self._place(code, new, place, NEXT)
                code.begin_row()
                products = enumerate(problem.products)
                values = {each.out: line.load(number * tiles.cols, tiles.cols) for number, each in products}
                code.write(self._start(panel), tiles.cols, values)
                self._prefetch(code)

    def _prefetch(self, code: PointCode) -> None:
        """Ask for what the next panel reads of a row: with so many rows in turn the processor does not foresee it."""
        for each in code.inside:
            if isinstance(each, Load) and self.problem.steps.name in each.index.axes:
                self.b.prefetch(code.at.of(each.buffer, each.index).at(self.tiles.cols).pointer)

    def _sums(self, old: Array, first: Value, weights: Array) -> list[Value]:
        """Of a tile: products of the states of its rows with a panel of weights."""
        b, tiles, depth = self.b, self.tiles, self.problem.depth
        place = 0
        for buffer in self.problem.scratch:
            if buffer.name == self.problem.state:
                break
            place += int(buffer.size)
        states, pitch = old.at(place * tiles.block), int(self.problem.kernel.buffer(self.problem.state).size)
        lines = [states.at(b.mul(b.add(first, number), pitch)) for number in range(tiles.rows)]
        vectors = tiles.vectors * len(self.problem.products)
        zeros = [states.zero(tiles.lanes)] * (tiles.rows * vectors)

        def along(begin: Value, end: Value) -> list[Value]:
            loop = b.begin(begin, end, 1, zeros)
            line = weights.at(b.mul(loop.index, vectors * tiles.lanes))
            across = [line.load(number * tiles.lanes, tiles.lanes) for number in range(vectors)]
            down = [b.splat(each.load(loop.index), tiles.lanes) for each in lines]
            pairs = [(one, other) for one in down for other in across]
            added = [b.fma(*pair, total) for pair, total in zip(pairs, loop.values, strict=True)]
            return list(loop.end(*added))

        if depth <= _DEPTH:
            return along(b.const("i64", 0), b.const("i64", depth))
        parts = b.begin(0, depth, _DEPTH, zeros)
        sums = along(parts.index, b.smin(b.add(parts.index, _DEPTH), depth))
        return list(parts.end(*[b.fadd(one, other) for one, other in zip(parts.values, sums, strict=True)]))


def _why_not(problem: RecurrenceProblem, target: Target) -> str | None:
    return None if problem.width and problem.depth else "it has no columns"


def _cycles(problem: RecurrenceProblem, target: Target) -> float:
    return float(hint(problem.multiplications * problem.row.size)) / vector_lanes(problem.dtype, target)


def _write(code: KernelFunctions, problem: RecurrenceProblem) -> EntryCode:
    tiles = _Tiles.of(problem, code.target)
    code.write("part", PART, lambda b: _Part(b, tiles).write())
    units = -(-problem.row.size // tiles.rows)
    threads = greater(1, problem.multiplications * problem.row.size // _THREAD_WORTH)
    return code.end(threads, units, tiles.workspace.size)


RECURRENCE = ProblemKind(
    is_recurrence,
    why_no_problem,
    problem_of,
    (
        Schedule(
            "steps",
            "recurrent layers: all steps of some rows in turn, weights are packed once",
            _why_not,
            _cycles,
            _write,
        ),
    ),
)
