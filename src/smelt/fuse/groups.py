"""Groups of values that share a kernel.

    relu(mm + bias) · sum over rows  →  one group {add, relu, sum}

A group's points are numbered 0 … `points`-1 in the memory order of its values. Where a value is reduced or broadcast
along rows, the numbers are split into rows of `cols` points. Each member has a level:

    FULL    one element per point            ROW   one element per row
    INLINE  computed wherever it is read     GRID  reduced over rows or scattered, in memory when the kernel has ended

Members fit together when each reads the others exactly at its own point (or row); `why_not_merge` gives the reason
where they do not. Merging must not close a cycle through a third group or a library call. Groups are kept in a
topological order. The cycle check searches only between the places of two groups, and a merge renumbers only the groups
between them, so that the layers of a deep model do not slow each other down.
"""

from collections.abc import Iterator
from dataclasses import field
from enum import Enum
from itertools import pairwise

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.device.fusion_limits import DEFAULT_LIMITS, Limits
from smelt.fuse.epilogues import waiting
from smelt.fuse.lowering.factors import finishes_product
from smelt.fuse.lowering.rules import ContractRule, ReductionRule, ScanRule, ScatterRule
from smelt.fuse.lowering.values import Call, FusionKind, FusionRead, FusionValue
from smelt.fuse.target_choice import TargetChoice
from smelt.ops.record import LONG
from smelt.symbolic.shapes import Size, product
from smelt.symbolic.symsize import hint, known_equal


class GroupLevel(Enum):
    FULL = "full"
    ROW = "row"
    INLINE = "inline"
    GRID = "grid"


@dataclass(eq=False, slots=True, repr=False)
class Group:
    """Values to be computed by one kernel, or a single library call (`call`), which nothing joins."""

    id: int
    points: Size = 0
    cols: Size | None = None  # None: no member asks for rows
    cols_fixed: bool = False  # whether `cols` may no longer change
    members: list[FusionValue] = field(default_factory=list)
    levels: dict[FusionValue, GroupLevel] = field(default_factory=dict)
    axis_boundaries: set[Size] = field(default_factory=set)  # extents at which points are split into axes
    call: Call | None = None
    limits: Limits = DEFAULT_LIMITS  # of kernels for the target of its device
    merged: list[int] = field(default_factory=list)  # the ids of all that was merged into it
    place: int = 0  # in an order in which each group comes after what it reads
    predecessors: "set[Group]" = field(default_factory=set)  # what it reads itself
    successors: "set[Group]" = field(default_factory=set)  # what reads it
    recomputed: set[FusionValue] = field(default_factory=set)  # members of others that it computes for itself too
    waiting: frozenset[FusionValue] = frozenset()  # of a product: what better does not join it
    reduced: list[FusionValue] = field(default_factory=list)  # members that are reductions
    directions: frozenset[bool] = frozenset()  # which ways its scans run: in reverse or not
    scatters: bool = False
    multiplies: bool = False  # a product is computed in it: the other members are what is done to its sums

    @property
    def folds(self) -> list[ReductionRule]:
        """Reductions over rows, which restrict how the points may be split into rows."""
        return [v.rule for v in self.reduced if self.levels[v] is GroupLevel.GRID]  # type: ignore[misc]

    @property
    def device(self) -> torch.device:
        """Where all its members are."""
        return self.members[0].spec.device

    @property
    def is_plain(self) -> bool:
        """Only element-wise members at full level: it can become anything."""
        plain = (GroupLevel.FULL, GroupLevel.INLINE)
        return self.cols is None and all(level in plain for level in self.levels.values())

    def __repr__(self) -> str:
        """Its members alone: groups name each other."""
        return "{" + ", ".join(value.name for value in self.members) + "}"


