"""`Array`: elements of a dtype side by side in memory, from an address on.

    x = Array(b, pointer, torch.float32)
    x.at(i).store(b.fmul(x.load(i, 8), 2.0))       %p1 = address %x + %i f32, %t2 = load f32x8 %p1, …
"""

from collections.abc import Mapping, Sequence

import torch

from smelt.codegen.loops.builder import Builder, Term
from smelt.codegen.loops.scalars import cast, from_memory, memory_kind
from smelt.ir.kernel import Axis, Index
from smelt.ir.loops import Value


class Array:
    """`kind` is that of an element in memory."""

    __slots__ = ("b", "dtype", "kind", "pointer")

    def __init__(self, b: Builder, pointer: Value, dtype: torch.dtype) -> None:
        self.b, self.pointer, self.dtype, self.kind = b, pointer, dtype, memory_kind(dtype)

    def at(self, offset: Term) -> "Array":
        """The same from another element on."""
        return Array(self.b, self.b.element(self.pointer, self.kind, offset), self.dtype)

    def at_index(self, index: Index, positions: Mapping[str, Value]) -> "Array":
        """The same from the element of an index on, at the positions of some axes."""
        total = self.b.const("i64", index.offset)
        for name, position in positions.items():
            step = index.stride(name)
            total = self.b.add(total, self.b.mul(position, step)) if step else total
        return self.at(total)

    def load(self, offset: Term = 0, lanes: int = 1) -> Value:
        """Elements as they are in memory."""
        return self.b.load(self.b.element(self.pointer, self.kind, offset), self.kind, lanes)

    def load_as(self, dtype: torch.dtype, offset: Term = 0, lanes: int = 1) -> Value:
        """Elements converted to another dtype."""
        return cast(self.b, from_memory(self.b, self.load(offset, lanes), self.dtype), self.dtype, dtype)

    def store(self, value: Value, offset: Term = 0) -> None:
        self.b.store(value, self.b.element(self.pointer, self.kind, offset))

    def zero(self, lanes: int = 1) -> Value:
        return self.b.const(self.kind, 0.0, lanes)


def spans(size: int, lanes: int) -> list[tuple[int, int, int]]:
    """Loops over elements in whole vectors, then one by one: the first, the last and the lanes of each."""
    whole = size // lanes * lanes
    return [each for each in ((0, whole, lanes), (whole, size, 1)) if each[0] < each[1]]


def positions(b: Builder, axes: Sequence[Axis], number: Value) -> dict[str, Value]:
    """Where each axis stands at point `number` of all of them together, the last one fastest."""
    places: dict[str, Value] = {}
    for axis in reversed(axes[1:]):
        places[axis.name] = b.urem(number, axis.size)
        number = b.udiv(number, axis.size)
    return places | {axis.name: number for axis in axes[:1]}
