"""Values of the compiler as text and back: programs, plans and what they are made of, for files that outlive a process.

    Operand("x", (2, 3), (3, 1))   →   ["Operand", "x", ["t", 2, 3], ["t", 3, 1], 0]

The text is JSON: numbers, strings and None stand for themselves, everything else is a list that begins with its kind.
Records (the frozen dataclasses listed here) are written once each, into a table, and referred to from there. What has
no form here cannot be stored, and `CannotStore` says so; operators are stored by name, and only PyTorch's own. Nothing
in a text can name code to be run.
"""

import json
from collections.abc import Callable
from dataclasses import fields
from enum import Enum
from typing import Any

import torch
from torch.fx.immutable_collections import immutable_list

from smelt.ir import joint, kernel, program, tensorspec

RECORDS: tuple[type, ...] = (
    tensorspec.TensorSpec,
    kernel.Axis, kernel.Index, kernel.Buffer, kernel.Const, kernel.Load, kernel.Gather, kernel.Position,
    kernel.Compute, kernel.Cast, kernel.Store, kernel.Reduce, kernel.Scan, kernel.Accumulate, kernel.Scatter,
    kernel.Stage, kernel.Kernel,
    program.ProgramBuffer, program.Operand, program.Launch, program.Library, program.Program,
    joint.ViewStep, joint.Restride, joint.FromInput, joint.FromResult, joint.Repeat, joint.Plain, joint.Saved,
    joint.Plan,
)  # fmt: skip
ENUMS: tuple[type[Enum], ...] = (kernel.Role, program.Place)
NAMESPACES = frozenset({"aten", "prims"})

_RECORDS: dict[str, type] = {each.__name__: each for each in RECORDS}
_ENUMS: dict[str, type[Enum]] = {each.__name__: each for each in ENUMS}
_FIELDS: dict[type, tuple[str, ...]] = {each: tuple(f.name for f in fields(each)) for each in RECORDS}
_TORCH_NAMES: dict[type, str] = {torch.dtype: "d", torch.memory_format: "m", torch.layout: "y"}


class CannotStore(Exception):
    """Why a value has no form in a file."""


class BadText(Exception):
    """A text is not what `dump` writes."""


def dump(value: object) -> str:
    """The text of a value."""
    writer = _Writer()
    form = writer.form(value)
    return json.dumps([writer.table, form], separators=(",", ":"), allow_nan=False)


class _Writer:
    def __init__(self) -> None:
        self.table: list[Any] = []
        self._places: dict[str, int] = {}  # by text, not by equality: 1, 1.0 and True are equal

    def form(self, value: Any) -> Any:
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return ["f", value.hex()]
        if kind is tuple or kind is torch.Size:
            return ["t", *map(self.form, value)]
        if kind is list or kind is immutable_list:
            return ["l", *map(self.form, value)]
        if kind in _FIELDS:
            return ["#", self._record(value, kind)]
        if kind in _TORCH_NAMES:
            return [_TORCH_NAMES[kind], str(value).removeprefix("torch.")]
        if kind is torch.device:
            return ["v", str(value)]
        if kind is torch.Tensor and value.dtype is torch.int64 and value.dim() == 1:
            return ["n", *value.tolist()]  # sizes that a kernel is told
        if kind is torch._ops.OpOverload:
            return ["o", *self._operator(value)]
        if kind in ENUMS:
            return ["e", kind.__name__, value.name]
        raise CannotStore(f"a {kind.__name__} has no stored form")

    def _operator(self, op: torch._ops.OpOverload) -> tuple[str, str, str]:
        name, overload = op._schema.name, op._schema.overload_name
        namespace, _, plain = name.partition("::")
        if namespace not in NAMESPACES:
            raise CannotStore(f"{name} is not an operator of PyTorch's own")
        return namespace, plain, overload or "default"

    def _record(self, value: Any, kind: type) -> int:
        form = [kind.__name__, *(self.form(getattr(value, name)) for name in _FIELDS[kind])]
        text = json.dumps(form, separators=(",", ":"))
        if text not in self._places:
            self._places[text] = len(self.table)
            self.table.append(form)
        return self._places[text]


def parse(text: str) -> Any:
    """The value of a text; `BadText` if it is not one that `dump` wrote."""
    try:
        table, form = json.loads(text)
        reader = _Reader()
        for entry in table:
            kind = _RECORDS[entry[0]]
            reader.records.append(kind(*[reader.value(each) for each in entry[1:]]))
        return reader.value(form)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RuntimeError, RecursionError) as error:
        raise BadText(f"{type(error).__name__}: {error}") from error


class _Reader:
    def __init__(self) -> None:
        self.records: list[Any] = []
        self._kinds: dict[str, Callable[[Any], Any]] = {
            "#": lambda form: self.records[form[1]],
            "t": lambda form: tuple([each if type(each) is not list else self.value(each) for each in form[1:]]),
            "l": lambda form: [self.value(each) for each in form[1:]],
            "f": lambda form: float.fromhex(form[1]),
            "d": lambda form: _torch_name(form[1], torch.dtype),
            "m": lambda form: _torch_name(form[1], torch.memory_format),
            "y": lambda form: _torch_name(form[1], torch.layout),
            "v": lambda form: torch.device(form[1]),
            "n": lambda form: torch.tensor(form[1:], dtype=torch.int64, device="cpu"),
            "e": lambda form: _ENUMS[form[1]][form[2]],
            "o": _operator,
        }

    def value(self, form: Any) -> Any:
        return form if type(form) is not list else self._kinds[form[0]](form)


def _torch_name(name: str, kind: type) -> Any:
    found = getattr(torch, name)
    if type(found) is not kind:
        raise ValueError(f"torch.{name} is no {kind.__name__}")
    return found


def _operator(form: Any) -> torch._ops.OpOverload:
    _, namespace, name, overload = form
    if namespace not in NAMESPACES:
        raise ValueError(f"{namespace} is not a namespace of PyTorch's own")
    found = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    if type(found) is not torch._ops.OpOverload:
        raise ValueError(f"{namespace}.{name}.{overload} is no operator")
    return found
