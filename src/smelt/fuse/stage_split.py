"""Splits scalar code into stages: passes over the cols of a row, with the values staged between them.

    pass 0: m = max x                pass 1: e = exp(x - m), s = sum e          pass 2: store e / s
    staged: e, in scratch            recomputed: nothing; x is loaded again

An expression is computed in each pass that needs it, unless an earlier pass computed it and it costs more than a few
operations: then that pass stages it, in scratch or in the output it is stored to anyway, and the later one loads it. A
row too long for scratch is staged in an output that only the last pass writes.
"""

from dataclasses import field, replace

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.device.fusion_limits import Limits
from smelt.fuse.expressions import Expr, Space
from smelt.fuse.inline_exprs import Effect, Pulled


@dataclass(frozen=True, slots=True)
class Line:
    """One instruction to be: an expression's computation, or an effect, or staging in `scratch`."""

    expr: Expr
    effect: Effect | None = None
    scratch: int | None = None  # the scratch buffer written, or read when `reload`
    reload: bool = False
    from_output: Effect | None = None  # loaded from what this effect stored before


@dataclass(slots=True)
class Ordered:
    """Stages in order, each a loop over cols or not, and the dtypes of the scratch buffers they use."""

    space: Space
    stages: list[tuple[bool, list[Line]]] = field(default_factory=list)
    scratch: list[torch.dtype] = field(default_factory=list)


def order(pulled: Pulled, limits: Limits) -> Ordered:
    return _Orderer(pulled, limits).run()


class _Orderer:
    def __init__(self, pulled: Pulled, limits: Limits) -> None:
        self.pulled = pulled
        self.limits = limits
        self.loops: dict[int, list[Line]] = {}
        self.rows: dict[int, list[Line]] = {}
        self.row_done: set[Expr] = set()
        self.done: dict[tuple[int, Expr], bool] = {}  # (pass, expr) computed or reloaded there
        self.first_pass: dict[Expr, int] = {}
        self.staged: dict[Expr, int] = {}
        self.stored: dict[Expr, Effect] = {}
        self.scratch: list[torch.dtype] = []
        self.lent: dict[Expr, Effect] = {}  # staged in an output, until the result is written there
        self.room = limits.scratch_bytes
        self.last = 0
        self.one_loop = False  # what is the same for all cols is computed among the rest

    def run(self) -> Ordered:
        reductions = self._reductions()
        effects = self.pulled.effects
        last = self.last = max([0, *(expr.ready for expr in reductions), *(effect.ready for effect in effects)])
        for number in range(last + 1):
            self.loops[number], self.rows[number] = [], []
        for number in range(last + 1):
            for expr in reductions:
                if expr.args[0].ready == number:
                    self._need(expr.args[0], number)
                    self.loops[number].append(Line(expr))
            for effect in effects:
                if effect.ready == number:
                    self._leave(effect, number)
        ordered = Ordered(self.pulled.space, scratch=self.scratch)
        for number in range(last + 1):
            for loop, lines in ((False, self.rows[number]), (True, self.loops[number])):
                if lines:
                    ordered.stages.append((loop, lines))
        return ordered

    def _reductions(self) -> list[Expr]:
        """Every reduction over cols that an effect depends on, in order. Where there is a product there is one loop."""
        seen: set[Expr] = set()
        waiting = [expr for effect in self.pulled.effects for expr in effect.needs]
        while waiting:
            expr = waiting.pop()
            if expr not in seen:
                seen.add(expr)
                waiting.extend(expr.args)
                self.one_loop |= expr.op == "contract"
        return sorted((expr for expr in seen if expr.op == "reduce"), key=lambda expr: expr.id)

    def _leave(self, effect: Effect, number: int) -> None:
        if not effect.looped:
            self._need_in_row(effect.expr)
            self.rows[number].append(Line(effect.expr, effect))
            return
        for expr in effect.needs:
            self._need(expr, number)
        self.loops[number].append(Line(effect.expr, effect))
        if effect.stores:
            self.stored.setdefault(effect.expr, effect)

    def _need_in_row(self, expr: Expr) -> None:
        """Compute an expression that is the same for all cols, once per row."""
        if expr in self.row_done or expr.op == "reduce":
            return
        self.row_done.add(expr)
        for arg in expr.args:
            self._need_in_row(arg)
        self.rows[expr.ready].append(Line(expr))

    def _need(self, expr: Expr, number: int) -> None:
        """Make an expression available in the loop of pass `number`."""
        if (number, expr) in self.done or expr in self.row_done or expr.op == "reduce":
            return
        if not expr.varies and expr.op != "const" and not self.one_loop:
            self._need_in_row(expr)
            return
        self.done[number, expr] = True
        earlier = self.first_pass.setdefault(expr, number)
        if earlier < number and self._keep(expr, earlier):
            self.loops[number].append(self._reloading(expr))
            return
        for arg in expr.args:
            self._need(arg, number)
        self.loops[number].append(Line(expr))

    def _keep(self, expr: Expr, earlier: int) -> bool:
        """Whether to load what pass `earlier` computed; stages it there if it is not yet."""
        if expr.op in ("load", "position", "const"):
            return False
        if expr in self.staged or expr in self.stored or expr in self.lent:
            return True
        if self._recompute_cost(expr) <= self.limits.keep_above or self._stands_on_one(expr):
            return False
        size = self.pulled.space.cols * expr.dtype.itemsize
        if size > self.room:
            return self._lend(expr, earlier)
        self.room -= size
        self.staged[expr] = len(self.scratch)
        self._insert(Line(expr, scratch=len(self.scratch)), earlier)
        self.scratch.append(expr.dtype)
        return True

    def _insert(self, line: Line, earlier: int) -> None:
        """Put `line` behind the computation of its expression in pass `earlier`."""
        lines = self.loops[earlier]
        at = next(i for i, each in enumerate(lines) if each.expr is line.expr and each.effect is None)
        lines.insert(at + 1, line)

    def _lend(self, expr: Expr, earlier: int) -> bool:
        """Whether there is an output of the same kind that is free until the last pass; it then holds `expr`."""
        for effect in self.pulled.effects:
            free = effect.looped and effect.stores and effect not in self.lent.values()
            own = all(step or size == 1 for step, size in zip(effect.place[1:], self.pulled.space.sizes, strict=True))
            if free and own and effect.expr.ready == self.last and effect.value.spec.dtype is expr.dtype:
                self.lent[expr] = effect
                self._insert(Line(expr, replace(effect, expr=expr)), earlier)
                return True
        return False

    def _reloading(self, expr: Expr) -> Line:
        if expr in self.stored or expr in self.lent:
            return Line(expr, reload=True, from_output=self.stored.get(expr) or self.lent[expr])
        return Line(expr, reload=True, scratch=self.staged[expr])

    def _recompute_cost(self, expr: Expr, limit: int = 64) -> int:
        """What computing an expression once more would cost, given what is kept."""
        if not expr.varies or expr in self.staged or expr in self.stored or expr in self.lent or limit <= 0:
            return 1
        cost = expr.cost
        for arg in expr.args:
            cost += self._recompute_cost(arg, limit - cost)
            if cost > self.limits.keep_above:
                break
        return cost

    def _stands_on_one(self, expr: Expr) -> bool:
        """A cheap step from a single costly one: better keep that, it may serve others too."""
        if expr.cost > 1:
            return False
        costly = [arg for arg in expr.args if self._recompute_cost(arg) > self.limits.keep_above]
        rest = sum(self._recompute_cost(arg) for arg in expr.args if arg not in costly)
        return len(costly) == 1 and costly[0] in self.first_pass and rest <= 2


