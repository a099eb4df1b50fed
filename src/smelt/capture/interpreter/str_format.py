"""Values as text: `str`, `repr`, `format` and f-strings, a class's own `__str__` and `__repr__` included.

The text of a tensor is made after the graph has run, so that a line that prints one is one break, not two:

    print(f"loss {loss:.3f}")   →   print(Text("loss " + format(loss, ".3f")))
"""

import enum
import functools
import re
import sys
import types
from collections import OrderedDict, defaultdict
from typing import Any, TypeGuard

import torch

from smelt.capture.interpreter.dict_keys import key_value
from smelt.capture.interpreter.dunder_dispatch import held_operands
from smelt.capture.interpreter.exceptions import formatted_exception
from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.interpreter.iterators import items_in_order
from smelt.capture.interpreter.special_methods import checked_str
from smelt.capture.model.breaks import Unsupported
from smelt.capture.model.bytecode import only_raises
from smelt.capture.model.static import is_a
from smelt.capture.model.values import (
    Constant,
    DeferredScalar,
    DeferredString,
    DictView,
    ExceptionValue,
    Instance,
    Mapping,
    Object,
    Sequence,
    Set,
    Tensor,
    Value,
    contents_kind,
    describe,
    own_operators,
    python_type,
)

_REAL_SPEC = re.compile(r"[<>=^]?[-+ ]?0?\d{0,4}[_,]?(\.\d{1,4})?[eEfFgG%]")  # what every float can be formatted by
_FUNCTIONS: dict[str, Any] = {"__str__": str, "__repr__": repr, "__ascii__": ascii}


def _rely_on_names(interp: Interpreter, value: Any) -> None:
    """The names of classes that a plain value's text tells."""
    if isinstance(value, Constant) and is_a(value.value, enum.Enum):
        interp.tree.class_name(type(value.value))
        interp.tree.class_name(type(value.value), "__qualname__")
    elif isinstance(value, Object) and is_a(value.value, type):
        interp.tree.class_name(value.value, "__qualname__")
        interp.tree.class_attribute(value.value, "__module__")
    elif isinstance(value, Sequence):
        if value.kind not in (tuple, list):
            interp.tree.class_name(value.kind)
        for item in interp.externals.items(value):
            _rely_on_names(interp, item)
    elif isinstance(value, Mapping):
        for key, item in value.items.items():
            _rely_on_names(interp, interp.externals.fixed(key) if is_a(key, (type, enum.Enum)) else key)
            _rely_on_names(interp, interp.externals.force(item))
    elif isinstance(value, Set):
        for item in value.items:
            if is_a(item, (type, enum.Enum)):
                _rely_on_names(interp, interp.externals.fixed(item))


def text_of(interp: Interpreter, value: Value, how: str = "__str__", asked: str | None = None) -> Value:
    """`str(value)`, or `repr` or `ascii` by `how`; `asked`: the method that errors name, if it is another."""
    if isinstance(value, ExceptionValue) and how != "__ascii__":
        return formatted_exception(interp, value, how)
    if how in _own_wording(value):
        method = interp.tree.class_attribute(python_type(value), how)  # type: ignore[arg-type]
        return checked_str(value, how, interp.now(interp.call(interp.externals.fixed(method), [value])))
    if _is_given_set(value, interp):
        return _text_of_set(interp, value, how)
    if interp.is_plain(value):
        _rely_on_names(interp, value)
        return interp.compute(_FUNCTIONS[how], interp.plain(value))
    if isinstance(value, DeferredString) and how == "__str__":
        return value
    if interp.externals.explores and isinstance(value, DeferredScalar | Tensor):
        return _left_out(interp, value)
    if isinstance(value, DeferredScalar):
        return DeferredString(_FUNCTIONS[how], [value])
    if isinstance(value, Tensor) and _words_itself(interp, value):
        return _later(interp, _FUNCTIONS[how], value)
    if isinstance(value, Object) and type(value.value) is type:
        _rely_on_names(interp, value)
        return interp.compute(_FUNCTIONS[how], interp.externals.guard_identity(value))
    kind = python_type(value)
    held = held_operands(interp, ("__str__", "__repr__"), value)
    if held is not None and contents_kind(held[0]) in (dict, list, tuple, int, float, str):
        return text_of(interp, held[0], how)
    if isinstance(value, Sequence | Mapping | Set | DictView) and how != "__ascii__":
        return _text_of_container(interp, value)
    if isinstance(value, Object | Instance) and kind is not None and how != "__ascii__":
        method = interp.tree.class_attribute(kind, how)
        if how == "__str__" and method is object.__str__:
            return text_of(interp, value, "__repr__", how)
        of_base = held is not None and method is contents_kind(held[0]).__repr__
        if held is not None and of_base and contents_kind(held[0]) in (set, frozenset, OrderedDict):
            return _text_of_container(interp, held[0], interp.tree.class_name(kind))
        if isinstance(method, types.FunctionType):
            return checked_str(value, asked or how, interp.now(interp.call(interp.externals.fixed(method), [value])))
        if method is object.__repr__ and not interp.externals.explores:
            return DeferredString(object.__repr__, [value])  # it tells where the real object is
    raise Unsupported("B002", f"{_FUNCTIONS[how].__name__} of {describe(value)}")


