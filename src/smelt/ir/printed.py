"""Graphs that survive being printed: a `GraphModule` is Python code, and not all that a node holds is Python.

x.to(bool)                                    →   x.to(torch.bool)
x.random_(**{"from": 1, "to": 5})             →   x.random_(1, 5)
torch.ops.aten.random.from(x, 1, 5)           →   getattr(torch.ops.aten.random, 'from')(x, 1, 5)
"""

import keyword
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate

_DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}

Lines = list[str]


def make_printable(graph: fx.Graph) -> None:
    """Write what has no form as code in another way that means the same."""
    renamed: set[str] = set()
    for node in graph.nodes:
        if any(_has_type(value) for value in (*node.args, *node.kwargs.values())):
            node.args, node.kwargs = map_aggregate((node.args, node.kwargs), _as_dtype)
        if any(map(keyword.iskeyword, node.kwargs)):
            _pass_by_position(node)
        if isinstance(node.target, torch._ops.OpOverload) and keyword.iskeyword(node.target._overloadname):
            renamed.add(f"torch.ops.{node.target}")
    if renamed:
        graph.on_generate_code(lambda before: _fetching(renamed, before))


def _has_type(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return any(map(_has_type, value))
    return isinstance(value, type)


def _as_dtype(value: Any) -> Any:
    """A Python type as the dtype that PyTorch takes it for."""
    return _DTYPES.get(value, value) if isinstance(value, type) else value


def _pass_by_position(node: fx.Node) -> None:
    """Arguments whose names are words of Python's own, and those before them, by position."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    packet = getattr(torch.ops.aten, str(name), None)
    overloads = [getattr(packet, each) for each in packet.overloads()] if packet is not None else []
    if isinstance(node.target, torch._ops.OpOverload):
        overloads = [node.target]
    for overload in overloads:
        arguments = overload._schema.arguments
        if not set(node.kwargs) <= {each.name for each in arguments}:
            continue
        args, named = list(node.args), dict(node.kwargs)
        for each in arguments[len(args) :]:
            if each.kwarg_only or each.name not in named:
                break
            args.append(named.pop(each.name))
        if not any(map(keyword.iskeyword, named)):
            node.args, node.kwargs = tuple(args), named
            return


def _fetching(names: set[str], before: Callable[[Lines], Lines] | None) -> Callable[[Lines], Lines]:
    """Code in which operators of these names, of which the last part is a word of Python's own, are fetched by it."""
    called = re.compile(r"(?<![\w.'\"])(" + "|".join(map(re.escape, sorted(names))) + r")\(")

    def fetch(match: "re.Match[str]") -> str:
        owner, _, overload = match[1].rpartition(".")
        return f"getattr({owner}, {overload!r})("

    def transform(body: Lines) -> Lines:
        return [called.sub(fetch, line) for line in (body if before is None else before(body))]

    return transform
