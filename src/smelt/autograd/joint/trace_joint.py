"""The joint graph: the forward of a torch-level graph and the backward that the autograd engine runs, recorded as one.

    x * w, both with requires_grad      joint:  primals_1, primals_2, tangents_1
                                                mul   = mul(primals_1, primals_2)
                                                mul_1 = mul(tangents_1, primals_1)
                                                mul_2 = mul(tangents_1, primals_2)
                                                return (mul, mul_2, mul_1)

The engine itself runs on fake tensors, so every operator that eager differentiates is covered, by PyTorch's formula.
`trace_forward` is the same without gradients.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import torch
from torch import fx

from smelt.autograd.joint.aliasing import Arrangement, arrange, views_to_copy
from smelt.autograd.joint.block_templates import BlockTemplates, NeedsCalls
from smelt.autograd.joint.functional_tensors import functional, storage_id, synced
from smelt.autograd.joint.functional_trace import (
    CannotTrace,
    Decompositions,
    SharingRecorder,
    functionalized,
    interpret,
    plain_spec,
    run_engine,
    tangent_spec,
    without_dead_code,
)
from smelt.autograd.joint.opaque import NeedsData
from smelt.autograd.joint.output_dependencies import VisibleTensors, find_output_deps, mark_arrivals
from smelt.autograd.joint.ready_queue import pushed_to_pop
from smelt.autograd.joint.substitutes import Substituting
from smelt.autograd.joint.writes import WriteWatch
from smelt.base import events
from smelt.base.fast_dataclass import dataclass
from smelt.base.torch_originals import BASE
from smelt.ir.call_contract import JointPlan, Phase, Replay, phase_of
from smelt.ir.graph import Traced, format_graph, placeholders
from smelt.ir.nodes.ambient import restored, without_autocast
from smelt.ir.substitute_sizes import resize_in_place, resized
from smelt.ir.tensorspec import NumberSpec, TensorSpec, spec_of, tensor_spec
from smelt.meta.autograd_graph import behind
from smelt.meta.effects import checks_in_backward, devices_of, draws, uses_default_generator
from smelt.meta.fake_tensor import FakeTensorError, without_caller_hooks
from smelt.meta.nonleaf import computed
from smelt.symbolic.shapes import is_dense
from smelt.symbolic.symsize import from_symbolic, is_symbolic_size

Eager = Callable[..., "tuple[object, ...]"]


@dataclass(frozen=True, slots=True)
class TraceSource:
    """Something to trace: its inputs' specs and names, and a function from inputs and constants to flat outputs.

    `numbers`: inputs that the function takes as numbers, by position; compiled code takes tensors that hold them.
    `is_program`: the function is user code, not a captured graph, and may do anything.
    `graph`: the captured graph that the function runs.
    """

    specs: tuple[TensorSpec, ...]
    names: tuple[str, ...]
    call: Callable[[Sequence[Any], Mapping[str, Any]], list[Any]]
    constants: Mapping[str, torch.Tensor]
    numbers: Mapping[int, NumberSpec] = field(default_factory=dict)
    undoing: Callable[[Eager], Eager] | None = None  # see `Traced`
    is_program: bool = False
    graph: Traced | None = None

    @classmethod
    def of_graph(cls, traced: Traced) -> "TraceSource":
        def call(inputs: Sequence[Any], constants: Mapping[str, Any]) -> list[Any]:
            return interpret(traced, inputs, constants)

        nodes = placeholders(traced.graph)
        node_specs = [spec_of(node) for node in nodes]
        numbers = {place: spec for place, spec in enumerate(node_specs) if isinstance(spec, NumberSpec)}
        specs = tuple(spec.as_tensor() if isinstance(spec, NumberSpec) else tensor_spec(node)
                      for node, spec in zip(nodes, node_specs, strict=True))  # fmt: skip
        names = tuple(node.name for node in nodes)
        return cls(specs, names, call, traced.constants, numbers, traced.undoing, graph=traced)

    def arguments(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Inputs of compiled code as the function takes them: numbers unpacked from tensors."""
        if not self.numbers:
            return inputs
        return [BASE.item(each) if place in self.numbers else each for place, each in enumerate(inputs)]

    def eager(self) -> Eager:
        """The original as PyTorch runs it."""

        def run(*inputs: torch.Tensor) -> tuple[object, ...]:
            return tuple(self.call(self.arguments(inputs), self.constants))

        return run if self.undoing is None else self.undoing(run)


