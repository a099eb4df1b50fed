"""What a report shows, as plain data: from the events of a run to one dict that goes into the page as JSON.

    {"files": {path: [line, …]}, "graphs": [{"stages": [{"nodes": …, "edges": …}], "steps": …, "memory": …}], …}

A node knows the captured node it comes from (`ir/origin.py`), so one thing can be followed from the source line through
every stage to the kernel that computes it.
"""

import linecache
from collections.abc import Iterable, Sequence
from typing import Any

from torch import fx

from smelt.autograd.joint import Joint, Pure
from smelt.autograd.partition import Halves
from smelt.base.events import Event
from smelt.capture import GraphRecord
from smelt.explain.explanation import PLACE, Explanation, GraphStory, from_events
from smelt.fuse.records import Apart, Made
from smelt.ir.joint import Phase, phase_of
from smelt.ir.origin import origin_of
from smelt.ir.peak import Usage, graph_usage, handed_over, program_usage
from smelt.ir.program import Launch, Program
from smelt.ir.tensorspec import TensorSpec, spec_of
from smelt.ir.text import format_kernel

_LONG = 4000  # lines of a file that is shown whole; of a longer one, those round what was captured
_ROUND = 40


def report_data(events: Sequence[Event], title: str) -> dict[str, Any]:
    """Everything the page shows of one run."""
    told = from_events(events)
    data = told.to_dict()
    return {
        "title": title,
        "summary": {
            "graphs": told.graph_count,
            "breaks": told.graph_break_count,
            "recompiles": len(told.recompile_reasons),
            "operators": told.op_count,
            "kernels": told.kernel_count,
            "library calls": sum(len(story.library_calls) for story in told.stories),
            "bytes saved": sum(story.saved_bytes for story in told.stories),
            "seconds": dict(told.compile_times).get("capture and compile", 0.0),
        },
        "files": _files(told),
        "graphs": _graphs(events, told),
        "breaks": data["break_reasons"],
        "recompiles": data["recompile_reasons"],
        "advice": data["advice"],
        "times": [[stage, seconds] for stage, seconds in told.compile_times if stage != "capture and compile"],
    }


def _files(told: Explanation) -> dict[str, dict[str, Any]]:
    """The text of every file that something was captured from, by path: the first line's number, and the lines."""
    wanted: dict[str, set[int]] = {}
    for story in told.stories:
        for file, lines in story.lines.items():
            wanted.setdefault(file, set()).update(lines)
    for record in told.break_reasons:
        wanted.setdefault(record.file, set()).add(record.line)
    found: dict[str, dict[str, Any]] = {}
    for file, numbers in wanted.items():
        text = [line.rstrip("\n") for line in linecache.getlines(file)]
        first = 1 if len(text) <= _LONG else max(1, min(numbers) - _ROUND)
        last = len(text) if len(text) <= _LONG else max(numbers) + _ROUND
        if text:
            found[file] = {"first": first, "lines": text[first - 1 : last]}
    return found


def _graphs(events: Sequence[Event], told: Explanation) -> list[dict[str, Any]]:
    """One entry per captured graph; what later stages reported is matched as `explanation` does."""
    graphs: list[dict[str, Any]] = []
    made: list[Made] = []
    by_program: dict[str, list[dict[str, Any]]] = {}
    llvm: dict[int, str] = {}
    for event in events:
        if event.channel == "llvm" and isinstance(event.subject, list):
            llvm.update((id(kernel), event.text) for kernel in event.subject)
        if isinstance(event.subject, GraphRecord):
            graphs.append(_captured(told.stories[len(graphs)]))
        elif isinstance(event.subject, Made):
            made.append(event.subject)
        elif isinstance(event.subject, Program):
            by_program[event.subject.name] = _steps(event.subject, made[-len(event.subject.steps) :])
            made = []
        elif not graphs:
            continue
        elif isinstance(event.subject, Apart):
            apart = {"first": event.subject.first, "second": event.subject.second, "reason": event.subject.reason}
            if apart not in graphs[-1]["apart"]:
                graphs[-1]["apart"].append(apart)
        elif isinstance(event.subject, Joint):
            graphs[-1]["eager memory"] = _eager_timeline(event.subject.traced.graph)
        elif isinstance(event.subject, Halves | Pure):
            graphs[-1]["stages"] = [graphs[-1]["stages"][0], *_pure_stages(event.subject)]
    for graph, story in zip(graphs, told.stories, strict=True):
        graph["programs"] = [{"name": each.name, "steps": by_program[each.name]} for each in story.programs]
        graph["memory"] = _timeline(story)
        _place_in_kernels(graph)
    return graphs


def _captured(story: GraphStory) -> dict[str, Any]:
    data = story.to_dict()
    stage = {"name": "captured", **_drawn(story.record.traced.graph, ())}
    return {**data, "line": story.record.line, "stages": [stage], "apart": [], "eager memory": [], "memory": []}


