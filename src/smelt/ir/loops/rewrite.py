"""Rewrites of the loop form that keep its structure: other operands, or other nodes for one.

rewritten(body, change, expand)     change(node, operand) → operand;  expand(node) → nodes in its place
"""

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from smelt.ir.loops import Function, Node, Value, called, walk

_BODIES = frozenset(("body", "then", "otherwise"))
_RESULTS = frozenset(("out", "index", "carried", "results", "seen", "stored"))


_fields: dict[type, tuple[tuple[str, str], ...]] = {}


def fields_of(kind: type) -> tuple[tuple[str, str], ...]:
    """The fields of a node type, each with what it has: a "body", several "values", or one of anything."""
    if kind not in _fields:
        annotations = [(each.name, str(each.type)) for each in fields(kind)]
        _fields[kind] = tuple(
            (name, "body" if name in _BODIES else "values" if "tuple[smelt.ir.loops.Value" in annotation else "one")
            for name, annotation in annotations
        )
    return _fields[kind]


def mentioned(function: Function) -> set[str]:
    """Names of the functions and tables that a function calls or takes the address of."""
    names = set[str]()
    for node in walk(function.body):
        for name, how in fields_of(type(node)):
            value: Any = getattr(node, name)
            values = value if how == "values" else (value,) if type(value) is Value else ()
            names.update(each.name[1:] for each in values if each.name[:1] == "@")
    return names | called(function)


def rewritten(
    body: Sequence[Node], change: Callable[[Node, Any], Any], expand: Callable[[Node], list[Node]]
) -> list[Node]:
    """A body with every operand, and the name of every function that is called, as `change` returns it. Operands come
    in the order of the nodes' fields; those that a node defines are not asked for."""
    nodes: list[Node] = []
    for node in body:
        values: list[Any] = []
        for name, how in fields_of(type(node)):
            value: Any = getattr(node, name)
            if name in _RESULTS:
                pass
            elif how == "body":
                value = rewritten(value, change, expand)
            elif how == "values":
                value = tuple([change(node, each) for each in value])
            elif type(value) is Value or name == "callee":
                value = change(node, value)
            values.append(value)
        nodes += expand(type(node)(*values))
    return nodes
