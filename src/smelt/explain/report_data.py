"""What a report shows, as plain data: from the events of a run to one dict that goes into the page as JSON.

    {"files": [{"path": …, "lines": […]}], "graphs": [{"stages": [{"nodes": …, "edges": …}], "programs": …}], …}

A node knows the captured node it comes from (`ir/provenance.py`) and the step that computes it, so one thing can be
followed from the source line through every stage to the kernel that computes it and its code.
"""

import linecache
from collections.abc import Iterable, Sequence
from typing import Any

from torch import fx

from smelt.autograd.joint.trace_joint import Joint, Pure
from smelt.autograd.partition.partition import ForwardBackward
from smelt.base.events import Event
from smelt.capture import GraphRecord
from smelt.explain.advice import Advice, is_installed
from smelt.explain.compilation_report import PLACE, CompilationReport, GraphReport, from_events
from smelt.explain.kernel_usage import moved_bytes, usage_lines
from smelt.explain.op_names import short_name
from smelt.explain.report_code import Codes
from smelt.explain.report_memory import timelines
from smelt.fuse.records import Apart, Made, Together
from smelt.ir.call_contract import Phase, phase_of
from smelt.ir.program import Launch, Library, Program, reads, writes
from smelt.ir.provenance import origin_of
from smelt.ir.tensorspec import TensorSpec, spec_of
from smelt.lazy.timeline import LazyRun
from smelt.runtime.program.profile import Taken

_LONG = 4000  # lines of a file that is shown whole; of a longer one, those around what was captured
_AROUND = 40


def report_data(events: Sequence[Event], title: str, codes: Codes) -> dict[str, Any]:
    """Everything the page shows of one run, except the code of kernels, which goes into `codes`."""
    explained = from_events(events, CompilationReport)
    data = explained.to_dict()
    files = _Files(explained)
    return {
        "title": title,
        "summary": {
            "graphs": explained.graph_count,
            "breaks": explained.graph_break_count,
            "recompiles": len(explained.recompile_reasons),
            "operators": explained.op_count,
            "kernels": explained.kernel_count,
            "library calls": sum(len(report.library_calls) for report in explained.graph_reports),
            "bytes saved": sum(report.saved_bytes for report in explained.graph_reports),
            "seconds": sum(seconds for _, seconds in explained.compile_times),
        },
        "files": files.texts(),
        "graphs": _Graphs(events, explained, files, codes).entries(),
        "breaks": [{**each, "file": files.number(each["file"])} for each in data["break_reasons"]],
        "recompiles": [{**each, "file": files.number(each["file"])} for each in data["recompile_reasons"]],
        "left": data["skipped_frames"],
        "advice": [_advice(each, files) for each in explained.advices],
        "times": [[stage, seconds] for stage, seconds in explained.compile_times],
        "lazy": _lazy_runs(events),
    }


def _lazy_runs(events: Sequence[Event]) -> list[dict[str, Any]]:
    """The runs of lazy tensors, with when they began, in milliseconds after the first."""
    runs = [event.subject for event in events if isinstance(event.subject, LazyRun)]
    names = ("number", "reason", "line", "operators", "inputs", "outputs", "how", "kernels", "milliseconds")
    return [
        {**{name: getattr(run, name) for name in names}, "at": (run.started - runs[0].started) * 1000} for run in runs
    ]


def _advice(each: Advice, files: "_Files") -> dict[str, Any]:
    causes = [
        {"reason": cause.reason, "file": files.number(cause.file), "line": cause.line, "code": cause.code}
        for cause in each.causes
    ]
    return {"hint": each.hint, "causes": causes}


class _Files:
    """The text of every file that something was captured from. The program's own come before those of libraries."""

    def __init__(self, explained: CompilationReport) -> None:
        self._wanted: dict[str, set[int]] = {}
        for report in explained.graph_reports:
            for file, lines in report.lines.items():
                self._wanted.setdefault(file, set()).update(lines)
        causes = (cause for each in explained.advices for cause in each.causes)
        for records in (explained.break_reasons, explained.recompile_reasons, causes):
            for record in records:
                self._wanted.setdefault(record.file, set()).add(record.line)
        paths = sorted(self._wanted, key=is_installed)
        self._numbers = {path: number for number, path in enumerate(paths)}

    def number(self, path: str) -> int | None:
        return self._numbers.get(path)

    def texts(self) -> list[dict[str, Any]]:
        return [self._text(path) for path in self._numbers]

    def _text(self, path: str) -> dict[str, Any]:
        numbers = self._wanted[path]
        text = [line.rstrip("\n") for line in linecache.getlines(path)]
        first = 1 if len(text) <= _LONG else max(1, min(numbers) - _AROUND)
        last = len(text) if len(text) <= _LONG else max(numbers) + _AROUND
        return {"path": path, "library": is_installed(path), "first": first, "lines": text[first - 1 : last]}


