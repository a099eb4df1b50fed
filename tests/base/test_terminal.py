"""Progress and colours: on a terminal that is looked at, and nowhere else."""

import io
import os
import pty
import sys
import time
import warnings

import pytest

import smelt
from smelt.base import events, terminal
from smelt.base.errors import SmeltWarning, warn
from tests.processes import start


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def looked_at(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """From now on stderr is a terminal. (No fixture: the tests' own capture comes after those.)"""
    for name in ("CI", "NO_COLOR", "SMELT_LOGS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    found = Screen()
    monkeypatch.setattr(sys, "stderr", found)
    monkeypatch.setattr(terminal, "PATIENCE", 0.02)
    return found


def test_what_takes_long_is_shown_with_its_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = looked_at(monkeypatch)
    with events.timed("capture and compile", "Net.forward"), events.timed("fuse"):
        end = time.monotonic() + 20
        while "fuse" not in screen.getvalue() and time.monotonic() < end:
            time.sleep(0.01)
    assert "smelt: compiling Net.forward: fuse, " in screen.getvalue()
    assert screen.getvalue().rindex("\x1b[2K") > screen.getvalue().rindex("smelt:")  # and wiped away at the end
    assert terminal._current.line is None


def test_what_is_quick_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = looked_at(monkeypatch)
    monkeypatch.setattr(terminal, "PATIENCE", 60.0)
    with events.timed("capture and compile", "f"), events.timed("fuse"):
        pass
    assert screen.getvalue() == ""


QUIET = {"CI": "true", "TERM": "dumb", "SMELT_LOGS": "graph"}


@pytest.mark.parametrize("name", QUIET)
def test_it_is_quiet_by_the_environment(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at(monkeypatch)
    assert terminal.is_watched()
    monkeypatch.setenv(name, QUIET[name])
    assert not terminal.is_watched()


def test_it_is_quiet_by_option_and_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at(monkeypatch)
    smelt.config.progress = False
    try:
        assert not terminal.is_watched()
    finally:
        smelt.config.progress = True
    assert terminal.is_watched()
    for stream in (io.StringIO(), None):
        monkeypatch.setattr(sys, "stderr", stream)
        assert not terminal.is_watched()


def test_an_error_ends_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at(monkeypatch)
    with pytest.raises(ZeroDivisionError), events.timed("capture and compile", "f"), events.timed("fuse"):
        raise ZeroDivisionError
    assert terminal._current.line is None


def test_logs_are_coloured_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = looked_at(monkeypatch)
    monkeypatch.setattr(events, "_printed", frozenset({"guards"}))
    events.emit("guards", "text")
    assert screen.getvalue() == "\x1b[36m[smelt guards]\x1b[0m text\n"
    monkeypatch.setenv("NO_COLOR", "1")
    events.emit("guards", "text")
    assert screen.getvalue().splitlines()[1] == "[smelt guards] text"
    monkeypatch.delenv("NO_COLOR")
    plain = io.StringIO()
    monkeypatch.setattr(sys, "stderr", plain)
    events.emit("guards", "text")
    assert plain.getvalue() == "[smelt guards] text\n"


def test_warnings_are_said_once_and_at_the_program_s_line() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for _ in range(3):
            warn("SM000: the same")
    (only,) = seen
    assert only.category is SmeltWarning and only.filename == __file__


SCRIPT = """
import os, sys, time
os.dup2(os.open(sys.argv[1], os.O_RDWR), 2)
sys.stderr = open(2, "w")
import smelt
from smelt.base import events
assert "rich" not in sys.modules
print("begins", flush=True)
with events.timed("capture and compile", "f"):
    time.sleep(2.5)
print("done")
"""


def test_on_a_real_terminal() -> None:
    ours, theirs = pty.openpty()
    environment = {"CI": None, "NO_COLOR": None, "SMELT_LOGS": None, "TERM": "xterm"}
    process = start(SCRIPT, begin="import torch", arguments=[os.ttyname(theirs)], environment=environment)
    while not process.out.read_text():
        assert process.runs()
    os.close(theirs)
    said = b""
    while True:
        try:
            found = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not found:
            break
        said += found
    os.close(ours)
    done = process.done()
    assert (done.returncode, done.stdout) == (0, "begins\ndone\n"), done.stderr
    assert b"smelt: compiling f" in said
