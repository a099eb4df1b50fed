"""Which objects of the program a function can come upon when it is called: by names in its code, and what they lead to.

    why_reachable(function, {id(table)})   →   None, or the name by which it may come upon the table

The arguments of the call are not looked at. In doubt everything is reachable: by `eval`, by a module of the program,
from which any name can be taken, by a weak reference.
"""

import builtins
import dis
import gc
import sys
import types
import weakref
from collections.abc import Iterator
from typing import Any

from smelt.capture.model.policy import is_library
from smelt.capture.model.static import is_heap_type, module_of

# What finds objects by other ways than names in code.
_FINDING_BUILTINS = ("eval", "exec", "globals", "locals", "vars", "compile", "__import__", "breakpoint", "input")
_FINDING_MODULES = ("sys", "gc", "inspect", "importlib", "ctypes", "builtins", "threading", "weakref")
_FINDING_TYPES = (weakref.ReferenceType, types.FrameType, types.GeneratorType, types.TracebackType)

_PLAIN = (type(None), bool, int, float, complex, str, bytes, types.CodeType, range)
_MOST = 5000  # objects to look at


class _Anything(Exception):
    """Code that may come upon any object."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def why_reachable(function: Any, wanted: set[int]) -> str | None:
    """By which name a call of the function may come upon an object whose id is `wanted`; None if it cannot."""
    pending: list[tuple[str, Any]] = [(getattr(function, "__qualname__", "it"), function)]
    seen: set[int] = set()
    while pending:
        name, real = pending.pop()
        if id(real) in wanted or len(seen) > _MOST:
            return name
        if id(real) in seen or type(real) in _PLAIN:
            continue
        seen.add(id(real))
        if type(real) is types.FunctionType and id(real.__globals__) in wanted:
            return name  # a global was written: it reads its globals without naming their dict
        try:
            pending.extend(_leads_to(name, real))
        except _Anything as anything:
            return anything.name
    return None


def _leads_to(name: str, real: Any) -> Iterator[tuple[str, Any]]:
    kind = type(real)
    if issubclass(kind, _FINDING_TYPES):
        raise _Anything(name)
    if issubclass(kind, types.ModuleType):
        if not _is_harmless(str(real.__dict__.get("__name__"))):
            raise _Anything(name)
    elif issubclass(kind, types.BuiltinFunctionType) and real.__self__ is builtins:
        if real.__name__ in _FINDING_BUILTINS:
            raise _Anything(name)
    elif issubclass(kind, types.BuiltinFunctionType):
        yield name, real.__self__
    elif issubclass(kind, types.FunctionType):
        yield from _of_function(real)
    elif not issubclass(kind, type) or (is_heap_type(real) and not _of_library(module_of(real))):
        yield from ((name, each) for each in gc.get_referents(real))


def _of_library(module: str) -> bool:
    top = module.partition(".")[0]
    return top == "torch" or top in sys.stdlib_module_names


def _is_harmless(module: str) -> bool:
    return _of_library(module) and module.partition(".")[0] not in _FINDING_MODULES


def _of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    if is_library(function.__code__):
        return
    yield from _named_in(function.__code__, function.__globals__)
    held = (function.__closure__, function.__defaults__, function.__kwdefaults__, function.__dict__)
    yield from ((function.__qualname__, each) for each in held)


def _named_in(code: types.CodeType, names: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What code finds by global names, that of functions inside it included."""
    for instruction in dis.get_instructions(code):
        name = str(instruction.argval)
        if instruction.opname.startswith("IMPORT_NAME") and not _is_harmless(name):
            raise _Anything(f"import {name}")
        if instruction.opname not in ("LOAD_GLOBAL", "LOAD_NAME"):
            continue
        if name in names:
            yield name, names[name]
        elif hasattr(builtins, name):
            yield name, getattr(builtins, name)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _named_in(constant, names)
