"""One dynamic graph for backwards that differ in sizes, generalized from two captures.

    expand(g, [10, 10]) for x: f32[10, 10]      →      expand(g, [n0, n0]), n0 = the size of x
    expand(g, [100, 100]) for x: f32[100, 100]

PyTorch's nodes hold sizes as plain numbers, so a capture is static. Two captures of graphs that are equal except for
numbers show which numbers of the result depend on which numbers of the graph. That is a guess from two examples: for
each further combination of sizes the backward is captured, without being compiled, and compared. If the general graph
with these numbers equals it, that one runs; if not, it is compiled for itself.
"""

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import fx

from smelt.base.fast_dataclass import dataclass
from smelt.ir.backward import AccumulateGrads, Backward, Graph, Step
from smelt.ir.graph import GraphLevel, Traced


def split_numbers(key: Any) -> tuple[Any, tuple[int, ...]]:
    """A key with its numbers removed, and the numbers."""
    numbers: list[int] = []

    def walk(part: Any) -> Any:
        if type(part) is int:
            numbers.append(part)
            return int
        if isinstance(part, tuple):  # sizes too
            return (tuple, *map(walk, part))
        if isinstance(part, bytes):  # words from C
            return walk(tuple(memoryview(part).cast("Q")))
        return part

    return walk(key), tuple(numbers)


@dataclass(frozen=True, slots=True)
class Product:
    """A number of the general graph: a factor times some of the numbers that differ."""

    factor: int
    names: tuple[int, ...]

    def value(self, values: Sequence[int]) -> int:
        product = self.factor
        for name in self.names:
            product *= values[name]
        return product


@dataclass(frozen=True, slots=True)
class General:
    """A backward for any sizes. `places`: per number that differs, its positions in the key; `fixed`: positions whose
    numbers must be equal."""

    backward: Backward
    places: tuple[tuple[int, ...], ...]
    fixed: tuple[tuple[int, int], ...]
    patterns: tuple[tuple[Any, ...] | None, ...]  # per step, its numbers

    def values(self, numbers: Sequence[int]) -> tuple[int, ...] | None:
        """The numbers that differ, or None if these do not fit."""
        if any(numbers[place] != number for place, number in self.fixed):
            return None
        if any(len({numbers[place] for place in places}) != 1 for places in self.places):
            return None
        return tuple(numbers[places[0]] for places in self.places)

    def becomes(self, backward: Backward, values: Sequence[int]) -> bool:
        """Whether this backward, with these numbers, equals the given one."""
        if len(backward.steps) != len(self.patterns):
            return False
        for step, mine, pattern in zip(backward.steps, self.backward.steps, self.patterns, strict=True):
            if pattern is None:
                if step != mine:
                    return False
                continue
            numbers = _numbers_in(step)
            if _outline(step) != _outline(mine) or len(numbers) != len(pattern):
                return False
            if any(have != _value(want, values) for have, want in zip(numbers, pattern, strict=True)):
                return False
        return (backward.slots, backward.wanted, backward.arrived, backward.ran) == (
            self.backward.slots,
            self.backward.wanted,
            self.backward.arrived,
            self.backward.ran,
        )


def _value(pattern: Any, values: Sequence[int]) -> Any:
    return pattern.value(values) if isinstance(pattern, Product) else pattern


def generalize(
    one: Backward, its_numbers: Sequence[int], other: Backward, other_numbers: Sequence[int]
) -> General | None:
    """The general form of two backwards whose keys differ only in numbers; None if there is none."""
    places: dict[tuple[int, int], list[int]] = {}
    fixed = []
    for place, pair in enumerate(zip(its_numbers, other_numbers, strict=True)):
        if pair[0] == pair[1]:
            fixed.append((place, pair[0]))
        else:
            places.setdefault(pair, []).append(place)
    pairs = list(places)
    if len(one.steps) != len(other.steps) or not pairs:
        return None
    patterns: list[tuple[Any, ...] | None] = []
    for left, right in zip(one.steps, other.steps, strict=True):
        if isinstance(left, AccumulateGrads) and left == right:
            patterns.append(None)
            continue
        if not isinstance(left, Graph) or not isinstance(right, Graph) or _outline(left) != _outline(right):
            return None
        both = zip(_numbers_in(left), _numbers_in(right), strict=True)
        pattern = [a if a == b else _product((a, b), pairs) for a, b in both]
        if any(each is None for each in pattern):
            return None
        patterns.append(tuple(pattern))
    return General(other, tuple(tuple(each) for each in places.values()), tuple(fixed), tuple(patterns))


