"""One torch-level graph as one program that calls no library: what an artifact runs.

    Traced ── trace ──► pure graph ── simplify, fuse ──► Program

Nothing of it is joined to autograd: what gradients it computes, it computes inside. Results are contiguous and own
their memory; new values of mutated inputs have the layout of those inputs, so that either can be copied byte by byte.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from smelt.autograd.joint.functional_trace import CannotTrace
from smelt.autograd.joint.trace_joint import Pure
from smelt.autograd.partition.partition import ForwardBackward
from smelt.base.fast_dataclass import dataclass
from smelt.base.options import Options
from smelt.base.rewrite_budget import RewriteBudget
from smelt.device import limits_of
from smelt.fuse import build_program
from smelt.ir.call_contract import FromResult, JointPlan, SameAsOutput
from smelt.ir.graph import Traced, copied_graph, output_node, outputs, placeholders
from smelt.ir.nodes.backward_node import BACKWARDS
from smelt.ir.program import Library, Operand, Place, Program
from smelt.ir.tensorspec import TensorSpec, set_spec, spec_of, tensor_spec
from smelt.ops.decompose import random_draws
from smelt.ops.decompositions import decompositions
from smelt.pipeline.empty_tensors import without_empty
from smelt.pipeline.grid_devices import has_grids, on_grid, on_host_alone
from smelt.pipeline.own_generator import with_own_generator
from smelt.pipeline.passes import PassContext, run_passes, why_not_generate
from smelt.pipeline.stages import LOWER, SIMPLIFY, TRACE_FORWARD, TRACE_JOINT
from smelt.simplify import align_products
from smelt.symbolic.shapes import Shape, contiguous_stride, is_dense

_PERMUTE = torch.ops.aten.permute.default


@dataclass(frozen=True, slots=True)
class WholeProgram:
    """A graph as one program. `plan` says which results are which outputs, and which inputs get new values; outputs
    are those that were asked for."""

    program: Program
    plan: JointPlan
    required: tuple[str, ...] = ()  # for each output behind those of the plan, what is wrong where it holds false
    draws: bool = False  # its last inputs are a seed and an offset, which it moves


def whole_program(
    traced: Traced, wanted: Sequence[int], options: Options, name: str, numbers: int = 0
) -> WholeProgram:
    """The program of a graph, of whose outputs those numbered `wanted` are kept. It is for the host, or where the
    option `target` says so for a GPU, whatever the tensors are on. The last `numbers` of its inputs are the host's.

    Raises `CannotTrace` or `LibraryError` where kernels cannot compute all of it. Sizes may be symbols: what is relied
    on is then with their `ShapeEnv`.
    """
    table = {**decompositions(options), **random_draws.TABLE}
    context = PassContext(options, name, RewriteBudget(options.max_rewrites), table)
    traced = on_host_alone(traced)
    pure, plan = _pure(_with_outputs(traced, wanted), context)
    aliases = {place for place, output in enumerate(plan.outputs) if not _is_own(output)}
    if aliases:
        pure, plan = _pure(_with_outputs(traced, wanted, aliases), context)
    pure, plan, draws = with_own_generator(pure, plan)
    _lay_out(without_empty(pure), plan)
    program, required = _without_raising(_lowered(pure, context, plan.inputs - 2 * draws, numbers))
    return WholeProgram(program, plan, required, draws)


def _lowered(pure: Traced, context: PassContext, inputs: int, numbers: int) -> Program:
    """`inputs`: how many the graph has, a generator's left out, of which the last `numbers` are the host's."""
    target = context.options.target
    if not has_grids(target):
        program: Program = run_passes(pure, (*SIMPLIFY, LOWER[0]), context)
        return program
    placed = align_products(on_grid(pure, range(inputs - numbers, inputs)), context.budget)
    placed = run_passes(placed, SIMPLIFY, context)
    # What is required is looked at by whoever runs the program, between its parts.
    limits = replace(limits_of(target), host_reads_flags=True)
    return build_program(placed, context.name, context.options, limits, context.budget)


def _without_raising(program: Program) -> tuple[Program, tuple[str, ...]]:
    """The program with what decides whether it raises among its outputs, and no calls that raise."""
    raising = [step for step in program.steps if isinstance(step, Library) and step.unless is not None]
    if not raising:
        return program, ()
    decides = {step.unless: str(step.op.overloadpacket).removeprefix("aten.") for step in raising}
    buffers = [replace(each, place=Place.FRESH, offset=0) if each.name in decides else each for each in program.buffers]
    views = [Operand(name, (), ()) for name in decides if name is not None]
    steps = tuple(step for step in program.steps if step not in raising)
    changed = replace(program, buffers=tuple(buffers), steps=steps, outputs=(*program.outputs, *views))
    return changed, tuple(f"{name}: an index or a value is out of range" for name in decides.values())


def _is_own(output: object) -> bool:
    """Whether an output is a result as it is, or the same as another output."""
    return isinstance(output, SameAsOutput) or (isinstance(output, FromResult) and not output.steps)


def _with_outputs(traced: Traced, wanted: Sequence[int], copied: Collection[int] = ()) -> Traced:
    """The graph with some of its outputs, of those numbered `copied` a copy each, and without their histories."""
    graph = copied_graph(traced.graph)
    end = output_node(graph)
    returned = outputs(graph)
    kept: list[Any] = []
    with graph.inserting_before(end):
        for place, number in enumerate(wanted):
            value = returned[number]
            if isinstance(value, fx.Node) and isinstance(spec := spec_of(value), TensorSpec):
                value = _added(graph, "detach", value, replace(spec, requires_grad=False))
                if place in copied:
                    value = _added(graph, "clone", value, replace(spec, requires_grad=False))
            kept.append(value)
    end.args = (tuple(kept),)
    return replace(traced, graph=graph, undoing=None)


def _added(graph: fx.Graph, method: str, value: fx.Node, spec: TensorSpec) -> fx.Node:
    node = graph.call_method(method, (value,))
    set_spec(node, spec)
    return node


def _pure(traced: Traced, context: PassContext) -> tuple[Traced, JointPlan]:
    """The pure graph. Autograd is on only where the program itself takes gradients."""
    if any(node.op == "call_function" and node.target in BACKWARDS for node in traced.graph.nodes):
        with torch.enable_grad():
            halves: ForwardBackward = run_passes(traced, TRACE_JOINT, context)
        if halves.backward is not None or halves.plan.saved:
            raise CannotTrace("a result has a history that nothing here runs a backward of")
        graph, plan = halves.forward, halves.plan
    else:
        with torch.no_grad():
            pure: Pure = run_passes(_without_grad_switches(traced), TRACE_FORWARD, context)
        graph, plan = pure.traced, pure.plan
    reason = why_not_generate(graph, context.options.target)
    if reason is not None:
        raise CannotTrace(reason)
    return graph, plan


def _without_grad_switches(traced: Traced) -> Traced:
    graph = copied_graph(traced.graph)
    for node in list(graph.nodes):
        if node.target is torch._C._set_grad_enabled:
            graph.erase_node(node)
    return replace(traced, graph=graph)


def _lay_out(pure: Traced, plan: JointPlan) -> None:
    """Results contiguous, new values as the inputs that get them, and none of them an input or another."""
    end, inputs = output_node(pure.graph), placeholders(pure.graph)
    returned: list[Any] = outputs(pure.graph)
    seen = set[fx.Node]()
    with pure.graph.inserting_before(end):
        for place, value in enumerate(returned):
            if not isinstance(value, fx.Node) or not isinstance(spec := spec_of(value), TensorSpec):
                continue
            stride = contiguous_stride(spec.shape)
            if plan.results <= place < plan.forward_outputs:
                stride = tensor_spec(inputs[plan.mutated_inputs[place - plan.results]]).stride
                if not is_dense(spec.shape, stride):
                    raise CannotTrace("state that is written has gaps between its elements")
            if not _same_layout(spec, stride) or value.op == "placeholder" or value in seen or _is_part(value):
                returned[place] = _copied(pure.graph, value, spec, stride)
            seen.add(value)
    end.args = (tuple(returned),)


def _is_part(value: fx.Node) -> bool:
    """Whether a value shows some elements of another only, or an input."""
    base = value
    while isinstance(base.target, torch._ops.OpOverload) and _is_view(base.target):
        base = base.all_input_nodes[0]
    if base is value:
        return False
    spec = spec_of(base)
    return base.op == "placeholder" or not isinstance(spec, TensorSpec) or spec.numel != tensor_spec(value).numel


def _is_view(op: torch._ops.OpOverload) -> bool:
    returned = op._schema.returns
    return len(returned) == 1 and returned[0].alias_info is not None and not returned[0].alias_info.is_write


def _same_layout(spec: TensorSpec, stride: Shape) -> bool:
    steps = zip(spec.shape, spec.stride, stride, strict=True)
    return all(size == 1 or have == want for size, have, want in steps)


def _copied(graph: fx.Graph, value: fx.Node, spec: TensorSpec, stride: Shape) -> fx.Node:
    """A copy with a dense layout: of the tensor with its dimensions in the order of memory, seen as it was."""
    order = sorted(range(len(stride)), key=lambda dim: (-stride[dim], dim))
    back = [order.index(dim) for dim in range(len(order))]
    shape = tuple(spec.shape[dim] for dim in order)
    rows = contiguous_stride(shape)
    moved = graph.call_function(_PERMUTE, (value, order))
    set_spec(moved, replace(spec, shape=shape, stride=tuple(spec.stride[dim] for dim in order)))
    clone = graph.call_function(torch.ops.aten.clone.default, (moved,), {"memory_format": torch.contiguous_format})
    set_spec(clone, replace(spec, shape=shape, stride=rows, offset=0))
    seen = graph.call_function(_PERMUTE, (clone, back))
    set_spec(seen, replace(spec, stride=tuple(rows[place] for place in back), offset=0))
    return seen
