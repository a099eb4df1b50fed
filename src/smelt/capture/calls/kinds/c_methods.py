"""Calls of methods of C types, with their receiver first: of tensors, containers, generators, exceptions.

torch.Tensor.add(x, 1)   →   Tensor(node add)
list.append(items, x)    →   the value of `items` has one more
"""

import types
from collections.abc import Callable
from typing import Any

import torch

from smelt.base.torch_originals import BASE
from smelt.capture.calls.arity import alone
from smelt.capture.calls.class_statements import replace_part
from smelt.capture.calls.classes import make_object
from smelt.capture.calls.containers import container_method
from smelt.capture.calls.deque import deque_method
from smelt.capture.calls.numbers import by_tensors
from smelt.capture.calls.python_library import expression_method
from smelt.capture.calls.traced.numpy_arrays import array_of, call_method
from smelt.capture.interpreter.deferred_scalars import item_of_tensor, listed
from smelt.capture.interpreter.exceptions import method_of
from smelt.capture.interpreter.externals import BUILTIN_BASES
from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.interpreter.iterators import generator_method
from smelt.capture.interpreter.leaf_state import store_requires_grad
from smelt.capture.interpreter.operators import contains
from smelt.capture.interpreter.symbolic_index import where_true
from smelt.capture.model.breaks import Unsupported
from smelt.capture.model.policy import TENSOR_BREAKS
from smelt.capture.model.static import is_a
from smelt.capture.model.values import (
    Array,
    Constant,
    Deque,
    Descriptor,
    ExceptionValue,
    Generator,
    Instance,
    Mapping,
    Object,
    Proxy,
    Sequence,
    Tensor,
    Value,
    Wrapper,
    contents_kind,
    python_type,
)


def call_descriptor(interp: Interpreter, function: Object, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A method of a C type."""
    real, receiver = function.value, args[0] if args else None
    if any(isinstance(each, Array) for each in (*args, *kwargs.values())) and not isinstance(receiver, Tensor):
        return call_method(interp, real, args, kwargs)
    if isinstance(receiver, Wrapper) and real.__objclass__ is BASE and real.__name__ not in TENSOR_BREAKS:
        return interp.tensor_call("call_method", real.__name__, args, kwargs)
    if isinstance(receiver, Tensor):
        return _call_tensor_method(interp, real, args, kwargs)
    held = contents_kind(receiver.contents) if isinstance(receiver, Instance) else None
    if isinstance(receiver, Instance) and held is not None and real.__objclass__ in held.__mro__[:-1]:
        receiver = receiver.contents
    if isinstance(receiver, Object) and real.__objclass__ in BUILTIN_BASES and is_a(receiver.value, real.__objclass__):
        receiver = interp.externals.contents(receiver)
    if isinstance(receiver, Mapping) and receiver is not args[0] and real.__name__ == "__getitem__" and len(args) == 2:
        missing = interp.tree.class_attribute(_kind_of(args[0]), "__missing__")
        if isinstance(missing, types.FunctionType) and not contains(interp, receiver, args[1]):
            return interp.call(interp.externals.fixed(missing), args, kwargs)
    if real is type.__call__ and isinstance(receiver, Object) and is_a(receiver.value, type):
        return make_object(interp, interp.externals.guard_identity(receiver), args[1:], kwargs)
    if isinstance(receiver, Proxy) and real.__objclass__ is types.MappingProxyType:
        real, receiver = getattr(receiver.mapping.kind, real.__name__, real), receiver.mapping
    answer = None if receiver is None else _call_on_value(interp, real, receiver, args[1:], kwargs)
    if answer is None:
        raise Unsupported("B002", getattr(real, "__qualname__", str(real)))
    return answer


def _call_on_value(
    interp: Interpreter, real: Any, receiver: Value, args: list[Value], kwargs: dict[str, Value]
) -> Value | None:
    """A method of a value other than a tensor; None if nobody knows it."""
    answer: Value | None = None
    if isinstance(receiver, ExceptionValue):
        answer = method_of(interp, real, receiver, args, kwargs)
    elif isinstance(receiver, Descriptor) and real.__name__ in ("getter", "setter", "deleter") and len(args) == 1:
        answer = replace_part(interp, real.__name__, receiver, args)
    elif isinstance(receiver, Generator) and not kwargs:
        answer = generator_method(interp, real.__name__, receiver, args)
    elif isinstance(receiver, Deque) and not kwargs:
        answer = deque_method(interp, real.__name__, receiver, args)
    if answer is None:
        answer = expression_method(interp, real, receiver, args, kwargs)
    return container_method(interp, real, receiver, args, kwargs) if answer is None else answer


def _call_tensor_method(interp: Interpreter, real: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    name = real.__name__
    if name == "numpy" and real.__objclass__ is BASE and len(args) == 1 and not kwargs:
        assert isinstance(args[0], Tensor)
        return array_of(interp, args[0])
    if real.__objclass__ is not BASE and name not in TENSOR_BREAKS:
        raise Unsupported("B002", f"{real.__qualname__} of a tensor")
    rule = _TENSOR_RULES.get(name)
    answer = None if rule is None else rule(interp, args, kwargs)
    if answer is not None:
        return answer
    if name in TENSOR_BREAKS:
        raise Unsupported(TENSOR_BREAKS[name], f"Tensor.{name}")
    if "out" in kwargs:
        raise Unsupported("B008", "out=")
    stand_in = by_tensors(name, args, kwargs)
    if stand_in is not None:
        return interp.call(interp.externals.fixed(stand_in), args, kwargs)
    return interp.tensor_call("call_method", name, args, kwargs)


def _requires_grad_(interp: Interpreter, args: list[Any], kwargs: dict[str, Value]) -> Value:
    leaf: Tensor = args[0]
    store_requires_grad(interp, leaf, args[1:], kwargs)
    return leaf


def _resize_(interp: Interpreter, args: list[Any], kwargs: dict[str, Value]) -> Value | None:
    """A tensor that has the sizes already stays as it is."""
    if kwargs:
        return None
    sizes = interp.externals.items(args[1]) if len(args) == 2 and isinstance(args[1], Sequence) else args[1:]
    known = [size.value for size in sizes if type(size) is Constant]
    fits = len(known) == len(sizes) and known == list(args[0].fake.shape) and all(type(size) is int for size in known)
    return args[0] if fits else None


_TENSOR_RULES: dict[str, Callable[[Interpreter, list[Any], dict[str, Value]], Value | None]] = {
    "requires_grad_": _requires_grad_,
    "item": alone(item_of_tensor),
    "tolist": alone(listed),
    "nonzero": lambda interp, args, kwargs: where_true(interp, torch.nonzero, args, kwargs),
    "resize_": _resize_,
}
"""Methods that are more than a node of the graph; None where they are just that, or refused."""


def _kind_of(value: Value) -> type:
    kind = python_type(value)
    assert kind is not None
    return kind
