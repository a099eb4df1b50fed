"""Sizes that only data tell: symbols of the graph, which an operator of it defines when it runs.

    kept = x[mask]       nonzero = mask.nonzero()                      i64[u0, 1], captured for any u0 of at least 2
                         size = nonzero.size(0); SizeCheck(size)       what was relied on of u0, asked where it is known
                         getitem = x[nonzero[:, 0]]                    f32[u0, 4]

A branch on such a size goes the way it goes for the size that is supposed here, and the check says so; a call that
meets another is undone, and captured again with the sizes it met (`examples`). 0 and 1 are supposed only then, as
numbers.
"""

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import fx

from smelt.capture.model.breaks import Unsupported
from smelt.ir.nodes.size_check import SizeCheck
from smelt.ir.tensorspec import NumberSpec, set_spec, spec_of
from smelt.symbolic.expressions import FROM_DATA, SMALLEST, Expression, ShapeEnv, SizeGuard, Symbol
from smelt.symbolic.symnode import as_number, example_of, meaning

_SEARCHED = 4096
_LIMIT = 64
"""How many of them a graph may have: what is between them is compiled by itself."""

Path = tuple[int, ...]
"""Where a size is in what a node yields: a dimension, an item and its dimension, or nothing if it is what it yields."""
Given = Callable[[Symbol], fx.Node]
Fits = Callable[[Mapping[Symbol, int]], bool]


class OtherSizes(Exception):
    """An operator refuses the sizes that were supposed, and others may do: capturing begins anew with those."""

    def __init__(self, examples: tuple[int, ...]) -> None:
        super().__init__(f"sizes that only data tell: {examples}")
        self.examples = examples