@dataclass(frozen=True, slots=True)
class Pure:
    """A pure forward graph and its plan. `eager` runs the original graph with PyTorch."""

    traced: Traced
    plan: JointPlan
    eager: Eager


@dataclass(frozen=True, slots=True)
class Joint:
    """Forward and backward in one pure graph, before it is split.

    Inputs are primals, then tangents; outputs are results, new values of mutated inputs, then gradients in the order of
    `plan.gradients`. `replay` recomputes the results, differentiably, or says why that is impossible.
    """

    traced: Traced
    plan: JointPlan
    eager: Eager
    replay: Replay | str


@dataclass(slots=True)
class _Run:
    """A torch-level graph run on fake tensors: its inputs and outputs. Gradients are taken of `leaves`: the inputs
    themselves, or the leaves they are computed from, so that the inputs may be mutated."""

    recorder: SharingRecorder
    primals: list[fx.Node]
    leaves: list[torch.Tensor]
    inputs: list[torch.Tensor]
    histories: list[Any]
    outputs: list[Any]
    specs: Sequence[TensorSpec] = ()
    storages: list[Any] = field(default_factory=list)  # of the inputs, before the graph runs
    constants: list[torch.Tensor] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Write:
    """A mutated input: its new value, how often it is written, and whether gradients flow through."""

    index: int
    tensor: torch.Tensor
    node: fx.Node
    times: int
    rebased: bool


class _WritesLeaf(CannotTrace):
    """A leaf that requires grad is mutated. It may be a non-leaf when the graph runs: guards do not check that."""


def trace_forward(traced: Traced | TraceSource, decompositions: Decompositions | None = None) -> Pure:
    """The pure graph of a torch-level graph, without gradients."""
    source = TraceSource.of_graph(traced) if isinstance(traced, Traced) else traced
    try:
        pure = _trace_forward(source, decompositions, templates=True)
    except NeedsCalls:
        pure = _trace_forward(source, decompositions, templates=False)
    if events.wanted("forward"):
        events.emit("forward", format_graph(pure.traced.graph, "forward"), pure)
    return pure


def _trace_forward(source: TraceSource, decompositions: Decompositions | None, *, templates: bool) -> Pure:
    # In the grad mode the graph starts in: it determines the creation meta of views.
    with without_caller_hooks(), SharingRecorder(decompositions) as recorder, functionalized(source.graph):
        run = _run(source, recorder, with_gradients=source.is_program, templates=templates)
        if source.is_program:
            _refuse_gradients(run)
        arrangement = arrange(run.outputs, run.inputs)
        written = _written(source, run)
        recorder.output([*(result.node for result in arrangement.results), *(write.node for write in written)])
    plan = _plan(run, arrangement, written)
    return Pure(replace(_finish(recorder), writes=plan.new_values), plan, source.eager())


def trace_joint(traced: Traced | TraceSource, decompositions: Decompositions | None = None) -> Joint:
    """The joint graph of a torch-level graph, with the gradients of those inputs whose specs require them.

    With no differentiable result there are no tangents and no gradients: `plan.tangents` is empty.
    """
    source = TraceSource.of_graph(traced) if isinstance(traced, Traced) else traced
    joint, leaves, templates = None, True, True
    while joint is None:
        try:
            joint = _trace_joint(source, decompositions, leaves=leaves, templates=templates)
        except _WritesLeaf:
            leaves = False
        except NeedsCalls:
            templates = False
        except NeedsData:  # at most once for each operator of the program
            continue
    events.count("joint_graphs")
    if events.wanted("joint"):
        events.emit("joint", format_graph(joint.traced.graph, "joint"), joint)
    return joint


