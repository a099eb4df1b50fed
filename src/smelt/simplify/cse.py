"""Common subexpression elimination.

    sin = sin(x); sin_1 = sin(x); return sin + sin_1        →       sin = sin(x); return sin + sin

Two calls are equal if they have the same operator and the same arguments: 1, 1.0 and True differ, and so do 0.0 and
-0.0. Sums and products are equal in either order. Random operators are never merged.
"""

from typing import Any

import torch
from torch import fx

from smelt.base.rewrite_budget import RewriteBudget
from smelt.ir.graph import Traced, as_key, call_key
from smelt.ir.tensorspec import spec_of
from smelt.meta.effects import is_view, why_not_share
from smelt.simplify.aliasing import AliasedMemory

aten = torch.ops.aten

_COMMUTATIVE = frozenset(
    {
        aten.add.Tensor,
        aten.mul.Tensor,
        aten.maximum.default,
        aten.minimum.default,
        aten.logical_and.default,
        aten.logical_or.default,
    }
)


def share_common(traced: Traced, budget: RewriteBudget) -> Traced:
    memory = AliasedMemory(traced.graph)
    known: dict[Any, fx.Node] = {}
    for node in list(traced.graph.nodes):
        if node.op == "get_attr":
            key: Any = ("get_attr", node.target)
        elif node.op != "call_function" or why_not_share(node) is not None:
            continue
        else:
            key = _key(node)
        if key is None:
            continue
        first = known.setdefault(key, node)
        if first is node or spec_of(first) != spec_of(node):
            continue
        same_memory = node.op == "get_attr" or is_view(node.target)
        if (same_memory or memory.may_share(node, first)) and budget.take(node, first):
            if same_memory:
                memory.took_over(node, first)
            node.replace_all_uses_with(first)
    return traced


def _key(node: fx.Node) -> Any:
    args = node.args
    if node.target in _COMMUTATIVE and len(args) == 2 and not node.kwargs:
        args = tuple(sorted(args, key=lambda each: repr(as_key(each))))
    return call_key(node.target, args, node.kwargs)
