"""`isinstance`, `issubclass` and `callable` of values, as Python answers them, each answer relied on.

isinstance(x, Base)        type(x) has Base among its bases: guarded, as `__bases__` can be assigned
isinstance(x, Mapping)     an abstract class: it is asked again after each registration
isinstance(x, Wanted)      its metaclass has an `__instancecheck__` in Python: followed like any call
isinstance(proxy, Base)    its `__class__` is a property: read like any attribute
"""

import _abc  # type: ignore[import-not-found]
import abc
import types
from typing import Any

from smelt.capture.interpreter.attributes import attribute_or_none, shows_real_class
from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.interpreter.operators import truth
from smelt.capture.model.breaks import Unsupported
from smelt.capture.model.policy import is_of_libraries
from smelt.capture.model.static import ABSENT, is_a, mro_of, static_lookup
from smelt.capture.model.values import Object, Sequence, Value, describe, python_type

_INSTANCE, _SUBCLASS, _HOOK = "__instancecheck__", "__subclasscheck__", "__subclasshook__"
_subclasses_of: Any = type.__dict__["__subclasses__"]


def is_instance(interp: Interpreter, value: Value, classes: Value) -> bool:
    """`isinstance(value, classes)`, asked in Python's order: what is not needed is not asked."""
    return any(_is_instance_of(interp, value, each) for each in _each(interp, classes, "isinstance"))


def is_subclass(interp: Interpreter, value: Value, classes: Value) -> bool:
    """`issubclass(value, classes)`."""
    _class_of(interp, value)
    return any(_is_subclass_of(interp, value, each) for each in _each(interp, classes, "issubclass"))


def is_callable(interp: Interpreter, value: Value) -> bool:
    """`callable(value)`: whether its class has `__call__`, whatever that is."""
    kind = python_type(value)
    if kind is None:
        raise Unsupported("B008", f"callable of {describe(value)}")
    if isinstance(value, Object) and is_a(value.value, type):
        interp.externals.guard_identity(value)
        interp.tree.metaclass(value.value)
    return interp.tree.class_attribute(kind, "__call__") is not ABSENT


def _each(interp: Interpreter, classes: Value, what: str) -> list[Object]:
    """The classes that are asked one after the other."""
    if isinstance(classes, Sequence) and classes.kind is tuple:
        return [each for item in interp.externals.items(classes) for each in _each(interp, item, what)]
    if isinstance(classes, Object) and is_a(classes.value, type):
        interp.externals.guard_identity(classes)
        return [classes]
    if isinstance(classes, Object) and is_a(classes.value, types.UnionType):
        parts = interp.externals.guard_identity(classes).__args__
        if all(type(each) is not types.GenericAlias and isinstance(each, type) for each in parts):
            return [_fixed(interp, each) for each in parts]
    raise Unsupported("B008", f"{what} with {describe(classes)}")


def _fixed(interp: Interpreter, kind: type) -> Object:
    class_value = interp.externals.fixed(kind)
    assert isinstance(class_value, Object)
    return class_value


def _is_instance_of(interp: Interpreter, value: Value, wanted: Object) -> bool:
    kind, real = python_type(value), wanted.value
    if kind is None:
        raise Unsupported("B008", f"isinstance of {describe(value)}")
    if kind is real:
        return True  # then nobody is asked
    check = interp.tree.metaclass_attribute(real, _INSTANCE)
    if check is type.__instancecheck__:
        return by_bases(interp, value, wanted)
    if check is abc.ABCMeta.__instancecheck__:
        return by_register(interp, value, wanted)
    return _by_hook(interp, check, wanted, value)


def _is_subclass_of(interp: Interpreter, value: Any, wanted: Object) -> bool:
    check = interp.tree.metaclass_attribute(wanted.value, _SUBCLASS)
    if type(wanted.value) is type and value.value is wanted.value:
        return True
    if check is type.__subclasscheck__:
        return interp.tree.has_base(value.value, wanted.value)
    if check is abc.ABCMeta.__subclasscheck__:
        return registered(interp, value.value, wanted)
    return _by_hook(interp, check, wanted, value)


def _by_hook(interp: Interpreter, hook: Any, wanted: Object, value: Value) -> bool:
    """What a metaclass's own method says; it is followed."""
    if not isinstance(hook, types.FunctionType):
        raise Unsupported("B008", f"isinstance by {describe(wanted)}, a class that looks at it")
    return truth(interp, interp.now(interp.call(interp.externals.fixed(hook), [wanted, value])))


def by_bases(interp: Interpreter, value: Value, wanted: Object) -> bool:
    """`type.__instancecheck__(wanted, value)`: by the value's class, then by what it says its class is."""
    kind = python_type(value)
    if kind is None:
        raise Unsupported("B008", f"isinstance of {describe(value)}")
    if interp.tree.has_base(kind, wanted.value):
        return True
    shown = _shown_class(interp, value, kind)
    return shown is not kind and interp.tree.has_base(shown, wanted.value)


