"""Reading attributes: the lookup Python would do, done on values, with a guard for every place that was looked at.

self.lin      type(self) has no `lin`, self.__dict__ has none, self._modules["lin"] is the answer
"""

import enum
import functools
import inspect
import sys
import threading
import types
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from smelt.base.torch_originals import METHODS_OF_C, is_own
from smelt.capture.interpreter.backward import gradient_of, store_gradient
from smelt.capture.interpreter.exceptions import Missing, attribute_of, store_in, traceback_attribute
from smelt.capture.interpreter.externals import REGISTRIES, slot_names
from smelt.capture.interpreter.function_attributes import (
    asks_function,
    delete_from_function,
    function_attribute,
    part_of_callable,
    store_in_function,
)
from smelt.capture.interpreter.interpreter import PUSHED, Interpreter
from smelt.capture.interpreter.leaf_state import leaf_attribute, read, store_data, store_requires_grad
from smelt.capture.model.breaks import Raised, Unsupported
from smelt.capture.model.policy import TENSOR_BREAKS
from smelt.capture.model.source import Source
from smelt.capture.model.static import ABSENT, FIELD, class_dict_of, fields_of, is_a, is_heap_type, mro_of, own_dict
from smelt.capture.model.values import (
    NATIVE_CLASS,
    Array,
    Constant,
    Deque,
    Descriptor,
    ExceptionValue,
    FrameValue,
    Function,
    HookHandle,
    Instance,
    Iterator,
    LazyItem,
    Mapping,
    Method,
    Object,
    Partial,
    Sequence,
    Slice,
    Super,
    Tensor,
    TracebackValue,
    Value,
    Wrapper,
    ZippedIterator,
    describe,
    is_constant,
    python_type,
)
from smelt.capture.tape.program_state import let_library_make, names_operators, setting_of_backend

_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, *METHODS_OF_C)
_DESCRIPTORS_OF_C = (types.GetSetDescriptorType, types.MemberDescriptorType)
# C types whose attributes are looked up, and written, as object's are.
_PLAIN: tuple[Any, ...] = (object, BaseException, types.SimpleNamespace, threading.local)
_PLAIN_LOOKUP = frozenset(
    kind.__getattribute__ for kind in (*_PLAIN, dict, list, tuple, set, frozenset, OrderedDict, int, float, str)
)
_PLAIN_STORES = tuple(store for kind in _PLAIN for store in (kind.__setattr__, kind.__delattr__))

_OF_ITS_PLACE = ("co_filename", "co_firstlineno", "co_linetable", "co_lnotab")
_OF_PARAMETERS = ("name", "kind", "default", "annotation")  # each kept in a slot
_OF_MEMBERS = tuple(vars(enum.Enum)[name] for name in ("value", "name"))
_PARTS_OF_DESCRIPTORS = {"fget": 0, "fset": 1, "fdel": 2, "__func__": 0, "__wrapped__": 0}
_PROXIES = (weakref.ProxyType, weakref.CallableProxyType)


def _is_class(value: Value) -> bool:
    return isinstance(value, Object) and is_a(value.value, type)


def shows_real_class(interp: Interpreter, value: Value, kind: type) -> bool:
    """Whether `value.__class__` is its class, as it is of all but proxies."""
    if not is_heap_type(kind) or not isinstance(value, Object | Instance):
        return type(value) is not Object or kind not in _PROXIES
    if isinstance(value, Object) and is_a(value.value, type):
        interp.tree.metaclass(value.value)
    looked_up = interp.tree.class_attribute(kind, "__getattribute__")
    plain = looked_up in _PLAIN_LOOKUP or looked_up in (type.__getattribute__, types.ModuleType.__getattribute__)
    return plain and interp.tree.class_attribute(kind, "__class__") is object.__dict__["__class__"]


def attribute(interp: Interpreter, value: Value, name: str) -> Value:
    """`value.name`. May push a frame (property, `__getattr__`) and answer `PUSHED`."""
    if isinstance(value, Tensor):
        return _of_tensor(interp, value, name)
    if isinstance(value, Object):
        return _of_object(interp, value, name)
    if isinstance(value, Instance):
        return _of_instance(interp, value, name)
    if isinstance(value, Super):
        return _of_super(interp, value, name)
    if isinstance(value, Method | Partial):
        held = part_of_callable(value, name)
        if held is not None:
            return held
        if isinstance(value, Method) and asks_function(value, name):
            return attribute(interp, value.function, name)
    if isinstance(value, Slice) and name in ("start", "stop", "step"):
        part: Value = getattr(value, name)
        return part
    if isinstance(value, Sequence) and value.kind not in (tuple, list):
        field = _field_of(interp, value, name)
        if field is not None:
            return field
    if isinstance(value, Deque) and name == "maxlen":
        return Constant(value.maxlen)
    if isinstance(value, Mapping) and value.kind is defaultdict and name == "default_factory":
        return value.factory or Constant(None)
    if isinstance(value, Iterator | ZippedIterator) and name in ("__next__", "__iter__"):
        return Method(interp.externals.fixed(next if name == "__next__" else iter), value)
    if isinstance(value, TracebackValue):
        return traceback_attribute(value, name)
    if isinstance(value, Descriptor) and name in _PARTS_OF_DESCRIPTORS:
        place = _PARTS_OF_DESCRIPTORS[name]
        if (value.kind is property) == name.startswith("f"):
            return value.parts[place] if len(value.parts) > place else Constant(None)
    if isinstance(value, HookHandle) and name == "remove":
        return Method(interp.externals.fixed(RemovableHandle.remove), value)
    if isinstance(value, FrameValue) and name == "f_code":
        return Constant(value.info.code)
    own = function_attribute(interp, value, name) if isinstance(value, Function) else None
    return _of_builtin(interp, value, name) if own is None else own


