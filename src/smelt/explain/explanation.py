"""`smelt.explain(fn)(*args)`: run a function once, freshly compiled, and say what the compiler did.

Graph Count: 2
Graph Break Count: 1
Op Count: 3
Break Reasons:
  Break Reason 1: …

First the fields and the layout that users of `torch.compile` know, then graph by graph: the lines it covers, its
kernels and library calls, what is saved for the backward and why, what must stay as it is; at the end what to change.
"""

import html
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Any

from smelt.autograd.partition import Halves
from smelt.base.data import dataclass
from smelt.base.events import Event, Timing
from smelt.base.varying import typical
from smelt.capture import BreakRecord, GraphRecord, RecompileRecord
from smelt.explain.guard_words import GuardWords, in_words
from smelt.ir.graph import Traced, format_graph
from smelt.ir.joint import Saved
from smelt.ir.program import Library, Program

OP_CODES = frozenset({"call_function", "call_method", "call_module"})
PLACE = re.compile(r'File "(?P<file>.*)", line (?P<line>\d+), in (?P<function>.*)')


@dataclass(slots=True)
class GraphStory:
    """All that became of one captured graph."""

    record: GraphRecord
    halves: Halves | None = None  # the pure graphs, of a graph that is trained through
    programs: list[Program] = field(default_factory=list)
    guards: GuardWords | None = None

    @property
    def lines(self) -> dict[str, list[int]]:
        """The lines of each file that the graph computes."""
        found: dict[str, set[int]] = {}
        for node in self.record.traced.graph.nodes:
            match = PLACE.match(node.stack_trace or "")
            if match is not None:
                found.setdefault(match["file"], set()).add(int(match["line"]))
        return {file: sorted(lines) for file, lines in found.items()}

    @property
    def ops(self) -> list[Any]:
        """The functions and methods it calls, in order."""
        return [node.target for node in self.record.traced.graph.nodes if node.op in OP_CODES]

    @property
    def kernels(self) -> list[str]:
        """Its kernels, each with the program it belongs to."""
        return [f"{program.name}: {kernel.name}" for program in self.programs for kernel in program.kernels]

    @property
    def library_calls(self) -> list[str]:
        """Those that every call makes; not those that are there to raise."""
        steps = [(program, step) for program in self.programs for step in program.steps if isinstance(step, Library)]
        return [f"{program.name}: {step.op}" for program, step in steps if step.unless is None]

    @property
    def saved(self) -> tuple[Saved, ...]:
        """What the forward keeps for the backward."""
        return () if self.halves is None else self.halves.plan.saved

    @property
    def saved_bytes(self) -> int:
        """Bytes that the backward keeps alive beside the graph's own inputs."""
        return sum(typical(saved.spec.nbytes) for saved in self.saved if saved.source is None)

    def text(self, number: int) -> list[str]:
        """Its part of the printed explanation."""
        lines = [f"  Graph {number}: {self.record.function}, {len(self.ops)} ops"]
        lines += [f"    covers {file}, {_ranges(covered)}" for file, covered in self.lines.items()]
        lines.append(f"    {len(self.kernels)} kernels, {len(self.library_calls)} library calls")
        lines += [f"      {name}" for name in (*self.kernels, *self.library_calls)]
        if self.halves is not None:
            lines.append(f"    saves {self.saved_bytes} bytes for the backward beside its inputs")
            lines += [f"      {saved.name}: {saved.spec.nbytes} bytes, {saved.why}" for saved in self._largest()]
        if self.guards is not None:
            lines += ["    is used again while", *(f"      {line}" for line in self.guards.lines())]
        return lines

    def _largest(self) -> list[Saved]:
        computed = [saved for saved in self.saved if saved.source is None]
        return sorted(computed, key=lambda saved: -typical(saved.spec.nbytes))[:8]

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        return {
            "function": self.record.function,
            "file": self.record.file,
            "lines": self.lines,
            "ops": [str(op) for op in self.ops],
            "kernels": self.kernels,
            "library_calls": self.library_calls,
            "saved_bytes": self.saved_bytes,
            "saved": [
                {
                    "name": each.name,
                    "bytes": typical(each.spec.nbytes),
                    "input": each.source is not None,
                    "why": each.why,
                }
                for each in self.saved
            ],
            "guards": [] if self.guards is None else self.guards.lines(),
        }


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """What one run compiled. Fields are plain lists; `str()` gives the whole story, `to_dict()` the same as data."""

    stories: tuple[GraphStory, ...]
    break_reasons: tuple[BreakRecord, ...]
    recompile_reasons: tuple[RecompileRecord, ...]
    left_to_python: tuple[str, ...]  # frames that nothing was captured of, and why
    out_guards: tuple[str, ...]
    programs: tuple[Program, ...]
    compile_times: tuple[tuple[str, float], ...]  # seconds per stage, those within it apart, over all graphs
    events: tuple[Event, ...] = field(default=(), repr=False)

    @property
    def graphs(self) -> tuple[Traced, ...]:
        """The captured graphs, at the level of torch."""
        return tuple(story.record.traced for story in self.stories)

    @property
    def graph_count(self) -> int:
        """How many graphs were captured."""
        return len(self.stories)

    @property
    def graph_break_count(self) -> int:
        """How many times a graph ended early."""
        return len(self.break_reasons)

    @property
    def ops_per_graph(self) -> list[list[Any]]:
        """The operators of each graph, in order."""
        return [story.ops for story in self.stories]

    @property
    def op_count(self) -> int:
        """The operators of all graphs."""
        return sum(len(ops) for ops in self.ops_per_graph)

    @property
    def kernel_count(self) -> int:
        """The kernels of all programs."""
        return sum(len(program.kernels) for program in self.programs)

    @property
    def advice(self) -> list[str]:
        """What to change to get fewer breaks, recompiles and bytes."""
        found = [f"{record.where}: {record.hint} ({record.reason})" for record in self.break_reasons]
        found += [f"{record.where}: {record.hint} ({record.function} was compiled again: {record.reason})"
                  for record in self.recompile_reasons
                  if not (record.resumed and self.break_reasons)]  # those go with the breaks  # fmt: skip
        saved = sum(story.saved_bytes for story in self.stories)
        if saved > 1 << 20:
            size = f"{saved / 1e6:.1f} MB"
            found.append(f"{size} are saved for the backward: options={{'memory_budget': 0.5}} keeps half of them")
        return list(dict.fromkeys(found))  # versions of one function say the same

    def __str__(self) -> str:
        lines = [
            f"Graph Count: {self.graph_count}",
            f"Graph Break Count: {self.graph_break_count}",
            f"Op Count: {self.op_count}",
            "Break Reasons:",
        ]
        for number, record in enumerate(self.break_reasons, 1):
            lines += [
                f"  Break Reason {number}:",
                f"    Reason: {record.code}: {record.reason}",
                f"    Hint: {record.hint}",
            ]
            lines += ["    User Stack:", *(f"      {frame}" for frame in record.stack)]
        lines += self._changes_text()
        lines.append("Ops per Graph:")
        for number, ops in enumerate(self.ops_per_graph, 1):
            lines += [f"  Ops {number}:", *(f"    {op}" for op in ops)]
        lines.append("Out Guards:")
        for number, guard in enumerate(self.out_guards, 1):
            lines.append(f"  Guard {number}: {guard}")
        lines.append("Graphs:")
        for number, story in enumerate(self.stories, 1):
            lines += story.text(number)
        lines.append("Compile Times:")
        for stage, seconds in self.compile_times:
            lines.append(f"  {stage}: {seconds * 1000:.1f} ms")
        lines += ["What To Change:", *(f"  {line}" for line in self.advice or ["nothing"])]
        return "\n".join(lines)

    def _changes_text(self) -> list[str]:
        """What users of `torch.compile` do not know, and is there only when there is something to say."""
        lines = ["Recompile Reasons:"] if self.recompile_reasons else []
        for number, record in enumerate(self.recompile_reasons, 1):
            lines += [
                f"  Recompile Reason {number}:",
                f"    Reason: {record.reason}",
                f"    Hint: {record.hint}",
                f"    Function: {record.where} in {record.function}, version {record.version}",
            ]
        if self.left_to_python:
            lines += ["Left To Python:", *(f"  {text}" for text in self.left_to_python)]
        return lines

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
            "left_to_python": list(self.left_to_python),
            "graphs": [story.to_dict() for story in self.stories],
            "out_guards": list(self.out_guards),
            "compile_times": dict(self.compile_times),
            "advice": self.advice,
        }  # fmt: skip

    def show(self) -> None:
        """Print it for people: in tables and colours on a terminal, else as `print()` does."""
        from smelt.explain.display import show

        show(self)

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        """How `rich` prints it."""
        from smelt.explain.display import parts

        yield from parts(self)

    def __repr__(self) -> str:
        return f"<Explanation: {self._in_short()}; print() tells all>"

    def _in_short(self) -> str:
        counts = ((self.graph_count, "graph"), (self.graph_break_count, "break"), (self.kernel_count, "kernel"))
        return ", ".join(f"{count} {word}{'' if count == 1 else 's'}" for count, word in counts)

    def to_html(self, path: str | os.PathLike[str], title: str = "explanation") -> None:
        """Write all of it as one page that opens from disk: source, graphs, kernels, memory, guards, times."""
        from smelt.explain.report import write

        write(path, self.events, title)

    def _repr_html_(self) -> str:
        """For notebooks: the counts, and the whole story folded away."""
        text = html.escape(str(self))
        return f"<details><summary>smelt: {self._in_short()}</summary><pre>{text}</pre></details>"

    def graph_text(self) -> str:
        """Every captured graph as text."""
        return "\n".join(format_graph(traced.graph, f"graph {n}") for n, traced in enumerate(self.graphs, 1))


