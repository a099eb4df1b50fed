"""The work of the autograd engine on one graph, run on fake tensors and recorded.

    trace(reading, …)  →  Backward: graphs, and what must happen in Python between them

Nodes run in the engine's order. A C++ node is called as the engine calls it, with fake tensors for gradients: what its
formula computes is recorded, and the tensors it saved become inputs. A compiled graph's backward is inlined, its nodes
named `aot0_…`. Hooks are calls in the graph. A leaf's gradient is accumulated at the end, or before the next Python
code runs, which could read it.
"""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg
from torch.utils._python_dispatch import _disable_current_modes

from smelt import _native
from smelt.autograd.engine.read_graph import ACCUMULATE, GraphReading, Unreadable, layout, saved_tensors
from smelt.autograd.joint.functional_trace import CannotTrace, is_lazy_conjugate
from smelt.autograd.joint.ready_queue import ReadyQueue
from smelt.base.fast_dataclass import dataclass
from smelt.ir.backward import (
    AccumulateByEngine,
    AccumulateGrads,
    Backward,
    CallLeafHooks,
    CallNode,
    Graph,
    HookAt,
    HooksByEngine,
    Step,
    dense_spec,
)
from smelt.ir.graph import GraphLevel, Traced, outputs, placeholders
from smelt.ir.nodes.hook_calls import call_hook, call_hook_on_all
from smelt.ir.tensorspec import NumberSpec, TensorSpec, set_spec, spec_of, tensor_spec
from smelt.meta.fake_tensor import FakeTensor, FakeTensorError, Recorder, without_caller_hooks
from smelt.meta.sparse import yields_sparse
from smelt.runtime.autograd.node_view import CompiledNodeView
from smelt.runtime.autograd.split_nodes import InputGroupNode
from smelt.torch_abi.node_layout import materializes

aten = torch.ops.aten

# Per node written in Python: per edge, the layout of the gradient it returned, or None.
Observed = Mapping[int, "tuple[TensorSpec | None, ...]"]


def trace(
    reading: GraphReading,
    roots: Sequence[tuple[int, int]],
    gradients: Sequence[torch.Tensor],
    wanted: Sequence[tuple[int, int] | None] | None,
    leaves: frozenset[int] | None,
    observed: Observed,
) -> Backward:
    """Capture a backward from `roots` (node, number of the result) with these gradients.

    `wanted`: the gradients that are asked for (node, number of its input), instead of being added to leaves; `leaves`:
    those that take part, if not all do. Raises `Unreadable` for what the engine must run.
    """
    accumulating = [node for node in reading.nodes if type(node) is ACCUMULATE]
    leaves_here = [node.variable for node in accumulating]
    if any(tuple(node._input_metadata[0].shape) != tuple(node.variable.shape) for node in accumulating):
        raise Unreadable("the shape of a leaf changed since the forward")
    for tensor in (*reading.tensors, *leaves_here):
        layout(tensor)  # refuses what cannot be compiled for
    if any(getattr(leaf, "grad_dtype", leaf.dtype) is not leaf.dtype for leaf in leaves_here):
        raise Unreadable("a leaf's grad_dtype differs from its dtype")
    computed = [at for at in wanted or () if at is not None and type(reading.nodes[at[0]]) is not ACCUMULATE]
    if computed and reading.dependent:
        raise Unreadable("a gradient between two outputs of a compiled graph may be asked for")
    with torch.no_grad(), without_caller_hooks():
        tracer = _Tracer(reading, roots, wanted, leaves, observed)
        try:
            return tracer.run(roots, gradients)
        except (CannotTrace, FakeTensorError, RuntimeError) as error:  # the engine raises its own error
            raise Unreadable(str(error)) from error


