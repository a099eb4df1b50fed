"""Calling a class: the new object as a value, and its `__init__` as a frame to interpret.

Point(x, y)                →   Instance(Point), its frame of __init__ pushed
ModelOutput(loss=l)        →   Instance(ModelOutput, contents=Mapping), a dict with attributes
OrderedDict(), partial(f)  →   Mapping, Partial
"""

import functools
import operator
import struct
import types
from collections import OrderedDict, defaultdict, deque
from typing import Any

import torch

from smelt.capture.calls.builtins import PURE, unpacked
from smelt.capture.calls.deque import make_deque
from smelt.capture.calls.numbers import number_call
from smelt.capture.interpreter.deferred_scalars import converted, item_of_tensor
from smelt.capture.interpreter.enums import is_enum, member_of_value
from smelt.capture.interpreter.exceptions import make_failure
from smelt.capture.interpreter.externals import slot_names
from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.model.breaks import Raised, Unsupported
from smelt.capture.model.static import ABSENT, is_heap_type, static_lookup
from smelt.capture.model.values import (
    STRING_METHODS,
    Constant,
    Function,
    Instance,
    Mapping,
    Method,
    Object,
    Partial,
    Tensor,
    Value,
    describe,
    own_operators,
    python_type,
)

_ABSTRACT = 1 << 20
# Their own __new__ only serves decorators.
_GRAD_CLASSES = (torch.no_grad, torch.enable_grad, torch.set_grad_enabled, torch.inference_mode)
GETTERS: Any = (operator.itemgetter, operator.attrgetter, operator.methodcaller)
_BASES = (OrderedDict, dict, object)  # the layouts that can be rebuilt, narrowest first


