"""Turns groups and calls into a `Program`: steps in order, buffers with places, operands as strided views.

    {add, relu} · call mm  →  launch k0_add_relu(x, b, relu) · call aten.mm.out(relu[…], w[…], out=mm)

A value gets a buffer if something outside its kernel reads it. The program's results are allocated fresh. Other
buffers are in the arena if they are on the arena's device. Library calls without an out-variant return their own
tensors.
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from smelt.base import events
from smelt.fuse.build_kernel import Assembled, assemble
from smelt.fuse.expressions import Unbuildable
from smelt.fuse.groups import Group, Groups
from smelt.fuse.inline_exprs import inline
from smelt.fuse.lowering.rules import ContractRule, PointRule, ReductionRule, ScanRule, ScatterRule, Slot
from smelt.fuse.lowering.values import Call, FusionKind, FusionValue, Lowered, Ref, references
from smelt.fuse.program_order import Ordered
from smelt.fuse.records import Made
from smelt.fuse.stage_split import order
from smelt.fuse.target_choice import TargetChoice
from smelt.ir.kernel import Buffer, Const, Contract, Gather, Kernel, Role
from smelt.ir.program import Launch, Library, Operand, Place, Program, ProgramBuffer, Step
from smelt.symbolic.symsize import is_symsize


class CannotBuild(Exception):
    """A group that no kernel can be written for, its values, and the reason; `others`: more such groups."""

    def __init__(self, group: Group, values: set[FusionValue], reason: str) -> None:
        super().__init__(reason)
        self.group, self.values, self.reason = group, values, reason
        self.others: list[CannotBuild] = []


def build_kernels(ordered: Ordered, name: str, targets: TargetChoice) -> Program:
    """The program of groups in order: a kernel for each, buffers for what leaves one."""
    return _Builder(ordered, targets).run(name)


class _Builder:
    def __init__(self, ordered: Ordered, targets: TargetChoice) -> None:
        self.lowered = ordered.grouped.lowered
        self.groups = ordered.grouped.groups
        self.order = ordered.order
        self.targets = targets
        self.buffers: dict[FusionValue, ProgramBuffer] = {}
        self.kernels: dict[Any, Kernel] = {}
        self.alike: dict[Any, tuple[Kernel, tuple[int, ...]]] = {}  # by `_likeness`: a kernel, and its values by number
        self.read_to_recompute = {
            source
            for group in self.groups.all()
            for value in group.recomputed
            for source in self.groups.sources(value)
            if source not in group.recomputed and self.groups.by_value.get(source) is not group
        }
        self.returned = {ref.value.memory for ref in references(self.lowered.returns)}
        self.arena_device = _most_used_device(self.lowered)

    def run(self, name: str) -> Program:
        for value in self.lowered.values:
            if value.kind is FusionKind.LEAF:
                constant = any(value.name == known for known, _ in self.lowered.constants)
                self._buffer(value, Place.CONSTANT if constant else Place.INPUT)
        steps = self._all_steps()
        inputs = tuple(buffer.name for buffer in self.buffers.values() if buffer.place is Place.INPUT)
        outputs = tuple(_operands(returned) for returned in self.lowered.returns)
        buffers = tuple(self.buffers.values())
        constants = tuple(self.lowered.constants)
        program = Program(name, buffers, inputs, constants, tuple(steps), outputs)
        return replace(program, has_backward=self.lowered.has_backward)

    def _all_steps(self) -> list[Step]:
        """The steps of all groups in order. Groups that fail are reported together, because grouping then starts again
        without them."""
        steps: list[Step] = []
        failed: list[CannotBuild] = []
        for group in self.order:
            try:
                steps += self._steps(group)
            except CannotBuild as error:
                failed.append(error)
        if failed:
            failed[0].others = failed[1:]
            raise failed[0]
        return steps

    def _buffer(self, value: FusionValue, place: Place) -> str:
        home = value.memory
        if home not in self.buffers:
            self.buffers[home] = ProgramBuffer(home.name, home.spec, place)
        return home.name

    def _place(self, value: FusionValue) -> Place:
        leaves = value.memory in self.returned or value.spec.device != self.arena_device
        return Place.FRESH if leaves else Place.ARENA

    def _steps(self, group: Group) -> list[Step]:
        if group.call is not None and group.call.kernel is not None:
            return [self._launched(group.call, group.call.kernel)]
        if group.call is not None:
            if events.wanted("fusion") and group.call.unless is None:
                text = f"{group.call.name} is a library call: it {group.call.why}"
                events.emit("fusion", text, Made(group.call.name, (group.call.name,), group.call.why))
            return [self._library(group.call)]
        stored = {value for value in group.members if self._leaves(group, value)}
        if not stored:  # whoever reads what it computes does so itself
            return []
        assembled = self._kernel(group, stored)
        for value in assembled.values:
            if value.is_computed:
                self._buffer(value, self._place(value))
        if events.wanted("fusion"):
            members = tuple(value.name for value in group.members)
            why = next((value.why for value in group.members if value.why), None)
            text = f"{assembled.kernel.name} computes {group}{'' if why is None else f': it {why}'}"
            events.emit("fusion", text, Made(assembled.kernel.name, members, why))
        return [Launch(assembled.kernel, tuple(value.memory.name for value in assembled.values))]

    def _leaves(self, group: Group, value: FusionValue) -> bool:
        """Whether something outside the kernel reads a member."""
        readers = [self.groups.by_value[user] for user in value.users if user in self.groups.by_value]
        if value.needed or value in self.read_to_recompute:
            return True
        return any(reader is not group and value not in reader.recomputed for reader in readers)

    def _kernel(self, group: Group, stored: set[FusionValue]) -> Assembled:
        """The kernel of a group: that of an equal group of another layer, or a new one."""
        like = _likeness(self.groups, group, stored)
        if like is None:
            return self._made(group, stored)
        key, values = like
        similar = self.alike.get(key)
        if similar is None:
            assembled, numbers = self._made(group, stored), {value: number for number, value in enumerate(values)}
            self.alike[key] = assembled.kernel, tuple(numbers[value] for value in assembled.values)
            return assembled
        kernel, places = similar
        return Assembled(kernel, tuple(values[place] for place in places))

    def _made(self, group: Group, stored: set[FusionValue]) -> Assembled:
        try:
            ordered = order(inline(self.groups, group, stored), group.limits)
        except Unbuildable as reason:
            inlined = {value for member in group.members for value in _inlined_in(self.groups, member)}
            raise CannotBuild(group, {*group.members, *inlined}, str(reason)) from reason
        assembled = assemble("", ordered)
        marked = _numbers_marked(assembled, group.device, group.limits.passes_numbers)
        known = self._known(marked, group.device, lambda: _summary(group))
        return Assembled(known, assembled.values)

    def _known(self, kernel: Kernel, device: torch.device, summary: Callable[[], str]) -> Kernel:
        """The kernel, named, for a device: the same one wherever it is launched."""
        target = self._target(device)
        key = (kernel.rows, kernel.cols, kernel.buffers, kernel.stages, _zeros(kernel), target)
        known = self.kernels.get(key)
        if known is None:
            known = self.kernels[key] = replace(kernel, name=f"k{len(self.kernels)}_{summary()}", target=target)
        return known

    def _launched(self, call: Call, kernel: Kernel) -> Launch:
        """A kernel used like a call: its inputs in order, then its results."""
        results = [value for value in call.results if value is not None]
        known = self._known(kernel, results[0].spec.device, lambda: kernel.name)
        names = [ref.value.memory.name for ref in call.args]
        names += [self._buffer(value, self._place(value)) for value in results]
        if events.wanted("fusion"):
            members = tuple(value.name for value in results)
            text = f"{known.name} computes {{{', '.join(members)}}}: it {call.why}"
            events.emit("fusion", text, Made(known.name, members, call.why))
        return Launch(known, tuple(names))

    def _target(self, device: torch.device) -> str:
        """The target of a device's kernels."""
        name = self.targets.name_of(device)
        assert name is not None, f"no target makes kernels for {device}"  # such graphs are not fused
        return name

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