class _GraphSequence(Recorder):  # type: ignore[no-untyped-call]
    """A recorder of several graphs in a row. A value of an earlier graph is an input of the one that uses it."""

    def __init__(self, tensors: Sequence[torch.Tensor], first: int) -> None:
        super().__init__()
        self.tensors, self.first = tensors, first  # saved tensors, and the slot of the first of them
        self.saved_by_node: Sequence[int] = ()  # what the current node saved
        self.steps: list[Step] = []
        self.slots = first + len(tensors)
        self._sources: list[int | HookAt] = []
        self._given_nodes: dict[Any, fx.Node] = {}  # inputs of the current graph, by slot or hook
        self._slot_of: dict[fx.Node, int] = {}
        self._exports: dict[fx.Graph, list[fx.Node]] = {}
        self._open: list[tuple[fx.Graph, list[int | HookAt], dict[str, torch.Tensor], int]] = []

    def source(self, what: int | HookAt, name: str, spec: TensorSpec | None) -> fx.Node:
        """The input of the current graph for a slot or a hook."""
        node = self._given_nodes.get(what)
        if node is None:
            place = what if isinstance(what, int) else len(self._sources)
            node = self._given_nodes[what] = self._input(f"{name}_{place}")
            set_spec(node, spec)
            self._sources.append(what)
            if isinstance(what, int):
                self._slot_of[node] = what
        return node

    def node_of(self, value: Any) -> Any:
        if isinstance(value, FakeTensor) and value.node is not None and value.node.graph is not self.graph:
            return self.source(self.slot(value), "earlier", _plain(TensorSpec.of(value)))
        return super().node_of(value)

    def slot(self, fake: FakeTensor) -> int:
        """The slot that holds a value once its graph has run."""
        node = fake.node
        assert node is not None
        if node not in self._slot_of:
            self._slot_of[node] = self.new_slot()
            self._exports.setdefault(node.graph, []).append(node)
        return self._slot_of[node]

    def new_slot(self) -> int:
        self.slots += 1
        return self.slots - 1

    def from_slot(self, slot: int, spec: TensorSpec, name: str) -> FakeTensor:
        """A fake tensor for a slot that a step other than a graph fills."""
        return FakeTensor(spec, self.source(slot, name, spec))

    def between(self, step: Step) -> None:
        """End the current graph, and add this step."""
        self.close()
        self.steps.append(step)

    def close(self) -> None:
        """End the current graph. Its outputs are known only in the end."""
        self._open.append((self.graph, self._sources, self.constants, len(self.steps)))
        self.steps.append(AccumulateGrads(()))  # holds the place
        self._renew()

    def _renew(self) -> None:
        fresh = Recorder()
        self.graph, self.constants = fresh.graph, fresh.constants
        self._constant_nodes, self._last_input = fresh._constant_nodes, None
        self._given, self._numbers = fresh._given, fresh._numbers
        self._sources, self._given_nodes = [], {}

    def finish(self) -> tuple[Step, ...]:
        """All steps, without graphs that compute nothing."""
        for graph, sources, constants, place in self._open:
            exported = self._exports.get(graph, [])
            if all(node.op == "placeholder" for node in graph.nodes) and not exported:
                continue
            graph.output(tuple(exported))
            slots = tuple(self._slot_of[node] for node in exported)
            self.steps[place] = Graph(Traced(graph, GraphLevel.TORCH, constants), tuple(sources), slots)
        return tuple(step for step in self.steps if step != AccumulateGrads(()))

    def own_constant(self, tensor: torch.Tensor) -> fx.Node:
        """A constant of the graph."""
        return super()._constant(tensor)

    def record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if func is aten.view_as_real.default and is_lazy_conjugate(args[0]):
            raise CannotTrace("view_as_real of a lazily conjugated tensor")
        if yields_sparse(func, args, kwargs):
            raise CannotTrace(f"{func} returns a sparse gradient")
        super().record(func, args, kwargs, result)

    def _constant(self, tensor: torch.Tensor) -> fx.Node:
        """The node of a real tensor that a formula uses: its node must have saved it."""
        for number in self.saved_by_node:
            saved = self.tensors[number]
            if saved.data_ptr() == tensor.data_ptr() and layout(saved) == layout(tensor):
                return self.source(self.first + number, "saved", _plain(TensorSpec.of(saved)))
        raise CannotTrace("a node uses a tensor that it did not save")


