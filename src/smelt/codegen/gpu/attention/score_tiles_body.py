"""Attention of many queries by tensor cores: `ScoreTiles`, blocks that have some rows of the scores each, and go
through the cols some at a time. Rows are queries and cols are keys; for gradients of keys it is the other way round.

    rows' factors → registers
    cols' factors → shared memory, the next ones while these are used
    each step:  scores = products of both; what the kernel computes of each, in registers
                their softmax so far; sums of weights times factors of the cols

A warp has 16 rows, or twice as many. What a lane has of the scores is what it needs of them as weights: see `Mma`.
Where all of a step's cols count for all rows, comparisons of positions are left out; where none do, the step is.
"""

import math
from collections.abc import Callable, Sequence
from functools import reduce

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.attention_problem import AttentionProblem, Score, Weighed
from smelt.codegen.gpu.grids import Grid
from smelt.codegen.gpu.phase_body import Coordinates, PhaseBody
from smelt.codegen.gpu.simt import MOST_BYTES, Mask, Simt
from smelt.codegen.gpu.vector_width import is_multiple
from smelt.codegen.loops.math.exponential import exp2
from smelt.codegen.loops.math.polynomial import LOG2E
from smelt.codegen.loops.scalars import cast, compute, memory_kind, to_memory
from smelt.ir.kernel import Axis, Compute, Const, Factor, Index, Kernel, Role
from smelt.ir.loops import Value

F32 = torch.float32
MATRIX = 16  # rows of a product of matrices, and terms
_HALF = 8  # its cols
_QUAD = 4  # lanes that share a row
_CHUNK = 8  # elements of a copy
_STAGES = 2