def _of_builtin(interp: Interpreter, value: Value, name: str) -> Value:
    """Attributes of plain values and containers: methods of their exact type, and data of constants."""
    kind = python_type(value)
    if kind is None:
        raise Unsupported("B007", f"{name} of {describe(value)}")
    if isinstance(value, Constant) and is_a(value.value, enum.Enum):
        return _of_member(interp, value, name)
    if isinstance(value, Constant) and not callable(getattr(value.value, name, None)):
        if not hasattr(value.value, name):
            raise Missing(value, name)
        if is_a(value.value, types.CodeType) and name in _OF_ITS_PLACE:
            interp.tree.why_not_persist = f"{name} of code, whose file may move"
        return interp.compute(getattr, value.value, name)
    member = interp.tree.class_attribute(kind, name)
    if member is ABSENT:
        if name == "__class__":
            return interp.externals.fixed(kind)
        raise Missing(value, name)
    if isinstance(member, (*METHODS_OF_C, types.FunctionType)):
        return Method(interp.externals.fixed(member), value)
    if isinstance(member, types.ClassMethodDescriptorType):
        return Method(interp.externals.fixed(member), interp.externals.fixed(kind))
    if name == "__class__":
        return interp.externals.fixed(kind)
    if isinstance(value, Sequence) and not isinstance(member, _DESCRIPTORS_OF_C):
        return _bind(interp, value, member, _class_source(interp, kind, name), kind)  # of a named tuple
    raise Unsupported("B007", f"{name} of {describe(value)}")


def _field_of(interp: Interpreter, value: Sequence, name: str) -> Value | None:
    """A field of a named tuple or a structure of C's, by its name; None if it is something else."""
    place = dict(interp.tree.of_class(value.kind, fields_of)).get(name)
    if place is not None:
        return interp.externals.force(value.items[place])
    member = interp.tree.class_attribute(value.kind, name)
    if isinstance(member, types.MemberDescriptorType) and name in (names := getattr(value.kind, "__match_args__", ())):
        return interp.externals.force(value.items[names.index(name)])
    return None


def _of_member(interp: Interpreter, value: Constant, name: str) -> Value:
    """An attribute of a member of an enum: of what it holds itself, and what its class has."""
    member, kind = value.value, type(value.value)
    source = interp.tree.fixed(member, describe(value))
    if interp.tree.class_attribute(kind, "__getattribute__") not in _PLAIN_LOOKUP:
        raise Unsupported("B007", f"{name} of {describe(value)} (own __getattribute__)")
    attribute_of_class = interp.tree.class_attribute(kind, name)
    if any(attribute_of_class is each for each in _OF_MEMBERS):
        name = f"_{name}_"  # which those read
        attribute_of_class = interp.tree.class_attribute(kind, name)
    if name == "__class__":
        return interp.externals.fixed(kind)
    if isinstance(attribute_of_class, property | types.DynamicClassAttribute):
        if not isinstance(attribute_of_class.fget, types.FunctionType):
            raise Unsupported("B007", f"{name} of {describe(value)}")
        return _run_getter(interp, value, attribute_of_class.fget, name)
    if (
        attribute_of_class is not ABSENT
        and not is_heap_type(type(attribute_of_class))
        and _is_data_descriptor(interp, attribute_of_class)
    ):
        return interp.compute(attribute_of_class.__get__, member, kind)  # of a number or a string, which never change
    if _is_data_descriptor(interp, attribute_of_class):
        raise Unsupported("B007", f"{name} of {describe(value)}")
    held = _entry(interp, member.__dict__, source.instance_dict(), name, f"{source.text}.{name}")
    if held is not None:
        return held
    if attribute_of_class is ABSENT:
        return _fallback(interp, value, kind, name)
    return _bind(interp, value, attribute_of_class, _class_source(interp, kind, name), kind)


