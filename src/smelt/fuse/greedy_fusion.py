"""Forms groups of values, greedily and in graph order.

    for each value to compute, in graph order:
        a group of its own, merged with the groups of what it reads          producer → consumer
        then inlining what only it reads, at whatever index it reads it      transposes, small broadcasts
    then groups that read the same memory at the same points                 siblings
    then computing in two groups what one would store for the other          on memory-bound targets

Each step is optional and counts against the opt-bisect limit; at limit zero every operation is a kernel of its own.
The "fusion" channel reports why two groups stayed apart.
"""

from collections.abc import Iterable

from smelt.base import events
from smelt.base.rewrite_budget import RewriteBudget
from smelt.fuse.groups import Group, GroupLevel, Groups, merge, why_alone, why_not_merge
from smelt.fuse.lowering.values import Call, FusionKind, FusionValue, Lowered
from smelt.fuse.records import Apart
from smelt.fuse.target_choice import TargetChoice
from smelt.symbolic.symsize import hint, known_equal

_CHAIN = 24  # no more values are recomputed for the sake of one kernel's
_COST = 96  # nor more work, as `FusionValue.cost` counts it


def form_groups(
    lowered: Lowered, targets: TargetChoice, budget: RewriteBudget, alone: frozenset[int] = frozenset()
) -> Groups:
    """Group the values of a graph. Values whose ids are in `alone` get kernels of their own and are never inlined."""
    groups = Groups(targets)
    for item in lowered.items:
        if isinstance(item, Call):
            groups.add_call(item)
        elif item.is_computed and (item.users or item.needed):
            if item.id not in alone and _is_inlined(groups, item, budget):
                groups.inlined.add(item)
                continue
            groups.add_value(item)
            if item.id not in alone:
                _join_producers(groups, item, budget, alone)
                _inline_producers(groups, groups.by_value[item], item, budget, alone)
    return groups


def _is_inlined(groups: Groups, value: FusionValue, budget: RewriteBudget) -> bool:
    """Whether a value is so cheap that every reader recomputes it: it reads nothing, or many read it and it reads one
    tensor that is in memory anyway, besides small broadcast ones (a bias)."""
    if value.kind is not FusionKind.POINTWISE or value.needed:
        return False
    if not value.readings:
        return budget.take(value)
    if value.cost > 1 or len(set(value.users)) == 1:
        return False
    sources = {reading.value for reading in value.readings if reading.value not in groups.inlined}
    in_memory = all(source.needed or source.kind in (FusionKind.LEAF, FusionKind.LIBRARY) for source in sources)
    ratio = groups.targets.limits_of(value.spec.device).small_ratio
    big = [source for source in sources if hint(source.numel) * ratio > hint(value.numel)]
    return in_memory and len(big) <= 1 and budget.take(value)


def _join_producers(groups: Groups, value: FusionValue, budget: RewriteBudget, alone: frozenset[int]) -> None:
    for source in dict.fromkeys(groups.sources(value)):
        ours, theirs = groups.by_value[value], groups.group_of(source)
        if theirs is None or theirs is ours or theirs.call is not None:
            continue
        if any(member.id in alone for member in theirs.members):
            continue
        plan = why_not_merge(groups, theirs, ours)
        if isinstance(plan, str):
            _report(theirs, ours, plan)
        elif budget.take(theirs, ours):
            merge(groups, theirs, ours, plan)


def _inline_producers(
    groups: Groups, group: Group, value: FusionValue, budget: RewriteBudget, alone: frozenset[int]
) -> None:
    """Compute inside `group` the values that nothing else reads, where they are read."""
    for source in dict.fromkeys(groups.sources(value)):
        theirs = groups.group_of(source)
        if theirs is None or theirs is group or any(member.id in alone for member in theirs.members):
            continue
        reason = why_not_inline_producer(groups, group, theirs)
        if reason is None and budget.take(theirs, group):
            for member in theirs.members:
                group.levels[member] = GroupLevel.INLINE
            groups.absorb(group, theirs)
            group.members.sort(key=lambda member: member.id)


def why_not_inline_producer(groups: Groups, group: Group, source: Group) -> str | None:
    """Why `source` cannot be computed wherever `group` reads it, or None."""
    if source.call is not None or not source.is_plain:
        return f"{source} is more than element-wise"
    if source.device != group.device:
        return f"they are on different devices, {source.device} and {group.device}"
    if (reason := why_alone(source)) is not None:
        return reason
    if len(group.members) + len(source.members) > group.limits.values:
        return f"the kernel would have more than {group.limits.values} operations"
    cost = 0
    for member in source.members:
        cost += member.cost
        if member.needed or any(_reader(groups, user) not in (group, source) for user in member.users):
            return f"{member.name} is read elsewhere too"
    if hint(group.points) > hint(source.points) and cost > group.limits.spread_cost:
        return f"{source} would be computed {group.points // source.points} times over"
    places = _places(group, source)
    if cost and places > group.limits.read_places:
        return f"{source} would be computed at {places} places for every point"
    if source in group.successors or groups.closes_cycle(group, source):
        return "an operation between them reads one and is read by the other"
    return None


