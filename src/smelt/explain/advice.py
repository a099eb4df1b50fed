"""What to change in a program: each advice once, with every line it is for.

    BreakRecord, RecompileRecord, bytes saved   →   Advice("use torch.where, …", (Cause("B003: branch on …", …),))

A line is the user's: where a library's code broke the graph, that is the line which called the library.
"""

import linecache
import os
import re
import sysconfig
from collections.abc import Iterable, Sequence

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.capture import BreakRecord, RecompileRecord

_FRAME = re.compile(r"(?P<file>.*):(?P<line>\d+) in (?P<function>.*)")
_INSTALLED = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), os.path.dirname(torch.__path__[0]))
_MUCH = 1 << 20  # bytes saved for the backward that are worth a word


@dataclass(frozen=True, slots=True)
class Cause:
    """One reason for an advice and the user's line it is for. `code`: that line's text; `inside`: a library's line."""

    reason: str
    file: str
    line: int
    function: str
    code: str = ""
    inside: str = ""

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"

    def text(self) -> str:
        """Its line below the advice."""
        library = f" (inside it: {self.inside})" if self.inside else ""
        return f"{self.where} in {self.function}" + (f": {self.code}" if self.code else "") + library


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to change. Without causes it is about the program as a whole."""

    hint: str
    causes: tuple[Cause, ...] = ()

    def __str__(self) -> str:
        if not self.causes:
            return self.hint
        places = ", ".join(dict.fromkeys(cause.where for cause in self.causes))
        code = ", ".join(f"`{text}`" for text in dict.fromkeys(cause.code for cause in self.causes) if text)
        return f"{places}: {self.hint} ({self.causes[0].reason}" + (f": {code})" if code else ")")

    def lines(self, number: int) -> list[str]:
        """Its part of the printed explanation: the advice, then each reason with the lines it is for."""
        lines = [f"  {number}. {self.hint}"]
        for reason in dict.fromkeys(cause.reason for cause in self.causes):
            lines.append(f"     {reason}")
            lines += [f"       {cause.text()}" for cause in self.causes if cause.reason == reason]
        return lines


def advice(
    breaks: Sequence[BreakRecord], recompiles: Sequence[RecompileRecord], saved_bytes: int
) -> tuple[Advice, ...]:
    """What to change to get fewer breaks, recompiles and bytes."""
    by_hint: dict[str, dict[Cause, None]] = {}
    for broken in breaks:
        by_hint.setdefault(broken.hint, {})[_of_break(broken)] = None  # versions of one function have the same advice
    for recompiled in recompiles:
        if not (recompiled.resumed and breaks):  # fixed with the breaks
            reason = f"{recompiled.function} was recompiled: {recompiled.reason}"
            cause = Cause(reason, recompiled.file, recompiled.line, recompiled.function)
            by_hint.setdefault(recompiled.hint, {})[cause] = None
    advices = [Advice(hint, tuple(_once_per_line(causes))) for hint, causes in by_hint.items()]
    if saved_bytes > _MUCH:
        saved = f"{saved_bytes / 1e6:.1f} MB are saved for the backward"
        advices.append(Advice(f"{saved}: options={{'memory_budget': 0.5}} saves half of them"))
    return tuple(advices)


def is_installed(path: str) -> bool:
    """Whether a file is a library's and not the user's."""
    return path.startswith(_INSTALLED) or "site-packages" in path


def _of_break(record: BreakRecord) -> Cause:
    reason = f"{record.code}: {record.reason}"
    frames = [match for match in map(_FRAME.match, record.stack) if match is not None]
    function = frames[-1]["function"] if frames else ""
    own = [match for match in frames if not is_installed(match["file"])]
    if not is_installed(record.file) or not own:
        return Cause(reason, record.file, record.line, function, record.expression)
    file, line = own[-1]["file"], int(own[-1]["line"])
    inside = f"{record.where}: {record.expression}"
    return Cause(reason, file, line, own[-1]["function"], linecache.getline(file, line).strip(), inside)


def _once_per_line(causes: Iterable[Cause]) -> list[Cause]:
    """Later versions of a function fail on other values of the same variable: the first is enough."""
    first_causes: dict[tuple[str, str, str], Cause] = {}
    for cause in causes:
        first_causes.setdefault((cause.where, cause.code, cause.reason.partition(": expected ")[0]), cause)
    return list(first_causes.values())
