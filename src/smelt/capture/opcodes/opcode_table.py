"""The table of instruction semantics: canonical name → what it does to the virtual frame.

The modules of `capture/opcodes` fill it; the interpreter reads it.
"""

from collections.abc import Callable
from typing import Any

from smelt.capture.interpreter.interpreter import PUSHED, Frame, Handler
from smelt.capture.model.state import LiveFrame
from smelt.capture.model.values import Value

HANDLERS: dict[str, Handler] = {}


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Enter a function in `HANDLERS`."""

    def enter(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(names, handler))
        return handler

    return enter


def push(frame: Frame, value: Value) -> None:
    """Push an answer, unless a frame was pushed that will leave it there."""
    if value is not PUSHED:
        frame.stack.append(value)


def take(frame: Frame | LiveFrame, count: int) -> list[Any]:
    """Pop `count` values, the deepest first."""
    if count == 0:
        return []
    taken = frame.stack[-count:]
    del frame.stack[-count:]
    return taken