def _of_tensor(interp: Interpreter, value: Tensor, name: str) -> Value:
    member = interp.tree.class_attribute(value.kind, name)
    if not is_own(interp.tree.class_attribute(value.kind, "__getattribute__")):
        raise Unsupported("B007", f"{name} of a tensor, whose attributes the program looks up itself")
    if not is_own(member):
        return _replaced_of_tensor(interp, value, member, name)
    if name == "grad" and (value.real is not None or interp.tape.leaves.gradient_slots(value) is not None):
        return gradient_of(interp, value)
    set_to = read(interp, value, name) if name in ("data", "requires_grad") else None
    if set_to is not None:
        return set_to
    if name in ("grad_fn", "grad") and not value.fake.requires_grad and (name == "grad_fn" or value.source is None):
        return Constant(None)
    if name in ("is_leaf", "retains_grad"):
        known = leaf_attribute(value, name)
        if known is not None:
            return known
    if name in TENSOR_BREAKS and isinstance(member, (*_DESCRIPTORS_OF_C, property)):
        raise Unsupported(TENSOR_BREAKS[name], f"Tensor.{name}")
    if name == "__class__":
        return interp.externals.fixed(value.kind)
    if not isinstance(member, (*_DESCRIPTORS_OF_C, property)):  # those come before what the tensor itself holds
        if value.real is not None and value.source is not None and name in value.real.__dict__:
            return interp.externals.value(value.real.__dict__[name], value.source.member(name))
        _rely_on_class(interp, value, member, name)
    if member is ABSENT:
        return _fallback(interp, value, value.kind, name)
    if isinstance(member, (*METHODS_OF_C, types.FunctionType)):
        return Method(interp.externals.fixed(member), value)
    if isinstance(member, classmethod | staticmethod):
        raise Unsupported("B007", f"{name} of a tensor")
    if is_constant(member):  # `__doc__`, `__module__`: what the class of fake tensors has there is another
        return interp.externals.value(member, _class_source(interp, value.kind, name))
    return interp.tensor_call("call_function", getattr, [value, Constant(name)])


def _replaced_of_tensor(interp: Interpreter, value: Tensor, member: Any, name: str) -> Value:
    """What the program put into a class of tensors, read through a tensor."""
    if isinstance(member, property):
        if not isinstance(member.fget, types.FunctionType):
            raise Unsupported("B007", f"{name} of a tensor")
        return _run_getter(interp, value, member.fget, name)
    held = value.real is not None and name in value.real.__dict__
    if held or not isinstance(member, types.FunctionType):
        raise Unsupported("B007", f"{name} of a tensor, which the program replaced")
    _rely_on_class(interp, value, member, name)
    return Method(interp.externals.fixed(member), value)


def _rely_on_class(interp: Interpreter, value: Tensor, member: Any, name: str) -> None:
    """Rely on a tensor from outside holding nothing of its own under this name."""
    if value.source is None:
        return
    methods = (*METHODS_OF_C, types.FunctionType)
    if isinstance(member, methods) and interp.tree.class_attribute(value.kind, "__getattr__") is ABSENT:
        value.source.check(("method", name))  # asks without making a `__dict__`, which few tensors have
    else:
        value.source.instance_dict().check(("lacks", name))


def _of_instance(interp: Interpreter, value: Instance, name: str) -> Value:
    hook = interp.tree.class_attribute(value.kind, "__getattribute__")
    if is_a(hook, types.FunctionType):
        return _by_hook(interp, value, value.kind, hook, name)
    if hook not in _PLAIN_LOOKUP:
        raise Unsupported("B007", f"{name} of {describe(value)} (own __getattribute__)")
    answer = _plain_of_instance(interp, value, name)
    return _fallback(interp, value, value.kind, name) if answer is None else answer


def _by_hook(interp: Interpreter, value: Object | Instance, kind: type, hook: types.FunctionType, name: str) -> Value:
    """What a class's own `__getattribute__` answers; if it raises AttributeError, `__getattr__` is asked."""
    asked: list[Value] = [value, Constant(name)]
    if interp.tree.class_attribute(kind, "__getattr__") is ABSENT:
        return interp.call(interp.externals.fixed(hook), asked)
    answer = _unless_missing(interp, lambda: interp.now(interp.call(interp.externals.fixed(hook), asked)))
    return _fallback(interp, value, kind, name) if answer is None else answer


