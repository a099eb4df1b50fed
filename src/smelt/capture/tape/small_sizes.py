"""Whether a graph is right for sizes of 0 and 1 too, which it was not captured for: its operators are asked again.

    z = x[mask].squeeze()        f32[u0] for every u0 but 1, for which it is f32[]: another graph

What operators return for these sizes is compared with what the graph says of them, node by node. A program that looks
at no more than that does the same then.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from smelt import _native
from smelt.base.torch_originals import method
from smelt.ir.nodes.ambient import Ambient, restored, without_default_devices
from smelt.ir.nodes.size_check import SizeCheck
from smelt.ir.tensorspec import NumberSpec, TensorSpec, spec_of
from smelt.meta.fake_tensor import FakeMode, FakeTensor, without_caller_hooks
from smelt.meta.nonleaf import computed
from smelt.symbolic.expressions import Expression, Symbol
from smelt.symbolic.symnode import Formula, is_symbolic, meaning

Values = Mapping[Symbol, int]


class Refit:
    """`refit(values)`: whether the graph is right where sizes are these; other sizes are as in the example."""

    def __init__(self, graph: fx.Graph, defining: frozenset[fx.Node], entry: Ambient) -> None:
        self._graph, self._defining, self._entry = graph, defining, entry

    def __call__(self, values: Values) -> bool:
        fits: bool = _native.preserving_state(self._fits, values)
        return fits

    def _fits(self, values: Values) -> bool:
        with torch._C._InferenceMode(False), without_caller_hooks(), restored(), without_default_devices():
            torch._C._set_grad_enabled(self._entry.records)
            try:
                with torch._C.DisableTorchFunctionSubclass(), FakeMode():  # type: ignore[no-untyped-call]
                    return self._run(values)
            except Exception:  # an operator refuses the size, or only data could tell more
                return False

    def _run(self, values: Values) -> bool:
        def value(leaf: Any) -> Any:
            return values.get(leaf, leaf.example) if isinstance(leaf, Symbol) else leaf.example

        values_by_node: dict[fx.Node, Any] = {}
        for node in self._graph.nodes:
            if node.op == "output" or isinstance(node.target, SizeCheck):
                continue
            spec = _at(spec_of(node), value)
            if node.op == "placeholder" or node in self._defining or isinstance(spec_of(node), NumberSpec):
                values_by_node[node] = _fakes(spec)
                continue
            args, kwargs = map_arg((node.args, dict(node.kwargs)), values_by_node.__getitem__)
            function: Any = method(str(node.target)) if node.op == "call_method" else node.target
            values_by_node[node] = function(*args, **kwargs)
            if not _alike(values_by_node[node], spec):
                return False
        return True


def _at(spec: Any, value: Any) -> Any:
    if isinstance(spec, NumberSpec):
        return spec.what.evaluate(value)
    if isinstance(spec, TensorSpec):

        def plain(size: Any) -> Any:
            what = meaning(size) if is_symbolic(size) else size
            return what.evaluate(value) if isinstance(what, Expression | Formula) else what

        shape, stride = tuple(map(plain, spec.shape)), tuple(map(plain, spec.stride))
        return replace(spec, shape=shape, stride=stride, offset=plain(spec.offset))
    return type(spec)(_at(each, value) for each in spec) if isinstance(spec, tuple | list) else spec


def _fakes(spec: Any) -> Any:
    if isinstance(spec, tuple | list):
        return type(spec)(map(_fakes, spec))
    if not isinstance(spec, TensorSpec):
        return spec
    fake: Any = FakeTensor(spec)
    return computed(fake, lambda: FakeTensor(replace(spec, requires_grad=False))) if spec.requires_grad else fake


def _alike(result: Any, spec: Any) -> bool:
    """Whether a result is what the graph says of it, as far as programs see: not its strides, which they ask for."""
    if isinstance(spec, TensorSpec):
        if not isinstance(result, torch.Tensor):
            return False
        return (tuple(result.shape), result.dtype, result.requires_grad) == (spec.shape, spec.dtype, spec.requires_grad)
    if isinstance(spec, tuple | list):
        same = isinstance(result, tuple | list) and len(result) == len(spec)
        return same and all(map(_alike, result, spec))
    return not isinstance(result, torch.Tensor)