class _Graphs:
    """One entry per captured graph; what later stages reported is matched as `explanation` does."""

    def __init__(self, events: Sequence[Event], explained: CompilationReport, files: _Files, codes: Codes) -> None:
        self._explained, self._files, self._codes = explained, files, codes
        self._graphs: list[dict[str, Any]] = []
        self._eager: list[Joint | Pure | None] = []
        self._taken: dict[str, list[Taken]] = {}
        self._programs: dict[str, dict[str, Any]] = {}
        self._made: list[Made] = []
        self._together: Together | None = None
        self._apart: list[dict[tuple[Any, ...], None]] = []
        for event in events:
            self._take(event.subject)

    def _take(self, subject: object) -> None:
        if isinstance(subject, GraphRecord):
            self._graphs.append(self._captured(self._explained.graph_reports[len(self._graphs)]))
            self._eager.append(None)
            self._apart.append({})
        elif isinstance(subject, Made):
            self._made.append(subject)
        elif isinstance(subject, Together):
            self._together = subject
        elif isinstance(subject, Program):
            self._programs[subject.name] = self._program(subject)
            self._made, self._together = [], None
        elif isinstance(subject, Taken):
            self._taken.setdefault(subject.program, []).append(subject)
        elif self._graphs and isinstance(subject, Apart):
            self._apart[-1][(subject.first, subject.second, subject.reason)] = None
        elif self._graphs and isinstance(subject, Joint | Pure):
            self._eager[-1] = subject
        if self._graphs and isinstance(subject, ForwardBackward | Pure):
            self._graphs[-1]["stages"] = [self._graphs[-1]["stages"][0], *self._pure_stages(subject)]

    def entries(self) -> list[dict[str, Any]]:
        graph_reports = self._explained.graph_reports
        for graph, report, eager, apart in zip(self._graphs, graph_reports, self._eager, self._apart, strict=True):
            graph["programs"] = [self._programs[each.name] for each in report.programs]
            graph["stages"] += [each.pop("drawn") for each in graph["programs"] if "drawn" in each]
            graph["memory"] = timelines(report, eager)
            graph["apart"] = [list(each) for each in apart]
            for program in graph["programs"]:
                _add_times(program, self._taken.get(program["name"], ()))
            _place_in_kernels(graph)
        return self._graphs

    def _captured(self, report: GraphReport) -> dict[str, Any]:
        data = report.to_dict()
        data["lines"] = {str(self._files.number(file)): lines for file, lines in data["lines"].items()}
        stage = {"name": "captured", "kind": "captured", **self._drawn(report.record.traced.graph, ())}
        return {**data, "ops": len(report.ops), "line": report.record.line, "stages": [stage]}

    def _pure_stages(self, graphs: ForwardBackward | Pure) -> list[dict[str, Any]]:
        if isinstance(graphs, Pure):
            return [{"name": "pure", "kind": "forward", **self._drawn(graphs.traced.graph, ())}]
        saved = [each.name for each in graphs.plan.saved]
        name = "pure" if graphs.backward is None else "forward"
        stages = [{"name": name, "kind": "forward", **self._drawn(graphs.forward.graph, saved)}]
        if graphs.backward is not None:
            drawn = self._drawn(graphs.backward.graph, saved, in_backward=True)
            stages.append({"name": "backward", "kind": "backward", **drawn})
        return stages

    def _drawn(self, graph: fx.Graph, saved: Iterable[str], in_backward: bool = False) -> dict[str, Any]:
        """Nodes and edges of a graph; false and unknown fields are omitted."""
        saved_names = set(saved)
        nodes, edges = [], []
        for node in graph.nodes:
            origin = origin_of(node)
            place = PLACE.match(node.stack_trace or (origin.place if origin is not None else "") or "")
            recomputed = in_backward and node.op == "call_function" and phase_of(node) is not Phase.BACKWARD
            described = {
                "id": node.name,
                "op": node.op,
                "label": _label(node),
                "shape": _shape(node),
                "file": self._files.number(place["file"]) if place is not None else None,
                "line": int(place["line"]) if place is not None else None,
                "origin": origin.node if origin is not None else node.name if node.stack_trace else None,
                "saved": node.name in saved_names or None,
                "recomputed": recomputed or None,
            }
            nodes.append({key: value for key, value in described.items() if value is not None})
            edges += [[source.name, node.name] for source in node.all_input_nodes]
        return {"nodes": nodes, "edges": edges}

    def _program(self, program: Program) -> dict[str, Any]:
        """The kernels and library calls of a program, each with the values it computes and its code."""
        silent = [isinstance(step, Library) and step.unless is not None for step in program.steps]
        records = iter(self._records(silent))
        steps = []
        for step, is_silent in zip(program.steps, silent, strict=True):
            record = Made(str(step.op), (), "runs only to raise PyTorch's own error") if is_silent else next(records)  # type: ignore[union-attr]
            described: dict[str, Any] = {"name": record.name, "members": list(record.members)}
            if isinstance(step, Launch):
                described |= {"kind": "kernel", "code": self._codes.number(step.kernel), "target": step.target}
                described |= {} if record.why is None else {"why": record.why}
                grids = usage_lines(step.kernel)
                described |= {"grids": grids} if grids else {}
            else:
                described |= {"kind": "library", "why": record.why, "text": str(step)}
            described["bytes"] = moved_bytes(program, step)
            steps.append(described)
        return {"name": program.name, "steps": steps, "drawn": _drawn_program(program, steps)}


    def _records(self, silent: Sequence[bool]) -> list[Made]:
        """What is known of the steps of the last program, but for those that are `silent`; kernels that are launched as
        one are one."""
        numbers = [(place,) for place in range(len(silent))] if self._together is None else self._together.steps
        loud = [each for each, is_silent in zip(numbers, silent, strict=True) if not is_silent]
        order = sorted(number for each in loud for number in each)
        record = dict(zip(order, self._made[len(self._made) - len(order) :], strict=True))
        return [_together([record[number] for number in each]) for each in loud]


