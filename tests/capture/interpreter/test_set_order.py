"""Sets that captured code makes or changes yield their items in the order in which Python's do."""

import random
from typing import Any

import pytest
import torch

import smelt

_CHANGES = (
    "{0}.add({n})",
    "{0}.discard({n})",
    "{0}.update({items})",
    "{0}.update({1})",
    "{0}.update(dict.fromkeys({items}))",
    "{0}.difference_update({items})",
    "{0}.intersection_update({1}, {items})",
    "{0}.symmetric_difference_update({items})",
    "{0} |= {1}",
    "{0} &= {1} | {{{n}}}",
    "{0} -= {{{n}}}",
    "{0} ^= {1}",
    "if {n} in {0}: {0}.remove({n})",
)
_MAKES = (
    "{0} = set({items})",
    "{0} = {{each * 8 for each in {items}}}",
    "{0} = {1} | {2}",
    "{0} = {1} & {2}",
    "{0} = {1} - {2}",
    "{0} = {1} ^ {2}",
    "{0} = {1}.union({items}, {2})",
    "{0} = {1}.difference({items})",
    "{0} = {1}.intersection({items})",
    "{0} = {1}.symmetric_difference({items})",
    "{0} = {1}.copy()",
    "{0} = set({1})",
    "{0} = set(frozenset({1}))",
    "{0} = set(dict.fromkeys({items}))",
    "{0} = set(dict.fromkeys({items}).keys())",
    "{0} = dict.fromkeys({items}).keys() | {1}",
    "{0} = {1} - dict.fromkeys({items}).keys()",
    "{0} = dict.fromkeys({items}).keys() & {1}",
    "{0} = {{*{items}, {n}, *{1}}}",
    "{0} = copy.copy({1})",
)


def _program(seed: int) -> str:
    chance = random.Random(seed)
    lines = ["def program(x, a, b, names):", "    c, d = set(names), {*b}"]
    for _ in range(chance.randint(3, 14)):
        line = chance.choice(_CHANGES if chance.random() < 0.6 else _MAKES)
        first, *others = (chance.choice("abcd") for _ in range(3))
        first = chance.choice("cd") if "{0} = " in line else first  # a and b are the caller's
        items = [chance.randrange(-50, 2000) for _ in range(chance.randint(0, 30))]
        lines.append("    " + line.format(first, *others, items=items, n=chance.choice([*items, 7, 1024])))
        if chance.random() < 0.15:
            lines.append("    x = x + len(c)")
        if chance.random() < 0.08:
            lines.append("    smelt.graph_break()")
    return "\n".join([*lines, "    return x, c, d, frozenset(c), [n for n in d]"])


def _called(function: Any, seed: int) -> list[Any]:
    chance = random.Random(seed)
    given = [{chance.randrange(500) for _ in range(chance.randint(0, 20))} for _ in range(2)]
    names = [chance.randrange(300) for _ in range(12)]
    x, *results = function(torch.zeros(2), *given, names)
    return [x.tolist(), *map(list, results), *map(list, given)]


@pytest.mark.parametrize("first", range(0, 240, 40))
def test_random_calls(first: int) -> None:
    for seed in range(first, first + 40):
        scope: dict[str, Any] = {"smelt": smelt, "copy": __import__("copy")}
        exec(_program(seed), scope)
        smelt.reset()
        compiled = smelt.compile(scope["program"], backend="eager")
        for call in (seed, seed):
            assert _called(compiled, call) == _called(scope["program"], call), f"{seed}\n{_program(seed)}"


def test_a_set_of_the_caller_is_changed_as_python_changes_it() -> None:
    def program(x: torch.Tensor, seen: set[int], more: list[int]) -> Any:
        seen.update(more)
        return x + 1, seen.pop(), list(seen)

    more = [4290, 4064, 2754, 1186, 3524, 101, 259, 3912, 3754, 1938, 3539, 884, 55, 2616, 184, 2751]
    one, other = set(more[:4]), set(more[:4])
    expected = program(torch.ones(1), one, more)
    assert smelt.compile(program)(torch.ones(1), other, more)[1:] == expected[1:]
    assert list(other) == list(one)


def test_text_of_a_set_has_its_order() -> None:
    def program(x: torch.Tensor, given: set[int]) -> Any:
        made = {n * 8 for n in range(40, 0, -7)}
        return x + 1, str(made), f"{given}", repr(given | made), "{}".format(given)  # noqa: UP032

    given = {1671, 2828, 1559, 1822, 2994, 53, 463, 857, 745, 887, 882, 2551, 1021, *range(40)}
    given.difference_update(range(40))
    assert list(given) != list(set(given))
    assert smelt.compile(program)(torch.ones(1), given)[1:] == program(torch.ones(1), given)[1:]


def test_what_was_made_of_a_set_of_the_caller_stays_what_it_was() -> None:
    def program(x: torch.Tensor, given: set[int]) -> Any:
        before = given | {1}
        given.add(2)
        return x + 1, before, given - {3}

    one, other = {n * 32 for n in range(9)}, {n * 32 for n in range(9)}
    expected = program(torch.ones(1), one)
    found = smelt.compile(program)(torch.ones(1), other)
    assert [list(each) for each in found[1:]] == [list(each) for each in expected[1:]]
    assert list(one) == list(other)


def test_a_long_history_of_one_set_of_another() -> None:
    def program(x: torch.Tensor) -> Any:
        made = {1, 9, 17}
        for _ in range(40):
            made = made | made
        return x + 1, made

    assert list(smelt.compile(program)(torch.ones(1))[1]) == list(program(torch.ones(1))[1])
