"""A graph with dynamic shapes: compiled once in symbols, bound to each combination of sizes.

    graph over x: f32[s0, 4], rate: float   →   a call with f32[7, 4] binds what was compiled to 7, whatever the rate is

The graph itself was captured once. Dynamic scalars go into compiled code as tensors of one element, computed here at
each call; where compiled code needs their values, they are specialized like sizes. What cannot be compiled in symbols
is compiled for each combination, `LIMIT` of them; further ones fall back to eager, with one warning.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import fx

from smelt import _native
from smelt.autograd.joint.functional_trace import CannotTrace
from smelt.base import locks
from smelt.base.errors import is_fault, warn
from smelt.base.events import count, emit, timed
from smelt.ir.graph import Traced, Unchecked, placeholders, scalar_tensor, unchecked
from smelt.ir.tensorspec import NumberSpec, spec_of
from smelt.meta.fake_tensor import FakeTensorError
from smelt.pipeline.sizes.open_graph import OpenGraph, SymbolValues, Values, number_at
from smelt.pipeline.sizes.runner_sizes import Reading
from smelt.pipeline.sizes.template import VERSIONS, Bound, Tracing, hold
from smelt.runtime.autograd.differentiable import Flat
from smelt.symbolic.expressions import SMALLEST, DataDependent, Expression, ShapeEnv, Symbol

LIMIT = 64
"""How many combinations of sizes are compiled statically."""

BOUND_LIMIT = 256
"""How many bound versions are kept: each takes 30 KiB per layer of a transformer."""

STORED = 8
"""How many of them go to the disk cache, where finding one takes as long as binding a few."""


class ForAllSizes(NamedTuple):
    """A version for all sizes of which some facts hold."""

    key: Any  # versions of one key replace each other
    fits: Callable[..., bool]  # whether it is for the sizes of these inputs
    run: Flat


class SizeCompiler(Protocol):
    """Compiles for plain sizes or in symbols. Raises `CannotTrace` if numbers among the inputs cannot stay dynamic."""

    check_specs: bool  # raise the compiler's own errors

    def compile_static(self, traced: Traced, in_symbols: Callable[[], Bound | None]) -> Flat:
        """Compile for plain sizes, unless `in_symbols` returns a graph in symbols to bind to them."""

    def bind(self, bound: Bound, traced: Callable[[], Traced]) -> Flat:
        """Bind a graph in symbols. `traced` makes the graph with plain sizes, if needed."""

    def bind_all(self, bound: Bound, readings: Sequence[Reading], eager: Flat) -> ForAllSizes | None:
        """Bind a graph in symbols once for all sizes, if a call can fill in what depends on them."""

    def trace(self, traced: Traced, shape_env: ShapeEnv) -> Tracing: ...


class SizedGraph(OpenGraph):
    """Calls the version of a graph that was compiled for, or bound to, the sizes of a call."""

    def __init__(self, traced: Traced, compiler: SizeCompiler) -> None:
        self._compiler = compiler
        self._versions: dict[tuple[Any, ...], Flat] = {}
        self._bound_keys: dict[tuple[Any, ...], None] = {}  # those that can be bound without compiling
        self._lock = locks.lock()
        self._eager_run: Flat | None = None
        self._for_all: tuple[ForAllSizes, ...] = ()
        super().__init__(traced)
        try:
            self._version(self.example)
        except CannotTrace:
            self._set_dynamic_scalars([])
            self._version(self.example)

    def _set_dynamic_scalars(self, numbers: list[fx.Node]) -> None:
        super()._set_dynamic_scalars(numbers)
        self._readers = [self._places[leaf] for leaf in self._fixed]
        self._own_symbols = [(Symbol(name, leaf.example), leaf) for name, leaf in self._named]
        has_static_numbers = len(self._inputs) < len(placeholders(self._traced.graph))
        self._only_sizes = not has_static_numbers and not numbers and len(self._symbols) == len(self._fixed)
        self._tracings: list[tuple[tuple[Any, ...], Tracing]] = []  # with the floats it was specialized on
        self._why_static: str | None = None if self._symbols else "no size is dynamic"

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        if self._only_sizes:  # then every input is a tensor, and the key is their sizes
            for _, fits, run in self._for_all:
                if fits(*inputs):
                    return run(*inputs)
            sizes = tuple([read(inputs[place]) for place, read in self._readers])
            known = self._versions.get(sizes)
            return (known or self._version(SymbolValues(zip(self._fixed, sizes, strict=True))))(*inputs)
        values = self._values(inputs)
        run = self._versions.get(self._key(values)) or self._version(values)
        if run is self._eager_run:
            return run(*inputs)
        tensors = [each for place, each in enumerate(inputs) if place in self._inputs]
        return run(*tensors, *[scalar_tensor(number_at(node, values)) for node in self._dynamic_scalars])

    __call__.checks_overlap = True  # type: ignore[attr-defined]  # each version does, where it mutates inputs

    def unchecked(self, *inputs: Any) -> Unchecked | None:
        """The version for such inputs, if the numbers it takes are inputs as they are."""
        run = self._versions.get(self._key(self._values(inputs)))
        inner = None if run is None or run is self._eager_run else unchecked(run)
        places = {leaf: place for leaf, (place, _) in self._places.items() if place not in self._inputs}
        leaves = [spec.what for node in self._dynamic_scalars if isinstance(spec := spec_of(node), NumberSpec)]
        scalars = [each.symbol if isinstance(each, Expression) else each for each in leaves]
        numbers = tuple([places[each] for each in scalars if each in places])
        if inner is None or len(numbers) < len(self._dynamic_scalars):
            return None
        fixed = tuple([places[leaf] for leaf in self._fixed if leaf in places])
        return replace(inner, scalars=numbers, fixed=fixed)

    def is_ready(self, *inputs: Any) -> bool:
        """Whether the version that a call with such inputs runs is there; they are asked for nothing but sizes."""
        return self._key(self._values(inputs)) in self._versions

    def prepare(self, *inputs: Any) -> None:
        """Have that version."""
        if not self.is_ready(*inputs):
            self._version(self._values(inputs))

    def _values(self, inputs: tuple[Any, ...]) -> SymbolValues:
        return SymbolValues((leaf, read(inputs[place])) for leaf, (place, read) in self._places.items())

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
        run = self._bound(values)
        is_sized = run is not None or self._fits_symbols(values)
        if not is_sized and len(self._versions) - len(self._bound_keys) >= LIMIT:
            return None
        if run is None:
            grad = torch.is_grad_enabled()
            timing = timed("compile for new sizes", "a graph for new sizes")
            with timing, torch._C._InferenceMode(False):
                torch._C._set_grad_enabled(grad)
                run = self._compiler.compile_static(self.at(values), lambda: self._in_symbols(values))
            is_sized = self._fits_symbols(values)
        self._versions[key] = run
        if not is_sized:
            count("sizes_compiled")
        else:
            count("sizes_bound")
            self._bound_keys[key] = None
            if len(self._bound_keys) > BOUND_LIMIT:
                oldest = next(iter(self._bound_keys))
                del self._bound_keys[oldest], self._versions[oldest]
        return run

    def _bound(self, values: Values) -> Flat | None:
        """A version by binding only: a KV cache has another length at every token."""
        if len(self._versions) < STORED or self._is_static(values):
            return None
        numbers = self._numbers(values)
        tracing = self._tracing(values, numbers)
        if tracing is None or not tracing.is_made_for(numbers):
            return None
        grad = torch.is_grad_enabled()
        with torch._C._InferenceMode(False):
            torch._C._set_grad_enabled(grad)
            bound = Bound(tracing, numbers)
            return self._bound_for_all(bound) or self._compiler.bind(bound, lambda: self.at(values))

    def _bound_for_all(self, bound: Bound) -> Flat | None:
        """A version for these sizes and others, which needs none of its own."""
        if not self._only_sizes:
            return None
        readings = [Reading(symbol, *self._layout_places[leaf]) for symbol, leaf in self._own_symbols]
        version = self._compiler.bind_all(bound, readings, self._run_eagerly)
        if version is None:
            return None
        self._for_all = (version, *[each for each in self._for_all if each.key is not version.key])
        return version.run

    def _run_eagerly(self, *inputs: Any) -> tuple[Any, ...]:
        return self._eager()(*inputs)

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
        if self._is_static(values):
            return False
        return len(self._tracings) < VERSIONS or self._tracing(values, self._numbers(values)) is not None

    def _is_static(self, values: Values) -> bool:
        """Whether symbols cannot stand for these sizes."""
        return self._why_static is not None or any(values[leaf] < SMALLEST for leaf in self._symbols)

    def _numbers(self, values: Values) -> dict[Symbol, int]:
        """Values by symbols of any shape_env of ours."""
        return {symbol: values[leaf] for symbol, leaf in self._own_symbols}

    def _floats(self, values: Values) -> tuple[Any, ...]:
        return tuple([values[leaf].hex() for leaf in self._fixed if not isinstance(leaf, Symbol)])

    def _tracing(self, values: Values, numbers: Mapping[Symbol, int]) -> Tracing | None:
        floats = self._floats(values)
        fitting = (each for with_floats, each in self._tracings if with_floats == floats and hold(each.facts, numbers))
        return next(fitting, None)

    def _in_symbols(self, values: Values) -> Bound | None:
        """The graph in symbols, with the sizes to bind; None, with a reason, if it cannot be."""
        if not self._fits_symbols(values):
            return None
        numbers = self._numbers(values)
        tracing = self._tracing(values, numbers)
        if tracing is None:
            try:
                traced, shape_env = self.over(values)
                tracing = self._compiler.trace(traced, shape_env)
            except Exception as error:  # compile for plain sizes instead
                if self._compiler.check_specs and is_fault(error, DataDependent, FakeTensorError):
                    raise
                self._compile_static(f"{type(error).__name__}: {error}")
                return None
            if all(shape_env.simplest(Expression.of(symbol)).constant is not None for symbol in shape_env.symbols):
                self._compile_static(f"it relies on each: {', '.join(map(str, shape_env.guards))}")
                return None
            count("sizes_traced")
            self._tracings.append((self._floats(values), tracing))
        return Bound(tracing, numbers)

    def _compile_static(self, reason: str) -> None:
        self._why_static = reason
        count("sizes_refused")
        emit("sizes", f"a graph is compiled for each combination of sizes: {reason}")
