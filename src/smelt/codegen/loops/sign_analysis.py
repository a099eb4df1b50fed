"""Finds values of a kernel that are never positive, whatever its inputs: functions of those take fewer steps.

    m = reduce max v0                       v0 and v1 are the same element of the same row,
    v2 = sub v1, m                      →   so v2 is 0 at most: its exp neither overflows nor has to be bounded above

Everything here holds for NaN too: "at most zero" is "at most zero, or NaN".
"""

import math
from collections.abc import Hashable
from dataclasses import field

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.ir.kernel import (
    Cast,
    Compute,
    Const,
    Contract,
    Gather,
    Index,
    Instruction,
    Kernel,
    Load,
    Position,
    Reduce,
    Role,
    Scan,
    Softmax,
    Store,
)
from smelt.symbolic.symsize import varies


def never_positive(kernel: Kernel) -> frozenset[str]:
    """The values that are zero, negative or NaN."""
    if not any(isinstance(i, Compute) and i.op == "exp" for i in kernel.instructions()):
        return frozenset()  # nobody asks
    return frozenset(name for name, sign in _learned(kernel).signs.items() if sign < 0)


def equal_values(kernel: Kernel) -> dict[str, int]:
    """A number for every value, which values share that are the same at the same point."""
    return _learned(kernel).numbers


def _learned(kernel: Kernel) -> "_Known":
    known = _Known({buffer.name: buffer.role for buffer in kernel.buffers})
    for instruction in kernel.instructions():
        known.learn(instruction)
    return known


@dataclass(slots=True)
class _Known:
    """Of each value seen so far: a number that equal values share, and the sign it has where it is not zero."""

    roles: dict[str, Role]
    numbers: dict[str, int] = field(default_factory=dict)
    signs: dict[str, int] = field(default_factory=dict)
    stored: dict[tuple[str, Index], str] = field(default_factory=dict)  # into scratch
    numbering: dict[Hashable, int] = field(default_factory=dict)  # what a value is made of → its number

    def learn(self, instruction: Instruction) -> None:
        match instruction:
            case Store(buffer, index, value):
                self.stored = {key: name for key, name in self.stored.items() if key[0] != buffer}
                if self.roles[buffer] is Role.SCRATCH:
                    self.stored[buffer, index] = value
            case Load(out, buffer, index):
                self._load(out, buffer, index)
            case Gather(out, buffer, index, by) if self.roles[buffer] is Role.INPUT:
                self._is(out, buffer, index, *((self.numbers[value], step, extent) for value, step, extent in by))
            case Gather(out):
                self._is(out, out)
            case Position(out, index):
                self._is(out, index)
            case Const(out, value, dtype):
                self._is(out, out if varies(value) else str(value), dtype)
                self.signs[out] = 0 if varies(value) or math.isnan(value) else (value > 0) - (value < 0)
            case Compute(out, op, args, dtype):
                self._is(out, op, dtype, *(self.numbers[arg] for arg in args))
                self.signs[out] = self._sign(op, args) if dtype.is_floating_point else 0
            case Cast(out, value, dtype):
                self._is(out, "cast", dtype, self.numbers[value])
                self.signs[out] = self.signs.get(value, 0) if dtype in (torch.float32, torch.float64) else 0
            case Reduce(out, op, value):
                self._is(out, "reduce", op, self.numbers[value])
            case Scan(out) | Contract(out) | Softmax(out):
                self._is(out, out)

    def _is(self, out: str, *made_of: Hashable) -> None:
        self.numbers[out] = self.numbering.setdefault(made_of, len(self.numbering))

    def _load(self, out: str, buffer: str, index: Index) -> None:
        if (buffer, index) in self.stored:
            value = self.stored[buffer, index]
            self.numbers[out], self.signs[out] = self.numbers[value], self.signs.get(value, 0)
        elif self.roles[buffer] is Role.INPUT:
            self._is(out, buffer, index)
        else:
            self._is(out, out)

    def _sign(self, op: str, args: tuple[str, ...]) -> int:
        """Of a float: 1 or -1 where it is never on the other side of zero, else 0."""
        signs = [self.signs.get(arg, 0) for arg in args]
        match op:
            case "mul" if self.numbers[args[0]] == self.numbers[args[1]]:
                return 1
            case "mul":
                return signs[0] * signs[1]
            case "add" if signs[0] == signs[1]:
                return signs[0]
            case "neg":
                return -signs[0]
            case "abs" | "exp" | "sigmoid":
                return 1
            case "minimum":
                return min(signs)
            case "sub" if self.numbers[args[1]] == self.numbering.get(("reduce", "max", self.numbers[args[0]])):
                return -1
        return 0