def _plain_of_instance(interp: Interpreter, value: Instance, name: str) -> Value | None:
    member = interp.tree.class_attribute(value.kind, name)
    if name == "__dict__" and isinstance(member, types.GetSetDescriptorType):
        if isinstance(value, Wrapper) and slot_names(value.kind):  # which are members too, and not in the dict
            raise Unsupported("B007", f"__dict__ of {describe(value)}")
        return value.members
    if isinstance(value, ExceptionValue) and isinstance(member, _DESCRIPTORS_OF_C):
        return attribute_of(interp, value, name)
    if isinstance(value, Wrapper) and isinstance(member, types.GetSetDescriptorType):
        assert interp.wrapper_attribute is not None
        return interp.wrapper_attribute(interp, value, name)
    if isinstance(value, Array) and isinstance(member, _DESCRIPTORS_OF_C) and interp.array_call is not None:
        return interp.array_call(interp, getattr, [value, Constant(name)])
    if isinstance(member, types.MemberDescriptorType) and name in value.attributes:
        return interp.externals.force(value.attributes[name])
    if _is_data_descriptor(interp, member):
        return _run_descriptor(interp, value, member, name)
    if name in value.attributes:
        return interp.externals.force(value.attributes[name])
    if member is not ABSENT:
        return _bind(interp, value, member, _class_source(interp, value.kind, name), value.kind)
    if name == "__class__":
        return interp.externals.fixed(value.kind)
    return None


def _of_super(interp: Interpreter, value: Super, name: str) -> Value:
    kind = python_type(value.receiver)
    receiver_type = value.receiver.value if _is_class(value.receiver) else kind  # type: ignore[attr-defined]
    if receiver_type is None:
        raise Unsupported("B007", f"super().{name}")
    if kind is not None and not any(base is value.kind for base in mro_of(receiver_type)):
        receiver_type = kind  # in a metaclass
    if not interp.tree.has_base(receiver_type, value.kind):
        raise Unsupported("B007", f"super().{name}")
    member = interp.tree.next_attribute(receiver_type, value.kind, name)
    if member is ABSENT:
        raise Missing(value, name)
    held = member.__func__ if isinstance(member, staticmethod) else member
    source = interp.tree.fixed(held, f"super().{name}")  # that it is found there, the class's guards say
    return _bind(interp, value.receiver, member, source, receiver_type)


def _of_object(interp: Interpreter, value: Object, name: str) -> Value:
    real = value.value
    if is_a(real, types.ModuleType):
        return _of_module(interp, value, name)
    if is_a(real, type):
        return _of_class(interp, value, name)
    if is_a(real, torch.Tensor) and (name not in (own_dict(real) or ()) or hasattr(type(real), name)):
        raise Unsupported("B006", type(real).__qualname__)
    if type(real) is inspect.Signature and name == "parameters" and value.identity_guarded:
        held = {key: interp.externals.fixed(parameter) for key, parameter in real.parameters.items()}
        return Mapping(held, types.MappingProxyType, proxy=real.parameters)
    if type(real) is inspect.Parameter and name in _OF_PARAMETERS and value.identity_guarded:
        return interp.externals.value(getattr(real, name), _source(value).attribute(f"_{name}"))
    hook = interp.tree.class_attribute(type(real), "__getattribute__")
    if is_a(hook, types.FunctionType):
        return _by_hook(interp, value, type(real), hook, name)
    if hook not in _PLAIN_LOOKUP and not is_a(real, _FUNCTIONS):
        raise Unsupported("B007", f"{name} of {describe(value)} (own __getattribute__)")
    answer = _plain_of_object(interp, value, name)
    return _fallback(interp, value, type(real), name) if answer is None else answer


def plain_attribute(interp: Interpreter, value: Object | Instance, name: str) -> Value:
    """`object.__getattribute__(value, name)`, which knows nothing of the class's `__getattr__`."""
    if isinstance(value, Instance):
        answer = _plain_of_instance(interp, value, name)
    else:
        answer = _plain_of_object(interp, value, name)
    if answer is None:
        raise Missing(value, name)
    return answer


def _plain_of_object(interp: Interpreter, value: Object, name: str) -> Value | None:
    real, kind = value.value, type(value.value)
    source = _source(value)
    member = interp.tree.class_attribute(kind, name)
    if _is_data_descriptor(interp, member):
        return _run_descriptor(interp, value, member, name)
    if type(members := own_dict(real)) is dict:
        held = _entry(interp, members, source.dict_of(real), name, f"{source.text}.{name}")
        if held is not None:
            return held
    if member is not ABSENT:
        return _bind(interp, value, member, _class_source(interp, kind, name), kind)
    return None


def _entry(interp: Interpreter, real: dict[str, Any], source: Source, name: str, text: str) -> Value | None:
    """What a dict of names holds now, writes of the captured code included; None if nothing."""
    if interp.externals.shared(real) is not None:
        mapping: Any = interp.externals.value(real, source)
        return interp.externals.force(mapping.items[name]) if interp.externals.present(mapping, name) else None
    if name in real:
        return interp.externals.value(real[name], source.child(("key", name), text))
    source.check(("lacks", name))
    return None


def _source(value: Value) -> Source:
    if value.source is None:
        raise Unsupported("B007", f"an attribute of {describe(value)}")
    return value.source


def _class_source(interp: Interpreter, kind: type, name: str) -> Source:
    return interp.tree.fixed(kind, kind.__qualname__).attribute(name)


