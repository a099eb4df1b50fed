"""`smelt.explain(fn)(*args)`: run a function once, freshly compiled, and say what the compiler did.

Graph Count: 2
Graph Break Count: 1
Op Count: 3
Break Reasons:
  Break Reason 1: …
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from smelt.base.events import Event, Timing
from smelt.capture import BreakRecord, GraphRecord
from smelt.ir.graph import Traced, format_graph
from smelt.ir.program import Program

OP_CODES = frozenset({"call_function", "call_method", "call_module"})


@dataclass(frozen=True, slots=True)
class Explanation:
    """What one run compiled. Fields are plain lists; `str()` gives the whole story."""

    graphs: tuple[Traced, ...]
    break_reasons: tuple[BreakRecord, ...]
    out_guards: tuple[str, ...]
    programs: tuple[Program, ...]
    compile_times: tuple[tuple[str, float], ...]  # seconds per stage, over all graphs

    @property
    def graph_count(self) -> int:
        return len(self.graphs)

    @property
    def graph_break_count(self) -> int:
        return len(self.break_reasons)

    @property
    def ops_per_graph(self) -> list[list[Any]]:
        """The operators of each graph, in order."""
        return [[node.target for node in graph.graph.nodes if node.op in OP_CODES] for graph in self.graphs]

    @property
    def op_count(self) -> int:
        return sum(len(ops) for ops in self.ops_per_graph)

    @property
    def kernel_count(self) -> int:
        return sum(len(program.kernels) for program in self.programs)

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
        lines.append("Ops per Graph:")
        for number, ops in enumerate(self.ops_per_graph, 1):
            lines += [f"  Ops {number}:", *(f"    {op}" for op in ops)]
        lines.append("Out Guards:")
        for number, guard in enumerate(self.out_guards, 1):
            lines.append(f"  Guard {number}: {guard}")
        lines.append("Kernels:")
        for program in self.programs:
            names = ", ".join(kernel.name for kernel in program.kernels) or "none"
            lines.append(f"  {program.name}: {len(program.kernels)} kernels ({names}), {len(program.steps)} steps")
        lines.append("Compile Times:")
        for stage, seconds in self.compile_times:
            lines.append(f"  {stage}: {seconds * 1000:.1f} ms")
        return "\n".join(lines)

    def graph_text(self) -> str:
        """Every captured graph as text."""
        return "\n".join(format_graph(traced.graph, f"graph {n}") for n, traced in enumerate(self.graphs, 1))


def from_events(events: Sequence[Event]) -> Explanation:
    """Put together what a run reported."""
    times: Counter[str] = Counter()
    for timing in _subjects(events, "timing", Timing):
        times[timing.stage] += timing.seconds
    return Explanation(
        graphs=tuple(record.traced for record in _subjects(events, "graph", GraphRecord)),
        break_reasons=_subjects(events, "breaks", BreakRecord),
        out_guards=tuple(
            line.strip() for event in events if event.channel == "guards" for line in event.text.splitlines()
        ),
        programs=_subjects(events, "kernels", Program),
        compile_times=tuple(times.items()),
    )


def _subjects(events: Sequence[Event], channel: str, kind: type) -> tuple[Any, ...]:
    return tuple(event.subject for event in events if event.channel == channel and isinstance(event.subject, kind))