@dataclass(slots=True)
class Groups:
    """All groups of a program, and who belongs where."""

    targets: TargetChoice
    by_value: dict[FusionValue, Group] = field(default_factory=dict)
    by_id: dict[int, Group] = field(default_factory=dict)  # by the id of any member or call, kept through merges
    inlined: set[FusionValue] = field(default_factory=set)  # computed in every kernel that reads them

    def all(self) -> list[Group]:
        """Each group once, in the order of its first member."""
        return sorted(set(self.by_id.values()), key=lambda group: group.id)

    def sources(self, value: FusionValue) -> Iterator[FusionValue]:
        """The values in memory or in groups that `value` is computed from, looking through inlined ones."""
        for reading in value.readings:
            if reading.value in self.inlined:
                yield from self.sources(reading.value)
            else:
                yield reading.value

    def group_of(self, value: FusionValue) -> Group | None:
        """The group or library call that computes a value; None for inputs and constants."""
        if value.kind is FusionKind.LIBRARY:
            assert value.call is not None
            return self.by_id[value.call.id]
        return self.by_value.get(value)

    # Building.

    def add_call(self, call: Call) -> Group:
        group = Group(call.id, call=call, merged=[call.id])
        self.by_id[call.id] = group
        before = [self.group_of(value) for value in call.reads if value not in self.inlined]
        self._depend(group, [*before, *(self.by_id[earlier.id] for earlier in call.after)])
        return group

    def add_value(self, value: FusionValue) -> Group:
        """A group of its own for a value to be computed."""
        limits = self.targets.limits_of(value.spec.device)
        group = Group(value.id, members=[value], limits=limits, merged=[value.id])
        group.scatters, group.multiplies = value.kind is FusionKind.SCATTER, value.kind is FusionKind.PRODUCT
        if isinstance(value.rule, ReductionRule):
            group.reduced = [value]
            _place_fold(group, value, value.rule, limits)
        elif isinstance(value.rule, ScanRule):
            group.directions = frozenset({value.rule.call.backwards})
            group.points, group.cols, group.cols_fixed = value.numel, value.rule.cols, True
            group.levels[value] = GroupLevel.FULL
        elif isinstance(value.rule, ScatterRule):
            group.points = product(value.rule.shape)
            group.levels[value] = GroupLevel.GRID
            group.cols = value.rule.cols if value.rule.cols != 1 else None
        elif isinstance(value.rule, ContractRule):
            group.points, group.cols_fixed = value.numel, True
            group.cols = value.rule.cols(value.spec.shape, value.spec.stride)
            group.levels[value] = GroupLevel.FULL
            group.waiting = waiting(value)
        else:
            group.points = value.numel
            group.levels[value] = GroupLevel.FULL
        group.axis_boundaries = needed_boundaries(value)
        self.by_id[value.id] = self.by_value[value] = group
        before = [self.group_of(source) for source in self.sources(value)]
        before += [self.by_id.get(earlier.id) for earlier in value.after]  # None: nobody reads it
        self._depend(group, before)
        return group

    def _depend(self, group: Group, before: "list[Group | None]") -> None:
        group.place = len(self.by_id)  # the last: nothing reads it yet
        for source in before:
            if source is not None and source is not group:
                source.successors.add(group)
                group.predecessors.add(source)

    # Merging.

    def closes_cycle(self, a: Group, b: Group) -> bool:
        """Whether something outside depends on one of them while the other depends on it."""
        first, last = (a, b) if a.place < b.place else (b, a)
        below, above = {first, last}, {first, last}
        down = [group for group in first.successors if group is not last and group.place < last.place]
        up = [group for group in last.predecessors if group is not first and group.place > first.place]
        while down and up:  # whichever side ends first decides
            group = down.pop()
            if group in above:
                return True
            if group not in below:
                below.add(group)
                down += [after for after in group.successors if after.place < last.place]
                if last in group.successors:
                    return True
            group = up.pop()
            if group in below:
                return True
            if group not in above:
                above.add(group)
                up += [before for before in group.predecessors if before.place > first.place]
                if first in group.predecessors:
                    return True
        return False

    def absorb(self, keep: Group, gone: Group) -> None:
        """Merge `gone` into `keep`. The caller sets levels, points and axis boundaries."""
        _make_room(keep, gone)
        for value in gone.members:
            self.by_value[value] = keep
        for number in gone.merged:
            self.by_id[number] = keep
        for before in gone.predecessors:
            before.successors.discard(gone)
            before.successors.add(keep)
        for after in gone.successors:
            after.predecessors.discard(gone)
            after.predecessors.add(keep)
        keep.predecessors = (keep.predecessors | gone.predecessors) - {keep, gone}
        keep.successors = (keep.successors | gone.successors) - {keep, gone}
        keep.members.extend(gone.members)
        keep.reduced.extend(gone.reduced)
        keep.directions |= gone.directions
        keep.scatters |= gone.scatters
        keep.multiplies |= gone.multiplies
        keep.merged.extend(gone.merged)
        keep.id = min(keep.id, gone.id)


