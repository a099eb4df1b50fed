"""Passes keys and values that several heads share to attention without a copy for each head.

    k = view(clone(expand(unsqueeze(keys, 2), [2, 4, 8, 512, 64])), [2, 32, 512, 64]); attention(q, k, v)
    →  attention(q, select(expand(…), 2, 0), …)

PyTorch's CPU attention supports fewer heads of keys than of queries; many models predate that. The result is
bit-identical. The pass runs before a training step is split: the forward saves the shared heads, and only the backward
makes copies.
"""

import torch
from torch import fx

from smelt.base.rewrite_budget import RewriteBudget
from smelt.device.host_library import on_host
from smelt.ir.graph import Traced
from smelt.ir.tensorspec import tensor_spec
from smelt.simplify.aliasing import insert_by_rule
from smelt.symbolic.symsize import same_sizes

aten = torch.ops.aten


def share_heads(traced: Traced, budget: RewriteBudget) -> Traced:
    for node in list(traced.graph.nodes):
        if node.target is not aten._scaled_dot_product_flash_attention_for_cpu.default:
            continue
        query, keys, values = node.args[:3]
        pair = _repeated(keys), _repeated(values)
        if pair[0] is None or pair[1] is None or not _alike(pair[0], pair[1]) or not budget.take(node):
            continue
        node.args = (query, *(_once(node, each) for each in pair), *node.args[3:])
    return traced


def _repeated(value: object) -> fx.Node | None:
    """Heads by how often each is repeated, if a value is a copy of such, laid out head by head."""
    copy = value.args[0] if isinstance(value, fx.Node) and value.target is aten.view.default else None
    source = copy.args[0] if isinstance(copy, fx.Node) and copy.target is aten.clone.default else None
    if not isinstance(source, fx.Node):
        return None
    expanded, laid = tensor_spec(source), tensor_spec(value)  # type: ignore[arg-type]
    if len(expanded.shape) != 5 or expanded.stride[2] != 0 or expanded.stride[4] != 1 or not on_host(expanded.device):
        return None
    batch, heads, times, length, width = expanded.shape
    return source if same_sizes(laid.shape, (batch, heads * times, length, width)) else None


def _alike(keys: fx.Node, values: fx.Node) -> bool:
    """Whether both are repeated alike."""
    return same_sizes(tensor_spec(keys).shape[:4], tensor_spec(values).shape[:4])


def _once(node: fx.Node, repeated: fx.Node | None) -> fx.Node:
    assert repeated is not None
    return insert_by_rule(node, aten.select.int, repeated, 2, 0)
