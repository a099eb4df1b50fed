"""Operators and attributes of tensors that the program replaced: `torch.Tensor.__add__ = wrapper`.

x + 1   →   a node, relying on `Tensor.__add__` being PyTorch's; else wrapper(x, 1), followed like any call
"""

import types
from typing import Any

from smelt.base.torch_originals import is_own
from smelt.capture.interpreter.dunder_dispatch import COMPARISONS, REFLECTED
from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.model.breaks import Unsupported
from smelt.capture.model.bytecode import BINARY_METHODS
from smelt.capture.model.static import ABSENT
from smelt.capture.model.values import Constant, Tensor, Value

# The methods that builtins ask their arguments for.
_ASKED: dict[Any, tuple[str, ...]] = {
    abs: ("__abs__",),
    bool: ("__bool__",),
    complex: ("__complex__", "__float__"),
    divmod: ("__divmod__", "__rdivmod__"),
    float: ("__float__",),
    format: ("__format__",),
    hash: ("__hash__",),
    int: ("__int__", "__index__"),
    iter: ("__iter__",),
    len: ("__len__",),
    pow: ("__pow__", "__rpow__"),
    repr: ("__repr__",),
    reversed: ("__reversed__",),
    round: ("__round__",),
    str: ("__str__", "__repr__"),
}


def rely_on_own(interp: Interpreter, value: Tensor, *names: str) -> None:
    """Rely on methods of a tensor being PyTorch's; where one is not, only Python can do what asks for it."""
    for name in names:
        if not is_own(interp.tree.class_attribute(value.kind, name)):
            raise Unsupported("B008", f"Tensor.{name}, which the program replaced")


def rely_on_own_in(interp: Interpreter, builtin: Any, args: list[Value]) -> None:
    """The same for what a builtin asks the tensors among its arguments for."""
    names = _ASKED.get(builtin, ())
    for value in args if names else ():
        if isinstance(value, Tensor):
            rely_on_own(interp, value, *names)


def replaced_binary(interp: Interpreter, symbol: str, left: Value, right: Value) -> Value | None:
    """What the program made of an arithmetic operator of tensors; None if that is still PyTorch's."""
    plain = symbol.removesuffix("=")
    name = BINARY_METHODS[plain]
    ours = (f"__{name}__",) if plain == symbol else (f"__i{name}__", f"__{name}__")
    return _ask(interp, left, right, ours, f"__r{name}__")


def replaced_compare(interp: Interpreter, symbol: str, left: Value, right: Value) -> Value | None:
    """The same of a comparison."""
    return _ask(interp, left, right, (COMPARISONS[symbol],), COMPARISONS[REFLECTED[symbol]])


def _ask(interp: Interpreter, left: Value, right: Value, ours: tuple[str, ...], reflected: str) -> Value | None:
    mixed = isinstance(left, Tensor) and isinstance(right, Tensor) and left.kind is not right.kind
    if isinstance(right, Tensor) and mixed:
        rely_on_own(interp, right, reflected)
    if not isinstance(left, Tensor):
        assert isinstance(right, Tensor)
        return _call(interp, right, left, reflected)
    for name in ours:
        if interp.tree.class_attribute(left.kind, name) is not ABSENT:
            return _call(interp, left, right, name)
    return None


def _call(interp: Interpreter, receiver: Tensor, other: Value, name: str) -> Value | None:
    function = interp.tree.class_attribute(receiver.kind, name)
    if is_own(function):
        return None
    if not isinstance(function, types.FunctionType):
        rely_on_own(interp, receiver, name)
    answer = interp.now(interp.call(interp.externals.fixed(function), [receiver, other]))
    if isinstance(answer, Constant) and answer.value is NotImplemented:
        raise Unsupported("B008", f"Tensor.{name}, which the program replaced")
    return answer
