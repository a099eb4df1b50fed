"""The line of the user's program that a call comes from: the innermost that is neither smelt's nor PyTorch's.

A backward runs on a thread of autograd's engine, where nobody's code is; it belongs to the line that waits for it.
"""

import sys
import threading
from types import CodeType, FrameType

from smelt.base.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """A place in a program, kept as code and instruction: its number is looked up when somebody asks."""

    code: CodeType
    instruction: int
    in_backward: bool = False

    def __str__(self) -> str:
        text = f"{self.code.co_filename}:{self.number}"
        return f"the backward at {text}" if self.in_backward else text

    @property
    def number(self) -> int:
        for start, end, number in self.code.co_lines():
            if start <= self.instruction < end and number is not None:
                return number
        return self.code.co_firstlineno


def here() -> Line | None:
    """Where the program is."""
    frame = _users(sys._getframe(1))
    if frame is not None:
        return Line(frame.f_code, frame.f_lasti)
    main = threading.main_thread().ident
    waiting = _users(sys._current_frames().get(main)) if main is not None else None
    return None if waiting is None else Line(waiting.f_code, waiting.f_lasti, in_backward=True)


def _users(frame: FrameType | None) -> FrameType | None:
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INTERNAL:
        frame = frame.f_back
    return frame


_INTERNAL = frozenset({"smelt", "torch", "threading"})
