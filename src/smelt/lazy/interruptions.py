"""Ctrl-C while something runs that must not be left half done: it arrives at the end.

    with uninterrupted():
        …              a KeyboardInterrupt is raised after this, unless the user insists

Python runs handlers of signals on the main thread alone, between two instructions. Other threads have nothing to fear.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Put a SIGINT off to the end; a second one is let through at once."""
    before = signal.getsignal(signal.SIGINT)
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[Any] = []

    def note(number: int, frame: Any) -> None:
        came.append(frame)
        if len(came) > 1:
            before(number, frame)

    try:
        signal.signal(signal.SIGINT, note)
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if len(came) == 1:
            before(signal.SIGINT, came[0])
