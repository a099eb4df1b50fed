"""An explanation on a terminal, by `rich`: counts, what to change and where, a table of the graphs.

    rich.print(smelt.explain(model)(x))        or  smelt.explain(model)(x).show(), or  smelt explain train.py:example

`rich` is imported here and only when something is shown. Without a terminal, `show` prints the plain text.
"""

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from smelt.base.terminal import is_colored

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from smelt.explain.advice import Advice
    from smelt.explain.compilation_report import CompilationReport


def show(explanation: "CompilationReport") -> None:
    """Print it: in colours and tables on a terminal, as plain text elsewhere or where there is no `rich`."""
    try:
        from rich.console import Console
    except ImportError:
        print(explanation)
        return
    if not sys.stdout.isatty():
        print(explanation)
        return
    Console(no_color=not is_colored(sys.stdout)).print(explanation)


def parts(explanation: "CompilationReport") -> Iterator[Any]:
    """What `rich` is to print, one thing below the other."""
    from rich.padding import Padding
    from rich.rule import Rule
    from rich.text import Text

    yield Rule("smelt", style="dim", align="left")
    yield _counts(explanation)
    yield Padding(Text("What to change" if explanation.advices else "Nothing to change", style="bold"), (1, 0, 0, 0))
    for number, each in enumerate(explanation.advices, 1):
        yield Padding(_advice(number, each), (0, 0, 0, 2))
    for text in explanation.recompiles_behind_breaks:
        yield Padding(Text.assemble(("Recompiled behind a graph break: ", "bold red"), text), (1, 0, 0, 0))
    for text in dict.fromkeys(explanation.skipped_frames):
        yield Padding(Text.assemble(("Not captured: ", "bold red"), text), (1, 0, 0, 0))
    yield Padding(_graphs(explanation), (1, 0, 0, 0))
    yield Padding(_times(explanation), (1, 0, 0, 0))
    yield Padding(Text("operators, kernels, saved values and guards: --full, or text(full=True)", style="dim"), (1, 0))


def _advice(number: int, each: "Advice") -> "Text":
    """The advice, then each reason with the lines it is for."""
    from rich.text import Text

    rows = [Text.assemble((f"{number}. ", "bold green"), (each.hint, "bold"))]
    for reason in dict.fromkeys(cause.reason for cause in each.causes):
        rows.append(Text(f"   {reason}", style="red"))
        rows += [Text(f"   {cause.text()}", style="cyan") for cause in each.causes if cause.reason == reason]
    return Text("\n").join(rows)


def _counts(explanation: "CompilationReport") -> "Table":
    from rich.table import Table

    table = Table.grid(padding=(0, 3))
    counts = {
        "graphs": explanation.graph_count,
        "breaks": explanation.graph_break_count,
        "recompiles": len(explanation.recompile_reasons),
        "operators": explanation.op_count,
        "kernels": explanation.kernel_count,
    }
    table.add_row(*(f"[bold]{count}[/] [dim]{name}[/]" for name, count in counts.items()))
    return table


def _graphs(explanation: "CompilationReport") -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("graph", "function", "lines"):
        table.add_column(name, overflow="fold")
    for name in ("operators", "kernels", "library calls", "saved"):
        table.add_column(name, justify="right")
    for number, report in enumerate(explanation.graph_reports, 1):
        lines = [f"{os.path.basename(file)}:{_span(covered)}" for file, covered in report.lines.items()]
        shown = ", ".join(lines[:3]) + (" …" if len(lines) > 3 else "")
        counts = (len(report.ops), len(report.kernels), len(report.library_calls))
        saved = f"{report.saved_bytes / 1e6:.2f} MB" if report.saved_bytes else "–"
        table.add_row(str(number), report.record.function, shown, *map(str, counts), saved)
    return table


def _span(lines: list[int]) -> str:
    return str(lines[0]) if lines[0] == lines[-1] else f"{lines[0]}-{lines[-1]}"


def _times(explanation: "CompilationReport") -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("stage")
    table.add_column("time", justify="right")
    table.add_column("")
    ordered = sorted(explanation.compile_times, key=lambda each: -each[1])
    most = max((seconds for _, seconds in ordered), default=0.0) or 1.0
    for stage, seconds in ordered[:8]:
        table.add_row(stage, f"{seconds * 1000:.1f} ms", f"[blue]{'━' * max(1, round(24 * seconds / most))}[/]")
    return table
