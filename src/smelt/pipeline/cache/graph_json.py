"""A torch-level graph as data and back, for a process that has its code but never captured it.

    add = torch.add(x, 2)   →   ["call_function", "add", ["#f", "torch", "add"], ["t", ["#%", 0], 2], ["m"], null]

Functions are known by where they are found, and only those of PyTorch and of Python itself (`function_place`). The
program may put wrappers into their places at any time, so they are found when a graph is loaded, whenever it is made.
"""

import functools
import hashlib
import json
import os
import sys
import types
from collections.abc import Callable
from enum import Enum
from functools import partial, reduce
from typing import Any

import torch
from torch import fx

from smelt.base.paths import PACKAGE
from smelt.base.torch_originals import own_name
from smelt.ir import serialize
from smelt.ir.graph import GraphLevel, Traced
from smelt.ir.json_values import decode, encode
from smelt.ir.serialize import CannotStore
from smelt.ir.tensorspec import NodeSpec, NumberSpec, TensorSpec, set_spec, spec_of
from smelt.symbolic.symnode import Formula

# Whose functions are known by name, because their code is part of the key or of Python itself.
KNOWN = ("torch", "smelt", "operator", "_operator", "math", "builtins")
_OPS = ("placeholder", "call_function", "call_method", "output")


def dump(graph: fx.Graph) -> list[Any]:
    """The nodes, in order; `CannotStore` if one of them has no form."""
    places: dict[fx.Node, int] = {}

    def other(value: Any) -> Any:
        if isinstance(value, fx.Node):
            return ["#%", places[value]]
        if isinstance(value, torch._ops.OpOverload):
            return serialize.operator_form(value)
        if isinstance(value, torch._ops.OpOverloadPacket):
            return ["#p", *serialize.operator_form(getattr(value, value._overload_names[0]))]
        if isinstance(value, Enum):
            return ["#u", *function_place(type(value)), value.name]
        return ["#f", *function_place(value)]

    rows = []
    for place, node in enumerate(graph.nodes):
        if node.op not in _OPS:
            raise CannotStore(f"the graph has a {node.op} node")
        target = other(node.target) if node.op == "call_function" else node.target
        spec = _spec_form(spec_of(node)) if node.op == "placeholder" else None  # those of the others follow from them
        rows.append([node.op, node.name, target, encode(node.args, other), encode(node.kwargs, other), spec])
        places[node] = place
    return rows


def _spec_form(spec: NodeSpec) -> Any:
    if isinstance(spec, TensorSpec):
        return serialize.dump(spec)
    assert isinstance(spec, NumberSpec)
    what = spec.what
    example = what.example if isinstance(what, Formula) else what.evaluate(lambda symbol: symbol.example)
    return f"{spec} {example!r}"


def has_numbers(rows: list[Any]) -> bool:
    """Whether an input is a number: such a graph has a key, but is not made again."""
    return any(isinstance(row[-1], str) for row in rows)


def digest(rows: list[Any]) -> str:
    """What only equal graphs share, whatever their nodes are called."""
    nameless = [[op, None if op == "placeholder" else target, *rest] for op, _, target, *rest in rows]
    text = json.dumps(nameless, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


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
    if form[0] == "#p":
        return serialize.operator(form[1:]).overloadpacket
    kind, module, path, *member = form
    if module.partition(".")[0] not in KNOWN:
        raise ValueError(f"{module} is not PyTorch's")
    function: Any = reduce(getattr, path.split("."), sys.modules[module])
    if not _is_original(function, module, path):
        raise ValueError(f"{module}.{path} was replaced by the program")
    return function[member[0]] if kind == "#u" else function


def _is_original(function: Any, module: str, path: str) -> bool:
    if isinstance(function, types.FunctionType) and not (own_name(function) or _is_of_smelt(function)):
        return False
    try:
        return function_place(function) == (module, path)
    except CannotStore:
        return False


def function_place(function: Any) -> tuple[str, str]:
    """The module that a function of PyTorch's or Python's own is found in, and under what name."""
    if not isinstance(function, types.FunctionType | types.BuiltinFunctionType | types.MethodDescriptorType | type):
        raise CannotStore(f"a node calls a {type(function).__qualname__}")
    owner = getattr(function, "__objclass__", None)
    module = getattr(owner or function, "__module__", None) or ""
    if module.partition(".")[0] not in KNOWN:
        raise CannotStore(f"{module}.{function.__name__} is a user's function")
    if isinstance(function, types.FunctionType) and not function.__code__.co_filename.startswith(_code_folders()):
        raise CannotStore(f"{module}.{function.__name__} was replaced by the program")  # by a wrapper of its name, say
    return module, _found_name(function, module, owner)


def _is_of_smelt(function: types.FunctionType) -> bool:
    return function.__code__.co_filename.startswith(_code_folders()[1])


@functools.cache
def _code_folders() -> tuple[str, ...]:
    return (os.path.join(torch.__path__[0], ""), PACKAGE)


def _found_name(function: Any, module: str, owner: Any) -> str:
    """The name under which a function is found again in its module."""
    place = owner if owner is not None else sys.modules.get(module)
    for name in (function.__name__, function.__qualname__):
        value: Any = place
        for part in name.split("."):
            value = getattr(value, part, None)
        if value is function or (owner is not None and value == function):
            return f"{owner.__qualname__}.{name}" if owner is not None else name
    raise CannotStore(f"{module}.{function.__qualname__} is not found under its name")
