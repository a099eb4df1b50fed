"""A graph with dynamic shapes: compiled once in symbols, bound to each combination of sizes.

    graph over x: f32[s0, 4], rate: float   →   a call with f32[7, 4] binds what was compiled to 7, whatever the rate is

The graph itself was captured once. Dynamic scalars go into compiled code as tensors of one element, computed here at
each call; where compiled code needs their values, they are specialized like sizes. What cannot be compiled in symbols
is compiled for each combination, `LIMIT` of them; further ones fall back to eager, with one warning.
"""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from smelt import _native
from smelt.autograd.joint.functional_trace import CannotTrace
from smelt.base import locks
from smelt.base.errors import is_fault, warn
from smelt.base.events import count, emit, timed
from smelt.ir.graph import Traced, placeholders
from smelt.ir.tensorspec import NumberSpec, TensorSpec, set_spec, spec_of
from smelt.meta.ghost import GhostError
from smelt.pipeline.sizes.template import VERSIONS, Bound, Tracing, hold
from smelt.runtime.autograd.differentiable import Flat
from smelt.symbolic.expressions import SMALLEST, ZERO, DataDependent, Expression, ShapeEnv, Symbol
from smelt.symbolic.symnode import Formula, apply, as_number, example_of, is_symbolic, meaning
from smelt.symbolic.symsize import from_symbolic, to_symbolic

LIMIT = 64
"""How many combinations of sizes are compiled statically."""

BOUND_LIMIT = 256
"""How many bound versions are kept: each takes 30 KiB per layer of a transformer."""

STORED = 8
"""How many of them go to the disk cache, where finding one takes as long as binding a few."""

Leaf = Symbol | Formula
Values = Mapping[Any, Any]
Place = tuple[int, Callable[[Any], Any]]  # the number of an input, and what takes the value out of it


def is_sized(traced: Traced) -> bool:
    """Whether a graph's inputs have dynamic shapes, or are numbers."""
    return any(_symbols_of(node) for node in placeholders(traced.graph))


def _symbols_of(node: fx.Node) -> list[tuple[Leaf, Callable[[Any], Any]]]:
    """The symbols that an input defines, and how each is read from it."""
    spec = spec_of(node)
    if isinstance(spec, NumberSpec):
        return [(_leaf(spec), lambda number: number)]
    assert isinstance(spec, TensorSpec)
    found = [(meaning(size), _size(dim)) for dim, size in enumerate(spec.shape)]
    found += [(meaning(step), _step(dim)) for dim, step in enumerate(spec.stride)]
    symbols = [(what.symbol, read) for what, read in found if isinstance(what, Expression)]
    return [(symbol, read) for symbol, read in symbols if symbol is not None]


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
    """Values of symbols; one that capture simplified to an expression is evaluated."""

    def __missing__(self, symbol: Symbol) -> int:
        assert symbol.shape_env is not None
        meant = symbol.shape_env.simplest(Expression.of(symbol))
        if meant.symbol == symbol:
            raise KeyError(symbol)
        value = self[symbol] = meant.evaluate(self.__getitem__)
        return value


# Compiles a graph with plain sizes: what was compiled in symbols bound to them, or where that yields None, for them.
Compile = Callable[[Traced, Callable[[], Bound | None]], Flat]
# Binds what was compiled in symbols; the graph with plain sizes is made where it is asked for.
Bind = Callable[[Bound, Callable[[], Traced]], Flat]
Trace = Callable[[Traced, ShapeEnv], Tracing]


