"""The backward for gradients of some results only, without what depends on the other tangents, as in eager.

    backward(saved, tangents_1, tangents_2)        given tangents_1 alone:
      mul = mul(tangents_1, 2)                       mul = mul(tangents_1, 2)
      div = div(tangents_2, saved)                   return mul
      add = add(mul, div); return add

A backward is linear in its tangents, so a value that depends on missing ones only is zero. Computing it as zeros costs
time, and is wrong where a factor is infinite: 0 * inf is NaN, and eager never computes it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from smelt.autograd.joint.aliasing import views_to_copy
from smelt.autograd.joint.functional_trace import without_dead_code
from smelt.ir.call_contract import JointPlan, arrival_of
from smelt.ir.graph import Traced, add_copy, outputs, placeholders
from smelt.ir.tensorspec import TensorSpec, set_spec, spec_of, tensor_spec
from smelt.symbolic.shapes import contiguous_stride

aten = torch.ops.aten
_ABSENT = object()


def for_tangents(backward: Traced, plan: JointPlan, arrived: int) -> Traced | None:
    """A backward without the tangents that have no bit in `arrived`.

    A gradient that depends on nothing else is None, or zeros where eager has zeros (`plan.grad_depends_on`). Returns
    None if a missing value cannot be replaced by zeros.
    """
    tangents = placeholders(backward.graph)[-len(plan.tangents) :]
    present = {node: node for number, node in enumerate(tangents) if arrived >> number & 1}
    partial = _PartialGraph(backward, present, [node for node in tangents if node not in present], tangents)
    return partial.returning(_gradients(partial, backward, plan, arrived)) if partial.complete else None


def cut_at_outputs(marked: Traced, plan: JointPlan, arrived: int, source: int | None = None) -> Traced | None:
    """A part of the backward, cut at the outputs that other results depend on.

    With a `source`, the part from that tangent to the outputs that its result depends on, in the order of the plan;
    without, the part from all tangents in `arrived` to the inputs. Both take complete gradients of results: the engine
    adds up what flows from one result to another through an output.
    """
    tangents = placeholders(marked.graph)[-len(plan.tangents) :]
    marks = {place: node for node in marked.graph.nodes if (place := arrival_of(node)) is not None}
    mark_of = {plan.tangent_of(place): node for place, node in marks.items()}
    sources = [mark_of.get(number, node) for number, node in enumerate(tangents)]
    taken = arrived if source is None else 1 << source
    present = {sources[number]: node for number, node in enumerate(tangents) if taken >> number & 1}
    missing = [node for node in (*tangents, *marks.values()) if node not in present]
    partial = _PartialGraph(marked, present, missing, tangents)
    if not partial.complete:
        return None
    if source is None:
        return partial.returning(_gradients(partial, marked, plan, arrived))
    deps = dict(plan.output_deps)[source]
    return partial.returning([partial.of(marks[place].args[0]) if place in marks else None for place in deps])


class _PartialGraph:
    """A backward without what depends on missing values. `given`: nodes that become its inputs, with their tangents."""

    def __init__(
        self,
        backward: Traced,
        present: dict[fx.Node, fx.Node],
        missing: Sequence[fx.Node],
        tangents: Sequence[fx.Node],
    ) -> None:
        self.backward, self.graph = backward, fx.Graph()
        self.copies: dict[fx.Node, Any] = dict.fromkeys(missing, _ABSENT)
        self._single_summand: dict[fx.Node, fx.Node] = {}  # sums with one summand present, in another layout
        self.complete = False
        depends_on_tangent = {*tangents, *present}
        for node in placeholders(backward.graph):
            if node not in self.copies and node not in tangents:
                self.copies[node] = add_copy(self.graph, node, self.copies.__getitem__)
        for node, tangent in present.items():
            self.copies[node] = add_copy(self.graph, tangent, self.copies.__getitem__)
        for node in backward.graph.nodes:
            if node.op == "output":
                break
            sources = [used for used in node.all_input_nodes if used in depends_on_tangent]
            if sources:
                depends_on_tangent.add(node)
            if node in self.copies:
                continue
            if sources and all(self.copies[used] is _ABSENT for used in sources):
                self.copies[node] = _ABSENT
                continue
            summand = _only_summand(node, self.copies)
            if summand is not None and spec_of(summand) == spec_of(node):
                self.copies[node] = self.copies[summand]
                continue
            if summand is not None:
                self._single_summand[node] = self.copies[summand]
            copied = _copied(self.graph, node, self.copies)
            if copied is None:
                return
            self.copies[node] = copied
        self.complete = True

    def of(self, value: Any) -> Any:
        """The node that is returned for a value, laid out as in eager; None for one that is missing."""
        node = self._single_summand.get(value, self.copies[value]) if isinstance(value, fx.Node) else value
        return None if node is _ABSENT else node

    def returning(self, values: Sequence[Any] | None) -> Traced | None:
        if values is None:
            return None
        self.graph.output(tuple(values))
        return without_dead_code(self.graph, self.backward.constants)


def _gradients(partial: _PartialGraph, backward: Traced, plan: JointPlan, arrived: int) -> list[Any] | None:
    """The gradients of the inputs; None if zeros that eager returns cannot be made."""
    returned: list[Any] = []
    gradients = outputs(backward.graph)
    for value, fed in zip(gradients, plan.grad_depends_on or (1,) * len(gradients), strict=True):
        node = partial.of(value)
        if node is None and isinstance(value, fx.Node) and fed & arrived:
            if not _can_be_zeros(value):
                return None
            node = _zeros(partial.graph, value)
        returned.append(node)
    for index in views_to_copy(dict(enumerate(returned))):
        copy = partial.graph.call_function(aten.clone.default, (returned[index],))
        set_spec(copy, replace(tensor_spec(returned[index]), offset=0))
        returned[index] = copy
    return returned


def for_the_loss(backward: Traced, plan: JointPlan) -> Traced:
    """The backward that most likely runs: for the scalar results only, if there are any (a loss)."""
    scalars = sum(1 << number for number, spec in enumerate(plan.tangents) if not spec.shape)
    if scalars in (0, (1 << len(plan.tangents)) - 1):
        return backward
    return for_tangents(backward, plan, scalars) or backward


def _can_be_zeros(node: fx.Node) -> bool:
    spec = spec_of(node)
    return isinstance(spec, TensorSpec) and (spec.is_contiguous or _memory_order(spec) is not None)


def _memory_order(spec: TensorSpec) -> list[int] | None:
    """The dimensions from the outermost in memory to the innermost; None if it is not dense."""
    order = sorted(range(len(spec.shape)), key=lambda dimension: spec.stride[dimension], reverse=True)
    dense = contiguous_stride(tuple(spec.shape[dimension] for dimension in order))
    return order if dense == tuple(spec.stride[dimension] for dimension in order) else None


def _only_summand(node: fx.Node, copies: dict[fx.Node, Any]) -> fx.Node | None:
    """The summand of a sum that is present while the other is absent, if the sum then equals it."""
    if node.target is not aten.add.Tensor or node.kwargs or len(node.args) != 2:
        return None
    there = [used for used in node.args if isinstance(used, fx.Node) and copies[used] is not _ABSENT]
    if len(there) != 1 or len(node.all_input_nodes) != 2:
        return None
    summand, total = spec_of(there[0]), spec_of(node)
    assert isinstance(summand, TensorSpec) and isinstance(total, TensorSpec)
    return there[0] if (summand.shape, summand.dtype) == (total.shape, total.dtype) else None


def _copied(graph: fx.Graph, node: fx.Node, copies: dict[fx.Node, Any]) -> fx.Node | None:
    """`node` in the new graph, with zeros for what is absent."""
    absent = [used for used in node.all_input_nodes if copies[used] is _ABSENT]
    if not all(map(_can_be_zeros, absent)):
        return None
    zeros = {used: _zeros(graph, used) for used in absent}
    return add_copy(graph, node, lambda used: zeros.get(used) or copies[used])


def _zeros(graph: fx.Graph, node: fx.Node) -> fx.Node:
    spec = spec_of(node)
    assert isinstance(spec, TensorSpec)
    named: dict[str, Any] = {"dtype": spec.dtype, "device": spec.device}
    order = None if spec.is_contiguous else _memory_order(spec)
    shape = spec.shape if order is None else tuple(spec.shape[dimension] for dimension in order)
    zeros = graph.create_node("call_function", aten.full.default, (list(shape), 0), named, name="zeros")
    if order is None:
        set_spec(zeros, spec)
        return zeros
    set_spec(zeros, TensorSpec(shape, contiguous_stride(shape), spec.dtype, spec.device))
    transposed = graph.call_function(aten.permute.default, (zeros, [order.index(place) for place in range(len(order))]))
    set_spec(transposed, spec)
    return transposed
