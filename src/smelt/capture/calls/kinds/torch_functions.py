"""Calls of PyTorch's functions that become nodes of the graph.

torch.relu(x)   →   Tensor(node relu)
"""

import types
from typing import Any

import torch

from smelt.capture.calls.interpolate import resized
from smelt.capture.calls.kinds.python_functions import follow
from smelt.capture.calls.numbers import by_tensors, tensor_of
from smelt.capture.guards.name_lookups import rely_on_names
from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.interpreter.operators import is_computed
from smelt.capture.interpreter.symbolic_index import where_true
from smelt.capture.model.breaks import Unsupported
from smelt.capture.model.policy import TENSOR_BREAKS, is_library
from smelt.capture.model.static import is_a
from smelt.capture.model.values import Constant, Function, Mapping, Method, Object, Partial, Sequence, Tensor, Value
from smelt.capture.polyfills.optimizers import averaging_batch_norm
from smelt.meta.effects import is_pointwise


def call_leaf(interp: Interpreter, function: Object, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A function of PyTorch's that is not looked into, except where it calls back into Python."""
    real = interp.externals.guard_identity(function)
    is_python = is_a(real, types.FunctionType)
    if is_python and not rely_on_names(interp.tree, real):
        return follow(interp, function, args, kwargs)
    _refuse_method(real)
    for by_symbols in (resized, tensor_of, where_true):
        answer = by_symbols(interp, real, args, kwargs)
        if answer is not None:
            return answer
    values = (*args, *kwargs.values())
    if real is torch.nn.functional.batch_norm and any(map(is_computed, values)):
        return interp.call(interp.externals.fixed(averaging_batch_norm), args, kwargs)
    if is_python and any(map(_calls_back, values)):
        return follow(interp, function, args, kwargs)
    return _call_torch(interp, real, args, kwargs)


def _refuse_method(real: Any) -> None:
    """Refuse what is a method of tensors, and does more than its results show."""
    if real.__module__ == "torch._tensor" and real.__name__ in TENSOR_BREAKS:
        raise Unsupported(TENSOR_BREAKS[real.__name__], f"Tensor.{real.__name__}")


def _call_torch(interp: Interpreter, real: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    for value in (*args, *kwargs.values()):
        if isinstance(value, Object) and is_a(value.value, torch.Tensor):
            return _by_subclass(interp, real, type(value.value), args, kwargs)
    stand_in = by_tensors(getattr(real, "__name__", ""), args, kwargs)
    if stand_in is not None:
        return interp.call(interp.externals.fixed(stand_in), args, kwargs)
    if "out" in kwargs and not isinstance(kwargs["out"], Constant):
        return _call_into(interp, real, args, kwargs)
    return interp.tensor_call("call_function", real, args, kwargs)


def _by_subclass(interp: Interpreter, real: Any, kind: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """What a class of tensors of the program's makes of a call of PyTorch: its `__torch_function__` is followed."""
    method = interp.tree.class_attribute(kind, "__torch_function__")
    others = [each for each in (*args, *kwargs.values()) if isinstance(each, Object) and is_a(each.value, torch.Tensor)]
    own = isinstance(method, classmethod) and isinstance(method.__func__, types.FunctionType)
    if not own or is_library(method.__func__.__code__) or any(type(each.value) is not kind for each in others):
        raise Unsupported("B006", kind.__qualname__)
    interp.rely_on_asked_classes(kind)
    fixed = interp.externals.fixed
    leading: list[Value] = [fixed(kind), fixed(real), Sequence(tuple, [fixed(kind)]), Sequence(tuple, list(args))]
    return interp.call(fixed(method.__func__), [*leading, Mapping(dict(kwargs))], {})


def _calls_back(value: Value) -> bool:
    """Whether a value is Python to be called: a torch function that is given it is no operator, but leads to some."""
    if isinstance(value, Object):
        return is_a(value.value, types.FunctionType | torch.nn.Module)
    return isinstance(value, Function | Method | Partial)


def _call_into(interp: Interpreter, real: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`f(…, out=tensor)` where the tensor is as large as the result and of its type: f(…), written into it."""
    out = kwargs["out"]
    if not isinstance(out, Tensor):
        raise Unsupported("B008", "out=")
    rest = {name: value for name, value in kwargs.items() if name != "out"}
    if interp.tape.is_given_twice(out, [*args, *rest.values()], is_pointwise(real)):
        raise Unsupported("B008", "out= in memory that is read as well,")  # PyTorch may refuse, or read what it wrote
    result = interp.tensor_call("call_function", real, args, rest)
    if not isinstance(result, Tensor) or out.fake.requires_grad or result.fake.requires_grad:
        raise Unsupported("B008", "out=")  # refused, or several results
    if (result.fake.shape, result.fake.dtype) != (out.fake.shape, out.fake.dtype):
        raise Unsupported("B008", "out=")  # resized, or rounded
    interp.tape.requires_no_overlap = True
    return interp.tensor_call("call_method", "copy_", [out, result])
