"""Takes biases out of convolutions on GPUs, so that kernels add them and sum their gradients.

    convolution(x, w, b, …)                       →  add(convolution(x, w, None, …), view(b, [-1, 1, 1]))
    convolution_backward(g, x, w, …, mask)[2]     →  sum(g, [0, 2, 3])

The library adds a bias, and sums its gradient, in a kernel of its own that reads the whole image again. As operators
of the graph both are fused with what comes before and after.
"""

import operator

import torch
from torch import fx

from smelt.base.rewrite_budget import RewriteBudget
from smelt.ir.graph import Traced
from smelt.ir.tensorspec import TensorSpec, set_spec, spec_of, tensor_spec
from smelt.simplify.aliasing import fits, insert, insert_by_rule

aten = torch.ops.aten


def split_biases(traced: Traced, budget: RewriteBudget) -> Traced:
    for node in list(traced.graph.nodes):
        if node.target is aten.convolution.default:
            _split_forward(node, budget)
        elif node.target is aten.convolution_backward.default:
            _split_backward(node, budget)
    return traced


def _adds_apart(device: torch.device) -> bool:
    """Whether the library adds biases in a kernel of its own."""
    return device.type == "cuda"


def _split_forward(node: fx.Node, budget: RewriteBudget) -> None:
    x, weight, bias, *rest = node.args
    result = tensor_spec(node)
    if not isinstance(bias, fx.Node) or not _adds_apart(result.device) or tensor_spec(bias).dtype is not result.dtype:
        return
    shape = [tensor_spec(bias).shape[0], *[1] * (len(result.shape) - 2)]
    if not budget.take(node):
        return
    product = insert(node, aten.convolution.default, (x, weight, None, *rest))
    column = insert_by_rule(node, aten.view.default, bias, shape)
    total = insert(node, aten.add.Tensor, (product, column))
    if not fits(node, aten.add.Tensor, (product, column)):
        for unused in (total, column, product):
            node.graph.erase_node(unused)
        return
    node.replace_all_uses_with(total)
    node.graph.erase_node(node)


def _split_backward(node: fx.Node, budget: RewriteBudget) -> None:
    gradient, mask = node.args[0], list(node.args[-1])  # type: ignore[arg-type]
    assert isinstance(gradient, fx.Node)
    parts = [part for part in node.users if part.args[1] == 2]
    if not mask[2] or not parts or not _adds_apart(tensor_spec(gradient).device):
        return
    dims = [0, *range(2, len(tensor_spec(gradient).shape))]
    specs = spec_of(node)
    assert isinstance(specs, tuple) and isinstance(specs[2], TensorSpec)
    if not fits(parts[0], aten.sum.dim_IntList, (gradient, dims)) or not budget.take(node):
        return
    for part in parts:
        part.replace_all_uses_with(insert_by_rule(part, aten.sum.dim_IntList, gradient, dims))
        node.graph.erase_node(part)
    if not any(mask[:2]):
        assert all(part.target is operator.getitem for part in node.users)
        for part in list(node.users):
            node.graph.erase_node(part)
        node.graph.erase_node(node)
        return
    node.args = (*node.args[:-1], [*mask[:2], False])
    set_spec(node, (*specs[:2], None))
