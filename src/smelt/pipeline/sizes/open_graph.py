"""A graph over sizes and numbers that differ from call to call, to be had for given ones or over symbols.

    graph over x: f32[s0, 4], rate: float   at {s0: 7, rate: 0.5}   →   the graph over x: f32[7, 4], rate an input

Dynamic scalars go into the graph as inputs, tensors of one element; where their values are needed, they are specialized
like sizes.
"""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import fx

from smelt.ir.graph import Traced, placeholders
from smelt.ir.tensorspec import NumberSpec, TensorSpec, set_spec, spec_of
from smelt.symbolic.expressions import AS_SIZE, FROM_DATA, ZERO, Expression, ShapeEnv, Symbol
from smelt.symbolic.symnode import Formula, apply, as_number, example_of, is_symbolic, meaning
from smelt.symbolic.symsize import from_symbolic, to_symbolic

Leaf = Symbol | Formula
Values = Mapping[Any, Any]
Place = tuple[int, Callable[[Any], Any]]  # the number of an input, and what takes the value out of it


def is_sized(traced: Traced) -> bool:
    """Whether a graph's inputs have dynamic shapes, or are numbers."""
    return any(_symbols_of(node) for node in placeholders(traced.graph))


def _symbols_of(node: fx.Node) -> list[tuple[Leaf, Callable[[Any], Any], tuple[bool, int] | None]]:
    """The symbols that an input defines, how each is read from it, and of a tensor, whether a stride is, and which."""
    spec = spec_of(node)
    if isinstance(spec, NumberSpec):
        return [(_leaf(spec), lambda number: number, None)]
    assert isinstance(spec, TensorSpec)
    sizes = [(meaning(size), _size(dim), (False, dim)) for dim, size in enumerate(spec.shape)]
    sizes += [(meaning(step), _step(dim), (True, dim)) for dim, step in enumerate(spec.stride)]
    symbols = [(what.symbol, read, place) for what, read, place in sizes if isinstance(what, Expression)]
    return [(symbol, read, place) for symbol, read, place in symbols if symbol is not None]


def _size(dim: int) -> Callable[[Any], Any]:
    return lambda tensor: tensor.shape[dim]


def _step(dim: int) -> Callable[[Any], Any]:
    return lambda tensor: tensor.stride(dim)


def _leaf(spec: NumberSpec) -> Leaf:
    leaf = spec.what if isinstance(spec.what, Formula) else spec.what.symbol
    assert leaf is not None
    return leaf


def _leaves(spec: NumberSpec) -> set[Any]:
    return set(spec.what.leaves() if isinstance(spec.what, Formula) else spec.what.symbols())


class SymbolValues(dict[Any, Any]):
    """Values of symbols; one that capture simplified to an expression is evaluated."""

    def __missing__(self, symbol: Symbol) -> int:
        assert symbol.shape_env is not None
        meant = symbol.shape_env.simplest(Expression.of(symbol))
        if meant.symbol == symbol:
            raise KeyError(symbol)
        value = self[symbol] = meant.evaluate(self.__getitem__)
        return value


