"""Moves lookups of a few elements before the computation, so that the whole tensor need not be stored.

    shifted = sub(x, most); out = sub(shifted, lse); picked = gather(out, 1, target)
    →  picked = sub(sub(gather(x, 1, target), gather(expand(most, …), 1, target)), gather(expand(lse, …), 1, target))

A loss that reads the probability of one class does not write those of all classes. Views between the two are applied
to the operands: `gather(view(exp(x)))` becomes `exp(gather(view(x)))`. The result is bit-identical.
"""

from dataclasses import replace

import torch
from torch import fx

from smelt.base.rewrite_budget import RewriteBudget
from smelt.ir.graph import Traced
from smelt.ir.tensorspec import TensorSpec, spec_of
from smelt.meta.rules.strides import is_contiguous
from smelt.ops.record import Pointwise, Reduce
from smelt.ops.registry import record_of, why_not_lower
from smelt.simplify.aliasing import fits, insert, spec_of_call
from smelt.symbolic.shapes import product
from smelt.symbolic.symsize import hint, same_sizes

aten = torch.ops.aten

_LOOKUPS = (aten._unsafe_index.Tensor, aten.gather.default, aten.index.Tensor, aten.index_select.default)
_VIEWS = (
    aten.view.default,
    aten._unsafe_view.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.permute.default,
    aten.transpose.int,
    aten.t.default,
    aten.select.int,
    aten.slice.Tensor,
    aten.expand.default,
)  # that mean the same of any tensor of a shape, whatever its strides are
_FEWER = 8  # times as many elements are computed as are looked at
_LEAST = 4096  # elements that are worth it


def look_up_first(traced: Traced, budget: RewriteBudget) -> Traced:
    waiting = [node for node in traced.graph.nodes if node.target in _LOOKUPS]
    while waiting:
        node = waiting.pop()
        if _is_worth_it(node) and budget.take(node):
            waiting += _looked_up_first(node)
    return traced


def _is_worth_it(node: fx.Node) -> bool:
    source = _computed(node)
    if not _is_pointwise(source):
        return False
    few, many = spec_of(node), spec_of(source)
    if not isinstance(few, TensorSpec) or not isinstance(many, TensorSpec):
        return False
    count = hint(product(many.shape))
    if not is_contiguous(few.shape, few.stride):
        return False
    return count >= _LEAST and hint(product(few.shape)) * _FEWER <= count and may_stay_inside(source)


def _computed(node: fx.Node) -> fx.Node:
    """What a lookup or a view reads, without the views on the way."""
    source = node.args[0]
    assert isinstance(source, fx.Node)
    return _computed(source) if source.target in _VIEWS else source


def _is_pointwise(node: fx.Node) -> bool:
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    lowering = record_of(node.target).lowering
    tensors = [spec_of(each) for each in node.all_input_nodes]
    if not isinstance(lowering, Pointwise) or not lowering.is_elementwise:
        return False
    return all(isinstance(spec, TensorSpec) for spec in tensors)


def may_stay_inside(node: fx.Node, unless: fx.Node | None = None) -> bool:
    """Whether nothing else has to find a value in memory, but for the user `unless`."""
    return all(
        user is unless
        or (
            user.op == "call_function"
            and isinstance(user.target, torch._ops.OpOverload)
            and (
                user.target in _LOOKUPS
                or isinstance(record_of(user.target).lowering, Pointwise | Reduce)
                or (user.target in _VIEWS and may_stay_inside(user, unless))
            )
        )
        for user in node.users
    )


def _looked_up_first(node: fx.Node) -> list[fx.Node]:
    """What is looked up instead, if that leads to the same."""
    source = _computed(node)
    shape = _spec(source).shape
    inserted: list[fx.Node] = []

    def insert_view(target: object, args: tuple[object, ...], kwargs: dict[str, object]) -> fx.Node | None:
        spec = spec_of_call(target, args, kwargs)
        if spec is None:
            return None
        inserted.append(insert(node, target, args, kwargs, spec))
        return inserted[-1]

    gathered: dict[fx.Node, fx.Node] = {}
    is_possible = True
    for operand in source.all_input_nodes:
        if not _spec(operand).shape:
            continue  # the same for all elements
        whole: fx.Node | None = operand
        if not same_sizes(_spec(operand).shape, shape):
            whole = insert_view(aten.expand.default, (operand, list(shape)), {})
        for view in _views_between(node):
            whole = whole and insert_view(view.target, (whole, *view.args[1:]), dict(view.kwargs))
        if whole is None:
            is_possible = False
            break
        spec = replace(_spec(node), dtype=_spec(operand).dtype)
        each = insert(node, node.target, (whole, *node.args[1:]), dict(node.kwargs), spec)
        inserted.append(each)
        gathered[operand] = each
    args = fx.node.map_arg(source.args, lambda each: gathered.get(each, each))
    kwargs = dict[str, object](fx.node.map_arg(source.kwargs, lambda each: gathered.get(each, each)))
    is_possible = is_possible and bool(gathered) and not any(map(why_not_lower, gathered.values()))
    if not is_possible or not fits(node, source.target, args, kwargs):
        for each in reversed(inserted):
            node.graph.erase_node(each)
        return []
    last = insert(node, source.target, args, kwargs)
    node.replace_all_uses_with(last)
    node.graph.erase_node(node)
    return list(gathered.values())


def _views_between(node: fx.Node) -> list[fx.Node]:
    """The views that a lookup reads through, the first one first."""
    views: list[fx.Node] = []
    source = node.args[0]
    while isinstance(source, fx.Node) and source.target in _VIEWS:
        views.insert(0, source)
        source = source.args[0]
    return views


def _spec(node: fx.Node) -> TensorSpec:
    spec = spec_of(node)
    assert isinstance(spec, TensorSpec)
    return spec
