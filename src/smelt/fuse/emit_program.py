"""Groups and calls become a `Program`: steps in order, buffers with places, operands as strided views.

    {add, relu} · call mm  →  launch k0_add_relu(x, b, relu) · call aten.mm.out(relu[…], w[…], out=mm)

A value gets a buffer if something outside its kernel reads it. What the program returns is allocated fresh, the rest
lies in the arena; results of library calls without an out-variant are the library's own tensors.
"""

import heapq
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from smelt.base import events
from smelt.base.fuel import Fuel
from smelt.base.options import Options
from smelt.device.fusion_limits import DEFAULT_LIMITS, Limits
from smelt.fuse.buffer_reuse import reuse_in_place, write_in_place
from smelt.fuse.build_kernel import Assembled, assemble
from smelt.fuse.expressions import Unbuildable
from smelt.fuse.fusion_graph import Call, FusionKind, FusionValue, Lowered, Ref, lower, references
from smelt.fuse.greedy_fusion import form_groups
from smelt.fuse.groups import Group, Groups
from smelt.fuse.hoist_updates import hoist_updates
from smelt.fuse.inline_exprs import inline
from smelt.fuse.memory_plan import plan
from smelt.fuse.records import Made
from smelt.fuse.rematerialize import rematerialize
from smelt.fuse.stage_split import order
from smelt.ir.graph import Traced
from smelt.ir.kernel import Const, Kernel
from smelt.ir.program import Launch, Library, Operand, Place, Program, ProgramBuffer, Step
from smelt.symbolic.shapes import Size


def build_program(
    traced: Traced, name: str, options: Options, limits: Limits = DEFAULT_LIMITS, fuel: Fuel | None = None
) -> Program:
    """Fuse a pure graph into kernels and library calls, and plan their memory. `fuel` is shared with earlier passes."""
    fuel = fuel or Fuel(options.fuel)
    lowered = lower(traced)
    has_backward = rematerialize(lowered, traced.graph, fuel)
    given = fuel.left
    alone: frozenset[int] = frozenset()
    while True:
        fuel.left = given
        groups = form_groups(lowered, limits, fuel, alone)
        builder = _Builder(lowered, groups, limits, traced.writes)
        try:
            program = builder.run(name)
        except _Failed as failed:
            # A group that cannot be expressed is taken apart for good; the rest is grouped anew.
            events.emit("fusion", f"{failed.group} is taken apart: {failed.reason}")
            parts = {value.id for value in failed.values}
            if parts <= alone:
                raise AssertionError(f"{failed.group} cannot be computed even by itself: {failed.reason}") from failed
            alone |= parts
            continue
        program = reuse_in_place(write_in_place(program, traced.writes))
        program = replace(program, has_backward=has_backward)
        # Where buffers lie depends on how long they are.
        return program if any(buffer.spec.varies for buffer in program.buffers) else plan(program)


class _Failed(Exception):
    def __init__(self, group: Group, values: set[FusionValue], reason: str) -> None:
        super().__init__(reason)
        self.group, self.values, self.reason = group, values, reason


class _Builder:
    def __init__(
        self, lowered: Lowered, groups: Groups, limits: Limits, writes: Sequence[tuple[int, int]] = ()
    ) -> None:
        self.lowered = lowered
        self.groups = groups
        self.limits = limits
        self.writes = writes
        self.buffers: dict[FusionValue, ProgramBuffer] = {}
        self.kernels: dict[Any, Kernel] = {}
        self.returned = {ref.value.memory for ref in references(lowered.returns)}

    def run(self, name: str) -> Program:
        for value in self.lowered.values:
            if value.kind is FusionKind.LEAF:
                constant = any(value.name == known for known, _ in self.lowered.constants)
                self._buffer(value, Place.CONSTANT if constant else Place.INPUT)
        steps = [step for group in _in_order(self.groups, self.lowered, self.writes) for step in self._steps(group)]
        inputs = tuple(buffer.name for buffer in self.buffers.values() if buffer.place is Place.INPUT)
        outputs = tuple(_operands(returned) for returned in self.lowered.returns)
        buffers = tuple(self.buffers.values())
        return Program(name, buffers, inputs, tuple(self.lowered.constants), tuple(steps), outputs)

    def _buffer(self, value: FusionValue, place: Place) -> str:
        home = value.memory
        if home not in self.buffers:
            self.buffers[home] = ProgramBuffer(home.name, home.spec, place)
        return home.name

    def _place(self, value: FusionValue) -> Place:
        return Place.FRESH if value.memory in self.returned else Place.ARENA

    def _steps(self, group: Group) -> list[Step]:
        if group.call is not None:
            if events.wanted("fusion") and group.call.unless is None:
                text = f"{group.call.name} is a library call: it {group.call.why}"
                events.emit("fusion", text, Made(group.call.name, (group.call.name,), group.call.why))
            return [self._library(group.call)]
        stored = {value for value in group.members if self._leaves(group, value)}
        assembled = self._kernel(group, stored)
        for value in assembled.values:
            if value.is_computed:
                self._buffer(value, self._place(value))
        if events.wanted("fusion"):
            members = tuple(value.name for value in group.members)
            events.emit("fusion", f"{assembled.kernel.name} computes {group}", Made(assembled.kernel.name, members))
        return [Launch(assembled.kernel, tuple(value.memory.name for value in assembled.values))]

    def _leaves(self, group: Group, value: FusionValue) -> bool:
        """Whether something outside the kernel reads a member."""
        return value.needed or any(
            user not in self.groups.inlined and self.groups.by_value[user] is not group for user in value.users
            if user in self.groups.by_value or user in self.groups.inlined
        )

    def _kernel(self, group: Group, stored: set[FusionValue]) -> Assembled:
        try:
            ordered = order(inline(self.groups, group, stored), self.limits)
        except Unbuildable as reason:
            inlined = {value for member in group.members for value in _inlined_in(self.groups, member)}
            raise _Failed(group, {*group.members, *inlined}, str(reason)) from reason
        assembled = assemble("", ordered)
        kernel = assembled.kernel
        key = (kernel.rows, kernel.cols, kernel.buffers, kernel.stages, _zeros(kernel))
        known = self.kernels.get(key)
        if known is None:
            name = f"k{len(self.kernels)}_{_summary(group)}"
            known = self.kernels[key] = Kernel(name, kernel.rows, kernel.cols, kernel.buffers, kernel.stages)
        return Assembled(known, assembled.values)

    def _library(self, call: Call) -> Library:
        args = tuple(_operands(argument) for argument in call.args)
        kwargs = tuple((name, _operands(argument)) for name, argument in call.kwargs.items())
        lowering = call.lowering
        into = lowering.out is not None and len(call.results) == len(lowering.into) and None not in call.results
        outs = tuple(
            None if value is None else self._buffer(value, self._place(value) if into else Place.LIBRARY)
            for value in call.results
        )
        if into:
            assert lowering.out is not None
            return Library(lowering.out, args, kwargs, outs, lowering.into)
        return Library(call.op, args, kwargs, outs, unless=call.unless.name if call.unless is not None else None)