@dataclass(frozen=True, slots=True)
class ScoreTiles(Grid):
    """A warp has `row_tiles` times 16 rows; a step takes `cols`. `by_query`: rows are queries. `keeps_rows`: factors of
    rows stay in registers."""

    kernel: Kernel
    problem: AttentionProblem
    by_query: bool
    row_tiles: int
    warps: int
    cols: int
    warp: int
    keeps_rows: bool = True

    @property
    def threads(self) -> int:  # type: ignore[override]
        return self.warps * self.warp

    @property
    def rows(self) -> int:
        """Of a block."""
        return self.warps * self.row_tiles * MATRIX

    @property
    def own(self) -> Axis:
        return self.problem.query if self.by_query else self.problem.key

    @property
    def streamed(self) -> Axis:
        return self.problem.key if self.by_query else self.problem.query

    @property
    def row_blocks(self) -> int:
        return -(-int(self.own.size) // self.rows)

    @property
    def blocks(self) -> int:
        return self.problem.count * self.row_blocks


@dataclass(frozen=True, slots=True)
class _Part:
    """16 bytes that a thread copies: their row, the first element, where it is, where it goes, and which threads do."""

    row: Value
    term: Value
    at: Value
    to: Value
    mask: Mask


@dataclass(frozen=True, slots=True)
class _Shared:
    """Rows or cols of a factor in shared memory, `pitch` bytes apart, in one or more stages of `count`."""

    factor: Factor
    axis: Axis
    token: Axis
    count: int
    pitch: int
    pointer: Value
    parts: list[_Part]


class ScoreTilesBody(PhaseBody, of=ScoreTiles):
    """A grid being written."""

    grid: ScoreTiles

    def __init__(self, b: Simt, grid: ScoreTiles) -> None:
        pairs = int(grid.streamed.size) % 2 == 0
        super().__init__(b, grid, grid.streamed if pairs else None, 2 if pairs else 1)
        self.problem = problem = grid.problem
        self.own, self.streamed, self.size = grid.own, grid.streamed, int(grid.streamed.size)
        self.softmax = problem.softmax
        self.dtype = self.kernel.buffer(problem.scores[0].query.buffer).dtype
        self.kind = "f16" if self.dtype is torch.float16 else "bf16"
        weighed = [each.sum.factor for each in problem.sums]
        self.streams = list(dict.fromkeys([*map(self._col_side, problem.scores), *weighed]))
        self.depths = {self._col_side(each): each.axis for each in problem.scores}
        self.depths |= {self._row_side(each): each.axis for each in problem.scores}
        self.depths |= {each.sum.factor: each.axis for each in problem.sums}
        self.scaled, self.scale = self._folded_scale()

    def _row_side(self, score: Score) -> Factor:
        return score.query if self.grid.by_query else score.key

    def _col_side(self, score: Score) -> Factor:
        return score.key if self.grid.by_query else score.query

    def _folded_scale(self) -> tuple[str, float]:
        """A product of the score and a positive constant, which only choices between it and -inf follow: it is a
        factor of the exponents instead. Its name, or "", and the constant."""
        makers = {i.out: i for i in self.problem.body}
        uses = [arg for i in self.problem.body if isinstance(i, Compute) for arg in i.args]
        name = "" if self.softmax is None else self.softmax.value
        while isinstance(maker := makers.get(name), Compute):
            numbers = {arg: each.value for arg in maker.args if isinstance(each := makers.get(arg), Const)}
            rest = [arg for arg in maker.args if arg not in numbers]
            if uses.count(name) > (name != self.softmax.value):  # type: ignore[union-attr]
                break
            if maker.op == "where" and [*numbers.values()] == [-math.inf] and len(rest) == 2:
                name = rest[1]
            elif maker.op == "mul" and len(rest) == 1 and rest[0] == self.problem.scores[0].contract.out:
                (number,) = numbers.values()
                return (name, number) if 0 < number < math.inf and uses.count(rest[0]) == 1 else ("", 1.0)
            else:
                break
        return "", 1.0

    def write(self) -> None:
        b, grid, problem = self.b, self.grid, self.problem
        lane = b.lane()
        self.group, self.place = b.lshr(lane, 2), b.and_(lane, _QUAD - 1)
        block = b.block_number()
        outer = b.binary("udiv", block, grid.row_blocks)
        tile = b.sub(block, b.mul(outer, grid.row_blocks))
        above, below = (problem.reach, problem.window) if grid.by_query else (problem.window, problem.reach)
        if above is not None:  # those that take longest come first
            tile = b.sub(grid.row_blocks - 1, tile)
        self.outer = self._coordinates(outer, problem.outer)
        self.block_row = b.mul(tile, grid.rows)
        self.warp_row = b.add(self.block_row, b.mul(b.warp_number(), grid.row_tiles * MATRIX))
        self.above, self.below = above, below
        self.tiles = range(grid.row_tiles)
        self.rows_of_lane = [
            b.add(self.warp_row, b.add(self.group, MATRIX * m + _HALF * h)) for m in self.tiles for h in range(2)
        ]
        self.places_of_rows = [
            {**self.outer, self.own.name: b.smin(row, int(self.own.size) - 1)} for row in self.rows_of_lane
        ]
        low, middle, high = b.and_(lane, 7), b.and_(b.lshr(lane, 3), 1), b.lshr(lane, 4)
        ways = ((high, middle), (middle, high))
        self.readers = [(b.add(b.mul(down, 8), low), b.mul(beside, MOST_BYTES)) for down, beside in ways]
        of_rows = [self._row_side(each) for each in problem.scores]
        self.rows_shared = {each: self._place(each, self.own, grid.rows, 1) for each in of_rows}
        self.cols = {each: self._place(each, self.streamed, grid.cols, _STAGES) for each in self.streams}
        first, last = self._first_and_last()
        for shared in self.rows_shared.values():
            self._copy(shared, self.block_row, b.index(0))
        b.copy_commit()
        self._copy_cols(first, b.index(0))
        if grid.keeps_rows:
            b.copy_wait(1)
            b.barrier()
            self.words = [self._row_words(each) for each in problem.scores]
        values = self._begin()
        step = [b.convert("sext", each, "i64") for each in (first, last)]

        def one_step(turn: Value, carried: list[Value]) -> list[Value]:
            block = b.convert("trunc", turn, b.index_kind)
            stage = b.and_(b.sub(block, first), 1)
            b.copy_wait()
            b.barrier()
            following = b.add(block, 1)
            with b.when(b.icmp("slt", following, last)):
                self._copy_cols(following, b.xor(stage, 1))
            return self._further(block, stage, carried)

        guard = above is not None or below is not None
        self._finish(b.carried_loop(step[1], values, one_step, first=step[0], guard=guard))

    # Which cols count.

    def _first_and_last(self) -> tuple[Value, Value]:
        """The steps of a block."""
        b, grid = self.b, self.grid
        first, last = b.index(0), b.index(-(-self.size // grid.cols))
        if self.below is not None:
            first = b.binary("sdiv", b.smax(b.sub(self.block_row, self.below), 0), grid.cols)
        if self.above is not None:
            end = b.smax(b.add(self.block_row, grid.rows + self.above), 0)
            last = b.smin(b.binary("sdiv", b.add(end, grid.cols - 1), grid.cols), last)
        return first, last

    def _all_count(self, col: Value) -> Mask:
        """Whether all cols of a step, which begin at `col`, count for all rows of the warp; None: always."""
        b, grid, counts = self.b, self.grid, list[Value]()
        if self.above is not None:
            counts.append(b.icmp("sle", b.add(col, grid.cols - 1 - self.above), self.warp_row))
        if self.below is not None:
            last = b.add(self.warp_row, grid.row_tiles * MATRIX - 1 - self.below)
            counts.append(b.icmp("sle", last, col))
        if self.size % grid.cols:
            counts.append(b.icmp("sle", b.add(col, grid.cols), self.size))
        mask: Mask = None
        for each in counts:
            mask = self._both(mask, each)
        return mask

    # Memory.

    def _is_even(self, buffer: str, index: Index, axis: Axis, of: int) -> bool:
        """Whether elements along an axis are side by side, and so many of them begin at multiples of their size."""
        rest = [axis.size, index.offset, *(step for name, step in index.terms if name != axis.name)]
        is_narrow = self.kernel.buffer(buffer).dtype is self.dtype
        return is_narrow and self.b.aligned and index.stride(axis.name) == 1 and all(is_multiple(r, of) for r in rest)

    def _elements(self, factor: Factor, axis: Axis, at: Value, masks: Sequence[Mask]) -> list[Value]:
        """Elements from `at` on as words of two; zero where a mask does not hold."""
        b, buffer, halves = self.b, self.kernel.buffer(factor.buffer), list[Value]()
        for number, mask in enumerate(masks):
            place = b.add(at, b.index(factor.index.stride(axis.name) * number)) if number else at
            place = place if mask is None else b.select(mask, place, 0)
            (raw,) = b.load_global(
                b.pointer(factor.buffer), place, memory_kind(buffer.dtype), constant=buffer.role is Role.INPUT
            )
            word = b.convert("zext", b.convert("bitcast", raw, "i16"), "i32")
            halves.append(word if mask is None else b.select(mask, word, 0))
        return [b.or_(low, b.shl(high, 16)) for low, high in zip(halves[::2], halves[1::2], strict=True)]

    def _place(self, factor: Factor, token: Axis, count: int, stages: int) -> _Shared:
        """Room in shared memory for so many rows or cols of a factor, and what of them a thread copies."""
        b, grid, index, axis = self.b, self.grid, factor.index, self.depths[factor]
        chunks = -(-int(axis.size) // MATRIX) * MATRIX // _CHUNK
        pitch = (chunks + 1) * MOST_BYTES  # an odd number of chunks: eight rows of a matrix are in different banks
        pointer = b.shared_address(b.shared_array("i8", stages * count * pitch), "i8")
        gone = (axis.name, token.name)
        base = self._offset(Index(tuple(t for t in index.terms if t[0] not in gone), index.offset), self.outer)
        parts = list[_Part]()
        for turn in range(-(-count * chunks // grid.threads)):
            number = b.add(b.thread(), turn * grid.threads) if turn else b.thread()
            row = b.binary("udiv", number, chunks)
            chunk = b.sub(number, b.mul(row, chunks))
            mask = None if (turn + 1) * grid.threads <= count * chunks else b.icmp("slt", number, count * chunks)
            at = b.add(b.mul(row, b.index(index.stride(token.name))), base)
            at = b.add(at, b.mul(chunk, b.index(index.stride(axis.name) * _CHUNK)))
            to = b.element(pointer, "i8", b.add(b.mul(row, pitch), b.mul(chunk, MOST_BYTES)))
            parts.append(_Part(row, b.mul(chunk, _CHUNK), at, to, mask))
        return _Shared(factor, axis, token, count, pitch, pointer, parts)

    def _copy(self, shared: _Shared, first: Value, stage: Value) -> None:
        """Begin to copy rows or cols from `first` on to shared memory."""
        b, factor, depth, size = self.b, shared.factor, int(shared.axis.size), int(shared.token.size)
        moved = b.mul(first, b.index(factor.index.stride(shared.token.name)))
        ahead = b.mul(stage, shared.count * shared.pitch)
        is_whole = self._is_even(factor.buffer, factor.index, shared.axis, _CHUNK)
        for part in shared.parts:
            mask = b.icmp("slt", b.add(first, part.row), size) if size % shared.count else None
            place, target = b.add(part.at, moved), b.element(part.to, "i8", ahead)
            with b.where(part.mask):
                if is_whole:
                    if depth % MATRIX:
                        mask = self._both(mask, b.icmp("slt", part.term, depth))
                    place = place if mask is None else b.select(mask, place, 0)
                    b.copy_async(target, b.element(b.pointer(factor.buffer), memory_kind(self.dtype), place), mask)
                    continue
                ends = [None if depth % MATRIX == 0 else b.icmp("slt", part.term, depth - e) for e in range(_CHUNK)]
                words = self._elements(factor, shared.axis, place, [self._both(mask, end) for end in ends])
                for number, word in enumerate(words):
                    b.store(word, b.element(target, "i32", number))

    def _copy_cols(self, block: Value, stage: Value) -> None:
        for each in self.cols.values():
            self._copy(each, self.b.mul(block, self.grid.cols), stage)
        self.b.copy_commit()

    def _matrices(self, shared: _Shared, stage: Value, *, along: bool) -> Value:
        """Where a lane reads the first matrices of a stage: two, one below the other, and two beside them; or if not
        `along`, two side by side and two below them."""
        b, (row, further) = self.b, self.readers[along]
        at = b.add(b.mul(row, shared.pitch), further)
        return b.element(shared.pointer, "i8", b.add(at, b.mul(stage, shared.count * shared.pitch)))

    # A step.

    def _begin(self) -> list[Value]:
        """Results so far; and with a softmax the maximum and the sum of each row."""
        zero, count = self.b.const("f32", 0.0), 2 * len(self.tiles)
        sums = [zero] * sum(4 * len(self.tiles) * self._pieces(each) for each in self.problem.sums)
        return sums if self.softmax is None else [*sums, *[self.b.const("f32", -math.inf)] * count, *[zero] * count]

    def _pieces(self, weighed: Weighed) -> int:
        """How many times eight results there are of a row."""
        return -(-int(weighed.axis.size) // MATRIX) * 2

    def _further(self, block: Value, stage: Value, carried: list[Value]) -> list[Value]:
        b, grid = self.b, self.grid
        col = b.mul(block, grid.cols)
        products = {each.contract.out: self._products(number, stage) for number, each in enumerate(self.problem.scores)}
        all_count = self._all_count(col)
        wanted = [self.softmax.value] if self.softmax is not None else [each.sum.value for each in self.problem.sums]
        if all_count is None:
            values = self._values(products, col, wanted, all_count=True)
        else:
            values = list(b.choice(
                all_count,
                lambda: self._alone(lambda: self._values(products, col, wanted, all_count=True)),
                lambda: self._alone(lambda: self._values(products, col, wanted, all_count=False)),
            ))  # fmt: skip
        each = len(values) // len(wanted)
        weights = [values[first : first + each] for first in range(0, len(values), each)]
        sums = carried
        if self.softmax is not None:
            sums, weights = self._softmaxed(carried, weights[0])
        place = 0
        for weighed, of_scores in zip(self.problem.sums, weights, strict=True):
            words = [b.narrow_pair(pair, self.kind) for pair in zip(of_scores[::2], of_scores[1::2], strict=True)]
            place = self._weigh(weighed, words, stage, sums, place)
        return sums

    def _alone(self, write: Callable[[], list[Value]]) -> list[Value]:
        """What is written in a branch is not there behind it."""
        known = set(self.b.shared)
        values = write()
        for each in [*self.b.shared]:
            if each not in known:
                del self.b.shared[each]
        return values

    def _row_words(self, score: Score) -> list[list[list[Value]]]:
        """What a lane has of its rows, of each tile of rows and each 16 terms."""
        shared = self.rows_shared[self._row_side(score)]
        terms = range(0, int(score.axis.size), MATRIX)
        return [[self._words_of_rows(shared, m, term) for term in terms] for m in self.tiles]

    def _words_of_rows(self, shared: _Shared, m: int, term: int) -> list[Value]:
        b, zero = self.b, self.b.index(0)
        warp = b.mul(b.warp_number(), self.grid.row_tiles * MATRIX * shared.pitch)
        pointer = b.element(self._matrices(shared, zero, along=True), "i8", warp)
        return b.load_matrices(b.element(pointer, "i8", m * MATRIX * shared.pitch + term // _CHUNK * MOST_BYTES))

    def _products(self, number: int, stage: Value) -> list[list[list[Value]]]:
        """The scores of each tile of rows, eight cols after the other."""
        b, score = self.b, self.problem.scores[number]
        shared = self.cols[self._col_side(score)]
        words = self.words[number] if self.grid.keeps_rows else self._row_words(score)
        pointer = self._matrices(shared, stage, along=False)
        zero = b.const("f32", 0.0)
        products = [[[zero] * 4 for _ in range(self.grid.cols // _HALF)] for _ in self.tiles]
        for n in range(0, self.grid.cols // _HALF, 2):
            for s in range(len(words[0])):
                at = n * _HALF * shared.pitch + 2 * s * MOST_BYTES
                right = b.load_matrices(b.element(pointer, "i8", at))
                for m in self.tiles:
                    for more in range(2):
                        pair = right[2 * more : 2 * more + 2]
                        products[m][n + more] = b.mma(self.kind, words[m][s], pair, products[m][n + more])
        return products

    def _values(
        self, products: dict[str, list[list[list[Value]]]], col: Value, wanted: Sequence[str], *, all_count: bool
    ) -> list[Value]:
        """What the kernel computes of each score: of each value that is wanted, tiles of rows, cols, rows, two cols
        side by side. What has no weight is -inf before a softmax, else zero."""
        b, own = self.b, self.problem.body
        known = {each.name: b.const("i1", not each.value) for each in self.problem.hidden} if all_count else {}
        body = [i for i in own if i.out not in known and i.out != self.scaled]
        nothing = 0.0 if self.softmax is None else -math.inf
        of_wanted: list[list[Value]] = [[] for _ in wanted]
        for m in self.tiles:
            for n in range(self.grid.cols // _HALF):
                cols = [b.add(b.add(col, b.mul(self.place, 2)), n * _HALF + way) for way in range(2)]
                inside: list[Mask] = [None, None]
                if not all_count and self.size % self.grid.cols:
                    masks = [b.icmp("slt", each, self.size) for each in cols]
                    cols = [b.select(mask, each, 0) for mask, each in zip(masks, cols, strict=True)]
                    inside = [*masks]
                for h in range(2):
                    pairs = {out: tuple(each[m][n][2 * h : 2 * h + 2]) for out, each in products.items()}
                    row = self.places_of_rows[2 * m + h]
                    results: list[list[Value]] = [[] for _ in wanted]
                    for first in range(0, 2, self.width):
                        self.values = {out: pair[first : first + self.width] for out, pair in pairs.items()}
                        self.values |= {name: (value,) for name, value in known.items()}
                        if self.scaled:
                            self.values[self.scaled] = self.values[self.problem.scores[0].contract.out]
                        self.run(body, {**row, self.streamed.name: cols[first]}, None)
                        for name, result in zip(wanted, results, strict=True):
                            result += self._spread(self.values[name])
                    for values, result in zip(of_wanted, results, strict=True):
                        values += [
                            value if mask is None else b.select(mask, value, nothing)
                            for value, mask in zip(result, inside, strict=True)
                        ]
        return [value for values in of_wanted for value in values]

    def _power(self, x: Value) -> Value:
        return self.b.power_of_two(x) if self.b.target.approximates else exp2(self.b, x)

    def _softmaxed(self, carried: list[Value], scores: list[Value]) -> tuple[list[Value], list[list[Value]]]:
        """Everything carried, relative to the maximum with these scores, and their weights. Maxima of scaled scores are
        exponents, rounded once: what earlier sums are relative to is then known without an error."""
        b, count, factor = self.b, 2 * len(self.tiles), self.scale * LOG2E
        sums, most, totals = carried[: -2 * count], carried[-2 * count : -count], carried[-count:]
        weights, each = list(scores), len(scores) // len(self.tiles)
        for row in range(count):
            m, h = divmod(row, 2)
            own = [m * each + 4 * n + 2 * h + way for n in range(each // 4) for way in range(2)]
            largest = reduce(b.maximum, [scores[place] for place in own])
            largest = b.across_lanes(largest, b.maximum, 1, _QUAD)
            largest = b.maximum(most[row], b.fmul(largest, factor) if self.scaled else largest)
            near = b.select(b.fcmp("oeq", largest, -math.inf), 0.0, largest)
            below = b.fneg(near)

            def power(score: Value, near: Value = near, below: Value = below) -> Value:
                """Below the largest score. Other than products, scores may be finite but so far from zero, as where
                nothing is seen, that one times `factor` has no float32."""
                if self.scaled:
                    return self._power(b.fma(score, factor, below))
                return self._power(b.fmul(b.fsub(score, near), factor))

            scale = self._power(b.fsub(most[row], near)) if self.scaled else power(most[row])
            total = b.fmul(totals[row], scale)
            for place in own:
                weights[place] = power(scores[place])
                total = b.fadd(total, weights[place])
            most[row], totals[row] = largest, total
            wide = len(sums) // len(self.tiles)
            for place in range(m * wide, (m + 1) * wide):
                if place % 4 // 2 == h:
                    sums[place] = b.fmul(sums[place], scale)
        return [*sums, *most, *totals], [weights]

    def _weigh(self, weighed: Weighed, words: list[Value], stage: Value, sums: list[Value], place: int) -> int:
        """Add the products of weights and a factor to the sums from `place` on. Returns where they end."""
        b, shared, pieces = self.b, self.cols[weighed.sum.factor], self._pieces(weighed)
        pointer = self._matrices(shared, stage, along=True)
        of_tile = len(words) // len(self.tiles)
        for k in range(self.grid.cols // MATRIX):
            for d in range(0, pieces, 2):
                at = k * MATRIX * shared.pitch + d * MOST_BYTES
                right = b.load_matrices(b.element(pointer, "i8", at), transposed=True)
                for m in self.tiles:
                    left = words[m * of_tile + 4 * k : m * of_tile + 4 * k + 4]
                    for more in range(2):
                        first = place + 4 * (m * pieces + d + more)
                        own = slice(first, first + 4)
                        sums[own] = b.mma(self.kind, left, right[2 * more : 2 * more + 2], sums[own])
        return place + 4 * pieces * len(self.tiles)

    # Results.

    def _finish(self, carried: list[Value]) -> None:
        b, count = self.b, 2 * len(self.tiles)
        shares: list[Value | None] = [None] * count
        masks = [
            None if is_multiple(self.own.size, self.grid.rows) else b.icmp("slt", row, int(self.own.size))
            for row in self.rows_of_lane
        ]
        if self.softmax is not None:
            for row in range(count):
                most, total = carried[row - 2 * count], carried[row - count]
                total = b.across_lanes(total, b.fadd, 1, _QUAD)
                is_empty = b.fcmp("oeq", total, 0.0)
                inverse = b.fdiv(b.const("f32", 1.0), total)  # zero times that is NaN where nothing has weight
                shares[row] = inverse if self.softmax.nan else b.select(is_empty, 0.0, inverse)
                if self.problem.last:
                    log = b.fma(most, 1 / LOG2E if self.scaled else 1.0, compute(b, "log", [total], F32))
                    self.values = {self.softmax.sums: (b.select(is_empty, 0.0, log),)}
                    alone = self._both(masks[row], b.icmp("eq", self.place, 0))
                    self.run(self.problem.last, self.places_of_rows[row], alone, -1)
        place = 0
        for weighed in self.problem.sums:
            for m in self.tiles:
                for d in range(self._pieces(weighed)):
                    for h in range(2):
                        values = carried[place + 2 * h : place + 2 * h + 2]
                        share, row = shares[2 * m + h], 2 * m + h
                        values = values if share is None else [b.fmul(each, share) for each in values]
                        self._store_pair(weighed, self.places_of_rows[row], d * _HALF, values, masks[row])
                    place += 4

    def _store_pair(self, weighed: Weighed, where: Coordinates, d: int, values: list[Value], mask: Mask) -> None:
        b, name, index, axis = self.b, weighed.sum.buffer, weighed.sum.index, weighed.axis
        dtype, depth = self.kernel.buffer(name).dtype, int(axis.size)
        if d >= depth:
            return
        at = b.add(b.mul(self.place, 2), d)
        if self._is_even(name, index, axis, 2):
            if d + _HALF > depth:
                mask = self._both(mask, b.icmp("slt", at, depth))
            place = b.lshr(self._offset(index, {**where, axis.name: at}), 1)
            with b.where_stored(mask):
                b.store_global(b.pointer(name), place, [b.narrow_pair(values, self.kind)])
            return
        for way, value in enumerate(values):
            own = b.add(at, way) if way else at
            inside = mask if d + _HALF <= depth else self._both(mask, b.icmp("slt", own, depth))
            with b.where_stored(inside):
                raw = to_memory(b, cast(b, value, F32, dtype), dtype)
                b.store_global(b.pointer(name), self._offset(index, {**where, axis.name: own}), [raw])