def _make_room(a: Group, b: Group) -> None:
    """Give two groups the same place, if neither depends on the other through a third: what the later one needs comes
    before it, what needs the earlier one comes behind it. Only groups between the two move."""
    first, last = (a, b) if a.place < b.place else (b, a)
    below, above = {first, last}, {first, last}
    pending = [first]
    while pending:
        for after in pending.pop().successors:
            if after.place < last.place and after not in below:
                below.add(after)
                pending.append(after)
    pending = [last]
    while pending:
        for before in pending.pop().predecessors:
            if before.place > first.place and before not in above:
                above.add(before)
                pending.append(before)
    between = {first, last}
    places = sorted(group.place for group in below | above)
    order = [*sorted(above - between, key=_place), first, *sorted(below - between, key=_place)]
    for group, place in zip(order, places, strict=False):  # one place is left over
        group.place = place
    last.place = first.place


def _place(group: Group) -> int:
    return group.place


def _place_fold(group: Group, value: FusionValue, rule: ReductionRule, limits: Limits) -> None:
    """A reduction alone: over the cols of rows where its dims allow, else over rows with the inner dims as cols."""
    group.points = 1
    for size in rule.shape:
        group.points *= size
    everything = known_equal(rule.count, group.points)
    if rule.is_rows and not (everything and group.points > limits.whole_elements):
        group.levels[value] = GroupLevel.ROW
        group.cols, group.cols_fixed = rule.inner, True
        return
    group.levels[value] = GroupLevel.GRID
    if not everything:
        group.cols = rule.inner if rule.inner > 1 else rule.kept_inner


def needed_boundaries(value: FusionValue) -> set[Size]:
    """Extents at which the points of `value` must be split into axes so that its reads can be addressed."""
    shape, stride = value.loop
    axis_boundaries: set[Size] = set()
    strided = any(not reading.identity_read and any(reading.stride) for reading in value.readings)
    if strided or isinstance(value.rule, ReductionRule | ScanRule | ScatterRule | ContractRule):
        for size, step in zip(shape, stride, strict=True):
            if size != 1:
                axis_boundaries.update((step, step * size))
    return axis_boundaries


def reads_row(value: FusionValue, reading: FusionRead, cols: Size) -> bool:
    """Whether `value` reads at each of its points the element with the number of the point's row."""
    if reading.offset != 0:
        return False
    shape, stride = value.loop
    for size, step, have in zip(shape, stride, reading.stride, strict=True):
        if size == 1:
            continue
        if step * size <= cols:
            if have != 0:
                return False
        elif not known_equal(step % cols, 0) or not known_equal(have * cols, step):
            return False
    return True


def forms_chain(axis_boundaries: set[Size]) -> bool:
    """Whether each boundary divides the next, so that there are axes between them."""
    ordered = sorted(axis_boundaries, key=hint)
    return all(known_equal(large % small, 0) for small, large in pairwise(ordered))


def fold_fits(rule: ReductionRule, cols: Size) -> bool:
    """Whether a reduction over rows works on rows of `cols`: each row is reduced to a number, or no col is."""
    return known_equal(rule.inner % cols, 0) or (rule.inner == 1 and known_equal(rule.kept_inner % cols, 0))


@dataclass(frozen=True, slots=True)
class Merge:
    """How two groups would become one: rows of `cols`, and the group whose members have one element per row."""

    cols: Size | None
    cols_fixed: bool
    row_broadcast: Group | None = None
    demoted: FusionValue | None = None  # a reduction that becomes one over rows instead of giving row values


