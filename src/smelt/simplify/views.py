"""Merges consecutive views, and removes views that change nothing.

    view(view(x, [4, 8]), [32])         → view(x, [32])         permute(permute(x, [1, 0]), [1, 0]) → x
    expand(expand(x, [1, 8]), [4, 8])   → expand(x, [4, 8])     slice(x, 0, 0, its extent)          → x
"""

from typing import Any

import torch
from torch import fx

from smelt.base.rewrite_budget import RewriteBudget
from smelt.ir.graph import Traced
from smelt.ir.tensorspec import TensorSpec, spec_of, tensor_spec
from smelt.meta.effects import is_view
from smelt.simplify.aliasing import AliasedMemory, fits, insert, same_layout

aten = torch.ops.aten

# Views that only regroup extents: any of them, seen through `view`, is a `view` of what it views.
_REGROUPING = frozenset(
    {aten.view.default, aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.default, aten.squeeze.dims}
)


def compose_views(traced: Traced, budget: RewriteBudget) -> Traced:
    memory = AliasedMemory(traced.graph)
    for node in list(traced.graph.nodes):
        if node.op != "call_function" or not is_view(node.target) or not isinstance(spec_of(node), TensorSpec):
            continue
        source = node.args[0]
        if not isinstance(source, fx.Node):
            continue  # of a number: the gradient of `1j * x` has its conjugate
        if same_layout(node, source):
            if _keeps_order(node) and budget.take(node):
                memory.took_over(node, source)
                node.replace_all_uses_with(source)
            continue
        _compose(node, source, memory, budget)
    return traced


def _keeps_order(node: fx.Node) -> bool:
    """Whether equal specs mean equal views, as offset and strides say where each element is: not of conjugates."""
    return node.target not in (aten._conj.default, aten._neg_view.default, aten.view.dtype)


def _compose(node: fx.Node, inner: fx.Node, memory: AliasedMemory, budget: RewriteBudget) -> None:
    source = inner.args[0] if inner.op == "call_function" and is_view(inner.target) else None
    if not isinstance(source, fx.Node) or not isinstance(spec_of(source), TensorSpec):
        return
    call = _as_one(node, inner)
    if call is None or not fits(node, call[0], (source, call[1])) or not budget.take(node):
        return
    if same_layout(node, source):
        composed = source
    elif node.target is call[0]:
        node.args = (source, call[1])
        return
    else:
        composed = insert(node, call[0], (source, call[1]))
    memory.took_over(node, composed)
    node.replace_all_uses_with(composed)


def _as_one(node: fx.Node, inner: fx.Node) -> tuple[torch._ops.OpOverload, Any] | None:
    """(operator, its one argument) that does what the two views do."""
    if node.target in _REGROUPING and inner.target in _REGROUPING:
        return aten.view.default, list(tensor_spec(node).shape)
    if node.target is aten.permute.default and inner.target is aten.permute.default:
        first: Any = inner.args[1]
        second: Any = node.args[1]
        rank = len(first)
        return aten.permute.default, [first[dim % rank] % rank for dim in second]
    if node.target is aten.expand.default and inner.target is aten.expand.default:
        return aten.expand.default, list(tensor_spec(node).shape)
    return None
