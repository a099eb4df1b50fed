"""`smelt.explain(fn)(*args)`: run a function once, freshly compiled, and say what the compiler did.

    Graph Count: 2
    Graph Break Count: 1
    …
    What To Change:
      1. use torch.where, or branch on Python values

First the counts that users of `torch.compile` know, then what to change, then one line a graph. Reasons with their
stacks, operators, kernels, saved values and guards are printed on request: `text(full=True)`, `text(guards=True)`.
"""

import html
import os
from collections.abc import Iterator, Sequence
from typing import Any

from smelt.base.events import Event
from smelt.base.fast_dataclass import dataclass
from smelt.explain import compilation_report
from smelt.explain.compilation_report import CompilationReport, GraphReport

__all__ = ["Explanation", "GraphReport", "from_events"]


@dataclass(frozen=True, slots=True, repr=False)
class Explanation(CompilationReport):
    """Everything that one run compiled. Fields are plain lists; `str()` is a summary, `text(full=True)` is everything
    as text, and `to_dict()` as data."""

    def show(self) -> None:
        """Print tables and colours on a terminal; elsewhere the same as `print()`."""
        from smelt.explain.display import show

        show(self)

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        """How `rich` prints it."""
        from smelt.explain.display import parts

        yield from parts(self)

    def __repr__(self) -> str:
        return f"<Explanation: {self.in_short()}; print() for a summary>"

    def to_html(self, path: str | os.PathLike[str], title: str = "explanation") -> None:
        """Write everything as one HTML page that opens from disk: source, graphs, kernels, memory, guards, times."""
        from smelt.explain.report import write

        write(path, self.events, title)

    def _repr_html_(self) -> str:
        """For notebooks: the counts, and everything else folded away."""
        text = html.escape(self.text(full=True))
        return f"<details><summary>smelt: {self.in_short()}</summary><pre>{text}</pre></details>"


def from_events(events: Sequence[Event]) -> Explanation:
    """Put together what a run reported."""
    return compilation_report.from_events(events, Explanation)