def _likeness(groups: Groups, group: Group, stored: set[FusionValue]) -> tuple[Any, list[FusionValue]] | None:
    """A key that determines the kernel of a group, equal for groups that differ only in the names of values, and the
    values in a common order; None for a group that has no such key."""
    values = sorted(group.members, key=lambda value: value.id)
    numbers = {value: number for number, value in enumerate(values)}
    about: list[Any] = []
    for value in values:  # which grows
        level = group.levels.get(value)
        if level is None and value not in group.recomputed and value not in groups.inlined:
            about.append(value.spec)  # in memory
            continue
        rule = _told_apart(value.rule)
        if rule is None:
            return None
        reads = []
        for reading in value.readings:
            if reading.value not in numbers:
                numbers[reading.value] = len(values)
                values.append(reading.value)
            reads.append(
                (numbers[reading.value], reading.stride, reading.offset, reading.identity_read, reading.indirect)
            )
        about.append((value.kind, value.spec, rule, level, value in stored, value in group.recomputed, tuple(reads)))
    rows = group.points, group.cols, frozenset(group.axis_boundaries)
    key = (rows, len(group.members), id(group.limits), tuple(about))
    try:
        hash(key)
    except TypeError:
        return None
    return key, values


_TOLD_BY_TYPE = frozenset({Slot, int, bool, str, type(None), torch.dtype, torch.device})


