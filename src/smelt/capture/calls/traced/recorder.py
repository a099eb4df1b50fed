"""PyTorch's functions as a Python function calls them that is run on fake tensors: each is a node of the graph.

    with Recorder(interp) as recorder: result = function(*[real_of(interp, value) for value in args])
    recorder.value(result)      the value of what came of it

What cannot be recorded is raised where it is called, and kept in `stop`: the function may handle exceptions of its own.
"""

import operator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.model.breaks import Unsupported
from smelt.capture.model.values import (
    Constant,
    Mapping,
    Object,
    Sequence,
    Slice,
    Tensor,
    Value,
    describe,
    is_constant,
    of_number,
)
from smelt.meta.fake_tensor import FakeTensor
from smelt.symbolic.symnode import is_symbolic


class Recorder(TorchFunctionMode):
    """Writes down each call of PyTorch as a node of the graph. `stop`: why one could not be."""

    def __init__(self, interp: Interpreter) -> None:
        super().__init__()
        self._interp = interp
        self.stop: Unsupported | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return self._record(func, args, kwargs or {})
        except Unsupported as stop:  # the function may handle it, and go another way than it would
            self.stop = self.stop or stop
            raise

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name, owner = getattr(func, "__name__", ""), getattr(func, "__self__", None)
        if name == "__get__" and owner is not None:
            return self._call("call_function", getattr, [self.value(args[0]), Constant(owner.__name__)], {})
        if name == "__set__":
            raise Unsupported("B015", f"Tensor.{getattr(owner, '__name__', '?')} = …")
        values = [self.value(each) for each in args]
        named = {key: self.value(each) for key, each in kwargs.items()}
        if func is torch.Tensor.__setitem__:
            return self._call("call_function", operator.setitem, values, named)
        if values and isinstance(values[0], Tensor) and getattr(torch.Tensor, name, None) is func:
            return self._call("call_method", name, values, named)
        return self._call("call_function", func, values, named)

    def _call(self, opcode: str, target: Any, args: list[Value], kwargs: dict[str, Value]) -> Any:
        return real_of(self._interp, self._interp.tensor_call(opcode, target, args, kwargs))

    def value(self, real: Any) -> Value:
        """The value of what the function has in hand: a fake tensor, a number, or a container of such."""
        if isinstance(real, FakeTensor):
            known = self._interp.tape.value_of(real)
            if known is None:
                raise Unsupported("B002", "a function that makes tensors unseen")
            return known
        if is_symbolic(real):
            return of_number(real)
        if is_constant(real):
            return Constant(real)
        if isinstance(real, tuple | list):
            return Sequence(type(real), [self.value(each) for each in real])
        if type(real) is dict:
            return Mapping({key: self.value(each) for key, each in real.items()})
        if type(real) is slice:
            return Slice(self.value(real.start), self.value(real.stop), self.value(real.step))
        raise Unsupported("B017", f"a {type(real).__qualname__}")


def real_of(interp: Interpreter, value: Any) -> Any:
    """What the function is given for a value. Sizes are plain numbers, which are relied on: they may be keys of a table
    to it, or part of a text."""
    value = interp.externals.force(value)
    if isinstance(value, Tensor):
        if type(value) is not Tensor or (value.state is not None and value.state.is_reassigned):
            raise Unsupported("B017", describe(value))
        interp.tape.known_as(value)
        return value.fake
    if isinstance(value, Sequence) and value.kind in (tuple, list, torch.Size):
        return value.kind([real_of(interp, item) for item in value.items])
    if isinstance(value, Mapping) and value.kind is dict:
        interp.externals.complete(value)
        return {key: real_of(interp, item) for key, item in value.items.items()}
    if isinstance(value, Object) and callable(value.value):
        return interp.externals.guard_identity(value)
    return interp.plain(value)