class OpenGraph:
    """A torch-level graph, the symbols its inputs define, and which numbers stay dynamic."""

    def __init__(self, traced: Traced) -> None:
        self._traced = traced
        self._places: dict[Leaf, Place] = {}
        self._layout_places: dict[Leaf, tuple[int, bool, int]] = {}  # the input, whether a stride is read, which
        for number, node in enumerate(placeholders(traced.graph)):
            for leaf, read, dim in _symbols_of(node):
                if leaf not in self._places:
                    self._places[leaf] = number, read
                    if dim is not None:
                        self._layout_places[leaf] = number, *dim
        self._inputs = {number for number, node in enumerate(placeholders(traced.graph)) if not _is_number(node)}
        self._set_dynamic_scalars(_find_dynamic_scalars(traced))

    @property
    def example(self) -> SymbolValues:
        """The values that the graph was captured with."""
        return SymbolValues((leaf, leaf.example) for leaf in self._places)

    @property
    def dynamic_scalars(self) -> "list[Expression | Formula]":
        """What the inputs behind the tensors are."""
        specs = [spec_of(node) for node in self._dynamic_scalars]
        return [spec.what for spec in specs if isinstance(spec, NumberSpec)]

    @property
    def symbols(self) -> list[tuple[str, Symbol]]:
        """Sizes, and numbers that are used like sizes, by the names that they have in `over`."""
        return list(self._named)

    @property
    def fixed(self) -> list[Leaf]:
        """What the graph at given values is specialized on, sizes included."""
        return list(self._fixed)

    def take_numbers_as_sizes(self) -> None:
        """No number is an input: integers are symbols, as sizes are, and floats are specialized."""
        self._set_dynamic_scalars([])

    def _set_dynamic_scalars(self, numbers: list[fx.Node]) -> None:
        """These numbers stay dynamic; the graph specializes on all others it uses."""
        self._dynamic_scalars = numbers
        fixed: set[Any] = {leaf for leaf, (number, _) in self._places.items() if number in self._inputs}
        for node in self._traced.graph.nodes:
            if is_known_from_inputs(node) and node not in numbers and not all(map(is_known_from_inputs, node.users)):
                spec = spec_of(node)
                assert isinstance(spec, NumberSpec)
                fixed |= _leaves(spec)
        self._fixed = [leaf for leaf in self._places if leaf in fixed]
        self._symbols = [leaf for leaf in self._fixed if isinstance(leaf, Symbol)]
        self._named = self._symbols_by_name()

    def _symbols_by_name(self) -> list[tuple[str, Symbol]]:
        """Sizes by names that no node of the graph has."""
        taken = {node.name for node in self._traced.graph.nodes}
        names = (name for number in itertools.count() if (name := f"s{number}") not in taken)
        return list(zip(names, self._symbols, strict=False))

    def over(self, values: Values) -> tuple[Traced, ShapeEnv]:
        """The graph over symbols of a new shape_env, whose example these sizes are."""
        shape_env = ShapeEnv()
        symbolic = SymbolValues((leaf, values[leaf]) for leaf in self._places)  # not what was derived for these sizes
        for name, leaf in self._named:
            symbolic[leaf] = as_number(shape_env, Expression.of(shape_env.symbol(name, values[leaf])))
        captured = next(leaf.shape_env for leaf in self._symbols)
        for fact in captured.guards if captured is not None else ():
            if not fact.expression.symbols() <= symbolic.keys():
                continue  # of numbers that the graph does not get: whoever captured it checks that
            known = meaning(fact.expression.evaluate(symbolic.__getitem__))
            shape_env.guard(fact.relation, Expression.of(known), ZERO)
        return self.at(symbolic), shape_env

    def at(self, values: Values) -> Traced:
        """The graph for these sizes: inputs have plain shapes, numbers are dynamic inputs or constants."""
        graph = fx.Graph()
        copies: dict[fx.Node, Any] = {}
        for node in placeholders(self._traced.graph):
            spec = spec_of(node)
            if isinstance(spec, TensorSpec):
                copies[node] = graph.node_copy(node, copies.__getitem__)
                set_spec(copies[node], _spec_at(spec, values))
        for node in self._dynamic_scalars:
            copies[node] = graph.placeholder(node.name)
            set_spec(copies[node], _dynamic_spec(node, values))
        for node in self._traced.graph.nodes:
            if node in copies:
                continue
            spec = spec_of(node)
            if isinstance(spec, NumberSpec) and is_known_from_inputs(node):
                x = _evaluated(spec.what, values)
                copies[node] = graph.call_function(to_symbolic, (from_symbolic(x),)) if is_symbolic(x) else x
            else:
                copies[node] = graph.node_copy(node, copies.__getitem__)
        return Traced(graph, self._traced.level, self._traced.constants, recurs=self._traced.recurs)


def _is_number(node: fx.Node) -> bool:
    return isinstance(spec_of(node), NumberSpec)


