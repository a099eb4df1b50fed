"""Pads matmul operands whose rows do not start at multiples of sixteen bytes.

    mm(x, t(w))  of f16[4096, 768] and f16[50257, 768]
    →  clone(slice(mm(x, t(constant_pad_nd(w, [0, 0, 0, 7]))), 1, 0, 50257))

The matrix units of a GPU read eight 16-bit numbers at a time. Rows of another length, such as a vocabulary, force the
library into kernels that take two or three times as long; the copies cost a few percent of the time saved. The added
zeros do not change any sum, and the extra rows and columns are cut off.
"""

import math

import torch
from torch import fx

from smelt.base.rewrite_budget import RewriteBudget
from smelt.device.host_library import on_host
from smelt.ir.graph import Traced
from smelt.ir.tensorspec import TensorSpec, tensor_spec
from smelt.simplify.aliasing import insert, insert_by_rule
from smelt.symbolic.symsize import hint

aten = torch.ops.aten

_ALIGNED = 8  # numbers of 16 bits in sixteen bytes
_LEAST_WORK = 1 << 30  # multiplications of a product that is worth copies
_NARROW = (torch.float16, torch.bfloat16)

Padded = dict[tuple[fx.Node, tuple[int, ...]], fx.Node]


def align_products(traced: Traced, budget: RewriteBudget) -> Traced:
    padded: Padded = {}
    for node in list(traced.graph.nodes):
        if node.target not in (aten.mm.default, aten.addmm.default) or node.kwargs:
            continue
        *bias, left, right = node.args
        specs = [tensor_spec(each) for each in (node, left, right)]
        if _is_worth_it(specs) and all(tensor_spec(each).shape == specs[0].shape[1:] for each in bias):
            lacks = _lacks(*specs)
            if any(lacks) and budget.take(node):
                _pad(node, lacks, padded)
    return traced


def _is_worth_it(specs: list[TensorSpec]) -> bool:
    """Whether it is a large product of numbers in 16 bits on a GPU."""
    sizes = (*specs[0].shape, specs[1].shape[1])
    if not all(type(size) is int for size in sizes[1:]):
        return False
    narrow = all(spec.dtype in _NARROW and not on_host(spec.device) for spec in specs)
    return narrow and math.prod(map(hint, sizes)) >= _LEAST_WORK


def _lacks(result: TensorSpec, left: TensorSpec, right: TensorSpec) -> tuple[int, int, int]:
    """What rows, columns and sums lack of multiples of eight, where numbers lie side by side along them."""
    rows, columns = result.shape
    sums = left.shape[1]
    by_rows = type(rows) is int and left.stride[0] == 1 and left.stride[1] != 1
    by_sums = left.stride[1] == 1 or right.stride[0] == 1
    return -rows % _ALIGNED if by_rows else 0, -columns % _ALIGNED, -sums % _ALIGNED if by_sums else 0


def _pad(node: fx.Node, lacks: tuple[int, int, int], padded: Padded) -> None:
    *bias, left, right = node.args
    rows, columns, sums = lacks
    wide = [_padded(node, left, (rows, sums), padded), _padded(node, right, (sums, columns), padded)]
    padded_bias = tuple(_padded(node, each, (columns,), padded) for each in bias)
    product = insert_by_rule(node, node.target, *padded_bias, *wide)
    shape = tensor_spec(node).shape
    for dim, lack in enumerate((rows, columns)):
        if lack:
            product = insert_by_rule(node, aten.slice.Tensor, product, dim, 0, shape[dim])
    if tensor_spec(product).stride == tensor_spec(node).stride:
        node.replace_all_uses_with(product)
        return
    copy = insert(node, aten.clone.default, (product,), {"memory_format": torch.contiguous_format})
    node.replace_all_uses_with(copy)


def _padded(node: fx.Node, operand: object, lacks: tuple[int, ...], padded: Padded) -> fx.Node:
    """An operand with zeros behind, in the order of its memory: what is transposed is padded before, and once for all
    products that read it."""
    assert isinstance(operand, fx.Node)
    if not any(lacks):
        return operand
    source = _transposed(operand)
    if source is not None:
        return insert_by_rule(node, aten.permute.default, _padded(node, source, lacks[::-1], padded), [1, 0])
    padding = [each for lack in reversed(lacks) for each in (0, lack)]
    while not any(padding[-2:]):
        del padding[-2:]
    if (operand, lacks) not in padded:
        padded[operand, lacks] = insert_by_rule(node, aten.constant_pad_nd.default, operand, padding, 0.0)
    return padded[operand, lacks]


def _transposed(operand: fx.Node) -> fx.Node | None:
    """The matrix that an operand is the transpose of."""
    swaps = operand.target is aten.t.default or (
        operand.target in (aten.permute.default, aten.transpose.int) and len(tensor_spec(operand).shape) == 2
    )
    source = operand.args[0] if swaps and operand.args[1:] in ((), ([1, 0],), (0, 1), (1, 0), ([-1, -2],)) else None
    return source if isinstance(source, fx.Node) else None
