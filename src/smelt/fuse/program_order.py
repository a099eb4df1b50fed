"""Orders a program's steps: a rank for each group and call, then a topological sort by rank.

    rank: g1 = mm 4, g2 = mm 6, {w1'} 9, {w2'} 10     `hoist_updates` may change ranks
    order: by rank among those that are ready         →   g1, g2, {w1'}, {w2'}

The wait for a collective comes right before the first read of its result, so that other work overlaps with it.
"""

import heapq

from smelt.base.fast_dataclass import dataclass
from smelt.fuse.groups import Group, Groups
from smelt.fuse.lowering.values import Lowered, references
from smelt.meta.effects import waits
from smelt.symbolic.shapes import Size


@dataclass(frozen=True, slots=True)
class Grouped:
    """A graph's values, and which of them share a kernel."""

    lowered: Lowered
    groups: Groups


@dataclass(frozen=True, slots=True)
class Ranked:
    """Groups, and where each stands among those that are ready, by its id."""

    grouped: Grouped
    rank: dict[int, Size]


@dataclass(frozen=True, slots=True)
class Ordered:
    """Groups and calls in the order in which they run."""

    grouped: Grouped
    order: tuple[Group, ...]


def rank(grouped: Grouped) -> Ranked:
    """By the last member, so that values are made when they are needed; calls as the graph has them."""
    ranks: dict[int, Size] = {}
    for group in grouped.groups.all():
        ranks[group.id] = group.id if group.call is not None else max(value.id for value in group.members)
    _let_waits_wait(grouped.groups, ranks)
    return Ranked(grouped, ranks)


def _let_waits_wait(groups: Groups, rank: dict[int, Size]) -> None:
    waiting = [group for group in groups.all() if group.call is not None and waits(group.call.op)]
    if not waiting:
        return
    readers: dict[int, list[int]] = {}
    for group in groups.all():
        for each in before(groups, group):
            readers.setdefault(each.id, []).append(group.id)
    for group in reversed(waiting):  # one may read what another waited for
        rank[group.id] = min((rank[number] for number in readers.get(group.id, ())), default=group.id)


def sort(ranked: Ranked) -> Ordered:
    """Groups and calls so that each comes after what it needs, otherwise by rank."""
    groups, rank = ranked.grouped.groups, ranked.rank
    everything = groups.all()
    after: dict[int, list[Group]] = {}
    missing: dict[int, int] = {}
    for group in everything:
        needs = {each.id for each in before(groups, group)}
        missing[group.id] = len(needs)
        for number in needs:
            after.setdefault(number, []).append(group)
    ready = [(rank[group.id], group.id) for group in everything if missing[group.id] == 0]
    heapq.heapify(ready)
    ordered: list[Group] = []
    while ready:
        _, number = heapq.heappop(ready)
        group = groups.by_id[number]
        ordered.append(group)
        for later in after.get(group.id, ()):
            missing[later.id] -= 1
            if missing[later.id] == 0:
                heapq.heappush(ready, (rank[later.id], later.id))
    if len(ordered) != len(everything):
        raise AssertionError("groups depend on each other in a circle")
    return Ordered(ranked.grouped, tuple(ordered))


def before(groups: Groups, group: Group) -> set[Group]:
    """What a group or call needs to have run."""
    if group.call is not None:
        needed = {groups.group_of(ref.value) for ref in references((group.call.args, group.call.kwargs))}
        needed |= {groups.by_id[call.id] for call in group.call.after}
        if group.call.unless is not None:
            needed.add(groups.group_of(group.call.unless))
    else:
        needed = {groups.group_of(source) for value in group.members for source in groups.sources(value)}
        needed |= {groups.by_id.get(earlier.id) for value in group.members for earlier in value.after}
    return {each for each in needed if each is not None and each is not group}
