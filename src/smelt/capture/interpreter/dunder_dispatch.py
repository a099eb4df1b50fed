"""Operators that classes define for themselves, asked in the order in which Python asks: left, right, subclass first.

Vector(1) + 2   →   Vector.__add__(v, 2)        2 + Vector(1)   →   Vector.__radd__(v, 2)
"""

import operator
import types
from typing import Any

from smelt.capture.interpreter.externals import BUILTIN_BASES
from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.interpreter.special_methods import checked_index, name_in_errors
from smelt.capture.model.breaks import Raised, Unsupported
from smelt.capture.model.bytecode import BINARY_METHODS
from smelt.capture.model.static import ABSENT, is_a, static_lookup
from smelt.capture.model.values import (
    Array,
    Constant,
    ExceptionValue,
    Instance,
    Mapping,
    Object,
    Sequence,
    Set,
    Value,
    Wrapper,
    contents_kind,
    describe,
    python_type,
)

COMPARISONS = {"<": "__lt__", "<=": "__le__", "==": "__eq__", "!=": "__ne__", ">": "__gt__", ">=": "__ge__"}
REFLECTED = {"<": ">", "<=": ">=", "==": "==", "!=": "!=", ">": "<", ">=": "<="}
_BY_IDENTITY = (object.__eq__, type.__eq__, BaseException.__eq__)


def operator_methods(symbol: str) -> tuple[str, ...]:
    """The special methods by which classes define `symbol`."""
    plain = symbol.removesuffix("=")
    forms = ("", "r") if plain == symbol else ("", "r", "i")
    return tuple(f"__{form}{BINARY_METHODS[plain]}__" for form in forms)


def held_operands(interp: Interpreter, methods: tuple[str, ...], *operands: Value) -> list[Value] | None:
    """What objects of classes of lists, sets, numbers … hold, in their place: Python's operators look at nothing else
    where the class has none of the `methods` itself. None if no operand is such an object."""
    held = [_held(interp, value, methods) for value in operands]
    return held if any(one is not other for one, other in zip(held, operands, strict=True)) else None


def _held(interp: Interpreter, value: Value, methods: tuple[str, ...]) -> Value:
    if isinstance(value, Object) and is_a(value.value, BUILTIN_BASES):
        contents = interp.externals.contents(value)
    else:
        contents = value.contents if isinstance(value, Instance) else None
    base, kind = contents_kind(contents), python_type(value)
    if contents is None or base is None or kind is None:
        return value
    plain = all(_lookup(interp, kind, name) is static_lookup(base, name) for name in methods)
    return contents if plain else value


def overloaded_binary(interp: Interpreter, symbol: str, left: Value, right: Value) -> Value:
    """`left symbol right` where at least one side's class is written in Python."""
    refused = Unsupported("B008", f"{symbol} of {describe(left)} and {describe(right)}")
    kind, other = python_type(left), python_type(right)
    if kind is None or other is None:
        raise refused
    if isinstance(left, Array | Wrapper) or isinstance(right, Array | Wrapper):
        methods = operator_methods(symbol)
        return _by_library(interp, getattr(operator, methods[2 if len(methods) > 2 else 0]), left, right)
    plain = symbol.removesuffix("=")
    name, reflected = f"__{BINARY_METHODS[plain]}__", f"__r{BINARY_METHODS[plain]}__"
    if plain != symbol and _is_python(left):
        answer = _ask(interp, left, kind, f"__i{BINARY_METHODS[plain]}__", right, refused)
        if answer is not None:
            return answer
    turns = [(left, kind, name, right), (right, other, reflected, left)]
    if kind is other:
        turns.pop()
    elif _comes_first(interp, other, kind, reflected):
        turns.reverse()
    for receiver, its_kind, method, argument in turns:
        if not _is_python(receiver):
            if not _stands_aside(receiver, plain, method, argument):
                raise refused
            continue
        answer = _ask(interp, receiver, its_kind, method, argument, refused)
        if answer is not None:
            return answer
    if _puts_it_otherwise(left, plain) or (plain == "*" and _puts_it_otherwise(right, plain)):
        raise refused
    sign = "** or pow()" if symbol == "**" else symbol
    raise declined(interp, f"unsupported operand type(s) for {sign}: {{}} and {{}}", kind, other)


def declined(interp: Interpreter, text: str, *kinds: type) -> Raised:
    """The TypeError of an operator that the classes of its operands all decline."""
    for kind in kinds:
        interp.tree.class_name(kind)
    return Raised.of(TypeError(text.format(*[repr(name_in_errors(kind)) for kind in kinds])))


def _puts_it_otherwise(value: Value, symbol: str) -> bool:
    """Whether `+` or `*` of a sequence words its own error."""
    of_sequence = isinstance(value, Sequence) or (isinstance(value, Constant) and is_a(value.value, str | bytes))
    return of_sequence and symbol in ("+", "*", "%")


def _comes_first(interp: Interpreter, other: type, kind: type, reflected: str) -> bool:
    """Whether the right side is asked first: its class is a subclass of the left one's, with a method of its own."""
    if not interp.tree.has_base(other, kind):
        return False
    return _lookup(interp, other, reflected) is not _lookup(interp, kind, reflected)


