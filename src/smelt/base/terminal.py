"""What a person at a terminal sees: colours where they are wanted, and a line while a compilation takes its time.

    ⠹ smelt: compiling GPT2.forward: fuse, 3.2 s          gone when it is done; nothing is shown within the first second

Nothing is shown where stderr is no terminal, in CI, with SMELT_LOGS (whose lines would meet it), or by
`smelt.config.progress = False`. `rich`, which draws it, is imported when the first second is over.
"""

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import IO

from smelt.base.options import config

PATIENCE = 1.0  # seconds before anything is shown
_COLORS = {"dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def is_colored(stream: IO[str]) -> bool:
    """Whether colours are wanted there: on a terminal that has them, and NO_COLOR is not set (https://no-color.org)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and _is_terminal(stream)


def painted(text: str, color: str, stream: IO[str]) -> str:
    """`text` in a colour, if `stream` is to be coloured."""
    return f"\x1b[{_COLORS[color]}m{text}\x1b[0m" if is_colored(stream) else text


def _is_terminal(stream: IO[str]) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # none at all, or closed
        return False


def is_watched() -> bool:
    """Whether somebody would see progress."""
    if not config.progress or os.environ.get("SMELT_LOGS") or os.environ.get("CI"):
        return False
    return os.environ.get("TERM") != "dumb" and _is_terminal(sys.stderr)


class _Line:
    """The line about one compilation: a thread that wakes up when it has taken a second, and ends with it."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.stages: list[str] = []
        self.began = time.monotonic()
        self._ended = threading.Event()
        self.shown = False
        # It does not keep the line, which ends with whoever compiles, however that ends.
        self._thread = threading.Thread(target=_show, args=(weakref.ref(self), self._ended), daemon=True)
        self._thread.name = "smelt progress"
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        if self.shown:
            self._thread.join()  # what is printed next finds the line gone

    def __del__(self) -> None:
        self._ended.set()

    def text(self) -> str:
        stages = self.stages  # of another thread, which goes on
        stage = f": {stages[-1]}" if stages else ""
        return f"smelt: compiling {self.what}{stage}, {time.monotonic() - self.began:.1f} s"


def _show(line: "Callable[[], _Line | None]", ended: threading.Event) -> None:
    if ended.wait(PATIENCE):
        return
    if (shown_line := line()) is not None:
        shown_line.shown = True
        del shown_line
    try:
        from rich.console import Console
        from rich.live import Live
        from rich.spinner import Spinner
    except ImportError:
        return
    spinner = Spinner("dots", _text(line))
    console = Console(stderr=True)
    # What the program prints goes its own way.
    with Live(spinner, console=console, transient=True, redirect_stdout=False, redirect_stderr=False):
        while not ended.wait(0.12):
            spinner.update(text=_text(line))


def _text(line: "Callable[[], _Line | None]") -> str:
    shown_line = line()
    return "" if shown_line is None else shown_line.text()


class _Current(threading.local):
    line: _Line | None = None


_current = _Current()


def begin(stage: str, what: str) -> bool:
    """A stage begins on this thread; whether it is the first of a compilation, which is passed to `end`."""
    line = _current.line
    if line is None:
        _current.line = _Line(what or stage)
        return True
    line.stages.append(stage)
    return False


def end(is_first: bool) -> None:
    """The stage that began last is over."""
    line = _current.line
    assert line is not None
    if is_first:
        _current.line = None
        line.end()
    else:
        line.stages.pop()