def _product(pair: tuple[Any, Any], pairs: Sequence[tuple[int, int]]) -> Product | None:
    """A number as a product of those that differ, from two examples."""
    if type(pair[0]) is not int or type(pair[1]) is not int:
        return None
    if pair in pairs:
        return Product(1, (pairs.index(pair),))
    for name, (a, b) in enumerate(pairs):
        if a and b and pair[0] % a == 0 and pair[0] // a * b == pair[1]:
            return Product(pair[0] // a, (name,))
        for second, (c, d) in enumerate(pairs[name:], name):
            if a * c and b * d and pair[0] % (a * c) == 0 and pair[0] // (a * c) * (b * d) == pair[1]:
                return Product(pair[0] // (a * c), (name, second))
    return None


def _numbers_in(step: Step) -> list[Any]:
    """All numbers in the calls of a graph, in order."""
    assert isinstance(step, Graph)
    numbers: list[Any] = []

    def walk(part: Any) -> None:
        if isinstance(part, tuple | list):
            for item in part:
                walk(item)
        elif isinstance(part, dict):
            for item in part.values():
                walk(item)
        elif isinstance(part, int | float) and not isinstance(part, bool):
            numbers.append(part if isinstance(part, int) else (float, part.hex()))

    for node in step.traced.graph.nodes:
        walk((node.args, node.kwargs))
    return numbers


def _outline(step: Step) -> Any:
    """A step without the numbers in its calls and the sizes of its values."""
    if not isinstance(step, Graph):
        return step
    nodes = list(step.traced.graph.nodes)
    names = {node: number for number, node in enumerate(nodes)}

    def walk(part: Any) -> Any:
        if isinstance(part, fx.Node):
            return ("node", names[part])
        if isinstance(part, tuple | list):
            return (type(part) is list, *map(walk, part))
        if isinstance(part, dict):
            return tuple((name, walk(item)) for name, item in part.items())
        if isinstance(part, int | float) and not isinstance(part, bool):
            return type(part)
        return (type(part), part)

    calls = [
        (node.op, node.target if node.op != "placeholder" else None, walk((node.args, node.kwargs))) for node in nodes
    ]
    constants = {name: id(tensor) for name, tensor in step.traced.constants.items()}
    return calls, step.inputs, step.outputs, constants


def with_numbers(general: General) -> Backward:
    """The general backward, its graphs with an extra input for each number that differs."""
    steps = tuple(
        _opened(step, pattern, len(general.places)) if pattern is not None and isinstance(step, Graph) else step
        for step, pattern in zip(general.backward.steps, general.patterns, strict=True)
    )
    return replace(general.backward, steps=steps)


def _opened(step: Graph, pattern: Sequence[Any], count: int) -> Graph:
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    waiting = iter(pattern)
    numbers: list[fx.Node] = []
    known: dict[Product, fx.Node] = {}

    def number(wanted: Any) -> Any:
        if not isinstance(wanted, Product):
            return wanted
        if wanted not in known:
            value: Any = wanted.factor if wanted.factor != 1 or not wanted.names else None
            for name in wanted.names:
                value = numbers[name] if value is None else graph.call_function(operator.mul, (value, numbers[name]))
            known[wanted] = value
        return known[wanted]

    def walk(part: Any) -> Any:
        if isinstance(part, fx.Node):
            return copies[part]
        if isinstance(part, tuple | list):
            return type(part)(walk(item) for item in part)
        if isinstance(part, dict):
            return {name: walk(item) for name, item in part.items()}
        if isinstance(part, int) and not isinstance(part, bool):
            return number(next(waiting))
        if isinstance(part, float):
            next(waiting)
        return part

    nodes = list(step.traced.graph.nodes)
    for node in nodes:
        if node.op == "placeholder":
            copies[node] = graph.placeholder(str(node.target))
    numbers = [graph.placeholder(f"number_{name}") for name in range(count)]
    for node in nodes:
        if node.op == "placeholder":
            walk((node.args, node.kwargs))
        elif node.op == "output":
            graph.output(walk(node.args[0]))
        elif node.op == "get_attr":
            copies[node] = graph.get_attr(str(node.target))
        else:
            args, named = walk((node.args, node.kwargs))
            copies[node] = graph.create_node(node.op, node.target, args, named, name=node.name)
    return Graph(Traced(graph, GraphLevel.TORCH, step.traced.constants), step.inputs, step.outputs)
