"""What a graph does besides its results: it writes, draws random numbers, raises, communicates.

aten.all_reduce   →   communicates; an operator that may raise after it raises when it is too late to run Python
"""

from torch import fx

from smelt.capture.tape.memory import Memory


class GraphEffects:
    """The effects of the operators so far."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.writes = False
        self.draws_on: set[str] = set()  # devices whose default generators operators draw from
        self.raises = False  # whether an operator raises for some values
        self.backed_up: set[fx.Node] = set()  # inputs that are written before such an operator
        self.collectives = (0, 0)  # how many are started, and how often one is waited for
        self.communicating: set[fx.Node] = set()  # the nodes that do so
        self.raises_late = ""  # what of this instruction may raise when it is too late to run anything again

    def __bool__(self) -> bool:
        """Whether the graph runs even if nobody wants its results."""
        return self.writes or bool(self.draws_on) or self.raises

    @property
    def communicates(self) -> bool:
        """Whether the graph has a collective so far."""
        return self.collectives != (0, 0)

    def may_raise(self) -> None:
        """The operator that comes now raises for some values: what is written by then may have to be undone."""
        self.raises = True
        self.raises_late = "an operator" if self.communicates else ""
        self.backed_up |= self._memory.written()

    def communicate(self, waits: bool) -> None:
        """The operator that comes now starts a collective, or waits for one."""
        started, waited = self.collectives
        self.collectives = (started + (not waits), waited + waits)
        self.raises = True
        self.backed_up |= self._memory.written()
        self.raises_late = self.raises_late or "a collective"