def _of_module(interp: Interpreter, value: Object, name: str) -> Value:
    members = value.value.__dict__
    source = interp.tree.fixed(value.value, str(members.get("__name__")))
    source.check(("type", type(value.value)))
    if type(value.value) is not types.ModuleType:
        member = interp.tree.class_attribute(type(value.value), name)
        if member is not ABSENT and _is_data_descriptor(interp, member):
            return _of_module_class(interp, value, name)
    unwritten = interp.externals.has_pending_writes() and not names_operators(value.value)
    if name not in members and not interp.externals.explores and not unwritten:
        let_library_make(interp.tape.ambient, value.value, name)
    if name in members or interp.externals.shared(members) is not None:
        held = _entry(interp, members, source.instance_dict(), name, f"{source.text}.{name}")
        if held is not None:
            return held
    if name not in members and type(value.value) is not types.ModuleType:
        source.instance_dict().check(("lacks", name))
        return _of_module_class(interp, value, name)
    if name not in members and "__getattr__" not in members and not hasattr(types.ModuleType, name):
        source.instance_dict().check(("lacks", name))
        source.instance_dict().check(("lacks", "__getattr__"))
        raise Missing(value, name)
    how = ", which makes it on demand" if "__getattr__" in members else ""
    raise Unsupported("B007", f"{name} of module {value.value.__name__}{how}")


def _of_module_class(interp: Interpreter, value: Object, name: str) -> Value:
    """What a module that is more than a module answers for a name it does not hold (`torch._VF`)."""
    kind = type(value.value)
    if interp.tree.class_attribute(kind, "__getattribute__") is not types.ModuleType.__getattribute__:
        raise Unsupported("B007", f"{name} of {describe(value)} (own __getattribute__)")
    member = interp.tree.class_attribute(kind, name)
    if _is_data_descriptor(interp, member):
        return setting_of_backend(interp.tree, member, name) or _run_descriptor(interp, value, member, name)
    if member is not ABSENT:
        return _bind(interp, value, member, _class_source(interp, kind, name), kind)
    return _fallback(interp, value, kind, name)


def _of_class(interp: Interpreter, value: Object, name: str) -> Value:
    """An attribute of a class, in the order of `type.__getattribute__`: the metaclass's if it is a data descriptor, the
    class's own, the metaclass's."""
    kind, tree = value.value, interp.tree
    if tree.metaclass_attribute(kind, "__getattribute__") not in _CLASS_LOOKUP:
        raise Unsupported("B007", f"{name} of {describe(value)} (own __getattribute__)")
    above = tree.metaclass_attribute(kind, name)
    if name in _OF_CLASSES and above is _OF_CLASSES[name]:
        return _of_every_class(interp, value, name)
    if above is not ABSENT and _is_data_descriptor(interp, above):
        if isinstance(above, _DESCRIPTORS_OF_C):
            raise Unsupported("B007", f"{name} of class {kind.__qualname__}")
        return _run_descriptor(interp, value, above, name)
    member = tree.class_attribute(kind, name)
    if member is not ABSENT:
        return _held_by_class(interp, value, member, name)
    if above is not ABSENT:
        return _bind(interp, value, above, _class_source(interp, type(kind), name), type(kind))
    hook = tree.metaclass_attribute(kind, "__getattr__")
    if hook is ABSENT:
        raise Missing(value, name)
    if not is_a(hook, types.FunctionType):
        raise Unsupported("B007", f"{name} of class {kind.__qualname__}")
    return interp.call(interp.externals.fixed(hook), [value, Constant(name)])


_CLASS_LOOKUP = (type.__getattribute__, NATIVE_CLASS.__getattribute__)

_OF_CLASSES = {
    name: vars(type)[name]
    for name in ("__name__", "__qualname__", "__module__", "__doc__", "__mro__", "__bases__", "__annotations__")
}


def _of_every_class(interp: Interpreter, value: Object, name: str) -> Value:
    """What `type` itself knows of each class."""
    kind = interp.externals.guard_identity(value)
    real = vars(type)[name].__get__(kind)
    if name in ("__name__", "__qualname__"):
        return Constant(interp.tree.class_name(kind, name))
    if name == "__annotations__" and type(class_dict_of(kind).get(name)) is not dict:
        raise Unsupported("B007", f"{name} of {describe(value)}")
    if name in ("__mro__", "__bases__", "__annotations__"):
        return interp.externals.value(real, interp.tree.fixed(kind, kind.__qualname__).attribute(name))
    interp.tree.class_attribute(kind, name)  # which every class has itself
    if not is_constant(real):
        raise Unsupported("B007", f"{name} of {describe(value)}")
    return Constant(real)


