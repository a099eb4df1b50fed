"""Turns dynamic scalars into operands: kernels read them from the tensors that hold them.

    n = _local_scalar_dense(rate); mul = mul.Tensor(x, n)   →   mul = mul.Tensor(x, rate)
    n = _local_scalar_dense(rate); pow = pow.Tensor_Scalar(x, n)   →   pow = pow.Tensor_Tensor(x, rate)
    n = _local_scalar_dense(step); m = 0.9 ** n; mul.Tensor(x, m)   →   m = pow.Scalar(0.9, step); mul.Tensor(x, m)

Arithmetic on such floats is done in float64, as in Python. A number affects the result's dtype less than a tensor does,
even a 0-d one; where that matters the tensor is converted first. `why_not_operands` says which call has no form that
takes a tensor there.
"""

import math
import operator
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import fx

from smelt.base.rewrite_budget import RewriteBudget
from smelt.device.host_library import HOST, on_host
from smelt.ir.graph import Traced
from smelt.ir.tensorspec import NumberSpec, TensorSpec, spec_of, tensor_spec
from smelt.meta.rules.promotion import result_dtype
from smelt.simplify.aliasing import insert_by_rule
from smelt.symbolic.symnode import Formula

aten = torch.ops.aten

# Python's functions of floats, as operators on tensors of float64 that hold them.
_OF_FLOATS: dict[Any, Any] = {
    operator.add: aten.add.Tensor,
    operator.sub: aten.sub.Tensor,
    operator.mul: aten.mul.Tensor,
    operator.truediv: aten.div.Tensor,
    operator.pow: aten.pow.Tensor_Tensor,
    operator.neg: aten.neg.default,
    operator.abs: aten.abs.default,
    math.sqrt: aten.sqrt.default,
    float: aten.clone.default,
    max: aten.gt.Tensor,  # which of the two is chosen by
    min: aten.lt.Tensor,
}


def why_not_operands(traced: Traced) -> str | None:
    """Why some number that is given at each call cannot be an operand of a kernel; None if all can."""
    for node in traced.graph.nodes:
        spec = spec_of(node)
        if not isinstance(spec, NumberSpec) or node.op != "call_function":
            continue
        computed = node.target is not aten._local_scalar_dense.default
        if computed and not (isinstance(spec.what, Formula) and node.target in _OF_FLOATS):
            return f"{node.name} is computed from numbers inside the graph"
        for user in node.users:
            is_number = isinstance(spec_of(user), NumberSpec)
            if not is_number and _tensor_form(user) is None and user.target not in _SPELLED_OUT:
                return f"{user.target} takes {node.name} as a number only"
    return None


def numbers_as_operands(traced: Traced, budget: RewriteBudget) -> Traced:
    """Every use of such a number becomes a use of its tensor. Uses no budget: without it there is no kernel."""
    holders: Holders = {}
    for node in list(traced.graph.nodes):
        if node.op == "call_function" and isinstance(spec_of(node), NumberSpec):
            holders[node] = _holder(node, holders)
        elif any(each in holders for each in node.all_input_nodes):
            _rewrite(node, holders)
    for node in reversed(holders):
        traced.graph.erase_node(node)
    return traced


Holders = dict[fx.Node, fx.Node | float]  # what holds a number: a tensor; of a constant there is none, but itself


def _holder(node: fx.Node, holders: Holders) -> fx.Node | float:
    """The tensor that holds a number. A constant becomes one where it is used, on the device of what it meets."""
    spec = spec_of(node)
    assert isinstance(spec, NumberSpec)
    if node.target is aten._local_scalar_dense.default:
        holder = node.args[0]
        assert isinstance(holder, fx.Node)
        whole = tensor_spec(holder)
        if whole.shape:
            holder = insert_by_rule(node, aten.view.default, holder, [])
        wide = not isinstance(spec.what, Formula) or whole.dtype is torch.float64
        return holder if wide else insert_by_rule(node, aten._to_copy.default, holder, dtype=torch.float64)
    if node.target is float and not node.all_input_nodes:
        return float(node.args[0])  # type: ignore[arg-type]
    held = [holders[each] if isinstance(each, fx.Node) else each for each in node.args]
    device = _device([each for each in held if isinstance(each, fx.Node)])
    operands = [each if isinstance(each, fx.Node) else _constant(node, each, device) for each in held]
    floats = [
        each
        if tensor_spec(each).dtype is torch.float64
        else insert_by_rule(node, aten._to_copy.default, each, dtype=torch.float64)
        for each in operands
    ]
    if node.target in (max, min):  # of Python: the first one, unless the second is beyond it
        first, second = floats
        compared = insert_by_rule(node, _OF_FLOATS[node.target], second, first)
        return insert_by_rule(node, aten.where.self, compared, second, first)
    return insert_by_rule(node, _OF_FLOATS[node.target], *floats)


