"""What a call changes outside, sorted: tensors and numbers become state, gradients are not kept, the rest is refused.

    self.cache = new            StateTensor: the register of self.cache gets an output of the graph
    self.calls += 1             StateNumber: the register of self.calls gets calls + 1
    group["betas"] = (m, b)     StateNumber: the register of group["betas"][0] gets m
    seen.append(x)              an error
"""

from collections.abc import Iterator, Set
from typing import Any

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.capture.model.source import key_text
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
from smelt.deploy.numbers import number_type
from smelt.deploy.state.homes import Home, Homes
from smelt.symbolic.expressions import SMALLEST


@dataclass(frozen=True, slots=True)
class StateTensor:
    """A tensor that is kept gets the graph's output number `output`."""

    origin: Given
    output: int


@dataclass(frozen=True, slots=True)
class StateNumber:
    """A number that is kept gets another."""

    origin: Given
    number: Described


@dataclass(frozen=True, slots=True)
class Reliance:
    """What one call reads: homes of all values, and of numbers that it relies on, their values. A number that is relied
    on in a way that cannot be checked has None."""

    read: frozenset[Home]
    numbers: dict[Home, tuple[Given, int | float | None]]

    @classmethod
    def of(cls, call: DescribedCall, homes: Homes) -> "Reliance":
        read, numbers = set[Home](), dict[Home, tuple[Given, Any]]()
        for text, path, check in call.checks:
            read |= {homes.of(path[:length]) for length in range(1, len(path) + 1)}
            known = check[0] == "type" or (check[0] == "predicate" and check[1] in call.shape_env.decisions)
            if not known:
                is_number = check[0] == "equals" and type(check[1]) in (int, float)
                numbers[homes.of(path)] = Given(path, text, None), check[1] if is_number else None
        read |= {homes.of(each.path) for each in (*call.inputs, *call.origins.values()) if isinstance(each, Given)}
        return cls(frozenset(read), numbers)


@dataclass(frozen=True, slots=True)
class SortedEffects:
    """`written`: homes of numbers that the call changes. `dropped`: homes of what else it changes and does not read, by
    their names. `fixed`: numbers of state that it is for one value of. `made`: homes of tensors that are made before
    the first call, by their numbers. `notes`: what is dropped, in words."""

    tensors: tuple[StateTensor, ...]
    numbers: tuple[StateNumber, ...]
    written: frozenset[Home]
    dropped: dict[Home, str]
    fixed: tuple[tuple[Given, int], ...]
    new_homes: dict[int, Home]
    notes: tuple[str, ...]


class _Sorting:
    def __init__(self, call: DescribedCall, homes: Homes, reliance: Reliance, state: Set[Home]) -> None:
        self.inputs = {id(origin.real) for origin in call.inputs if isinstance(origin, Given)}
        self.tensors: list[StateTensor] = []
        self.numbers: list[StateNumber] = []
        self.written: set[Home] = set()
        self.dropped: dict[Home, str] = {}
        self.new_homes: dict[int, Home] = {}
        self.notes: dict[str, None] = {}
        self._homes, self._reliance, self._state = homes, reliance, state

    def add(self, effect: Effect) -> None:
        before, after = effect.before, effect.after
        numbers = None if before is None or after is None else list(_numbers_in(before, after))
        if effect.key == "grad" and isinstance(effect.owner.real, torch.Tensor):
            self._gradient(effect)
        elif numbers is not None and all(number is not None for _, number in numbers):
            for origin, number in numbers:
                self._number(origin, number)
        elif isinstance(after, Known):
            self._constant(effect, after)
        elif isinstance(after, OutputOf):
            self._tensor(effect, after)
        elif isinstance(after, FromOutside) and before is not None and after.value.real is before.real:
            return
        elif isinstance(after, FromMade | Container) and _is_made(after):
            self.new_homes |= _made_in(after, self._homes.inside(effect.owner.path, effect.key))
            self.notes[f"{_name(effect)} is made before the first call"] = None
        elif effect.was_read or before is None or after is None:
            raise _refused(effect)
        else:
            self._drop(effect)

    def _number(self, origin: Given, number: Any) -> None:
        home = self._homes.of(origin.path)
        relied = self._reliance.numbers.get(home)
        if isinstance(number, Known) and relied is not None and _is_same(relied[1], number.value):
            return
        self.written.add(home)
        if home in self._state:
            self.numbers.append(StateNumber(origin, number))
        else:
            self.notes[f"{origin.text} is not kept: nothing reads it"] = None

    def _drop(self, effect: Effect) -> None:
        self.dropped[self._homes.inside(effect.owner.path, effect.key)] = _name(effect)
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
        if effect.was_read:
            raise _refused(effect)
        self._drop(effect)

    def _tensor(self, effect: Effect, after: OutputOf) -> None:
        before = effect.before
        if before is not None and isinstance(before.real, torch.Tensor):
            self.tensors.append(StateTensor(before, after.number))
        elif effect.was_read or before is None:
            raise _refused(effect)
        else:
            self._drop(effect)


