"""What the native tests share: where a frame can be entered, and what lies in it there."""

import dis
import sys
import types
from collections.abc import Callable
from typing import Any

from smelt import _native
from smelt._native import NULL, Entry, Guards, Region

ANYTHING = Guards(())

# To mypy a `def` is no FunctionType.
run_from: Any = _native.run_from
new_frame: Any = _native.new_frame


def slot_names(code: types.CodeType) -> list[str]:
    """The variables of localsplus, in order."""
    cells = [name for name in code.co_cellvars if name not in code.co_varnames]
    return [*code.co_varnames, *cells, *code.co_freevars]


def slots_of(function: Any, values: dict[str, Any]) -> list[Any]:
    """Localsplus of a frame past its first instructions, where the variables have these values."""
    code = function.__code__
    closure = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    slots: list[Any] = []
    for name in slot_names(code):
        if name in closure:
            slots.append(closure[name])
        elif name in code.co_cellvars:
            slots.append(types.CellType(values[name]) if name in values else types.CellType())
        else:
            slots.append(values.get(name, NULL))
    return slots


def states(function: Any, *args: Any, **kwargs: Any) -> list[tuple[int, dict[str, Any]]]:
    """The offset and variables at each line that a call executes, the first instruction of the line being next."""
    found: list[tuple[int, dict[str, Any]]] = []
    starts: dict[int | None, int] = {}
    for offset, line in dis.findlinestarts(function.__code__):
        starts.setdefault(line, offset)  # an inlined comprehension comes back to its line with things on the stack

    def trace(frame: types.FrameType, event: str, _: object) -> Any:
        if frame.f_code is not function.__code__:
            return None
        if event == "line" and frame.f_lasti == starts[frame.f_lineno]:
            found.append((frame.f_lasti, dict(frame.f_locals)))
        return trace

    outer = sys.gettrace()
    sys.settrace(trace)
    try:
        function(*args, **kwargs)
    finally:
        sys.settrace(outer)
    return found


def offset_of(function: Any, opname: str, argval: object = None, *, after: bool = False) -> int:
    """Where the first such instruction stands, or the one after it."""
    instructions = [i for i in dis.get_instructions(function) if i.opname != "CACHE"]
    for here, following in zip(instructions, [*instructions[1:], None], strict=True):
        if here.opname == opname and argval in (None, here.argval):
            if not after:
                return here.offset
            assert following is not None
            return following.offset
    raise LookupError(opname)


def always(run: Callable[..., Any]) -> Callable[[Any, Any], Entry]:
    """A `missed` that compiles every frame to `run()`."""
    return lambda function, slots: Entry(ANYTHING, run)


def only(function: Callable[..., Any], entry: Entry) -> Region:
    """A region that compiles one function and leaves the rest to CPython."""
    return Region(lambda f, slots: entry if f is function else None)
