"""Containers beyond list and dict: classes of dicts, defaultdict, Counter, OrderedDict as a queue, sets of modules."""

from collections import Counter, OrderedDict, defaultdict
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import smelt
from tests.capture.programs import Captured, compare
from tests.capture.replay.test_writes import World, both, whole


class Output(OrderedDict):
    """As libraries write what their models return."""

    def __init__(self, **given: Any) -> None:
        super().__init__()
        for name, value in given.items():
            if value is not None:
                self[name] = value

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


class Doubled(dict):
    """What it says of itself is not what it holds."""

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key) * 2

    def __missing__(self, key: Any) -> Any:
        self[key] = 10
        return 10


def test_a_class_of_dicts_made_and_from_outside() -> None:
    def program(x: torch.Tensor, output: Output, table: Doubled) -> Any:
        made = Output(a=x, b=None, c=x + 1)
        made.d = output.a + made.c
        output.e = x
        table["k"] = table["k"] + table["new"]
        names = [key for key in output if key != "e"]
        return made, list(made), "b" in made, hasattr(output, "zz"), names, len(table), bool(table), table.get("k")

    runner = whole(program, lambda: {"output": Output(a=torch.ones(3), z=2), "table": Doubled(k=1)}, calls=2)
    assert len(runner.graphs) <= 2


def test_a_class_of_dicts_that_changes_is_seen() -> None:
    def program(x: torch.Tensor, output: Output) -> Any:
        return x * output.scale + len(output)

    runner, output = Captured(), Output(scale=2)
    for change in (lambda: None, lambda: output.update(scale=3), lambda: output.update(more=1), output.clear):
        change()
        if not output:
            output["scale"] = 7
        assert torch.equal(runner(program, torch.ones(2), output), program(torch.ones(2), output))
    assert not runner.breaks


def test_one_class_of_dicts_under_two_names() -> None:
    def program(x: torch.Tensor, one: Output, other: Output) -> Any:
        one["k"] = 5
        return x * other["k"]

    runner, shared = Captured(), Output(k=1)
    for one, other in ((Output(k=1), Output(k=2)), (shared, shared), (Output(k=3), Output(k=4))):
        assert torch.equal(runner(program, torch.ones(2), one, other), torch.full((2,), float(other["k"])))


def test_defaultdicts_and_counters() -> None:
    def program(x: torch.Tensor, groups: Any, counts: Any) -> Any:
        groups["a"].append(x.shape[0])
        groups["b"].append(x)
        counts["a"] += 1
        counts.update("xy")
        made = Counter([1, 1, 2])
        made.update({2: 3})
        absent = counts["zz"]
        return sum(len(each) for each in groups.values()) + x, made, sorted(counts), made.total(), absent, counts + made

    whole(program, lambda: {"groups": defaultdict(list), "counts": Counter("aab")}, calls=3)


def test_a_factory_that_is_replaced() -> None:
    def program(x: torch.Tensor, table: Any) -> Any:
        return x + table["missing"].count(1) if hasattr(table, "default_factory") else x

    runner, table = Captured(), defaultdict(list)
    for factory in (list, lambda: [1, 1], tuple):
        table.clear()
        table.default_factory = factory
        expected = torch.ones(2) + factory().count(1)
        assert torch.equal(runner(program, torch.ones(2), table), expected)


def test_an_ordered_dict_as_a_queue() -> None:
    def program(x: torch.Tensor, queue: Any) -> Any:
        key, value = queue.popitem(last=False)
        queue.move_to_end(next(iter(queue)))
        queue["new"] = value
        queue.move_to_end("new", last=False)
        return x + value, key, list(queue)

    whole(program, lambda: {"queue": OrderedDict((number, number) for number in range(6))}, calls=2)


class State(NamedTuple):
    hidden: torch.Tensor
    cell: torch.Tensor | None = None

    @property
    def total(self) -> torch.Tensor:
        return self.hidden if self.cell is None else self.hidden + self.cell


def test_named_tuples_from_outside() -> None:
    def program(x: torch.Tensor, state: Any) -> Any:
        values, indices = state[1]
        return State(state[0].total + x, x), state[0]._fields, isinstance(state[0], tuple), values + indices

    def make() -> World:
        return {"state": (State(torch.ones(3), torch.zeros(3)), torch.ones(3, 2).max(1))}

    whole(program, make)


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Tanh()])
        self.shared = self.layers[0]
        self.register_buffer("scale", torch.ones(3))
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(3))])

    def forward(self, x: torch.Tensor) -> Any:
        seen: set[nn.Module] = set()
        for module in self.modules():
            if isinstance(module, nn.Linear) and module not in seen:
                seen.add(module)
                x = module(x)
        for weight in self.weights:
            x = x * weight
        penalty = sum(parameter.square().sum() for parameter in self.parameters())
        names = [name for name, _ in self.named_parameters()] + [name for name, _ in self.named_buffers()]
        return x * self.scale + penalty, names, len(seen), self.shared in seen, any(m.training for m in self.children())


