"""A graph whose sizes differ from call to call, compiled once for each combination of sizes that comes.

    graph over x: f32[s0, 4], rate: float   →   a call with f32[7, 4] compiles for 7, whatever the rate is

The graph itself was captured once. Numbers that are no sizes go into compiled code as tensors of one element, computed
here at each call; where compiled code would have to know them, they count as sizes. `LIMIT` combinations are kept; what
comes after is run by PyTorch, operator by operator, with one warning.
"""

import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from smelt.autograd.trace import CannotTrace
from smelt.base.errors import SmeltWarning
from smelt.base.events import count, timed
from smelt.base.symbols import Expression, Symbol
from smelt.base.symint import Formula, is_symbolic, meaning
from smelt.ir.graph import Traced, placeholders
from smelt.ir.tensorspec import NumberSpec, TensorSpec, set_spec, spec_of
from smelt.runtime.wrap import Flat

LIMIT = 64

Leaf = Symbol | Formula
Values = Mapping[Any, Any]
Place = tuple[int, Callable[[Any], Any]]  # the number of an input, and what takes the value out of it


def is_sized(traced: Traced) -> bool:
    """Whether a graph's inputs have sizes that differ from call to call, or are numbers."""
    return any(_told_by(node) for node in placeholders(traced.graph))


def _told_by(node: fx.Node) -> list[tuple[Leaf, Callable[[Any], Any]]]:
    """The symbols an input tells, and how each is read."""
    spec = spec_of(node)
    if isinstance(spec, NumberSpec):
        return [(_leaf(spec), lambda number: number)]
    assert isinstance(spec, TensorSpec)
    found = [(meaning(size), _size(dim)) for dim, size in enumerate(spec.shape)]
    found += [(meaning(step), _step(dim)) for dim, step in enumerate(spec.stride)]
    told = [(what.symbol, read) for what, read in found if isinstance(what, Expression)]
    return [(symbol, read) for symbol, read in told if symbol is not None]


def _size(dim: int) -> Callable[[Any], Any]:
    return lambda tensor: tensor.shape[dim]


def _step(dim: int) -> Callable[[Any], Any]:
    return lambda tensor: tensor.stride(dim)


def _leaf(spec: NumberSpec) -> Leaf:
    found = spec.what if isinstance(spec.what, Formula) else spec.what.symbol
    assert found is not None
    return found


def _leaves(spec: NumberSpec) -> set[Any]:
    return set(spec.what.leaves() if isinstance(spec.what, Formula) else spec.what.symbols())


class _Values(dict[Any, Any]):
    """Values of symbols; one that turned out to be something else while the graph was captured is that."""

    def __missing__(self, symbol: Symbol) -> int:
        assert symbol.world is not None
        meant = symbol.world.simplest(Expression.of(symbol))
        if meant.symbol == symbol:
            raise KeyError(symbol)
        value = self[symbol] = meant.evaluate(self.__getitem__)
        return value


