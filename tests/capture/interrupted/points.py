"""Every place of the compiler where an exception can arrive from outside, and raising one there.

    places = visited(step)           the bytecodes of smelt, and of what it calls, that `step` goes through
    with injected(place, error):     raises `error` before that bytecode
        step()

A signal handler or an asynchronous exception can raise between two bytecodes. `sys.settrace` shows each of them, and an
exception of the trace function is raised there. Only the compiler's work counts: what the program does, and what runs
on its behalf, is interrupted as it is in eager.
"""

import contextlib
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import smelt

_COMPILER = str(Path(smelt.__file__).parent)
_PROGRAM = str(Path(__file__).parent)


@dataclass(frozen=True, slots=True)
class Place:
    """Before the bytecode at `offset` of a function, when it is reached for the `visit`-th time."""

    file: str
    line: int
    name: str
    offset: int
    visit: int
    delicate: bool = False
    """Whether state changes while the function runs: elsewhere, all bytecodes of a function are one to its callers."""

    def __str__(self) -> str:
        return f"{self.name} ({self.file}:{self.line}) at {self.offset}, visit {self.visit}"


def _key(code: CodeType) -> tuple[str, int, str]:
    return code.co_filename, code.co_firstlineno, code.co_qualname


def _is_ours(frame: FrameType | None) -> bool:
    """Whether a frame runs for the compiler: nearer to it than to any function of the program."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_COMPILER):
            return True
        if file.startswith(_PROGRAM):
            return False
        frame = frame.f_back
    return False


_NAMES = """
    Engine._made_for Engine._planned Engine._capture Engine._load _capture_in_mode _capture Closing._check_guards
    restored without_default_devices without_caller_hooks without_autocast functionalized trace_forward _trace_joint
    Recorder.__torch_dispatch__ TorchDispatchMode.__enter__ TorchDispatchMode.__exit__ TorchFunctionMode.__enter__
    TorchFunctionMode.__exit__ _push_mode _pop_mode no_grad.__enter__ no_grad.__exit__ enable_grad.__enter__
    enable_grad.__exit__ compile_kernels load drive _Run.begin _Run.go_on _Run._follow
    Stop.materialize FrameRecipe.materialize Computation.rebuilt Computation._in_final_ambient Ambient.switch_from
    Ambient.impose interpret _run timed Backwards.__call__ Differentiable._make_once SizedGraph._made_once
    SizedGraph._make CompiledBackwards._made_once write_back copy_back _update_items _write_items _write_slots _extend
    Recipe.registers
"""
DELICATE = frozenset(_NAMES.split())
"""Functions while which state changes: those that every run of the tests tries."""


def visited(
    step: Callable[[], Any], state: Callable[[], Any] | None = None, only: Collection[str] | None = None
) -> list[Place]:
    """The places that `step` goes through: each bytecode when it is first and when it is last reached, in order.

    `state` is asked before each of them, to tell which are delicate; `only`: no others than those of these functions.
    """
    visits: dict[tuple[tuple[str, int, str], int], int] = {}
    delicate: set[tuple[str, int, str]] = set()

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        if only is not None and frame.f_code.co_qualname not in only:
            return None
        if not _is_ours(frame):
            return None
        key, before = _key(frame.f_code), state and state()
        frame.f_trace_opcodes, frame.f_trace_lines = True, False

        def note(frame: FrameType, event: str, argument: Any) -> Any:
            if event == "opcode":
                place = (key, frame.f_lasti)
                visits[place] = visits.get(place, 0) + 1
                if state is not None and key not in delicate and state() != before:
                    delicate.add(key)
            return note

        return note

    sys.settrace(enter)
    try:
        step()
    finally:
        sys.settrace(None)
    return [
        Place(*key, offset, visit, key in delicate)
        for (key, offset), last in visits.items()
        for visit in sorted({1, last})
    ]


@contextlib.contextmanager
def injected(place: Place, error: BaseException) -> Iterator[list[Place]]:
    """Raise `error` at `place`; the list tells whether it was reached."""
    reached: list[Place] = []
    visits = 0

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if code.co_firstlineno != place.line or code.co_qualname != place.name or code.co_filename != place.file:
            return None
        if not _is_ours(frame):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return note

    def note(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal visits
        if event == "opcode" and frame.f_lasti == place.offset and not reached:
            visits += 1
            if visits == place.visit:
                reached.append(place)
                raise error
        return note

    sys.settrace(enter)
    try:
        yield reached
    finally:
        sys.settrace(None)
