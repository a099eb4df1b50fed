"""Objects with `__slots__` and functions with attributes: read, written to and made, against Python."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.capture import graph_break
from tests.capture.programs import Captured, assert_alike, observe


class Counter:
    __slots__ = ("count", "last")

    def __init__(self, count):
        self.count = count

    def step(self, x):
        self.count += 1
        self.last = x
        return self


class Named(Counter):
    __slots__ = ("__weakref__", "name")

    def __init__(self, count, name):
        super().__init__(count)
        self.name = name


@dataclasses.dataclass(slots=True)
class Pair:
    first: Any
    second: Any = None


@dataclasses.dataclass(slots=True, frozen=True)
class Frozen:
    value: Any


class Mixed(Counter):
    """Slots and a `__dict__`."""


def picture(value: Any) -> Any:
    if isinstance(value, Counter | Pair | Frozen):
        names = ("count", "last", "name", "first", "second", "value")
        filled = {name: picture(getattr(value, name)) for name in names if hasattr(value, name)}
        return [type(value).__name__, filled, dict(getattr(value, "__dict__", {}))]
    if isinstance(value, list | tuple):
        return type(value)(picture(item) for item in value)
    return value


def both(program: Callable[..., Any], make: Callable[[], list[Any]], calls: int = 4) -> Captured:
    runner = Captured()
    compiled = smelt.compile(program, backend="aot_eager")
    plain, mine, other = make(), make(), make()
    for call in range(calls):
        x = torch.arange(3.0) + call
        expected = observe(lambda: program(x, *plain))  # noqa: B023
        for run, world in (
            (lambda: runner(program, x, *mine), mine),  # noqa: B023
            (lambda: compiled(x, *other), other),  # noqa: B023
        ):
            found = observe(run)
            assert (type(found.error), str(found.error)) == (type(expected.error), str(expected.error))
            assert_alike(picture(found.result), picture(expected.result))
            assert_alike(picture(world), picture(plain))
    return runner


def counted(x, c):
    return c.step(x * 2).count * x


def swapped(x, pair):
    pair.first, pair.second = pair.second, pair.first
    pair.first = [pair.first, x]
    return x + 1


def made(x, c):
    new = Counter(c.count)
    new.step(x).step(x + 1)
    named = Named(7, "n")
    return new, named, named.name * new.count, Pair(x, new), Frozen(x + 1).value, Frozen(Pair(1))


def deleted(x, c):
    if hasattr(c, "last"):
        del c.last
    c.last = x
    del c.last
    return x * c.count


def across_a_break(x, c):
    new = Counter(1)
    c.step(x)
    graph_break()
    new.last = c
    c.count += new.count
    graph_break()
    return new.last is c, new


PROGRAMS: list[tuple[Callable[..., Any], Callable[[], list[Any]]]] = [
    (counted, lambda: [Counter(3)]),
    (counted, lambda: [Named(3, "x")]),
    (counted, lambda: [Mixed(3)]),
    (swapped, lambda: [Pair(1, 2)]),
    (made, lambda: [Counter(2)]),
]


@pytest.mark.parametrize(("program", "make"), PROGRAMS)
def test_is_captured_whole(program: Callable[..., Any], make: Callable[[], list[Any]]) -> None:
    runner = both(program, make)
    assert not runner.breaks, runner.texts("breaks")


@pytest.mark.parametrize("program", [deleted, across_a_break])
def test_as_python(program: Callable[..., Any]) -> None:
    both(program, lambda: [Counter(2)])


def test_no_room_for_other_attributes() -> None:
    def program(x, c):
        new = Counter(1)
        new.other = x
        return x

    def written(x, c):
        c.other = x
        return x

    def unset(x, c):
        return x * Counter(1).last

    for each in (program, written, unset):
        both(each, lambda: [Counter(1)])


def test_two_names_of_one_object() -> None:
    def program(x, one, other):
        one.count += 5
        return x * other.count

    runner = Captured()
    x = torch.ones(2)
    a, b = Counter(1), Counter(2)
    assert runner(program, x, a, b).tolist() == [2, 2]
    assert runner(program, x, a, a).tolist() == [11, 11]
    assert runner(program, x, b, a).tolist() == [11, 11]
    assert (a.count, b.count) == (11, 7)


def test_attributes_of_functions() -> None:
    def helper(x):
        helper.calls += 1
        helper.last = x
        return x * 2

    def other(x):
        return x

    def program(x, function):
        before = function.calls
        return helper(x) + function.calls - before

    results = []
    for run in (lambda *args: program(*args), Captured()):
        helper.calls, other.calls = 0, 10
        call = run if not isinstance(run, Captured) else lambda *args, run=run: run(program, *args)
        x = torch.ones(2)
        given = (helper, helper, other, helper, other)
        results.append(([call(x, each).tolist() for each in given], helper.calls, other.calls, helper.last is x))
    assert results[0] == results[1]
