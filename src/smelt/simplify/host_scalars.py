"""CPU tensors without dimensions that another device computes with are copied there, where PyTorch asks for that.

    out  = clamp(x on cuda:0, bound on cpu)   →   own = clone(bound); moved = _to_copy(own, device=cuda:0, …)
                                                  out = clamp(x, moved)

Most element-wise operators take such a tensor for a number: whoever launches them reads it on the host and passes it
along (`ops.registry.why_not_lower`). Some do not, and numbers of the program have become tensors of the host by now
(`scalar_operands`). One copy is made for all readers. It does not wait for the device: the driver takes the number out
of ordinary memory before the call returns. Out of page-locked memory, where an input may be, it is read later, when the
program may have written something else there; so of an input a clone is copied.
"""

from typing import Any

import torch
from torch import fx

from smelt.base.fuel import Fuel
from smelt.device.host_library import on_host
from smelt.ir.graph import Traced
from smelt.ir.tensorspec import NodeSpec, TensorSpec, set_spec, spec_of, tensor_spec
from smelt.meta.devices import is_element_wise, takes_number
from smelt.meta.effects import is_view

aten = torch.ops.aten


def place_scalars(traced: Traced, fuel: Fuel) -> Traced:
    """Copy them. Burns no fuel: without it PyTorch refuses the call."""
    copies: dict[tuple[fx.Node, torch.device], fx.Node] = {}
    for node in traced.graph.nodes:
        spec = spec_of(node)
        if not isinstance(spec, TensorSpec) or on_host(spec.device) or not is_element_wise(node.target):
            continue
        for scalar in _refused(node):
            key = scalar, spec.device
            if key not in copies:
                copies[key] = _moved(node, scalar, spec.device)
            node.replace_input_with(scalar, copies[key])
    return traced


def _refused(node: fx.Node) -> list[fx.Node]:
    """The operands of a call that are on the host, where PyTorch does not take them for numbers."""
    assert isinstance(node.target, torch._ops.OpOverload)
    named = dict(zip((each.name for each in node.target._schema.arguments), node.args, strict=False)) | node.kwargs
    operands = [
        value
        for name, value in named.items()
        if isinstance(value, fx.Node) and _is_host_scalar(value) and not takes_number(node.target, name)
    ]
    return list(dict.fromkeys(operands))


def _is_host_scalar(node: fx.Node) -> bool:
    spec = spec_of(node)
    return isinstance(spec, TensorSpec) and on_host(spec.device) and not spec.shape


def _moved(user: fx.Node, scalar: fx.Node, device: torch.device) -> fx.Node:
    """The copy on a device, made before its first user."""
    spec = tensor_spec(scalar)
    if not _is_computed(scalar):
        scalar = _insert(user, aten.clone.default, TensorSpec((), (), spec.dtype, spec.device), scalar)
    moved = TensorSpec((), (), spec.dtype, device)
    return _insert(user, aten._to_copy.default, moved, scalar, device=device, non_blocking=True)


def _insert(user: fx.Node, target: Any, spec: NodeSpec, *args: Any, **kwargs: Any) -> fx.Node:
    """A call just before a node."""
    name = getattr(target, "overloadpacket", target).__name__
    with user.graph.inserting_before(user):
        call = user.graph.create_node("call_function", target, args, kwargs, name)
    call.meta.update(user.meta)
    set_spec(call, spec)
    return call


def _is_computed(node: fx.Node) -> bool:
    """Whether the graph made the memory that a node's value is in."""
    while is_view(node.target) and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node.op == "call_function"
