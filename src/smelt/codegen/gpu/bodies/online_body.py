"""`OnlineRows`: each thread computes a maximum and the sum of exponentials below it in one pass, and what writes that.

    of every few points:   n = max(m, theirs), s = s · exp(m - n) + Σ exp(v - n), m = n
    between threads:       m = the largest, s = Σ of s · exp(own m - m)

Where everything is -inf so far, points are relative to the lowest finite number, so that they add nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import field
from itertools import takewhile

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu.online_softmax import Online
from smelt.codegen.gpu.bodies.rows_body import Rows, RowsBody, halved
from smelt.codegen.gpu.phase_body import Coordinates, Values
from smelt.codegen.gpu.simt import Mask, Simt
from smelt.codegen.gpu.team_reductions import reduce_team
from smelt.codegen.loops.math.exponential import exp_of_distance
from smelt.codegen.loops.reductions import combine
from smelt.codegen.loops.scalars import compute
from smelt.ir.kernel import Accumulate, Compute, Instruction, Reduce, Scatter, Stage, Store, neutral
from smelt.ir.loops import Value
from smelt.symbolic.symsize import is_symsize

_LOWEST = torch.finfo(torch.float32).min
_F32 = torch.float32
_POINTS_AT_ONCE = 16  # that a thread takes: with 32, registers leave room for one block of 512 threads


@dataclass(frozen=True, slots=True)
class OnlineRows(Rows):
    """Rows in loops that are not unrolled; two of the loops are fused."""

    online: Online = field(kw_only=True)


class OnlineBody(RowsBody, of=OnlineRows):
    """A grid with two loops in one being written."""

    def __init__(self, b: Simt, grid: OnlineRows) -> None:
        super().__init__(b, grid)
        self.online = grid.online
        self.is_whole = False  # whether all threads have points in the tiles being written

    def _stage(self, stage: Stage) -> None:
        if stage is self.online.first:
            self._both_loops()
        elif stage is not self.online.second:
            super()._stage(stage)

    def _between(self) -> list[Instruction]:
        """The row values computed between the two loops."""
        stages = self.kernel.stages
        after = stages[[stage is self.online.first for stage in stages].index(True) + 1 :]
        within = takewhile(lambda stage: stage is not self.online.second, after)
        return [i for stage in within for i in stage.body if not isinstance(i, Store | Accumulate | Scatter)]

    def _reference(self, most: Value) -> Value:
        """What distances are from, if this is the maximum."""
        if self.online.reference == self.online.peak.out:
            return self.b.select(self.b.fcmp("oeq", most, -math.inf), _LOWEST, most)
        self.values[self.online.peak.out] = (most,)
        self.run(self._between(), self.rows, None, tile=-1)
        (reference,) = self.values[self.online.reference]
        return reference

    def _moved(self, total: Value, before: Value, after: Value) -> Value:
        """A sum of powers, relative to another number."""
        b = self.b
        by = self._power(b.fsub(before, after))
        return b.select(b.fcmp("oeq", total, 0.0), 0.0, b.fmul(total, by))

    def _both_loops(self) -> None:
        b, grid, online = self.b, self.grid, self.online
        at_once = min(self._tiles_at_once(online.first), max(1, _POINTS_AT_ONCE // grid.width))
        before = {**self.values}

        def some_tiles(turn: Value, carried: list[Value], count: int = at_once) -> list[Value]:
            most, reference, total = carried
            number = b.convert("trunc", turn, b.index_kind)
            tiles = [b.add(b.mul(number, at_once), tile) for tile in range(count)]
            self._read_ahead(online.first, tiles)
            values = [each for tile in range(count) for each in self._values(online.first, online.peak, tiles, tile)]
            largest = combine(b, "max", _F32, most, halved(values, lambda x, y: combine(b, "max", _F32, x, y)))
            further = self._reference(largest)
            self.values = {**before, online.reference: (further,)}
            powers = [
                each for tile in range(count) for each in self._values(online.second, online.total, tiles, tile)
            ]
            return [largest, further, b.fadd(self._moved(total, reference, further), halved(powers, b.fadd))]

        most, turns = b.const("f32", -math.inf), -(-grid.tiles // at_once)
        begin = [most, self._reference(most), b.const("f32", 0.0)]
        if is_symsize(turns):
            results = b.carried_loop(turns, begin, some_tiles, guard=True)
        else:  # without masks as far as all threads have points
            whole = int(self.kernel.col_count) // (grid.stride * at_once)
            self.is_whole = True
            results = b.carried_loop(whole, begin, some_tiles) if whole else begin
            self.is_whole = False
            self.values = {**before}
            self.registers.clear()
            if left := grid.tiles - whole * at_once:
                results = some_tiles(b.const("i64", whole), results, left)
        self.values = before
        self.registers.clear()
        self._share(*results)

    def _cols(self, number: Value) -> tuple[Coordinates, Mask]:
        if not self.is_whole:
            return super()._cols(number)
        self.lane_masks = ()
        col = self.b.add(self.b.mul(number, self.grid.stride), self.first)
        return self._coordinates(col, self.kernel.cols), None

    def _step(self, i: Instruction, where: Coordinates, mask: Mask, tile: int = 0) -> None:
        if isinstance(i, Compute) and i.op == "exp" and i.args == (self.online.distance,):
            self.values[i.out] = tuple(map(self._power, self.values[self.online.distance]))
        else:
            super()._step(i, where, mask, tile)

    def _power(self, distance: Value) -> Value:
        """Its exponential. A distance from the maximum is never positive; one from what is chosen instead may be."""
        if self.online.reference == self.online.peak.out:
            return exp_of_distance(self.b, distance)
        return compute(self.b, "exp", [distance], _F32)

    def _values(self, stage: Stage, fold: Reduce, numbers: Sequence[Value], tile: int) -> Values:
        """The operands of a reduction in a tile."""
        outside = {**self.values}
        where, inside = self._cols(numbers[tile])
        mask: Mask = self._both(inside, self.row_mask)
        self.run([i for i in stage.body if i is not fold], {**self.rows, **where}, mask, tile)
        values = self._spread(self.values[fold.value])
        self.values = outside
        return self._of_points(values, mask, self.b.const("f32", neutral(fold.op, _F32)))

    def _share(self, most: Value, reference: Value, total: Value) -> None:
        """Combine the results of all threads of the team."""
        b, grid, online = self.b, self.grid, self.online
        (whole,) = reduce_team(b, [("max", _F32)], [most], grid.team, grid.threads)
        before = {**self.values}
        moved = self._moved(total, reference, self._reference(whole))
        self.values = before
        (powers,) = reduce_team(b, [("sum", _F32)], [moved], grid.team, grid.threads)
        if online.reference == online.peak.out:
            powers = b.select(b.fcmp("oeq", whole, -math.inf), math.nan, powers)  # -inf - -inf
        self.values[online.peak.out], self.values[online.total.out] = (whole,), (powers,)