def _text_of_container(interp: Interpreter, value: Any, name: str = "") -> Value:
    """`repr` of a container, item by item; `…` for one that holds itself. `name`: of its class, if that is another."""
    kind = python_type(value)
    if any(value is each for each in interp.worded):
        return _repeated(interp, value, f"{name or kind.__name__}(...)")  # type: ignore[union-attr]
    interp.worded.append(value)
    try:
        parts = _worded_parts(interp, value, kind, name)
    finally:
        interp.worded.pop()
    return joined_text(interp, parts)


_REPEATED: dict[type | None, str] = {list: "[...]", tuple: "(...)", dict: "{...}", OrderedDict: "..."}


def _repeated(interp: Interpreter, value: Any, otherwise: str) -> Value:
    """What stands for a container inside itself."""
    if isinstance(value, Mapping) and value.kind is defaultdict:
        factory = text_of(interp, value.factory or Constant(None), "__repr__")
        return joined_text(interp, [Constant("defaultdict("), factory, Constant(", {...})")])
    return Constant("..." if isinstance(value, DictView) else _REPEATED.get(contents_kind(value), otherwise))


def _worded_parts(interp: Interpreter, value: Any, kind: type | None, name: str) -> list[Value]:
    def word(item: Any) -> Value:
        return text_of(interp, interp.externals.force(item), "__repr__")

    def between(before: str, items: list[list[Value]], after: str) -> list[Value]:
        listed = [part for number, item in enumerate(items) for part in ([Constant(", ")] * (number > 0) + item)]
        return [Constant(before), *listed, Constant(after)]

    if isinstance(value, Set):
        items = [[word(key_value(interp, key))] for key in items_in_order(interp, value)]
        if value.kind is set and not name:
            return between("{", items, "}") if items else [Constant("set()")]
        name = name or value.kind.__name__
        return between(f"{name}({{", items, "})") if items else [Constant(f"{name}()")]
    if isinstance(value, Sequence) and kind in (list, tuple):
        items = [[word(item)] for item in value.items]
        if kind is list:
            return between("[", items, "]")
        return between("(", items, ",)" if len(items) == 1 else ")")
    mapping = value.mapping if isinstance(value, DictView) else value
    if isinstance(mapping, Mapping) and mapping.kind in (dict, OrderedDict, defaultdict):
        interp.externals.complete(mapping)
        keys, held = [word(key_value(interp, key)) for key in mapping.items], list(mapping.items.values())
        if isinstance(value, DictView) and value.part == "keys":
            return between(f"{kind.__name__}([", [[key] for key in keys], "])")  # type: ignore[union-attr]
        if isinstance(value, DictView) and value.part == "values":
            return between(f"{kind.__name__}([", [[word(item)] for item in held], "])")  # type: ignore[union-attr]
        if isinstance(value, DictView) or (mapping.kind is OrderedDict and sys.version_info < (3, 12)):
            open_, close = Constant("("), Constant(")")
            pairs = [[open_, key, Constant(", "), word(item), close] for key, item in zip(keys, held, strict=True)]
            if isinstance(value, Mapping) and not pairs:
                return [Constant(f"{name or 'OrderedDict'}()")]
            return between(f"{name or kind.__name__}([", pairs, "])")  # type: ignore[union-attr]
        pairs = [[key, Constant(": "), word(item)] for key, item in zip(keys, held, strict=True)]
        if mapping.kind is dict:
            return between("{", pairs, "}")
        if mapping.kind is OrderedDict:
            name = name or "OrderedDict"
            return between(f"{name}({{", pairs, "})") if pairs else [Constant(f"{name}()")]
        factory = text_of(interp, mapping.factory or Constant(None), "__repr__")
        return [Constant("defaultdict("), factory, *between(", {", pairs, "})")]
    method = interp.tree.class_attribute(kind, "__repr__") if kind is not None else None
    if not isinstance(method, types.FunctionType):
        raise Unsupported("B002", f"repr of {describe(value)}")
    return [checked_str(value, "__repr__", interp.now(interp.call(interp.externals.fixed(method), [value])))]


