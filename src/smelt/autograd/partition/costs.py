"""The work of recomputing a value, on one scale for all operators.

    mm of 512×256 and 256×1024   →   2·512·256·1024 operations / 16 = 16.8 million
    sum of a million f32         →   the 4 million bytes it reads

The unit is the time one byte takes from or to memory; a processor does some sixteen operations in it, on small CPUs
and large GPUs alike. Only the order and rough proportion of two values matter.
"""

import operator
from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import fx

from smelt.autograd.joint.aliasing import is_view
from smelt.autograd.partition.recompute import recomputable
from smelt.ir.tensorspec import TensorSpec, spec_of, tensor_specs
from smelt.symbolic.symsize import hint

aten = torch.ops.aten

OPERATIONS_PER_BYTE = 16
_LIBRARY_PASSES = 4  # how often an unknown operator is assumed to go through its memory


def bytes_of(node: fx.Node) -> int:
    """The bytes of what a node returns: all of its tensors, dense."""
    return sum(hint(spec.nbytes) for spec in tensor_specs(node))


def own_bytes(node: fx.Node) -> int:
    """The bytes the step allocates for a node: none for inputs, constants, views and tuples of results."""
    if node.op != "call_function" or is_view(node) or isinstance(spec_of(node), tuple):
        return 0
    return bytes_of(node)


def work_of(node: fx.Node) -> int:
    """The work of recomputing `node`. Items of a tuple cost nothing beside the whole."""
    if node.op != "call_function" or is_view(node) or node.target is operator.getitem:
        return 0
    count = _OPERATIONS.get(node.target)
    if count is not None:
        return int(count(node)) // OPERATIONS_PER_BYTE + bytes_of(node)
    moved = bytes_of(node) + sum(bytes_of(used) for used in node.all_input_nodes)
    return moved if recomputable(node) in (None, "a reduction") else moved * _LIBRARY_PASSES


def _shape(node: Any) -> tuple[int, ...]:
    spec = spec_of(node)
    return tuple(hint(size) for size in spec.shape) if isinstance(spec, TensorSpec) else ()


def _product(first: int) -> Callable[[fx.Node], int]:
    """Matrix products: as many multiply-adds per element as the first factor has columns."""
    return lambda node: 2 * prod(_shape(node)) * _shape(node.args[first])[-1]


def _convolution(node: fx.Node) -> int:
    weight = _shape(node.args[1])
    transposed = bool(node.args[6])
    elements = prod(_shape(node.args[0])) if transposed else prod(_shape(node))
    return 2 * elements * prod(weight[1:])


def _attention(node: fx.Node) -> int:
    query, key = _shape(node.args[0]), _shape(node.args[1])
    return 4 * prod(query) * key[-2]


_OPERATIONS: dict[object, Callable[[fx.Node], int]] = {
    aten.mm.default: _product(0),
    aten.bmm.default: _product(0),
    aten.addmm.default: _product(1),
    aten.baddbmm.default: _product(1),
    aten.convolution.default: _convolution,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
    aten._scaled_dot_product_flash_attention.default: _attention,
    aten._scaled_dot_product_efficient_attention.default: _attention,
    aten._scaled_dot_product_cudnn_attention.default: _attention,
}