@dataclass(slots=True)
class _SplitState:
    """State of a compiled graph that is split into several nodes: tangents, then gradients of its inputs."""

    tangents: dict[int, FakeTensor | None] = field(default_factory=dict)
    gradients: dict[int, FakeTensor | None] = field(default_factory=dict)


class _Tracer:
    """The engine, on fake tensors."""

    def __init__(
        self,
        reading: GraphReading,
        roots: Sequence[tuple[int, int]],
        wanted: Sequence[tuple[int, int] | None] | None,
        leaves: frozenset[int] | None,
        observed: Observed,
    ) -> None:
        self.reading, self.observed = reading, observed
        self.nodes = reading.nodes
        numbers = {id(node): number for number, node in enumerate(self.nodes)}
        self.edges: list[list[tuple[int, int] | None]] = [
            [None if after is None else (numbers[id(after)], place) for after, place in node.next_functions]
            for node in self.nodes
        ]
        self.inputs = [node._input_metadata for node in self.nodes]
        self.spans = saved_tensors(reading)
        self.compiled = dict(reading.compiled)
        self.splits = {first: _SplitState() for first in set(reading.split.values())}
        self.arrived: dict[int, int] = {}
        self.wanted = wanted
        self.wanted_slots: dict[tuple[int, int], int] = {}
        self.targets = _targets(self.edges, wanted, leaves)
        self.buffers: dict[int, list[FakeTensor | None]] = {}
        self.pending: list[tuple[int, int]] = []  # gradients to be accumulated into leaves
        self.waiting = [0] * len(self.nodes)
        for edges in self.edges:
            for edge in edges:
                if edge is not None:
                    self.waiting[edge[0]] += 1
        if len(roots) > 1:
            for number, _ in roots:
                self.waiting[number] += 1
        self.ready = ReadyQueue()
        self.done: set[int] = set()
        self.compiled_slots: dict[int, int] = {}

    def run(self, roots: Sequence[tuple[int, int]], gradients: Sequence[torch.Tensor]) -> Backward:
        slots = len(gradients)
        count = 0
        for number, part in self.reading.compiled:
            self.compiled_slots[number] = slots + len(self.reading.tensors) + count
            count += len(part.specs)
        self.recorder = _GraphSequence(self.reading.tensors, slots)
        self.recorder.slots += count
        with self.recorder:
            for place, ((number, result), gradient) in enumerate(zip(roots, gradients, strict=True)):
                layout(gradient)
                fake = self.recorder.from_slot(place, _plain(TensorSpec.of(gradient)), "gradient")
                self._add(number, result, fake)
                if len(roots) == 1:
                    self._push(number)
                else:
                    self._arrive(number)
            while self.ready:
                self._evaluate(self.ready.pop())
        self._accumulate_pending()
        self.recorder.close()
        wanted = tuple(None if at is None else self.wanted_slots.get(at) for at in self.wanted or ())
        arrived = tuple((number, self.arrived.get(number, 0)) for number, _ in self.reading.compiled)
        return Backward(self.recorder.finish(), self.recorder.slots, wanted, arrived, self._nodes_run())

    def _nodes_run(self) -> tuple[int, ...] | None:
        """The nodes that have run, if not all have."""
        return tuple(sorted(self.done)) if len(self.done) < len(self.nodes) else None

    def _push(self, number: int) -> None:
        self.ready.push(number, self.nodes[number]._sequence_nr())

    def _arrive(self, number: int) -> None:
        self.waiting[number] -= 1
        if self.waiting[number] == 0 and number in self.targets:
            self._push(number)

    def _add(self, number: int, place: int, fake: FakeTensor | None) -> None:
        buffer = self.buffers.setdefault(number, [None] * max(1, len(self.inputs[number])))
        if fake is not None:
            before = buffer[place]
            buffer[place] = fake if before is None else _fake(torch.add(before, fake))

    def _evaluate(self, number: int) -> None:
        gradients = self.buffers.pop(number, None) or [None] * max(1, len(self.inputs[number]))
        is_leaf = type(self.nodes[number]) is ACCUMULATE
        captured = [at for at in self.wanted or () if at is not None and at[0] == number]
        if is_leaf and not captured and self._is_watched(number):
            self.done.add(number)
            self._accumulate_by_engine(number, gradients[0])
            return
        gradients = self._with_tensor_hooks(number, gradients)
        for at in captured:
            fake = gradients[at[1]]
            if fake is not None:
                self.wanted_slots[at] = self.recorder.slot(fake)
        if captured and not any(edge is not None and edge[0] in self.targets for edge in self.edges[number]):
            return
        if is_leaf:
            self.done.add(number)
            self._accumulate(number, gradients[0])
            return
        gradients = self._with_hooks(number, "pre_hook", gradients, None)
        if number not in self.compiled or number in self.splits or any(each is not None for each in gradients):
            self.done.add(number)  # a compiled graph without tangents is not freed, as by the engine
        results = self._applied(number, gradients)
        results = [
            self._fitted(edge, result) if edge is not None else None
            for edge, result in zip(self.edges[number], results, strict=True)
        ]
        results = self._with_hooks(number, "post_hook", results, gradients)
        for edge, result in zip(self.edges[number], results, strict=True):
            if edge is not None:
                if edge[0] in self.targets:
                    self._add(*edge, result)
                self._arrive(edge[0])

    def _applied(self, number: int, gradients: list[FakeTensor | None]) -> list[FakeTensor | None]:
        """The gradients that a node returns."""
        node, count = self.nodes[number], len(self.edges[number])
        if number in self.reading.split:
            return self._run_split_node(number, gradients)
        compiled = self.compiled.get(number)
        if compiled is not None:
            placed = compiled.placed(*self._inlined_backward(number, compiled, gradients))
            return self._for_edges(number, placed)
        if number in self.reading.dependent:
            return [gradients[0], *[None] * (count - 1)]
        why_whole = self.reading.whole(number, [edge is not None for edge in self.edges[number]])
        if why_whole is not None:
            return self._called(number, gradients)
        self.recorder.saved_by_node = self.spans[number]
        returned = node(*gradients)
        self.recorder.saved_by_node = ()
        results = list(returned) if isinstance(returned, tuple | list) else [returned]
        if len(results) < count:
            raise Unreadable(f"{node.name()} returns {len(results)} gradients for {count} edges")
        for result in results:
            if result is not None and not isinstance(result, FakeTensor):
                raise Unreadable(f"{node.name()} returns a gradient that was not recorded")
        return results[:count]

    def _fitted(self, edge: tuple[int, int], result: FakeTensor | None) -> FakeTensor | None:
        """A gradient with the dtype and shape that the next node expects."""
        if result is None:
            return None
        expected = self.inputs[edge[0]][edge[1]]
        if result.dtype != expected.dtype:
            if result.dtype.is_complex or expected.dtype.is_complex:
                raise Unreadable("gradients change between real and complex")
            result = _fake(result.to(expected.dtype))
        if tuple(result.shape) != tuple(expected.shape):
            result = _fake(result.sum_to_size(tuple(expected.shape)))
        return result

    # Hooks and other Python code.

    def _hooks(self, number: int) -> tuple[list[tuple[str, Any, int]], int]:
        hooks, retained = self.reading.hooks(number)
        if type(self.nodes[number]) is ACCUMULATE:
            hooks = [*_native.leaf_hooks(self.nodes[number].variable), *hooks]
        return hooks, retained

    def _is_watched(self, number: int) -> bool:
        """Whether a leaf's `AccumulateGrad` node has hooks (as DDP registers in C++), or the leaf has hooks that Python
        cannot see."""
        unseen = any(functions is None for _, functions, _ in self._hooks(number)[0])
        return unseen or bool(self.reading.hooks(number)[0])

    def _with_tensor_hooks(self, number: int, gradients: list[FakeTensor | None]) -> list[FakeTensor | None]:
        hooks, retained = self._hooks(number)
        own = [(place, hook) for place, hook in enumerate(hooks) if hook[0] == "tensor_pre_hook"]
        if retained or any(functions is None for _, (_, functions, _) in own):
            return self._hooked_by_engine(number, gradients)
        for place, (kind, functions, index) in own:
            for each in range(len(functions)):
                fake = gradients[index]
                if fake is None:
                    raise Unreadable("a hook would be called with None")
                gradients[index] = self._hooked(HookAt(number, kind, place, each), fake)
        return gradients

    def _hooked(self, at: HookAt, fake: FakeTensor) -> FakeTensor:
        self._accumulate_pending()
        recorder = self.recorder
        hook = recorder.source(at, "hook", None)
        spec = dense_spec(TensorSpec.of(fake))
        operand = recorder.node_of(fake)
        node = recorder.graph.call_function(call_hook, (hook, operand), {"stride": spec.stride, "hook_type": at.kind})
        set_spec(node, spec)
        return FakeTensor(spec, node)

    def _with_hooks(
        self, number: int, kind: str, gradients: list[FakeTensor | None], others: list[FakeTensor | None] | None
    ) -> list[FakeTensor | None]:
        """After the pre-hooks or the post-hooks of a node."""
        for place, (own, functions, _) in enumerate(self._hooks(number)[0]):
            if own != kind:
                continue
            if functions is None:
                raise Unreadable(f"C++ code registered a {kind.replace('_', '-')} on {self.nodes[number].name()}")
            for each in range(len(functions)):
                self._accumulate_pending()
                gradients = self._hooked_all(HookAt(number, kind, place, each), gradients, others)
        return gradients

    def _hooked_all(
        self, at: HookAt, gradients: list[FakeTensor | None], others: list[FakeTensor | None] | None
    ) -> list[FakeTensor | None]:
        recorder = self.recorder
        hook = recorder.source(at, "hook", None)
        specs = [None if fake is None else dense_spec(TensorSpec.of(fake)) for fake in gradients]
        operand = recorder.node_of(tuple(gradients))
        beside = None if others is None else recorder.node_of(tuple(others))
        strides = tuple(None if spec is None else spec.stride for spec in specs)
        named: dict[str, Any] = {"strides": strides, "hook_type": at.kind}
        node = recorder.graph.call_function(call_hook_on_all, (hook, operand, beside), named)
        set_spec(node, tuple(specs))
        node.name = node.name.replace("call_hook_on_all", "call_hook")
        results: list[FakeTensor | None] = []
        for position, spec in enumerate(specs):
            if spec is None:
                results.append(None)
                continue
            item = recorder.graph.call_function(operator.getitem, (node, position))
            set_spec(item, spec)
            results.append(FakeTensor(spec, item))
        return results

    def _hooked_by_engine(self, number: int, gradients: list[FakeTensor | None]) -> list[FakeTensor | None]:
        self._accumulate_pending()
        before = [None if fake is None else self.recorder.slot(fake) for fake in gradients]
        triples = tuple(
            (place, slot, self.recorder.new_slot()) for place, slot in enumerate(before) if slot is not None
        )
        self.recorder.between(HooksByEngine(number, triples))
        for place, _, after in triples:
            spec = dense_spec(TensorSpec.of(gradients[place]))  # type: ignore[arg-type]
            gradients[place] = self.recorder.from_slot(after, spec, "hooked")
        return gradients

    def _called(self, number: int, gradients: list[FakeTensor | None]) -> list[FakeTensor | None]:
        """A node that is called, not traced: the backward of a `torch.autograd.Function`, or one with hidden state."""
        self._accumulate_pending()
        python = isinstance(self.nodes[number], torch._C._FunctionBase)
        if python and materializes(self.nodes[number]) is None:
            raise Unreadable("set_materialize_grads of a Function cannot be read")
        missing = [expected for fake, expected in zip(gradients, self.inputs[number], strict=True) if fake is None]
        if python and materializes(self.nodes[number]) and any(map(_may_be_no_result, missing)):
            raise Unreadable("only the engine knows what a Function gets for an output without a gradient")
        specs = self.observed.get(number)
        if specs is None:
            raise NotObserved
        slots = tuple(None if fake is None else self.recorder.slot(fake) for fake in gradients)
        results = tuple(None if spec is None else (self.recorder.new_slot(), spec) for spec in specs)
        self.recorder.between(CallNode(number, self.nodes[number].name(), python, slots, results))
        return [None if entry is None else self.recorder.from_slot(*entry, "called") for entry in results]

    # Where gradients go.

    def _accumulate(self, number: int, gradient: FakeTensor | None) -> None:
        leaf = self.nodes[number].variable
        if gradient is not None:
            self.pending.append((number, self.recorder.slot(gradient)))
        hooks = leaf._post_accumulate_grad_hooks
        if hooks and gradient is not None:
            self._accumulate_pending()
            positions = tuple(HookAt(number, "post_accumulate_grad_hook", 0, each) for each in range(len(hooks)))
            self.recorder.between(CallLeafHooks(positions, number))

    def _accumulate_by_engine(self, number: int, gradient: FakeTensor | None) -> None:
        self._accumulate_pending()
        if gradient is not None:
            self.recorder.between(AccumulateByEngine(number, self.recorder.slot(gradient)))

    def _accumulate_pending(self) -> None:
        """Accumulate pending gradients, before code runs that could read them."""
        if self.pending:
            pending, self.pending = self.pending, []
            self.recorder.between(AccumulateGrads(tuple(pending)))

    # Compiled graphs.

    def _run_split_node(self, number: int, gradients: list[FakeTensor | None]) -> list[FakeTensor | None]:
        """A node of a split compiled graph: see `smelt.runtime.autograd.split_nodes`, which does the same."""
        first, node = self.reading.split[number], self.nodes[number]
        state, compiled = self.splits[first], self.compiled[first]
        if type(node)._forward_cls is not InputGroupNode:
            state.tangents.update(zip(node.numbers, gradients, strict=True))
            return [None] * len(self.edges[number])
        if any(fake is not None for fake in state.tangents.values()):
            if self.arrived.get(first):
                raise Unreadable("gradients arrive for a compiled graph whose backward has run")
            tangents = [state.tangents.get(place) for place in range(len(compiled.tangents))]
            state.tangents.clear()
            state.gradients = dict(enumerate(compiled.flowing(*self._inlined_backward(first, compiled, tangents))))
        return self._for_edges(number, [None, None, *[state.gradients.get(index) for index in node.indices]])

    def _for_edges(self, number: int, placed: Sequence[FakeTensor | None]) -> list[FakeTensor | None]:
        """Gradients of a Function's arguments, as gradients of its edges."""
        needed = self.nodes[number].needs_input_grad
        results = iter([fake for fake, needs in zip(placed, needed, strict=True) if needs])
        return [None if edge is None else next(results) for edge in self.edges[number]]

    def _inlined_backward(
        self, number: int, compiled: CompiledNodeView, gradients: list[FakeTensor | None]
    ) -> tuple[list[FakeTensor | None], int]:
        """The backward of a compiled graph, inlined; and which tangents arrived."""
        arrived = sum(1 << place for place, fake in enumerate(gradients) if fake is not None)
        self.arrived[number] = arrived
        if not arrived:
            return [None] * len(compiled.state.plan.gradients), arrived
        with _disable_current_modes():  # it may be traced only now
            traced, zeros = compiled.graph(arrived)
        operands: list[Any] = [
            self.recorder.from_slot(self.compiled_slots[number] + place, spec, "saved")
            for place, spec in enumerate(compiled.specs)
        ]
        for fake, spec in zip(gradients, compiled.tangents, strict=True):
            if fake is not None:
                operands.append(_laid_out(fake, spec))
            elif zeros:
                operands.append(aten.full.default(list(spec.shape), 0, dtype=spec.dtype, device=spec.device))
        return self._copied(traced, operands, f"aot{compiled.number}_"), arrived

    def _copied(self, traced: Traced, operands: Sequence[FakeTensor], prefix: str) -> list[FakeTensor | None]:
        graph = self.recorder.graph
        inputs = placeholders(traced.graph)
        if len(inputs) != len(operands) or any(isinstance(spec_of(node), NumberSpec) for node in inputs):
            raise Unreadable("a compiled backward takes inputs that are not tensors")
        new: dict[fx.Node, fx.Node] = {
            node: self.recorder.node_of(fake) for node, fake in zip(inputs, operands, strict=True)
        }
        for node in traced.graph.nodes:
            if node.op == "get_attr":
                new[node] = self.recorder.own_constant(traced.constants[str(node.target)])
            elif node.op == "call_function":
                if yields_sparse(node.target, node.args, node.kwargs):
                    raise CannotTrace(f"{node.target} returns a sparse gradient")
                args, named = map_arg((node.args, node.kwargs), new.__getitem__)
                new[node] = graph.create_node("call_function", node.target, args, named, name=prefix + node.name)
                set_spec(new[node], spec_of(node))
        results = []
        for value in outputs(traced.graph):
            results.append(FakeTensor(tensor_spec(new[value]), new[value]) if isinstance(value, fx.Node) else None)
        return results