def by_register(interp: Interpreter, value: Value, wanted: Object) -> bool:
    """`ABCMeta.__instancecheck__(wanted, value)`."""
    kind = python_type(value)
    if kind is None:
        raise Unsupported("B008", f"isinstance of {describe(value)}")
    shown = _shown_class(interp, value, kind)
    return registered(interp, shown, wanted) or (shown is not kind and registered(interp, kind, wanted))


def has_base(interp: Interpreter, value: Value, wanted: Object) -> bool:
    """`type.__subclasscheck__(wanted, value)`."""
    return interp.tree.has_base(_class_of(interp, value), interp.externals.guard_identity(wanted))


def is_registered(interp: Interpreter, value: Value, wanted: Object) -> bool:
    """`ABCMeta.__subclasscheck__(wanted, value)`."""
    return registered(interp, _class_of(interp, value), wanted)


def _class_of(interp: Interpreter, value: Value) -> type:
    if not isinstance(value, Object) or not is_a(value.value, type):
        raise Unsupported("B008", f"issubclass of {describe(value)}")
    real: type = interp.externals.guard_identity(value)
    return real


def registered(interp: Interpreter, kind: type, wanted: Object) -> bool:
    """What an abstract class says of another. Hooks of the program that it may ask are followed first: they run here
    only if they change nothing."""
    real = wanted.value
    if interp.tree.class_attribute(real, _SUBCLASS) is not ABSENT:  # which is asked before the metaclass's
        raise Unsupported("B008", f"isinstance by {describe(wanted)}, a class with a hook")
    if not is_a(real, abc.ABCMeta):
        raise Unsupported("B008", f"isinstance by {describe(wanted)}")
    hook = interp.tree.class_attribute(real, _HOOK)
    if id(kind) in interp.tree.made_classes or not _remembers(real, kind):
        _follow_hook(interp, real, hook, kind, wanted)
        is_base = any(each is real for each in mro_of(kind))  # then no subclass is asked
        for each in () if is_base or _answers(real, hook, kind) else _below(real):
            _follow_hook(interp, each, static_lookup(each, _HOOK), kind, wanted)
    try:
        return interp.tree.is_registered(kind, real)
    except Exception as error:  # of a protocol with attributes, say
        raise Unsupported("B008", f"issubclass by {describe(wanted)}, which raises") from error


def _remembers(real: type, kind: type) -> bool:
    """Whether an abstract class has answered this before, so that it asks nobody."""
    _, said_yes, said_no, version = _abc._get_dump(real)
    return any(each() is kind for each in said_yes) or (
        version == abc.get_cache_token() and any(each() is kind for each in said_no)
    )


def _answers(real: type, hook: Any, kind: type) -> bool:
    """Whether a hook of Python's library decides, as those of `Iterable` and `Sized` do: then no subclass is asked."""
    if not isinstance(hook, classmethod) or not _asks_nobody(hook):
        return False
    try:
        return hook.__func__(real, kind) is not NotImplemented
    except Exception:  # of a protocol with attributes, say, which it also raises when it is asked
        return False


def _follow_hook(interp: Interpreter, asked: type, hook: Any, kind: type, wanted: Object) -> None:
    """A class that is asked may have a hook of the program: it must be one that can be followed and changes nothing."""
    if asked is not wanted.value and not _asks_nobody(static_lookup(type(asked), _SUBCLASS)):
        raise Unsupported("B008", f"isinstance by {describe(wanted)}, a class with a hook")  # protocols, from 3.12 on
    if _asks_nobody(hook):
        return
    if not isinstance(hook, classmethod) or not isinstance(hook.__func__, types.FunctionType):
        raise Unsupported("B008", f"isinstance by {describe(wanted)}, a class with a hook")
    with interp.refusing_changes(f"isinstance by {describe(wanted)}, a class with a hook"):
        interp.now(interp.call(interp.externals.fixed(hook.__func__), [_fixed(interp, asked), _fixed(interp, kind)]))


def _below(kind: type) -> list[type]:
    """The subclasses that an abstract class asks in turn."""
    classes: dict[int, type] = {}  # by id: a metaclass may say which classes are equal
    pending = [kind]
    while pending:
        new = [each for each in _subclasses_of(pending.pop()) if id(each) not in classes]
        classes.update({id(each): each for each in new})
        pending += new
    return list(classes.values())


def _asks_nobody(hook: Any) -> bool:
    """Whether a `__subclasshook__` is not the program's."""
    function = hook.__func__ if isinstance(hook, classmethod) else hook
    return not isinstance(function, types.FunctionType) or is_of_libraries(function.__code__)


def _shown_class(interp: Interpreter, value: Value, kind: type) -> type:
    """What `value.__class__` says, if it is a class at all."""
    if shows_real_class(interp, value, kind):
        return kind
    shown = attribute_or_none(interp, value, "__class__")
    if isinstance(shown, Object) and is_a(shown.value, type):
        real: type = interp.externals.guard_identity(shown)
        return real
    return kind