def _device(held: list[fx.Node]) -> torch.device:
    """Where a number is computed: where one of those that it is computed from is, if that is not the host."""
    devices = [tensor_spec(each).device for each in held]
    return next((device for device in devices if not on_host(device)), HOST)


def _constant(node: fx.Node, number: Any, device: torch.device) -> fx.Node:
    return insert_by_rule(node, aten.full.default, [], float(number), dtype=torch.float64, device=device)


def _rewrite(node: fx.Node, holders: Holders) -> None:
    target = _tensor_form(node)

    def operand(value: Any) -> Any:
        if not isinstance(value, fx.Node) or value not in holders:
            return value
        held = holders[value]
        return _converted(node, held if isinstance(held, fx.Node) else _constant(node, held, HOST))

    if target is None:
        _SPELLED_OUT[node.target](node, operand)
        return
    node.args = tuple(operand(value) for value in node.args)
    node.kwargs = {name: operand(value) for name, value in node.kwargs.items()}
    node.target = target


def _converted(node: fx.Node, holder: fx.Node) -> fx.Node:
    """The tensor that holds a number, of a dtype that lets the result be what the number made it."""
    specs = [spec_of(each) for each in node.all_input_nodes]
    tensors = [spec for spec in specs if isinstance(spec, TensorSpec) and spec is not spec_of(holder)]
    if not tensors:
        return holder  # `scalar_tensor`, which says the dtype: a float of Python's has 53 bits until then
    held = tensor_spec(holder)
    number = 1.5 if held.dtype is torch.float64 else 2
    wanted = result_dtype([*tensors, number])
    if wanted is None or result_dtype([*tensors, held]) is wanted:
        return holder
    return insert_by_rule(node, aten._to_copy.default, holder, dtype=wanted)


Operand = Callable[[Any], Any]


def _add_scaled(sign: int) -> Callable[[fx.Node, Operand], None]:
    """`a + alpha * b`, rounded once as PyTorch does."""

    def spell(node: fx.Node, operand: Operand) -> None:
        first, second = node.args[:2]
        node.args = (first, second, operand(node.kwargs["alpha"]))
        node.kwargs = {} if sign == 1 else {"value": sign}
        node.target = aten.addcmul.default

    return spell


def _scale_first(node: fx.Node, operand: Operand) -> None:
    """`x + value * a * b` and `x + value * a / b`: the product with the number comes first, as PyTorch has it."""
    start, first, second = node.args[:3]
    node.args = (start, insert_by_rule(node, aten.mul.Tensor, first, operand(node.kwargs["value"])), second)
    node.kwargs = {}


def _as_tensor(node: fx.Node, operand: Operand) -> None:
    holder, spec = operand(node.args[0]), tensor_spec(node)
    moved = {} if tensor_spec(holder).device == spec.device else {"device": spec.device}
    node.args, node.kwargs = (holder,), {"dtype": spec.dtype, **moved}
    node.target = aten._to_copy.default


# Operators that take a number by name, or that make a tensor of one.
_SPELLED_OUT: dict[Any, Callable[[fx.Node, Operand], None]] = {
    aten.add.Tensor: _add_scaled(1),
    aten.sub.Tensor: _add_scaled(-1),
    aten.addcmul.default: _scale_first,
    aten.addcdiv.default: _scale_first,
    aten.scalar_tensor.default: _as_tensor,
}


def _tensor_form(node: fx.Node) -> Any:
    """The overload that takes tensors where this call has numbers, or None."""
    op = node.target
    if not isinstance(op, torch._ops.OpOverload) or (node.kwargs and _has_number(tuple(node.kwargs.values()))):
        return None
    if any(isinstance(value, tuple | list) and _has_number(tuple(value)) for value in node.args):
        return None
    places = tuple(place for place, value in enumerate(node.args) if _has_number((value,)))
    return _find_form(op, places)


def _has_number(values: tuple[Any, ...]) -> bool:
    return any(isinstance(value, fx.Node) and isinstance(spec_of(value), NumberSpec) for value in values)


@cache
def _find_form(op: torch._ops.OpOverload, places: tuple[int, ...]) -> Any:
    types = [_kind(argument) for argument in op._schema.arguments]
    wanted = ["Tensor" if place in places else kind for place, kind in enumerate(types)]
    for name in op.overloadpacket.overloads():
        form = getattr(op.overloadpacket, name)
        if [_kind(argument) for argument in form._schema.arguments] == wanted and not form._schema.is_mutable:
            return form
    return None


def _kind(argument: Any) -> str:
    return str(argument.type).removeprefix("Optional[").removesuffix("]")
