"""Functions of Python's library that the language is made of, called by name: `operator`, `hash`, `sys`, `re`.

operator.iadd(items, [x])       →   items += [x], and its answer is `items`
re.compile("a+").search(name)   →   a `re.Match`, or None: of known strings it is evaluated while capturing
"""

import functools
import operator
import re
import sys
import traceback
import typing
from collections.abc import Callable
from typing import Any

from smelt.capture.calls.arity import ANY, Takes, acting, answering, takes
from smelt.capture.interpreter.dict_keys import hash_of, identical
from smelt.capture.interpreter.dunder_dispatch import index_of
from smelt.capture.interpreter.exceptions import known_handled
from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.interpreter.iterators import each_item, length_hint
from smelt.capture.interpreter.operators import (
    binary,
    delete_subscript,
    is_same,
    length,
    store_subscript,
    truth,
)
from smelt.capture.model.breaks import Raised, Unsupported
from smelt.capture.model.values import (
    Constant,
    Deque,
    DictView,
    ExceptionValue,
    Instance,
    Iterator,
    Mapping,
    Object,
    Sequence,
    Set,
    TracebackValue,
    Value,
    describe,
    python_type,
)

_Builtin = Callable[[Interpreter, list[Value], dict[str, Value]], Value]
_NONE = Constant(None)


def _concatenated(symbol: str) -> _Builtin:
    def rule(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if not isinstance(args[0], Sequence) or not isinstance(args[1], Sequence):
            raise Unsupported("B002", "operator.concat of other than lists and tuples")
        return binary(interp, symbol, args[0], args[1])

    return rule


def _count(interp: Interpreter, items: Value, counted: Value) -> int:
    return sum(is_same(interp, item, counted) for item in each_item(interp, items))


def _place(interp: Interpreter, items: Value, sought: Value) -> int:
    for place, item in enumerate(each_item(interp, items)):
        if is_same(interp, item, sought):
            return place
    raise Raised.of(ValueError("sequence.index(x): x not in sequence"))


def _index(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    index = index_of(interp, args[0])
    if python_type(index) is not int:
        raise Unsupported("B002", f"operator.index of {describe(args[0])}")
    return index


def _length_hint(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if isinstance(args[0], Iterator):
        return Constant(length_hint(interp, args[0]))
    if not isinstance(args[0], Sequence | Deque | Mapping | DictView | Set):
        raise Unsupported("B002", f"operator.length_hint of {describe(args[0])}")
    return Constant(length(interp, args[0]))


def _exc_info(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    error = known_handled(interp, interp.handled())
    if error is None:
        return Sequence(tuple, [_NONE] * 3)
    kind = python_type(error)
    if kind is None or not isinstance(error, ExceptionValue):
        raise Unsupported("B002", f"sys.exc_info of {describe(error)}")
    trace: Value = TracebackValue(error.places) if error.places else _NONE
    return Sequence(tuple, [interp.externals.fixed(kind), error, trace])


def _equal_objects(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`object.__eq__`, which knows whether two are one."""
    if not all(isinstance(value, Instance | Object) for value in args):
        raise Unsupported("B002", "object.__eq__")
    return Constant(True if identical(interp, *args) else NotImplemented)


def _clear_frames(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`traceback.clear_frames`: the frames of what the captured code raised are gone already."""
    if not isinstance(args[0], TracebackValue):
        raise Unsupported("B002", "traceback.clear_frames")
    return _NONE


OPERATOR_CALLS: dict[Any, tuple[Takes, _Builtin]] = {
    operator.concat: (takes(2), _concatenated("+")),
    operator.iconcat: (takes(2), _concatenated("+=")),
    operator.setitem: (takes(3), acting(store_subscript)),
    operator.delitem: (takes(2), acting(delete_subscript)),
    operator.countOf: (takes(2), answering(_count)),
    operator.indexOf: (takes(2), answering(_place)),
    operator.not_: (takes(1), answering(lambda interp, value: not truth(interp, value))),
    operator.index: (takes(1), _index),
    operator.length_hint: (takes(1, 2), _length_hint),
    operator.call: (takes(1, ANY, names=None), lambda interp, args, kwargs: interp.call(args[0], args[1:], kwargs)),
    hash: (takes(1), answering(hash_of)),
    object.__eq__: (takes(2), _equal_objects),
    traceback.clear_frames: (takes(1), _clear_frames),
    sys.exc_info: (takes(0), _exc_info),
    sys.exception: (takes(0), lambda interp, args, kwargs: known_handled(interp, interp.handled()) or _NONE),
}

# regular expressions

_OBJECTS = (re.Pattern, re.Match)
_METHODS = frozenset({"search", "match", "fullmatch", "split", "findall", "sub", "subn"})
_METHODS |= {"group", "groups", "groupdict", "start", "end", "span", "expand", "__getitem__"}


def _real(interp: Interpreter, value: Value) -> Any:
    if isinstance(value, Object) and (type(value.value) in _OBJECTS or isinstance(value.value, str)):
        # Of a subclass of str, such as torch.__version__, expressions read the characters alone.
        return interp.externals.guard_identity(value)
    return interp.plain(value)


def _evaluated(function: Any, interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    plain = [_real(interp, value) for value in args]
    named = {name: _real(interp, value) for name, value in kwargs.items()}
    try:
        result = function(*plain, **named)
    except (TypeError, IndexError, ValueError) as error:
        raise Raised.of(error) from error
    except re.error as error:
        raise Unsupported("B019", f"re.error: {error}") from None
    return interp.externals.fixed(result) if type(result) in _OBJECTS else interp.wrap_plain(result)


def expression_method(
    interp: Interpreter, method: Any, receiver: Value, args: list[Value], kwargs: dict[str, Value]
) -> Value | None:
    """What a method of a pattern or a match answers; None if it is not one of these."""
    if not isinstance(receiver, Object) or type(receiver.value) not in _OBJECTS or method.__name__ not in _METHODS:
        return None
    return _evaluated(method, interp, [receiver, *args], kwargs)


def _of_annotation(function: Any) -> _Builtin:
    """`typing.get_origin(list[int])` and the like: parts of an annotation, which never change."""

    def rule(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
        result = function(interp.plain(args[0]))
        if not isinstance(result, tuple):
            return interp.externals.fixed(result)
        return Sequence(tuple, [interp.externals.fixed(part) for part in result])

    return rule


EXPRESSION_CALLS: dict[Any, Any] = {
    **{function: _of_annotation(function) for function in (typing.get_origin, typing.get_args)},
    **{
        function: functools.partial(_evaluated, function)
        for function in (re.compile, re.search, re.match, re.fullmatch, re.split, re.findall, re.sub, re.escape)
    },
}
