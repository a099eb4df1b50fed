"""What capture reports of each graph and each break: the subjects of its events, for `explain` and for tools."""

import linecache

from smelt.base.fast_dataclass import dataclass
from smelt.capture.model.user_names import UserNames
from smelt.ir.graph import Traced


@dataclass(frozen=True, slots=True)
class BreakRecord:
    """One graph break. `stack` lists the user's frames, outermost first."""

    code: str
    reason: str
    hint: str
    file: str
    line: int
    stack: tuple[str, ...]
    columns: tuple[int, int] | None = None  # of the expression in that line, in bytes of UTF-8; None if it is longer

    @property
    def where(self) -> str:
        """The file and line of the user's code."""
        return f"{self.file}:{self.line}"

    @property
    def expression(self) -> str:
        """The source expression that broke the graph, for example `total > 0`; empty if it is unknown."""
        text = linecache.getline(self.file, self.line)
        if self.columns is None:
            return text.strip()
        start, end = self.columns
        return text.encode()[start:end].decode(errors="replace").strip()

    def __str__(self) -> str:
        return f"{self.code}: {self.reason} at {self.where} (hint: {self.hint})"


@dataclass(frozen=True, slots=True)
class GraphRecord:
    """One captured graph, for people and tools. `called_from`: the lines of callers that led to its operators."""

    traced: Traced
    names: UserNames
    file: str
    line: int
    called_from: frozenset[tuple[str, int]] = frozenset()

    @property
    def function(self) -> str:
        """The function it was captured from, by the user's name."""
        return self.names.function
