"""What the compiler did in one run, from its events: graphs, breaks, recompiles, programs, times; no rendering.

    events ── from_events ──► CompilationReport: counts, what to change, then one line a graph
"""

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import field
from typing import Any, TypeVar

from smelt.autograd.partition.partition import ForwardBackward
from smelt.base.events import Event, FellBack, Timing
from smelt.base.fast_dataclass import dataclass
from smelt.capture import BreakRecord, GraphRecord, RecompileRecord
from smelt.explain.advice import Advice, advice, is_installed
from smelt.explain.guard_words import GuardWords, in_words
from smelt.explain.kernel_usage import usage_lines
from smelt.explain.op_names import op_name
from smelt.ir.call_contract import Saved
from smelt.ir.graph import Traced, format_graph
from smelt.ir.program import Library, Program
from smelt.ir.text import runs
from smelt.runtime.cuda.graph_use import GraphUse
from smelt.symbolic.symsize import hint

OP_CODES = frozenset({"call_function", "call_method", "call_module"})
MORE = """More: --full adds break reasons with stacks, operators, kernels, saved values, guards; --guards only guards.
      From Python: explanation.text(full=True), explanation.text(guards=True); explanation.to_html(path)."""
_MANY = 10  # graphs of a summary, and line ranges of one
PLACE = re.compile(r'File "(?P<file>.*)", line (?P<line>\d+), in (?P<function>.*)')


@dataclass(slots=True)
class GraphReport:
    """One captured graph: its operators, kernels, library calls, saved values and guards."""

    record: GraphRecord
    halves: ForwardBackward | None = None  # the pure graphs, of a graph that is trained through
    programs: list[Program] = field(default_factory=list)
    guards: GuardWords | None = None
    why_eager: str = ""  # if it falls back to eager

    @property
    def lines(self) -> dict[str, list[int]]:
        """The source lines of the graph by file, with the lines that call the code."""
        by_file: dict[str, set[int]] = {}
        for file, line in self.record.called_from:
            by_file.setdefault(file, set()).add(line)
        for node in self.record.traced.graph.nodes:
            match = PLACE.match(node.stack_trace or "")
            if match is not None:
                by_file.setdefault(match["file"], set()).add(int(match["line"]))
        ordered = sorted(by_file, key=lambda file: (is_installed(file), file != self.record.file))  # the user's first
        return {file: sorted(by_file[file]) for file in ordered}

    @property
    def ops(self) -> list[Any]:
        """The functions and methods it calls, in order."""
        return [node.target for node in self.record.traced.graph.nodes if node.op in OP_CODES]

    @property
    def op_names(self) -> list[str]:
        """The same by name."""
        return [op_name(node) for node in self.record.traced.graph.nodes if node.op in OP_CODES]

    @property
    def kernels(self) -> list[str]:
        """Its kernels, each with the program it belongs to."""
        return [f"{program.name}: {kernel.name}" for program in self.programs for kernel in program.kernels]

    @property
    def library_calls(self) -> list[str]:
        """Its library calls, except calls that only raise an error."""
        steps = [(program, step) for program in self.programs for step in program.steps if isinstance(step, Library)]
        return [f"{program.name}: {step.op}" for program, step in steps if step.unless is None]

    @property
    def saved(self) -> tuple[Saved, ...]:
        """What the forward saves for the backward."""
        return () if self.halves is None else self.halves.plan.saved

    @property
    def saved_bytes(self) -> int:
        """Bytes saved for the backward, not counting the graph's inputs."""
        return sum(hint(saved.spec.nbytes) for saved in self.saved if saved.source is None)

    def summary(self, number: int) -> list[str]:
        """Its lines of the summary. `number` is its number there."""
        counts = [_many(len(self.ops), "operator"), _many(len(self.kernels), "kernel")]
        counts.append(_many(len(self.library_calls), "library call"))
        if self.saved_bytes:
            counts.append(f"{_size(self.saved_bytes)} saved for the backward")
        lines = [f"  Graph {number}: {self.record.function}: {', '.join(counts)}"]
        for file, covered in list(self.lines.items())[:1]:
            others = len(self.lines) - 1
            more = f", and {_many(others, 'other file')}" if others else ""
            lines.append(f"    {_short(file)}, {_ranges(covered, _MANY)}{more}")
        return lines + self._eager_lines()

    def text(self, number: int) -> list[str]:
        """Its lines of the full explanation."""
        lines = [f"  Graph {number}: {self.record.function}, {_many(len(self.ops), 'op')}"]
        lines += [f"    covers {file}, {_ranges(covered)}" for file, covered in self.lines.items()]
        lines += self._eager_lines()
        lines.append(f"    {_many(len(self.kernels), 'kernel')}, {_many(len(self.library_calls), 'library call')}")
        for program in self.programs:
            for kernel in program.kernels:
                lines += [f"      {program.name}: {kernel.name}", *(f"        {line}" for line in usage_lines(kernel))]
        lines += [f"      {name}" for name in self.library_calls]
        if self.halves is not None:
            lines.append(f"    saves {self.saved_bytes} bytes for the backward besides its inputs")
            lines += [f"      {saved.name}: {saved.spec.nbytes} bytes, {saved.why}" for saved in self._largest()]
        return lines

    def _eager_lines(self) -> list[str]:
        return [f"    falls back to eager: {self.why_eager}"] if self.why_eager else []

    def guards_text(self, number: int) -> list[str]:
        """Its guards as sentences."""
        if self.guards is None:
            return []
        head = f"  Graph {number}: {self.record.function} is reused while"
        return [head, *(f"    {line}" for line in self.guards.lines())]

    def _largest(self) -> list[Saved]:
        computed = [saved for saved in self.saved if saved.source is None]
        return sorted(computed, key=lambda saved: -hint(saved.spec.nbytes))[:8]

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        return {
            "function": self.record.function,
            "file": self.record.file,
            "lines": self.lines,
            "ops": self.op_names,
            "kernels": self.kernels,
            "library_calls": self.library_calls,
            "saved_bytes": self.saved_bytes,
            "saved": [
                {
                    "name": each.name,
                    "bytes": hint(each.spec.nbytes),
                    "input": each.source is not None,
                    "why": each.why,
                }
                for each in self.saved
            ],
            "guards": [] if self.guards is None else self.guards.lines(),
            "why_eager": self.why_eager,
        }


