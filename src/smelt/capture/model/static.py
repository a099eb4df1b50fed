"""What objects and classes are, looked up without running code of the program: no `__getattribute__`, no metaclass.

static_lookup(kind, "forward") → what the class or its bases hold under the name, or ABSENT
"""

import inspect
import threading
import types
from collections.abc import Callable
from typing import Any

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE
ABSENT = object()

# What a class is, asked of `type` and not of its metaclass, which may have an answer of its own.
mro_of: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
flags_of: Callable[[type], int] = type.__dict__["__flags__"].__get__
class_dict_of: Callable[[type], Any] = type.__dict__["__dict__"].__get__
qualname_of: Callable[[type], str] = type.__dict__["__qualname__"].__get__
module_of: Callable[[type], str] = type.__dict__["__module__"].__get__


def static_lookup(kind: type, name: str) -> Any:
    """What the class or its bases hold under `name`, without running descriptors; `ABSENT` if nothing."""
    for base in mro_of(kind):
        held = class_dict_of(base)
        if name in held:
            return held[name]
    return ABSENT


def is_a(real: object, kinds: Any) -> bool:
    """`isinstance` by the object's class alone: what an object says it is, is code of the program."""
    return issubclass(type(real), kinds)


_OF_THREAD: Callable[[object, str], Any] = threading.local.__dict__["__getattribute__"]


def own_dict(real: object) -> Any:
    """The `__dict__` of an object, its class not being asked; None if there is none. Of a `threading.local`, that of
    this thread."""
    if is_a(real, threading.local):
        return _OF_THREAD(real, "__dict__")
    descriptor = static_lookup(type(real), "__dict__")
    held = isinstance(descriptor, types.GetSetDescriptorType | types.MemberDescriptorType)
    return descriptor.__get__(real) if held else None


def is_bound_method(real: Any) -> bool:
    """Whether a builtin is a method bound to an ordinary object or a class, rather than a function of a module."""
    receiver = real.__self__
    if receiver is None or isinstance(receiver, types.ModuleType):
        return False
    if is_a(receiver, type):
        method = static_lookup(receiver, real.__name__)
        return isinstance(method, types.ClassMethodDescriptorType) and bool(method.__get__(None, receiver) == real)
    method = getattr(type(receiver), real.__name__, None)
    return isinstance(method, types.MethodDescriptorType)


def is_heap_type(kind: type) -> bool:
    """Whether Python code has made the class, and may change it: those of C stay what they are."""
    return bool(flags_of(kind) & _HEAP_TYPE)


FIELD = type(inspect.Attribute.name)  # of named tuples


def fields_of(kind: type) -> tuple[tuple[str, int], ...]:
    """The fields of a named tuple and their places: what a class holds under the name is that, and nothing else."""
    fields: list[tuple[str, int]] = []
    for name in (name for base in mro_of(kind) for name in class_dict_of(base)):
        member = static_lookup(kind, name)
        if type(member) is FIELD:
            place: Any = member.__reduce__()[1][0]
            fields.append((name, place))
    return tuple(fields)
