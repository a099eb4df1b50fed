"""What is reported when a function is compiled again: which guard failed, where the function stands, and a way out.

x: expected shape (3, 4), got (5, 4)   →   smelt.mark_dynamic(x, 0) before the first call: one version for all sizes
mode: expected 'a', got 'b'            →   keep it constant, or compile a function for each of its values
"""

import re
from collections.abc import Callable

from smelt.base.fast_dataclass import dataclass

_SHAPES = re.compile(r"(?P<name>.*): expected shape \((?P<before>.*)\), got \((?P<now>.*)\)")
_PER_VALUE = "keep it constant, or compile a function for each of its values"
_AS_TENSOR = "keep it constant, or pass it as a tensor"


@dataclass(frozen=True, slots=True)
class RecompileRecord:
    """One more version of a function: `reason` is the guard of the last version that failed, in words."""

    function: str
    reason: str
    file: str
    line: int
    version: int  # how many there are with this one
    resumed: bool = False  # whether it is the part behind a break that was compiled again

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def hint(self) -> str:
        return hint_for(self.reason)

    def __str__(self) -> str:
        return f"{self.function}: {self.reason}"


def hint_for(reason: str) -> str:
    """What to change so that this guard does not fail again."""
    if reason.startswith("stack["):
        return "it is the result of the graph break at this line: fix that"
    shapes = _SHAPES.match(reason)
    if shapes is not None:
        return _sizes(shapes["name"], _numbers(shapes["before"]), _numbers(shapes["now"]))
    for pattern, hint in _HINTS:
        match = re.search(pattern, reason)
        if match is not None:
            return hint(match)
    return "keep what it depends on unchanged"


def _numbers(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _sizes(name: str, before: list[str], now: list[str]) -> str:
    if len(before) != len(now):
        return f"reshape `{name}` to one number of dimensions before the call"
    places = [place for place, (old, new) in enumerate(zip(before, now, strict=True)) if old != new]
    calls = ", ".join(f"smelt.mark_dynamic({name}, {place})" for place in places)
    return f"{calls} before the first call, or dynamic=True: one version for all sizes"


# The first that matches says what to do.
_HINTS: tuple[tuple[str, Callable[[re.Match[str]], str]], ...] = (
    (r"^expected .*\bshape\b",
     lambda match: "control flow depends on these sizes: decide it outside the compiled function"),
    (r"expected no key .*, found one|expected nothing under|expected it unbound",
     lambda match: "it was created after the first call, as optimizer state is: expect one recompile"),
    (r"^replaced operators: ",
     lambda match: "the program replaced an operator of PyTorch, or ended that: do so before the first call"),
    (r"^grad mode: ", lambda match: "call it in one grad mode, or compile one function to train and one for the rest"),
    (r"^(.*): expected dtype (\S+), got", lambda match: f"convert it before the call: {match[1]}.to({match[2]})"),
    (r"^(.*): expected device (\S+), got", lambda match: f"move it before the call: {match[1]}.to({match[2]!r})"),
    (r"^(.*): expected stride ", lambda match: f"use one memory layout for every call: {match[1]}.contiguous()"),
    (r"^(.*): expected requires_grad (\w+)",
     lambda match: f"set requires_grad before the first call, or pass {match[1]}.detach() where none is needed"),
    (r"\.training: expected ",
     lambda match: "train() and eval() are two programs, compiled once each: switch between them as rarely as you can"),
    (r": expected length ", lambda match: "keep its length, or pass its items as one tensor"),
    (r": expected (True|False|None)\b", lambda match: _PER_VALUE),
    (r": expected [-\d.einf]+, got [-\d.einf]+$", lambda match: _AS_TENSOR),
    (r": expected .*, got ", lambda match: _PER_VALUE),
)  # fmt: skip