def call_class(interp: Interpreter, function: Object, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`function(*args, **kwargs)` for a class; may push a frame and answer `PUSHED`."""
    kind: type = interp.externals.guard_identity(function)
    metaclass_call = interp.tree.metaclass_attribute(kind, "__call__")
    if is_enum(function):
        return member_of_value(interp, function, args, kwargs)
    if isinstance(metaclass_call, types.FunctionType):
        return interp.call(interp.externals.fixed(metaclass_call), [function, *args], kwargs)
    if metaclass_call is not type.__call__:
        raise Unsupported("B002", f"class {kind.__qualname__}")
    return make_object(interp, kind, args, kwargs)


def make_object(interp: Interpreter, kind: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`type.__call__(kind, *args, **kwargs)`: a new object, whatever the metaclass says to calls."""
    if kind in PURE and all(map(interp.is_plain, (*args, *kwargs.values()))):
        in_symbols = number_call(interp, kind, args, kwargs)
        if in_symbols is not None:
            return in_symbols
        named = {name: interp.plain(value) for name, value in kwargs.items()}
        return interp.compute(kind, *[interp.plain(value) for value in args], **named)
    if kind in (int, float) and len(args) == 1 and not kwargs and isinstance(args[0], Tensor):
        return item_of_tensor(interp, args[0], kind)
    deferred = converted(interp, kind, args)
    if deferred is not None:
        return deferred
    if kind in GETTERS and not (kind is operator.methodcaller and not all(map(interp.is_plain, args[1:]))):
        named = {name: interp.plain(value) for name, value in kwargs.items()}
        try:
            getter = kind(*[interp.plain(value) for value in args], **named)
        except TypeError as error:
            raise Raised.of(error) from error
        return interp.externals.fixed(getter)
    if kind is functools.partial and args:
        _check_callable(interp, args[0])
        return Partial(args[0], args[1:], dict(kwargs))
    if kind is defaultdict:
        return _make_defaultdict(interp, args, kwargs)
    if kind is types.MethodType and len(args) == 2 and not kwargs:
        return Method(args[0], args[1])
    if kind is deque:
        return make_deque(interp, args, kwargs)
    if kind is OrderedDict:
        return Mapping(unpacked(interp, args, kwargs), OrderedDict)
    if issubclass(kind, tuple) and is_heap_type(kind):
        return _make_namedtuple(interp, kind, args, kwargs)
    if issubclass(kind, BaseException):
        return make_failure(interp, kind, args, kwargs)
    if interp.tree.class_attribute(kind, "__del__") is not ABSENT:
        raise Unsupported("B002", f"class {kind.__qualname__}, whose objects do something when they are dropped")
    base = layout(interp, kind)
    if base is None:
        raise Unsupported("B002", f"class {kind.__qualname__}")
    made = Instance(kind)
    if base is not object:
        made.contents = Mapping({}, base, owner=made)
    return _initialise(interp, made, base, args, kwargs)


def _check_callable(interp: Interpreter, value: Value) -> None:
    if isinstance(value, Function | Method | Partial):
        return
    kind = python_type(value)
    if kind is None or interp.tree.class_attribute(kind, "__call__") is ABSENT:
        raise Unsupported("B019", f"TypeError: {describe(value)} is not callable")


def _make_defaultdict(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    factory = args[0] if args else Constant(None)
    none = isinstance(factory, Constant) and factory.value is None
    if not none:
        _check_callable(interp, factory)
    return Mapping(unpacked(interp, args[1:], kwargs), defaultdict, factory=None if none else factory)


def layout(interp: Interpreter, kind: type) -> type | None:
    """The C type whose layout objects of this class have, if they are no more than that and a `__dict__` or slots."""
    tree = interp.tree
    tree.class_attribute(kind, "__abstractmethods__")  # by which it may become abstract, and the other way round
    if not is_heap_type(kind) or kind.__flags__ & _ABSTRACT:
        return None
    if not kind.__dictoffset__:
        return _layout_of_slots(interp, kind)
    if slot_names(kind):
        return None  # a slot beside a `__dict__` is no entry of it
    base = next(each for each in _BASES if issubclass(kind, each))
    plainly_made = tree.class_attribute(kind, "__new__") is static_lookup(base, "__new__") or kind in _GRAD_CLASSES
    return base if plainly_made and kind.__basicsize__ <= base.__basicsize__ + 16 else None


def _layout_of_slots(interp: Interpreter, kind: type) -> type | None:
    """`object` if an instance is nothing but its slots, each with a name of its own."""
    names = slot_names(kind)
    weak = kind.__weakrefoffset__ > 0  # from 3.12 on it is stored before the object
    room = object.__basicsize__ + (len(names) + weak) * struct.calcsize("P")
    plainly_made = interp.tree.class_attribute(kind, "__new__") is object.__new__
    return object if plainly_made and len(set(names)) == len(names) and kind.__basicsize__ == room else None


def _initialise(interp: Interpreter, made: Instance, base: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    kind = made.kind
    initialise = interp.tree.class_attribute(kind, "__init__")
    if initialise is object.__init__:
        if args or kwargs:
            raise Unsupported("B019", f"TypeError: {kind.__qualname__}() takes no arguments")
        return made
    fills_plainly = all(
        interp.tree.class_attribute(kind, name) is static_lookup(base, name) for name in ("__init__", "__setitem__")
    )
    if made.contents is not None and (fills_plainly or (initialise is static_lookup(base, "__init__") and not args)):
        if kwargs and not fills_plainly:
            raise Unsupported("B002", f"class {kind.__qualname__}")
        made.contents.items.update(unpacked(interp, args, kwargs))
        return made
    if not isinstance(initialise, types.FunctionType):
        raise Unsupported("B002", f"class {kind.__qualname__}")
    return interp.push_init(made, initialise, args, kwargs)


def _make_namedtuple(interp: Interpreter, kind: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """By its own `__new__`, which is Python and calls `tuple.__new__`."""
    make = interp.tree.class_attribute(kind, "__new__")
    plain = interp.tree.class_attribute(kind, "__init__") is object.__init__
    plain &= interp.tree.of_class(kind, own_operators) <= STRING_METHODS
    if not plain or not isinstance(make, staticmethod) or not isinstance(make.__func__, types.FunctionType):
        raise Unsupported("B002", f"class {kind.__qualname__}")
    return interp.call(interp.externals.fixed(make.__func__), [interp.externals.fixed(kind), *args], kwargs)
