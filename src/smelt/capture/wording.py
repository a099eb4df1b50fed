"""Values as text: `str`, `repr`, `format` and f-strings, a class's own `__str__` and `__repr__` included."""

import types
from typing import Any

from smelt.capture.breaks import Unsupported
from smelt.capture.failures import worded
from smelt.capture.interpret import Interpreter
from smelt.capture.values import Constant, Failure, Instance, Object, Value, describe, python_type

_FUNCTIONS: dict[str, Any] = {"__str__": str, "__repr__": repr, "__ascii__": ascii}


def text_of(interp: Interpreter, value: Value, how: str = "__str__") -> Value:
    """`str(value)`, or `repr` or `ascii` by `how`."""
    if isinstance(value, Failure) and how != "__ascii__":
        return worded(interp, value, how)
    if interp.is_plain(value):
        return interp.compute(_FUNCTIONS[how], interp.plain(value))
    if isinstance(value, Object) and type(value.value) is type:
        return interp.compute(_FUNCTIONS[how], interp.outside.pin(value))
    kind = python_type(value)
    if isinstance(value, Object | Instance) and kind is not None and how != "__ascii__":
        found = interp.tree.class_attribute(kind, how)
        if how == "__str__" and found is object.__str__:
            return text_of(interp, value, "__repr__")
        if isinstance(found, types.FunctionType):
            return interp.now(interp.call(interp.outside.fixed(found), [value]))
    raise Unsupported("B002", f"{_FUNCTIONS[how].__name__} of {describe(value)}")


def formatted(interp: Interpreter, value: Value, spec: str) -> Value:
    """`format(value, spec)`."""
    if interp.is_plain(value):
        return interp.compute(format, interp.plain(value), spec)
    kind = python_type(value)
    if isinstance(value, Object | Instance) and kind is not None:
        found = interp.tree.class_attribute(kind, "__format__")
        if isinstance(found, types.FunctionType):
            return interp.now(interp.call(interp.outside.fixed(found), [value, Constant(spec)]))
        if found is object.__format__ and not spec:
            return text_of(interp, value)
    raise Unsupported("B002", f"formatting of {describe(value)}")