def overloaded_unary(interp: Interpreter, name: str, value: Value) -> Value:
    """`-value` and the like for a class of the program."""
    method = {"UNARY_NEGATIVE": "__neg__", "UNARY_POSITIVE": "__pos__", "UNARY_INVERT": "__invert__"}[name]
    refused = Unsupported("B008", f"{method} of {describe(value)}")
    kind = python_type(value)
    if isinstance(value, Array | Wrapper):
        return _by_library(interp, getattr(operator, method), value)
    function = ABSENT if kind is None or not _is_python(value) else _lookup(interp, kind, method)
    if not isinstance(function, types.FunctionType):
        raise refused
    return interp.now(interp.call(interp.externals.fixed(function), [value]))


def overloaded_compare(interp: Interpreter, symbol: str, left: Value, right: Value) -> Value | None:
    """`left symbol right` by the classes' own methods; None if both sides compare by identity."""
    kind, other = python_type(left), python_type(right)
    refused = Unsupported("B008", f"{symbol} of {describe(left)} and {describe(right)}")
    if kind is None or other is None:
        raise refused
    if isinstance(left, Array | Wrapper) or isinstance(right, Array | Wrapper):
        return _by_library(interp, getattr(operator, COMPARISONS[symbol]), left, right)
    mirrored = REFLECTED[symbol]
    turns = [(left, kind, symbol, right), (right, other, mirrored, left)]
    if kind is not other and interp.tree.has_base(other, kind):
        turns.reverse()
    for receiver, its_kind, sign, argument in turns:
        answer = _ask_comparison(interp, receiver, its_kind, sign, argument, refused)
        if answer is not None:
            return answer
    if symbol in ("==", "!="):
        return None
    raise declined(interp, f"'{symbol}' not supported between instances of {{}} and {{}}", kind, other)


def _by_library(interp: Interpreter, function: Any, *values: Value) -> Value:
    """An operator of NumPy's arrays, or of a class of tensors that the captured code has made."""
    if any(isinstance(value, Wrapper) for value in values):
        return interp.tensor_call("call_function", function, list(values))
    assert interp.array_call is not None
    return interp.array_call(interp, function, list(values))


def index_of(interp: Interpreter, value: Value) -> Value:
    """What a class's `__index__` makes of the value, the value itself if it has none."""
    kind = python_type(value)
    if _is_python(value) and kind is not None:
        method = interp.tree.class_attribute(kind, "__index__")
        if isinstance(method, types.FunctionType):
            return checked_index(value, interp.now(interp.call(interp.externals.fixed(method), [value])))
        if method is int.__index__:
            return _held(interp, value, ("__index__",))
    return value


def _is_python(value: Value) -> bool:
    return isinstance(value, Instance | Object) and not isinstance(value, ExceptionValue)


def _stands_aside(value: Value, symbol: str, method: str, argument: Value) -> bool:
    """Whether a builtin's operator leaves operands of other classes alone (`%` of a string does not)."""
    if isinstance(value, Sequence):
        return True
    kind, other = python_type(value), python_type(argument)
    if isinstance(value, Set | Mapping) and other is not None:
        return not issubclass(other, (set, frozenset) if isinstance(value, Set) else dict)
    if kind is not None and static_lookup(kind, method) is ABSENT:
        return True
    return isinstance(value, Constant) and not (is_a(value.value, str | bytes) and symbol == "%")


def _lookup(interp: Interpreter, kind: type, name: str) -> Any:
    return interp.tree.class_attribute(kind, name)


def _ask(
    interp: Interpreter, receiver: Value, kind: type, name: str, argument: Value, refused: Unsupported
) -> Value | None:
    """One method's answer; None if there is no such method or it answers NotImplemented."""
    method = _lookup(interp, kind, name)
    if method is ABSENT:
        return None
    if not isinstance(method, types.FunctionType):
        raise refused
    answer = interp.now(interp.call(interp.externals.fixed(method), [receiver, argument]))
    return None if isinstance(answer, Constant) and answer.value is NotImplemented else answer


def _ask_comparison(
    interp: Interpreter, receiver: Value, kind: type, symbol: str, argument: Value, refused: Unsupported
) -> Value | None:
    method = _lookup(interp, kind, COMPARISONS[symbol])
    if isinstance(method, types.FunctionType):
        return _ask(interp, receiver, kind, COMPARISONS[symbol], argument, refused)
    if symbol == "!=" and method is object.__ne__:
        if not isinstance(_lookup(interp, kind, "__eq__"), types.FunctionType):
            return None
        answer = _ask(interp, receiver, kind, "__eq__", argument, refused)
        if answer is None:
            return None
        if not isinstance(answer, Constant):
            raise refused
        return Constant(not answer.value)
    if not _is_python(receiver) or method in _BY_IDENTITY or method is getattr(object, COMPARISONS[symbol]):
        return None  # `object`, or a builtin of another class than the argument: it knows nothing of it
    if kind is types.BuiltinFunctionType and python_type(argument) is not kind:
        return None
    raise refused
