"""The backward recomputes the result of dropout from its mask, which is saved anyway and is smaller.

    dropped, kept = native_dropout(x, 0.1, True); … | mm(grad, dropped), native_dropout_backward(grad, kept, …)
    →  mm(grad, mul(mul(x, kept), 1.1111112))          `x` may be recomputed in turn; `dropped` is not saved

This is for dropout that is one operator with its own random numbers, as on a GPU: it can be neither decomposed nor
recomputed. The product is rounded as the operator rounds it. Values that a checkpoint recomputes read the product in
the forward too, so that both passes compute the same.
"""

import operator

import torch
from torch import fx

from smelt.base.rewrite_budget import RewriteBudget
from smelt.ir.call_contract import Phase, RecomputePolicy, phase_of, recompute_policy_of
from smelt.ir.graph import Traced
from smelt.ir.nodes.backward_node import backward_of
from smelt.ir.tensorspec import set_spec, tensor_spec
from smelt.simplify.aliasing import insert, spec_of_call

aten = torch.ops.aten


def keep_masks(traced: Traced, budget: RewriteBudget) -> Traced:
    """Rewrite the joint graph of a training step, before it is split, or one with a backward inside."""
    for node in list(traced.graph.nodes):
        if node.target is not aten.native_dropout.default or node.args[2] is False or not 0.0 < node.args[1] < 1.0:
            continue
        parts = {user.args[1]: user for user in node.users if user.target is operator.getitem}
        dropped, kept = parts.get(0), parts.get(1)
        if dropped is None or kept is None or not any(map(_is_of_backward, kept.users)):
            continue
        readers = [user for user in dropped.users if user.op == "call_function" and _is_late(user)]
        if readers and budget.take(node):
            product = _product(node, dropped, kept)
            for user in readers:
                user.replace_input_with(dropped, product)
    return traced


def _is_of_backward(node: fx.Node) -> bool:
    return phase_of(node) is Phase.BACKWARD or backward_of(node) is not None


def _is_late(node: fx.Node) -> bool:
    return _is_of_backward(node) or recompute_policy_of(node) is RecomputePolicy.RECOMPUTE


def _product(node: fx.Node, dropped: fx.Node, kept: fx.Node) -> fx.Node:
    """Before whatever comes after both results."""
    x, probability = node.args[:2]
    wide = torch.float64 if tensor_spec(dropped).dtype is torch.float64 else torch.float32
    scale = (1 / torch.tensor(1 - probability, dtype=wide)).item()  # type: ignore[operator]
    last = max(dropped, kept)
    before = last.next
    masked = insert(before, aten.mul.Tensor, (x, kept))
    product = insert(before, aten.mul.Tensor, (masked, scale))
    for each in (masked, product):
        each.meta.clear()
        each.meta.update(dropped.meta)
    set_spec(masked, spec_of_call(aten.mul.Tensor, (x, kept), {}))
    set_spec(product, tensor_spec(dropped))
    return product