def _told_apart(rule: Any) -> Any:
    """A rule as part of a key: numbers in it compare equal only if kernels treat them the same."""
    kind = type(rule)
    if kind in _TOLD_BY_TYPE:
        return (kind, rule)
    if isinstance(rule, PointRule):
        return (rule.lowering, _told_apart(rule.args), _told_apart(tuple(rule.kwargs.items())), rule.common)
    if isinstance(rule, tuple | list):
        return (type(rule), tuple([_told_apart(item) for item in rule]))
    if isinstance(rule, ReductionRule | ScanRule | ContractRule):
        return rule
    if isinstance(rule, ScatterRule):
        return None  # what is put may be a number
    return (kind, repr(rule) if kind in (float, complex) else rule)


def _most_used_device(lowered: Lowered) -> torch.device | None:
    """The device of the arena, which is one block of memory. Buffers on other devices are allocated one by one."""
    counted = Counter(value.spec.device for value in lowered.values if value.kind is not FusionKind.LEAF)
    return counted.most_common(1)[0][0] if counted else None


def _zeros(kernel: Kernel) -> tuple[str, ...]:
    """The zero constants with their signs: 0.0 and -0.0 are equal, but their kernels differ."""
    constants = [each.value for stage in kernel.stages for each in stage.body if isinstance(each, Const)]
    return tuple(str(value) for value in constants if type(value) is float and not value)


def _inlined_in(groups: Groups, value: FusionValue) -> set[FusionValue]:
    producers = {reading.value for reading in value.readings if reading.value in groups.inlined}
    return producers | {deeper for value in producers for deeper in _inlined_in(groups, value)}


def _operands(argument: Any) -> Any:
    if isinstance(argument, Ref):
        layout = argument.layout
        return Operand(argument.value.memory.name, layout.shape, layout.stride, layout.offset)
    if isinstance(argument, tuple | list):
        return type(argument)(_operands(item) for item in argument)
    return argument


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


def _numbers_marked(assembled: Assembled, device: torch.device, passes_numbers: bool) -> Kernel:
    """The kernel, with numbers on another device marked: only numbers on the host may be read this way
    (`ops.registry.why_not_lower`). With `passes_numbers`, host numbers in a chip's graph are marked too."""
    kernel = assembled.kernel
    apart = {place for place, value in enumerate(assembled.values) if value.spec.device != device}
    if passes_numbers:
        numbers = {place for place, value in enumerate(assembled.values) if value.spec.is_number}
        apart |= {place for place in numbers if _is_only_loaded(kernel, kernel.buffers[place])}
    if not apart:
        return kernel
    marked = tuple(replace(each, on_host=place in apart) for place, each in enumerate(kernel.buffers))
    assert all(each.role is Role.INPUT and each.size == 1 for each in marked if each.on_host)
    return replace(kernel, buffers=marked)


def _is_only_loaded(kernel: Kernel, buffer: Buffer) -> bool:
    """Whether a buffer is one element that the kernel only loads."""
    if buffer.role is not Role.INPUT or is_symsize(buffer.size) or buffer.size != 1:
        return False
    others = [i for stage in kernel.stages for i in stage.body if isinstance(i, Gather | Contract)]
    return not any(buffer.name in _buffers_read(each) for each in others)


def _buffers_read(instruction: Gather | Contract) -> set[str]:
    if isinstance(instruction, Gather):
        return {instruction.buffer}
    return {element.buffer for factor in instruction.factors for element in factor.elements}
