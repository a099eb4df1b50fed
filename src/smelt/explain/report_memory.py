"""The memory timelines of a report: bytes alive from the beginning of a step to its end, ours and eager's.

    {"ours": [[0.0, 0], [0.1, 4096], …], "eager": [[0.0, 0], …], "saved": […], "turn": True}

A place is 0 to 1 in the forward and 1 to 2 in the backward, or 0 to 1 in a graph that is not split. What the step
allocates is counted: neither inputs and parameters nor new values copied into them. Each value counts from where it is
computed to its last use, as in memory planning; an arena holds the same in one piece.
"""

from collections.abc import Hashable
from typing import Any

from torch import fx

from smelt.autograd.joint.trace_joint import Joint, Pure
from smelt.autograd.partition.partition import ForwardBackward
from smelt.explain.compilation_report import GraphReport
from smelt.ir.call_contract import JointPlan, Phase, phase_of
from smelt.ir.program import Program
from smelt.ir.substitute_sizes import resized, resized_graph
from smelt.ir.tensorspec import TensorSpec, spec_of
from smelt.meta.memory_peak import MemoryUsage, graph_usage, handed_over, program_usage
from smelt.symbolic.symsize import hint

Curve = list[list[float]]


def timelines(report: GraphReport, eager: Joint | Pure | None) -> dict[str, Any]:
    """What a report says of the memory of one graph. Dynamic sizes are those of the example."""
    forward = next((each for each in report.programs if each.name.startswith("forward")), None)
    backward = next((each for each in reversed(report.programs) if each.name.startswith("backward")), None)
    if forward is None:
        return {"ours": [], "eager": [], "saved": [], "turn": False, "recomputed": []}
    forward, backward = resized(forward, hint), resized(backward, hint)
    turn = backward is not None and report.halves is not None
    ours, saved = _of_programs(forward, backward if turn else None, report.halves)
    theirs = [] if eager is None else _of_eager(resized_graph(eager.traced, hint).graph, eager.plan)
    return {"ours": ours, "eager": theirs, "saved": saved, "turn": turn, "recomputed": _recomputed(report.halves)}


def _of_programs(forward: Program, backward: Program | None, halves: ForwardBackward | None) -> tuple[Curve, Curve]:
    """All that is alive, and what of it is saved for the backward."""
    usage = program_usage(forward.unplanned())
    if backward is None or halves is None:
        return _spread(_alive(usage), 0), []
    plan = halves.plan
    saved_keys = {key for key in usage.returned[plan.forward_outputs :] if key is not None}
    results = usage.bytes_of(usage.returned[: plan.results])
    owned = handed_over(usage, plan, len(backward.inputs))
    later = program_usage(backward.unplanned(), owned)
    saved: set[Hashable] = set(backward.inputs[: len(plan.saved)])
    ours = [*_spread(_alive(usage), 0), *_spread([results + size for size in _alive(later)], 1)]
    return ours, [*_spread(_alive(usage, saved_keys), 0), *_spread(_alive(later, saved), 1)]


def _of_eager(graph: fx.Graph, plan: JointPlan) -> Curve:
    """Of the graph run operator by operator: every value lives until its last use, and new values of mutated inputs
    need no memory of their own."""
    usage = graph_usage(graph)
    for key in usage.returned[plan.results : plan.forward_outputs]:
        if key is not None and key not in usage.returned[: plan.results]:
            usage.sizes[key] = 0
    input_count = sum(node.op == "placeholder" for node in graph.nodes)  # they come first, and take no time
    alive = _alive(usage)[input_count:] or [0, 0]
    late = [number - input_count for number, node in enumerate(graph.nodes) if phase_of(node) is Phase.BACKWARD]
    if not late:
        return _spread(alive, 0)
    turn = max(1, min(late[0], len(alive) - 2))
    return [*_spread(alive[:turn], 0), *_spread(alive[turn:], 1)]


def _spread(alive: list[int], start: int) -> Curve:
    """Evenly over one unit."""
    last = max(1, len(alive) - 1)
    return [[round(start + step / last, 5), size] for step, size in enumerate(alive)]


def _alive(usage: MemoryUsage, only: set[Hashable] | None = None) -> list[int]:
    """Bytes alive at each step, two steps at least; of some values only if those are named."""
    last = max([1, *usage.first.values()])
    returned = set(usage.returned)
    change = [0] * (last + 2)
    for key, size in usage.sizes.items():
        if only is not None and key not in only:
            continue
        end = last if key in returned else min(usage.last[key], last)
        change[usage.first[key]] += size
        change[end + 1] -= size
    bytes_alive, now = [], 0
    for step in range(last + 1):
        now += change[step]
        bytes_alive.append(now if only is not None else now + usage.scratch.get(step, 0))
    return bytes_alive


def _recomputed(halves: ForwardBackward | None) -> list[dict[str, Any]]:
    """What the backward recomputes instead of saving it, the largest first."""
    if halves is None or halves.backward is None:
        return []
    rows = []
    for node in halves.backward.graph.nodes:
        spec = spec_of(node)
        if node.op == "call_function" and phase_of(node) is not Phase.BACKWARD and isinstance(spec, TensorSpec):
            rows.append({"name": node.name, "bytes": hint(spec.nbytes)})
    return sorted(rows, key=lambda each: -each["bytes"])