def why_not_merge(groups: Groups, a: Group, b: Group) -> str | Merge:
    """How groups `a` and `b` can share a kernel, or the reason why they cannot."""
    if a.call is not None or b.call is not None:
        call = a.call or b.call
        assert call is not None
        what = "library call" if call.kernel is None else "kernel of its own"
        return f"{call.name} is a {what}: it {call.why}"
    if a.device != b.device:
        return f"they are on different devices, {a.device} and {b.device}"
    if len(a.members) + len(b.members) > a.limits.values:
        return f"the kernel would have more than {a.limits.values} operations"
    if len(a.directions | b.directions) > 1:
        return "the one runs forwards along a dimension, the other in reverse"
    if (a.directions and (b.folds or b.scatters)) or (b.directions and (a.folds or a.scatters)):
        return "the one visits rows in order, the other folds or scatters"
    if a.scatters and b.scatters:
        return "each of them writes at places that depend on data"
    reason = _why_not_after_product(a, b) or why_alone(a) or why_alone(b)
    if reason is not None:
        return reason
    plan = _common_rows(a, b)
    if isinstance(plan, str):
        return plan
    if plan.row_broadcast is not None and (a.multiplies or b.multiplies):
        return f"{plan.row_broadcast} has one element for each row of a product"
    reason = _why_not_split(a, b, plan) or _why_not_aligned(groups, a, b, plan)
    if reason is not None:
        return reason
    if groups.closes_cycle(a, b):
        return "an operation between them reads one and is read by the other"
    return plan


def why_alone(group: Group) -> str | None:
    """Why nothing is computed beside what a group computes: sums over rows would leave a thread few points."""
    long = [member for member in group.members if member.cost >= LONG and member.kind is FusionKind.POINTWISE]
    return f"{long[0].name} is long" if long and group.limits.recomputes else None


def _why_not_after_product(a: Group, b: Group) -> str | None:
    """Only pointwise operations on its sums share the kernel of a product."""
    products = [group for group in (a, b) if group.multiplies]
    if not products:
        return None
    if len(products) == 2:
        return "each of them multiplies"
    other = b if products[0] is a else a
    if not other.is_plain:
        return f"{products[0]} multiplies, and {other} is more than element-wise"
    if any(value.by_library for value in products[0].members):
        beside = [value for value in other.members if hint(value.numel) == hint(products[0].points)]
        if not all(map(finishes_product, beside)):
            return f"a library may compute {products[0]}, which does no more than add a bias and round"
    if not products[0].waiting.isdisjoint(other.members):
        return f"{products[0]} would store more of what others read"
    return None


