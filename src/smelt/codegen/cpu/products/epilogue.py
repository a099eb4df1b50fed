"""The epilogue of a product: the kernel's other instructions, along the rows of a finished block.

    p = contract …; v = add p, b; store y = v     given the vector of p at a row and column → instructions for the rest

Rows are the axes of `batch` and `m`, cols those of `n`. If computing a point twice is harmless, the last vector of a
row overlaps the previous one.
"""

from collections.abc import Callable

from smelt.codegen.cpu.instructions import PointCode
from smelt.codegen.cpu.products.problem import Problem
from smelt.codegen.cpu.schedule import idempotent, lanes_of
from smelt.codegen.loops.arrays import Array, positions
from smelt.codegen.loops.builder import Builder
from smelt.device import Target
from smelt.ir.loops import Value

Point = Callable[[Value, int, Value | None], None]  # given a column, lanes, and a mask if some of them do not count


def epilogue_lanes(problem: Problem, target: Target, most: int) -> int:
    """How many points side by side: a power of two, `most` at most."""
    lanes = lanes_of(problem.kernel, target)
    while lanes > max(1, most):
        lanes //= 2
    return lanes


class Epilogue(PointCode):
    """The state of writing it. The writer of the loops sets the axes of rows, and of cols but the last, in `axes`."""

    __slots__ = ("lanes", "problem")

    def __init__(self, b: Builder, problem: Problem, lanes: int) -> None:
        """Reads the buffers' addresses where it stands."""
        super().__init__(b, problem.kernel, problem.epilogue, lanes)
        self.problem, self.lanes = problem, lanes

    def write_block(
        self, sums: Array, pitch: int, top: Value, rows: Value, left: Value, width: Value, rest: int | None, *,
        least: int, masks: bool,
    ) -> None:  # fmt: skip
        """Rows of a block from `top` on, each `width` columns from `left` on, whose sums are `pitch` elements apart."""
        b = self.b
        with b.loop(0, rows) as row:
            self.axes.update(positions(b, self.problem.m, b.add(top, row)))
            line = sums.at(b.mul(row, pitch))
            self.begin_row()

            def point(column: Value, lanes: int, mask: Value | None) -> None:
                elements = line.load(column, lanes)
                self.write_sums(b.add(left, column), elements, mask)

            self.write_row(width, rest, point, least=least, masks=masks)

    def write_sums(self, column: Value, sums: Value, mask: Value | None = None) -> None:
        """Of as many points as `sums` has lanes, from `column` of the last axis on."""
        self.write(column, sums.lanes, {self.problem.contract.out: sums}, mask)

    def write_row(self, width: Value, rest: int | None, point: Point, *, least: int, masks: bool) -> None:
        """Vectors of a row of `width` points, at `least` so many. `rest`: how many whole vectors leave over, if it is
        known. Those overlap the last vector, with a mask if points may not be computed twice; without `masks` they are
        computed one by one."""
        b, lanes, is_long, is_even = self.b, self.lanes, least >= self.lanes, rest == 0 or self.lanes == 1
        whole, overlaps = width, idempotent(self.inside) and not is_even
        if overlaps and not is_long:
            whole = b.select(b.icmp("sge", width, lanes), width, 0)
        elif not overlaps and not is_even:
            whole = b.and_(width, -lanes)
        b.open_loop()
        with b.loop(0, whole, lanes, guard=whole is not width and not (masks and is_long)) as column:
            point(b.smin(column, b.sub(width, lanes)) if overlaps else column, lanes, None)
        b.close_loop()
        if whole is width:
            return
        if not masks:
            with b.loop(whole, width, guard=True) as column:
                point(column, 1, None)
        elif rest is not None:
            point(b.sub(width, lanes), lanes, b.last_lanes(rest, lanes))
        else:
            more = b.and_(width, lanes - 1)
            with b.when(b.icmp("ne", more, 0)):
                fresh = b.icmp("uge", b.iota("i64", range(lanes)), b.splat(b.sub(lanes, more), lanes))
                point(b.sub(width, lanes), lanes, fresh)
