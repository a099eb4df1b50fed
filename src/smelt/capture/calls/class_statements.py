"""Classes that the captured code defines: `class` statements and `type(name, bases, names)` inside a function.

    class Scaled(Base):              a stand-in class is made while capturing, whose functions stand for `Function`s
        def f(self, t): …            Scaled(x)  →  Instance(stand-in)

Each call of the function makes a class of its own. The stand-in is never seen by the program: where the class, or an
object of it, comes out of the graph, a new class is made of the same names, with what they hold by then.
"""

import builtins
import types
from collections import namedtuple
from typing import Any

from smelt.capture.interpreter.interpreter import Frame, Interpreter
from smelt.capture.model.breaks import Unsupported
from smelt.capture.model.made_classes import MadeClass, Member, make_namedtuple
from smelt.capture.model.static import ABSENT, is_a
from smelt.capture.model.values import (
    Cell,
    Constant,
    Descriptor,
    Function,
    Instance,
    Mapping,
    Object,
    Sequence,
    Value,
    describe,
    python_type,
)

_PLAIN_HOOK = object.__dict__["__init_subclass__"]
_ASKED = ("__get__", "__set__", "__delete__", "__set_name__")


def _refused(detail: str) -> Unsupported:
    return Unsupported("B002", f"a class statement with {detail}")


def build_class(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`__build_class__(body, name, *bases)`: what a `class` statement calls."""
    body, name, *bases = args
    if kwargs or not isinstance(body, Function):
        raise _refused("keywords")
    names = Mapping({})
    frame = Frame(body.info, body, body.globals, body.closure, [None] * body.info.slot_count, [], names=names)
    interp.now(interp.enter(frame))
    cell = names.items.pop("__classcell__", None)
    assert cell is None or isinstance(cell, Cell)
    return _make(interp, interp.plain(name), bases, names, cell)


def type_of_three(interp: Interpreter, args: list[Value]) -> Value:
    """`type(name, bases, names)`."""
    name, bases, namespace = args
    if not isinstance(bases, Sequence) or not isinstance(namespace, Mapping) or "__classcell__" in namespace.items:
        raise _refused("other than a tuple and a dict")
    interp.externals.complete(namespace)
    names = Mapping({key: interp.externals.force(item) for key, item in namespace.items.items()})
    if "__module__" not in names.items:
        module = interp.externals.global_name(interp.frames[-1].globals, "__name__")
        if module is not None:
            names.items["__module__"] = module
    return _make(interp, interp.plain(name), interp.externals.items(bases), names, None)


def _make(interp: Interpreter, name: str, bases: list[Value], names: Mapping, cell: Cell | None) -> Value:
    real_bases = tuple(_base(interp, base) for base in bases)
    members = {key: _member(interp, item) for key, item in names.items.items()}
    try:
        kind = type(name, real_bases, members)
    except (TypeError, ValueError) as error:
        raise Unsupported("B019", f"{type(error).__name__}: {error}") from None
    interp.tree.made_classes[id(kind)] = MadeClass(kind, bases, names, cell)
    class_value = interp.externals.fixed(kind)
    if cell is not None:
        interp.before_mutation(cell)
        cell.contents = class_value
    return class_value


def _base(interp: Interpreter, base: Value) -> type:
    kind: Any = interp.externals.guard_identity(base) if isinstance(base, Object) else None
    if not is_a(kind, type) or interp.tree.metaclass(kind) is not type:
        raise _refused(f"the base {describe(base)}")
    if interp.tree.class_attribute(kind, "__init_subclass__") is not _PLAIN_HOOK:
        raise _refused(f"{describe(base)}, which looks at its subclasses")
    real: type = kind
    return real


def _member(interp: Interpreter, value: Value) -> Any:
    """What the stand-in class holds in the place of a value."""
    if type(value) is Constant:
        return value.value
    if isinstance(value, Descriptor):
        return value.kind(*[_member(interp, part) for part in value.parts])
    if isinstance(value, Function):
        code = value.info.code
        cells = tuple(types.CellType() for _ in code.co_freevars)
        return interp.externals.stand_in(types.FunctionType(code, value.globals.names, None, None, cells), value)
    if isinstance(value, Object) and is_a(value.value, (type, types.FunctionType, types.BuiltinFunctionType)):
        return interp.externals.guard_identity(value)
    kind = python_type(value)
    if isinstance(value, Object | Instance) and (kind is None or any(map(_asks(interp, kind), _ASKED))):
        raise _refused(f"{describe(value)}, a descriptor")
    return interp.externals.stand_in(Member(), value)


def _asks(interp: Interpreter, kind: type) -> Any:
    return lambda name: interp.tree.class_attribute(kind, name) is not ABSENT


def _namedtuple(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`collections.namedtuple` of plain names."""
    plain = [interp.plain(value) for value in args]
    named = {key: interp.plain(value) for key, value in kwargs.items()}
    module = interp.externals.global_name(interp.frames[-1].globals, "__name__")
    named.setdefault("module", None if module is None else interp.plain(module))
    try:
        kind = make_namedtuple(plain, named)
    except (TypeError, ValueError) as error:
        raise Unsupported("B019", f"{type(error).__name__}: {error}") from None
    interp.tree.made_classes[id(kind)] = MadeClass(kind, [], Mapping({}), None, (plain, named))
    return interp.externals.fixed(kind)


def make_descriptor(interp: Interpreter, kind: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`property(f)`, `staticmethod(f)`, `classmethod(f)`."""
    if kwargs or not args or len(args) > (4 if kind is property else 1):
        raise Unsupported("B002", f"class {kind.__qualname__}")
    return Descriptor(kind, list(args))


def replace_part(interp: Interpreter, name: str, value: Descriptor, args: list[Value]) -> Value:
    """`p.getter(f)`, `p.setter(f)`, `p.deleter(f)`."""
    place = ("getter", "setter", "deleter").index(name)
    parts = [*value.parts, *[Constant(None)] * 3][:3]
    parts[place] = args[0]
    return Descriptor(property, [*parts, *value.parts[3:]])


CLASS_CALLS: dict[Any, Any] = {builtins.__build_class__: build_class, namedtuple: _namedtuple}
