"""Numbers that tensors hold, taken out once the graph has run: what is only kept of them breaks no graph.

    total += loss.item()    →    total = DeferredScalar(add, total, DeferredScalar(item, copy of loss)), computed after
    if loss.item() > 3:     →    B004, as `x * loss.item()` is: here somebody needs the number

A number is that of the moment: what it is taken from is copied in the graph, where the program takes it. Arithmetic is
Python's own, done when the graph has run, so only such is followed as raises for no number.
"""

import operator
from typing import Any

import torch

from smelt.base.torch_originals import BASE
from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.interpreter.open_scalars import arithmetic_in_graph, converted_in_graph, taken_out
from smelt.capture.model.breaks import Unsupported
from smelt.capture.model.policy import acts_as_in_eager, is_layer
from smelt.capture.model.values import Constant, DeferredScalar, OpenScalar, Tensor, Value, python_type

_NUMBERS = (bool, int, float)
_OF_ANY = frozenset({operator.add, operator.sub, operator.mul})
_OF_NONZERO = frozenset({operator.truediv, operator.floordiv, operator.mod})


def item_of_tensor(interp: Interpreter, tensor: Tensor, kind: type | None = None) -> Value:
    """`tensor.item()`, or `kind(tensor)`."""
    ghost = tensor.ghost
    if ghost.dtype.is_floating_point:
        own: type = float
    else:
        own = bool if ghost.dtype is torch.bool else int
    if interp.externals.explores and not counts(interp, tensor, kind):
        return taken_out(interp, tensor, kind or own)
    one = all(type(size) is int and size == 1 for size in ghost.shape)
    if not one or ghost.dtype.is_complex or (own is float and kind is int):
        raise needed("Tensor.item" if kind is None else f"{kind.__name__}()")  # it raises, or raises for some numbers
    if counts(interp, tensor, kind):
        wide = interp.tensor_call("call_method", "to", [tensor, Constant(torch.float64)]) if own is int else tensor
        assert isinstance(wide, Tensor)
        return interp.tape.item(wide, interp.externals.sizes.shape_env)
    if interp.externals.no_side_effects or interp.externals.runs_later or interp.tape.ambient.inference:
        raise needed("Tensor.item")  # it runs twice, or later; or its copy would be of another kind than other results
    bare = interp.tensor_call("call_method", "detach", [tensor])
    return DeferredScalar(kind or own, kind or BASE.item, [interp.tensor_call("call_method", "clone", [bare])])


def counts(interp: Interpreter, tensor: Tensor, kind: type | None) -> bool:
    """Whether PyTorch's own code asks for a number: an optimizer, or a layer, which computes with it in the graph.
    Schedulers, which stand beside optimizers, ask for `float(loss)`, and compare it.

    Wherever the tensor is: kernels read the number from its memory, and the host need not wait for it."""
    ghost, code = tensor.ghost, interp.frames[-1].info.code
    if ghost.numel() != 1:
        return False
    return acts_as_in_eager(code) and kind is None if ghost.dtype.is_floating_point else is_layer(code)


def needed(what: str = "Tensor.item") -> Unsupported:
    """The break where a number is needed that is not known yet."""
    return Unsupported("B004", what)


def arithmetic(interp: Interpreter, function: Any, *values: Value) -> Value:
    """A function of numbers some of which are deferred."""
    if interp.externals.explores:
        return arithmetic_in_graph(interp, function, *values)
    kinds = [python_type(value) for value in values]
    if not all(kind in _NUMBERS for kind in kinds):
        raise needed()
    result: type = float if function is operator.truediv or float in kinds else int
    divisor = values[-1]
    safe = type(divisor) is Constant and divisor.value != 0  # of another the next call may be with 0
    if function in _OF_ANY or (function in _OF_NONZERO and safe) or function in (operator.neg, operator.pos, abs):
        return DeferredScalar(result, function, list(values))
    raise needed()


def converted(interp: Interpreter, kind: Any, args: list[Value]) -> Value | None:
    """`float(…)` and `int(…)` of a deferred number; None of anything else."""
    value = args[0] if len(args) == 1 else None
    if isinstance(value, OpenScalar) and kind in _NUMBERS:
        return converted_in_graph(interp, kind, value)
    if not isinstance(value, DeferredScalar) or kind not in (int, float):
        return None
    if value.kind is float and kind is int:
        raise needed()  # it raises for infinity
    return value if value.kind is kind else DeferredScalar(kind, kind, [value])