def _is_given_set(value: Value, interp: Interpreter) -> TypeGuard[Set]:
    """Whether a value is a set from outside, of plain items: an equal one may yield them in another order."""
    return isinstance(value, Set) and value.kind in (set, frozenset) and not value.ordered and interp.is_plain(value)


def _text_of_set(interp: Interpreter, value: Set, how: str) -> Value:
    items = items_in_order(interp, value)
    _rely_on_names(interp, value)
    inside = ", ".join(map(ascii if how == "__ascii__" else repr, items))
    whole = f"{{{inside}}}" if items else ""
    return Constant(whole if items and value.kind is set else f"{value.kind.__name__}({whole})")


def _own_wording(value: Value) -> frozenset[str]:
    """Methods by which the class of a member of an enum, or of a named tuple, words it."""
    if isinstance(value, Sequence):
        return own_operators(value.kind)
    member = value.value if isinstance(value, Constant) else None
    return own_operators(type(member)) if isinstance(member, enum.Enum) else frozenset()


def formatted(interp: Interpreter, value: Value, spec: str = "") -> Value:
    """`format(value, spec)`."""
    if "__format__" in _own_wording(value):
        raise Unsupported("B002", f"formatting of {describe(value)}")
    if "__str__" in _own_wording(value):
        return formatted(interp, text_of(interp, value), spec)
    if not spec and _is_given_set(value, interp):
        return _text_of_set(interp, value, "__str__")
    if interp.is_plain(value):
        _rely_on_names(interp, value)
        return interp.compute(format, interp.plain(value), spec)
    if isinstance(value, DeferredString) and not spec:
        return value
    if interp.externals.explores and isinstance(value, DeferredScalar | Tensor):
        return _left_out(interp, value)
    if isinstance(value, DeferredScalar) and (not spec or _REAL_SPEC.fullmatch(spec)):
        return DeferredString(functools.partial(_format_by, spec), [value])
    if isinstance(value, Tensor) and _words_itself(interp, value) and (not spec or _is_real(value, spec)):
        return _later(interp, functools.partial(_format_by, spec), value)
    if isinstance(value, Sequence | Mapping | Set | DictView) and not spec:
        return text_of(interp, value)
    kind = python_type(value)
    if isinstance(value, Object | Instance) and kind is not None:
        method = interp.tree.class_attribute(kind, "__format__")
        if isinstance(method, types.FunctionType):
            answer = interp.now(interp.call(interp.externals.fixed(method), [value, Constant(spec)]))
            return checked_str(value, "__format__", answer)
        if method is object.__format__ and not spec:
            return text_of(interp, value)
    raise Unsupported("B002", f"formatting of {describe(value)}")


def _left_out(interp: Interpreter, value: Value) -> Value:
    """What stands in a message for a number that an artifact has and Python has not: only an exception may say it."""
    frame = interp.frames[-1]
    if not only_raises(frame.info, frame.index):
        raise Unsupported("B004", f"{describe(value)} as text")
    return Constant("…")


def joined_text(interp: Interpreter, parts: list[Value]) -> Value:
    """The parts of an f-string put together."""
    if any(isinstance(part, DeferredString) for part in parts):
        return DeferredString(_join, parts)
    return Constant("".join(interp.plain(part) for part in parts))


def _join(*parts: str) -> str:
    return "".join(parts)


def _format_by(spec: str, real: Any) -> str:
    return format(real, spec)


def _later(interp: Interpreter, make: Any, value: Tensor) -> DeferredString:
    """`make(value)` once the graph has run; until then the tensor may not be written to."""
    interp.tape.formatted.append(value)
    return DeferredString(make, [value])


def _words_itself(interp: Interpreter, value: Tensor) -> bool:
    """Whether PyTorch's own methods word the tensor: they have no effects and never fail."""
    methods = [interp.tree.class_attribute(value.kind, name) for name in ("__str__", "__repr__", "__format__")]
    return all(method is object.__str__ or getattr(method, "__module__", "") in _WORDING_MODULES for method in methods)


_WORDING_MODULES = ("torch._tensor", "torch.nn.parameter")


def _is_real(value: Tensor, spec: str) -> bool:
    """Whether a number of any value can be formatted so: PyTorch formats tensors of no dimension as numbers."""
    is_number = value.kind is torch.Tensor and value.fake.dim() == 0 and value.fake.dtype.is_floating_point
    return is_number and _REAL_SPEC.fullmatch(spec) is not None