def _places(group: Group, source: Group) -> int:
    """At how many places a group reads another's values, such as the windows of a padded image. Each is separate code,
    which dominates LLVM's time, and none is contiguous."""
    inside = set(source.members)
    read = (reading for member in group.members for reading in member.readings if reading.value in inside)
    return len({(reading.value, reading.stride, reading.offset) for reading in read})


def _reader(groups: Groups, user: FusionValue) -> Group | None:
    """The group that computes a user; None if it is not reached yet or is inlined into several."""
    return groups.by_value.get(user)


def join_siblings(groups: Groups, lowered: Lowered, budget: RewriteBudget, alone: frozenset[int]) -> None:
    """Merge groups that read the same big value point by point."""
    for value in lowered.values:
        if hint(value.numel) < 2 or not value.users:
            continue
        first: Group | None = None
        for user in sorted(_readers(groups, value), key=lambda user: user.id):
            group = groups.by_value.get(user)
            if group is None or user.id in alone or not known_equal(group.points, value.numel) or group is first:
                continue
            if group.multiplies:  # what it does besides is done to its sums
                continue
            first = _merged(groups, first, group, budget)


def _merged(groups: Groups, first: Group | None, group: Group, budget: RewriteBudget) -> Group:
    """Merge `group` into `first` if both have the same points and nothing forbids it. Returns the group that later ones
    are merged into."""
    if first is None or not known_equal(first.points, group.points):
        return group
    plan = why_not_merge(groups, first, group)
    if isinstance(plan, str):
        _report(first, group, plan)
    elif budget.take(first, group):
        merge(groups, first, group, plan)
        first.members.sort(key=lambda member: member.id)
    return first


def join_sums(groups: Groups, lowered: Lowered, budget: RewriteBudget, alone: frozenset[int]) -> None:
    """Merge groups that reduce results of the same library call over rows, such as the gradients of the biases of
    query, key and value: one launch, and no value lives longer. On memory-bound targets."""
    by_call: dict[int, list[FusionValue]] = {}
    for value in lowered.values:
        if value.kind is FusionKind.LIBRARY and value.call is not None and hint(value.numel) > 1:
            by_call.setdefault(value.call.id, []).append(value)
    for results in by_call.values():
        first: Group | None = None
        readers = {user for value in results for user in _readers(groups, value)} if len(results) > 1 else set()
        for user in sorted(readers, key=lambda user: user.id):
            group = groups.by_value.get(user)
            if group is None or group is first or not _sums_rows(group) or user.id in alone:
                continue
            first = _merged(groups, first, group, budget)


def _sums_rows(group: Group) -> bool:
    """Whether all that a group leaves is reduced over rows."""
    leaves = [member for member in group.members if member.needed or any(u not in group.levels for u in member.users)]
    only_folds = all(group.levels[member] is GroupLevel.GRID for member in leaves)
    return group.limits.recomputes and bool(group.folds) and only_folds and not group.scatters


def _readers(groups: Groups, value: FusionValue) -> set[FusionValue]:
    """The readers of a value, looking through inlined ones. On memory-bound targets only: elsewhere two kernels that
    run in one pass each are faster than one that does not."""
    if not groups.targets.limits_of(value.spec.device).recomputes:
        return set(value.users)
    readers: set[FusionValue] = set()
    for user in set(value.users):
        readers |= _readers(groups, user) if user in groups.inlined else {user}
    return readers


def recompute(groups: Groups, budget: RewriteBudget, alone: frozenset[int] = frozenset()) -> None:
    """Let groups recompute values of other groups: element-wise ones whose inputs are in memory anyway, where reading
    those moves fewer bytes.

        k0: h = float(g) · w;  s = sum of h · float(x)       k1: y = h - float(x) · s
        →  h, in float32, need not be stored: k1 reads g and x itself, in 16 bits
    """
    for group in groups.all():
        if group.call is not None or not group.limits.recomputes or group.multiplies or group.scatters:
            continue
        if any(member.id in alone for member in group.members):
            continue
        for sources in _given(groups, group):
            recomputed = _behind(groups, group, sources)
            if recomputed is not None and budget.take(group):
                group.recomputed |= recomputed
                if events.wanted("fusion"):
                    names = ", ".join(value.name for value in sources)
                    events.emit("fusion", f"{group} computes {names} itself, which moves fewer bytes")