def _trace_joint(source: TraceSource, decompositions: Decompositions | None, *, leaves: bool, templates: bool) -> Joint:
    with (
        without_caller_hooks(),
        SharingRecorder(decompositions) as recorder,
        functionalized(source.graph),
        torch.enable_grad(),
    ):
        run = _run(source, recorder, with_gradients=True, leaves=leaves, templates=templates)
        if source.is_program:
            _refuse_new_leaves(run)
        arrangement = arrange(run.outputs, run.inputs)
        written = _written(source, run)
        # What may have gradients: the forward's values in order, each with its tensor.
        values = [(result.node, result.tensor) for result in arrangement.results]
        values += [(write.node, write.tensor) for write in written]
        wanted = [result.tensor.requires_grad for result in arrangement.results]
        wanted += [write.rebased for write in written]
        differentiable = [position for position, needed in enumerate(wanted) if needed]
        _refuse_checked(run)
        recorder.phase = Phase.BACKWARD
        rebased = {write.index: write.tensor if write.rebased else None for write in written}
        seen = VisibleTensors(run.outputs, arrangement.outputs, rebased)
        arriving = {place: values[place][1] for place in differentiable}
        output_deps = find_output_deps(seen, len(arrangement.results), arriving)
        mark_arrivals(recorder, seen, output_deps)
        shown = [*run.inputs, *run.constants, *(each for each in run.outputs if isinstance(each, torch.Tensor))]
        before = [synced(tensor).node for tensor in shown]
        tangents, gradients, arrivals = _backward(run, [values[position] for position in differentiable])
        if [synced(tensor).node for tensor in shown] != before:
            raise CannotTrace("the backward modifies an input or an output in-place")
        recorder.output([*(node for node, _ in values), *gradients.values()])
    results = [values[position][1] for position in differentiable] if tangents else []
    grad_depends_on, frees_saved_of = _histories(run.leaves, results, gradients)
    output_deps = output_deps if tangents else ()
    plan = replace(
        _plan(run, arrangement, written),
        differentiable=tuple(differentiable),
        tangents=resized(tangents, from_symbolic, is_symbolic_size),
        gradients=tuple(gradients),
        grad_depends_on=grad_depends_on,
        frees_saved_of=frees_saved_of,
        output_deps=output_deps,
        autograd_input_order=_autograd_input_order(arrivals, len(run.primals)),
        kept_old_values=_inputs_behind(
            run, [values[position][0] for position in differentiable], [w.index for w in written]
        ),
        needed=_inputs_behind(run, gradients.values(), range(len(run.primals))),
    )
    replay = _replay(source, plan, recorder)
    return Joint(_finish(recorder), plan, source.eager(), replay)


def _run(
    source: TraceSource, recorder: SharingRecorder, *, with_gradients: bool, leaves: bool = True, templates: bool = True
) -> _Run:
    run = _Run(recorder, [], [], [], [], [], source.specs)
    for number, spec in enumerate(source.specs, 1):
        fake = recorder.placeholder(f"primals_{number}", plain_spec(spec))
        run.primals.append(recorder.node_of(fake))
        leaf = functional(fake).requires_grad_(with_gradients and spec.requires_grad)
        run.leaves.append(leaf)
        as_nonleaf = not leaves and leaf.requires_grad
        run.inputs.append(computed(leaf, functools.partial(functional, fake)) if as_nonleaf else leaf)
        run.histories.append(run.inputs[-1].grad_fn)
        run.storages.append(run.inputs[-1].untyped_storage())
    constants = {name: functional(recorder.constant(tensor)) for name, tensor in source.constants.items()}
    run.constants = list(constants.values())
    before = {name: synced(tensor).node for name, tensor in constants.items()}
    try:
        with Substituting(recorder.functions, WriteWatch(run.inputs)), restored():
            values = list(run.inputs)
            for place, number_spec in source.numbers.items():
                values[place] = recorder.number_in(run.primals[place], number_spec)
            if source.graph is None or not templates:
                run.outputs = source.call(values, constants)
            else:
                blocks = BlockTemplates(source.graph.graph, recorder)
                run.outputs = interpret(source.graph, values, constants, blocks)
    except (FakeTensorError, RuntimeError, NotImplementedError, TypeError, ValueError, IndexError) as error:
        if isinstance(error, CannotTrace):
            raise
        kind = _WritesLeaf if leaves and "leaf Variable that requires grad" in str(error) else CannotTrace
        raise kind(f"the graph does not run without data: {type(error).__name__}: {error}") from error
    for output in run.outputs:
        if isinstance(output, tuple | list | dict):
            raise CannotTrace("an output is a container")
        if isinstance(output, torch.Tensor) and not torch._is_functional_tensor(output):
            raise CannotTrace("an output escaped functionalization")
    for name, tensor in constants.items():
        if synced(tensor).node is not before[name]:
            raise CannotTrace(f"the graph writes its constant {name}")
    return run


def _refuse_gradients(run: _Run) -> None:
    """Raise if results require grad though gradients are off: the function enabled them, or made a new leaf."""
    input_ids = {id(tensor) for tensor in run.inputs}
    for output in run.outputs:
        if isinstance(output, torch.Tensor) and output.requires_grad and id(output) not in input_ids:
            raise CannotTrace("the function enables gradients inside")
    for spec, tensor in zip(run.specs, run.inputs, strict=True):
        if tensor.grad_fn is not None or tensor.requires_grad is not spec.requires_grad:
            raise CannotTrace("requires_grad of an input changes")


