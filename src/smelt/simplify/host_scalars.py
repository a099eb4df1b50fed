"""CPU tensors without dimensions that another device computes with are copied there first.

    mul = mul(x on cuda:0, rate on cpu)   →   own = clone(rate); moved = _to_copy(own, device=cuda:0, non_blocking=True)
                                              mul = mul(x, moved)

PyTorch reads such a tensor on the host when it launches the operator, and passes the number along. A kernel of ours
computes on one device, so the number goes there by a copy, one for all its readers, and the operator can be fused. The
copy does not wait for the device: the driver takes the number out of ordinary memory before the call returns. Out of
page-locked memory, where an input may be, it is read later, when the program may have written something else there; so
of an input a clone is copied.
"""

import torch
from torch import fx

from smelt.base.fuel import Fuel
from smelt.device.host_library import on_host
from smelt.ir.graph import Traced
from smelt.ir.tensorspec import TensorSpec, set_spec, spec_of
from smelt.meta.devices import is_element_wise
from smelt.meta.effects import is_view
from smelt.simplify.aliasing import insert

aten = torch.ops.aten


def place_scalars(traced: Traced, fuel: Fuel) -> Traced:
    """Copy them. Burns no fuel: without it each such operator is a library call."""
    moved: dict[tuple[fx.Node, torch.device], fx.Node] = {}
    for node in list(traced.graph.nodes):
        spec = spec_of(node)
        if not isinstance(spec, TensorSpec) or on_host(spec.device) or not is_element_wise(node.target):
            continue
        for operand in node.all_input_nodes:
            if not _is_host_scalar(operand):
                continue
            key = (operand, spec.device)
            if key not in moved:
                moved[key] = _moved(node, operand, spec.device)
            node.replace_input_with(operand, moved[key])
    return traced


def _is_host_scalar(node: fx.Node) -> bool:
    spec = spec_of(node)
    return isinstance(spec, TensorSpec) and on_host(spec.device) and not spec.shape


def _moved(user: fx.Node, scalar: fx.Node, device: torch.device) -> fx.Node:
    """The copy on a device, made before its first user."""
    spec = spec_of(scalar)
    assert isinstance(spec, TensorSpec)
    own = TensorSpec((), (), spec.dtype, spec.device)
    if not _is_computed(scalar):
        scalar = insert(user, aten.clone.default, (scalar,))
        set_spec(scalar, own)
    made = insert(user, aten._to_copy.default, (scalar,), {"device": device, "non_blocking": True})
    set_spec(made, TensorSpec((), (), spec.dtype, device))
    return made


def _is_computed(node: fx.Node) -> bool:
    """Whether the graph made the memory that a node's value is in."""
    while is_view(node.target) and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node.op == "call_function"
