"""Numbers that are given at each call become operands: kernels read them from the tensors that hold them.

    n = _local_scalar_dense(rate); mul = mul.Tensor(x, n)   →   mul = mul.Tensor(x, rate)
    n = _local_scalar_dense(rate); pow = pow.Tensor_Scalar(x, n)   →   pow = pow.Tensor_Tensor(x, rate)

A number has less of a say in the result's dtype than a tensor, even one without dimensions; where that matters the
tensor is converted first. `why_not_operands` says which call has no form that takes a tensor there.
"""

from typing import Any

import torch
from torch import fx

from smelt.base.fuel import Fuel
from smelt.ir.graph import Traced
from smelt.ir.specrules.promotion import result_dtype
from smelt.ir.tensorspec import NumberSpec, TensorSpec, set_spec, spec_of, tensor_spec

aten = torch.ops.aten


def why_not_operands(traced: Traced) -> str | None:
    """Why some number that is given at each call cannot be an operand of a kernel; None if all can."""
    for node in traced.graph.nodes:
        for user in node.users if isinstance(spec_of(node), NumberSpec) else ():
            if node.target is not aten._local_scalar_dense.default:
                return f"{node.name} is computed from numbers inside the graph"
            if _tensor_form(user) is None:
                return f"{user.target} takes {node.name} as a number only"
    return None


def numbers_as_operands(traced: Traced, fuel: Fuel) -> Traced:
    """Every use of such a number becomes a use of its tensor. Burns no fuel: without it there is no kernel."""
    for node in list(traced.graph.nodes):
        if node.target is aten._local_scalar_dense.default and isinstance(spec_of(node), NumberSpec):
            for user in list(node.users):
                _rewrite(traced.graph, user)
            traced.graph.erase_node(node)
    return traced


def _rewrite(graph: fx.Graph, node: fx.Node) -> None:
    target = _tensor_form(node)
    assert target is not None

    def operand(value: Any) -> Any:
        if not (isinstance(value, fx.Node) and isinstance(spec_of(value), NumberSpec)):
            return value
        holder = value.args[0]
        assert isinstance(holder, fx.Node)
        return _converted(graph, node, holder)

    node.args = tuple(operand(value) for value in node.args)
    node.kwargs = {name: operand(value) for name, value in node.kwargs.items()}
    node.target = target


def _converted(graph: fx.Graph, node: fx.Node, holder: fx.Node) -> fx.Node:
    """The tensor that holds a number, of a dtype that lets the result be what the number made it."""
    given = [spec_of(each) for each in node.all_input_nodes]
    tensors = [spec for spec in given if isinstance(spec, TensorSpec) and spec is not spec_of(holder)]
    held = tensor_spec(holder)
    number = 1.5 if held.dtype is torch.float64 else 2
    wanted = result_dtype([*tensors, number])
    if wanted is None or result_dtype([*tensors, held]) is wanted:
        return holder
    with graph.inserting_before(node):
        cast = graph.call_function(aten._to_copy.default, (holder,), {"dtype": wanted})
    set_spec(cast, TensorSpec((), (), wanted, held.device))
    return cast


_forms: dict[tuple[Any, tuple[int, ...]], Any] = {}


def _tensor_form(node: fx.Node) -> Any:
    """The overload that takes tensors where this call has numbers, or None."""
    op = node.target
    if not isinstance(op, torch._ops.OpOverload) or (node.kwargs and _has_number(tuple(node.kwargs.values()))):
        return None
    if any(isinstance(value, tuple | list) and _has_number(tuple(value)) for value in node.args):
        return None
    places = tuple(place for place, value in enumerate(node.args) if _has_number((value,)))
    key = (op, places)
    if key not in _forms:
        _forms[key] = _find_form(op, places)
    return _forms[key]


def _has_number(values: tuple[Any, ...]) -> bool:
    return any(isinstance(value, fx.Node) and isinstance(spec_of(value), NumberSpec) for value in values)


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