def _numbers_in(before: Given, after: Described) -> Iterator[tuple[Given, Described | None]]:
    """A number, or each of a tuple of numbers, and what it becomes; None for what is no number of the same type."""
    if type(before.real) is tuple and isinstance(after, Container) and after.kind is tuple:
        if len(before.real) != len(after.items):
            yield before, None
            return
        for place, (real, item) in enumerate(zip(before.real, after.items, strict=True)):
            inner = Given((*before.path, ("item", place)), f"{before.text}[{place}]", real)
            if not isinstance(item, FromOutside) or item.value.identity != inner.identity:
                yield from _numbers_in(inner, item)
        return
    kind = type(before.real)
    is_number = kind in (int, float) and isinstance(after, Computed | Counted | Known | FromOutside)
    yield before, after if is_number and number_type(after) is kind else None


def _is_same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and (one == other or one != one != other)


def _is_made(what: Described) -> bool:
    """Whether something is made of tensors that are made before the graph runs, as an optimizer's first state is."""
    if isinstance(what, Container):
        return any(map(_is_made, what.items)) and all(isinstance(each, Known) or _is_made(each) for each in what.items)
    return isinstance(what, FromMade)


def _made_in(what: Described, home: Home) -> dict[int, Home]:
    """The tensors that are made before the graph runs, by their numbers: where they will be."""
    if isinstance(what, FromMade):
        return {what.number: home}
    homes: dict[int, Home] = {}
    if isinstance(what, Container):
        for key, item in zip(what.keys or range(len(what.items)), what.items, strict=True):
            homes |= _made_in(item, (*home, key))
    return homes


def _name(effect: Effect) -> str:
    text = effect.owner.text.removesuffix(".__dict__")
    return f"{text}.{effect.key}" if isinstance(effect.key, str) else f"{text}[{key_text(effect.key)}]"


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


def sorted_effects(call: DescribedCall, homes: Homes, reliance: Reliance, state: Set[Home]) -> SortedEffects:
    """The effects of a call by what becomes of them; `ExportError` for one that nothing can become of. `state`: homes
    of numbers that some call writes and some call reads."""
    sorting = _Sorting(call, homes, reliance, state)
    for effect in call.effects:
        sorting.add(effect)
    for what in call.deferred:
        raise ExportError(f"{what} is called after the graph, in Python", hint="move it out of the exported function")
    fixed = []
    for home, (origin, value) in reliance.numbers.items():
        if home in state:
            if type(value) is not int or value >= SMALLEST:
                text = f"{origin.text} changes with each call, and the code relies on what it is"
                raise ExportError(text, hint="keep it in a tensor")
            fixed.append((origin, value))
    return SortedEffects(
        tuple(sorting.tensors), tuple(sorting.numbers), frozenset(sorting.written), sorting.dropped, tuple(fixed),
        sorting.new_homes, tuple(sorting.notes),
    )  # fmt: skip
