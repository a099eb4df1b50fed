"""A torch-level graph as data and back, for a process that has its code but never captured it.

    add = torch.add(x, 2)   →   ["call_function", "add", ["#f", "torch", "add"], ["t", ["#%", 0], 2], ["m"], null]

Functions are known by where they are found, and only those of PyTorch and of Python itself (`keys.function_place`).
"""

import sys
from functools import reduce
from typing import Any

import torch
from torch import fx

from smelt.ir import stored
from smelt.ir.graph import Level, Traced
from smelt.ir.plain import decode, encode
from smelt.ir.tensorspec import TensorSpec, set_spec, spec_of
from smelt.pipeline.keys import KNOWN, Unstorable, function_place


def dump(graph: fx.Graph) -> list[Any]:
    """The nodes, in order; `Unstorable` if one of them has no form."""
    places: dict[fx.Node, int] = {}

    def other(value: Any) -> Any:
        if isinstance(value, fx.Node):
            return ["#%", places[value]]
        if isinstance(value, torch._ops.OpOverload):
            return stored.operator_form(value)
        return ["#f", *function_place(value)]

    rows = []
    for place, node in enumerate(graph.nodes):
        target = other(node.target) if node.op == "call_function" else node.target
        spec = None
        if node.op == "placeholder":
            found = spec_of(node)
            if not isinstance(found, TensorSpec):
                raise Unstorable("an input is a number")
            spec = stored.dump(found)
        rows.append([node.op, node.name, target, encode(node.args, other), encode(node.kwargs, other), spec])
        places[node] = place
    return rows


def load(rows: list[Any]) -> Traced:
    """The graph of what `dump` wrote."""
    graph = fx.Graph()
    nodes: list[fx.Node] = []

    def other(form: Any) -> Any:
        kind, *rest = form
        if kind == "#%":
            return nodes[rest[0]]
        return stored.operator(form) if kind == "#o" else _found(*rest)

    for op, name, target, args, kwargs, spec in rows:
        called = other(target) if op == "call_function" else target
        node = graph.create_node(op, called, decode(args, other), decode(kwargs, other), name)
        if spec is not None:
            set_spec(node, stored.parse(spec))
        nodes.append(node)
    return Traced(graph, Level.TORCH, {})


def _found(module: str, path: str) -> Any:
    if module.partition(".")[0] not in KNOWN:
        raise ValueError(f"{module} is not PyTorch's")
    return reduce(getattr, path.split("."), sys.modules[module])
