"""Python's functions of numbers, on numbers that differ from call to call.

int(n) → n    math.sqrt(n) → computed at each call    min(n, 8) → n or 8, and which of them is guarded

What is not listed here looks at the numbers themselves, which are compiled in.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.interpreter.iterators import drain
from smelt.capture.interpreter.operators import binary, float_of, holds_symbols, is_computed
from smelt.capture.interpreter.speculate import decided
from smelt.capture.model.values import Constant, Number, OpenScalar, Sequence, Tensor, Value, python_type
from smelt.capture.polyfills.library import BY_TENSORS, FILLED

# Functions of one number that yield a float, and mean the same for whatever number comes.
_OF_ONE = frozenset({math.sqrt, math.exp, math.log, math.log2, math.log10, math.sin, math.cos, math.tanh})


def number_call(interp: Interpreter, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """What a function returns in terms of symbols; None if it needs the numbers, or there are no symbols."""
    if kwargs or not any(map(holds_symbols, args)):
        return None
    rule = _RULES.get(function)
    if rule is not None:
        return rule(interp, args)
    if function in _OF_ONE and len(args) == 1 and isinstance(args[0], Number):
        return float_of(interp, function, args[0])
    return None


def by_tensors(name: str, args: list[Value], kwargs: dict[str, Value]) -> Callable[..., Any] | None:
    """What computes an operator that is given a 0-d tensor where it takes a number (`alpha=`, `value=`); None where
    none is given, or only PyTorch knows what comes of it."""
    if name in FILLED and len(args) == 2 and _is_number(args[1]) and "requires_grad" not in kwargs:
        return FILLED[name]
    keys, function = BY_TENSORS.get(name, ((), None))
    numbers = [kwargs[key] for key in keys if key in kwargs]
    if function is None or not any(map(_is_number, numbers)) or not set(kwargs) <= set(keys):
        return None
    tensors = [value for value in args if isinstance(value, Tensor)]
    floating = all(each.fake.dtype.is_floating_point for each in tensors)
    alike = len({each.fake.dtype for each in tensors}) == 1 and all(map(_is_real, numbers))
    return function if floating and alike and len(tensors) == len(args) else None


def _is_number(value: Value) -> bool:
    if not isinstance(value, Tensor):
        return False
    fake = value.fake
    return fake.dim() == 0 and not fake.requires_grad and fake.dtype.is_floating_point


def _is_real(value: Value) -> bool:
    return _is_number(value) or python_type(value) in (int, float)


def tensor_of(interp: Interpreter, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """`torch.tensor` of a number that differs from call to call, or of a list or tuple with such; None if it is not."""
    if function is not torch.tensor or len(args) != 1 or kwargs.keys() - {"dtype", "device"}:
        return None
    if not interp.externals.explores and not holds_symbols(args[0]):
        return None
    items = [args[0]]
    if isinstance(args[0], Sequence):
        items = [interp.externals.force(item) for item in args[0].items]
    kinds = {python_type(item) for item in items}
    if not any(isinstance(item, OpenScalar) or holds_symbols(item) for item in items) or not kinds <= {int, float}:
        return None
    chosen = interp.plain(kwargs["dtype"]) if "dtype" in kwargs else None
    dtype = chosen or (torch.get_default_dtype() if float in kinds else torch.int64)
    if dtype not in (torch.float32, torch.float64) and (dtype is not torch.int64 or float in kinds):
        return None  # a number that does not fit raises, or is infinity
    kwargs = {**kwargs, "dtype": Constant(dtype)}
    nothing = Sequence(tuple, [])
    tensors = [
        interp.tensor_call("call_method", "to", [item.tensor], {**kwargs, "copy": Constant(True)})
        if isinstance(item, OpenScalar)
        else interp.tensor_call("call_function", torch.full, [nothing, item], dict(kwargs))
        for item in items
    ]
    if not isinstance(args[0], Sequence):
        return tensors[0]
    return interp.tensor_call("call_function", torch.stack, [Sequence(list, tensors)])


def _whole(function: Callable[[Any], int]) -> Callable[[Interpreter, list[Value]], Value | None]:
    """A function that makes an integer of a number, and yields integers as they are."""

    def rule(interp: Interpreter, args: list[Value]) -> Value | None:
        if len(args) != 1 or python_type(args[0]) is int:
            return args[0] if len(args) == 1 else None
        answer = NotImplemented if is_computed(args[0]) else decided(interp, function, args[0])
        return None if answer is NotImplemented else Constant(answer)

    return rule


def _float(interp: Interpreter, args: list[Value]) -> Value | None:
    if len(args) != 1 or not isinstance(args[0], Number):
        return None
    return args[0] if python_type(args[0]) is float else float_of(interp, float, args[0])


def _divmod(interp: Interpreter, args: list[Value]) -> Value | None:
    if len(args) != 2:
        return None
    return Sequence(tuple, [binary(interp, "//", *args), binary(interp, "%", *args)])


def _prod(interp: Interpreter, args: list[Value]) -> Value | None:
    if len(args) != 1 or not isinstance(args[0], Sequence):
        return None
    total: Value = Constant(1)
    for item in drain(interp, args[0]):
        total = binary(interp, "*", total, item)
    return total


def _size(interp: Interpreter, args: list[Value]) -> Value | None:
    if len(args) != 1 or not isinstance(args[0], Sequence):
        return None
    return Sequence(torch.Size, list(interp.externals.items(args[0])))


_RULES: dict[Any, Callable[[Interpreter, list[Value]], Value | None]] = {
    **{function: _whole(function) for function in (int, math.floor, math.ceil, math.trunc, round)},
    float: _float,
    divmod: _divmod,
    math.prod: _prod,
    torch.Size: _size,
}
