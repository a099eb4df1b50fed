"""Forming the groups: values in, groups out, greedily and in order.

    for each value to compute, in graph order:
        a group of its own, merged with the groups of what it reads          producer → consumer
        then inlining what only it reads, at whatever index it reads it      transposes, small broadcasts
    then groups that read the same memory at the same points                 siblings

Each step is optional and burns one unit of fuel; without fuel every operation is a kernel of its own. Why two groups
stayed apart is said on the "fusion" channel.
"""

from smelt.base import events
from smelt.base.fuel import Fuel
from smelt.fuse.groups import Group, GroupLevel, Groups, merge, why_not_merge
from smelt.fuse.lowering.values import Call, FusionKind, FusionValue, Lowered
from smelt.fuse.records import Apart
from smelt.fuse.target_choice import TargetChoice
from smelt.symbolic.symsize import hint, known_equal


def form_groups(lowered: Lowered, targets: TargetChoice, fuel: Fuel, alone: frozenset[int] = frozenset()) -> Groups:
    """Group the values of a graph. Values whose ids are in `alone` get kernels of their own and are never inlined."""
    groups = Groups(targets)
    for item in lowered.items:
        if isinstance(item, Call):
            groups.add_call(item)
        elif item.is_computed and (item.users or item.needed):
            if item.id not in alone and _is_inlined(groups, item, fuel):
                groups.inlined.add(item)
                continue
            groups.add_value(item)
            if item.id not in alone:
                _join_producers(groups, item, fuel, alone)
                _inline_producers(groups, groups.by_value[item], item, fuel, alone)
    return groups


def _is_inlined(groups: Groups, value: FusionValue, fuel: Fuel) -> bool:
    """Whether a value is so cheap that every reader computes it anew: made from nothing, or read by many and made from
    one tensor that is in memory anyhow, give or take a small one spread over it (a bias)."""
    if value.kind is not FusionKind.POINTWISE or value.needed:
        return False
    if not value.readings:
        return fuel.take(value)
    if value.cost > 1 or len(set(value.users)) == 1:
        return False
    sources = {reading.value for reading in value.readings if reading.value not in groups.inlined}
    in_memory = all(source.needed or source.kind in (FusionKind.LEAF, FusionKind.LIBRARY) for source in sources)
    ratio = groups.targets.limits_of(value.spec.device).small_ratio
    big = [source for source in sources if hint(source.numel) * ratio > hint(value.numel)]
    return in_memory and len(big) <= 1 and fuel.take(value)


def _join_producers(groups: Groups, value: FusionValue, fuel: Fuel, alone: frozenset[int]) -> None:
    for source in dict.fromkeys(groups.sources(value)):
        ours, theirs = groups.by_value[value], groups.group_of(source)
        if theirs is None or theirs is ours or theirs.call is not None:
            continue
        if any(member.id in alone for member in theirs.members):
            continue
        plan = why_not_merge(groups, theirs, ours)
        if isinstance(plan, str):
            _report(theirs, ours, plan)
        elif fuel.take(theirs, ours):
            merge(groups, theirs, ours, plan)


def _inline_producers(groups: Groups, group: Group, value: FusionValue, fuel: Fuel, alone: frozenset[int]) -> None:
    """Compute inside `group` what nobody else reads, at the places it is read."""
    for source in dict.fromkeys(groups.sources(value)):
        theirs = groups.group_of(source)
        if theirs is None or theirs is group or any(member.id in alone for member in theirs.members):
            continue
        reason = why_not_inline_producer(groups, group, theirs)
        if reason is None and fuel.take(theirs, group):
            for member in theirs.members:
                group.levels[member] = GroupLevel.INLINE
            groups.absorb(group, theirs)
            group.members.sort(key=lambda member: member.id)


def why_not_inline_producer(groups: Groups, group: Group, source: Group) -> str | None:
    """Why `source` cannot be computed wherever `group` reads it, or None."""
    if source.call is not None or not source.is_plain:
        return f"{source} is more than element-wise"
    if len(group.members) + len(source.members) > group.limits.values:
        return f"the kernel would have more than {group.limits.values} operations"
    cost = 0
    for member in source.members:
        cost += member.cost
        if member.needed or any(_reader(groups, user) not in (group, source) for user in member.users):
            return f"{member.name} is read elsewhere too"
    if hint(group.points) > hint(source.points) and cost > group.limits.spread_cost:
        return f"{source} would be computed {group.points // source.points} times over"
    if group.successors & source.mask or groups.closes_cycle(group, source):
        return "something between them needs the one and is needed by the other"
    return None


def _reader(groups: Groups, user: FusionValue) -> Group | None:
    """The group that computes a user; None for one not reached yet or inlined into several."""
    return groups.by_value.get(user)


def join_siblings(groups: Groups, lowered: Lowered, fuel: Fuel, alone: frozenset[int]) -> None:
    """Merge groups that read the same big value point by point."""
    for value in lowered.values:
        if len(value.users) < 2 or hint(value.numel) < 2:
            continue
        first: Group | None = None
        for user in sorted(set(value.users), key=lambda user: user.id):
            group = groups.by_value.get(user)
            if group is None or user.id in alone or not known_equal(group.points, value.numel) or group is first:
                continue
            if group.multiplies:  # what it does besides is done to its sums
                continue
            if first is None or not known_equal(first.points, group.points):
                first = group
                continue
            plan = why_not_merge(groups, first, group)
            if isinstance(plan, str):
                _report(first, group, plan)
            elif fuel.take(first, group):
                merge(groups, first, group, plan)
                first.members.sort(key=lambda member: member.id)


def _report(a: Group, b: Group, reason: str) -> None:
    if events.wanted("fusion"):
        first, second = (tuple(value.name for value in group.members) for group in (a, b))
        events.emit("fusion", f"{a} and {b} stay apart: {reason}", Apart(first, second, reason))


def why_not_fuse(groups: Groups, a: FusionValue, b: FusionValue) -> str | None:
    """Why the groups of two values do not become one kernel, or None when they are or could be one."""
    first, second = groups.group_of(a), groups.group_of(b)
    if first is None or second is None:
        outside = a if first is None else b
        return f"{outside.name} is not computed here"
    if first is second:
        return None
    plan = why_not_merge(groups, first, second)
    return plan if isinstance(plan, str) else None


