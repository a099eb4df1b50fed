"""Where and why a graph ends before the function does, and who executes the instruction there."""

import sys
from typing import Any

from smelt.base.errors import GraphBreakError
from smelt.base.options import config
from smelt.capture.driver.eager_step import STEPS
from smelt.capture.interpreter.interpreter import Frame
from smelt.capture.model.breaks import COMPILED_LATER, NotFollowed, Unsupported
from smelt.capture.model.bytecode import columns_of
from smelt.capture.model.policy import is_polyfill
from smelt.capture.model.records import BreakRecord
from smelt.capture.model.static import ABSENT, static_lookup
from smelt.capture.model.values import Object

# Breaks where Python is expected to raise: under fullgraph=True the user gets that error, not ours.
EXPECTED_TO_RAISE = frozenset({"B011", "B018", "B019"})

# Builtins that look at the frame that calls them: only a real frame will do.
_NEEDS_FRAME: frozenset[Any] = frozenset({locals, vars, dir, eval, exec, super, breakpoint, sys._getframe})


def break_record(frames: list[Frame], stop: Unsupported) -> BreakRecord:
    """Where the frames stand, and why capture ends there."""
    stack: list[str] = []
    file, line, columns = "", 0, None
    for frame in frames:
        code = frame.info.code
        if stack and is_polyfill(code):
            continue  # no line of the program
        instruction = frame.info.instructions[frame.index if frame is frames[-1] else frame.index - 1]
        file, line, columns = code.co_filename, instruction.line, columns_of(code, instruction)
        stack.append(f"{file}:{line} in {code.co_qualname}")
    return BreakRecord(stop.code, stop.reason, stop.hint, file, line, tuple(stack), columns)


def error_under_fullgraph(record: BreakRecord) -> GraphBreakError | None:
    """Raise the error of a graph break, or return it where Python is expected to raise its own."""
    if record.code == COMPILED_LATER and config.compiled_autograd:
        return None
    error = GraphBreakError(
        "SM010",
        f"graph break under fullgraph=True: {record.code}: {record.reason}",
        where=record.where,
        hint=record.hint,
    )
    if record.code not in EXPECTED_TO_RAISE:
        raise error
    return error


def needs_autograd_nodes(stop: Unsupported | None) -> bool:
    """Whether Python is about to ask for a node of autograd's graph, or to raise because a tensor may not be
    written in place, which PyTorch tells by the node (one of several views, say). So PyTorch makes the nodes."""
    if stop is None:
        return False
    if stop.code == "B015":
        return stop.reason.startswith("Tensor.grad_fn ")
    return stop.code == "B011" and ("inplace" in stop.reason or "in-place" in stop.reason)


def needs_cpython(frame: Frame, stop: Unsupported | None) -> bool:
    """Whether only CPython can execute the instruction that a frame stands at, or knows where its result is dropped."""
    if frame.instruction.name not in STEPS:
        return True
    if isinstance(stop, NotFollowed) and stop.is_droppable:
        load, store = frame.info.instructions[frame.index + 1 : frame.index + 3]
        if (load.name, store.name) != ("LOAD_FAST", "STORE_ATTR"):  # a context manager keeps and closes it
            return True
    called = [value.value for value in frame.stack if isinstance(value, Object)]
    return any(_among(each, _NEEDS_FRAME) or _makes_droppable(each) for each in called)


def _makes_droppable(value: Any) -> bool:
    """Whether this is a class with a `__del__`: where an object of it is dropped only Python knows."""
    return issubclass(type(value), type) and static_lookup(value, "__del__") is not ABSENT


def _among(value: Any, known: frozenset[Any]) -> bool:
    return any(value is each for each in known)  # by identity: hashing might run the program's code
