"""Splitting the joint graph: what the forward saves, what the backward recomputes.

    joint(primals, tangents) → results, new values, gradients
    forward(primals)         → results, new values, saved          backward(saved, tangents) → gradients

`default` saves what the backward's formulas read, which is what eager saves. `min_cut` saves the fewest bytes from
which cheap operators (`recompute.recomputable`) compute all of that, by a minimum cut of the joint graph:

    x → sin → cos → sum       default saves primals_1 and sin (8 bytes an element), min_cut primals_1 (4)

With a memory budget `min_cut` goes on from there: heavy operators are recomputed too, as few as make the step fit.
"""

import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, overload

import torch
from torch import fx

from smelt.autograd.joint.partial_backward import for_the_loss
from smelt.autograd.joint.trace_joint import Eager, Joint
from smelt.autograd.partition.costs import bytes_of, work_of
from smelt.autograd.partition.mincut import Problem, depending_on, gradients_of, needed_for, saved_by_eager, tangents_of
from smelt.autograd.partition.recompute import narrowed, recomputable
from smelt.base import events
from smelt.base.errors import SmeltError, warn
from smelt.base.fast_dataclass import dataclass
from smelt.ir.call_contract import JointPlan, Phase, Replay, Saved, arrival_of, phase_of
from smelt.ir.graph import GraphLevel, Traced, add_copy, format_graph, outputs, placeholders
from smelt.ir.tensorspec import set_spec, spec_of, tensor_spec
from smelt.meta.effects import VALUES, why_not_drop
from smelt.meta.memory_peak import Peak, graph_peak
from smelt.runtime.program.library_workspace import scratch_of

if TYPE_CHECKING:
    from smelt.autograd.partition.memory_budget import Choice, Fitting

_CLONE = torch.ops.aten.clone.default


@dataclass(frozen=True, slots=True)
class ForwardBackward:
    """The two graphs, and the plan that joins them. `backward` is None if no result is differentiable.

    `arriving` makes the backward with marks where gradients of outputs arrive that other results depend on.
    """

    forward: Traced
    backward: Traced | None
    plan: JointPlan
    eager: Eager
    replay: Replay | str
    fitting: "Fitting | None" = None  # how it came to be within a memory budget
    arriving: Callable[[], Traced] | None = None

    @property
    def planned(self) -> bool:
        """Whether temporary values may be in an arena; if memory is short, they are allocated one by one."""
        return self.fitting is None or self.fitting.way == 0


# Estimates the peak of halves for each way to run them, the fastest first. It may change the graphs.
Measure = Callable[[ForwardBackward], Sequence[Peak]]
Modules = tuple[fx.GraphModule, fx.GraphModule]


@overload
def default(joint: Joint) -> ForwardBackward: ...
@overload
def default(joint: fx.GraphModule, inputs: object = None, *, num_fwd_outputs: int) -> Modules: ...
def default(
    joint: Joint | fx.GraphModule, inputs: object = None, *, num_fwd_outputs: int = 0
) -> ForwardBackward | Modules:
    """Save what eager saves: every forward value that the backward's own formulas read.

    If `joint` is a module, with its `inputs` and `num_fwd_outputs`, as for a `partition_fn`, the result is two modules.
    """
    if isinstance(joint, fx.GraphModule):
        return _modules(default(_joint_of(joint, num_fwd_outputs)))
    saved = saved_by_eager(joint)
    return split(joint, saved, dict.fromkeys(saved, "read by the backward"))


@overload
def min_cut(
    joint: Joint,
    *,
    parameters: Collection[int] = (),
    memory_budget: float | None = None,
    measure: Measure | None = None,
) -> ForwardBackward: ...
@overload
def min_cut(
    joint: fx.GraphModule,
    inputs: object = None,
    *,
    num_fwd_outputs: int,
    parameters: Collection[int] = (),
    memory_budget: float | None = None,
    measure: Measure | None = None,
) -> Modules: ...
def min_cut(
    joint: Joint | fx.GraphModule,
    inputs: object = None,
    *,
    num_fwd_outputs: int = 0,
    parameters: Collection[int] = (),
    memory_budget: float | None = None,
    measure: Measure | None = None,
) -> ForwardBackward | Modules:
    """Save the fewest bytes from which cheap operators can recompute the backward's inputs.

    `parameters` are the positions of inputs that stay in memory anyway, so saving them is free. `memory_budget` is a
    number of bytes (int) or a fraction of the bytes saved without a budget (float). It bounds the peak that `measure`
    estimates, by default for graphs that run operator by operator. If `joint` is a module, with its `inputs` and
    `num_fwd_outputs`, as for a `partition_fn`, the result is two modules.
    """
    if isinstance(joint, fx.GraphModule):
        traced_joint = _joint_of(joint, num_fwd_outputs)
        return _modules(min_cut(traced_joint, parameters=parameters, memory_budget=memory_budget, measure=measure))
    joint = replace(joint, traced=narrowed(joint.traced))
    problem = Problem.of(joint, parameters)
    if memory_budget is not None and joint.plan.tangents:
        return _within(problem, memory_budget, measure or _run_by_operator)
    saved = problem.fewest_bytes()
    return split(joint, saved, _reasons(problem, saved), copied=problem.may_be_mutated)


