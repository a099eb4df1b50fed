"""Tracebacks that show the user's frames and none of smelt's."""

import os
import types

from smelt import _native
from smelt.base.paths import PACKAGE
from smelt.capture.model.state import LiveFrame

_ON_BEHALF = tuple(  # they raise some of Python's own errors for the user
    os.path.join(PACKAGE, "capture", *path)
    for path in (("driver", "eager_step.py"), ("model", "paused_iterators.py"), ("polyfills", "library.py"))
)


_AGAIN = ("RERAISE", "RAISE_VARARGS")  # may raise what has been through the frame already
_MISSING = object()


def is_own(code: types.CodeType) -> bool:
    """Whether the code is smelt's."""
    return code.co_filename.startswith(PACKAGE)


def without_smelt(trace: types.TracebackType | None) -> types.TracebackType | None:
    """The same traceback, entries in smelt's own files left out; all of it if smelt itself is at fault."""
    kept: list[types.TracebackType] = []
    whole, innermost = trace, ""
    while trace is not None:
        if not is_own(trace.tb_frame.f_code):
            kept.append(trace)
        innermost = trace.tb_frame.f_code.co_filename
        trace = trace.tb_next
    if innermost.startswith(PACKAGE) and innermost not in _ON_BEHALF:
        return whole
    result: types.TracebackType | None = None
    for entry in reversed(kept):
        line: int | None = entry.tb_lineno  # None where an interrupt met an instruction without a line
        result = types.TracebackType(result, entry.tb_frame, entry.tb_lasti, -1 if line is None else line)
    return result


def entered_by(frame: LiveFrame, trace: types.TracebackType | None) -> types.TracebackType | None:
    """The traceback with an entry for a virtual frame in front, unless the frame has left its own there."""
    instruction = frame.running
    if is_own(frame.info.code):
        return trace
    first = trace.tb_frame.f_code if trace is not None else None
    if first is frame.info.shims.get(instruction.line, _MISSING):
        return trace
    if instruction.name in _AGAIN and (first is frame.info.code or first in frame.info.shims.values()):
        return trace  # of a call of itself it would be a frame of its own
    entry = _native.new_frame(frame.function, instruction.offset)
    return types.TracebackType(trace, entry, instruction.offset, instruction.line)