def _common_rows(a: Group, b: Group) -> str | Merge:
    """Rows that suit both groups."""
    if known_equal(a.points, b.points):
        return _common_cols(a, b)
    small, large = (a, b) if hint(a.points) < hint(b.points) else (b, a)
    if not small.is_plain:
        return f"{small} has {small.points} points and {large} has {large.points}, and both are fixed"
    if large.cols is not None and known_equal(small.points * large.cols, large.points):
        return Merge(large.cols, True, row_broadcast=small)
    if large.is_plain and known_equal(large.points % small.points, 0) and small.points > 1:
        return Merge(large.points // small.points, True, row_broadcast=small)
    return f"{small} has {small.points} points, which are not the rows of {large}"


def _common_cols(a: Group, b: Group) -> str | Merge:
    folds = a.folds + b.folds
    if a.cols_fixed and b.cols_fixed:
        assert a.cols is not None and b.cols is not None
        if known_equal(a.cols, b.cols):
            return Merge(a.cols, True)
        return _demoted(a, b) or f"rows of {a.cols} and rows of {b.cols} differ"
    if a.cols_fixed or b.cols_fixed:
        cols = a.cols if a.cols_fixed else b.cols
        assert cols is not None
        fits = all(fold_fits(rule, cols) for rule in folds)
        return Merge(cols, True) if fits else f"a fold over rows does not fit rows of {cols}"
    for candidate in (a.cols, b.cols):
        if candidate is not None and all(fold_fits(rule, candidate) for rule in folds):
            return Merge(candidate, False)
    if a.cols is None and b.cols is None:
        return Merge(None, False)
    return "their folds over rows ask for different rows"


def _demoted(a: Group, b: Group) -> Merge | None:
    """A lone reduction over longer rows can reduce the shorter rows of the other first, then those over rows."""
    for alone, other in ((a, b), (b, a)):
        rule = alone.members[0].rule
        lone_fold = len(alone.members) == 1 and isinstance(rule, ReductionRule)
        if lone_fold and other.cols is not None and fold_fits(rule, other.cols):  # type: ignore[arg-type]
            return Merge(other.cols, True, demoted=alone.members[0])
    return None


def _why_not_split(a: Group, b: Group, plan: Merge) -> str | None:
    axis_boundaries = merged_boundaries(a, b, plan)
    if forms_chain(axis_boundaries):
        return None
    return f"their shapes split the points at {sorted(axis_boundaries, key=hint)}, which do not nest"


def merged_boundaries(a: Group, b: Group, plan: Merge) -> set[Size]:
    """The boundaries of both, in the numbering of the merged group."""
    axis_boundaries: set[Size] = {plan.cols} if plan.cols is not None else set()
    for group in (a, b):
        scale = plan.cols if group is plan.row_broadcast and plan.cols is not None else 1
        axis_boundaries.update(boundary * scale for boundary in group.axis_boundaries)
    return axis_boundaries


def _why_not_aligned(groups: Groups, a: Group, b: Group, plan: Merge) -> str | None:
    """Every reading between the two must be of the reader's own point or row."""
    small, other = (a, b) if len(a.members) <= len(b.members) else (b, a)

    def level(value: FusionValue) -> GroupLevel:
        if value is plan.demoted:
            return GroupLevel.GRID
        group = groups.by_value[value]
        own = group.levels[value]
        return GroupLevel.ROW if group is plan.row_broadcast and own is GroupLevel.FULL else own

    for member in small.members:
        for reading in member.readings:
            if groups.by_value.get(reading.value) is other:
                reason = _misread(member, level(member), reading, level(reading.value), plan.cols)
                if reason:
                    return reason
        for user in member.users:
            if groups.by_value.get(user) is not other:
                continue
            for reading in user.readings:
                if reading.value is member:
                    reason = _misread(user, level(user), reading, level(member), plan.cols)
                    if reason:
                        return reason
    return None


def _misread(
    reader: FusionValue, level: GroupLevel, reading: FusionRead, source: GroupLevel, cols: Size | None
) -> str | None:
    name = reading.value.name
    if reading.indirect and reader.kind is FusionKind.PRODUCT:
        return f"{reader.name} multiplies {name}, of which each point reads other elements"
    if reading.indirect:
        return f"{reader.name} reads {name} at places that depend on data"
    if source is GroupLevel.GRID:
        return f"{reader.name} reads {name}, which is complete only after all rows"
    if source is GroupLevel.INLINE:
        return None
    at_row = level is GroupLevel.ROW and not isinstance(reader.rule, ReductionRule)
    if level is GroupLevel.INLINE:
        return f"{reader.name} is computed wherever it is read, {name} at one place"
    if source is GroupLevel.ROW and not at_row:
        aligned = cols is not None and reads_row(reader, reading, cols)
        return None if aligned else f"{reader.name} does not read {name} row by row"
    if source is GroupLevel.FULL and at_row:
        return f"{reader.name} has one element per row and reads {name} at points"
    return None if reading.identity_read else f"{reader.name} reads {name} at other points than its own"


def merge(groups: Groups, keep: Group, gone: Group, plan: Merge) -> None:
    """Carry out a merge that `why_not_merge` allowed."""
    axis_boundaries = merged_boundaries(keep, gone, plan)
    for value, level in gone.levels.items():
        keep.levels[value] = level
    if plan.row_broadcast is not None:
        for value in plan.row_broadcast.members:
            keep.levels[value] = GroupLevel.ROW if keep.levels[value] is GroupLevel.FULL else keep.levels[value]
    if plan.demoted is not None:
        keep.levels[plan.demoted] = GroupLevel.GRID
    keep.points = max(keep.points, gone.points)
    keep.cols, keep.cols_fixed, keep.axis_boundaries = plan.cols, plan.cols_fixed, axis_boundaries
    keep.waiting |= gone.waiting
    groups.absorb(keep, gone)