def _run_by_operator(halves: ForwardBackward) -> Sequence[Peak]:
    backward = None if halves.backward is None else for_the_loss(halves.backward, halves.plan)
    return (graph_peak(halves.forward, backward, halves.plan, scratch_of),)


def _within(problem: Problem, budget: float, measure: Measure) -> ForwardBackward:
    """The first of the plans in `budget.choices`, which are in the order of their work, whose peak is within budget."""
    from smelt.autograd.partition.memory_budget import (  # a fifth of the stage, and few give a budget
        choices,
        fit,
    )

    def halves_of(choice: "Choice") -> ForwardBackward:
        return _halves(problem.joint, choice.saved, _reasons(problem, choice.saved), problem.may_be_mutated)

    fitting = fit(choices(problem), budget, lambda choice: measure(halves_of(choice)))
    if fitting.peak.step > fitting.allowed:
        warn(
            f"memory_budget={budget!r} allows {fitting.allowed} bytes at the peak of a training step, but at least "
            f"{fitting.peak.step} are needed; using the plan with the lowest peak"
        )
    halves = replace(halves_of(fitting.choice), fitting=fitting)
    _report(halves)
    return halves


def _reasons(problem: Problem, saved: Sequence[fx.Node]) -> dict[fx.Node, str]:
    copied = "; eager does not save it, so a copy is saved where the program may modify it in-place"
    behind = _Behind(cache(recomputable), frozenset(saved))  # many values depend on the same ones
    return {node: _why_saved(node, behind) + (copied if node in problem.may_be_mutated else "") for node in saved}


def _why_saved(node: fx.Node, behind: "_Behind") -> str:
    reason = behind.heavy(node)
    if reason is not None:
        return reason
    count, largest = behind.of(node)
    names = [f"{source.name} ({behind.heavy(source) or 'saved too'}, {bytes_of(source)} bytes)" for source in largest]
    more = f" and {count - 2} more" if count > 2 else ""
    return f"cheaper to save than what it is computed from: {', '.join(names)}{more}"


class _Behind:
    """The nearest values that a cheap one depends on and that are saved or not recomputed: how many, and the two
    largest. In a deep model what all layers add to is computed from every layer, so what is known of a value serves for
    those that are computed from it."""

    def __init__(self, heavy: Callable[[fx.Node], str | None], kept: Collection[fx.Node]) -> None:
        self.heavy = heavy
        self._kept = kept
        self._numbers: dict[fx.Node, int] = {}
        self._known: dict[fx.Node, tuple[int, list[fx.Node]]] = {}  # a bit for each of them

    def of(self, node: fx.Node) -> tuple[int, list[fx.Node]]:
        pending = list(node.all_input_nodes)
        while pending:
            value = pending[-1]
            if value in self._known:
                pending.pop()
            elif value in self._kept or self.heavy(value) is not None:
                self._known[value] = 1 << self._numbers.setdefault(value, len(self._numbers)), [value]
            elif missing := [each for each in value.all_input_nodes if each not in self._known]:
                pending += missing
            else:
                self._known[value] = self._joined(value)
        bits, largest = self._joined(node)
        return bits.bit_count(), largest

    def _joined(self, node: fx.Node) -> tuple[int, list[fx.Node]]:
        bits, largest = 0, dict[fx.Node, None]()
        for source in node.all_input_nodes:
            more, values = self._known[source]
            bits |= more
            largest |= dict.fromkeys(values)
        return bits, sorted(largest, key=lambda value: (-bytes_of(value), value.name))[:2]


def split(
    joint: Joint, saved: Sequence[fx.Node], why: Mapping[fx.Node, str], *, copied: Collection[fx.Node] = ()
) -> ForwardBackward:
    """The two graphs for a given choice of what is saved; inputs first, then in the order of the joint graph.

    Of those that are `copied`, and of inputs that the graph itself mutates, copies are saved; not of leaves, which are
    not mutated before the backward runs.
    """
    halves = _halves(joint, saved, why, copied)
    _report(halves)
    return halves


