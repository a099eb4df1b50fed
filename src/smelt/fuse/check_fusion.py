"""Invariants of the data between the steps of fusion: values read from a graph, groups, ordered groups.

Programs have rules of their own (`ir.check_program`). Memory that is not planned yet is checked as if each buffer had
its own.
"""

from typing import Any

from smelt.base.errors import SpecError
from smelt.fuse.lowering.values import FusionValue, Lowered
from smelt.fuse.program_order import Grouped, Ordered, Ranked, before
from smelt.ir.check_kernel import check_program
from smelt.ir.kernel import Kernel, members
from smelt.ir.program import Program


class FusionCheck:
    """Checks the result of each step of one fusion against the rules of its form. Skips kernels that a step left
    unchanged."""

    def __init__(self) -> None:
        self._known: dict[int, Kernel] = {}

    def __call__(self, value: Any, after: str) -> None:
        """Raise `SpecError` if the result of the step `after` breaks a rule."""
        if isinstance(value, Lowered):
            _check_values(value, after)
        elif isinstance(value, Grouped):
            _check_groups(value, after)
        elif isinstance(value, Ranked):
            if set(value.rank) != {group.id for group in value.grouped.groups.all()}:
                raise _fault(after, "not every group has a rank")
        elif isinstance(value, Ordered):
            _check_order(value, after)
        elif isinstance(value, Program) and not any(buffer.spec.varies for buffer in value.buffers):
            check_program(value if value.arena_bytes else value.unplanned(), after, known=self._known)
            self._known.update((id(kernel), kernel) for launched in value.kernels for kernel in members(launched))


def _fault(after: str, what: str) -> SpecError:
    return SpecError("SM021", f"after {after}: {what}")


def _check_values(lowered: Lowered, after: str) -> None:
    """Items are numbered in order, and each comes after what it reads."""
    for number, item in enumerate(lowered.items):
        if item.id != number:
            raise _fault(after, f"{item.name} is number {item.id} and stands at {number}")
        for source in {reading.value for reading in item.readings} if isinstance(item, FusionValue) else item.reads:
            if source.id >= item.id:
                raise _fault(after, f"{item.name} reads {source.name}, which comes after it")


def _check_groups(grouped: Grouped, after: str) -> None:
    """Every value that somebody reads is in one group, or computed wherever it is read."""
    groups = grouped.groups
    for value in grouped.lowered.values:
        if not value.is_computed or not (value.users or value.needed) or value in groups.inlined:
            continue
        group = groups.by_value.get(value)
        if group is None or group.members.count(value) != 1 or value not in group.levels:
            raise _fault(after, f"{value.name} is in no group, or is there twice")


def _check_order(ordered: Ordered, after: str) -> None:
    """Every group and call occurs once, after everything it needs."""
    groups = ordered.grouped.groups
    if sorted(group.id for group in ordered.order) != [group.id for group in groups.all()]:
        raise _fault(after, "a group is missing, or there twice")
    done: set[int] = set()
    for group in ordered.order:
        missing = [each for each in before(groups, group) if each.id not in done]
        if missing:
            raise _fault(after, f"{group} comes before {missing[0]}, which it needs")
        done.add(group.id)
