"""Why a backward was captured, and what was captured, in words.

cache miss due to new autograd node: MulBackward0 (node 1)
cache miss due to changed shape: gradient 0 of SumBackward0 (node 0) …
cache miss due to changed hook: AccumulateGrad (node 2)
"""

from dataclasses import field
from typing import Any

from smelt.autograd.engine.read_graph import ACCUMULATE, GraphReading
from smelt.base.fast_dataclass import dataclass
from smelt.ir.backward import (
    AccumulateByEngine,
    AccumulateGrads,
    Backward,
    CallLeafHooks,
    CallNode,
    Graph,
    HooksByEngine,
)
from smelt.ir.graph import format_graph


@dataclass(frozen=True, slots=True)
class _Node:
    """A node as the key describes it."""

    name: str
    edges: tuple[tuple[str, int] | None, ...]
    hooks: Any
    shapes: tuple[Any, ...]


@dataclass(slots=True)
class Misses:
    """The graphs captured so far."""

    graphs: list[tuple[_Node, ...]] = field(default_factory=list)

    def note(self, reading: GraphReading) -> str:
        """Remember a graph, and say what is new in it."""
        nodes = tuple(_described(reading, number) for number in range(len(reading.nodes)))
        reason = self._reason(nodes)
        self.graphs.append(nodes)
        del self.graphs[:-64]
        return reason

    def _reason(self, nodes: tuple[_Node, ...]) -> str:
        alike = [seen for seen in self.graphs if _skeleton(seen) == _skeleton(nodes)]
        if not alike:
            shared = max((_shared(seen, nodes) for seen in self.graphs), default=0)
            number = min(shared, len(nodes) - 1)
            return f"new autograd node: {nodes[number].name} (node {number})"
        hooked = [seen for seen in alike if [node.hooks for node in seen] == [node.hooks for node in nodes]]
        if not hooked:
            number = next(n for n, node in enumerate(nodes) if node.hooks != alike[-1][n].hooks)
            return f"changed hook: {nodes[number].name} (node {number})"
        for number, node in enumerate(nodes):
            before = hooked[-1][number]
            if node.shapes != before.shapes:
                return f"changed shape: {node.name} (node {number}) has {node.shapes}, had {before.shapes}"
        return "changed value: a number or a layout that some node saved"


def _described(reading: GraphReading, number: int) -> _Node:
    node = reading.nodes[number]
    edges = tuple(None if after is None else (after.name(), place) for after, place in node.next_functions)
    all_hooks, retained = reading.hooks(number)
    hooks: list[Any] = [(kind, functions is not None and len(functions), index) for kind, functions, index in all_hooks]
    hooks.append(retained)
    if type(node) is ACCUMULATE:
        leaf = node.variable
        hooks += [len(leaf._backward_hooks or ()), len(leaf._post_accumulate_grad_hooks or ())]
    return _Node(_name(node), edges, hooks, tuple(tuple(each.shape) for each in node._input_metadata))


def _name(node: Any) -> str:
    return str(node.name()).removeprefix("torch::autograd::")


def _skeleton(nodes: tuple[_Node, ...]) -> list[Any]:
    return [(node.name, node.edges) for node in nodes]


def _shared(one: tuple[_Node, ...], other: tuple[_Node, ...]) -> int:
    """How far two graphs agree."""
    count = 0
    for left, right in zip(one, other, strict=False):
        if left.name != right.name:
            break
        count += 1
    return count


def describe(backward: Backward, reading: GraphReading) -> str:
    """A captured backward as text."""
    lines = ["captured backward:"]
    for step in backward.steps:
        if isinstance(step, Graph):
            lines.append(format_graph(step.traced.graph))
        elif isinstance(step, AccumulateGrads):
            lines += [f"accumulate_grad(slot {slot}) at node {number}" for number, slot in step.gradients]
        elif isinstance(step, AccumulateByEngine):
            lines.append(f"accumulate_grad(slot {step.slot}) at node {step.node}, by the engine, with all its hooks")
        elif isinstance(step, CallLeafHooks):
            lines += [f"call_hook({at.kind} {at.number}) at node {step.node}" for at in step.hooks]
        elif isinstance(step, HooksByEngine):
            lines.append(f"call_hook(all on the results of {_name(reading.nodes[step.node])}), by the engine")
        elif isinstance(step, CallNode):
            lines.append(f"call_backward({step.name})")
    return "\n".join(lines)