def _refuse_new_leaves(run: _Run) -> None:
    """Raise if the function makes or unmakes leaves: all results of a compiled graph have its node as `grad_fn`."""
    input_ids = {id(tensor) for tensor in run.inputs}
    for output in run.outputs:
        if isinstance(output, torch.Tensor) and output.requires_grad and output.is_leaf and id(output) not in input_ids:
            raise CannotTrace("a result is a leaf that requires grad")
    for spec, tensor, history in zip(run.specs, run.inputs, run.histories, strict=True):
        if spec.requires_grad and (not tensor.requires_grad or (tensor.grad_fn is None and history is not None)):
            raise CannotTrace("an input stops requiring grad")
        if not spec.requires_grad and tensor.requires_grad and tensor.grad_fn is None:
            raise CannotTrace("an input starts requiring grad")


def _written(source: TraceSource, run: _Run) -> list[_Write]:
    """Inputs that the graph writes."""
    writes: list[_Write] = []
    for index, (name, spec, tensor) in enumerate(zip(source.names, source.specs, run.inputs, strict=True)):
        if storage_id(tensor) != run.storages[index]._cdata:
            raise CannotTrace(f"input {name} is given a new storage")
        fake = synced(tensor)
        if fake.node is None or (fake.node is run.primals[index] and not tensor._version):
            continue
        if tuple(tensor.shape) != spec.shape or tuple(tensor.stride()) != spec.stride or tensor.dtype != spec.dtype:
            gaps = "" if is_dense(spec.shape, spec.stride) else ", which is not dense,"
            raise CannotTrace(f"input {name}{gaps} changes its shape or layout in place")
        rebased = tensor.grad_fn is not run.histories[index]
        writes.append(_Write(index, tensor, fake.node, tensor._version, rebased))
    return writes


def _refuse_checked(run: _Run) -> None:
    """Raise for operators whose backward checks data: on fake tensors the check is skipped."""
    late = {node for node, leaf in zip(run.primals, run.leaves, strict=True) if leaf.requires_grad}
    for node in run.recorder.graph.nodes:
        if node not in late and any(source in late for source in node.all_input_nodes):
            late.add(node)
            if checks_in_backward(node):
                raise CannotTrace(f"the backward of {node.target} raises for some data, which takes the data to check")


def _backward(
    run: _Run, values: Sequence[tuple[fx.Node, torch.Tensor]]
) -> tuple[tuple[TensorSpec, ...], dict[int, fx.Node], list[int]]:
    """Run the engine. Returns the specs of the tangents, gradient nodes by input, and the order in which they
    arrived."""
    specs = tuple(tangent_spec(node) for node, _ in values)
    fakes = [run.recorder.placeholder(f"tangents_{number}", spec) for number, spec in enumerate(specs, 1)]
    tangents = list(map(functional, fakes))
    wanted = [index for index, tensor in enumerate(run.leaves) if tensor.requires_grad]
    if not values or not wanted:
        return (), {}, []
    arrivals: list[int] = []
    for index in wanted:
        leaf: Any = run.leaves[index]
        leaf.register_hook(functools.partial(_note, arrivals, index))
    try:
        with without_autocast():  # as when a training loop leaves autocast before it calls backward
            gradients = run_engine(
                tuple(tensor for _, tensor in values),
                tuple(tangents),
                tuple(run.leaves[index] for index in wanted),
            )
    except (FakeTensorError, RuntimeError, NotImplementedError) as error:
        if isinstance(error, CannotTrace):
            raise
        raise CannotTrace(f"the backward does not run without data: {type(error).__name__}: {error}") from error
    if any(synced(tangent).node is not fake.node for tangent, fake in zip(tangents, fakes, strict=True)):
        raise CannotTrace("the backward writes a gradient that it is given, which only PyTorch does")
    by_input: dict[int, torch.Tensor] = {}
    for index, gradient in zip(wanted, gradients, strict=True):
        if gradient is None:
            continue
        if not torch._is_functional_tensor(gradient):
            raise CannotTrace("a gradient escaped functionalization")
        by_input[index] = gradient
    return specs, _unshared(by_input), arrivals


def _note(arrivals: list[int], index: int, gradient: torch.Tensor) -> None:
    arrivals.append(index)


def _autograd_input_order(arrivals: Sequence[int], inputs: int) -> tuple[int, ...]:
    """`JointPlan.autograd_input_order`: gradients leave the node of a compiled graph all at once."""
    order = pushed_to_pop(arrivals)
    if order == sorted(order):
        return ()
    return (*order, *(index for index in range(inputs) if index not in set(order)))


