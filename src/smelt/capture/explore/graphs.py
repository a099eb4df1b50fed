"""What exploring does to captured graphs, so that each is a function of registers.

return x.t()               →   return x.t().contiguous()           a register is contiguous, and its own memory
x.add_(1)                  →   own = x.clone(); own.add_(1)        what the next state has for `x` is `own`
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from smelt.capture.explore.abstraction import standing_in
from smelt.capture.model.marks import DYNAMIC, OPEN_SIZES
from smelt.ir.graph import GraphLevel, Traced, output_node, placeholders
from smelt.ir.nodes.ambient import Ambient, set_autocast, setting_attention
from smelt.ir.tensorspec import TensorSpec, set_spec, tensor_spec
from smelt.symbolic.expressions import SMALLEST, Expression, ShapeEnv, Symbol
from smelt.symbolic.shapes import contiguous_stride
from smelt.symbolic.symnode import example_of, is_symbolic, meaning


class GraphRecorder:
    """A `GraphCompiler` that compiles nothing: it keeps the graph."""

    def __init__(self) -> None:
        self.traced: Traced | None = None

    def __call__(self, traced: Traced) -> Any:
        self.traced = traced
        return _never_run

    def outputs(self) -> list[fx.Node]:
        """What the graph returns."""
        if self.traced is None:
            return []
        nodes: Any = output_node(self.traced.graph).args[0]
        return list(nodes)


def _never_run(*inputs: Any) -> Any:
    raise AssertionError("a graph that is only explored was run")


def stand_in_for(node: fx.Node, open_symbols: frozenset[Symbol], shape_env: ShapeEnv) -> torch.Tensor:
    """A tensor that stands for what a node returns, contiguous; sizes in symbols are marked."""
    spec = tensor_spec(node)
    sizes = {dim: Expression.of(meaning(size)) for dim, size in enumerate(spec.shape) if is_symbolic(size)}
    opened = frozenset(dim for dim, size in sizes.items() if open_symbols & size.symbols())
    least = Expression.of(SMALLEST)
    small = frozenset(dim for dim, size in sizes.items() if not shape_env.known(">=", size, least))
    shape = tuple(int(example_of(size)) for size in spec.shape)
    return standing_in(shape, spec.dtype, spec.device, frozenset(sizes), opened, spec.requires_grad, small)


def marks_of(tensor: torch.Tensor) -> tuple[int | None, ...]:
    """Sizes, None for those that may be any."""
    marked = tensor.__dict__.get(DYNAMIC, frozenset()) | tensor.__dict__.get(OPEN_SIZES, frozenset())
    return tuple(None if dim in marked else int(size) for dim, size in enumerate(tensor.shape))


def own_written(traced: Traced, place: int) -> fx.Node:
    """Let a graph that writes an input write a copy of it instead: the copy."""
    graph = traced.graph
    written = placeholders(graph)[place]
    first = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(first):
        copy = graph.call_function(torch.clone, (written,))
    set_spec(copy, tensor_spec(written))
    written.replace_all_uses_with(copy, delete_user_cb=lambda user: user is not copy)
    return copy


def append_output(traced: Traced, node: fx.Node) -> None:
    """One more output, behind the others."""
    end = output_node(traced.graph)
    returned: Any = end.args[0]
    end.args = ((*returned, node),)


def make_own(traced: Traced, place: int, shared: bool) -> None:
    """Let an output be contiguous and, if it is `shared`, memory of its own."""
    end = output_node(traced.graph)
    returned: Any = list(end.args[0])  # type: ignore[arg-type]
    node = returned[place]
    spec = tensor_spec(node)
    strides = contiguous_stride(spec.shape)
    plain = all(
        not is_symbolic(have) and not is_symbolic(want) and have == want
        for have, want in zip(spec.stride, strides, strict=True)
    )
    if plain and not shared and type(spec.offset) is int and spec.offset == 0:
        return
    with traced.graph.inserting_before(end):
        copy = traced.graph.call_function(torch.clone, (node,), {"memory_format": torch.contiguous_format})
    set_spec(copy, replace(spec, stride=strides, offset=0))
    returned[place] = copy
    end.args = (tuple(returned),)


def in_ambient(traced: Traced, ambient: Ambient, outside: Ambient) -> None:
    """Let a graph that was captured in some state of the process set it, and put back what was there: it runs beside
    others, which were captured in others."""
    graph = traced.graph
    first = next(node for node in graph.nodes if node.op != "placeholder")
    _switch(graph, first, outside, ambient)
    _switch(graph, output_node(graph), ambient, outside)


def _switch(graph: fx.Graph, place: fx.Node, before: Ambient, after: Ambient) -> None:
    with graph.inserting_before(place):
        if before.records != after.records:
            graph.call_function(torch._C._set_grad_enabled, (after.records,))
        for old, new in zip(before.casts, after.casts, strict=True):
            if old != new or before.cached != after.cached:
                graph.call_function(set_autocast, (*new, after.cached))
        if before.attention != after.attention:
            graph.call_function(*setting_attention(after.attention))


def each_by(function: Callable[[torch.Tensor], torch.Tensor], specs: list[TensorSpec]) -> Traced:
    """A graph that returns what a function makes of each tensor that it is given, which is of the same spec."""
    graph = fx.Graph()
    inputs = [graph.placeholder(f"given_{number}") for number in range(len(specs))]
    results = []
    for node, spec in zip(inputs, specs, strict=True):
        set_spec(node, spec)
        results.append(graph.call_function(function, (node,)))
        set_spec(results[-1], spec)
    graph.output(tuple(results))
    return Traced(graph, GraphLevel.TORCH)
