"""`copy.copy` and `copy.deepcopy` of values: new containers and objects of the same shape, nothing of Python run.

copy.deepcopy(self.config)   →   Instance(Config) with copies of all its attributes
"""

import copy
import types
from collections.abc import Callable
from typing import Any

from smelt.capture.calls.classes import layout
from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.interpreter.sets import derived
from smelt.capture.model.breaks import Unsupported
from smelt.capture.model.static import ABSENT, is_a
from smelt.capture.model.values import (
    Constant,
    Instance,
    Mapping,
    Object,
    Sequence,
    Set,
    Slice,
    Value,
    describe,
    python_type,
)

_HOOKS = (
    "__copy__",
    "__deepcopy__",
    "__reduce__",
    "__reduce_ex__",
    "__getstate__",
    "__setstate__",
    "__getnewargs_ex__",
)
_ATOMS = (type, types.FunctionType, types.BuiltinFunctionType, property)  # copied as themselves
_OF_OBJECT = frozenset({object.__reduce__, object.__reduce_ex__, getattr(object, "__getstate__", None)})


def deep(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`copy.deepcopy(value)`."""
    if len(args) != 1 or kwargs:
        raise Unsupported("B002", "copy.deepcopy with a memo")
    known: dict[int, Value] = {}
    met: list[Value] = []

    def once(value: Any) -> Value:
        value = interp.externals.force(value)
        if id(value) not in known:
            twin = _met_before(interp, value, met)
            if twin is not None:
                known[id(value)] = known[id(twin)]
            else:
                known[id(value)] = _copied(interp, value, once, lambda copied: known.setdefault(id(value), copied))
        return known[id(value)]

    return once(args[0])


_MANY = 40  # each pair of objects is compared at each call


def _met_before(interp: Interpreter, value: Value, met: list[Value]) -> Value | None:
    """The value under which an object from outside was met on another way. A copy of both is one: that they are the
    same, or that they are not, is relied on."""
    if value.source is None or not isinstance(value, Object | Mapping | Sequence) or _is_atom(value):
        return None
    alike = [other for other in met if python_type(other) is python_type(value)]
    if len(alike) > _MANY:
        raise Unsupported("B002", "copy.deepcopy of very many objects")
    met.append(value)
    twin = None
    for other in alike:
        same = isinstance(value, Object) and isinstance(other, Object) and value.value is other.value
        interp.externals.guard_alias(value.source, other.source, same)
        twin = other if same else twin
    return twin


def _is_atom(value: Value) -> bool:
    if isinstance(value, Sequence) and value.kind is not list:
        return True  # told apart by what it holds
    return isinstance(value, Object) and is_a(value.value, _ATOMS)


Each = Callable[[Any], Value]


def _copied(
    interp: Interpreter, value: Value, each: Each, early: Callable[[Value], Any] = lambda copied: None
) -> Value:
    """A copy whose items are `each(item)`; `early` hears of it before its items are copied."""
    if isinstance(value, Constant) or (isinstance(value, Object) and is_a(value.value, _ATOMS)):
        return value
    if isinstance(value, Sequence):
        return _copied_sequence(interp, value, each, early)
    if isinstance(value, Mapping) and (value.owner is None or value.owner.members is value):
        interp.externals.complete(value)
        copied = Mapping({}, value.kind, factory=value.factory)
        early(copied)
        copied.items.update({key: each(item) for key, item in value.items.items()})
        return copied
    if isinstance(value, Set):
        return derived(interp, "copy", value, [])
    if isinstance(value, Slice):
        return value
    if isinstance(value, Object | Instance):
        return _copied_object(interp, value, each, early)
    raise Unsupported("B002", f"copy of {describe(value)}")


def _copied_sequence(interp: Interpreter, value: Sequence, each: Each, early: Callable[[Value], Any]) -> Value:
    if value.kind is list:
        copied = Sequence(list, [])
        early(copied)
        copied.raw_items.extend(each(item) for item in interp.externals.items(value))
        return copied
    items = [each(item) for item in interp.externals.items(value)]
    if all(one is other for one, other in zip(items, value.items, strict=True)):
        return value  # a tuple of what is copied as itself is itself
    return Sequence(value.kind, items)


def _copied_object(interp: Interpreter, value: Object | Instance, each: Each, early: Callable[[Value], Any]) -> Value:
    kind = type(value.value) if isinstance(value, Object) else value.kind
    if layout(interp, kind) is not object:
        raise Unsupported("B002", f"copy of {describe(value)}")
    for name in _HOOKS:
        method = interp.tree.class_attribute(kind, name)
        if method is not ABSENT and method not in _OF_OBJECT:
            raise Unsupported("B002", f"copy of {describe(value)}, which has its own {name}")
    members = value.members if isinstance(value, Instance) else interp.externals.members(value)
    interp.externals.complete(members)
    if any(name in members.items for name in _HOOKS):
        raise Unsupported("B002", f"copy of {describe(value)}")
    copied = Instance(kind)
    early(copied)
    copied.members.items.update({name: each(item) for name, item in members.items.items()})
    return copied


COPIES = {
    copy.copy: lambda interp, args, kwargs: _copied(interp, args[0], lambda item: item),
    copy.deepcopy: deep,
}
