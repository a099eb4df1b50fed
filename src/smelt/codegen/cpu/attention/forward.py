"""Attention in blocks: scores of a panel of queries in the first-level cache, their online softmax, then weighted sums.

    k0(buffers, threads, workspace)          smelt_parallel_for(k0.part, …) over blocks of queries
      k0.part                                packs queries; for each block of keys packs those and their values
        product.tile… keys by queries        the scores of a panel of queries
        k0.weights                           what is computed of them, and their softmax so far
        product.tile… queries by values      sums of values, scaled first where the largest score has grown
      k0.finish                              sums over what weights were divided by, as results

Each query has its own sums, whose order depends on sizes alone: it is the same for any number of threads.
"""

import math

from smelt.codegen.attention_problem import AttentionProblem
from smelt.codegen.cpu.addresses import MINE
from smelt.codegen.cpu.attention.blocks import AttentionBlocks
from smelt.codegen.cpu.attention.finish import write_finish
from smelt.codegen.cpu.attention.part import BlockPart
from smelt.codegen.cpu.attention.softmax import write_weights
from smelt.codegen.cpu.entry_points import PART, KernelFunctions
from smelt.codegen.generator import EntryCode
from smelt.codegen.loops.arrays import positions
from smelt.codegen.loops.builder import BUFFERS
from smelt.device import Target
from smelt.ir.loops import Value

_SOFTMAX = 14  # cycles for a vector of scores
_EACH = 3_000  # and for each attention


def why_not(problem: AttentionProblem, target: Target) -> str | None:
    softmax, body = problem.softmax, problem.kernel.stages[0].body
    if softmax is None:
        return "it has no softmax"
    if softmax.nan:
        return "rows without weights are NaN"
    after = body[body.index(softmax) + 1 :]
    alone = len(problem.sums) == len(problem.scores) == len(after) == 1 and not problem.products
    if not alone or problem.sums[0].sum.value != softmax.out or not problem.sums[0].over_keys:
        return "something else than one weighted sum follows the softmax"
    return None


def cycles(problem: AttentionProblem, target: Target) -> float:
    """Whole tiles of multiplications, packing, and what softmax takes."""
    blocks = AttentionBlocks.of(problem, target)
    wide, weighed = blocks.tiles.queries, problem.sums[0]
    depth, width, pitch = int(problem.scores[0].axis.size), int(weighed.axis.size), blocks.pitch(weighed)
    rows = -(-problem.queries // wide) * wide
    points = rows * problem.keys * (0.55 if problem.reach is not None else 1.0)
    packed = (problem.keys * blocks.query_blocks + rows) * (depth + width)
    work = points * ((depth + pitch) * 0.56 + _SOFTMAX) / blocks.tiles.lanes + 1.2 * packed
    return float(problem.count * (work + rows * pitch + _EACH))


def write(code: KernelFunctions, problem: AttentionProblem) -> EntryCode:
    blocks = AttentionBlocks.of(problem, code.target)
    write_weights(code, blocks)
    write_finish(code, problem, blocks.workspace, "sums0", blocks.pitch(problem.sums[0]), blocks.tiles.lanes)
    code.write("part", PART, lambda b: _Part(b, blocks).write())
    return code.end(blocks.threads, blocks.units, blocks.workspace.size)


class _Part(BlockPart):
    def write(self) -> None:
        b, problem, blocks, wide = self.b, self.problem, self.blocks, self.tiles.queries
        with b.loop(*PART[2:4], guard=True) as unit:
            self.outer = b.udiv(unit, blocks.query_blocks)
            self.axes = positions(b, problem.outer, self.outer)
            self.query = b.mul(b.sub(unit, b.mul(self.outer, blocks.query_blocks)), blocks.rows)
            self.rows = b.smin(b.sub(problem.queries, self.query), blocks.rows)
            self.panels = b.udiv(b.add(self.rows, wide - 1), wide)
            self.pack_queries(self.query, self.rows)
            count = b.mul(self.panels, wide)
            self.fill("sums0", b.mul(count, blocks.pitch(problem.sums[0])))
            self.fill("tops", count, -math.inf)
            self.fill("totals", count)
            end = self._reached(b.add(self.query, b.sub(self.rows, 1)), b.const("i64", problem.keys))
            with b.loop(0, end, blocks.keys, guard=True) as key:
                self._block(key, b.smin(b.sub(end, key), blocks.keys))
            b.call(f"{b.symbol}.finish", BUFFERS, MINE, self.outer, self.query, self.rows)

    def _reached(self, query: Value, most: Value) -> Value:
        """How many keys have weight for a query, of `most`."""
        reach = self.problem.reach
        return most if reach is None else self.b.smin(self.b.add(query, reach + 1), most)

    def _block(self, key: Value, keys: Value) -> None:
        b, wide = self.b, self.tiles.queries
        self.pack_keys(key, keys)
        with b.loop(0, self.panels) as panel:
            query, count = b.add(self.query, b.mul(panel, wide)), keys
            if self.problem.reach is not None:
                last = b.add(query, wide - 1)
                count = b.smin(b.sub(self._reached(last, b.add(key, keys)), key), keys)
            with b.when(b.icmp("sgt", count, 0)):
                self.weights(panel, query, key, count)
                if self.blocks.keys < self.problem.keys:
                    with b.when(b.icmp("sgt", key, 0)):
                        self._rescale(panel)
                self.sum_keys(0, self.arrays["scores0"], panel, keys, count)

    def _rescale(self, panel: Value) -> None:
        """Rescale the sums of earlier blocks, which are relative to an older maximum."""
        b, pitch, wide, lanes = self.b, self.blocks.pitch(self.problem.sums[0]), self.tiles.queries, self.tiles.lanes
        sums = self.arrays["sums0"].at(b.mul(panel, wide * pitch))
        with b.loop(0, wide) as row:
            scale, line = b.splat(self.arrays["scales"].load(row), lanes), sums.at(b.mul(row, pitch))
            with b.loop(0, pitch, lanes) as column:
                place = line.at(column)
                place.store(b.fmul(place.load(0, lanes), scale))
