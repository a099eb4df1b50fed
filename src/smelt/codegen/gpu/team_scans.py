"""Scans between the threads of a team: each gets the running values of its own points, and the total of the tile.

    a thread     its points one after the other
    a warp       each lane takes what the one before it has, then the one two before it, four before it, …
    a block      the last lane of every warp stores its value in shared memory, where later warps read it

Sums, products and log-sum-exps of f32 are kept in f64: their error does not grow with the length.
"""

import math
from collections.abc import Sequence

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.gpu.simt import Mask, Simt
from smelt.codegen.loops.reductions import fold_dtype, log_of_sum, merge, run_on
from smelt.codegen.loops.scalars import VALUE_KINDS, cast, from_memory, memory_kind, to_memory
from smelt.ir.kernel import Running, neutral
from smelt.ir.loops import Value

State = tuple[Value, ...]  # a running value; by logaddexp the largest, and what the others add to its one


@dataclass(frozen=True, slots=True)
class RunningFold:
    """How a scan by `op` of values of `dtype` goes on from point to point."""

    op: Running
    dtype: torch.dtype

    @property
    def kept(self) -> torch.dtype:
        return fold_dtype(self.op, self.dtype)

    def nothing(self, b: Simt) -> State:
        """What changes nothing that it is joined with, the sign of a zero included."""
        kind = VALUE_KINDS[self.kept]
        if self.op == "logaddexp":
            return b.const(kind, -math.inf), b.const(kind, -1.0)
        first = -0.0 if self.op == "sum" and self.dtype.is_floating_point else neutral(self.op, self.dtype)
        return (b.const(kind, first),)

    def of(self, b: Simt, value: Value) -> State:
        wide = cast(b, value, self.dtype, self.kept)
        return (wide, b.const(wide.kind, 0.0)) if self.op == "logaddexp" else (wide,)

    def joined(self, b: Simt, left: State, right: State) -> State:
        """`left` comes before `right`."""
        if self.op == "logaddexp":
            (most, rest), (further, others) = left, right
            return merge(b, most, rest, further, others)
        return (run_on(b, self.op, self.kept, left[0], right[0]),)

    def value(self, b: Simt, state: State) -> Value:
        result = log_of_sum(b, *state) if self.op == "logaddexp" else state[0]
        return cast(b, result, self.kept, self.dtype)

    def chosen(self, b: Simt, condition: Mask, left: State, right: State) -> State:
        if condition is None:
            return left
        return tuple(b.select(condition, x, y) for x, y in zip(left, right, strict=True))


@dataclass(frozen=True, slots=True)
class TeamScan:
    """One scan of a loop over tiles. `team`: threads that share a row; 0 where each point of a thread has a row of its
    own. `arrays`: a number for each warp, twice, for tiles take turns: a warp may be a tile ahead of one that still
    reads."""

    fold: RunningFold
    team: int
    arrays: tuple[int, ...]

    @classmethod
    def of(cls, b: Simt, fold: RunningFold, team: int) -> "TeamScan":
        parts = len(fold.nothing(b)) if team > b.warp else 0
        kind = memory_kind(fold.kept)
        return cls(fold, team, tuple(b.shared_array(kind, 2 * (team // b.warp)) for _ in range(parts)))

    def start(self, b: Simt, points: int) -> tuple[Value, ...]:
        """What a loop carries at first, of threads that take so many points together."""
        return self.fold.nothing(b) * (1 if self.team else points)

    def step(
        self, b: Simt, values: Sequence[Value], mask: Mask, number: Value, before: tuple[Value, ...]
    ) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
        """One tile: a result for each of `values`, and what the loop carries on."""
        fold, nothing = self.fold, self.fold.nothing(b)
        points = [fold.chosen(b, mask, fold.of(b, value), nothing) for value in values]
        if self.team:
            states, after = self.tile(b, points, before, number)
        else:
            olds = zip(*[iter(before)] * len(nothing), strict=True)
            states = [fold.joined(b, old, point) for old, point in zip(olds, points, strict=True)]
            after = tuple(each for state in states for each in state)
        return tuple(fold.value(b, state) for state in states), after

    def tile(self, b: Simt, points: Sequence[State], before: State, number: Value) -> tuple[list[State], State]:
        """The running values at each point of this thread, and at the end of the tile with this number. `before`: up to
        its beginning."""
        fold = self.fold
        mine = [points[0]]
        for point in points[1:]:
            mine.append(fold.joined(b, mine[-1], point))
        lanes = min(self.team, b.warp)
        place = b.and_(b.lane(), lanes - 1)
        whole = self._along_lanes(b, mine[-1], place, lanes)
        if self.team > b.warp:
            before, after = self._along_warps(b, whole, before, number)
        else:
            last = b.or_(b.lane(), lanes - 1)
            after = fold.joined(b, before, tuple(b.shuffle_from(each, last) for each in whole))
        if lanes > 1:
            behind = tuple(b.shuffle_up(each, 1) for each in whole)
            is_first = b.icmp("eq", place, 0)
            before = fold.chosen(b, is_first, before, fold.joined(b, before, behind))
        return [fold.joined(b, before, each) for each in mine], after

    def _along_lanes(self, b: Simt, value: State, place: Value, lanes: int) -> State:
        distance = 1
        while distance < lanes:
            behind = tuple(b.shuffle_up(each, distance) for each in value)
            reaches = b.icmp("uge", place, distance)
            value = self.fold.chosen(b, reaches, self.fold.joined(b, behind, value), value)
            distance *= 2
        return value

    def _along_warps(self, b: Simt, whole: State, before: State, number: Value) -> tuple[State, State]:
        """The running values at the beginning of this warp and at the end of the block."""
        fold, kept = self.fold, self.fold.kept
        warps = self.team // b.warp
        first = b.mul(b.and_(number, 1), warps)
        with b.where(b.icmp("eq", b.lane(), b.warp - 1)):
            for array, each in zip(self.arrays, whole, strict=True):
                b.store_shared(array, b.add(first, b.warp_number()), to_memory(b, each, kept))
        b.barrier()
        place = b.and_(b.lane(), warps - 1)
        scanned = tuple(
            from_memory(b, b.load_shared(array, b.add(first, place), memory_kind(kept)), kept)
            for array in self.arrays
        )
        scanned = self._along_lanes(b, scanned, place, warps)
        after = tuple(b.shuffle_from(each, b.index(warps - 1)) for each in scanned)
        warp = b.warp_number()
        is_first = b.icmp("eq", warp, 0)
        behind = tuple(b.shuffle_from(each, b.select(is_first, warp, b.sub(warp, 1))) for each in scanned)
        here = fold.chosen(b, is_first, before, fold.joined(b, before, behind))
        return here, fold.joined(b, before, after)