class SizedGraph:
    """Calls the version of a graph that was compiled for, or bound to, the sizes of a call.

    `compile_graph` and `trace` raise `CannotTrace` if numbers among the inputs cannot stay dynamic.
    """

    def __init__(
        self, traced: Traced, compile_graph: Compile, bind: Bind, trace: Trace, checks: bool = False
    ) -> None:
        self._traced = traced
        self._compile = compile_graph
        self._bind = bind
        self._trace = trace
        self._checks = checks  # raise the compiler's own errors
        self._places: dict[Leaf, Place] = {}
        for number, node in enumerate(placeholders(traced.graph)):
            for leaf, read in _symbols_of(node):
                self._places.setdefault(leaf, (number, read))
        self._inputs = {number for number, node in enumerate(placeholders(traced.graph)) if not _is_number(node)}
        self._versions: dict[tuple[Any, ...], Flat] = {}
        self._bound_keys: dict[tuple[Any, ...], None] = {}  # those that can be bound without compiling
        self._lock = locks.lock()
        self._eager_run: Flat | None = None
        example = _Values((leaf, leaf.example) for leaf in self._places)
        self._set_dynamic_scalars(_find_dynamic_scalars(traced))
        try:
            self._version(example)
        except CannotTrace:
            self._set_dynamic_scalars([])
            self._version(example)

    def _set_dynamic_scalars(self, numbers: list[fx.Node]) -> None:
        """These numbers stay dynamic; the graph specializes on all others it uses."""
        self._dynamic_scalars = numbers
        fixed: set[Any] = {leaf for leaf, (number, _) in self._places.items() if number in self._inputs}
        for node in self._traced.graph.nodes:
            if _is_known_from_inputs(node) and node not in numbers and not all(map(_is_known_from_inputs, node.users)):
                spec = spec_of(node)
                assert isinstance(spec, NumberSpec)
                fixed |= _leaves(spec)
        self._fixed = [leaf for leaf in self._places if leaf in fixed]
        self._symbols = [leaf for leaf in self._fixed if isinstance(leaf, Symbol)]
        self._readers = [self._places[leaf] for leaf in self._fixed]
        given = len(self._inputs) < len(placeholders(self._traced.graph))
        self._only_sizes = not given and not numbers and len(self._symbols) == len(self._fixed)
        self._tracings: list[tuple[tuple[Any, ...], Tracing]] = []  # with the floats it was specialized on
        self._why_static: str | None = None if self._symbols else "no size is dynamic"

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        if self._only_sizes:
            known = self._versions.get(tuple([read(inputs[place]) for place, read in self._readers]))
            if known is not None:
                return known(*inputs)
        values = _Values((leaf, read(inputs[place])) for leaf, (place, read) in self._places.items())
        run = self._versions.get(self._key(values)) or self._version(values)
        if run is self._eager_run:
            return run(*inputs)
        tensors = [each for place, each in enumerate(inputs) if place in self._inputs]
        return run(*tensors, *[_as_tensor(node, values) for node in self._dynamic_scalars])

    __call__.checks_overlap = True  # type: ignore[attr-defined]  # each version does, where it mutates inputs

    def _key(self, values: Values) -> tuple[Any, ...]:
        key = [values[leaf] for leaf in self._fixed]
        return tuple([each if type(each) is int else each.hex() for each in key])  # tells -0.0 from 0.0

    def _version(self, values: Values) -> Flat:
        run: Flat | None = _native.preserving_state(self._made_once, values)
        return run or self._fall_back()

    def _made_once(self, values: Values) -> Flat | None:
        with _native.Held(self._lock):
            key = self._key(values)
            run = self._versions.get(key)
            if run is None:
                try:
                    run = self._make(values, key)
                except CannotTrace:
                    if not self._versions:
                        raise
                    run = self._versions[key] = self._eager()
        return run

    def _make(self, values: Values, key: tuple[Any, ...]) -> Flat | None:
        """A new version; None if too many were compiled statically."""
        if not self._fits_symbols(values) and len(self._versions) - len(self._bound_keys) >= LIMIT:
            return None
        grad = torch.is_grad_enabled()
        timing = timed("compile for new sizes", "a graph for new sizes")
        with timing, torch._C._InferenceMode(False):
            torch._C._set_grad_enabled(grad)
            run = self._versions[key] = self._bound(values) or self._compiled(values)
        if not self._fits_symbols(values):
            count("sizes_compiled")
            return run
        count("sizes_bound")
        self._bound_keys[key] = None
        if len(self._bound_keys) > BOUND_LIMIT:
            oldest = next(iter(self._bound_keys))
            del self._bound_keys[oldest], self._versions[oldest]
        return run

    def _compiled(self, values: Values) -> Flat:
        return self._compile(self._at(values), lambda: self._in_symbols(values))

    def _bound(self, values: Values) -> Flat | None:
        """A version by binding only: a KV cache has another length at every token."""
        if len(self._versions) < STORED or not self._fits_symbols(values):
            return None
        found = self._tracing(values)
        if found is None or not found.is_made_for(numbers := self._numbers(values)):
            return None
        return self._bind(Bound(found, numbers), lambda: self._at(values))

    def _fall_back(self) -> Flat:
        if self._eager_run is None:
            warn(
                f"SM012: a graph was compiled for {LIMIT} combinations of sizes; others fall back to eager. "
                "Pad inputs to fewer sizes."
            )
        return self._eager()

    def _eager(self) -> Flat:
        if self._eager_run is None:
            forward = self._traced.plainly()
            self._eager_run = lambda *inputs: tuple(forward(*inputs))
        return self._eager_run

    # In symbols.

    def _fits_symbols(self, values: Values) -> bool:
        """Whether symbols can stand for these sizes, and a version in symbols fits them or may be compiled."""
        if self._why_static is not None or any(values[leaf] < SMALLEST for leaf in self._symbols):
            return False
        return len(self._tracings) < VERSIONS or self._tracing(values) is not None

    def _numbers(self, values: Values) -> dict[Symbol, int]:
        """Values by symbols of any shape_env of ours."""
        return {Symbol(name, values[leaf]): values[leaf] for name, leaf in self._named()}

    def _named(self) -> list[tuple[str, Symbol]]:
        """Sizes by names that no node of the graph has."""
        taken = {node.name for node in self._traced.graph.nodes}
        names = (name for number in itertools.count() if (name := f"s{number}") not in taken)
        return list(zip(names, self._symbols, strict=False))

    def _floats(self, values: Values) -> tuple[Any, ...]:
        return tuple([values[leaf].hex() for leaf in self._fixed if not isinstance(leaf, Symbol)])

    def _tracing(self, values: Values) -> Tracing | None:
        numbers, floats = self._numbers(values), self._floats(values)
        fitting = (each for with_floats, each in self._tracings if with_floats == floats and hold(each.facts, numbers))
        return next(fitting, None)

    def _in_symbols(self, values: Values) -> Bound | None:
        """The graph in symbols, with the sizes to bind; None, with a reason, if it cannot be."""
        if not self._fits_symbols(values):
            return None
        found = self._tracing(values)
        if found is None:
            try:
                traced, shape_env = self._over(values)
                found = self._trace(traced, shape_env)
            except Exception as error:  # compile for plain sizes instead
                if self._checks and is_fault(error, DataDependent, GhostError):
                    raise
                self._compile_static(f"{type(error).__name__}: {error}")
                return None
            if all(shape_env.simplest(Expression.of(symbol)).constant is not None for symbol in shape_env.symbols):
                self._compile_static(f"it relies on each: {', '.join(map(str, shape_env.guards))}")
                return None
            count("sizes_traced")
            self._tracings.append((self._floats(values), found))
        return Bound(found, self._numbers(values))

    def _compile_static(self, reason: str) -> None:
        self._why_static = reason
        count("sizes_refused")
        emit("sizes", f"a graph is compiled for each combination of sizes: {reason}")

    def _over(self, values: Values) -> tuple[Traced, ShapeEnv]:
        """The graph over symbols of a new shape_env, whose example these sizes are."""
        shape_env = ShapeEnv()
        symbolic = _Values((leaf, values[leaf]) for leaf in self._places)  # not what was derived for these sizes
        for name, leaf in self._named():
            symbolic[leaf] = as_number(shape_env, Expression.of(shape_env.symbol(name, values[leaf])))
        captured = next(leaf.shape_env for leaf in self._symbols)
        for fact in captured.guards if captured is not None else ():
            known = meaning(fact.expression.evaluate(symbolic.__getitem__))
            shape_env.guard(fact.relation, Expression.of(known), ZERO)
        return self._at(symbolic), shape_env

    def _at(self, values: Values) -> Traced:
        """The graph for these sizes: inputs have plain shapes, numbers are dynamic inputs or constants."""
        graph = fx.Graph()
        made: dict[fx.Node, Any] = {}
        for node in placeholders(self._traced.graph):
            spec = spec_of(node)
            if isinstance(spec, TensorSpec):
                made[node] = graph.node_copy(node, made.__getitem__)
                set_spec(made[node], _spec_at(spec, values))
        for node in self._dynamic_scalars:
            made[node] = graph.placeholder(node.name)
            set_spec(made[node], _dynamic_spec(node, values))
        for node in self._traced.graph.nodes:
            if node in made:
                continue
            spec = spec_of(node)
            if isinstance(spec, NumberSpec) and _is_known_from_inputs(node):
                found = _evaluated(spec.what, values)
                made[node] = graph.call_function(to_symbolic, (from_symbolic(found),)) if is_symbolic(found) else found
            else:
                made[node] = graph.node_copy(node, made.__getitem__)
        return Traced(graph, self._traced.level, self._traced.constants, recurs=self._traced.recurs)


