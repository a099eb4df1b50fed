"""A torch-level graph as data and back, for a process that has its code but never captured it.

    add = torch.add(x, 2)   →   ["call_function", "add", ["#f", "torch", "add"], ["t", ["#%", 0], 2], ["m"], null]

Functions are known by where they are found, and only those of PyTorch and of Python itself (`keys.function_place`). The
program may put wrappers into their places at any time, so they are found when a graph is loaded, whenever it is made.
"""

import sys
import types
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import torch
from torch import fx

from smelt.base.torch_originals import own_name
from smelt.ir import serialize
from smelt.ir.graph import GraphLevel, Traced
from smelt.ir.json_values import decode, encode
from smelt.ir.tensorspec import TensorSpec, set_spec, spec_of
from smelt.pipeline.cache.keys import KNOWN, Unstorable, function_place, is_of_smelt


def dump(graph: fx.Graph) -> list[Any]:
    """The nodes, in order; `Unstorable` if one of them has no form."""
    places: dict[fx.Node, int] = {}

    def other(value: Any) -> Any:
        if isinstance(value, fx.Node):
            return ["#%", places[value]]
        if isinstance(value, torch._ops.OpOverload):
            return serialize.operator_form(value)
        return ["#f", *function_place(value)]

    rows = []
    for place, node in enumerate(graph.nodes):
        target = other(node.target) if node.op == "call_function" else node.target
        spec = None
        if node.op == "placeholder":
            tensor_spec = spec_of(node)
            if not isinstance(tensor_spec, TensorSpec):
                raise Unstorable("an input is a number")
            spec = serialize.dump(tensor_spec)
        rows.append([node.op, node.name, target, encode(node.args, other), encode(node.kwargs, other), spec])
        places[node] = place
    return rows


def load(rows: list[Any]) -> Traced:
    """The graph of what `dump` wrote."""
    return loader(rows)()


def loader(rows: list[Any]) -> Callable[[], Traced]:
    """Makes the graph of what `dump` wrote, of the functions that are found now; ValueError where one is another."""
    targets = {tuple(row[2]): None for row in rows if row[0] == "call_function"}
    return partial(_made, rows, {form: _called(form) for form in targets})


def _made(rows: list[Any], targets: dict[tuple[Any, ...], Any]) -> Traced:
    graph = fx.Graph()
    nodes: list[fx.Node] = []

    def other(form: Any) -> Any:
        kind, *rest = form
        if kind == "#%":
            return nodes[rest[0]]
        return _called(form)

    for op, name, target, args, kwargs, spec in rows:
        called = targets[tuple(target)] if op == "call_function" else target
        node = graph.create_node(op, called, decode(args, other), decode(kwargs, other), name)
        if spec is not None:
            set_spec(node, serialize.parse(spec))
        nodes.append(node)
    return Traced(graph, GraphLevel.TORCH, {})


def _called(form: Any) -> Any:
    if form[0] == "#o":
        return serialize.operator(form)
    _, module, path = form
    if module.partition(".")[0] not in KNOWN:
        raise ValueError(f"{module} is not PyTorch's")
    function = reduce(getattr, path.split("."), sys.modules[module])
    if not _is_original(function, module, path):
        raise ValueError(f"{module}.{path} was replaced by the program")
    return function


def _is_original(function: Any, module: str, path: str) -> bool:
    if isinstance(function, types.FunctionType) and not (own_name(function) or is_of_smelt(function)):
        return False
    try:
        return function_place(function) == (module, path)
    except Unstorable:
        return False