def from_events(events: Sequence[Event]) -> Explanation:
    """Put together what a run reported."""
    times: Counter[str] = Counter()
    for timing in _subjects(events, "timing", Timing):
        times[timing.stage] += timing.own
    return Explanation(
        stories=tuple(_stories(events)),
        break_reasons=_subjects(events, "breaks", BreakRecord),
        recompile_reasons=_subjects(events, "recompiles", RecompileRecord),
        left_to_python=tuple(
            event.text for event in events if event.channel == "breaks" and not isinstance(event.subject, BreakRecord)
        ),
        out_guards=tuple(
            line.strip() for event in events if event.channel == "guards" for line in event.text.splitlines()[1:]
        ),
        programs=_subjects(events, "kernels", Program),
        compile_times=tuple(times.items()),
        events=tuple(events),
    )


def _stories(events: Sequence[Event]) -> list[GraphStory]:
    """Events of one graph follow its capture; a backward that is compiled later is known by the number in its name."""
    stories: list[GraphStory] = []
    by_number: dict[str, GraphStory] = {}
    for event in events:
        if isinstance(event.subject, GraphRecord):
            stories.append(GraphStory(event.subject))
        elif not stories:
            continue
        elif isinstance(event.subject, Halves):
            stories[-1].halves = event.subject
        elif isinstance(event.subject, Program):
            number = event.subject.name.lstrip("abcdefghijklmnopqrstuvwxyz")
            by_number.setdefault(number, stories[-1]).programs.append(event.subject)
        elif event.channel == "guards" and stories[-1].guards is None and isinstance(event.subject, tuple):
            stories[-1].guards = in_words(event.subject)
    return stories


def _ranges(lines: Sequence[int]) -> str:
    """[3, 4, 5, 9] → "lines 3-5, 9"."""
    parts: list[list[int]] = []
    for line in lines:
        if parts and line == parts[-1][-1] + 1:
            parts[-1].append(line)
        else:
            parts.append([line])
    texts = [str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts]
    return ("line " if len(lines) == 1 else "lines ") + ", ".join(texts)


def _subjects(events: Sequence[Event], channel: str, kind: type) -> tuple[Any, ...]:
    return tuple(event.subject for event in events if event.channel == channel and isinstance(event.subject, kind))