def _held_by_class(interp: Interpreter, value: Object, member: Any, name: str) -> Value:
    """What an entry of a class means when it is read from the class."""
    kind = value.value
    if isinstance(member, classmethod | types.ClassMethodDescriptorType):
        return _of_class_method(interp, member, value, name)
    if isinstance(member, staticmethod):
        return interp.externals.value(member.__func__, _class_source(interp, kind, name))
    unbound = (types.FunctionType, property, types.BuiltinFunctionType, *METHODS_OF_C)
    if type(member) is torch.distributions.utils.lazy_property:
        return interp.externals.fixed(member.__get__(None, kind))  # a new object each time, made of `found` alone
    own = _own_descriptor(interp, member, "__get__")
    if own is not None:
        return interp.call(own, [interp.externals.fixed(member), Constant(None), value])
    if _has_method(interp, member, "__get__") and not isinstance(member, unbound):
        raise Unsupported("B007", f"{name} of class {kind.__qualname__}")
    return interp.externals.value(member, _class_source(interp, kind, name))


def _no(value: Value, name: str) -> Value:
    raise Unsupported("B007", f"{name} of {describe(value)}")


def _has_method(interp: Interpreter, member: Any, name: str) -> bool:
    """Whether the class of an entry of a class has a method, by which the entry is a descriptor."""
    return interp.tree.class_attribute(interp.tree.rely_on_type(member), name) is not ABSENT


def _is_data_descriptor(interp: Interpreter, member: Any) -> bool:
    """Whether an entry of the class goes before one of the object's own: it sets, or deletes."""
    return member is not ABSENT and (
        _has_method(interp, member, "__set__") or _has_method(interp, member, "__delete__")
    )


def _run_getter(interp: Interpreter, value: Value, getter: types.FunctionType, name: str) -> Value:
    """A property. If its getter raises AttributeError, Python asks the class's `__getattr__`: a break."""
    answer = interp.call(interp.externals.fixed(getter), [value])
    kind = python_type(value)
    hook = interp.tree.class_attribute(kind, "__getattr__") if kind is not None else ABSENT
    if not is_a(hook, types.FunctionType) or hook is torch.nn.Module.__getattr__:
        return answer
    try:
        return interp.now(answer)
    except Raised as raised:
        if not issubclass(interp.failure_kind(raised), AttributeError):
            raise
        raise Unsupported("B007", f"{name} of {describe(value)}, as its getter raises AttributeError") from None


def _run_descriptor(interp: Interpreter, value: Value, descriptor: Any, name: str) -> Value:
    if isinstance(descriptor, property) and isinstance(descriptor.fget, types.FunctionType):
        return _run_getter(interp, value, descriptor.fget, name)
    own = _own_descriptor(interp, descriptor, "__get__")
    if own is not None:
        return interp.call(own, [interp.externals.fixed(descriptor), value, interp.externals.fixed(python_type(value))])
    if name == "__class__":
        kind = python_type(value)
        return interp.externals.fixed(kind) if kind is not None else _no(value, name)
    if name == "__dict__" and isinstance(value, Object):
        return interp.externals.value(value.value.__dict__, _source(value).dict_of(value.value))
    if type(descriptor) is FIELD and isinstance(value, Object) and is_a(value.value, tuple):
        place: Any = descriptor.__reduce__()[1][0]  # of a named tuple with attributes of its own
        return interp.externals.value(tuple.__getitem__(value.value, place), _source(value).item(place))
    if _is_slot(descriptor) and isinstance(value, Object):
        held = interp.externals.slots(value).items.get(name)
        if held is None:
            raise Unsupported("B007", f"{name} of {describe(value)}, which is empty")
        return interp.externals.force(held)
    if isinstance(descriptor, _DESCRIPTORS_OF_C) and isinstance(value, Object):
        try:
            real = descriptor.__get__(value.value, type(value.value))
        except AttributeError:
            raise Unsupported("B007", f"{name} of {describe(value)}") from None
        return interp.externals.value(real, _source(value).attribute(name))
    raise Unsupported("B007", f"{name} of {describe(value)}")


def _is_slot(member: Any) -> bool:
    """Whether an entry of the class is one of its `__slots__`."""
    return isinstance(member, types.MemberDescriptorType) and is_heap_type(member.__objclass__)


def _own_descriptor(interp: Interpreter, descriptor: Any, name: str) -> Value | None:
    """A descriptor's method, if its class is written in Python."""
    method = interp.tree.class_attribute(interp.tree.rely_on_type(descriptor), name)
    return interp.externals.fixed(method) if isinstance(method, types.FunctionType) else None


def _cached(interp: Interpreter, value: Value, cached: "functools.cached_property[Any]") -> Value:
    """`functools.cached_property`: computed once, then an entry of the object's `__dict__`."""
    if cached.attrname is None or not isinstance(value, Instance | Object):
        raise Unsupported("B007", f"a cached property of {describe(value)}")
    try:
        interp.tree.fixed(cached, cached.attrname).member("func").check(("is", cached.func))
        answer = interp.now(interp.call(interp.externals.fixed(cached.func), [value]))
    except Raised:  # with a line of functools in its traceback
        raise Unsupported("B007", f"{cached.attrname} of {describe(value)}, a cached property that raises") from None
    members = _members(interp, value)
    interp.before_mutation(members)
    members.items[cached.attrname] = answer
    return answer


