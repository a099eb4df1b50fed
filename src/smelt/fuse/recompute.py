"""What one kernel would leave in memory for another is computed in both, where that moves fewer bytes.

    k0: h = float(g) · w;  s = sum of h · float(x)       k1: y = h - float(x) · s
    →  h, in float32, need not be stored: k1 reads g and x itself, in 16 bits

On targets whose kernels wait for memory (`Limits.recomputes`). Only what is element-wise is recomputed, from what is in
memory anyhow.
"""

from smelt.base import events
from smelt.base.fuel import Fuel
from smelt.fuse.groups import Group, Groups
from smelt.fuse.lowering.values import FusionKind, FusionValue
from smelt.symbolic.symsize import hint

_CHAIN = 24  # no more values are recomputed for the sake of one kernel's
_COST = 96  # nor more work, as `FusionValue.cost` counts it


def recompute(groups: Groups, fuel: Fuel, alone: frozenset[int] = frozenset()) -> None:
    """Tell groups which values of others to compute themselves."""
    for group in groups.all():
        if group.call is not None or not group.limits.recomputes or group.multiplies or group.scatters:
            continue
        if any(member.id in alone for member in group.members):
            continue
        for given in _given(groups, group):
            found = _behind(groups, group, given)
            if found is not None and fuel.take(group):
                group.recomputed |= found
                if events.wanted("fusion"):
                    names = ", ".join(value.name for value in given)
                    events.emit("fusion", f"{group} computes {names} itself, which moves fewer bytes")


def _given(groups: Groups, group: Group) -> list[list[FusionValue]]:
    """What a group reads of others, by the group that computes it."""
    found: dict[int, dict[FusionValue, None]] = {}
    for member in group.members:
        for source in groups.sources(member):
            giver = groups.by_value.get(source)
            if giver is not None and giver is not group:
                found.setdefault(giver.id, {})[source] = None
    return [list(values) for values in found.values()]


def _behind(groups: Groups, group: Group, given: list[FusionValue]) -> set[FusionValue] | None:
    """What the group would compute instead of reading the values `given`; None where that is not worth it."""
    giver = groups.by_value[given[0]]
    wanted = [value for value in given if _is_big(group, value) and not value.needed and _is_recomputable(value)]
    read = {source for member in group.members for source in groups.sources(member)}
    chain: set[FusionValue] = set()
    new: set[FusionValue] = set()
    waiting = list(wanted)
    while waiting:
        value = waiting.pop()
        if value in chain or value in new:
            continue
        if value not in wanted and _is_in_memory(groups, giver, value):
            if value not in read:
                new.add(value)
            continue
        if not _is_recomputable(value) or len(chain) == _CHAIN:
            return None
        chain.add(value)
        waiting += groups.sources(value)
    if not wanted or sum(value.cost for value in chain) > _COST:
        return None
    if len(group.members) + len(group.recomputed) + len(chain) > group.limits.values:
        return None
    stored = [value for value in wanted if _only_reader(groups, giver, group, value)]
    moved = sum(map(_bytes, wanted)) + sum(map(_bytes, stored))
    return chain if sum(map(_bytes, new)) < moved else None


def _is_big(group: Group, value: FusionValue) -> bool:
    return hint(value.numel) * group.limits.small_ratio > hint(group.points)


def _is_recomputable(value: FusionValue) -> bool:
    return value.kind is FusionKind.POINTWISE and not any(reading.indirect for reading in value.readings)


def _is_in_memory(groups: Groups, giver: Group, value: FusionValue) -> bool:
    """Whether a value that `giver` computes with is in memory whatever else is decided."""
    if value.needed or not value.is_computed:
        return True
    home = groups.by_value.get(value)
    return home is not None and home is not giver and value not in giver.recomputed


def _only_reader(groups: Groups, giver: Group, group: Group, value: FusionValue) -> bool:
    """Whether nobody else has a value in memory."""
    readers = [groups.by_value.get(user) for user in value.users]
    return all(reader is not None and (reader is giver or reader is group) for reader in readers)


def _bytes(value: FusionValue) -> int:
    return hint(value.spec.nbytes)