def is_known_from_inputs(node: fx.Node) -> bool:
    """Whether a node is a number known from the inputs, not one that the graph computes from data."""
    spec = spec_of(node)
    return isinstance(spec, NumberSpec) and not (isinstance(spec.what, Formula) and spec.what.is_computed)


def _find_dynamic_scalars(traced: Traced) -> list[fx.Node]:
    """Numbers that may stay dynamic: floats, and integers from outside, which are never 0 or 1; not sizes."""
    sizes = _symbols_of_results(traced)
    scalars = []
    for node in traced.graph.nodes:
        spec = spec_of(node)
        is_known = isinstance(spec, NumberSpec) and is_known_from_inputs(node)
        if isinstance(spec, NumberSpec) and is_known and not all(map(is_known_from_inputs, node.users)):
            integer = isinstance(spec.what, Expression)
            from_outside = node.op == "placeholder" and not _is_told(spec) and sizes.isdisjoint(_simplest(spec.what))
            if (integer and from_outside) or (not integer and _depends_on_given(spec, traced)):
                scalars.append(node)
    return scalars


def _symbols_of_results(traced: Traced) -> set[Any]:
    """The symbols that shapes of tensors in the graph depend on."""
    specs = (spec_of(node) for node in traced.graph.nodes)
    shapes = (spec.shape for spec in specs if isinstance(spec, TensorSpec))
    sizes = (meaning(size) for shape in shapes for size in shape if is_symbolic(size))
    return {symbol for size in sizes for symbol in _simplest(size)}


def _simplest(what: Any) -> set[Symbol]:
    """The symbols that a number depends on, except those that guards equate with other expressions."""
    symbols = what.symbols() if isinstance(what, Expression) else set()
    shape_env = next((symbol.shape_env for symbol in symbols), None)
    return symbols if shape_env is None else shape_env.simplest(what).symbols()


def _is_told(spec: NumberSpec) -> bool:
    """Whether a number is a size, or one that data told: most likely it is a size, and it may be 0 or 1."""
    origins = (FROM_DATA, AS_SIZE)
    return isinstance(spec.what, Expression) and any(each.origin in origins for each in spec.what.symbols())


def _depends_on_given(spec: NumberSpec, traced: Traced) -> bool:
    input_leaves = {_leaf(each) for node in placeholders(traced.graph) if isinstance(each := spec_of(node), NumberSpec)}
    return not input_leaves.isdisjoint(_leaves(spec))


def number_at(node: fx.Node, values: Values) -> Any:
    """The number that a node of a graph is for these values."""
    spec = spec_of(node)
    assert isinstance(spec, NumberSpec)
    return spec.what.evaluate(values.__getitem__)


def _evaluated(what: Any, values: Values) -> Any:
    """The value of a number; where it is computed from symbols, a formula over them."""
    if not isinstance(what, Formula) or what.function is None:
        return what.evaluate(values.__getitem__) if isinstance(what, Expression | Formula) else what
    operands = [_evaluated(each, values) for each in what.operands]
    return apply(what.function, *operands) if any(map(is_symbolic, operands)) else what.function(*operands)


def _dynamic_spec(node: fx.Node, values: Values) -> NumberSpec:
    value, spec = number_at(node, values), spec_of(node)
    if isinstance(spec, NumberSpec) and isinstance(spec.what, Expression):  # in symbols, where others are made of it
        return NumberSpec(Expression.of(Symbol(node.name, example_of(value) if is_symbolic(value) else value)))
    return NumberSpec(Formula(None, (), value, node.name))


def _spec_at(spec: TensorSpec, values: Values) -> TensorSpec:
    def plain(size: Any) -> Any:
        return meaning(size).evaluate(values.__getitem__) if is_symbolic(size) else size

    shape, stride = tuple(map(plain, spec.shape)), tuple(map(plain, spec.stride))
    return replace(spec, shape=shape, stride=stride, offset=plain(spec.offset))
