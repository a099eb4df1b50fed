"""Enums as classes: their members in order, by name and by value, as far as Python's own metaclass answers.

for each in Color: …   Color["RED"]   Color(1)   len(Color)   "RED" in Color.__members__
"""

import enum
from typing import Any

from smelt.capture.interpreter.attributes import attribute_now
from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.model.breaks import Unsupported
from smelt.capture.model.static import is_a
from smelt.capture.model.values import Constant, Mapping, Object, Value, describe


def is_enum(value: Value) -> bool:
    """Whether a value is a class of constants."""
    return isinstance(value, Object) and is_a(value.value, enum.EnumMeta)


def members_of(interp: Interpreter, value: Value, method: str) -> list[Value]:
    """Its members in the order in which they are yielded, for a special method of the metaclass."""
    kind = _answered_by_python(interp, value, method)
    names = interp.plain(attribute_now(interp, value, "_member_names_"))
    held = _table(interp, value, "_member_map_")
    if not all(interp.externals.present(held, name) for name in names):
        raise Unsupported("B008", f"members of {kind.__qualname__}")
    return [interp.externals.force(held.items[name]) for name in names]


def member_named(interp: Interpreter, value: Value, key: Value) -> Value:
    """`Color["RED"]`."""
    kind = _answered_by_python(interp, value, "__getitem__")
    held = _table(interp, value, "_member_map_")
    if not isinstance(key, Constant) or type(key.value) is not str or not interp.externals.present(held, key.value):
        raise Unsupported("B008", f"{kind.__qualname__}[…]")
    return interp.externals.force(held.items[key.value])


def member_of_value(interp: Interpreter, value: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`Color(1)` for a value that the enum has."""
    kind = _answered_by_python(interp, value, "__call__")
    if len(args) == 1 and not kwargs and isinstance(args[0], Constant):
        if type(args[0].value) is kind:
            return args[0]
        held = _table(interp, value, "_value2member_map_")
        wanted = interp.plain(args[0])
        make = interp.tree.class_attribute(kind, "__new__")
        made_plainly = getattr(make, "__func__", make) is enum.Enum.__new__
        if made_plainly and _is_key(wanted) and interp.externals.present(held, wanted):
            return interp.externals.force(held.items[wanted])
    raise Unsupported("B002", f"class {kind.__qualname__}")


def _is_key(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _table(interp: Interpreter, value: Value, name: str) -> Mapping:
    """One of the dicts that an enum keeps its members in."""
    table = attribute_now(interp, value, name)
    if not isinstance(table, Mapping):
        raise Unsupported("B008", f"members of {describe(value)}")
    return table


def _answered_by_python(interp: Interpreter, value: Value, method: str) -> Any:
    """The class, if Python's own metaclass answers when the method is asked for."""
    assert isinstance(value, Object)
    kind = interp.externals.guard_identity(value)
    if interp.tree.metaclass_attribute(kind, method) is not vars(enum.EnumMeta)[method]:
        raise Unsupported("B008", f"{method} of {describe(value)}")
    return kind
