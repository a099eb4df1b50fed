"""What capture reports of each graph and each break: the subjects of its events, for `explain` and for tools."""

from smelt.base.data import dataclass
from smelt.ir.graph import Traced


@dataclass(frozen=True, slots=True)
class BreakRecord:
    """One graph break, for people: `stack` lists the user's frames, outermost first."""

    code: str
    reason: str
    hint: str
    file: str
    line: int
    stack: tuple[str, ...]

    @property
    def where(self) -> str:
        """The file and line of the user's code."""
        return f"{self.file}:{self.line}"

    def __str__(self) -> str:
        return f"{self.code}: {self.reason} at {self.where} (hint: {self.hint})"


@dataclass(frozen=True, slots=True)
class GraphRecord:
    """One captured graph, for people and tools."""

    traced: Traced
    function: str
    file: str
    line: int