def _is_number(node: fx.Node) -> bool:
    return isinstance(spec_of(node), NumberSpec)


def _is_known_from_inputs(node: fx.Node) -> bool:
    """Whether a node is a number known from the inputs, not one that the graph computes from data."""
    spec = spec_of(node)
    return isinstance(spec, NumberSpec) and not (isinstance(spec.what, Formula) and spec.what.is_computed)


def _find_dynamic_scalars(traced: Traced) -> list[fx.Node]:
    """Numbers that may stay dynamic: floats, and integers from outside, which are never 0 or 1; not sizes."""
    found = []
    for node in traced.graph.nodes:
        spec = spec_of(node)
        is_known = isinstance(spec, NumberSpec) and _is_known_from_inputs(node)
        if isinstance(spec, NumberSpec) and is_known and not all(map(_is_known_from_inputs, node.users)):
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


def _evaluated(what: Any, values: Values) -> Any:
    """The value of a number; where it is computed from symbols, a formula over them."""
    if not isinstance(what, Formula) or what.function is None:
        return what.evaluate(values.__getitem__) if isinstance(what, Expression | Formula) else what
    operands = [_evaluated(each, values) for each in what.operands]
    return apply(what.function, *operands) if any(map(is_symbolic, operands)) else what.function(*operands)


def _as_tensor(node: fx.Node, values: Values) -> torch.Tensor:
    value = _value(node, values)
    return torch.scalar_tensor(value, dtype=torch.int64 if type(value) is int else torch.float64)


def _dynamic_spec(node: fx.Node, values: Values) -> NumberSpec:
    value, spec = _value(node, values), spec_of(node)
    if isinstance(spec, NumberSpec) and isinstance(spec.what, Expression):  # in symbols, where others are made of it
        return NumberSpec(Expression.of(Symbol(node.name, example_of(value) if is_symbolic(value) else value)))
    return NumberSpec(Formula(None, (), value, node.name))


def _spec_at(spec: TensorSpec, values: Values) -> TensorSpec:
    def plain(size: Any) -> Any:
        return meaning(size).evaluate(values.__getitem__) if is_symbolic(size) else size

    shape, stride = tuple(map(plain, spec.shape)), tuple(map(plain, spec.stride))
    return replace(spec, shape=shape, stride=stride, offset=plain(spec.offset))