def _halves(
    joint: Joint, saved: Sequence[fx.Node], why: Mapping[fx.Node, str], copied: Collection[fx.Node] = ()
) -> ForwardBackward:
    plan = joint.plan
    if not plan.tangents:
        saved = ()
    saved = [node for node in saved if node.op == "placeholder"] + [node for node in saved if node.op != "placeholder"]
    kept = frozenset(saved)
    primals = placeholders(joint.traced.graph)[: plan.inputs]
    number = {node: index for index, node in enumerate(primals)}
    forward_values = outputs(joint.traced.graph)[: plan.forward_outputs]
    # Most inputs with gradients are leaves, which is known when the graph runs: the runtime copies the others.
    saved_inputs = [index for index in plan.gradients if primals[index] in copied and primals[index] in kept]
    copied_inputs = tuple(index for index in saved_inputs if index not in plan.mutated_inputs)
    copied = {*copied, *(primals[index] for index in plan.lost)}.difference(primals[index] for index in copied_inputs)
    late = depending_on(tangents_of(joint))
    effects = [node for node in joint.traced.graph.nodes if node.op == "call_function" and _has_effect(node)]
    forward = _extract(
        joint.traced,
        primals,
        [*forward_values, *saved],
        also=[node for node in effects if node not in late],
        copied=copied,
        first_copied=plan.forward_outputs,
    )
    backward = arriving = None
    if plan.tangents:
        also = [node for node in effects if node in late]
        recomputed = frozenset(node for node in joint.traced.graph.nodes if node not in late)
        inputs = [*saved, *tangents_of(joint)]
        extract = partial(_extract, joint.traced, inputs, gradients_of(joint), also=also, when_needed=recomputed)
        backward = extract()
        arriving = partial(extract, marked=True) if plan.output_deps else None
    records = tuple(
        Saved(node.name, tensor_spec(node), None if node in copied else number.get(node), why[node]) for node in saved
    )
    forward = replace(forward, writes=plan.new_values)
    plan = replace(plan, saved=records, copied_saved_inputs=copied_inputs)
    return ForwardBackward(forward, backward, plan, joint.eager, joint.replay, arriving=arriving)


def _has_effect(node: fx.Node) -> bool:
    """Whether a call must stay even if unused; errors that depend on values are raised where eager raises them."""
    reason = why_not_drop(node)
    return reason is not None and (reason != VALUES or phase_of(node) is not Phase.BACKWARD)


