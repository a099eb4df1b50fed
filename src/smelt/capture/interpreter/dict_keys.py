"""Keys of dicts and items of sets: the real objects behind values, or what they are known by."""

import types
from typing import Any

import torch

from smelt.capture.interpreter.externals import may_guard_identity
from smelt.capture.interpreter.interpreter import TYPES, Interpreter, is_plain_type, make_sequence
from smelt.capture.model.breaks import Unsupported
from smelt.capture.model.static import is_a
from smelt.capture.model.values import (
    ByIdentity,
    Constant,
    Deque,
    Mapping,
    Number,
    Object,
    Sequence,
    Set,
    Tensor,
    Value,
    describe,
    is_constant,
)


def is_nan(value: Any) -> bool:
    """Whether a value, or an item that nobody has looked at, is a NaN: no other is its equal, but it is itself."""
    real = value.known if isinstance(value, Number) else getattr(value, "value", None)
    return type(real) in (float, complex) and real != real


def holds_nan(value: Any) -> bool:
    """Whether a container holds a NaN: then it matters which object that is."""
    if isinstance(value, Sequence | Deque):
        return any(is_nan(item) or holds_nan(item) for item in value.raw_items)
    if isinstance(value, Mapping):
        return any(is_nan(item) or holds_nan(item) for item in value.items.values())
    return isinstance(value, Set) and any(type(item) is float and item != item for item in value.items)


def item_key(interp: Interpreter, value: Value) -> Any:
    """An item of a set: the real one if it is plain, else what it is known by."""
    if isinstance(value, Object) and not is_a(value.value, (torch.Tensor, *TYPES)):
        return ByIdentity(value, hashable(interp, value))
    if isinstance(value, Tensor) and value.source is None:
        return ByIdentity(value, value)
    if isinstance(value, Tensor) and value.source is not None and value.source.accessor[0] != "slot":
        value.source.check(("is", value.real))
        return ByIdentity(value, value.real)
    if is_nan(value) or holds_nan(value):
        raise Unsupported("B017", "a NaN in a set")
    real = interp.plain(value)
    try:
        hash(real)
    except TypeError:
        raise Unsupported("B017", f"{describe(value)}, which cannot be hashed, in a set") from None
    return real


def hashable(interp: Interpreter, key: Value) -> Any:
    """A real dict key."""
    if isinstance(key, Object):
        if is_a(key.value, type) and not is_plain_type(key.value):
            raise Unsupported("B017", f"{describe(key)}, whose metaclass can redefine it")
        if is_a(key.value, type | types.FunctionType | types.BuiltinFunctionType | types.ModuleType):
            interp.externals.rely_on_contents(key.value)
            return interp.externals.guard_identity(key)
        if interp.tree.class_attribute(type(key.value), "__hash__") is object.__hash__:
            return interp.externals.guard_identity(key)
        raise Unsupported("B017", describe(key))
    if isinstance(key, Tensor) and key.real is not None and key.source is not None and may_guard_identity(key):
        interp.externals.mark_grad_target(key)
        return key.real
    if isinstance(key, Sequence) and key.kind is not list:
        return make_sequence(key.kind, [hashable(interp, interp.externals.force(item)) for item in key.items])
    if is_nan(key):
        raise Unsupported("B017", "a NaN as a key")
    if isinstance(key, Constant) and is_constant(key.value):
        return interp.plain(key)
    raise Unsupported("B017", describe(key))