def _given(groups: Groups, group: Group) -> list[list[FusionValue]]:
    """The values that a group reads from others, by the group that computes them."""
    by_producer: dict[int, dict[FusionValue, None]] = {}
    for member in group.members:
        for source in groups.sources(member):
            giver = groups.by_value.get(source)
            if giver is not None and giver is not group:
                by_producer.setdefault(giver.id, {})[source] = None
    return [list(values) for values in by_producer.values()]


def _behind(groups: Groups, group: Group, sources: list[FusionValue]) -> set[FusionValue] | None:
    """The values that the group would compute instead of reading `sources`; None if that does not pay off."""
    giver = groups.by_value[sources[0]]
    if giver.device != group.device:
        return None
    wanted = [value for value in sources if _is_big(group, value) and not value.needed and _is_recomputable(value)]
    none = frozenset[FusionValue]()
    kept, through = none, none
    behind = _chain_behind(groups, group, giver, wanted, kept, through)
    if behind is None:
        return None
    for value in _ordered(value for value in behind[0] if _is_stored_anyway(groups, group, giver, value)):
        others = [each for each in wanted if each is not value]
        instead = _chain_behind(groups, group, giver, others, kept | {value}, none)
        extra = _bytes(value) if value in wanted else 0
        if instead is not None and _sum_bytes(instead[1]) + extra < _sum_bytes(behind[1]):
            behind, wanted, kept = instead, others, kept | {value}
    for value in _ordered(value for value in behind[1] if value.is_computed and _is_big(group, value)):
        instead = _chain_behind(groups, group, giver, wanted, kept, through | {value})
        if instead is not None and _sum_bytes(instead[1]) < _sum_bytes(behind[1]):
            behind, through = instead, through | {value}
    if not wanted or sum(value.cost for value in behind[0]) > _COST:
        return None

    chain, new = behind
    if len(group.members) + len(group.recomputed) + len(chain) > group.limits.values:
        return None
    stored = [value for value in wanted if _only_reader(groups, giver, group, value)]
    return chain if _sum_bytes(new) < _sum_bytes(wanted) + _sum_bytes(stored) else None


def _chain_behind(
    groups: Groups,
    group: Group,
    giver: Group,
    wanted: list[FusionValue],
    kept: frozenset[FusionValue],
    through: frozenset[FusionValue],
) -> tuple[set[FusionValue], set[FusionValue]] | None:
    """The values that lead to `wanted` from those in memory, `kept` among them but not `through`, and what the group
    would read in addition; None if they are too many, or not all can be recomputed."""
    read = {source for member in (*group.members, *group.recomputed) for source in groups.sources(member)}
    chain: set[FusionValue] = set()
    new: set[FusionValue] = set()
    waiting = list(wanted)
    while waiting:
        value = waiting.pop()
        if value in chain or value in new:
            continue
        at_hand = value not in wanted and value not in through and _is_in_memory(groups, giver, value)
        if value in kept or at_hand:
            if value not in read:
                new.add(value)
            continue
        if not _is_recomputable(value) or len(chain) == _CHAIN:
            return None
        chain.add(value)
        waiting += groups.sources(value)
    return chain, new


def _is_stored_anyway(groups: Groups, group: Group, giver: Group, value: FusionValue) -> bool:
    """Whether `giver` stores a value for other readers."""
    is_its_own = groups.by_value.get(value) is giver and _is_big(group, value)
    return is_its_own and not _only_reader(groups, giver, group, value)


def _is_big(group: Group, value: FusionValue) -> bool:
    return hint(value.numel) * group.limits.small_ratio > hint(group.points)


def _is_recomputable(value: FusionValue) -> bool:
    return value.kind is FusionKind.POINTWISE and not any(reading.indirect for reading in value.readings)


def _is_in_memory(groups: Groups, giver: Group, value: FusionValue) -> bool:
    """Whether an operand of `giver` is in memory whatever else is decided."""
    if value.needed or not value.is_computed:
        return True
    home = groups.by_value.get(value)
    return home is not None and home is not giver and value not in giver.recomputed


def _only_reader(groups: Groups, giver: Group, group: Group, value: FusionValue) -> bool:
    """Whether nothing else needs a value in memory."""
    readers = [groups.by_value.get(user) for user in value.users]
    return all(reader is not None and (reader is giver or reader is group) for reader in readers)


def _bytes(value: FusionValue) -> int:
    return hint(value.spec.nbytes)


def _sum_bytes(values: Iterable[FusionValue]) -> int:
    return sum(map(_bytes, values))


def _ordered(values: Iterable[FusionValue]) -> list[FusionValue]:
    return sorted(values, key=lambda value: value.id)


def _report(a: Group, b: Group, reason: str) -> None:
    if events.wanted("fusion"):
        first, second = (tuple(value.name for value in group.members) for group in (a, b))
        events.emit("fusion", f"{a} and {b} are not fused: {reason}", Apart(first, second, reason))


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
