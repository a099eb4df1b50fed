"""Exceptions that the captured code makes: constructed, read, written and worded as Python would.

ValueError("no", 3)     →   Failure(ValueError, args=("no", 3))        str(e)   →   "('no', 3)"
"""

import types
from typing import Any

from smelt.capture.interpreter.interpreter import SIMPLE_ERRORS, Interpreter, handles_nothing, set_by_init
from smelt.capture.interpreter.special_methods import checked_str, name_in_errors
from smelt.capture.model.breaks import Raised, Unsupported
from smelt.capture.model.static import is_a, is_heap_type, static_lookup
from smelt.capture.model.values import (
    HANDLED_OUTSIDE,
    Constant,
    ExceptionValue,
    FrameValue,
    Mapping,
    Object,
    Sequence,
    Super,
    TracebackValue,
    Value,
    describe,
    python_type,
)

_NONE = Constant(None)
GROUPS: tuple[type, ...] = (ExceptionGroup, BaseExceptionGroup)


class _UnknownTypeName(AttributeError):
    """Stands for the error of a value whose type's name is not known here: only Python can word it."""


class Missing(Raised):
    """The attribute does not exist: AttributeError, which `getattr` and `hasattr` want to know about."""

    def __init__(self, value: Value, name: str) -> None:
        super().__init__(_missing(value, name), f"AttributeError: {describe(value)} has no attribute {name}")
        self.details = {"name": Constant(name), "obj": value}
        real = value.value if isinstance(value, Object) else None
        self.named_class = real if is_a(real, type) else python_type(value)


def _missing(value: Value, name: str) -> AttributeError:
    kind = python_type(value)
    real: Any = value.value if isinstance(value, Object) else None
    if is_a(real, types.ModuleType):
        return AttributeError(f"module {real.__name__!r} has no attribute {name!r}")
    if is_a(real, type):
        short = type.__dict__["__name__"].__get__(real)
        return AttributeError(f"type object {short!r} has no attribute {name!r}")
    if isinstance(value, Super):
        return AttributeError(f"'super' object has no attribute {name!r}")
    if kind is None:
        return _UnknownTypeName(name)
    return AttributeError(f"{name_in_errors(kind)!r} object has no attribute {name!r}")


def builtin_base(kind: type) -> Any:
    """The builtin exception that a class is made from."""
    return next(base for base in kind.__mro__ if not is_heap_type(base))


