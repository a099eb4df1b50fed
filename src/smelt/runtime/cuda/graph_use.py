"""What `smelt.explain` says of a program's CUDA graphs.

    forward0: 18 of 20 calls by 1 CUDA graph; the last other call: it was the first call
    backward0_1: kernel by kernel: a library call draws random numbers
"""

import weakref
from typing import Any, Protocol

from smelt.base.events import emit, wanted


class Runs(Protocol):
    """What this file needs of an `Executable`."""

    @property
    def name(self) -> str: ...
    @property
    def run(self) -> Any: ...


class GraphUse:
    """How a program is launched by now. It does not keep the program."""

    def __init__(self, executable: Runs) -> None:
        self.program = executable.name
        self._executable = weakref.ref(executable)

    def __str__(self) -> str:
        executable = self._executable()
        return f"{self.program}: {'deleted' if executable is None else in_words(executable.run.graphs)}"


def in_words(graphs: dict[str, Any]) -> str:
    """`_native.Runner.graphs` as a sentence."""
    calls, launched, reason = graphs.get("calls", 0), graphs.get("launched", 0), graphs["why_not"]
    if not launched:
        return f"kernel by kernel: {reason or 'it was not called yet'}"
    number = graphs["graphs"]
    plural = "" if number == 1 else "s"
    return f"{launched} of {calls} calls by {number} CUDA graph{plural}; the last other call: {reason}"


def report(executable: Runs) -> None:
    """Emit how a program for a GPU is launched, if anybody wants to know."""
    if wanted("cuda_graphs") and executable.run.graphs["why_not"] != "it uses no GPU":
        use = GraphUse(executable)
        emit("cuda_graphs", lambda: str(use), use)