class SizedGraph:
    """Calls the version of a graph that was compiled for the sizes at hand.

    `compile_graph` raises `CannotTrace` if numbers among the inputs cannot stay open.
    """

    def __init__(self, traced: Traced, compile_graph: Callable[[Traced], Flat]) -> None:
        self._traced = traced
        self._compile = compile_graph
        self._places: dict[Leaf, Place] = {}
        for number, node in enumerate(placeholders(traced.graph)):
            for leaf, read in _told_by(node):
                self._places.setdefault(leaf, (number, read))
        self._inputs = {number for number, node in enumerate(placeholders(traced.graph)) if not _is_number(node)}
        self._versions: dict[tuple[Any, ...], Flat] = {}
        self._lock = threading.Lock()
        self._plain: Flat | None = None
        example = _Values((leaf, leaf.example) for leaf in self._places)
        self._leave_open(_open_numbers(traced))
        try:
            self._version(example)
        except CannotTrace:
            self._leave_open([])
            self._version(example)

    def _leave_open(self, numbers: list[fx.Node]) -> None:
        """These numbers stay open; all others that the graph uses are compiled in."""
        self._open = numbers
        fixed: set[Any] = {leaf for leaf, (number, _) in self._places.items() if number in self._inputs}
        for node in self._traced.graph.nodes:
            if _is_told(node) and node not in numbers and not all(map(_is_told, node.users)):
                spec = spec_of(node)
                assert isinstance(spec, NumberSpec)
                fixed |= _leaves(spec)
        self._fixed = [leaf for leaf in self._places if leaf in fixed]

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        values = _Values((leaf, read(inputs[place])) for leaf, (place, read) in self._places.items())
        run = self._versions.get(self._key(values)) or self._version(values)
        if run is self._plain:
            return run(*inputs)
        tensors = [each for place, each in enumerate(inputs) if place in self._inputs]
        return run(*tensors, *[_holding(node, values) for node in self._open])

    def _key(self, values: Values) -> tuple[Any, ...]:
        key = [values[leaf] for leaf in self._fixed]
        return tuple([each if type(each) is int else each.hex() for each in key])  # tells -0.0 from 0.0

    def _version(self, values: Values) -> Flat:
        with self._lock:
            key = self._key(values)
            run = self._versions.get(key)
            if run is None and len(self._versions) < LIMIT:
                try:
                    run = self._versions[key] = self._make(values)
                except CannotTrace:
                    if not self._versions:
                        raise
                    run = self._versions[key] = self._plainly()
        return run or self._by_pytorch()

    def _make(self, values: Values) -> Flat:
        count("sizes_compiled")
        grad = torch.is_grad_enabled()
        with timed("compile for new sizes"), torch.inference_mode(False):
            torch._C._set_grad_enabled(grad)
            return self._compile(self._at(values))

    def _by_pytorch(self) -> Flat:
        if self._plain is None:
            warnings.warn(
                f"SM012: a graph was compiled for {LIMIT} combinations of sizes; for others PyTorch runs it. "
                "Pad inputs to fewer sizes.",
                SmeltWarning,
                stacklevel=2,
            )
        return self._plainly()

    def _plainly(self) -> Flat:
        if self._plain is None:
            forward = self._traced.to_module().forward
            self._plain = lambda *inputs: tuple(forward(*inputs))
        return self._plain

    def _at(self, values: Values) -> Traced:
        """The graph for these sizes: inputs have plain shapes, numbers are open inputs or constants."""
        graph = fx.Graph()
        made: dict[fx.Node, Any] = {}
        for node in placeholders(self._traced.graph):
            spec = spec_of(node)
            if isinstance(spec, TensorSpec):
                made[node] = graph.node_copy(node, made.__getitem__)
                set_spec(made[node], _spec_at(spec, values))
        for node in self._open:
            made[node] = graph.placeholder(node.name)
            set_spec(made[node], _open_spec(node, values))
        for node in self._traced.graph.nodes:
            if node in made:
                continue
            spec = spec_of(node)
            if isinstance(spec, NumberSpec) and _is_told(node):
                made[node] = spec.what.evaluate(values.__getitem__)
            else:
                made[node] = graph.node_copy(node, made.__getitem__)
        return Traced(graph, self._traced.level, self._traced.constants)


def _is_number(node: fx.Node) -> bool:
    return isinstance(spec_of(node), NumberSpec)


def _is_told(node: fx.Node) -> bool:
    """Whether a node is a number that the inputs tell: not one that the graph computes on its way."""
    spec = spec_of(node)
    return isinstance(spec, NumberSpec) and not (isinstance(spec.what, Formula) and spec.what.is_computed)


def _open_numbers(traced: Traced) -> list[fx.Node]:
    """Numbers that may stay open: floats, and integers from outside, which are never 0 or 1. Sizes are no such."""
    found = []
    for node in traced.graph.nodes:
        spec = spec_of(node)
        if isinstance(spec, NumberSpec) and _is_told(node) and not all(map(_is_told, node.users)):
            integer = isinstance(spec.what, Expression)
            if (integer and node.op == "placeholder") or (not integer and _depends_on_given(spec, traced)):
                found.append(node)
    return found


def _depends_on_given(spec: NumberSpec, traced: Traced) -> bool:
    given = {_leaf(each) for node in placeholders(traced.graph) if isinstance(each := spec_of(node), NumberSpec)}
    return not given.isdisjoint(_leaves(spec))


def _value(node: fx.Node, values: Values) -> Any:
    spec = spec_of(node)
    assert isinstance(spec, NumberSpec)
    return spec.what.evaluate(values.__getitem__)


def _holding(node: fx.Node, values: Values) -> torch.Tensor:
    value = _value(node, values)
    return torch.scalar_tensor(value, dtype=torch.int64 if type(value) is int else torch.float64)


def _open_spec(node: fx.Node, values: Values) -> NumberSpec:
    value = _value(node, values)
    if type(value) is int:
        return NumberSpec(Expression.of(Symbol(node.name, value)))
    return NumberSpec(Formula(None, (), value, node.name))


def _spec_at(spec: TensorSpec, values: Values) -> TensorSpec:
    def plain(size: Any) -> Any:
        return meaning(size).evaluate(values.__getitem__) if is_symbolic(size) else size

    shape, stride = tuple(map(plain, spec.shape)), tuple(map(plain, spec.stride))
    return replace(spec, shape=shape, stride=stride, offset=plain(spec.offset))
