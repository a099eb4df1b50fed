"""Special methods as Python finds them: on the class of an object, not on the object, and with checked answers.

len(box)   →   type(box).__len__(box), if that is an int and not negative

What Python would not take for an answer it shall refuse itself: the instruction breaks, and its words are right.
"""

import sys
import types
from typing import Any

from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.model.breaks import Raised, Unsupported
from smelt.capture.model.static import ABSENT, is_a, static_lookup
from smelt.capture.model.values import Constant, DeferredString, Instance, Method, Object, Value, describe, python_type

_METHODS = (types.FunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)


def special(interp: Interpreter, value: Value, name: str) -> Method | None:
    """The special method of the class of `value`, bound to it; None if the class has none."""
    kind = python_type(value)
    if isinstance(value, Object) and is_a(value.value, type):
        interp.tree.metaclass(interp.externals.guard_identity(value))
    member = interp.tree.class_attribute(kind, name) if kind is not None else ABSENT
    if member is ABSENT:
        return None
    if member is None and name in _REFUSED_BY_NONE:
        raise _of_class(TypeError, _REFUSED_BY_NONE[name], kind)  # type: ignore[arg-type]
    if not isinstance(member, _METHODS):
        raise Unsupported("B007", f"{name} of {describe(value)}")
    return Method(interp.externals.fixed(member), value)


def ask(interp: Interpreter, value: Value, name: str, *args: Value) -> Value:
    """What the special method answers. An object without it is Python's to refuse."""
    method = special(interp, value, name)
    if method is None:
        raise lacking(value, name)
    return interp.now(interp.call(method, list(args)))


_IMMUTABLE_TYPE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE: on classes written in C
_LACKING = {
    "__len__": "object of type {!r} has no len()",
    "__iter__": "{!r} object is not iterable",
    "__next__": "{!r} object is not an iterator",
    "__reversed__": "{!r} object is not reversible",
    "__call__": "{!r} object is not callable",
    "__getitem__": "{!r} object is not subscriptable",
    "__setitem__": "{!r} object does not support item assignment",
    "__delitem__": "{!r} object doesn't support item deletion",
    "__contains__": "argument of type {!r} is not iterable",
    "__hash__": "unhashable type: {!r}",
}


_REFUSED_BY_NONE = {  # what `__iter__ = None` means
    "__iter__": "{!r} object is not iterable",
    "__contains__": "{!r} object is not a container",
}
_REFUSED_ANSWERS = {
    "__iter__": "iter() returned non-iterator of type {!r}",
    "__bool__": "__bool__ should return bool, returned {}",
    "__len__": "{!r} object cannot be interpreted as an integer",
    "__str__": "__str__ returned non-string (type {})",
    "__repr__": "__repr__ returned non-string (type {})",
    "__index__": "__index__ returned non-int (type {})",
}
_IN_ITS_PLACE = {"__contains__": ("__iter__", "__getitem__"), "__iter__": ("__getitem__",)}


def lacking(value: Value, name: str, otherwise: Unsupported | None = None) -> Unsupported:
    """The TypeError of an object whose class has no such method; `otherwise` if it has one that is not followed."""
    kind = python_type(value)
    names = (name, *_IN_ITS_PLACE.get(name, ()))
    if kind is None or name not in _LACKING or not all(_is_absent(kind, each) for each in names):
        return otherwise or refused(value, name)
    return _of_class(TypeError, _LACKING[name], kind)


def not_iterable(container: Value) -> Unsupported:
    """What `item in container` raises, whatever TypeError its iterator was."""
    kind = python_type(container)
    return refused(container, "in") if kind is None else _of_class(TypeError, _LACKING["__contains__"], kind)


def _of_class(error: type[Exception], text: str, kind: type) -> Raised:
    """An error that names a class."""
    raised = Raised.of(error(text.format(name_in_errors(kind))))
    raised.named_class = kind
    return raised


def _is_absent(kind: type, name: str) -> bool:
    member = static_lookup(kind, name)
    return member is ABSENT or member is None


def name_in_errors(kind: type) -> str:
    """What Python calls a class in errors: one written in C goes by its full name."""
    name: str = type.__dict__["__name__"].__get__(kind)
    of_c = kind.__flags__ & _IMMUTABLE_TYPE and kind.__module__ != "builtins"
    return f"{kind.__module__}.{name}" if of_c else name


def refused(value: Value, name: str, answer: Value | None = None) -> Unsupported:
    """For what Python raises TypeError of: a method that answers what it must not."""
    kind = None if answer is None else python_type(answer)
    if kind is not None and name in _REFUSED_ANSWERS and (name != "__len__" or _is_absent(kind, "__index__")):
        return _of_class(TypeError, _REFUSED_ANSWERS[name], kind)
    return Unsupported("B019", f"TypeError: {name} of {describe(value)}")


def checked_bool(interp: Interpreter, value: Value, method: Value) -> bool:
    """What `__bool__` answers, which must be a bool."""
    answer = interp.now(interp.call(method, []))
    if python_type(answer) is not bool:
        raise refused(value, "__bool__", answer)
    return bool(interp.plain(answer))


def checked_length(interp: Interpreter, value: Value, method: Value) -> int:
    """What `__len__` answers, which must be an int that a list could have as its length."""
    answer = interp.now(interp.call(method, []))
    if python_type(answer) not in (int, bool):
        raise refused(value, "__len__", answer)
    length = int(interp.plain(answer))
    if length < 0:
        raise Raised.of(ValueError("__len__() should return >= 0"))
    if length > sys.maxsize:
        raise Raised.of(OverflowError("cannot fit 'int' into an index-sized integer"))
    return length


def checked_str(value: Value, name: str, answer: Value) -> Value:
    """What `__str__`, `__repr__` or `__format__` answered, which must be a string."""
    if not isinstance(answer, DeferredString) and python_type(answer) is not str:
        kind = python_type(answer)
        raise refused(value, name, None if kind is None or issubclass(kind, str) else answer)
    return answer


def checked_index(value: Value, answer: Value) -> Value:
    """What `__index__` answered, which must be an int: a bool warns, and one too large is worded by its owner."""
    kind = python_type(answer)
    if kind is not int:
        raise refused(value, "__index__", None if kind is None or issubclass(kind, int) else answer)
    if isinstance(answer, Constant) and not -sys.maxsize <= answer.value <= sys.maxsize:
        raise refused(value, "__index__")
    return answer


def ask_length_hint(interp: Interpreter, value: Value) -> None:
    """Before Python makes a list or tuple of an iterable it asks for its length: the program may see that it does."""
    if not isinstance(value, Instance | Object):
        return
    for name in ("__len__", "__length_hint__"):
        kind = python_type(value)
        function = interp.tree.class_attribute(kind, name) if kind is not None else ABSENT
        if not isinstance(function, types.FunctionType):
            continue
        method = Method(interp.externals.fixed(function), value)
        try:
            answer = interp.now(interp.call(method, []))
        except Raised as raised:
            if issubclass(interp.failure_kind(raised), TypeError):
                raise refused(value, name) from None  # which Python forgets, or not
            raise
        known: Any = answer.value if isinstance(answer, Constant) else None
        if known is NotImplemented and name == "__length_hint__":
            return
        if type(known) not in (int, bool) or not 0 <= known <= sys.maxsize:
            raise refused(value, name)
        return
