"""Draws random masks of zeros and ones as bools, without waiting for the tensor whose shape they have.

    noise = bernoulli(empty_like(x), p)  →  bits = bernoulli(empty_like(x, dtype=bool), p); noise = _to_copy(bits)

The random bits are the same. Each takes one byte, which is saved for the backward. The kernel that multiplies by the
mask converts it.
"""

import torch
from torch import fx

from smelt.base.rewrite_budget import RewriteBudget
from smelt.device.host_library import on_host, same_coins
from smelt.ir.graph import Traced
from smelt.ir.tensorspec import TensorSpec, spec_of
from smelt.meta.rules.strides import is_contiguous
from smelt.simplify.aliasing import insert

aten = torch.ops.aten


def draw_masks(traced: Traced, budget: RewriteBudget) -> Traced:
    for node in list(traced.graph.nodes):
        if node.target is aten.bernoulli.p and _may_be_bools(node) and budget.take(node):
            _draw_bools(node)
    return traced


def _may_be_bools(node: fx.Node) -> bool:
    spec = spec_of(node)
    if not isinstance(spec, TensorSpec) or not on_host(spec.device) or not spec.dtype.is_floating_point:
        return False
    return is_contiguous(spec.shape, spec.stride) and same_coins(spec.dtype)


def _draw_bools(node: fx.Node) -> None:
    spec = spec_of(node)
    assert isinstance(spec, TensorSpec)
    like = node.args[0]
    if isinstance(like, fx.Node) and like.target is aten.empty_like.default:
        like = like.args[0]
    options = {"dtype": torch.bool, "memory_format": torch.contiguous_format}
    mask = TensorSpec(spec.shape, spec.stride, torch.bool, spec.device)
    template = insert(node, aten.empty_like.default, (like,), options, mask)
    bits = insert(node, aten.bernoulli.p, (template, *node.args[1:]), dict(node.kwargs), mask)
    node.replace_all_uses_with(insert(node, aten._to_copy.default, (bits,), {"dtype": spec.dtype}))
    node.graph.erase_node(node)
