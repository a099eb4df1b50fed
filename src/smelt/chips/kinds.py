"""Operator calls as graphs: what two calls have in common that one kernel serves, and the graph of such a kind.

    add(f32[3, 4], f32[3, 4], alpha=0.5)     kind: add of two contiguous matrices and a float
                                             graph: add(f32[s0, s1], f32[s2, s3], alpha=number)

Sizes are symbols but for 0 and 1, floats are operands; everything else is part of the kind. A tensor whose memory has
gaps is described by its very layout.
"""

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from smelt.device.host_library import HOST, on_host
from smelt.dispatch.signatures import Kind, Signature
from smelt.dispatch.tensors import layout_of
from smelt.ir.graph import GraphLevel, Traced, add_node
from smelt.ir.tensorspec import NumberSpec, TensorSpec, set_spec
from smelt.symbolic.expressions import SMALLEST, Expression, ShapeEnv
from smelt.symbolic.symnode import Formula, as_number

Pattern = tuple[Any, ...]


class Operands:
    """The arguments of one call: its tensors, each once, its floats, and the places of both."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.numbers: list[float] = []

    def place(self, tensor: torch.Tensor) -> int:
        for number, known in enumerate(self.tensors):
            if known is tensor:
                return number
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def inputs(self) -> list[Any]:
        return [*self.tensors, *self.numbers]


def read(known: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Operands, tuple[Any, ...]]:
    """The arguments of a call, and the call without them, as something that can be compared."""
    operands = Operands()
    positional = tuple(_encoded(kind, each, operands) for kind, each in zip(known.kinds, args, strict=False))
    named = tuple((name, _encoded(known.by_name[name], each, operands)) for name, each in sorted(kwargs.items()))
    return operands, (known.operator, positional, named)


def _encoded(kind: Kind, value: Any, operands: Operands) -> Any:
    if isinstance(value, torch.Tensor):
        return ("tensor", operands.place(value))
    if isinstance(value, tuple | list):
        return ("list", tuple(_encoded(kind, item, operands) for item in value))
    if type(value) is float and kind in (Kind.NUMBER, Kind.TENSOR):
        operands.numbers.append(value)
        return ("number", len(operands.numbers) - 1)
    return ("value", type(value).__name__, repr(value) if isinstance(value, float | complex) else value)


def pattern_of(tensor: torch.Tensor) -> Pattern:
    """What of a tensor's layout is part of a kind."""
    shape, stride, _, dtype = layout_of(tensor)
    order = _order(shape, stride)
    host = on_host(tensor.device)
    if order is None:
        return (dtype, host, tuple(shape), stride)
    return (dtype, host, tuple(size if size < SMALLEST else -1 for size in shape), order)


def _order(shape: Sequence[int], stride: Sequence[int]) -> tuple[int, ...] | None:
    """The dimensions from the outermost in memory to the innermost, if those are all: without repeated ones, which have
    a stride of 0, and those of one element. None where there are gaps."""
    if 0 in shape:
        return None
    dims = [dim for dim, size in enumerate(shape) if size != 1 and stride[dim] != 0]
    dims.sort(key=lambda dim: (-stride[dim], dim))
    expected = 1
    for dim in reversed(dims):
        if stride[dim] != expected:
            return None
        expected *= shape[dim]
    return tuple(dims)


def graph_of(
    known: Signature,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    operands: Operands,
    results: Sequence[bool],
    is_one: bool,
    static: bool,
) -> Traced:
    """The graph of a call. `results`: which of those it returns are new; `static`: for the sizes of the call alone."""
    graph, shape_env = fx.Graph(), ShapeEnv()
    tensors = []
    for number, tensor in enumerate(operands.tensors):
        node = graph.placeholder(f"input_{number}")
        set_spec(node, spec_of_input(tensor, number, shape_env, static))
        tensors.append(node)
    numbers = []
    for number, value in enumerate(operands.numbers):
        node = graph.placeholder(f"number_{number}")
        set_spec(node, NumberSpec(Formula(None, (), value, f"number_{number}")))
        numbers.append(node)
    floats = iter(numbers)

    def node_of(kind: Kind, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return tensors[operands.place(value)]
        if isinstance(value, tuple | list):
            return [node_of(kind, item) for item in value]
        return next(floats) if type(value) is float and kind in (Kind.NUMBER, Kind.TENSOR) else value

    positional = tuple(node_of(kind, each) for kind, each in zip(known.kinds, args, strict=False))
    by_name = {name: node_of(known.by_name[name], each) for name, each in sorted(kwargs.items())}
    named = {name: by_name[name] for name in kwargs}
    call = add_node(graph, "call_function", known.operator, positional, named)
    fresh = [place for place, is_new in enumerate(results) if is_new]
    returned = [call] if is_one else [add_node(graph, "call_function", operator.getitem, (call, p), {}) for p in fresh]
    graph.output(tuple(returned[: len(fresh)]))
    return Traced(graph, GraphLevel.TORCH)


def spec_of_input(tensor: torch.Tensor, number: int, shape_env: ShapeEnv, static: bool) -> TensorSpec:
    """What the compiler is told of an input."""
    shape, stride, _, dtype = layout_of(tensor)
    device = HOST if on_host(tensor.device) else torch.device(tensor.device.type, 0)
    order = _order(shape, stride)
    if static or order is None:
        return TensorSpec(tuple(shape), tuple(stride), dtype, device)
    sizes = [
        size if size < SMALLEST else as_number(shape_env, Expression.of(shape_env.symbol(f"t{number}_{dim}", size)))
        for dim, size in enumerate(shape)
    ]
    steps: list[Any] = [0] * len(shape)
    expected: Any = 1
    for dim in reversed(order):
        steps[dim] = expected
        expected = expected * sizes[dim]
    for dim in reversed(range(len(shape))):
        if shape[dim] == 1:  # as in a contiguous tensor: nobody steps along it
            steps[dim] = steps[dim + 1] * sizes[dim + 1] if dim + 1 < len(shape) and stride[dim + 1] else 1
    return TensorSpec(tuple(sizes), tuple(steps), dtype, device)