def _bind(interp: Interpreter, value: Value, member: Any, source: Source, kind: type) -> Value:
    """What an entry of the class means when it is read through an instance."""
    if isinstance(member, types.FunctionType):
        return Method(interp.externals.fixed(member), value)
    if isinstance(member, (*METHODS_OF_C, functools._lru_cache_wrapper)):
        return Method(interp.externals.fixed(member), value)
    if isinstance(member, staticmethod):
        return interp.externals.value(member.__func__, source)
    if isinstance(member, classmethod | types.ClassMethodDescriptorType):
        return _of_class_method(interp, member, interp.externals.fixed(kind), "")
    if isinstance(member, property):
        return _run_descriptor(interp, value, member, "")
    if type(member) is functools.cached_property:
        return _cached(interp, value, member)
    own = _own_descriptor(interp, member, "__get__")
    if own is not None:
        return interp.call(own, [interp.externals.fixed(member), value, interp.externals.fixed(kind)])
    if _has_method(interp, member, "__get__"):
        raise Unsupported("B007", f"a {type(member).__qualname__} of {describe(value)}")
    return interp.externals.value(member, source)


def _of_class_method(interp: Interpreter, method: Any, kind: Value, name: str) -> Value:
    """What a class method is when it is read: a method, or before 3.13 whatever a descriptor inside of it says."""
    inner = method if isinstance(method, types.ClassMethodDescriptorType) else method.__func__
    if isinstance(inner, types.FunctionType | types.ClassMethodDescriptorType):
        return Method(interp.externals.fixed(inner), kind)
    if type(inner) is property and isinstance(inner.fget, types.FunctionType) and sys.version_info < (3, 13):
        return interp.call(interp.externals.fixed(inner.fget), [kind])
    if hasattr(type(inner), "__get__") or not callable(inner):
        raise Unsupported("B007", f"{name or 'a class method'} of {describe(kind)}")
    return Method(interp.externals.fixed(inner), kind)


def _fallback(interp: Interpreter, value: Value, kind: type, name: str) -> Value:
    """Nothing found the plain way: `nn.Module`'s registries, or the class's own `__getattr__`."""
    hook = interp.tree.class_attribute(kind, "__getattr__")
    if hook is ABSENT:
        raise Missing(value, name)
    if hook is torch.nn.Module.__getattr__:
        if isinstance(value, Object):
            return _registered(interp, value, name)
        if isinstance(value, Instance):
            return _registered_in_new(interp, value, name)
    if is_a(hook, types.FunctionType):
        return interp.call(interp.externals.fixed(hook), [value, Constant(name)])
    raise Unsupported("B007", f"{name} of {describe(value)}")


def _registered(interp: Interpreter, value: Object, name: str) -> Value:
    members, source = value.value.__dict__, _source(value)
    written = interp.externals.shared(members)
    for registry in REGISTRIES:
        entries = members.get(registry)
        if type(entries) is not dict or (written is not None and not isinstance(written.items.get(registry), LazyItem)):
            raise Unsupported("B007", f"{registry} of {describe(value)} is not a dict")
        held = _entry(interp, entries, source.member(registry), name, f"{source.text}.{name}")
        if held is not None:
            return held
    raise Missing(value, name)


def _registered_in_new(interp: Interpreter, value: Instance, name: str) -> Value:
    for registry in REGISTRIES:
        entries = value.attributes.get(registry)
        if isinstance(entries, Mapping) and name in entries.items:
            return interp.externals.force(entries.items[name])
    raise Missing(value, name)


def attribute_now(interp: Interpreter, value: Value, name: str) -> Value:
    """`attribute`, run to its end."""
    answer = attribute(interp, value, name)
    return interp.now(answer) if answer is PUSHED else answer


def attribute_or_none(interp: Interpreter, value: Value, name: str) -> Value | None:
    """`attribute`, run to its end; None if Python would raise AttributeError."""
    return _unless_missing(interp, lambda: attribute_now(interp, value, name))


def _unless_missing(interp: Interpreter, read: Callable[[], Value]) -> Value | None:
    """What `read` returns; None, with the frames as they were, if Python would raise AttributeError."""
    depth, stack = len(interp.frames), interp.frames[-1].stack.copy()
    try:
        return read()
    except Raised as raised:
        if not issubclass(interp.failure_kind(raised), AttributeError):
            raise
        del interp.frames[depth:]
        interp.frames[-1].stack = stack
        raised.bare()
        return None


