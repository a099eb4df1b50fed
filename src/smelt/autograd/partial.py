"""The backward for gradients of some results only: what depends on the others is not there, as in eager.

    backward(saved, tangents_1, tangents_2)        given tangents_1 alone:
      mul = mul(tangents_1, 2)                       mul = mul(tangents_1, 2)
      div = div(tangents_2, saved)                   return mul
      add = add(mul, div); return add

A backward is linear in its tangents, so a value that only missing ones lead to is zero. Computing it as zeros costs
time, and is wrong where a factor is infinite: 0 * inf is NaN, and eager never asks.
"""

from typing import Any

import torch
from torch import fx

from smelt.ir.graph import Level, Traced, outputs, placeholders
from smelt.ir.joint import Plan
from smelt.ir.tensorspec import TensorSpec, set_spec, spec_of

aten = torch.ops.aten
_ABSENT = object()


def given_only(backward: Traced, plan: Plan, arrived: int) -> Traced | None:
    """A backward without the tangents that have no bit in `arrived`.

    A gradient that depends on nothing else is None, or zeros where eager has zeros (`plan.fed`). None comes back if a
    missing value stands where zeros cannot stand in for it.
    """
    tangents = len(plan.tangents)
    inputs = placeholders(backward.graph)
    first = len(inputs) - tangents
    made: dict[fx.Node, Any] = {
        node: _ABSENT for number, node in enumerate(inputs[first:]) if not arrived >> number & 1
    }
    led_to = set(inputs[first:])  # by any tangent
    graph = fx.Graph()
    for node in backward.graph.nodes:
        if node.op == "output":
            break
        sources = [used for used in node.all_input_nodes if used in led_to]
        if sources:
            led_to.add(node)
        if node in made:
            continue
        if sources and all(made[used] is _ABSENT for used in sources):
            made[node] = _ABSENT
            continue
        copied = _copied(graph, node, made)
        if copied is None:
            return None
        made[node] = copied
    returned: list[Any] = []
    for value, fed in zip(outputs(backward.graph), plan.fed, strict=True):
        if not isinstance(value, fx.Node) or made[value] is not _ABSENT:
            returned.append(made[value] if isinstance(value, fx.Node) else value)
        elif not fed & arrived:
            returned.append(None)
        elif _can_be_zeros(value):
            returned.append(_zeros(graph, value))
        else:
            return None
    graph.output(tuple(returned))
    used = {str(node.target) for node in graph.nodes if node.op == "get_attr"}
    constants = {name: tensor for name, tensor in backward.constants.items() if name in used}
    return Traced(graph, Level.PURE, constants)


def for_the_loss(backward: Traced, plan: Plan) -> Traced:
    """The backward that most likely runs: of several results, for the scalar ones alone if there are any (a loss)."""
    scalars = sum(1 << number for number, spec in enumerate(plan.tangents) if not spec.shape)
    if scalars in (0, (1 << len(plan.tangents)) - 1):
        return backward
    return given_only(backward, plan, scalars) or backward


def _can_be_zeros(node: fx.Node) -> bool:
    spec = spec_of(node)
    return isinstance(spec, TensorSpec) and spec.is_contiguous


def _copied(graph: fx.Graph, node: fx.Node, made: dict[fx.Node, Any]) -> fx.Node | None:
    """`node` in the new graph: the other summand of a sum, else with zeros for what is absent."""
    absent = [used for used in node.all_input_nodes if made[used] is _ABSENT]
    if absent and node.target is aten.add.Tensor and not node.kwargs and len(node.args) == 2:
        other = node.args[0] if node.args[1] in absent else node.args[1]
        if isinstance(other, fx.Node) and spec_of(other) == spec_of(node):
            found: fx.Node = made[other]
            return found
    if not all(map(_can_be_zeros, absent)):
        return None
    zeros = {used: _zeros(graph, used) for used in absent}
    return graph.node_copy(node, lambda used: zeros.get(used) or made[used])


def _zeros(graph: fx.Graph, node: fx.Node) -> fx.Node:
    spec = spec_of(node)
    assert isinstance(spec, TensorSpec)
    named: dict[str, Any] = {"dtype": spec.dtype, "device": spec.device}
    made = graph.create_node("call_function", aten.full.default, (list(spec.shape), 0), named, name="zeros")
    set_spec(made, spec)
    return made
