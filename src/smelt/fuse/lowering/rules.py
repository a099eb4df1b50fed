"""How an element of a value is computed from its inputs: pointwise, by a reduction, scan, scatter or contraction.

    sum(x, dim=1) of f32[4, 8]      →  ReductionRule over dims (1,) of points 4 × 8
    mm(x, w.t()) of f32[4, 8], f32[16, 8]
        →  ContractRule over (8,): left at strides (8, 0) and 1 along the sum, right at strides (0, 8) and 1
"""

import operator
from itertools import takewhile
from typing import Any

import torch
from torch import fx

from smelt.base.fast_dataclass import dataclass
from smelt.ir.kernel import IntegerKind
from smelt.ops.record import FoldCall, Pointwise, ScanCall, ScatterCall
from smelt.symbolic.shapes import Shape, Size, product


@dataclass(frozen=True, slots=True)
class PointRule:
    """How an element is computed from its readings: the record's rule and the call's arguments, tensors as `Slot`s."""

    lowering: Pointwise
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    common: torch.dtype


@dataclass(frozen=True, slots=True)
class Slot:
    """In a rule's arguments: the element of the `number`-th reading."""

    number: int


@dataclass(frozen=True, slots=True)
class ReductionRule:
    """A reduction over `dims` of points `shape`, visited in the order of dense `stride`. `result`: strides of the
    result's memory over those dims, zero for reduced dims."""

    call: FoldCall
    shape: Shape
    stride: Shape
    result: Shape
    count: Size  # how many elements are reduced to one
    inner: Size  # extent of the innermost run of reduced dims, in visiting order
    kept_inner: Size  # extent of the innermost run of dims that stay
    is_rows: bool  # reduces exactly the innermost run, into results in the order of the rows

    @classmethod
    def of(cls, call: FoldCall, shape: Shape, stride: Shape, result: Shape) -> "ReductionRule":
        inside_out = sorted((d for d in range(len(shape)) if shape[d] != 1), key=lambda d: stride[d])
        folded = [dim in call.dims for dim in inside_out]
        sizes = [shape[dim] for dim in inside_out]
        inner = product(size for size, _ in zip(sizes, takewhile(bool, folded), strict=False))
        kept_inner = product(size for size, _ in zip(sizes, takewhile(operator.not_, folded), strict=False))
        count = product(shape[dim] for dim in call.dims)
        is_rows = inner == count and all(
            result[dim] * inner == stride[dim] for dim in inside_out if dim not in call.dims
        )
        return cls(call, shape, stride, result, count, inner, kept_inner, is_rows)


@dataclass(frozen=True, slots=True)
class ScanRule:
    """A scan along one dim with stride `step` in memory: points are visited in rows of `cols`."""

    call: ScanCall
    size: Size
    step: Size

    @property
    def cols(self) -> Size:
        return self.step * self.size


@dataclass(frozen=True, slots=True)
class ScatterRule:
    """What the points `shape`, visited in the order of `stride`, write where. `result`: strides of the value's memory
    over those dims, zero where `by` has a data-dependent place, (stride, extent) each. The readings are the changed
    tensor, the written element unless it is a number, then the indices."""

    call: ScatterCall
    shape: Shape
    stride: Shape
    result: Shape
    by: tuple[tuple[Size, Size], ...]
    cols: Size  # points at the end that share their places, or the last dim where there are none
    offset: Size = 0  # where in the value's memory the first of them lies

    @property
    def first_index(self) -> int:
        """The number of the reading that is the first index."""
        return 2 if isinstance(self.call.source, fx.Node) else 1


@dataclass(frozen=True, slots=True)
class FactorBound:
    """A position over the dims of a product and along its sum: a factor is zero where it is outside 0 … extent - 1."""

    stride: Shape
    along: Shape
    offset: Size
    extent: Size


@dataclass(frozen=True, slots=True)
class FactorRead:
    """Where a product reads a factor: strides over its own dims, and `along` the summed axes. Those of a `quantized`
    factor count integers, of which two may share a byte."""

    stride: Shape
    along: Shape
    offset: Size = 0
    bounds: tuple[FactorBound, ...] = ()
    quantized: "QuantizedRead | None" = None

    @property
    def reads(self) -> "tuple[FactorRead, ...]":
        """The scale and the rest of a quantized factor."""
        return () if self.quantized is None else self.quantized.reads


@dataclass(frozen=True, slots=True)
class QuantizedRead:
    """As `ir.kernel.Quantized`, over the dims and axes of a product. What it reads follows the product's factors among
    its readings: scale, zero, low, as far as there are."""

    kind: IntegerKind
    scale: FactorRead
    zero: FactorRead | None
    low: FactorRead | None
    offset: int

    @property
    def reads(self) -> tuple[FactorRead, ...]:
        return tuple(each for each in (self.scale, self.zero, self.low) if each is not None)


@dataclass(frozen=True, slots=True)
class ContractRule:
    """A product: at each point the sum over `axes` of left times right, in the dtype of the value. The readings 0 and 1
    are the factors, which are in memory, because each point reads many of their elements; scales follow."""

    axes: Shape
    left: FactorRead
    right: FactorRead

    @property
    def factors(self) -> tuple[FactorRead, FactorRead]:
        return self.left, self.right

    @property
    def reads(self) -> tuple[FactorRead, ...]:
        """Where each reading is: the factors, then the scales of quantized ones."""
        return (self.left, self.right, *self.left.reads, *self.right.reads)

    @property
    def runs_along(self) -> bool:
        """Whether both factors are contiguous along the sum, as in x @ w.T."""
        return all(factor.along[-1:] == (1,) for factor in self.factors)

    def sides(self, shape: Shape) -> tuple[Size, Size, Size, Size]:
        """Points by the factors that differ between them: both (a batch), left alone, right alone; and the terms of
        each sum. What both leave out counts to the batch."""
        batch = rows = cols = 1
        for dim, size in enumerate(shape):
            moves = [_moves(factor, dim) for factor in self.factors]
            if moves[0] == moves[1]:
                batch *= size
            elif moves[0]:
                rows *= size
            else:
                cols *= size
        return batch, rows, cols, product(self.axes)

    def cols(self, shape: Shape, stride: Shape) -> Size:
        """Points of a row: the innermost dims of the result, in memory, along which the same factors vary."""
        inside_out = sorted((dim for dim in range(len(shape)) if shape[dim] != 1), key=lambda dim: stride[dim])
        run = [[_moves(factor, dim) for factor in self.factors] for dim in inside_out]
        alike = takewhile(lambda moves: moves == run[0], run)
        return product(shape[dim] for dim, _ in zip(inside_out, alike, strict=False))


def _moves(factor: FactorRead, dim: int) -> bool:
    """Whether a factor differs from one point to the next along a dim."""
    return factor.stride[dim] != 0 or any(bound.stride[dim] != 0 for bound in factor.bounds)