def _together(records: Sequence[Made]) -> Made:
    if len(records) == 1:
        return records[0]
    name = f"{records[0].name} and {len(records) - 1} more"
    return Made(name, tuple(member for each in records for member in each.members), records[0].why)


def _drawn_program(program: Program, steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The steps of a program as a graph: what reads what another has written."""
    shapes = {buffer.name: _specs_text(buffer.spec) for buffer in program.buffers}
    writer = {name: name for name in program.inputs}
    nodes: list[dict[str, Any]] = [
        {"id": name, "op": "placeholder", "label": name, "shape": shapes[name]} for name in program.inputs
    ]
    edges: dict[tuple[str, str], None] = {}
    for number, (step, described) in enumerate(zip(program.steps, steps, strict=True)):
        name = f"step {number + 1}"
        shown = ", ".join(shapes[each] for each in writes(step))
        where = [program.name, number]
        nodes.append({"id": name, "op": "step", "label": described["name"], "shape": shown, "step": where})
        edges |= {(writer[each], name): None for each in reads(step) if each in writer}
        writer |= dict.fromkeys(writes(step), name)
    return {"name": program.name, "kind": "program", "nodes": nodes, "edges": [list(edge) for edge in edges]}


def _label(node: fx.Node) -> str:
    if node.op in ("placeholder", "output", "get_attr"):
        return str(node.name)
    return short_name(node.target)


def _shape(node: fx.Node) -> str:
    return _specs_text(spec_of(node))


def _specs_text(spec: object) -> str:
    parts = spec if isinstance(spec, tuple | list) else (spec,)
    texts = [
        f"{str(part.dtype).removeprefix('torch.')}[{', '.join(map(str, part.shape))}]"
        for part in parts
        if isinstance(part, TensorSpec)
    ]
    return ", ".join(texts)


def _add_times(program: dict[str, Any], taken: Iterable[Taken]) -> None:
    """What each step took on average, in nanoseconds, if that was asked for."""
    for each in taken:
        if each.calls and len(each.nanoseconds) == len(program["steps"]):
            program["calls"] = program.get("calls", 0) + each.calls
            program["between"] = program.get("between", 0) + each.between
            for step, time in zip(program["steps"], each.nanoseconds, strict=True):
                step["time"] = step.get("time", 0) + time
    for part in (program, *program["steps"]):
        for key in ("between", "time"):
            if key in part:
                part[key] = round(part[key] / program["calls"])


def _place_in_kernels(graph: dict[str, Any]) -> None:
    """Every node of the pure graphs learns the step that computes it, as [program, number]."""
    for stage in graph["stages"]:
        for program in graph["programs"]:
            if not program["name"].startswith(stage["kind"]):
                continue
            step_of = {member: number for number, step in enumerate(program["steps"]) for member in step["members"]}
            for node in stage["nodes"]:
                if node["id"] in step_of:
                    node["step"] = [program["name"], step_of[node["id"]]]