def _extract(
    traced: Traced,
    inputs: Sequence[fx.Node],
    wanted: Sequence[object],
    *,
    also: Sequence[fx.Node],
    copied: Collection[fx.Node] = (),
    first_copied: int = 0,
    when_needed: Collection[fx.Node] = (),
    marked: bool = False,
) -> Traced:
    """The part of a graph that computes `wanted` from `inputs`, and `also` the nodes that run for their effect.

    Nodes of `when_needed` stand before the first that reads them, the others in the graph's order.
    From position `first_copied` on, a node of `copied` is returned as a copy: its memory is about to be mutated.
    Marks of where gradients arrive are kept if `marked`.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        set_spec(copies[node], spec_of(node))
    nodes = [node for node in wanted if isinstance(node, fx.Node)]
    needed = needed_for([*nodes, *also], stop=lambda node: node in copies)
    constants = {}
    for node in _in_order(traced.graph, needed, copies, when_needed):
        if not marked and arrival_of(node) is not None:
            copies[node] = copies[node.all_input_nodes[0]]
            continue
        copies[node] = add_copy(graph, node, copies.__getitem__)
        if node.op == "get_attr":
            constants[str(node.target)] = traced.constants[str(node.target)]
    returned: list[object] = []
    for position, value in enumerate(wanted):
        if not isinstance(value, fx.Node):
            returned.append(value)
            continue
        node = copies[value]
        if position >= first_copied and value in copied:
            node = graph.call_function(_CLONE, (node,))
            set_spec(node, spec_of(value))
        returned.append(node)
    graph.output(tuple(returned))  # type: ignore[arg-type]
    return Traced(graph, GraphLevel.PURE, constants)


def _in_order(
    graph: fx.Graph, needed: Collection[fx.Node], available: Collection[fx.Node], when_needed: Collection[fx.Node]
) -> Iterator[fx.Node]:
    """The needed nodes that are not made yet, each after all it reads; `when_needed` as late as that allows.

    Otherwise all that the backward recomputes would be alive from its beginning. Results of one operator are unpacked
    immediately, or those that nobody needs any more would live as long as the last of the others.
    """
    done = set(available)
    nodes = [node for node in graph.nodes if node in needed]
    for wanted in (*(node for node in nodes if node not in when_needed), *nodes):
        pending = [wanted]
        while pending:
            node = pending[-1]
            before = [] if node in done else [each for each in node.all_input_nodes if each not in done]
            if before:
                pending.extend(reversed(before))
                continue
            pending.pop()
            if node in done:
                continue
            done.add(node)
            yield node
            for part in node.users:
                if part.target is operator.getitem and part in needed and part not in done:
                    done.add(part)
                    yield part


def _report(halves: ForwardBackward) -> None:
    plan = halves.plan
    events.count("saved_bytes", plan.saved_bytes)
    if events.wanted("forward"):
        budget = [str(halves.fitting)] if halves.fitting is not None else []
        text = "\n".join([format_graph(halves.forward.graph, "forward"), *budget, saved_text(plan)])
        events.emit("forward", text, halves)
    if halves.backward is not None and events.wanted("backward"):
        text = f"{format_graph(halves.backward.graph, 'backward')}\n{recomputed_text(halves)}"
        events.emit("backward", text, halves)


def saved_text(plan: JointPlan) -> str:
    """What is saved for the backward, one per line, with its bytes and why."""
    inputs = sum(saved.spec.nbytes for saved in plan.saved if saved.source is not None)
    values = sum(saved.source is None for saved in plan.saved)
    lines = [
        f"saved for backward: {plan.saved_bytes} bytes: {plan.saved_bytes - inputs} in {values} values, "
        f"{inputs} in {len(plan.saved) - values} inputs"
    ]
    lines += [f"  {saved.name}: {saved.spec}, {saved.spec.nbytes} bytes, {saved.why}" for saved in plan.saved]
    return "\n".join(lines)


def recomputed_text(halves: ForwardBackward) -> str:
    """What the backward recomputes, the heavy operators by name."""
    assert halves.backward is not None
    ahead = {node.name for node in halves.forward.graph.nodes if node.op == "call_function"}
    recomputed = [node for node in halves.backward.graph.nodes if node.op == "call_function" and node.name in ahead]
    heavy = [node for node in recomputed if recomputable(node) is not None and work_of(node)]
    lines = [f"recomputed: {len(recomputed)} operators, {len(heavy)} of them heavy"]
    lines += [f"  {node.name}: {recomputable(node)}, {work_of(node)} units of work" for node in heavy]
    return "\n".join(lines)


def adopt(joint: Joint, forward: fx.GraphModule, backward: fx.GraphModule) -> ForwardBackward:
    """Both graphs of a joint graph that a user's function split: forward values beyond its results are saved."""
    plan = joint.plan
    returned = outputs(forward.graph)[plan.forward_outputs :]
    count = len(placeholders(backward.graph)) - len(plan.tangents)
    if len(returned) != count:
        raise SmeltError(
            "SM020",
            f"the partition's forward saves {len(returned)} values, and its backward takes {count} before the tangents",
        )
    number = {node: index for index, node in enumerate(placeholders(forward.graph))}
    written = {placeholders(forward.graph)[index] for index in plan.lost}
    records: list[Saved] = []
    for node in returned:
        if not isinstance(node, fx.Node):
            raise SmeltError("SM020", f"the partition's forward saves {node!r}, which is not a tensor")
        if node in written:
            raise SmeltError("SM020", f"the partition saves {node.name}, an input that the graph modifies in-place")
        records.append(Saved(node.name, tensor_spec(node), number.get(node), "chosen by the partition function"))
    back = Traced(backward.graph, GraphLevel.PURE, joint.traced.constants)
    halves = ForwardBackward(
        Traced(forward.graph, GraphLevel.PURE, joint.traced.constants),
        back,
        replace(plan, saved=tuple(records)),
        joint.eager,
        joint.replay,
        arriving=lambda: back,
    )
    _report(halves)
    return halves


def _joint_of(module: fx.GraphModule, forward_outputs: int) -> Joint:
    """The joint module that a partition function got, perhaps changed by it, as a joint graph."""
    inputs = placeholders(module.graph)
    tangents = tuple(tensor_spec(node) for node in inputs if node.name.startswith("tangents"))
    gradients = len(outputs(module.graph)) - forward_outputs
    plan = JointPlan(
        inputs=len(inputs) - len(tangents),
        outputs=(),
        results=forward_outputs,
        tangents=tangents,
        gradients=tuple(range(gradients)),
    )
    constants = {
        str(node.target): getattr(module, str(node.target)) for node in module.graph.nodes if node.op == "get_attr"
    }
    traced = Traced(module.graph, GraphLevel.PURE, constants)
    return Joint(traced, plan, module.forward, "it was split by a partition function")


def _modules(halves: ForwardBackward) -> Modules:
    if halves.backward is None:
        raise SmeltError("SM020", "the joint module has no tangents, so there is no backward to split off")
    return halves.forward.to_module(), halves.backward.to_module()
