"""Where a recording is cut that no value ends: where the loop repeats that makes it.

    for batch in batches:
        results.append(model(batch))         nothing is needed before the end; each round becomes one graph

A long recording is looked through: if its second half repeats the same operators from the same lines, that is the body
of a loop. It runs, and from then on recordings end after one body, so that each is the same graph. A short body is
taken several times. What does not follow the body is looked through anew.
"""

from typing import Any

import torch

from smelt import _native
from smelt.lazy.recorder import Recorder
from smelt.lazy.steps import Ref, Step

FIRST = 1000
"""So many operators are recorded before somebody looks for a loop."""

SHORTEST = 250
"""A graph of a loop has at least so many operators, if that takes several rounds."""

aten = torch.ops.aten

# Steps that recording itself adds, where a view or memory of an earlier recording comes up.
_ADDED = frozenset({None, aten.as_strided.default, aten.empty_strided.default, aten.view.dtype})

Key = tuple[Any, Any]


class Loops:
    """Looks at the recording under way whenever it has as many operators as the recorder was told."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._recorder.most_operators = FIRST
        self._body: list[Key] | None = None

    def ended(self) -> None:
        """A recording has ended, for whatever reason."""
        if self._body is None:
            self._recorder.most_operators = FIRST

    def ends_here(self, now: _native.Recording) -> tuple[bool, bool]:
        """Whether the recording is to run, and whether it recurs; if not, the recorder is told when to look again."""
        path = now.step.path()
        keys = _keys(path)
        if self._body is not None:
            if keys == self._body:
                return True, True
            if keys == self._body[: len(keys)]:
                self._recorder.most_operators = now.count + len(self._body) - len(keys)
                return False, True
            self._body = None
            self._recorder.most_operators = max(FIRST, now.count + 1)
            return False, False
        period = _period(path)
        if period is None or (now.count < 4 * FIRST and _brings_much(path, period)):
            self._recorder.most_operators = now.count * 2
            return False, False
        self._body = keys[-period:] * -(-SHORTEST // period)
        self._recorder.most_operators = len(self._body)
        return True, False


def _keys(path: list[Step]) -> list[Key]:
    return [(step.operator, step.line) for step in path if step.operator not in _ADDED]


def _period(path: list[Step]) -> int | None:
    """After how many operators the second half of a path repeats."""
    steps = [step for step in path if step.operator not in _ADDED]
    numbers: dict[Key, int] = {}
    row = [numbers.setdefault((step.operator, step.line), len(numbers)) for step in steps]
    uses = _Uses(path, steps)
    length = len(row)
    for period in range(1, length // 2 + 1):
        if row[-1 - period] != row[-1]:
            continue
        first = length - max(period, length // 2)
        if row[first:] == row[first - period : length - period] and uses.repeat(range(first, length), period):
            return period
    return None


class _Uses:
    """Which tensors from outside the steps of a path use: a round uses the parameters that the round before it used,
    a layer has its own."""

    def __init__(self, path: list[Step], steps: list[Step]) -> None:
        outside = {step.first_value for step in path if step.operator is None}
        self._of = [[value for value in _refs(step.args) if value in outside] for step in steps]
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {}
        for place, values in enumerate(self._of):
            for value in values:
                self._first.setdefault(value, place)
                self._last[value] = place

    def repeat(self, places: range, period: int) -> bool:
        """Whether what several rounds use is used at the same places of them."""
        for place in places:
            for one, other in zip(self._of[place], self._of[place - period], strict=False):
                if one != other and (self._is_lasting(one, period) or self._is_lasting(other, period)):
                    return False
        return True

    def _is_lasting(self, value: int, period: int) -> bool:
        return self._last[value] - self._first[value] >= period


def _refs(argument: Any) -> list[int]:
    if isinstance(argument, Ref):
        return [argument.value]
    if isinstance(argument, tuple | list):
        return [value for item in argument for value in _refs(item)]
    return []


def _brings_much(path: list[Step], period: int) -> bool:
    """Whether each round brings many tensors from outside: layers bring their parameters, and are no loop of rounds."""
    inputs, operators = 0, 0
    for step in reversed(path):
        inputs += step.operator is None
        operators += step.operator not in _ADDED
        if operators == period:
            break
    return inputs * 8 > period