def make_failure(interp: Interpreter, kind: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`kind(*args, **kwargs)` for an exception class; may push its `__init__` and answer `PUSHED`."""
    base, tree = builtin_base(kind), interp.tree
    if kind in GROUPS and len(args) == 2 and not kwargs:
        return _group_of(interp, kind, args)
    made_plainly = tree.class_attribute(kind, "__new__") is static_lookup(base, "__new__")
    if base not in SIMPLE_ERRORS or not made_plainly or kind.__basicsize__ > base.__basicsize__ + 16:
        raise Unsupported("B002", f"class {kind.__qualname__}")
    failure = ExceptionValue(kind, args=Sequence(tuple, list(args)))
    initialise = tree.class_attribute(kind, "__init__")
    if issubclass(base, OSError) and (len(args) > 1 or isinstance(initialise, types.FunctionType)):
        raise Unsupported("B002", f"class {kind.__qualname__}")  # which chooses a class and attributes by its arguments
    if not isinstance(initialise, types.FunctionType):
        if kwargs or not isinstance(initialise, types.WrapperDescriptorType):
            raise Unsupported("B002", f"class {kind.__qualname__}")
        failure.details = set_by_init(kind, args)
        return failure
    return interp.push_init(failure, initialise, args, kwargs)


def _group_of(interp: Interpreter, kind: type, args: list[Value]) -> Value:
    """`ExceptionGroup(message, exceptions)`."""
    message, exceptions = args
    worded = isinstance(message, Constant) and type(message.value) is str
    items = (
        interp.externals.items(exceptions)
        if isinstance(exceptions, Sequence) and exceptions.kind in (list, tuple)
        else []
    )
    plain = all(isinstance(each, ExceptionValue) and issubclass(each.kind, Exception) for each in items)
    if not worded or not items or not plain:
        raise Unsupported("B002", f"class {kind.__qualname__}")
    group = make_group(interp, message, items)
    group.args = Sequence(tuple, list(args))
    return group


def make_group(interp: Interpreter, message: Value, errors: list[Value]) -> ExceptionValue:
    """A group of exceptions none of which is more than an `Exception`."""
    if not all(isinstance(each, ExceptionValue) and issubclass(each.kind, Exception) for each in errors):
        raise Unsupported("B002", "class BaseExceptionGroup")
    args = Sequence(tuple, [message, Sequence(list, list(errors))])
    details: dict[str, Value] = {"message": message, "exceptions": Sequence(tuple, list(errors))}
    return ExceptionValue(ExceptionGroup, args=args, details=details)


def stop_iteration(result: Value | None) -> Raised:
    """What `next` raises at the end; `result` is what a generator returned."""
    none = result is None or (isinstance(result, Constant) and result.value is None)
    args: list[Value] = [] if none or result is None else [result]
    details = set_by_init(StopIteration, args)
    return Raised(ExceptionValue(StopIteration, args=Sequence(tuple, args), details=details), "StopIteration")


def known_handled(interp: Interpreter, error: Value | None) -> Value | None:
    """An exception that was being handled; None if there was none, which is relied on where the program began."""
    if error is not HANDLED_OUTSIDE:
        return error
    if not interp.handles_nothing:
        raise Unsupported("B002", "sys.exc_info, of an exception from outside")
    interp.tree.process("no exception is being handled", handles_nothing, True)
    return None


_NONE_AT_FIRST: dict[type, tuple[str, ...]] = {
    StopIteration: ("value",),
    SystemExit: ("code",),
    NameError: ("name",),
    UnboundLocalError: ("name",),
    AttributeError: ("name", "obj"),
    **{kind: ("errno", "strerror", "filename", "filename2") for kind in SIMPLE_ERRORS if issubclass(kind, OSError)},
}


def attribute_of(interp: Interpreter, failure: ExceptionValue, name: str) -> Value:
    """An attribute that the C part of an exception holds."""
    if name == "__class__":
        return interp.externals.fixed(failure.kind)
    if name == "args":
        args: Value = failure.args
        return args
    if name == "__cause__":
        return failure.cause or _NONE
    if name == "__context__":
        return known_handled(interp, failure.context) or _NONE
    if name == "__suppress_context__":
        return Constant(failure.suppresses)
    if name == "__traceback__":
        return TracebackValue(failure.places) if failure.places else _NONE
    if name in failure.details or name in _NONE_AT_FIRST.get(builtin_base(failure.kind), ()):
        return failure.details.get(name, _NONE)
    raise Unsupported("B007", f"{name} of {describe(failure)}")


def traceback_attribute(trace: TracebackValue, name: str) -> Value:
    """An attribute of a traceback: where it stands, and the rest of it."""
    _, info, instruction = trace.places[0]
    if name == "tb_lineno" and instruction.line is not None:
        return Constant(instruction.line)
    if name == "tb_lasti":
        return Constant(instruction.offset)
    if name == "tb_next":
        return TracebackValue(trace.places[1:]) if trace.places[1:] else _NONE
    if name == "tb_frame":
        return FrameValue(info)
    raise Unsupported("B007", f"{name} of a traceback")


_REFUSALS = {
    "__traceback__": "__traceback__ must be a traceback or None",
    "__cause__": "exception cause must be None or derive from BaseException",
    "__context__": "exception context must be None or derive from BaseException",
}


def store_in(interp: Interpreter, failure: ExceptionValue, name: str, value: Value) -> None:
    """`failure.name = value` for what its C part holds."""
    none = isinstance(value, Constant) and value.value is None
    if name == "__traceback__" and (none or isinstance(value, TracebackValue)):
        interp.before_mutation(failure)
        failure.places = value.places if isinstance(value, TracebackValue) else ()
    elif name in ("__cause__", "__context__") and (none or isinstance(value, ExceptionValue)):
        interp.before_mutation(failure)
        setattr(failure, name.strip("_"), None if none else value)
        failure.suppresses = failure.suppresses or name == "__cause__"
    elif name == "__suppress_context__" and isinstance(value, Constant) and is_a(value.value, bool):
        interp.before_mutation(failure)
        failure.suppresses = value.value
    elif name == "args" and isinstance(value, Sequence) and value.kind is tuple:
        interp.before_mutation(failure)
        failure.args = value
    elif name in _REFUSALS and isinstance(value, Constant | Sequence | Mapping):
        raise Raised.of(TypeError(_REFUSALS[name]))
    else:
        raise Unsupported("B005", f"{describe(failure)}.{name} = …")


def method_of(
    interp: Interpreter, method: Any, failure: ExceptionValue, args: list[Value], kwargs: dict[str, Value]
) -> Value | None:
    """The answer of a C method of an exception, or None if it is not one of these."""
    name = method.__name__
    if kwargs or method.__objclass__ not in SIMPLE_ERRORS:
        return None
    if name == "__init__":
        interp.before_mutation(failure)
        failure.args = Sequence(tuple, list(args))
        failure.details = {**failure.details, **set_by_init(failure.kind, args)}
        return _NONE
    if name in ("__str__", "__repr__") and not args:
        return _by_class(interp, failure, method)
    if name == "with_traceback" and len(args) == 1:
        store_in(interp, failure, "__traceback__", args[0])
        return failure
    if name == "add_note" and len(args) == 1 and isinstance(args[0], Constant) and type(args[0].value) is str:
        interp.before_mutation(failure)
        notes = failure.attributes.setdefault("__notes__", Sequence(list, []))
        if isinstance(notes, Sequence):
            interp.before_mutation(notes)
            notes.items.append(args[0])
            return _NONE
    return None


def formatted_exception(interp: Interpreter, failure: ExceptionValue, how: str) -> Value:
    """`str(failure)` or `repr(failure)`: `how` is `__str__` or `__repr__`."""
    method = interp.tree.class_attribute(failure.kind, how)
    if isinstance(method, types.FunctionType):
        return checked_str(failure, how, interp.now(interp.call(interp.externals.fixed(method), [failure])))
    if how == "__str__" and method is object.__str__:
        return formatted_exception(interp, failure, "__repr__")
    return _by_class(interp, failure, method)


def _by_class(interp: Interpreter, failure: ExceptionValue, method: Any) -> Value:
    """What a builtin exception's own wording makes of the arguments; it also names the class."""
    if method in (BaseException.__str__, KeyError.__str__) and len(failure.args.items) == 1:
        how = repr if method is KeyError.__str__ else str
        return interp.now(interp.call(interp.externals.fixed(how), [interp.externals.force(failure.args.items[0])]))
    args = interp.plain(failure.args)
    stand_in: Any = type(failure.kind.__name__, (builtin_base(failure.kind),), {})
    real = stand_in.__new__(stand_in)
    BaseException.__init__(real, *args)
    return interp.compute(method, real)
