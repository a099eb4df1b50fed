"""Copies 0-d CPU tensors to the device that computes with them, where PyTorch's operator requires it.

    out  = clamp(x on cuda:0, bound on cpu)   →   own = clone(bound); moved = _to_copy(own, device=cuda:0, …)
                                                  out = clamp(x, moved)

Most element-wise operators read such a tensor on the host and pass it as a number (`ops.registry.why_not_lower`). Some
do not, and dynamic scalars of the program are host tensors at this point (`scalar_operands`). All readers share one
copy. It does not wait for the device: the driver reads pageable memory before the call returns. It reads page-locked
memory later, when the program may have overwritten it, and an input may be page-locked: so inputs are cloned first.
"""


import torch
from torch import fx

from smelt.base.rewrite_budget import RewriteBudget
from smelt.device.host_library import on_host
from smelt.ir.graph import Traced
from smelt.ir.tensorspec import TensorSpec, spec_of, tensor_spec
from smelt.meta.devices import is_element_wise, takes_number
from smelt.meta.effects import is_view
from smelt.simplify.aliasing import insert

aten = torch.ops.aten


def place_scalars(traced: Traced, budget: RewriteBudget) -> Traced:
    """Copy them. Burns no rewrite budget: without it PyTorch refuses the call."""
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
        scalar = insert(user, aten.clone.default, (scalar,), {}, TensorSpec((), (), spec.dtype, spec.device))
    options = {"device": device, "non_blocking": True}
    return insert(user, aten._to_copy.default, (scalar,), options, TensorSpec((), (), spec.dtype, device))


def _is_computed(node: fx.Node) -> bool:
    """Whether the graph made the memory that a node's value is in."""
    while is_view(node.target) and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node.op == "call_function"