class DataSizes:
    """The sizes of one graph that only data tell, in the order in which they become known."""

    def __init__(self, shape_env: ShapeEnv, examples: tuple[int, ...] = (), met: int = 0) -> None:
        self.shape_env = shape_env
        self._examples = examples
        self._met = met  # so many of the examples are of a call; the others are only supposed
        self.fresh: list[tuple[Symbol, int]] = []  # of the operator that is asked for its results, and their examples
        self._repeated: list[Any] = []
        self.place = ""  # the line that is captured
        self._asked: list[tuple[str, int]] = []  # of each size: that line, and what was supposed
        self._places: dict[Symbol, tuple[fx.Node, Path]] = {}
        self._fixed: list[SizeGuard] = []
        self.positions: dict[int, tuple[Any, int, Any]] = {}  # by ids of masks: the mask, its version, where it is true
        self.numbers: dict[int, tuple[Any, Any]] = {}  # by ids of numbers that were only kept before: these, and those

    def new_size(self, largest: Any = None, supposed: int | None = None) -> Any:
        """A size that the operator which is asked for its results will tell."""
        if self._repeated:
            return self._repeated.pop(0)
        number = len(self._places) + len(self.fresh)
        if number >= _LIMIT:
            raise Unsupported("B004", f"more than {_LIMIT} sizes that only data tell")
        is_branch = supposed == SMALLEST
        if supposed is None:
            supposed = _supposed(largest, number)
        known = number < len(self._examples)
        example = self._examples[number] if known else self._met_here(is_branch, supposed)
        self._asked[number:] = [(self.place, example)]
        symbol = self.shape_env.symbol(f"u{number}", max(example, SMALLEST), FROM_DATA)
        self.fresh.append((symbol, example))
        return as_number(self.shape_env, Expression.of(symbol))

    def _met_here(self, is_branch: bool, supposed: int) -> int:
        """What to suppose at a line that a loop comes to again: that there are none, or one, or that a branch goes the
        way it went, if the call met it so there before. Other sizes are to differ from each other."""
        met = [example for place, example in self._asked[: self._met] if place == self.place]
        return met[-1] if met and (is_branch or met[-1] < SMALLEST) else supposed

    def located(self, result: Any, again: Callable[[], Any]) -> tuple[Any, list[tuple[Symbol, Path]]]:
        """What an operator returns that has asked for sizes, and where they are in it. Where some are numbers this
        time, it is asked `again`."""
        fresh, self.fresh = self.fresh, []
        paths = [_path_to(result, symbol) for symbol, _ in fresh]
        if any(example < SMALLEST for _, example in fresh):
            self._repeated = [
                example if example < SMALLEST else as_number(self.shape_env, Expression.of(symbol))
                for symbol, example in fresh
            ]
            result = again()
        return result, [(self._known(*each), path) for each, path in zip(fresh, paths, strict=True)]

    def number(self, supposed: int | None = None) -> tuple[Any, Symbol]:
        """An integer that a tensor holds: the number, and its symbol."""
        number = self.new_size(supposed=supposed)
        ((symbol, example),) = self.fresh
        self.fresh = []
        return (example if example < SMALLEST else number), self._known(symbol, example)

    def _known(self, symbol: Symbol, example: int) -> Symbol:
        if example >= SMALLEST:
            return symbol
        fixed = self.shape_env.reading(symbol.text, example, FROM_DATA)
        self._fixed.append(SizeGuard("==", Expression.of(fixed) - Expression.of(example)))
        return fixed

    def define(self, places: list[tuple[Symbol, Path]], node: fx.Node) -> None:
        """From here on the sizes are known."""
        for symbol, path in places:
            self._places[symbol] = node, path

    @property
    def defining(self) -> frozenset[fx.Node]:
        """The nodes that tell sizes."""
        return frozenset(node for node, _ in self._places.values())

    def read(self, graph: fx.Graph, symbol: Symbol) -> list[fx.Node]:
        """New nodes of which the last yields the size."""
        node, path = self._places[symbol]
        nodes: list[fx.Node] = []
        for item in path[:-1]:
            of = nodes[-1] if nodes else node
            nodes.append(graph.call_function(operator.getitem, (of, item)))
            set_spec(nodes[-1], spec_of(of)[item])  # type: ignore[index]  # of several results
        if path:
            nodes.append(graph.call_method("size", (nodes[-1] if nodes else node, path[-1])))
            set_spec(nodes[-1], NumberSpec(Expression.of(symbol)))
        return nodes or [node]

    def forget(self, nodes: Iterable[fx.Node]) -> None:
        """These nodes are gone."""
        gone = set(nodes)
        self._places = {symbol: place for symbol, place in self._places.items() if place[0] not in gone}
        self.positions.clear()
        self.numbers.clear()

    def others(self, guards: list[SizeGuard], new: list[SizeGuard]) -> tuple[int, ...] | None:
        """Sizes for which one of the `new` guards, the last if possible, would not hold, and all other `guards` do. Who
        says what is wrong asks for the numbers: equalities are for that."""
        symbols = list(self._places)
        now = {symbol: symbol.example for symbol in symbols}
        for guard in reversed([each for each in new if each.relation != "=="]):
            for symbol in reversed([each for each in symbols[self._met :] if each in guard.expression.symbols()]):
                for example in (*range(SMALLEST, _SEARCHED), *range(SMALLEST)):
                    values = {**now, symbol: example}

                    def value(each: Symbol, values: Mapping[Symbol, int] = values) -> int:
                        return values.get(each, each.example)

                    if not guard.holds(value) and all(each.holds(value) for each in guards):
                        return tuple(values.values())
        return None

    def rely_on_many(self, sizes: Iterable[Any]) -> None:
        """Something was asked of a tensor with these sizes that may be otherwise if one of them is 0 or 1."""
        for symbol in {each for size in sizes for each in _symbols_of(size) if each.origin is FROM_DATA}:
            self.shape_env.taken[SizeGuard(">=", Expression.of(symbol) - Expression.of(SMALLEST))] = None

    def write_checks(self, graph: fx.Graph, node_of: Given, fits: Fits) -> list[fx.Node]:
        """A check behind each operator that tells sizes. `given` makes a node for a size or number of an input."""
        if not self._places:
            return []
        relied_on = [*self._fixed, *self.shape_env.taken, *self.shape_env.guards]
        guards = [guard for guard in relied_on if _from_data(guard) and _from_data(guard) <= self._places.keys()]
        checks: list[fx.Node] = []
        known: list[Symbol] = []
        for node in dict.fromkeys(node for node, _ in self._places.values()):
            known += [symbol for symbol, (each, _) in self._places.items() if each is node]
            here = [guard for guard in guards if _from_data(guard) <= set(known)]
            guards = [guard for guard in guards if guard not in here]
            others = {each.text: each for guard in here for each in guard.expression.symbols()}
            wanted = [each for each in others.values() if each.origin is not FROM_DATA]
            with graph.inserting_before(node.next):
                numbers = [*[self.read(graph, each)[-1] for each in known], *map(node_of, wanted)]
                check = SizeCheck((*known, *wanted), len(known), tuple(here), fits)
                checks.append(graph.call_function(check, tuple(numbers)))
        return checks


def _supposed(largest: Any, number: int) -> int:
    """A size to capture for: about half of the largest, and a prime, that other sizes are not by chance. Where no
    largest is known each is another, and small, as they often add up to something."""
    if largest is None:
        return SMALLEST + number
    least = max(5, example_of(largest) // 2)
    return next(number for number in range(least, 2 * least + 1) if _is_prime(number))


def _is_prime(number: int) -> bool:
    return all(number % factor for factor in range(2, int(number**0.5) + 1))


def _symbols_of(size: Any) -> set[Symbol]:
    expression = meaning(size)
    return expression.symbols() if isinstance(expression, Expression) else set()


def _from_data(guard: SizeGuard) -> set[Symbol]:
    return {each for each in guard.expression.symbols() if each.origin is FROM_DATA}


def _path_to(result: Any, symbol: Symbol) -> Path:
    path = _path_inside(result, symbol)
    if path is None:
        raise Unsupported("B004", "a size that only data tell, and no result has,")
    return path


def _path_inside(result: Any, symbol: Symbol) -> Path | None:
    if isinstance(result, torch.Tensor):
        for dim, size in enumerate(result.shape):
            what = meaning(size)
            if isinstance(what, Expression) and what.symbol == symbol:
                return (dim,)
    for place, each in enumerate(result if isinstance(result, tuple | list) else ()):
        inside = _path_inside(each, symbol)
        if inside is not None:
            return (place, *inside)
    return None
