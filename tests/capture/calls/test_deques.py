"""Deques: made, read and written to, old ones and new ones, against Python."""

import copy
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.capture import graph_break
from tests.capture.programs import Captured, assert_alike, observe

World = dict[str, Any]


def plain(value: Any) -> Any:
    """Deques as lists with their bound, all the way down."""
    if isinstance(value, deque):
        return ["deque", value.maxlen, [plain(item) for item in value]]
    if isinstance(value, list | tuple):
        return type(value)(plain(item) for item in value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def both(program: Callable[..., Any], make: Callable[[], World], calls: int = 4) -> Captured:
    runner = Captured()
    compiled = smelt.compile(program, backend="aot_eager")
    worlds = [make() for _ in range(3)]
    names = [{name: id(value) for name, value in world.items()} for world in worlds]
    for call in range(calls):
        x = torch.arange(3.0) + call
        eager = observe(lambda: program(x, **worlds[0]))  # noqa: B023
        for run, world in (
            (lambda: runner(program, x, **worlds[1]), worlds[1]),  # noqa: B023
            (lambda: compiled(x, **worlds[2]), worlds[2]),  # noqa: B023
        ):
            mine = observe(run)
            assert (type(mine.error), str(mine.error)) == (type(eager.error), str(eager.error))
            assert_alike(plain(mine.result), plain(eager.result))
            assert_alike(plain(world), plain(worlds[0]))
    assert names == [{name: id(value) for name, value in world.items()} for world in worlds]
    return runner


def history(x, d):
    d.append(x * 2)
    return x + 1


def moving_average(x, d):
    d.append(x.mean())
    return sum(d) / len(d)


def both_ends(x, d):
    d.appendleft(x)
    d.append(x + 1)
    first, last = d.popleft(), d.pop()
    d.extend([first + last, 3])
    d.extendleft((1, 2))
    return first * last


def turned(x, d):
    d.rotate(1)
    d.rotate(-3)
    d.reverse()
    d[0] = x
    d[-1] = d[1]
    return x * len(d)


def read(x, d):
    total = x
    for place, item in enumerate(d):
        total = total + item * place
    return total, list(reversed(d)), 3 in d, d.maxlen, bool(d), list(d)[1:], isinstance(d, deque)


def returned(x, d):
    mine = deque((x, x + 1, x + 2), maxlen=2)
    mine.append(d)
    other = d.copy()
    other.append(mine)
    return mine, other, deque(maxlen=0), deque("abc")


def across_a_break(x, d):
    mine = deque([x], 3)
    d.append(x)
    graph_break()
    mine.appendleft(x + 1)
    d.popleft()
    graph_break()
    return mine, list(d)


def changed_while_read(x, d):
    for item in d:
        d.append(item)
    return x


def emptied(x, d):
    while d:
        x = x + d.popleft()
    d.pop()
    return x


def out_of_range(x, d):
    return x * d[17]


def cleared(x, d):
    d.clear()
    d.extend(deque([x, x]))
    d.extend(d)
    return x.sum()


PROGRAMS = [
    history,
    moving_average,
    both_ends,
    turned,
    read,
    returned,
    changed_while_read,
    emptied,
    out_of_range,
    cleared,
]


@pytest.mark.parametrize("maxlen", [None, 4, 5])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_as_python(program: Callable[..., Any], maxlen: int | None) -> None:
    runner = both(program, lambda: {"d": deque([1, 2, 3, 4], maxlen)})
    assert set(runner.break_codes) <= {"B018", "B019"}, runner.texts("breaks")  # only where Python raises


def test_across_breaks() -> None:
    runner = both(across_a_break, lambda: {"d": deque([1, 2], 4)})
    assert set(runner.break_codes) == {"B001"}


def test_only_appending_needs_no_recompile() -> None:
    runner = both(history, lambda: {"d": deque(maxlen=3)}, calls=7)
    assert not runner.recompiles


def test_two_names_of_one_deque() -> None:
    def program(x, a, b):
        a.append(x)
        return len(b), b[-1] is x

    def make():
        one = deque([1])
        return {"a": one, "b": one}

    both(program, make)
    runner = Captured()
    one, other = deque([torch.zeros(3)]), deque([torch.ones(3)])
    x = torch.arange(3.0)
    assert runner(program, x, one, one) == (2, True)
    assert runner(program, x, one, other) == (1, False)
    assert runner(program, x, one, one) == (4, True)


def test_what_was_read_is_guarded() -> None:
    def program(x, d):
        return x * d[0] + len(d) + (d.maxlen or 0)

    runner = Captured()
    x = torch.arange(3.0)
    for d in (deque([1, 2]), deque([3, 2]), deque([3, 2, 1]), deque([3, 2], 7), deque([3, 2], 8), [3, 2, 1]):
        eager = observe(lambda: program(x, copy.copy(d)))  # noqa: B023
        mine = observe(lambda: runner(program, x, d))  # noqa: B023
        assert type(mine.error) is type(eager.error)
        assert_alike(mine.result, eager.result)


def test_comparing_deques_is_pythons_business() -> None:
    def program(x, d):
        mine = deque([1, 2])
        return x + 1, mine == d, mine != d, d is mine, mine == None  # noqa: E711

    both(program, lambda: {"d": deque([1, 2])})