class NotObserved(Exception):
    """A node written in Python, whose gradients were not observed yet."""


def _targets(
    edges: Sequence[Sequence[tuple[int, int] | None]],
    wanted: Sequence[tuple[int, int] | None] | None,
    leaves: frozenset[int] | None,
) -> frozenset[int]:
    """The nodes that have to run."""
    if wanted is None and leaves is None:
        return frozenset(range(len(edges)))
    ends = set(leaves or ()) | {at[0] for at in wanted or () if at is not None}
    users: list[list[int]] = [[] for _ in edges]
    for number, own in enumerate(edges):
        for edge in own:
            if edge is not None:
                users[edge[0]].append(number)
    targets, pending = set(ends), list(ends)
    while pending:
        for user in users[pending.pop()]:
            if user not in targets:
                targets.add(user)
                pending.append(user)
    return frozenset(targets)


def _may_be_no_result(expected: Any) -> bool:
    """Whether a node's metadata does not tell an output apart from one without gradients: a number, None, a tensor of
    integers or marked non-differentiable. The engine passes zeros for some of those and None for others."""
    return not expected.shape


def _fake(tensor: torch.Tensor) -> FakeTensor:
    assert isinstance(tensor, FakeTensor)
    return tensor


def _plain(spec: TensorSpec) -> TensorSpec:
    return TensorSpec(spec.shape, spec.stride, spec.dtype, spec.device)


def _laid_out(fake: FakeTensor, spec: TensorSpec) -> FakeTensor:
    if tuple(fake.stride()) == tuple(spec.stride):
        return fake
    fitted = aten.empty_strided.default(list(spec.shape), list(spec.stride), dtype=spec.dtype, device=spec.device)
    copy: FakeTensor = fitted.copy_(fake)
    return copy
