"""Moves updates right behind the gradients they read, where that frees the gradients.

    g1 = mm(…); g2 = mm(…); w1' = w1 - g1; w2' = w2 - g2     →   g1, w1', g2, w2': never two gradients at the same time

An update is a kernel that computes new values of inputs. It moves up if it is the last reader of something large. It
stays behind the readers of the old values, because it overwrites them, and behind library calls that may fail, because
nothing may be written before a failure.
"""

from collections.abc import Iterable, Sequence

import torch

from smelt.base.rewrite_budget import RewriteBudget
from smelt.fuse.buffer_reuse import may_fail
from smelt.fuse.groups import Group, Groups
from smelt.fuse.lowering.values import Call, FusionKind, FusionValue, Lowered, Ref, references
from smelt.fuse.program_order import Ranked, before
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import hint

_LARGE = 1 << 16  # bytes
_SMALL = 1 << 12


def hoist_updates(ranked: Ranked, writes: Sequence[tuple[int, int]], budget: RewriteBudget) -> Ranked:
    """New ranks for updates, and for the scalars they need."""
    if not writes:
        return ranked
    rank = dict(ranked.rank)
    _Updates(rank, ranked.grouped.groups, ranked.grouped.lowered, writes).run(budget)
    return Ranked(ranked.grouped, rank)


class _Updates:
    def __init__(
        self, rank: dict[int, Size], groups: Groups, lowered: Lowered, writes: Sequence[tuple[int, int]]
    ) -> None:
        self.rank, self.groups = rank, groups
        constants = {name for name, _ in lowered.constants}
        inputs = [value for value in lowered.values if value.kind is FusionKind.LEAF and value.name not in constants]
        pairs = [(lowered.returns[place], inputs[number]) for place, number in writes]
        self.old = {new.value: old for new, old in pairs if isinstance(new, Ref)}
        self.kept = {ref.value for ref in references(lowered.returns)}
        self.readers: dict[FusionValue, set[int]] = {}
        for group in groups.all():
            for value in _read(groups, group):
                self.readers.setdefault(value, set()).add(group.id)
        calls = [group for group in groups.all() if group.call is not None and may_fail(_operator(group.call))]
        self.least = max((rank[group.id] for group in calls), default=0)

    def run(self, budget: RewriteBudget) -> None:
        for group in self.groups.all():
            if group.call is not None or not any(value in self.old for value in group.members):
                continue
            needed = [value.id for value in group.members if self.readers.get(value, set()) - {group.id}]
            if needed:  # it computes what others wait for, too
                if self.rank[group.id] != max(needed) and budget.take(group):
                    self.rank[group.id] = max(needed)
            elif any(self._dies_in(group, value) for value in set(_read(self.groups, group))) and budget.take(group):
                self._move(group)

    def _dies_in(self, group: Group, value: FusionValue) -> bool:
        """Whether a large value is freed after the group has read it."""
        if value.kind is FusionKind.LEAF or value in self.kept or hint(value.spec.nbytes) < _LARGE:
            return False
        return all(self.rank[reader] <= self.rank[group.id] for reader in self.readers[value])

    def _move(self, group: Group) -> Size:
        """Move a group up behind everything that it needs or that reads what it overwrites."""
        rank: Size = self.least
        for needed in before(self.groups, group):
            rank = max(rank, self._move(needed) if _is_small(needed) else self.rank[needed.id])
        for value in group.members:
            if value in self.old:
                readers = self.readers.get(self.old[value], set()) - {group.id}
                rank = max([rank, *(self.rank[reader] for reader in readers)])
                # Of equal ranks the older group comes first, as the kernel of a gradient is that has the update in it.
                rank += any(self.rank[reader] == rank and reader > group.id for reader in readers)
        self.rank[group.id] = min(rank, self.rank[group.id])
        return self.rank[group.id]


def _operator(call: Call) -> torch._ops.OpOverload:
    return call.op if call.lowering.out is None else call.lowering.out


def _read(groups: Groups, group: Group) -> Iterable[FusionValue]:
    if group.call is None:
        return [source for value in group.members for source in groups.sources(value)]
    return group.call.reads


def _is_small(group: Group) -> bool:
    """Scalars that an update needs, such as the step count or the learning rate."""
    return group.call is None and all(hint(value.spec.nbytes) <= _SMALL for value in group.members)