@dataclass(frozen=True, slots=True, repr=False)
class CompilationReport:
    """What one run compiled: `str()` is a summary, `text(full=True)` all of it in words, `to_dict()` data."""

    graph_reports: tuple[GraphReport, ...]
    break_reasons: tuple[BreakRecord, ...]
    recompile_reasons: tuple[RecompileRecord, ...]
    skipped_frames: tuple[str, ...]  # frames that nothing was captured of, and why
    out_guards: tuple[str, ...]
    programs: tuple[Program, ...]
    compile_times: tuple[tuple[str, float], ...]  # seconds per stage, those within it apart, over all graphs
    events: tuple[Event, ...] = field(default=(), repr=False)

    @property
    def graphs(self) -> tuple[Traced, ...]:
        """The captured graphs, at the level of torch."""
        return tuple(report.record.traced for report in self.graph_reports)

    @property
    def graph_count(self) -> int:
        """How many graphs were captured."""
        return len(self.graph_reports)

    @property
    def graph_break_count(self) -> int:
        """How many times a graph ended early."""
        return len(self.break_reasons)

    @property
    def ops_per_graph(self) -> list[list[Any]]:
        """The operators of each graph, in order."""
        return [report.ops for report in self.graph_reports]

    @property
    def op_count(self) -> int:
        """The operators of all graphs."""
        return sum(len(ops) for ops in self.ops_per_graph)

    @property
    def kernel_count(self) -> int:
        """The kernels of all programs."""
        return sum(len(program.kernels) for program in self.programs)

    @property
    def advices(self) -> tuple[Advice, ...]:
        """What to change to get fewer breaks, recompiles and bytes: each once, with the lines it is for."""
        saved = sum(report.saved_bytes for report in self.graph_reports)
        return advice(self.break_reasons, self.recompile_reasons, saved)

    @property
    def advice(self) -> list[str]:
        """The same, a line each."""
        return [str(each) for each in self.advices]

    @property
    def recompiles_behind_breaks(self) -> list[str]:
        """Recompiles of the parts behind breaks, a line each: fixing the breaks comes first."""
        recompiles = (each for each in self.recompile_reasons if each.resumed and self.break_reasons)
        return list(dict.fromkeys(f"{each.where} in {each.function}: {each.reason}" for each in recompiles))

    def __str__(self) -> str:
        return self.text()

    def text(self, *, full: bool = False, guards: bool = False) -> str:
        """A summary with what to change; then, if asked for, all the rest, or the guards alone."""
        lines = [
            f"Graph Count: {self.graph_count}",
            f"Graph Break Count: {self.graph_break_count}",
            f"Recompile Count: {len(self.recompile_reasons)}",
            f"Op Count: {self.op_count}",
            f"Kernel Count: {self.kernel_count}",
            f"Compile Time: {self._time_text()}",
            "What To Change:",
        ]
        for number, each in enumerate(self.advices, 1):
            lines += each.lines(number)
        if not self.advices:
            lines.append("  nothing: there is no graph break and no recompile")
        behind = self.recompiles_behind_breaks
        if behind:
            lines += ["Recompiles Behind Graph Breaks:", *(f"  {text}" for text in behind[:_MANY])]
            lines += [f"  and {len(behind) - _MANY} more"] if len(behind) > _MANY else []
        if self.skipped_frames:
            lines += ["Not Captured:", *(f"  {text}" for text in dict.fromkeys(self.skipped_frames))]
        lines.append("Graphs:")
        shown = self.graph_reports if full else self.graph_reports[:_MANY]
        for number, report in enumerate(shown, 1):
            lines += report.text(number) if full else report.summary(number)
        uses = [str(event.subject) for event in self.events if isinstance(event.subject, GraphUse)]
        lines += ["CUDA Graphs:", *(f"  {use}" for use in uses)] if uses else []
        if len(shown) < len(self.graph_reports):
            lines.append(f"  and {_many(len(self.graph_reports) - len(shown), 'more graph')}")
        if full:
            lines += self._rest()
        if full or guards:
            lines += self._guards_text()
        return "\n".join(lines if full else [*lines, MORE])

    def _time_text(self) -> str:
        total = sum(seconds for _, seconds in self.compile_times)
        longest = sorted(self.compile_times, key=lambda each: -each[1])[:3]
        parts = ", ".join(f"{stage} {seconds:.2f} s" for stage, seconds in longest)
        return f"{total:.2f} s" + (f" ({parts})" if parts else "")

    def _rest(self) -> list[str]:
        """What only a full explanation has: each break and recompile, operators and times."""
        lines = ["Break Reasons:"]
        for number, record in enumerate(self.break_reasons, 1):
            lines += [
                f"  Break Reason {number}:",
                f"    Reason: {record.code}: {record.reason}",
                f"    Hint: {record.hint}",
                "    User Stack:",
                *(f"      {frame}" for frame in record.stack),
            ]
        lines += ["Recompile Reasons:"] if self.recompile_reasons else []
        for number, recompiled in enumerate(self.recompile_reasons, 1):
            lines += [
                f"  Recompile Reason {number}:",
                f"    Reason: {recompiled.reason}",
                f"    Hint: {recompiled.hint}",
                f"    Function: {recompiled.where} in {recompiled.function}, version {recompiled.version}",
            ]
        lines.append("Ops per Graph:")
        for number, report in enumerate(self.graph_reports, 1):
            lines += [f"  Ops {number}:", *(f"    {name}" for name in report.op_names)]
        lines.append("Compile Times:")
        lines += [f"  {stage}: {seconds * 1000:.1f} ms" for stage, seconds in self.compile_times]
        return lines

    def _guards_text(self) -> list[str]:
        lines = ["Guards:"]
        for number, report in enumerate(self.graph_reports, 1):
            lines += report.guards_text(number)
        lines.append("Out Guards:")
        return [*lines, *(f"  Guard {number}: {guard}" for number, guard in enumerate(self.out_guards, 1))]

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, for `json.dumps`."""
        return {
            "graph_count": self.graph_count,
            "graph_break_count": self.graph_break_count,
            "op_count": self.op_count,
            "break_reasons": [
                {"code": each.code, "reason": each.reason, "hint": each.hint, "file": each.file, "line": each.line,
                 "stack": list(each.stack)}
                for each in self.break_reasons
            ],
            "recompile_reasons": [
                {"function": each.function, "reason": each.reason, "hint": each.hint, "file": each.file,
                 "line": each.line, "version": each.version}
                for each in self.recompile_reasons
            ],
            "skipped_frames": list(self.skipped_frames),
            "graphs": [report.to_dict() for report in self.graph_reports],
            "out_guards": list(self.out_guards),
            "compile_times": dict(self.compile_times),
            "advice": self.advice,
        }  # fmt: skip

    def in_short(self) -> str:
        counts = ((self.graph_count, "graph"), (self.graph_break_count, "break"), (self.kernel_count, "kernel"))
        return ", ".join(_many(count, word) for count, word in counts)

    def graph_text(self) -> str:
        """Every captured graph as text."""
        return "\n".join(format_graph(traced.graph, f"graph {n}") for n, traced in enumerate(self.graphs, 1))


ReportType = TypeVar("ReportType", bound=CompilationReport)


def from_events(events: Sequence[Event], kind: type[ReportType]) -> ReportType:
    """Put together what a run reported."""
    times: Counter[str] = Counter()
    for timing in _subjects(events, "timing", Timing):
        times[timing.stage] += timing.own
    return kind(
        graph_reports=tuple(_stories(events)),
        break_reasons=_subjects(events, "breaks", BreakRecord),
        recompile_reasons=_subjects(events, "recompiles", RecompileRecord),
        skipped_frames=tuple(
            event.text for event in events if event.channel == "breaks" and not isinstance(event.subject, BreakRecord)
        ),
        out_guards=tuple(
            line.strip() for event in events if event.channel == "guards" for line in event.text.splitlines()[1:]
        ),
        programs=_subjects(events, "kernels", Program),
        compile_times=tuple(times.items()),
        events=tuple(events),
    )


def _stories(events: Sequence[Event]) -> list[GraphReport]:
    """Events of one graph follow its capture; a backward that is compiled later is known by the number in its name."""
    graph_reports: list[GraphReport] = []
    by_number: dict[str, GraphReport] = {}
    for event in events:
        if isinstance(event.subject, GraphRecord):
            graph_reports.append(GraphReport(event.subject))
        elif not graph_reports:
            continue
        elif isinstance(event.subject, FellBack):
            graph_reports[-1].why_eager = event.subject
        elif isinstance(event.subject, ForwardBackward):
            graph_reports[-1].halves = event.subject
        elif isinstance(event.subject, Program):
            number = event.subject.name.lstrip("abcdefghijklmnopqrstuvwxyz")
            by_number.setdefault(number, graph_reports[-1]).programs.append(event.subject)
        elif event.channel == "guards" and graph_reports[-1].guards is None and isinstance(event.subject, tuple):
            graph_reports[-1].guards = in_words(event.subject, graph_reports[-1].record.names.translated)
    return graph_reports


def _many(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB" if count >= 1e3 else f"{count} bytes"


def _short(file: str) -> str:
    """A library's file as people know it: below `site-packages`."""
    return file.rpartition(f"site-packages{os.sep}")[2]


def _ranges(lines: Sequence[int], most: int | None = None) -> str:
    """[3, 4, 5, 9] → "lines 3-5, 9"; of more than `most` parts, from the first line to the last."""
    parts = runs(lines)
    if most is not None and len(parts) > most:
        return f"{_many(len(lines), 'line')} of {lines[0]}-{lines[-1]}"
    texts = [str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts]
    return ("line " if len(lines) == 1 else "lines ") + ", ".join(texts)


def _subjects(events: Sequence[Event], channel: str, kind: type) -> tuple[Any, ...]:
    return tuple(event.subject for event in events if event.channel == channel and isinstance(event.subject, kind))