@pytest.mark.parametrize("backend", ["eager", "llvm"])
def test_sets_of_modules_and_parameters(backend: str) -> None:
    torch.manual_seed(0)
    tower, x = Tower(), torch.randn(2, 3)
    compiled = smelt.compile(tower, backend=backend, fullgraph=True)
    replace, extend = lambda: setattr(tower.layers, "0", nn.Linear(3, 3)), lambda: tower.weights.append(x[0])
    for change in (lambda: None, replace, extend):
        change()
        mine, theirs = compiled(x), tower.forward(x)
        assert mine[1:] == theirs[1:]
        torch.testing.assert_close(mine[0], theirs[0])


def test_sets_of_objects_are_real_afterwards() -> None:
    class Plain:
        pass

    one, two = Plain(), Plain()

    def program(x: torch.Tensor, first: Any, second: Any, known: set[Any]) -> Any:
        made = {first, second}
        made.discard(second)
        made.update([first, int])
        known.add(second)
        known.add(3)
        return x + 1, made, frozenset({first}), len(made)

    for _ in range(2):
        known: set[Any] = {1}
        runner = Captured()
        _, made, frozen, count = runner(program, torch.ones(1), one, two, known)
        assert made == {one, int} and frozen == {one} and count == 2 and known == {1, 3, two}
        assert not runner.breaks


def test_a_generator_left_in_a_try_block_that_minds_nothing() -> None:
    class Few:
        def __getitem__(self, index: int) -> int:
            if index > 3:
                raise IndexError(index)
            return index

    def numbers(source: Few) -> Any:
        try:
            index = 0
            while True:
                yield source[index]
                index += 1
        except IndexError:
            return

    def careful(log: list[str]) -> Any:
        try:
            yield 1
            yield 2
        finally:
            log.append("closed")

    def f(x):
        for one, other in zip([1, 2], numbers(Few()), strict=False):
            x = x * one + other
        return x

    assert not compare(f, torch.ones(2)).breaks

    def with_effects(x: torch.Tensor, log: list[str]) -> Any:
        for _ in zip([1], careful(log), strict=False):
            x = x + 1
        return x

    both(with_effects, lambda: {"log": []})


def test_a_generator_left_inside_yield_from() -> None:
    def inner(log: list[str]) -> Any:
        for number in range(4):  # noqa: UP028
            yield number
        log.append("done")

    def outer(log: list[str]) -> Any:
        result = yield from inner(log)
        log.append(result)

    def f(x: torch.Tensor, log: list[str]) -> Any:
        for one, other in zip([1, 2], outer(log), strict=False):
            x = x * one + other
        source = outer(log)
        x = x + next(source) + next(source)
        source.close()
        return x

    whole(f, lambda: {"log": []})


def test_items_of_a_list_are_removed() -> None:
    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Named) and self.name == other.name

    def f(x: torch.Tensor, words: list[str], named: list[Named]) -> Any:
        words.remove("b")
        words.append("b")
        made = [x, 2, x + 1, 2]
        made.remove(x)
        made.remove(2)
        named.remove(Named("two"))
        try:
            words.remove("z")
        except ValueError as error:
            return made, str(error), len(named)
        return None

    whole(f, lambda: {"words": ["a", "b", "c", "b"], "named": [Named("one"), Named("two"), Named("two")]}, calls=2)


CHANGED_BY_NAME = {
    "pop": lambda s: s.pop(),
    "symmetric_difference_update": lambda s: s.symmetric_difference_update([3, 4, 5]),
    "__ior__": lambda s: s.__ior__({7}),
    "__iand__": lambda s: s.__iand__({1}),
    "__isub__": lambda s: s.__isub__({1}),
    "__ixor__": lambda s: s.__ixor__({1, 9}),
}


@pytest.mark.parametrize("name", CHANGED_BY_NAME)
def test_sets_are_changed_by_methods_too(name: str) -> None:
    """They were changed in a copy, and the change was lost."""
    change = CHANGED_BY_NAME[name]

    def f(x: torch.Tensor) -> torch.Tensor:
        s = {1, 2, 3}
        change(s)
        return x * len(s) + sum(s)

    assert torch.equal(smelt.compile(f, backend="eager")(torch.ones(2)), f(torch.ones(2)))


def test_lists_are_added_to_by_methods_too() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        s = [1, 2]
        s.__iadd__([3])
        s.__imul__(2)
        return x * len(s)

    assert torch.equal(smelt.compile(f, backend="eager")(torch.ones(2)), f(torch.ones(2)))


def test_settings_of_the_process_are_asked_at_each_call() -> None:
    """What no guard asks for is left to Python: the precision was that of the first call for ever."""

    def f(x: torch.Tensor) -> Any:
        return x * 2, torch.get_float32_matmul_precision()

    compiled, before = smelt.compile(f, backend="eager"), torch.get_float32_matmul_precision()
    try:
        for precision in ("highest", "high"):
            torch.set_float32_matmul_precision(precision)
            assert compiled(torch.ones(2))[1] == precision
    finally:
        torch.set_float32_matmul_precision(before)
