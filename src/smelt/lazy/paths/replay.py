"""Runs a recorded path by PyTorch on the real device, operator by operator, as eager would have.

It is what runs while a program is compiled, where none can be, and where a compiled program failed: the first operator
that raises is the one, and `Failed` has its step, and what the steps before it have computed.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from smelt.lazy.steps import Fresh, Operand, Ref, Step, View


class Failed(Exception):
    """An operator raised. `values` are those of the steps before."""

    def __init__(self, step: Step, error: Exception, values: dict[int, torch.Tensor]) -> None:
        super().__init__(str(error))
        self.step = step
        self.error = error
        self.values = values


def resolver(values: Mapping[int, Any], number: Callable[[int], Any]) -> Callable[[Any], Any]:
    """What puts values and numbers, by their places, in the place of references among a step's arguments."""

    def real(argument: Any) -> Any:
        if isinstance(argument, Ref):
            return values[argument.value]
        if isinstance(argument, Operand):
            return number(argument.place)
        if isinstance(argument, list):
            return [real(item) for item in argument]
        return argument

    return real


def replay(
    path: Sequence[Step], inputs: Sequence[torch.Tensor], numbers: Sequence[Any], keep: set[int]
) -> dict[int, Any]:
    """The values of a path, of which those in `keep` are sure to be there: others are let go after their last use."""
    values: dict[int, Any] = {}
    remaining = iter(inputs)
    last = _last_uses(path)

    real = resolver(values, numbers.__getitem__)

    for number, step in enumerate(path):
        if step.operator is None:
            values[step.first_value] = next(remaining)
            continue
        try:
            results = step.operator(*map(real, step.args), **{name: real(value) for name, value in step.kwargs.items()})
        except Exception as error:
            raise Failed(step, error, values) from error
        value = step.first_value
        for place, result in enumerate(step.results):
            if isinstance(result, Fresh | View):
                values[value] = results if step.form is None else results[place]
                value += 1
        del results
        for gone in last.get(number, ()):
            if gone not in keep:
                del values[gone]
    return values


def _last_uses(path: Sequence[Step]) -> dict[int, list[int]]:
    """Which values are used for the last time by which step."""
    last: dict[int, int] = {}

    def used(argument: Any, number: int) -> None:
        if isinstance(argument, Ref):
            last[argument.value] = number
        elif isinstance(argument, list):
            for item in argument:
                used(item, number)

    for number, step in enumerate(path):
        for value in range(step.first_value, step.values):
            last[value] = number
        for argument in (*step.args, *step.kwargs.values()):
            used(argument, number)
    last_uses: dict[int, list[int]] = {}
    for value, number in last.items():
        last_uses.setdefault(number, []).append(value)
    return last_uses
