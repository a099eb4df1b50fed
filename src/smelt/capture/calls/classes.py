"""Calling a class: the new object as a value, and its `__init__` as a frame to interpret.

Point(x, y)                →   Instance(Point), its frame of __init__ pushed
ModelOutput(loss=l)        →   Instance(ModelOutput, contents=Mapping), a dict with attributes
OrderedDict(), partial(f)  →   Mapping, Partial
"""

import functools
import operator
import struct
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from typing import Any

import torch

from smelt.capture.calls.arity import refusal
from smelt.capture.calls.builtins import PURE, Builtin, unpacked
from smelt.capture.calls.class_statements import make_descriptor
from smelt.capture.calls.deque import make_deque
from smelt.capture.calls.numbers import number_call
from smelt.capture.interpreter.deferred_scalars import converted, item_of_tensor
from smelt.capture.interpreter.enums import is_enum, member_of_value
from smelt.capture.interpreter.exceptions import make_failure
from smelt.capture.interpreter.externals import BUILTIN_BASES, slot_names
from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.interpreter.iterators import drain
from smelt.capture.interpreter.sets import own_set
from smelt.capture.model.breaks import Raised, Unsupported
from smelt.capture.model.set_order import NOTHING
from smelt.capture.model.static import ABSENT, is_a, is_heap_type, static_lookup
from smelt.capture.model.values import (
    STRING_METHODS,
    Array,
    Constant,
    Function,
    Instance,
    Mapping,
    Method,
    Object,
    Partial,
    Proxy,
    Sequence,
    Set,
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
_BASES = (*BUILTIN_BASES, object)  # the layouts that can be rebuilt, narrowest first


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
    if kind in (int, float) and len(args) == 1 and not kwargs and isinstance(args[0], Array):
        return item_of_tensor(interp, args[0].tensor, kind)
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
    if kind in (property, staticmethod, classmethod):
        return make_descriptor(interp, kind, args, kwargs)
    if kind is defaultdict:
        return _make_defaultdict(interp, args, kwargs)
    if kind is types.MethodType and len(args) == 2 and not kwargs:
        return Method(args[0], args[1])
    if kind is types.MappingProxyType and len(args) == 1 and isinstance(args[0], Mapping) and not kwargs:
        return Proxy(args[0])
    if kind is deque:
        return make_deque(interp, args, kwargs)
    if kind is weakref.ref and len(args) == 1 and not kwargs:
        return interp.externals.weak_reference(args[0])
    if kind is object and not args and not kwargs:
        return Instance(object)
    if kind is OrderedDict:
        if len(args) > 1:
            raise refusal(kind, len(args), kwargs)
        return Mapping(unpacked(interp, args, kwargs, OrderedDict), OrderedDict)
    if issubclass(kind, tuple) and is_heap_type(kind) and _is_named(interp, kind):
        return _make_namedtuple(interp, kind, args, kwargs)
    if issubclass(kind, BaseException):
        return make_failure(interp, kind, args, kwargs)
    if interp.tree.class_attribute(kind, "__del__") is not ABSENT:
        raise Unsupported("B002", f"class {kind.__qualname__}, whose objects do something when they are dropped")
    own = _python_new(interp, kind)
    if own is not None:
        return _make_by_class(interp, kind, own, args, kwargs)
    base = layout(interp, kind)
    if base is None:
        raise Unsupported("B002", f"class {kind.__qualname__}")
    return _initialise(interp, _new(interp, kind, base, args, kwargs), base, args, kwargs)


def _python_new(interp: Interpreter, kind: type) -> types.FunctionType | None:
    """A class's own `__new__`, if it is written in Python."""
    member = interp.tree.class_attribute(kind, "__new__")
    function = member.__func__ if isinstance(member, staticmethod) else member
    return function if isinstance(function, types.FunctionType) and kind not in _GRAD_CLASSES else None


def _make_by_class(
    interp: Interpreter, kind: type, new: types.FunctionType, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """What `__new__` returns, and if it is an object of the class, that after its `__init__`."""
    instance = interp.now(interp.call(interp.externals.fixed(new), [interp.externals.fixed(kind), *args], kwargs))
    own = python_type(instance)
    if own is None:
        raise Unsupported("B002", f"class {kind.__qualname__}")
    if not interp.tree.has_base(own, kind):
        return instance
    initialise = interp.tree.class_attribute(own, "__init__")
    if initialise is object.__init__:
        return instance  # which takes any arguments where the class has a `__new__`
    answer = interp.now(interp.call(interp.externals.fixed(initialise), [instance, *args], kwargs))
    if not isinstance(answer, Constant) or answer.value is not None:
        raise Unsupported("B019", f"TypeError: __init__ of {kind.__qualname__} returns {describe(answer)}")
    return instance


def _new(interp: Interpreter, kind: type, base: type, args: list[Value], kwargs: dict[str, Value]) -> Instance:
    """`base.__new__(kind, *args, **kwargs)`."""
    instance = Instance(kind)
    if issubclass(base, dict):
        instance.contents = Mapping({}, base, owner=instance)
    elif base is list:
        instance.contents = Sequence(list, [], owner=instance)
    elif base is set:
        instance.contents = Set(set(), set, NOTHING, ordered=True, owner=instance)
    elif base is object:
        return instance
    elif kwargs or (base in (tuple, frozenset) and len(args) > 1):
        raise Unsupported("B002", f"class {kind.__qualname__}")
    elif base is tuple:
        instance.contents = Sequence(tuple, drain(interp, args[0], hinted=True) if args else [], owner=instance)
    elif base is frozenset:
        instance.contents = own_set(interp, frozenset, args[0] if args else None)
        instance.contents.owner = instance
    else:
        number = interp.compute(base, *[interp.plain(value) for value in args])
        assert isinstance(number, Constant)
        instance.contents = number
    return instance


def _new_by(base: type) -> Builtin:
    """The rule for `base.__new__`, as a class's own `__new__` calls it."""

    def rule(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
        kind: Any = args[0].value if args and isinstance(args[0], Object) else None
        if not is_a(kind, type) or not issubclass(kind, base):
            raise Unsupported("B002", f"{base.__name__}.__new__")
        interp.externals.guard_identity(args[0])  # type: ignore[arg-type]
        if base is tuple and is_heap_type(kind) and _is_named(interp, kind) and len(args) == 2 and not kwargs:
            return Sequence(kind, drain(interp, args[1]))
        if interp.tree.class_attribute(kind, "__del__") is not ABSENT or room(interp, kind) is not base:
            raise Unsupported("B002", f"{base.__name__}.__new__")
        if base is object and (len(args) > 1 or kwargs):
            raise Unsupported("B019", f"TypeError: object.__new__ of {kind.__qualname__} with arguments")
        return _new(interp, kind, base, args[1:], kwargs)

    return rule


NEW_CALLS: dict[Any, Builtin] = {
    base.__new__: _new_by(base) for base in (object, dict, list, tuple, set, frozenset, int, float, str)
}


def _check_callable(interp: Interpreter, value: Value) -> None:
    if isinstance(value, Function | Method | Partial):
        return
    kind = python_type(value)
    if kind is None or interp.tree.class_attribute(kind, "__call__") is ABSENT:
        raise Unsupported("B019", f"TypeError: {describe(value)} is not callable")


def _make_defaultdict(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    factory = args[0] if args else Constant(None)
    none = isinstance(factory, Constant) and factory.value is None
    if not none and isinstance(factory, Constant | Sequence | Mapping | Set):
        raise Raised.of(TypeError("first argument must be callable or None"))
    if not none:
        _check_callable(interp, factory)
    return Mapping(unpacked(interp, args[1:], kwargs), defaultdict, factory=None if none else factory)


def layout(interp: Interpreter, kind: type) -> type | None:
    """`room`, if objects of the class are made as that type's are."""
    base = room(interp, kind)
    if base is None:
        return None
    plainly_made = interp.tree.class_attribute(kind, "__new__") is static_lookup(base, "__new__")
    return base if plainly_made or kind in _GRAD_CLASSES else None


def room(interp: Interpreter, kind: type) -> type | None:
    """The C type whose layout objects of this class have, if they are no more than that and a `__dict__` or slots."""
    interp.tree.class_attribute(kind, "__abstractmethods__")  # by which it may become abstract, and the other way round
    if not is_heap_type(kind) or kind.__flags__ & _ABSTRACT:
        return None
    if not kind.__dictoffset__:
        return _layout_of_slots(kind)
    if slot_names(kind):
        return None  # a slot beside a `__dict__` is no entry of it
    base = base_of(kind)
    return base if kind.__basicsize__ <= base.__basicsize__ + 16 else None


def base_of(kind: type) -> type:
    """The builtin type that a class is made from."""
    return next(each for each in _BASES if issubclass(kind, each))


def _layout_of_slots(kind: type) -> type | None:
    """The builtin type, if an instance is nothing but that and its slots, each with a name of its own."""
    base, names = base_of(kind), slot_names(kind)
    weak = kind.__weakrefoffset__ > 0  # from 3.12 on it is stored before the object
    size = base.__basicsize__ + (len(names) + weak) * struct.calcsize("P")
    return base if len(set(names)) == len(names) and kind.__basicsize__ == size else None


def _initialise(
    interp: Interpreter, instance: Instance, base: type, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    kind = instance.kind
    initialise = interp.tree.class_attribute(kind, "__init__")
    if initialise is object.__init__:
        if base is object and (args or kwargs):
            raise Unsupported("B019", f"TypeError: {kind.__qualname__}() takes no arguments")
        return instance
    if isinstance(instance.contents, Sequence | Set) and not isinstance(initialise, types.FunctionType):
        if initialise is not static_lookup(base, "__init__"):
            raise Unsupported("B002", f"class {kind.__qualname__}")
        interp.now(interp.call(interp.externals.fixed(initialise), [instance, *args], kwargs))
        return instance
    fills_plainly = all(
        interp.tree.class_attribute(kind, name) is static_lookup(base, name) for name in ("__init__", "__setitem__")
    )
    of_base = initialise is static_lookup(base, "__init__")
    if isinstance(instance.contents, Mapping) and (fills_plainly or (of_base and not args)):
        if kwargs and not fills_plainly:
            raise Unsupported("B002", f"class {kind.__qualname__}")
        instance.contents.items.update(unpacked(interp, args, kwargs, instance.contents.kind))
        return instance
    if not isinstance(initialise, types.FunctionType):
        raise Unsupported("B002", f"class {kind.__qualname__}")
    return interp.push_init(instance, initialise, args, kwargs)


def _is_named(interp: Interpreter, kind: type) -> bool:
    """Whether objects of a class of tuples are that and names for its items."""
    fields = interp.tree.class_attribute(kind, "_fields")
    return fields is not ABSENT and interp.tree.of_class(kind, own_operators) <= STRING_METHODS


def _make_namedtuple(interp: Interpreter, kind: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """By its own `__new__`, which is Python and calls `tuple.__new__`."""
    make = interp.tree.class_attribute(kind, "__new__")
    plain = interp.tree.class_attribute(kind, "__init__") is object.__init__
    if not plain or not isinstance(make, staticmethod) or not isinstance(make.__func__, types.FunctionType):
        raise Unsupported("B002", f"class {kind.__qualname__}")
    return interp.call(interp.externals.fixed(make.__func__), [interp.externals.fixed(kind), *args], kwargs)
