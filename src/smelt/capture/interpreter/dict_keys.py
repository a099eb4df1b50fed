"""Keys of dicts and items of sets: the real objects behind values, or what they are known by; which values are one
object."""

import operator
import types
from collections.abc import Callable
from typing import Any

import torch

from smelt.capture.guards.identity import same_object
from smelt.capture.interpreter.interpreter import TYPES, Interpreter, is_plain_type, make_sequence
from smelt.capture.interpreter.special_methods import lacking
from smelt.capture.model.breaks import Raised, Unsupported
from smelt.capture.model.static import is_a, static_lookup
from smelt.capture.model.values import (
    ByIdentity,
    ByParts,
    ByRule,
    Constant,
    DeferredScalar,
    DeferredString,
    Deque,
    ExceptionValue,
    Function,
    Instance,
    Mapping,
    Method,
    Number,
    Object,
    Partial,
    Sequence,
    Set,
    Tensor,
    TracebackValue,
    Value,
    contents_kind,
    describe,
    is_constant,
    python_type,
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
        key = hashable(interp, value)
        return key if isinstance(key, ByIdentity) else ByIdentity(value, key)
    if isinstance(value, Tensor) and value.source is not None and value.source.accessor[0] != "slot":
        interp.externals.guard_key(value)
        value.source.check(("is", value.real))
        return ByIdentity(value, value.real)
    if holds_nan(value):
        raise Unsupported("B017", "a NaN in a set")
    if not interp.is_plain(value):
        key = hashable(interp, value)
        return ByIdentity(value, key) if isinstance(key, torch.Tensor) else key
    if is_nan(value):
        raise Unsupported("B017", "a NaN in a set")
    real = interp.plain(value, in_order=not isinstance(value, Set))
    try:
        hash(real)
    except TypeError as error:
        raise Raised.of(error) from None
    return _known_as(interp, value, real) if isinstance(value, Sequence | Set) else real


def _known_as(interp: Interpreter, value: Value, real: Any) -> Any:
    """A key that stands for a tuple or frozenset: who takes it out again has that very object."""
    return interp.key_objects.setdefault(id(real), (real, value))[0]


def sought_key(interp: Interpreter, value: Value) -> Any:
    """What is looked for in a set: a set as well, by the frozenset that is its equal."""
    held = value.contents if isinstance(value, Instance) else value
    if isinstance(held, Set) and held.kind is set and interp.is_plain(held) and _is_unhashable(interp, value):
        return frozenset(held.items)
    return item_key(interp, value)


def _is_unhashable(interp: Interpreter, value: Value) -> bool:
    kind = python_type(value)
    return kind is not None and interp.tree.class_attribute(kind, "__hash__") is None


def hashable(interp: Interpreter, key: Value) -> Any:
    """A key of a dict: the real one, or what stands for one that is made by the captured code."""
    if isinstance(key, Object):
        return _of_object(interp, key)
    if isinstance(key, Tensor):
        return _of_tensor(interp, key)
    if isinstance(key, Sequence) and key.kind is not list:
        items = [hashable(interp, interp.externals.force(item)) for item in key.items]
        return _known_as(interp, key, make_sequence(key.kind, items))
    if is_nan(key):
        raise Unsupported("B017", "a NaN as a key")
    if isinstance(key, Constant) and is_constant(key.value):
        return interp.plain(key)
    if isinstance(key, Set) and key.kind is frozenset and interp.is_plain(key):
        return _known_as(interp, key, interp.plain(key, in_order=False))
    if isinstance(key, Instance):
        return _by_class(interp, key, key.kind)
    if isinstance(key, Function | Partial) and key.source is None:
        return ByIdentity(key, key)
    if isinstance(key, Method):
        return ByParts(key, (_identified(interp, key.function), _identified(interp, key.receiver)))
    raise lacking(key, "__hash__", Unsupported("B017", describe(key)))


def _of_object(interp: Interpreter, key: Object) -> Any:
    if is_a(key.value, type) and not is_plain_type(key.value):
        raise Unsupported("B017", f"{describe(key)}, whose metaclass can redefine it")
    if is_a(key.value, type | types.FunctionType | types.BuiltinFunctionType | types.ModuleType):
        interp.externals.rely_on_contents(key.value)
        return interp.externals.guard_identity(key)
    if interp.tree.class_attribute(type(key.value), "__hash__") is object.__hash__:
        return interp.externals.guard_identity(key)
    return _by_class(interp, key, type(key.value))


def _of_tensor(interp: Interpreter, key: Tensor) -> Any:
    if key.real is None or key.source is None:
        return ByIdentity(key, key)
    if not interp.externals.guard_key(key):
        return ByIdentity(key, key.real)
    interp.externals.mark_grad_target(key)
    return key.real


def _identified(interp: Interpreter, part: Value) -> Any:
    if isinstance(part, Object):
        return interp.externals.guard_identity(part)
    if part.source is not None or isinstance(part, Constant | Sequence):
        raise Unsupported("B017", f"a method of {describe(part)}")
    return part


def _by_class(interp: Interpreter, key: Object | Instance, kind: type) -> ByIdentity:
    """An object as its class has it: by identity, or by `__hash__` and `__eq__` of the program."""
    if interp.tree.class_attribute(kind, "__hash__") is object.__hash__:
        by_identity = interp.tree.class_attribute(kind, "__eq__") is object.__eq__
        if not by_identity or not isinstance(key, Instance) or isinstance(key, ExceptionValue):
            raise Unsupported("B017", describe(key))
        return ByIdentity(key, key)
    hashed = hash_of(interp, key)
    interp.key_answers[id(key), None, hashed] = key, lambda: hash_of(interp, key) == hashed

    def is_equal(value: Value, other: Any) -> bool:
        right = other.value if isinstance(other, ByIdentity) else key_value(interp, other)
        if _are_equal(interp, value, right):
            return True
        if isinstance(other, ByIdentity):
            both = value, right
            interp.key_answers[id(value), id(right), None] = both, lambda: not _are_equal(interp, *both)
        return False

    return ByRule(key, hashed, is_equal)


def _are_equal(interp: Interpreter, left: Value, right: Value) -> bool:
    answer = interp.now(interp.call(interp.externals.fixed(operator.eq), [left, right]))
    if not isinstance(answer, Constant):
        raise Unsupported("B017", f"{describe(left)}, whose __eq__ answers {describe(answer)}")
    return bool(answer.value)


def keys_hold(interp: Interpreter, rebuilt: set[int]) -> bool:
    """Whether `__hash__` and `__eq__` of the program still answer what they did when keys were put into dicts and sets.

    They run again when those are rebuilt: before what the program wrote is written, or after. `rebuilt`: the ids of
    the keys that are put into such a dict or set."""
    checks = [
        check
        for (key, other, _), (_, check) in interp.key_answers.items()
        if key in rebuilt and (other is None or other in rebuilt)
    ]
    if not checks:
        return True
    with interp.externals.without_writes():
        before = _answers_hold(interp, checks)
    return before and _answers_hold(interp, checks)


def _answers_hold(interp: Interpreter, checks: list[Callable[[], bool]]) -> bool:
    answers: list[bool] = []
    plain = interp.has_no_side_effects(lambda: answers.append(all(check() for check in checks)))
    return plain and answers == [True]


def hash_of(interp: Interpreter, value: Value) -> int:
    """`hash(value)`."""
    if isinstance(value, Instance | Object):
        kind = python_type(value)
        method = interp.tree.class_attribute(kind, "__hash__") if kind is not None else None
        if isinstance(method, types.FunctionType):
            with interp.refusing_changes(f"__hash__ of {describe(value)}"):
                answer = interp.plain(interp.now(interp.call(interp.externals.fixed(method), [value])))
            if type(answer) not in (int, bool):
                raise Unsupported("B019", f"TypeError: __hash__ of {describe(value)}")
            return hash(answer)
        if method is None:
            raise lacking(value, "__hash__")
        held = interp.externals.contents(value) if isinstance(value, Object) else value.contents
        if held is not None and method is static_lookup(contents_kind(held) or object, "__hash__"):
            return hash_of(interp, held)
    elif not isinstance(value, Tensor | Function | Partial | Method):
        real = interp.plain(value, in_order=not isinstance(value, Set))
        interp.tree.why_not_persist = "a hash"
        try:
            return hash(real)
        except TypeError as error:
            raise Raised.of(error) from error
    raise Unsupported("B002", f"hash of {describe(value)}, which is its address,")


def key_value(interp: Interpreter, key: object) -> Value:
    """The value of a dict key."""
    if isinstance(key, ByIdentity):
        return key.value
    if not is_a(key, tuple | frozenset):
        return interp.externals.fixed(key)
    if id(key) not in interp.key_objects:
        items = [key_value(interp, item) for item in key] if is_a(key, tuple) else []  # type: ignore[attr-defined]
        value = Sequence(type(key), items) if is_a(key, tuple) else interp.wrap_plain(key)
        interp.key_objects[id(key)] = key, value
    return interp.key_objects[id(key)][1]


def key_error(interp: Interpreter, key: Value) -> Raised:
    """What Python raises for a key that is not there."""
    return Raised(ExceptionValue(KeyError, args=Sequence(tuple, [key])), f"KeyError: {describe(key)}")


_SINGLETONS = (type(None), bool, type(Ellipsis), type(NotImplemented))
_REPEATABLE = (int, str, bytes, range, torch.device)  # of these there may be two that are equal


def identical(interp: Interpreter, left: Value, right: Value) -> bool:
    """`left is right`."""
    if left is right:
        return True
    if isinstance(left, Constant) and isinstance(right, Constant):
        if is_nan(left) and is_nan(right):
            return one_nan(left, right)
        if python_type(left) is not python_type(right) or left.value != right.value:
            return False
        if left.value is not right.value or is_a(left.value, float | complex):
            raise Unsupported("B014", f"{left.value!r} is {right.value!r}")
        if is_a(left.value, _REPEATABLE) and type(left.value) is not bool:
            _rely_on_identity(interp, left, right)
        return True
    made_later = isinstance(left, DeferredString | DeferredScalar) or isinstance(right, DeferredString | DeferredScalar)
    bools = python_type(left) is bool and python_type(right) is bool
    singletons = [isinstance(each, Constant) and python_type(each) in _SINGLETONS for each in (left, right)]
    if made_later and (bools or not any(singletons)):
        raise Unsupported("B014", f"{describe(left)} is {describe(right)}")
    if isinstance(left, Constant) or isinstance(right, Constant):
        return False
    if isinstance(left, Object) and isinstance(right, Object):
        return same_object(interp.externals, left, right)
    if type(left) is not type(right):
        return False
    if isinstance(left, TracebackValue) and isinstance(right, TracebackValue):
        return left.places[0] is right.places[0]
    if left.source is None and right.source is None and not isinstance(left, Method | Function | Partial):
        return False
    new_and_old = (left.source is None) != (right.source is None)
    own = isinstance(left, Tensor | Deque | Mapping) or (isinstance(left, Sequence) and left.kind is list)
    if new_and_old and own:
        return False
    if isinstance(left, Tensor) and isinstance(right, Tensor) and left.source is not None and right.source is not None:
        interp.tree.relations.append((left.source.collect(), right.source.collect(), left.real is right.real))
        return left.real is right.real
    raise Unsupported("B014", f"{describe(left)} is {describe(right)}")


def one_nan(left: Constant, right: Constant) -> bool:
    """Whether two NaNs are one object, which is known of those that the captured code made."""
    if left.source is not None or right.source is not None or Number in (type(left), type(right)):
        raise Unsupported("B014", "one NaN is another")
    return left.value is right.value


def _rely_on_identity(interp: Interpreter, *values: Value) -> None:
    """That equal values are one object, here and at each call; another process may have two."""
    interp.tree.why_not_persist = "two equal values being one object"
    for value in values:
        if value.source is not None:
            value.source.check(("is", value.value))  # type: ignore[attr-defined]