def _zeros(kernel: Kernel) -> tuple[str, ...]:
    """The constants that are zero, with their signs: 0.0 and -0.0 are equal, and kernels with them are not."""
    constants = [each.value for stage in kernel.stages for each in stage.body if isinstance(each, Const)]
    return tuple(str(value) for value in constants if type(value) is float and not value)


def _inlined_in(groups: Groups, value: FusionValue) -> set[FusionValue]:
    found = {reading.value for reading in value.readings if reading.value in groups.inlined}
    return found | {deeper for value in found for deeper in _inlined_in(groups, value)}


def _operands(argument: Any) -> Any:
    if isinstance(argument, Ref):
        layout = argument.layout
        return Operand(argument.value.memory.name, layout.shape, layout.stride, layout.offset)
    if isinstance(argument, tuple | list):
        return type(argument)(_operands(item) for item in argument)
    return argument


def _in_order(groups: Groups, lowered: Lowered, writes: Sequence[tuple[int, int]]) -> list[Group]:
    """Groups and calls so that each comes after what it needs, otherwise as the graph has them, but for updates."""
    everything = groups.all()
    after: dict[int, list[Group]] = {}
    missing: dict[int, int] = {}
    for group in everything:
        needs = {before.id for before in _before(groups, group)}
        missing[group.id] = len(needs)
        for number in needs:
            after.setdefault(number, []).append(group)
    rank = {group.id: _rank(group) for group in everything}
    hoist_updates(rank, groups, partial(_before, groups), lowered, writes)
    ready = [(rank[group.id], group.id) for group in everything if missing[group.id] == 0]
    heapq.heapify(ready)
    found: list[Group] = []
    while ready:
        _, number = heapq.heappop(ready)
        group = groups.by_id[number]
        found.append(group)
        for later in after.get(group.id, ()):
            missing[later.id] -= 1
            if missing[later.id] == 0:
                heapq.heappush(ready, (rank[later.id], later.id))
    if len(found) != len(everything):
        raise AssertionError("groups depend on each other in a circle")
    return found


def _before(groups: Groups, group: Group) -> set[Group]:
    if group.call is not None:
        found = {groups.group_of(ref.value) for ref in references((group.call.args, group.call.kwargs))}
        if group.call.after is not None:
            found.add(groups.by_id[group.call.after.id])
        if group.call.unless is not None:
            found.add(groups.group_of(group.call.unless))
    else:
        found = {groups.group_of(source) for value in group.members for source in groups.sources(value)}
        found |= {groups.by_id[call.id] for value in group.members for call in value.after}
    return {before for before in found if before is not None and before is not group}


def _rank(group: Group) -> Size:
    """Where a group stands among those that are ready: by its last member, so that values are made when needed."""
    return group.id if group.call is not None else max(value.id for value in group.members)


def _summary(group: Group) -> str:
    """A few of the operations, for the kernel's name."""
    names: list[str] = []
    for value in sorted(group.members, key=lambda value: value.id):
        stem = re.sub(r"_\d+(?=_|$)", "", value.name).strip("_")
        if stem and stem not in names:
            names.append(stem)
    if len(names) > 4:
        names = [*names[:2], *names[-2:]]
    return "_".join(names)


