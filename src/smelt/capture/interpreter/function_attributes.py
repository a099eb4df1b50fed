"""Attributes of functions that the captured code made: what `def` gave them, and what the program put there since.

inner.__name__ = "outer"; inner.calls = 0     →   Function(overrides={"__name__": …}, members={"calls": …})
"""

import types
from typing import Any

from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.model.breaks import Unsupported
from smelt.capture.model.static import ABSENT, static_lookup
from smelt.capture.model.values import (
    Cell,
    Constant,
    Function,
    Mapping,
    Method,
    Object,
    Partial,
    Sequence,
    Value,
    describe,
    python_type,
)

_NONE = Constant(None)
_ANY = (object,)
_WRITTEN: dict[str, tuple[type, ...]] = {  # by name, what it may be set to
    "__name__": (str,),
    "__qualname__": (str,),
    "__doc__": _ANY,
    "__module__": _ANY,
    "__type_params__": (tuple,),
}
if not hasattr(types.FunctionType, "__type_params__"):  # before 3.12
    del _WRITTEN["__type_params__"]
_OTHER = frozenset(vars(types.FunctionType)) - set(_WRITTEN)


def members_of(function: Function) -> Mapping:
    """The `__dict__` of a function."""
    if function.members is None:
        function.members = Mapping({}, owner=function)
    return function.members


def part_of_callable(value: Method | Partial, name: str) -> Value | None:
    """What a bound method or a `functools.partial` is made of, and the name of a method of C; None for the rest."""
    if isinstance(value, Partial):
        if name == "func":
            return value.function
        if name == "args":
            return Sequence(tuple, value.args)
        return Mapping(value.keywords) if name == "keywords" else None
    if name == "__self__":
        return value.receiver
    if python_type(value) is types.MethodType:
        return value.function if name == "__func__" else None
    real = value.function.value if isinstance(value.function, Object) else None
    return Constant(real.__name__) if name == "__name__" and real is not None else None


def asks_function(value: Method, name: str) -> bool:
    """Whether a bound method of Python has an attribute from its function, as all that its class does not define."""
    own = name != "__doc__" and static_lookup(types.MethodType, name) is not ABSENT
    return python_type(value) is types.MethodType and not own


def function_attribute(interp: Interpreter, function: Function, name: str) -> Value | None:
    """`function.name`; None for what every function has from its class, and for what none has."""
    if name in function.overrides:
        return function.overrides[name]
    if name == "__dict__":
        return members_of(function)
    if name in _READ:
        answer: Value = _READ[name](interp, function)
        return answer
    if function.members is not None and name not in vars(types.FunctionType) and name in function.members.items:
        return interp.externals.force(function.members.items[name])
    return None


def store_in_function(interp: Interpreter, function: Function, name: str, value: Value) -> None:
    """`function.name = value`."""
    if name in _WRITTEN:
        kind = python_type(value)
        if kind is None or not issubclass(kind, _WRITTEN[name]):
            raise Unsupported("B019", f"TypeError: {describe(function)}.{name} = {describe(value)}")
        interp.before_mutation(function)
        function.overrides[name] = value
        return
    if name == "__annotations__" and python_type(value) is dict:
        interp.before_mutation(function)
        function.overrides[name] = value
        return
    if name in _OTHER:
        raise Unsupported("B005", f"{describe(function)}.{name} = …")
    members = members_of(function)
    interp.before_setitem(members, name)
    members.items[name] = value


def delete_from_function(interp: Interpreter, function: Function, name: str) -> bool:
    """`del function.name`; False if there is no such attribute."""
    if name in _WRITTEN or name in _OTHER:
        raise Unsupported("B005", f"del {describe(function)}.{name}")
    members = members_of(function)
    if name not in members.items:
        return False
    interp.before_mutation(members)
    del members.items[name]
    return True


def _module(interp: Interpreter, function: Function) -> Value:
    if "__name__" not in function.globals.names:
        return _NONE
    name = interp.externals.global_name(function.globals, "__name__")
    assert name is not None
    return name


def _doc(interp: Interpreter, function: Function) -> Value:
    code = function.info.code
    cells = tuple(types.CellType() for _ in code.co_freevars)
    return Constant(types.FunctionType(code, {}, None, None, cells).__doc__)  # as this Python finds it in the code


def _annotations(interp: Interpreter, function: Function) -> Value:
    """One dict for all who ask, made of the names and values that `def` left."""
    annotations = function.annotations
    if isinstance(annotations, Sequence):
        items = interp.externals.items(annotations)
        names = [interp.plain(name) for name in items[::2]]
        annotations = Mapping(dict(zip(names, items[1::2], strict=True)))
    function.annotations = Mapping({}) if annotations is None else annotations
    return function.annotations


def _closure(interp: Interpreter, function: Function) -> Value:
    cells: list[Cell] = list(function.closure)
    return Sequence(tuple, cells) if cells else _NONE


_READ: dict[str, Any] = {
    "__name__": lambda interp, function: Constant(function.info.code.co_name),
    "__qualname__": lambda interp, function: Constant(function.qualname),
    "__module__": _module,
    "__doc__": _doc,
    "__annotations__": _annotations,
    "__defaults__": lambda interp, function: function.defaults or _NONE,
    "__kwdefaults__": lambda interp, function: function.keyword_defaults or _NONE,
    "__code__": lambda interp, function: Constant(function.info.code),
    "__closure__": _closure,
    "__globals__": lambda interp, function: interp.externals.value(function.globals.names, function.globals.source),
    "__type_params__": lambda interp, function: Sequence(tuple, []),
}
if not hasattr(types.FunctionType, "__type_params__"):  # before 3.12
    del _READ["__type_params__"]
