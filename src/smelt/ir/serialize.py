"""Values of the compiler as JSON and back: kernels, plans and what they are made of, for files that outlive a process.

    AsStrided((2, 3), (3, 1), 0)   →   ["#r", 0], and in the table ["AsStrided", ["t", 2, 3], ["t", 3, 1], 0]

Plain values have the form of `ir.json_values`; what is the compiler's own is a list whose kind begins with `#`. Records
(the frozen dataclasses listed here) are written once each, into a table, and referred to from there. What has no form
here cannot be stored, and `CannotStore` says so; operators are stored by name, and only PyTorch's own and ours. Nothing
in a file can name code to be run.
"""

import json
from collections.abc import Callable
from dataclasses import fields
from enum import Enum
from typing import Any

import torch

from smelt.ir import call_contract, kernel, kernel_code, tensorspec
from smelt.ir.json_values import decode, encode
from smelt.ir.nodes import defining

RECORDS: tuple[type, ...] = (
    tensorspec.TensorSpec,
    kernel.Axis, kernel.Index, kernel.Buffer, kernel.Const, kernel.Load, kernel.Gather, kernel.Position,
    kernel.Compute, kernel.Cast, kernel.Store, kernel.Reduce, kernel.Scan, kernel.Accumulate, kernel.Scatter,
    kernel.Element, kernel.Quantized, kernel.Factor, kernel.Contract, kernel.Softmax, kernel.WeightedSum,
    kernel.Stage, kernel.Kernel, kernel.KernelGroup, kernel_code.GridPhase,
    call_contract.ViewStep, call_contract.AsStrided, call_contract.FromInput, call_contract.FromResult,
    call_contract.SameAsOutput, call_contract.Plain, call_contract.Saved,
    call_contract.JointPlan,
)  # fmt: skip
ENUMS: tuple[type[Enum], ...] = (kernel.Role,)
NAMESPACES = frozenset({"aten", "prims", "smelt"})

_RECORDS: dict[str, type] = {each.__name__: each for each in RECORDS}
_ENUMS: dict[str, type[Enum]] = {each.__name__: each for each in ENUMS}
_FIELDS: dict[type, tuple[str, ...]] = {each: tuple(f.name for f in fields(each)) for each in RECORDS}


class CannotStore(Exception):
    """Why a value has no form in a file."""


class BadForm(Exception):
    """A value of JSON is not what `dump` returns."""


def dump(value: object) -> Any:
    """A value as JSON has it."""
    table: list[Any] = []
    places: dict[str, int] = {}  # by text, not by equality: 1, 1.0 and True are equal

    def other(value: Any) -> Any:
        kind = type(value)
        if kind in _FIELDS:
            form = [kind.__name__, *[encode(getattr(value, name), other) for name in _FIELDS[kind]]]
            text = json.dumps(form, separators=(",", ":"))
            if text not in places:
                places[text] = len(table)
                table.append(form)
            return ["#r", places[text]]
        if kind is torch.Tensor and value.dtype is torch.int64 and value.dim() == 1:
            return ["#n", *value.tolist()]  # sizes that a kernel is given at launch
        if kind is torch._ops.OpOverload:
            return operator_form(value)
        if kind in ENUMS:
            return ["#e", kind.__name__, value.name]
        raise CannotStore(f"a {kind.__name__} has no stored form")

    form = encode(value, other)  # which fills the table
    return [table, form]


def operator_form(op: torch._ops.OpOverload) -> list[str]:
    """An operator by its name."""
    name, overload = op._schema.name, op._schema.overload_name
    namespace, _, plain = name.partition("::")
    if namespace not in NAMESPACES:
        raise CannotStore(f"{name} is not an operator of PyTorch's own")
    return ["#o", namespace, plain, overload or "default"]


def parse(dumped: Any) -> Any:
    """The value of what `dump` returned; `BadForm` if it is something else."""
    records: list[Any] = []

    def other(form: Any) -> Any:
        return records[form[1]] if form[0] == "#r" else _KINDS[form[0]](form)

    try:
        table, form = dumped
        for entry in table:
            records.append(_RECORDS[entry[0]](*[decode(each, other) for each in entry[1:]]))
        return decode(form, other)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RuntimeError, RecursionError) as error:
        raise BadForm(f"{type(error).__name__}: {error}") from error


def operator(form: Any) -> torch._ops.OpOverload:
    """The operator of what `operator_form` wrote."""
    _, namespace, name, overload = form
    if namespace not in NAMESPACES:
        raise ValueError(f"{namespace} is not a namespace of PyTorch's own")
    if namespace == "smelt":
        defining(name)
    resolved = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    if type(resolved) is not torch._ops.OpOverload:
        raise ValueError(f"{namespace}.{name}.{overload} is no operator")
    return resolved


_KINDS: dict[str, Callable[[Any], Any]] = {
    "#n": lambda form: torch.tensor(form[1:], dtype=torch.int64, device="cpu"),
    "#e": lambda form: _ENUMS[form[1]][form[2]],
    "#o": operator,
}
