"""What the fuser works on: values in memory or to be computed, library calls, and how both are read.

    FusionValue mm · FusionValue relu, which reads mm at strides (8, 1) · Call topk(Ref(relu)) → FusionValue values
"""

from collections.abc import Iterator
from dataclasses import field
from enum import Enum
from typing import Any

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.fuse.lowering.rules import ContractRule, PointRule, ReductionRule, ScanRule, ScatterRule
from smelt.ir.kernel import Kernel
from smelt.ir.tensorspec import TensorSpec
from smelt.ops.record import LibraryCall, OperandLayout
from smelt.symbolic.shapes import Shape, Size


class FusionKind(Enum):
    LEAF = "leaf"  # an input or a constant
    LIBRARY = "library"  # a result of a library call, or of a kernel that stands like one
    POINTWISE = "pointwise"
    REDUCE = "reduce"
    SCAN = "scan"  # running reductions
    SCATTER = "scatter"  # lies where what it changes lay, which nobody else reads
    PRODUCT = "product"  # sums of products, by a kernel of our own


@dataclass(frozen=True, slots=True)
class FusionRead:
    """Where a user reads the element for each of its points: strides and offset in the value's memory."""

    value: "FusionValue"
    stride: Shape
    offset: Size
    identity_read: bool  # at each point of the user the element of the same number
    indirect: bool = False  # further places are worked out by the user's code: the value must be in memory by then

    @classmethod
    def of(cls, value: "FusionValue", layout: OperandLayout, dense: Shape) -> "FusionRead":
        """A reading over the dims of `layout`, by a user whose points are numbered by `dense` strides."""
        identity_read = layout.offset == 0 and (
            layout.stride == dense
            or all(
                size == 1 or have == want
                for size, have, want in zip(layout.shape, layout.stride, dense, strict=True)
            )
        )
        return cls(value, layout.stride, layout.offset, identity_read)


@dataclass(eq=False, slots=True, repr=False)
class FusionValue:
    """Something with elements. `id` orders values and calls as the graph does."""

    id: int
    name: str
    kind: FusionKind
    spec: TensorSpec
    numel: Size
    readings: tuple[FusionRead, ...] = ()
    rule: PointRule | ReductionRule | ScanRule | ScatterRule | ContractRule | None = None
    cost: int = 0
    why: str = ""  # of a product: why a kernel computes it
    by_library: bool = False  # of a product: where it runs, a library may compute it
    users: "list[FusionValue]" = field(default_factory=list)
    needed: bool = False  # must be in memory: returned, or read by a library call
    reads_bytes: bool = False  # it has integers of 8 bits, or is computed from them element by element
    call: "Call | None" = None  # what yields it, for results of library calls
    # Calls and products that must come first: earlier, the value would be in memory for nothing.
    after: "tuple[Call | FusionValue, ...]" = ()

    @property
    def is_computed(self) -> bool:
        return self.kind not in (FusionKind.LEAF, FusionKind.LIBRARY)

    @property
    def memory(self) -> "FusionValue":
        """The value that owns its memory."""
        return self.readings[0].value.memory if self.kind is FusionKind.SCATTER else self

    @property
    def loop(self) -> "tuple[Shape, Shape]":
        """Shape and dense strides of the points it is computed at: its own, or for a reduction or scatter those of
        its operand."""
        if isinstance(self.rule, ReductionRule | ScatterRule):
            return self.rule.shape, self.rule.stride
        return self.spec.shape, self.spec.stride

    def __repr__(self) -> str:
        """Its name alone: values and calls name each other."""
        return self.name


@dataclass(eq=False, slots=True, repr=False)
class Call:
    """A library call. Arguments hold `Ref`s where the graph has tensors; `results` has None where one is unused. With a
    `kernel` it is one of our kernels that nothing joins: the arguments are its inputs, the results its outputs."""

    id: int
    name: str
    op: torch._ops.OpOverload
    lowering: LibraryCall
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: list[FusionValue | None]
    why: str
    unless: FusionValue | None = None  # one bool: the call is there to raise, and made only if it is false
    after: "tuple[Call, ...]" = ()  # come first: random numbers are drawn, and errors raised, in order
    kernel: Kernel | None = None

    @property
    def reads(self) -> "list[FusionValue]":
        """The values it reads, each once."""
        values = dict.fromkeys(ref.value for ref in references((self.args, self.kwargs)))
        return [*values] if self.unless is None else [*{**values, self.unless: None}]

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor of the graph: a strided view of a value."""

    value: FusionValue
    layout: OperandLayout


@dataclass(slots=True)
class Lowered:
    """The whole graph: values and calls in order, and what it returns (`Ref`s and plain values)."""

    items: list[FusionValue | Call] = field(default_factory=list)
    returns: list[Any] = field(default_factory=list)
    constants: list[tuple[str, torch.Tensor]] = field(default_factory=list)
    has_backward: bool = False  # whether a backward is inside, as in the graph of a whole training step

    @property
    def values(self) -> Iterator[FusionValue]:
        return (item for item in self.items if isinstance(item, FusionValue))


def references(value: Any) -> Iterator[Ref]:
    """Every `Ref` in arguments, lists included."""
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from references(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from references(item)


def whole(value: FusionValue) -> Ref:
    return Ref(value, OperandLayout(value.spec.shape, value.spec.stride))