def _unshared(gradients: Mapping[int, torch.Tensor]) -> dict[int, fx.Node]:
    """The gradients' nodes, with copies where `views_to_copy` says so."""
    nodes = {index: _node_of(gradient) for index, gradient in gradients.items()}
    copies = {index: _node_of(BASE.clone(gradients[index])) for index in views_to_copy(nodes)}
    return nodes | copies


def _node_of(tensor: torch.Tensor) -> fx.Node:
    node = synced(tensor).node
    assert node is not None
    return node


def _histories(
    leaves: Sequence[torch.Tensor], results: Sequence[torch.Tensor], wanted: Iterable[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """`grad_depends_on` and `frees_saved_of` of a plan: which results' histories lead to each wanted leaf, and
    which results share what autograd saves. The graph itself does not tell: zeros that a formula returns depend on no
    tangent there."""
    if len(results) < 2:
        return (), ()
    order = behind(result.grad_fn for result in results)
    bits: dict[Any, int] = {}
    for number, result in enumerate(results):
        bits[result.grad_fn] = bits.get(result.grad_fn, 0) | 1 << number
    for node in reversed(order):
        for before, _ in node.next_functions:
            bits[before] = bits.get(before, 0) | bits.get(node, 0)
    bits_of_leaf = {id(node.variable): bits.get(node, 0) for node in order if hasattr(node, "variable")}
    saving = {bits.get(node, 0) for node in order if _saves(type(node))}  # type: ignore[arg-type]
    frees_saved_of = [0] * len(results)
    for shared in saving:
        for number in range(len(results)):
            frees_saved_of[number] |= shared if shared >> number & 1 else 0
    return tuple(bits_of_leaf.get(id(leaves[index]), 0) for index in wanted), tuple(frees_saved_of)


@functools.cache
def _saves(kind: type) -> bool:
    """Whether autograd's nodes of a class save tensors."""
    return any(name.startswith("_raw_saved_") for name in dir(kind))


def _plan(run: _Run, arrangement: Arrangement, written: Sequence[_Write]) -> JointPlan:
    return JointPlan(
        inputs=len(run.inputs),
        outputs=resized(arrangement.outputs, from_symbolic, is_symbolic_size),
        results=len(arrangement.results),
        result_views=tuple((result.shown, result.is_base) for result in arrangement.results),
        must_own_memory=arrangement.copied,
        mutated_inputs=tuple(write.index for write in written),
        version_bumps=tuple(write.times for write in written),
        mutated_with_grad=tuple(write.index for write in written if write.rebased),
        random=_draws_on(run.recorder.graph),
    )


def _draws_on(graph: fx.Graph) -> tuple[str, ...]:
    """The devices on which the forward draws random numbers."""
    drawing = [node for node in graph.nodes if draws(node) and phase_of(node) is not Phase.BACKWARD]
    return tuple(sorted({str(device) for node in drawing for device in devices_of(node)}))


def _finish(recorder: SharingRecorder) -> Traced:
    """The recorded graph, with sizes of our own and without dead code."""
    resize_in_place(recorder.graph, from_symbolic, is_symbolic_size)
    return without_dead_code(recorder.graph, recorder.constants)


def _inputs_behind(run: _Run, values: Iterable[fx.Node], candidates: Sequence[int]) -> tuple[int, ...]:
    """Those of the given inputs that some of `values` depend on."""
    pending = list(values) if candidates else []
    reached = set(pending)
    while pending:
        new = [node for node in pending.pop().all_input_nodes if node not in reached]
        reached.update(new)
        pending.extend(new)
    return tuple(index for index in candidates if run.primals[index] in reached)


def _replay(source: TraceSource, plan: JointPlan, recorder: SharingRecorder) -> Replay | str:
    """A function that reruns the original on the same inputs, or why its results would differ."""
    for node in recorder.graph.nodes:
        if draws(node) and not uses_default_generator(node):
            return f"the graph draws random numbers ({node.target}) from a generator other than its device's default"
    return replaying(source, plan)


def replaying(source: TraceSource, plan: JointPlan) -> Replay:
    """A function that recomputes the differentiable results of a source."""

    def replay(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        outputs = source.call(source.arguments(inputs), source.constants)
        shown = [outputs[position]._base if is_base else outputs[position] for position, is_base in plan.result_views]
        shown += [inputs[index] for index in plan.mutated_inputs]
        return [shown[position] for position in plan.differentiable]

    return replay
