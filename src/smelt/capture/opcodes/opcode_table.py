"""The table of instruction semantics: canonical name → what it does to the virtual frame.

The modules of `capture/opcodes` fill it; the interpreter reads it.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from smelt.capture.interpreter.interpreter import PUSHED, Frame, Handler
from smelt.capture.model.state import LiveFrame
from smelt.capture.model.values import Value

Entry = TypeVar("Entry")


def entering(table: dict[str, Entry]) -> Callable[..., Callable[[Entry], Entry]]:
    """A decorator that enters a function in a table, by the names of instructions."""

    def named(*names: str) -> Callable[[Entry], Entry]:
        def enter(function: Entry) -> Entry:
            table.update(dict.fromkeys(names, function))
            return function

        return enter

    return named


HANDLERS: dict[str, Handler] = {}
handles = entering(HANDLERS)


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
