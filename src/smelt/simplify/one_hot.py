"""Sums one-hot rows by a comparison of their class with the bounds.

    hot = where(eq(classes, arange(n)), share, 0.0); sum(hot, [1], True)
    →  where(and(ge(classes, 0), lt(classes, n)), share, 0.0) + 0.0

At most one position of a row is not zero. So the gradient of a loss by classes needs no pass over them for its sum.
`+ 0.0` keeps the sign that a sum of zeros has.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from smelt.base.rewrite_budget import RewriteBudget
from smelt.ir.graph import Traced
from smelt.ir.tensorspec import TensorSpec, spec_of, tensor_spec
from smelt.simplify.aliasing import fits, insert, insert_by_rule, spec_of_call
from smelt.symbolic.shapes import Shape
from smelt.symbolic.symsize import known_equal

aten = torch.ops.aten

_REGROUPING = (aten.view.default, aten.unsqueeze.default)


def sum_one_hot(traced: Traced, budget: RewriteBudget) -> Traced:
    for node in list(traced.graph.nodes):
        if node.target is aten.sum.dim_IntList and not node.kwargs and len(node.args) in (2, 3):
            classes = _classes_of(node)
            if classes is not None and budget.take(node):
                _replace(node, classes)
    return traced


def _classes_of(node: fx.Node) -> fx.Node | None:
    """The classes of the one-hot rows that `node` sums over their only reduced dim; None if it sums anything else."""
    hot, dims = _uncast(node.args[0])[0], node.args[1]
    if hot is None or hot.target is not aten.where.self or not isinstance(dims, Sequence):
        return None
    condition, share, zero = hot.args
    shape = tensor_spec(hot).shape
    if len(dims) != 1 or not isinstance(dims[0], int) or not shape or not tensor_spec(hot).dtype.is_floating_point:
        return None
    dim = dims[0] % len(shape)
    if not isinstance(share, fx.Node) or not _is_zero(zero) or not _is_one_along(share, shape, dim):
        return None
    if not isinstance(condition, fx.Node) or condition.target is not aten.eq.Tensor or type(shape[dim]) is not int:
        return None
    left, right = condition.args
    for classes, numbers in ((left, right), (right, left)):
        if not isinstance(classes, fx.Node) or not isinstance(numbers, fx.Node):
            continue
        is_exact = all(_has_number(tensor_spec(each).dtype, shape[dim]) for each in (classes, numbers))
        if is_exact and shape[dim] > 1 and _is_one_along(classes, shape, dim) and _counts_along(numbers, shape, dim):
            return classes
    return None


def _uncast(value: object) -> tuple[fx.Node | None, list[fx.Node]]:
    """What is cast to other floats, and the casts, the first one first."""
    casts: list[fx.Node] = []
    while isinstance(value, fx.Node) and value.target is aten._to_copy.default and set(value.kwargs) == {"dtype"}:
        casts.insert(0, value)
        value = value.args[0]
    is_float = all(tensor_spec(each).dtype.is_floating_point for each in casts)
    return (value if isinstance(value, fx.Node) and is_float else None), casts


def _is_zero(value: object) -> bool:
    if not isinstance(value, fx.Node):
        return bool(value == 0)
    return value.target is aten.full.default and bool(value.args[1] == 0)


def _has_number(dtype: torch.dtype, number: int) -> bool:
    """Whether tensors of a dtype compare exactly with a number, and all that are less: 300 is 44 for bytes."""
    if dtype.is_floating_point or dtype.is_complex:
        return False
    return dtype is torch.bool or number <= torch.iinfo(dtype).max


def _is_one_along(node: fx.Node, shape: Shape, dim: int) -> bool:
    """Whether a broadcast operand has one element for all positions of a dim."""
    own = tensor_spec(node).shape
    at = dim - (len(shape) - len(own))
    return at < 0 or known_equal(own[at], 1)


def _counts_along(node: fx.Node, shape: Shape, dim: int) -> bool:
    """Whether an operand is 0, 1, … along a dim and the same elsewhere."""
    own = tensor_spec(node).shape
    at = dim - (len(shape) - len(own))
    if at < 0 or any(not known_equal(size, shape[dim] if place == at else 1) for place, size in enumerate(own)):
        return False
    source = node
    while source.target in _REGROUPING:
        source = source.args[0]  # type: ignore[assignment]
    ends: Any = source.args
    return source.target is aten.arange.default and len(ends) == 1 and known_equal(ends[0], shape[dim])


def _replace(node: fx.Node, classes: fx.Node) -> None:
    hot, casts = _uncast(node.args[0])
    assert hot is not None
    dims: Any = node.args[1]
    shape, dim = tensor_spec(hot).shape, int(dims[0]) % len(tensor_spec(hot).shape)
    keeps = len(node.args) == 3 and bool(node.args[2])
    _, share, zero = hot.args
    low = insert_by_rule(node, aten.ge.Scalar, classes, 0)
    high = insert_by_rule(node, aten.lt.Scalar, classes, shape[dim])
    inside = insert_by_rule(node, aten.bitwise_and.Tensor, low, high)
    one = insert_by_rule(node, aten.where.self, inside, share, zero)
    inserted = [low, high, inside, one]
    for cast in casts:
        one = insert_by_rule(node, cast.target, one, **cast.kwargs)
        inserted.append(one)
    total: fx.Node | None = _shaped(node, one, (*shape[:dim], 1, *shape[dim + 1 :]), None if keeps else dim, inserted)
    if total is not None and fits(node, aten.add.Tensor, (total, 0.0)):
        node.replace_all_uses_with(insert(node, aten.add.Tensor, (total, 0.0)))
        return
    for each in reversed(inserted):
        node.graph.erase_node(each)


def _shaped(
    node: fx.Node, value: fx.Node, shape: Shape, squeezed: int | None, inserted: list[fx.Node]
) -> fx.Node | None:
    """`value` expanded to a shape, without the dim `squeezed`."""
    steps = [(aten.expand.default, list(shape))]
    if squeezed is not None:
        steps.append((aten.squeeze.dim, squeezed))  # type: ignore[arg-type]
    for target, argument in steps:
        if target is aten.expand.default and tuple(tensor_spec(value).shape) == tuple(shape):
            continue
        spec: TensorSpec | None = spec_of_call(target, (value, argument), {})
        if spec is None:
            return None
        value = insert(node, target, (value, argument), {}, spec)
        inserted.append(value)
    return value if isinstance(spec_of(value), TensorSpec) else None
