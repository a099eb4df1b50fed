"""Errors that carry a code, the user's line and a way out.

    SM010: graph break under fullgraph=True at train.py:31: call of print ...
      hint: move the call out of the compiled function

`CODES` is the one list of codes; `docs/errors.md` explains each, and a test holds the two together.
"""

import sys
import warnings
from collections.abc import Mapping
from typing import Any

CODES: dict[str, str] = {
    "SM001": "the thing to compile is not callable",
    "SM002": "unknown backend, or a backend that is not callable",
    "SM003": "unknown or ill-typed option, setting or log channel",
    "SM004": "a model or an argument that smelt.generate cannot use",
    "SM010": "a graph break where fullgraph=True forbids one",
    "SM011": "a frame was compiled more often than cache_size_limit allows",
    "SM012": "a graph was compiled for more combinations of sizes than are kept",
    "SM013": "the code depends on a size that was marked dynamic",
    "SM014": "a debugger or coverage tool does not see the lines of a compiled function",
    "SM015": "a compiled function is slower than eager, and runs in eager",
    "SM016": "a compiled function was called several times, and no part of it was captured",
    "SM020": "a graph could not be compiled",
    "SM021": "a graph violates the invariants of its level",
    "SM022": "a kernel or program violates the invariants of the kernel IR",
    "SM023": "an operator returns another shape or dtype than its meta kernel says",
    "SM030": "generated code could not be built for the target",
    "SM031": "an operator needs libtorch, which library=\"none\" forbids",
    "SM040": "a higher-order derivative through a compiled graph that cannot be recomputed",
    "SM041": "a gradient between two outputs of a compiled graph that cannot be computed separately",
    "SM050": "the file of an artifact is damaged, or is not an artifact",
    "SM051": "something cannot be exported",
    "SM052": "an artifact was called with wrong arguments, or its call failed",
    "SM053": "a file is not trusted, or a key cannot be used",
    "SM060": "an exported function needs Python",
    "SM061": "an exported function has too many states",
    "SM070": "smelt cannot register a device",
    "SM071": "a chip failed",
    "SM072": "an operator has no kernel on a chip",
    "SM080": "this PyTorch is not a version that smelt is tested with, or lacks what smelt uses of it",
    "SM090": "a model cannot be quantized as asked",
    "SM091": "a file of weights is damaged, or has something that smelt cannot read",
}


class SmeltError(RuntimeError):
    """Any error that is smelt's own. `code` names its kind, `where` the user's line, `hint` a fix."""

    def __init__(self, code: str, message: str, *, hint: str = "", where: str = "") -> None:
        if code not in CODES:
            raise KeyError(f"no error code {code!r}")
        text = f"{code}: {message}"
        if where:
            text += f" at {where}"
        if hint:
            text += f"\n  hint: {hint}"
        super().__init__(text)
        self.code = code
        self.message = message
        self.hint = hint
        self.where = where

    def __reduce__(self) -> tuple[Any, ...]:
        """By what it says: a pool of processes hands errors on as pickles."""
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[SmeltError], args: tuple[Any, ...], state: dict[str, Any]) -> SmeltError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class GraphBreakError(SmeltError):
    """Raised for a break under `fullgraph=True`."""


class LibraryError(SmeltError):
    """Raised under `library="none"` for a graph that needs libtorch. `operators` says which, each with a reason; the
    message has `lines`, where in the program they are called, too."""

    def __init__(
        self, graph: str, operators: Mapping[str, str], lines: Mapping[str, str] | None = None, exported: bool = False
    ) -> None:
        at = {name: f", at {line}" for name, line in (lines or {}).items() if line}
        calls = "".join(f"\n    {name}: {reason}{at.get(name, '')}" for name, reason in operators.items())
        forbids, hint = 'which library="none" forbids', 'with library="torch" libtorch computes that'
        if exported:
            forbids, hint = "which an artifact runs without", "compute that part before or after, or by other operators"
        if any("grouped_mm" in name for name in operators):
            hint = 'of a mixture of experts by model.set_experts_implementation("batched_mm")'
        super().__init__(
            "SM031",
            f"{graph} needs libtorch, {forbids}:{calls}",
            hint=f"docs/operators.md lists what kernels cannot compute; {hint}",
        )
        self.graph, self.operators, self.lines = graph, dict(operators), dict(lines or {})


class SpecError(SmeltError):
    """A pass produced a graph, kernel or program outside its level; the text shows the lines round the fault."""


class UnexpectedResult(SmeltError):
    """A library call returned what the kernels after it were not built for. A forward then falls back to eager."""


class ChipFailed(SmeltError):
    """Work on a chip has failed, perhaps an earlier call's. Raised once. Nothing may be retried another way after it,
    because the contents of the chip's memory are unknown."""


class NotEnoughMemory(SmeltError):
    """Too little memory is left to compile anything: PyTorch runs it instead."""


def is_fault(error: Exception, *reasons: type[Exception]) -> bool:
    """Whether an error is the compiler's own fault, where some are reasons to go another way. With `check_specs` faults
    are raised."""
    return isinstance(error, SpecError) or not isinstance(error, (SmeltError, *reasons))


class SmeltWarning(UserWarning):
    """Code was not compiled and runs in eager, or a tool cannot see compiled code. Each warning is given once."""


def warn(text: str) -> None:
    """Warn at the line of the user's program that led here: the innermost that is neither smelt's nor PyTorch's."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("smelt", "torch"):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, SmeltWarning, stacklevel=level)
