"""The table of instruction semantics: canonical name → what it does to the virtual frame.

`instructions`, `exception_instructions` and `match_instructions` fill it; the interpreter reads it.
"""

from collections.abc import Callable

from smelt.capture.interpreter.interpreter import PUSHED, Frame, Handler
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


def take(frame: Frame, count: int) -> list[Value]:
    """Pop `count` values, the deepest first."""
    if count == 0:
        return []
    taken = frame.stack[-count:]
    del frame.stack[-count:]
    return taken
