"""Numbers that follow from recorded calls alone: read once, they are known when the same path is recorded again.

    (torch.arange(8, device="lazy") < 9).all().item()    →   True, whatever else is recorded; nothing runs for it again

Models ask such questions of masks and positions before they compute anything.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.lazy.steps import Fresh, Operand, Ref, Step, View, at

MOST_CALLS = 64
"""A number that more calls lead to is computed."""


@dataclass(slots=True)
class Constant:
    """A number that depends on the numbers at `places` only. It was `result` when those were `numbers`."""

    places: tuple[int, ...]
    numbers: tuple[Any, ...] | None = None
    result: Any = None


def constant_at(step: Step, value: int) -> Constant | None:
    """The constant that a value is after a step; None if it depends on inputs, or on what is written in place."""
    if step.constants is None:
        step.constants = {}
    if value not in step.constants:
        step.constants[value] = _find(step.path(), value)
    constant: Constant | None = step.constants[value]
    return constant


def _find(path: Sequence[Step], value: int) -> Constant | None:
    makers = {number: step for step in path for number in range(step.first_value, step.values)}
    waiting, needed, calls, places = [value], {value}, set[int](), set[int]()
    while waiting:
        maker = makers[waiting.pop()]
        if maker.operator is None or _is_undefined(maker.operator):
            return None
        if maker.first_value in calls:
            continue
        calls.add(maker.first_value)
        if len(calls) > MOST_CALLS:
            return None
        for leaf in _leaves((*maker.args, *maker.kwargs.values())):
            if isinstance(leaf, Operand):
                places.add(leaf.place)
            elif leaf.value not in needed:
                needed.add(leaf.value)
                waiting.append(leaf.value)
    bases = _bases(path)
    memories = {bases[number] for number in needed}
    if any(bases[number] in memories for number in _written(path)):
        return None
    return Constant(tuple(sorted(places)))


def _is_undefined(operator: torch._ops.OpOverload) -> bool:
    """Whether the numbers of a result are whatever was in memory."""
    return "empty" in str(operator)


def _bases(path: Sequence[Step]) -> dict[int, int]:
    """For each value the first that has the same memory."""
    bases: dict[int, int] = {}
    for step in path:
        if step.operator is None:
            bases[step.first_value] = step.first_value
            continue
        value = step.first_value
        for result in step.results:
            if isinstance(result, Fresh):
                bases[value] = value
            elif isinstance(result, View):
                of = at(result.path, step.args, step.kwargs)
                bases[value] = bases[of.value]
            else:
                continue
            value += 1
    return bases


def _written(path: Sequence[Step]) -> Iterator[int]:
    """The values that steps write in place."""
    for step in path:
        if step.operator is None or not step.operator._schema.is_mutable:
            continue
        for place, argument in enumerate(step.operator._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            target = step.args[place] if place < len(step.args) else step.kwargs.get(argument.name)
            yield from (leaf.value for leaf in _leaves((target,)) if isinstance(leaf, Ref))


def _leaves(arguments: Sequence[Any]) -> Iterator[Ref | Operand]:
    for argument in arguments:
        if isinstance(argument, Ref | Operand):
            yield argument
        elif isinstance(argument, list | tuple):
            yield from _leaves(argument)
