"""Running the steps of a captured backward, one after the other.

BackwardRun(engine, reading, values, numbers)    slots being filled; each step is a function of it
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.autograd.graph import GradientEdge

from smelt import _native
from smelt.autograd.engine.read_graph import ACCUMULATE, GraphReading, layout
from smelt.autograd.joint.aliasing import is_view, view_root
from smelt.base import locks
from smelt.base.coexist import leave_alone
from smelt.base.fast_dataclass import dataclass
from smelt.base.torch_originals import BASE
from smelt.ir.backward import (
    AccumulateByEngine,
    AccumulateGrads,
    CallLeafHooks,
    CallNode,
    Graph,
    HookAt,
    HooksByEngine,
    Step,
    dense_spec,
)
from smelt.ir.nodes.hook_calls import laid_out
from smelt.ir.tensorspec import TensorSpec, set_spec, spec_of
from smelt.pipeline.backward.accumulate_grad import accumulate, accumulate_by_engine
from smelt.torch_abi.node_layout import materializes

Values = list[Any]
Run = Callable[["BackwardRun"], None]


@dataclass(slots=True)
class BackwardRun:
    """The state of one backward that is running."""

    engine: Any
    reading: GraphReading
    values: Values
    numbers: tuple[int, ...]
    hooks: dict[HookAt, tuple[Any, int]]  # the dict that a hook is in, and its key there


def run_steps(steps: Sequence[Run], run: BackwardRun) -> None:
    for step in steps:
        step(run)


def read_slots(step: Step) -> list[int]:
    if isinstance(step, Graph):
        return [source for source in step.inputs if isinstance(source, int)]
    if isinstance(step, AccumulateGrads):
        return [slot for _, slot in step.gradients]
    if isinstance(step, HooksByEngine):
        return [slot for _, slot, _ in step.gradients]
    if isinstance(step, CallNode):
        return [slot for slot in step.gradients if slot is not None]
    return [step.slot] if isinstance(step, AccumulateByEngine) else []


def detached(step: Graph, slots: frozenset[int]) -> Graph:
    """The graph with views detached that go to those slots: a leaf's gradient is no view to PyTorch, whatever computed
    it. What aliases another result or an input is handled when it is accumulated."""
    graph = fx.Graph()
    results: Any = graph.graph_copy(step.traced.graph, {})
    roots = Counter(map(view_root, results))
    own = list(results)
    for place, (slot, result) in enumerate(zip(step.outputs, results, strict=True)):
        root = view_root(result)
        if slot in slots and is_view(result) and roots[root] == 1 and root.op == "call_function":
            own[place] = graph.call_function(torch.ops.aten.detach.default, (result,))
            set_spec(own[place], spec_of(result))
    graph.output(tuple(own))
    return replace(step, traced=replace(step.traced, graph=graph))


def run_graph(call: Callable[..., tuple[Any, ...]], step: Graph, done: Sequence[int], run: BackwardRun) -> None:
    """A graph that calls no Python code."""
    values = run.values
    inputs = [values[source] for source in step.inputs]  # type: ignore[index]  # there are no hooks among them
    for slot in done:
        values[slot] = None
    for slot, value in zip(step.outputs, call(*inputs), strict=True):
        values[slot] = value


def run_module(call: Callable[..., Any], step: Graph, done: Sequence[int], run: BackwardRun) -> None:
    values = run.values
    inputs = [_hook(run, each) if isinstance(each, HookAt) else values[each] for each in step.inputs]
    for slot in done:
        values[slot] = None
    results = call(*inputs, *run.numbers)
    for slot, value in zip(step.outputs, results, strict=True):
        values[slot] = value


def find_hooks(reading: GraphReading, places: Sequence[HookAt]) -> dict[HookAt, tuple[Any, int]]:
    """The hooks, looked up before the first of them runs: it may remove others, or itself."""
    hooks = {}
    for at in places:
        functions = _functions(reading, at)
        hooks[at] = (functions, list(functions)[at.number])
    return hooks


def _hook(run: "BackwardRun", at: HookAt) -> Any:
    functions, key = run.hooks[at]
    return functions.get(key, _removed_hook)


def _removed_hook(*gradients: Any) -> None:
    """In place of a hook that was removed meanwhile."""


def _functions(reading: GraphReading, at: HookAt) -> Any:
    node = reading.nodes[at.node]
    if at.kind == "post_accumulate_grad_hook":
        return node.variable._post_accumulate_grad_hooks
    if type(node) is ACCUMULATE:
        return node.variable._backward_hooks
    return reading.hooks(at.node)[0][at.place][1]


_accumulating = locks.lock()


def accumulate_all(gradients: tuple[tuple[int, int, bool], ...], run: BackwardRun) -> None:
    with _native.Held(_accumulating):  # two threads may train the same leaves
        _native.accumulate_grads(run.reading.nodes, run.values, gradients, partial(accumulate, run.engine))


def _accumulate_by_engine(step: AccumulateByEngine, run: BackwardRun) -> None:
    gradient = run.values[step.slot]
    accumulate_by_engine(run.engine, run.reading.nodes[step.node].variable, gradient)


def _call_leaf_hooks(step: CallLeafHooks, run: BackwardRun) -> None:
    leaf = run.reading.nodes[step.node].variable
    for at in step.hooks:
        result = _hook(run, at)(leaf)
        if result is not None:
            raise RuntimeError("Tensor post accumulate grad hooks should return None.")


def _hooks_by_engine(step: HooksByEngine, run: BackwardRun) -> None:
    node, values = run.reading.nodes[step.node], run.values
    edges = tuple(GradientEdge(node, place) for place, _, _ in step.gradients)
    gradients = tuple(values[slot] for _, slot, _ in step.gradients)
    new = run.engine.run_backward(edges, gradients, True, False, edges, allow_unreachable=True, accumulate_grad=False)
    for (_, before, after), value in zip(step.gradients, new, strict=True):
        values[after] = laid_out(value, dense_spec(spec_of_tensor(values[before])).stride)


def _call_node(step: CallNode, run: BackwardRun) -> None:
    node, values = run.reading.nodes[step.node], run.values
    gradients = [None if slot is None else values[slot] for slot in step.gradients]
    results = _called_python(node, gradients) if step.python else _called(node, gradients)
    for result, expected, (after, _) in zip(results, step.results, node.next_functions, strict=True):
        if after is None:
            continue
        if (result is None) != (expected is None):
            raise RuntimeError(
                f"{step.name} returned a gradient where it returned None before, or None where it returned one: "
                "disable compiled autograd for what uses it"
            )
        if expected is not None:
            slot, spec = expected
            values[slot] = _like(result, spec)


def _called(node: Any, gradients: Sequence[Any]) -> Sequence[Any]:
    results = node(*gradients)
    return results if isinstance(results, tuple | list) else (results,)


def _called_python(node: Any, gradients: list[Any]) -> Sequence[Any]:
    """As the engine calls the backward of a `torch.autograd.Function`."""
    if materializes(node):
        for place, expected in enumerate(node._input_metadata):
            if gradients[place] is None:
                gradients[place] = torch.zeros(tuple(expected.shape), dtype=expected.dtype, device=expected.device)
    results = node.apply(*gradients)
    results = tuple(results) if isinstance(results, tuple | list) else (results,)
    needed = node.needs_input_grad
    if len(results) < len(needed) or any(extra is not None for extra in results[len(needed) :]):
        raise RuntimeError(
            f"function {node.name()} returned an incorrect number of gradients "
            f"(expected {len(needed)}, got {len(results)})"
        )
    wanted = iter([result for result, needs in zip(results, needed, strict=False) if needs])
    return [None if after is None else next(wanted) for after, _ in node.next_functions]


def _like(result: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """A gradient with the dtype and sizes that the engine would give it, in the layout that was traced with."""
    if result.dtype != spec.dtype:
        result = BASE.to(result, spec.dtype)
    if tuple(result.shape) != spec.shape:
        result = result.sum_to_size(spec.shape)
    return laid_out(result, spec.stride)


STEP_RUNNERS: dict[type, Callable[[Any, BackwardRun], None]] = {
    AccumulateByEngine: _accumulate_by_engine,
    CallLeafHooks: _call_leaf_hooks,
    HooksByEngine: _hooks_by_engine,
    CallNode: _call_node,
}


@leave_alone
class _EngineNode(torch.autograd.Function):
    """A node whose backward is a whole compiled one, so that Python code in it runs inside the engine, as it
    expects."""

    @staticmethod
    def forward(ctx: Any, work: Callable[[], None], anchor: torch.Tensor) -> torch.Tensor:
        ctx.work = work
        return torch.empty_like(anchor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        ctx.work()
        return None, None


_engine_node: Callable[..., torch.Tensor] = _EngineNode.apply


def run_inside_engine(engine: Any, work: Callable[[], None], keep_graph: bool, device: torch.device) -> None:
    """On the thread that the engine has for a device, and on the stream that is current there now. What the carrier
    holds is never looked at, so nothing runs on the device."""
    with torch._C._InferenceMode(False), torch.enable_grad():
        carrier = _engine_node(work, torch.empty((), device=device, requires_grad=True))
    gradient = torch.empty((), device=device)
    engine.run_backward((carrier,), (gradient,), keep_graph, False, (), allow_unreachable=True, accumulate_grad=True)


def spec_of_tensor(tensor: torch.Tensor) -> TensorSpec:
    layout(tensor)
    return TensorSpec(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device)
