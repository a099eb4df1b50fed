"""What a Python function of PyTorch's finds by name when it runs: guarded where the function is one node of a graph.

    F.normalize(x)   →   relies on `torch.norm`, `Tensor.norm`, `Tensor.clamp_min`, `Tensor.__truediv__`, …

Where the program has replaced one of them, the function is followed like any other, and so is the replacement.
"""

import dis
import types
from collections.abc import Iterator
from typing import Any

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.base.torch_originals import held_by, is_own, own_name
from smelt.capture.guards.tree import GuardTree
from smelt.capture.model.bytecode import BINARY_METHODS
from smelt.capture.model.policy import is_library

_OPERATIONS: dict[str, tuple[str, ...]] = {
    "COMPARE_OP": ("__lt__", "__le__", "__eq__", "__ne__", "__gt__", "__ge__"),
    "BINARY_SUBSCR": ("__getitem__",),
    "BINARY_SLICE": ("__getitem__",),
    "STORE_SUBSCR": ("__setitem__",),
    "STORE_SLICE": ("__setitem__",),
    "UNARY_NEGATIVE": ("__neg__",),
    "UNARY_INVERT": ("__invert__",),
    "GET_ITER": ("__iter__",),
}


@dataclass(frozen=True, slots=True)
class _Reliance:
    """Names in namespaces with what they led to, and names of `torch.Tensor` with what it held."""

    lookups: tuple[tuple[dict[str, Any], str, Any], ...]
    methods: tuple[tuple[str, Any], ...]

    @property
    def holds(self) -> bool:
        return all(names.get(name) is value for names, name, value in self.lookups) and all(
            held_by(torch.Tensor, name) is value for name, value in self.methods
        )

    @property
    def is_original(self) -> bool:
        values = [value for _, _, value in self.lookups]
        return all(map(_is_library, values)) and all(is_own(value) for _, value in self.methods)


_known: dict[Any, _Reliance] = {}  # of functions none of whose names was replaced when they were first met


def rely_on_names(tree: GuardTree, function: types.FunctionType) -> bool:
    """Guard all that a function of PyTorch's finds by name; False, and no guard, if the program replaced any of it."""
    if function in tree.relied_on:
        return True
    known = _known.get(function)
    if known is None or not known.holds:
        known = _look_through(function)
        if not known.is_original:
            return False
        _known[function] = known
    tree.relied_on.add(function)
    for names, name, value in known.lookups:
        tree.fixed(names, f"globals of {names.get('__name__', '?')}").child(("key", name), name).check(("is", value))
    for name, _ in known.methods:
        tree.class_attribute(torch.Tensor, name)
    return True


def _look_through(function: types.FunctionType) -> _Reliance:
    entries: dict[tuple[int, str], tuple[dict[str, Any], str, Any]] = {}
    methods: dict[str, Any] = {}
    pending, seen = [function], {function}
    while pending:
        current = pending.pop()
        called = [cell.cell_contents for cell in current.__closure__ or ()]
        names, modules = current.__globals__, list[dict[str, Any]]()
        attributes = {name for code in _codes(current.__code__) for name in code.co_names}
        for name in attributes:
            value = names.get(name)
            if isinstance(value, types.ModuleType):
                if value.__name__.partition(".")[0] == "torch":
                    modules.append(vars(value))
            elif callable(value) and not isinstance(value, type):
                entries[id(names), name] = names, name, value
        for members in modules:
            for name in attributes & members.keys():
                if callable(members[name]) and not isinstance(members[name], type):
                    entries[id(members), name] = members, name, members[name]
        called += [value for _, _, value in entries.values()]
        for name in (*attributes, *_operators(current.__code__)):
            held = held_by(torch.Tensor, name)
            if held is not None:
                methods[name] = held
                called.append(held.fget if isinstance(held, property) else held)
        for each in called:
            if isinstance(each, types.FunctionType) and each not in seen and _is_entered(each):
                seen.add(each)
                pending.append(each)
    return _Reliance(tuple(entries.values()), tuple(methods.items()))


def _is_library(value: Any) -> bool:
    if isinstance(value, types.FunctionType):
        return is_library(value.__code__)
    return isinstance(value, types.BuiltinFunctionType) or type(value).__module__.partition(".")[0] == "torch"


def _is_entered(function: types.FunctionType) -> bool:
    """Whether a function is looked through as well: not those that plain tensors never come to."""
    module = own_name(function).rpartition(".")[0]
    return module in ("torch.functional", "torch.nn.functional", "torch._tensor", "torch", "torch._jit_internal")


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _codes(each)


def _operators(code: types.CodeType) -> Iterator[str]:
    """The methods that a code's operators ask tensors for."""
    for each in _codes(code):
        raw = each.co_code
        for place in range(0, len(raw), 2):
            operation = dis.opname[raw[place]]
            yield from _OPERATIONS.get(operation, ())
            if operation == "BINARY_OP":
                symbol = dis._nb_ops[raw[place + 1]][1]  # type: ignore[attr-defined]
                name = BINARY_METHODS[symbol.removesuffix("=")]
                yield from (f"__{prefix}{name}__" for prefix in ("", "r", *("i" if symbol.endswith("=") else "")))
