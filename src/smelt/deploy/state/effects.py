"""What a call changes outside, sorted: tensors and numbers become state, gradients are not kept, the rest is refused.

    self.cache = new            StateTensor: the register of self.cache gets an output of the graph
    self.calls += 1             StateNumber: the register of self.calls gets calls + 1
    scheduler.last_epoch: 10 → 11, which was relied on as 10: a number to capture again with as a symbol
    seen.append(x)              an error
"""

from collections.abc import Iterable
from typing import Any

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.capture.replay.described import (
    Computed,
    Container,
    Counted,
    Described,
    DescribedCall,
    Effect,
    FromMade,
    FromOutside,
    Given,
    Known,
    OutputOf,
)
from smelt.deploy.errors import ExportError


@dataclass(frozen=True, slots=True)
class StateTensor:
    """A tensor that is kept gets the graph's output number `output`."""

    given: Given
    output: int


@dataclass(frozen=True, slots=True)
class StateNumber:
    """A number that is kept gets another."""

    given: Given
    number: Described


@dataclass(frozen=True, slots=True)
class SortedEffects:
    """`relied`: numbers that change and were relied on as they are. `notes`: what is dropped, in words."""

    tensors: tuple[StateTensor, ...]
    numbers: tuple[StateNumber, ...]
    relied: tuple[Given, ...]
    notes: tuple[str, ...]


class _Sorting:
    def __init__(self, call: DescribedCall) -> None:
        self.inputs = {id(given.real) for given in call.inputs if isinstance(given, Given)}
        self.tensors: list[StateTensor] = []
        self.numbers: list[StateNumber] = []
        self.relied: list[Given] = []
        self.notes: dict[str, None] = {}

    def add(self, effect: Effect) -> None:
        before, after = effect.before, effect.after
        if effect.key == "grad" and isinstance(effect.owner.real, torch.Tensor):
            self._gradient(effect)
        elif isinstance(after, Known):
            self._constant(effect, after)
        elif isinstance(after, Computed | Counted) and before is not None and type(before.real) in (int, float):
            if effect.relied:
                self.relied.append(before)
            self.numbers.append(StateNumber(before, after))
        elif isinstance(after, OutputOf):
            self._tensor(effect, after)
        elif isinstance(after, FromOutside) and before is not None and after.given.real is before.real:
            return
        elif isinstance(after, FromMade | Container) and _is_made(after):
            self.notes[f"{_name(effect)} is made before the first call"] = None
        elif effect.was_read or before is None or after is None:
            raise _refused(effect)
        else:
            self.notes[f"{_name(effect)} is not kept: nothing reads it"] = None

    def _gradient(self, effect: Effect) -> None:
        """A gradient that the call reads is state; else it is what the call leaves behind."""
        before, after = effect.before, effect.after
        if before is None or id(before.real) not in self.inputs:
            self.notes["gradients are not kept"] = None
        elif isinstance(after, OutputOf):
            self._tensor(effect, after)
        else:
            raise _refused(effect)

    def _constant(self, effect: Effect, after: Known) -> None:
        before = effect.before
        if before is not None and type(before.real) is type(after.value) and before.real == after.value:
            return
        if not effect.was_read:
            self.notes[f"{_name(effect)} is not kept: nothing reads it"] = None
        elif before is not None and type(before.real) in (int, float) and type(after.value) in (int, float):
            self.relied.append(before)
        else:
            raise _refused(effect)

    def _tensor(self, effect: Effect, after: OutputOf) -> None:
        before = effect.before
        if before is not None and isinstance(before.real, torch.Tensor):
            self.tensors.append(StateTensor(before, after.number))
        elif effect.was_read or before is None:
            raise _refused(effect)
        else:
            self.notes[f"{_name(effect)} is not kept: nothing reads it"] = None


def _is_made(what: Described) -> bool:
    """Whether something is made of tensors that are made before the graph runs, as an optimizer's first state is."""
    if isinstance(what, Container):
        return all(map(_is_made, what.items))
    return isinstance(what, FromMade | Known)


def _name(effect: Effect) -> str:
    text = effect.owner.text.removesuffix(".__dict__")
    return f"{text}.{effect.key}" if isinstance(effect.key, str) else f"{text}[{effect.key}]"


def _refused(effect: Effect) -> ExportError:
    before: Any = "nothing" if effect.before is None else type(effect.before.real).__name__
    if issubclass(effect.kind, list) and effect.before is None:
        return ExportError(
            f"{effect.owner.text} grows with each call",
            hint="a Python list is no state of an artifact: return the value, or write it into a buffer",
        )
    return ExportError(
        f"{_name(effect)} changes with each call, from {before}, and is neither a tensor nor a number",
        hint="state of an artifact is tensors and numbers; if only the first call does this, make it before exporting",
    )


def sorted_effects(call: DescribedCall) -> SortedEffects:
    """The effects of a call by what becomes of them; `ExportError` for one that nothing can become of."""
    sorting = _Sorting(call)
    for effect in call.effects:
        sorting.add(effect)
    _refuse(call.deferred)
    return SortedEffects(tuple(sorting.tensors), tuple(sorting.numbers), tuple(sorting.relied), tuple(sorting.notes))


def _refuse(deferred: Iterable[str]) -> None:
    for what in deferred:
        raise ExportError(f"{what} is called after the graph, in Python", hint="move it out of the exported function")
