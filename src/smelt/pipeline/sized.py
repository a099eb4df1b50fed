"""A graph whose sizes differ from call to call, compiled once for each combination of sizes that comes.

    graph over x: f32[s0, 4]   →   a call with f32[7, 4] compiles for 7; the next one with 7 finds that again

The graph itself was captured once. `LIMIT` combinations are kept; what comes after is run by PyTorch, operator by
operator, with one warning.
"""

import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from smelt.base.errors import SmeltWarning
from smelt.base.events import count, timed
from smelt.base.symbols import Expression, Symbol
from smelt.base.symint import Formula, is_symbolic, meaning
from smelt.ir.graph import Traced, placeholders
from smelt.ir.tensorspec import NumberSpec, TensorSpec, set_spec, spec_of
from smelt.runtime.wrap import Flat

LIMIT = 64

Sizes = tuple[Any, ...]


def is_sized(traced: Traced) -> bool:
    """Whether a graph's inputs have sizes that differ from call to call, or are numbers."""
    return any(_symbols_of(node) for node in placeholders(traced.graph))


def _symbols_of(node: fx.Node) -> list[tuple[Any, int]]:
    """The symbols an input tells, with the dimension of each; -1 for an input that is a number itself."""
    spec = spec_of(node)
    if isinstance(spec, NumberSpec):
        return [(spec.what.symbol if isinstance(spec.what, Expression) else spec.what, -1)]
    assert isinstance(spec, TensorSpec)
    told = [(_symbol(size), dim) for dim, size in enumerate(spec.shape)]
    return [(symbol, dim) for symbol, dim in told if symbol is not None]


def _symbol(size: Any) -> Symbol | None:
    found = meaning(size)
    return found.symbol if isinstance(found, Expression) else None


class SizedGraph:
    """Calls the version of a graph that was compiled for the sizes at hand."""

    def __init__(self, traced: Traced, compile_graph: Callable[[Traced], Flat]) -> None:
        self._traced = traced
        self._compile = compile_graph
        self._places: dict[Any, tuple[int, int]] = {}
        for number, node in enumerate(placeholders(traced.graph)):
            for symbol, dim in _symbols_of(node):
                self._places.setdefault(symbol, (number, dim))
        self._numbers = frozenset(place for place, dim in self._places.values() if dim < 0)
        self._versions: dict[Sizes, Flat] = {}
        self._lock = threading.Lock()
        self._plain: Flat | None = None
        self._version(tuple(symbol.example for symbol in self._places))

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        sizes = tuple(
            [inputs[place] if dim < 0 else inputs[place].shape[dim] for place, dim in self._places.values()]
        )
        run = self._versions.get(sizes) or self._version(sizes)
        if self._numbers and run is not self._plain:
            inputs = tuple([each for place, each in enumerate(inputs) if place not in self._numbers])
        return run(*inputs)

    def _version(self, sizes: Sizes) -> Flat:
        with self._lock:
            run = self._versions.get(sizes)
            if run is None:
                run = self._make(sizes) if len(self._versions) < LIMIT else self._by_pytorch()
        return run

    def _make(self, sizes: Sizes) -> Flat:
        count("sizes_compiled")
        grad = torch.is_grad_enabled()
        with timed("compile for new sizes"), torch.inference_mode(False):
            torch._C._set_grad_enabled(grad)
            run = self._versions[sizes] = self._compile(self._at(dict(zip(self._places, sizes, strict=True))))
        return run

    def _by_pytorch(self) -> Flat:
        if self._plain is None:
            warnings.warn(
                f"SM012: a graph was compiled for {LIMIT} combinations of sizes; for others PyTorch runs it. "
                "Pad inputs to fewer sizes.",
                SmeltWarning,
                stacklevel=2,
            )
            forward = self._traced.to_module().forward
            self._plain = lambda *inputs: tuple(forward(*inputs))
        return self._plain

    def _at(self, values: dict[Any, Any]) -> Traced:
        """The graph for these sizes: numbers are constants, inputs have plain shapes."""
        graph = fx.Graph()
        made: dict[fx.Node, Any] = {}
        for node in self._traced.graph.nodes:
            spec = spec_of(node)
            if isinstance(spec, NumberSpec):
                made[node] = spec.what.evaluate(values.__getitem__)
                continue
            copy = made[node] = graph.node_copy(node, lambda used: made[used])
            if node.op == "output":
                copy.args = map_arg(node.args, lambda used: made[used])
            if node.op == "placeholder":
                assert isinstance(spec, TensorSpec)
                shape = tuple(_value(size, values) for size in spec.shape)
                stride = tuple(_value(step, values) for step in spec.stride)
                set_spec(copy, replace(spec, shape=shape, stride=stride, offset=_value(spec.offset, values)))
        return Traced(graph, self._traced.level, self._traced.constants)


def _value(size: Any, values: dict[Any, Any]) -> Any:
    what = meaning(size)
    if not is_symbolic(size):
        return size
    assert isinstance(what, Expression | Formula)
    return what.evaluate(values.__getitem__)
