"""What programs ask of functions: their signature, and of which kind they are.

"scaler" in inspect.signature(opt.step).parameters   →   Constant(False), while `step` is that function
"""

import inspect
import types
from collections.abc import Callable
from typing import Any

from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.model.breaks import Unsupported
from smelt.capture.model.source import Source
from smelt.capture.model.values import (
    Constant,
    Function,
    Mapping,
    Method,
    Object,
    Partial,
    Value,
    is_constant,
    python_type,
)

_SAYS_OTHERWISE = ("__signature__", "__text_signature__", "_partialmethod", "__partialmethod__")


def _signature(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`inspect.signature` of a function or method; one that wraps another has that one's."""
    if kwargs or len(args) != 1:
        raise Unsupported("B002", "inspect.signature")
    bound = isinstance(args[0], Method)
    function = args[0].function if isinstance(args[0], Method) else args[0]
    while isinstance(function, Function) and function.members is not None:
        if any(name in function.members.items for name in _SAYS_OTHERWISE):
            raise Unsupported("B002", "inspect.signature")
        if "__wrapped__" not in function.members.items:
            break
        function = interp.externals.force(function.members.items["__wrapped__"])
    signature = _of_new(interp, function) if isinstance(function, Function) else _of_real(interp, function)
    return interp.externals.fixed(
        signature.replace(parameters=list(signature.parameters.values())[1:]) if bound else signature
    )


def _of_real(interp: Interpreter, function: Value) -> inspect.Signature:
    if not isinstance(function, Object) or type(function.value) is not types.FunctionType or function.source is None:
        raise Unsupported("B002", "inspect.signature")
    real, source = interp.externals.guard_identity(function), function.source
    while "__wrapped__" in _checked_names(source, real):
        real, source = real.__wrapped__, source.attribute("__wrapped__")
        source.check(("is", real))
        if type(real) is not types.FunctionType:
            raise Unsupported("B002", "inspect.signature")
    for name in ("__code__", "__defaults__", "__kwdefaults__", "__annotations__"):
        source.attribute(name).check(("is", getattr(real, name)))
    return inspect.signature(real)


def _checked_names(source: Source, real: Any) -> tuple[str, ...]:
    """What a function's `__dict__` holds: nothing that says what its signature is, but perhaps what it wraps."""
    names = tuple(real.__dict__)
    source.instance_dict().check(("keys", names))
    if any(name in names for name in _SAYS_OTHERWISE):
        raise Unsupported("B002", "inspect.signature")
    return names


def _of_new(interp: Interpreter, function: Function) -> inspect.Signature:
    """The signature of a function that the captured code made, if it follows from its code and plain defaults."""
    defaults = () if function.defaults is None else interp.plain(function.defaults)
    named = {} if function.keyword_defaults is None else interp.plain(function.keyword_defaults)
    noted = function.overrides.get("__annotations__", function.annotations)
    is_noted = noted is not None and not (isinstance(noted, Mapping) and not noted.items)
    if is_noted or not all(map(is_constant, (*defaults, *named.values()))):
        raise Unsupported("B002", "inspect.signature")
    code = function.info.code
    alike = types.FunctionType(code, {}, None, defaults, tuple(types.CellType() for _ in code.co_freevars))
    alike.__kwdefaults__ = named
    return inspect.signature(alike)


def _is_class(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    kind = python_type(args[0]) if len(args) == 1 and not kwargs else None
    if kind is None:
        raise Unsupported("B002", "inspect.isclass")
    return Constant(issubclass(kind, type))


def _is_generator_function(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    function = args[0] if len(args) == 1 and not kwargs else None
    while isinstance(function, Method | Partial):
        function = function.function
    if isinstance(function, Function):
        return Constant(bool(function.info.code.co_flags & inspect.CO_GENERATOR))
    if not isinstance(function, Object) or type(function.value) is not types.FunctionType:
        raise Unsupported("B002", "inspect.isgeneratorfunction")
    return Constant(inspect.isgeneratorfunction(interp.externals.guard_identity(function)))


FUNCTION_CALLS: dict[Any, Callable[[Interpreter, list[Value], dict[str, Value]], Value]] = {
    inspect.signature: _signature,
    inspect.isclass: _is_class,
    inspect.isgeneratorfunction: _is_generator_function,
}