def _pure_stages(found: Halves | Pure) -> list[dict[str, Any]]:
    if isinstance(found, Pure):
        return [{"name": "forward", **_drawn(found.traced.graph, ())}]
    saved = [each.name for each in found.plan.saved]
    stages = [{"name": "forward", **_drawn(found.forward.graph, saved)}]
    if found.backward is not None:
        stages.append({"name": "backward", **_drawn(found.backward.graph, saved)})
    return stages


def _drawn(graph: fx.Graph, saved: Iterable[str]) -> dict[str, Any]:
    """Nodes and edges of a graph. Parts of tuples are drawn as what they are parts of."""
    kept = set(saved)
    nodes, edges = [], []
    for node in graph.nodes:
        origin = origin_of(node)
        place = PLACE.match(node.stack_trace or (origin.place if origin is not None else "") or "")
        nodes.append({
            "id": node.name,
            "op": node.op,
            "label": _label(node),
            "shape": _shape(node),
            "file": place["file"] if place is not None else None,
            "line": int(place["line"]) if place is not None else None,
            "origin": origin.node if origin is not None else node.name if node.stack_trace else None,
            "saved": node.name in kept,
        })  # fmt: skip
        edges += [[source.name, node.name] for source in node.all_input_nodes]
    return {"nodes": nodes, "edges": edges}


def _label(node: fx.Node) -> str:
    target = node.target
    if node.op in ("placeholder", "output", "get_attr"):
        return str(node.name)
    return target if isinstance(target, str) else str(getattr(target, "__name__", target)).removesuffix(".default")


def _shape(node: fx.Node) -> str:
    spec = spec_of(node)
    parts = spec if isinstance(spec, tuple | list) else (spec,)
    texts = [
        f"{str(part.dtype).removeprefix('torch.')}[{', '.join(map(str, part.shape))}]"
        for part in parts
        if isinstance(part, TensorSpec)
    ]
    return ", ".join(texts)


def _steps(program: Program, made: Sequence[Made]) -> list[dict[str, Any]]:
    """The kernels and library calls of a program, each with the values it computes and its text."""
    steps = []
    for step, record in zip(program.steps, made, strict=True):
        kernel = step.kernel if isinstance(step, Launch) else None
        steps.append({
            "name": record.name,
            "kind": "kernel" if kernel is not None else "library",
            "members": list(record.members),
            "why": record.why,
            "code": format_kernel(kernel) if kernel is not None else str(step),
        })  # fmt: skip
    return steps


def _place_in_kernels(graph: dict[str, Any]) -> None:
    """Every node of the pure graphs learns the step that computes it, as [program, number]."""
    for stage in graph["stages"][1:]:
        for program in graph["programs"]:
            if not program["name"].startswith(stage["name"]):
                continue
            step_of = {member: number for number, step in enumerate(program["steps"]) for member in step["members"]}
            for node in stage["nodes"]:
                if node["id"] in step_of:
                    node["step"] = [program["name"], step_of[node["id"]]]


def _timeline(story: GraphStory) -> list[list[float]]:
    """[where in the step: 0 to 1 in the forward, 1 to 2 in the backward; bytes alive there], of the programs that ran.

    Each value counts while it is needed; the arena holds the same in one piece.
    """
    ahead = next((each for each in story.programs if each.name.startswith("forward")), None)
    behind = next((each for each in reversed(story.programs) if each.name.startswith("backward")), None)
    if ahead is None:
        return []
    usage = program_usage(ahead.unplanned())
    alive = _alive(usage)
    points = [[step / (len(alive) - 1), size] for step, size in enumerate(alive)]
    if behind is not None and story.halves is not None:
        plan = story.halves.plan
        results = usage.bytes_of(usage.returned[: plan.results])
        alive = _alive(program_usage(behind.unplanned(), handed_over(usage, plan, len(behind.inputs))))
        points += [[1 + step / (len(alive) - 1), results + size] for step, size in enumerate(alive)]
    return points


def _eager_timeline(graph: fx.Graph) -> list[list[float]]:
    """The same of the joint graph, run operator by operator: every value lives until it is read for the last time."""
    alive = _alive(graph_usage(graph))
    late = [number for number, node in enumerate(graph.nodes) if phase_of(node) is Phase.BACKWARD]
    turn = min(late, default=len(alive) - 1)
    behind = max(1, len(alive) - 1 - turn)
    return [[step / turn if step <= turn else 1 + (step - turn) / behind, size] for step, size in enumerate(alive)]


def _alive(usage: Usage) -> list[int]:
    """Bytes alive at each step, two steps at least."""
    last = max([1, *usage.first.values()])
    returned = set(usage.returned)
    change = [0] * (last + 2)
    for key, size in usage.sizes.items():
        end = last if key in returned else min(usage.last[key], last)
        change[usage.first[key]] += size
        change[end + 1] -= size
    found, now = [], 0
    for step in range(last + 1):
        now += change[step]
        found.append(now + usage.scratch.get(step, 0))
    return found
