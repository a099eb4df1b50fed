"""A recorded path as a torch-level graph: the steps as calls, inputs and numbers that vary as placeholders.

The graph writes in place and takes views as the program did; the stage behind it makes it functional. Its outputs are
the whole memories that somebody can still see."""

import operator
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import fx

from smelt.ir.graph import GraphLevel, Traced, add_node
from smelt.ir.tensorspec import NumberSpec, TensorSpec, set_spec
from smelt.lazy.steps import Fresh, Operand, Ref, Step, View
from smelt.symbolic.expressions import Expression, Symbol
from smelt.symbolic.symnode import Formula


def build(
    path: Sequence[Step], live: Sequence[int], numbers: Sequence[Any], varying: Collection[int], device: torch.device
) -> Traced:
    """The graph of a path. Numbers at the places `varying` are inputs, after the tensors; others are constants."""
    graph = fx.Graph()
    values: dict[int, fx.Node] = {}
    for step in path:
        if step.layout is not None:
            values[step.first_value] = _placeholder(graph, step.layout, len(values), device)
    operands = {place: _number(graph, numbers[place], count) for count, place in enumerate(sorted(varying))}

    def real(argument: Any) -> Any:
        if isinstance(argument, Ref):
            return values[argument.value]
        if isinstance(argument, Operand):
            return operands.get(argument.place, numbers[argument.place])
        if isinstance(argument, list):
            return [real(item) for item in argument]
        return argument

    for step in path:
        if step.operator is None:
            continue
        args = tuple(map(real, step.args))
        kwargs = {name: real(value) for name, value in step.kwargs.items()}
        node = add_node(graph, "call_function", step.operator, args, kwargs)
        value = step.first_value
        for place, result in enumerate(step.results):
            if not isinstance(result, Fresh | View):
                continue
            one = step.form is None
            values[value] = node if one else add_node(graph, "call_function", operator.getitem, (node, place), {})
            value += 1
    graph.output(tuple(values[value] for value in live))
    return Traced(graph, GraphLevel.TORCH)


def _placeholder(graph: fx.Graph, layout: Any, number: int, device: torch.device) -> fx.Node:
    shape, stride, offset, dtype = layout
    node = graph.placeholder(f"input_{number}")
    set_spec(node, TensorSpec(tuple(shape), tuple(stride), dtype, device, offset))
    return node


def _number(graph: fx.Graph, value: Any, count: int) -> fx.Node:
    node = graph.placeholder(f"number_{count}")
    if isinstance(value, int):
        set_spec(node, NumberSpec(Expression.of(Symbol(f"number_{count}", value))))
    else:
        set_spec(node, NumberSpec(Formula(None, (), value, f"number_{count}")))
    return node