def store_attribute(interp: Interpreter, target: Value, name: str, value: Value) -> None:
    """`target.name = value`, a class's own `__setattr__` included."""
    if isinstance(target, Tensor) and name == "grad":
        store_gradient(interp, target, value)
        return
    if isinstance(target, Tensor) and name == "requires_grad":
        store_requires_grad(interp, target, [value], {})
        return
    if isinstance(target, Tensor) and name == "data":
        store_data(interp, target, value)
        return
    if isinstance(target, Function):
        store_in_function(interp, target, name, value)
        return
    if isinstance(target, Mapping) and target.kind is defaultdict and target.source is None:
        _store_factory(interp, target, name, value)
        return
    hook = interp.tree.class_attribute(_written_kind(target, name), "__setattr__")
    if is_a(hook, types.FunctionType):
        interp.now(interp.call(interp.externals.fixed(hook), [target, Constant(name), value]))
    elif hook in _PLAIN_STORES or (isinstance(target, Object) and type(target.value) is types.ModuleType):
        plain_store(interp, target, name, value)
    else:
        raise Unsupported("B005", f"{describe(target)}.{name} = … (own __setattr__)")


def _written_kind(target: Value, name: str) -> type:
    """The class of an object whose attributes can be written to the log."""
    if isinstance(target, Tensor) and hasattr(torch.Tensor, name):
        raise Unsupported("B015", f"Tensor.{name} = …")
    if isinstance(target, Instance):
        return target.kind
    if isinstance(target, Object) and not is_a(target.value, type | torch.Tensor):
        return type(target.value)
    raise Unsupported("B005", f"{describe(target)}.{name} = …")


def plain_store(interp: Interpreter, target: Value, name: str, value: Value) -> None:
    """`object.__setattr__(target, name, value)`."""
    member = interp.tree.class_attribute(_written_kind(target, name), name)
    if isinstance(member, property) and isinstance(member.fset, types.FunctionType):
        interp.now(interp.call(interp.externals.fixed(member.fset), [target, value]))
        return
    if isinstance(target, ExceptionValue) and isinstance(member, _DESCRIPTORS_OF_C):
        store_in(interp, target, name, value)
        return
    own = _own_descriptor(interp, member, "__set__") if member is not ABSENT else None
    if own is not None:
        interp.now(interp.call(own, [interp.externals.fixed(member), target, value]))
        return
    if _is_data_descriptor(interp, member) and not _is_slot(member):
        raise Unsupported("B005", f"{describe(target)}.{name} = … (descriptor)")
    members = _members(interp, target, member)
    interp.before_setitem(members, name)
    members.items[name] = value


def _store_factory(interp: Interpreter, target: Mapping, name: str, value: Value) -> None:
    """`target.default_factory = value`, of a defaultdict that the captured code made."""
    if name != "default_factory":
        raise Missing(target, name)
    interp.put_back_later(target, "factory")
    target.factory = None if isinstance(value, Constant) and value.value is None else value


def delete_attribute(interp: Interpreter, target: Value, name: str) -> None:
    """`del target.name`, a class's own `__delattr__` included."""
    if isinstance(target, Function):
        if not delete_from_function(interp, target, name):
            raise Missing(target, name)
        return
    kind = _written_kind(target, name)
    hook = interp.tree.class_attribute(kind, "__delattr__")
    if is_a(hook, types.FunctionType):
        interp.now(interp.call(interp.externals.fixed(hook), [target, Constant(name)]))
    elif hook in _PLAIN_STORES:
        plain_delete(interp, target, name)
    else:
        raise Unsupported("B005", f"del {describe(target)}.{name}")


def plain_delete(interp: Interpreter, target: Value, name: str) -> None:
    """`object.__delattr__(target, name)`."""
    member = interp.tree.class_attribute(_written_kind(target, name), name)
    if isinstance(member, property) and isinstance(member.fdel, types.FunctionType):
        interp.now(interp.call(interp.externals.fixed(member.fdel), [target]))
        return
    if _is_data_descriptor(interp, member) and not _is_slot(member):
        raise Unsupported("B005", f"del {describe(target)}.{name} (descriptor)")
    members = _members(interp, target, member)
    if _is_slot(member) and name not in members.items:
        raise Unsupported("B005", f"del {describe(target)}.{name}, which is empty")
    if not interp.externals.removable(members, name):
        raise Missing(target, name)
    interp.before_removal(members)
    del members.items[name]


def _members(interp: Interpreter, target: Value, member: Any = ABSENT) -> Mapping:
    """Where an attribute is written to, given what the class has under its name."""
    if isinstance(target, Instance):
        if not (target.kind.__dictoffset__ or _is_slot(member)):
            raise Unsupported("B019", f"AttributeError: {describe(target)} has no room for other attributes")
        return target.members
    assert isinstance(target, Object)
    if _is_slot(member):
        return interp.externals.slots(target)
    return interp.externals.members(target)
