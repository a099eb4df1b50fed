"""Tensors without elements, which no kernel has anything to do for, as zeros of their shape; and what is made of them.

    sum(x[:0])          →   zeros([])                    any → False, all → True, mean → nan
    x[:0] * 2           →   zeros([0, 3])
    mm(f[4, 0], f[0, 3])  →   zeros([4, 3])
"""

import math
from dataclasses import replace
from operator import getitem
from typing import Any

import torch
from torch import fx

from smelt.ir.graph import Traced
from smelt.ir.tensorspec import TensorSpec, set_spec, spec_of
from smelt.symbolic.shapes import contiguous_stride

aten = torch.ops.aten

# What a result is filled with where an argument has no elements, by operator.
_FILLS: dict[Any, float] = {
    **dict.fromkeys((aten.sum.default, aten.sum.dim_IntList, aten.mm.default, aten.bmm.default), 0),
    **dict.fromkeys((aten.linalg_vector_norm.default, aten.count_nonzero.default), 0),
    **dict.fromkeys((aten.any.default, aten.any.dim, aten.any.dims), 0),
    **dict.fromkeys((aten.all.default, aten.all.dim, aten.all.dims, aten.prod.default, aten.prod.dim_int), 1),
    **dict.fromkeys((aten.mean.default, aten.mean.dim, aten.var.correction, aten.std.correction), math.nan),
}
# Operators that return their first argument where the second has no elements.
_WRITES = frozenset(
    {aten.slice_scatter.default, aten.index_put.default, aten.scatter.src, aten.scatter_add.default,
     aten.index_add.default, aten.index_copy.default, aten.scatter.value}
)  # fmt: skip


def without_empty(traced: Traced) -> Traced:
    """The graph, changed in place: nothing in it is computed of tensors without elements."""
    graph = traced.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or not isinstance(spec := spec_of(node), TensorSpec):
            continue
        if _is_empty(spec):
            _replace(graph, node, replace(spec, stride=contiguous_stride(spec.shape), offset=0), 0)
        elif (number := _fill(node)) is not None:
            _replace(graph, node, replace(spec, stride=contiguous_stride(spec.shape), offset=0), number)
        elif node.target in _WRITES and any(map(_is_empty, _specs(node.all_input_nodes[1:]))):
            node.replace_all_uses_with(node.all_input_nodes[0])
    return traced


def _specs(nodes: list[fx.Node]) -> list[Any]:
    return [spec_of(node) for node in nodes]


def _is_empty(spec: object) -> bool:
    return isinstance(spec, TensorSpec) and any(type(size) is int and size == 0 for size in spec.shape)


def _fill(node: fx.Node) -> float | None:
    """What a result that is made of nothing is filled with; None if it is made of something."""
    if node.target is getitem or not any(map(_is_empty, _specs(node.all_input_nodes))):
        return None
    if node.target is aten.constant_pad_nd.default:
        number: Any = node.args[2] if len(node.args) > 2 else 0
        return float(number)
    return _FILLS.get(node.target)


def _replace(graph: fx.Graph, node: fx.Node, spec: TensorSpec, number: float) -> None:
    value: Any = number if spec.dtype.is_floating_point else bool(number) if spec.dtype is torch.bool else int(number)
    options: dict[str, Any] = {"dtype": spec.dtype, "device": spec.device}
    with graph.inserting_before(node):
        full = graph.call_function(aten.full.default, (list(spec.shape), value), options)
    set_spec(full, spec)
    node.replace_all_uses_with(full)
    graph.erase_node(node)  # it may be one that raises for some values, which it has none of
