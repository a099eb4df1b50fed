"""When the values of a program are used last, read from its table.

    a: Allocate(2)   Launch(k0, (0, 1, 2))   Call(mm, (2, 1))   →   uses 0: 2 steps, 1: 3 steps, 2: 3 steps

A call that pauses between steps (`_native.PausedRun`) may hand out a result once the steps that use it have run.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from smelt import _native
from smelt.base.fast_dataclass import dataclass
from smelt.ir.table.read import ProgramReader
from smelt.ir.table.records import Call, Launch, Ref


@dataclass(frozen=True, slots=True)
class LastUses:
    """How many steps have run when a value is used no more, by its number; which value each result is; and how many
    steps there are. A result that is no value is -1."""

    of_value: dict[int, int]
    results: tuple[int, ...]
    steps: int

    def of_result(self, place: int) -> int:
        return self.of_value.get(self.results[place], 0)


def last_uses(runner: _native.Runner) -> LastUses:
    """The last uses of a program, kept with it."""
    uses: LastUses | None = runner.__dict__.get("last_uses")
    if uses is None:
        uses = runner.__dict__["last_uses"] = _read(ProgramReader(runner.table, runner.objects))
    return uses


def _read(reader: ProgramReader) -> LastUses:
    steps = reader.records("steps")
    of_value = {value: done for done, step in enumerate(steps, 1) for value in _values_of(step)}
    results = reader.record("programs", 0).output
    return LastUses(of_value, tuple([each.value if isinstance(each, Ref) else -1 for each in results]), len(steps))


def _values_of(step: Any) -> Iterable[int]:
    """The values that a step computes with. To allocate or drop one is no use of it."""
    if isinstance(step, Launch):
        return step.values
    if not isinstance(step, Call):
        return ()
    results = [each for each in step.results if each is not None]
    return (*_values_in(step.arguments), *results, *([] if step.unless is None else [step.unless]))


def _values_in(arguments: Iterable[Any]) -> Iterator[int]:
    for argument in arguments:
        if isinstance(argument, Ref):
            yield argument.value
        elif isinstance(argument, (list, tuple)):
            yield from _values_in(argument)
