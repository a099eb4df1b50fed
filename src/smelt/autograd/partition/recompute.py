"""What the backward may recompute, and how little of a value it needs.

    recomputable(mm) → "a library call"     recomputable(sum) → "a reduction"     recomputable(sin) → None: it may be

`narrowed` rewrites a joint graph so that the least of a value crosses from forward to backward:

    threshold_backward(g, relu, 0)   →   le = le(relu, 0); where(le, zero, g)       one byte an element instead of four
    noise = bernoulli(x, 0.9)        →   mask = to bool(noise); widened = to float(mask)

Both are exact: the comparison is the one the kernel makes, and zeros and ones survive the trip through bool.
"""

import operator
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import fx

from smelt.autograd.joint.aliasing import is_view
from smelt.ir.call_contract import Phase, RecomputePolicy, recompute_policy_of, set_phase
from smelt.ir.graph import GraphLevel, Traced, copied_graph
from smelt.ir.tensorspec import NumberSpec, TensorSpec, set_spec, spec_of, tensor_spec
from smelt.meta.effects import draws
from smelt.meta.rules.strides import like_stride

aten = torch.ops.aten

LIBRARY = "a library call"
# One result element per input element, or none read at all, though not tagged pointwise.
COPIES = frozenset({aten._to_copy.default, aten.copy.default})
CREATION = frozenset(
    {
        "full", "zeros", "ones", "empty", "arange", "scalar_tensor", "eye", "empty_strided",
        "full_like", "zeros_like", "ones_like", "empty_like",
        "new_full", "new_zeros", "new_ones", "new_empty", "new_empty_strided",
    }
)  # fmt: skip


def recomputable(node: fx.Node) -> str | None:
    """None if the backward may recompute `node` for next to nothing, otherwise why it should not."""
    op = node.target
    if node.op == "get_attr" or is_view(node) or isinstance(spec_of(node), NumberSpec):
        return None
    if op is operator.getitem:
        source = node.args[0]
        return recomputable(source) if isinstance(source, fx.Node) else None
    if not isinstance(op, torch._ops.OpOverload):
        return "an input of the graph" if node.op == "placeholder" else "not an operator"
    if draws(node):
        return "draws random numbers"
    policy = recompute_policy_of(node)
    if policy is not None:
        return None if policy is RecomputePolicy.RECOMPUTE else "saved by its checkpoint policy"
    if op in COPIES and _moves(node):
        return "a copy between devices"
    return _why_not_again(op)


@cache  # reading an operator's tags is slow
def _why_not_again(op: torch._ops.OpOverload) -> str | None:
    """Why an operator is not for the backward to recompute, whatever it is given."""
    if op.namespace != "aten" and not (op.namespace == "smelt" and torch.Tag.pointwise in op.tags):
        return "an operator whose cost is unknown"
    if torch.Tag.pointwise in op.tags or op in COPIES or op._schema.name.removeprefix("aten::") in CREATION:
        return None
    return "a reduction" if torch.Tag.reduction in op.tags else LIBRARY


def _moves(node: fx.Node) -> bool:
    """Whether a copy brings data from one device to another, which takes longer than to read it."""
    specs = map(spec_of, (node, *node.all_input_nodes))
    return len({spec.device for spec in specs if isinstance(spec, TensorSpec)}) > 1


def narrowed(traced: Traced) -> Traced:
    """The graph with booleans in place of values that matter only by a comparison. Untouched if there are none."""
    if not any(node.target in RULES and RULES[node.target](node) for node in traced.graph.nodes):
        return traced
    graph = copied_graph(traced.graph)
    for node in list(graph.nodes):
        rule = RULES.get(node.target)
        if rule is not None and rule(node):
            REWRITES[node.target](graph, node)
    return Traced(graph, GraphLevel.PURE, traced.constants)


def _mask_applies(node: fx.Node) -> bool:
    """The compared value comes from outside the backward, and is wider than a boolean. A comparison rounds its number
    to 16 bits where the operator does not."""
    compared, threshold = node.args[1:3]
    if not isinstance(compared, fx.Node) or isinstance(threshold, fx.Node):
        return False
    dtype = tensor_spec(compared).dtype
    return dtype.itemsize > 2 or (dtype.itemsize == 2 and torch.tensor(threshold, dtype=dtype).item() == threshold)


def _noise_applies(node: fx.Node) -> bool:
    return tensor_spec(node).dtype.itemsize > 1


def _call(
    graph: fx.Graph, op: torch._ops.OpOverload, args: tuple[Any, ...], spec: TensorSpec, **kwargs: Any
) -> fx.Node:
    node = graph.create_node("call_function", op, args, kwargs, name=op.overloadpacket.__name__)
    set_spec(node, spec)
    set_phase(node, Phase.BACKWARD)
    return node


def _like(spec: TensorSpec, dtype: torch.dtype) -> TensorSpec:
    """The spec of an element-wise result: dense, though the input may have gaps or overlaps."""
    return TensorSpec(spec.shape, like_stride(spec.shape, spec.stride), dtype, spec.device)


def _narrow_threshold(graph: fx.Graph, node: fx.Node) -> None:
    gradient, compared, threshold = node.args[:3]
    assert isinstance(compared, fx.Node)
    spec = tensor_spec(node)
    with graph.inserting_before(node):
        mask = _call(graph, aten.le.Scalar, (compared, threshold), _like(tensor_spec(compared), torch.bool))
        scalar = TensorSpec((), (), spec.dtype, spec.device)
        zero = _call(graph, aten.full.default, ([], 0), scalar, dtype=spec.dtype, device=spec.device)
        chosen = _call(graph, aten.where.self, (mask, zero, gradient), spec)
    node.replace_all_uses_with(chosen)
    graph.erase_node(node)


def _narrow_noise(graph: fx.Graph, node: fx.Node) -> None:
    spec = tensor_spec(node)
    users = list(node.users)
    with graph.inserting_after(node):
        mask = _call(graph, aten._to_copy.default, (node,), _like(spec, torch.bool), dtype=torch.bool)
    with graph.inserting_after(mask):
        widened = _call(graph, aten._to_copy.default, (mask,), _like(spec, spec.dtype), dtype=spec.dtype)
    for new in (mask, widened):
        set_phase(new, Phase.FORWARD)
    for user in users:
        user.replace_input_with(node, widened)


RULES: dict[object, Callable[[fx.Node], bool]] = {
    aten.threshold_backward.default: _mask_applies,
    aten.bernoulli.p: _noise_applies,
}
REWRITES: dict[object, Callable[[fx.Graph, fx.Node], None]] = {
    aten.threshold_backward.default: _narrow_threshold,
    aten.bernoulli.p: _narrow_noise,
}
