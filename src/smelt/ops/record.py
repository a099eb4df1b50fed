"""`OpRecord`: all that is known of one ATen operator, in one place.

A record says how the operator lowers (to scalar code at a point, to a fold, to a strided view, to a choice between
tensors side by side, or not at all: a library call) and what it costs at a point.

    OpRecord(aten.relu.default, Pointwise(relu), cost=1)

Scalar code is written against an `Emitter`, so the same rule serves whoever builds kernels:

    def relu(e, x):
        return e.op("maximum", x, e.const(0, x.dtype))
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import fx

from smelt.base.fast_dataclass import dataclass
from smelt.ir.kernel import Reduction as Fold
from smelt.ir.kernel import Running
from smelt.symbolic.shapes import Shape, Size

# Costs at one point, in units of one arithmetic operation.
CHEAP = 1
ROOT = 4
TRANSCENDENTAL = 12
LONG = 200  # on a GPU, a kernel of its own: its threads take many points side by side, which share the work
LIBRARY_COST = 1000


@dataclass(frozen=True, slots=True)
class Scalar:
    """A value inside a kernel being built. Narrow floats (bf16, f16) are already widened to f32 here."""

    id: int
    dtype: torch.dtype


Number = bool | int | float


@dataclass(frozen=True, slots=True)
class OperandMemory:
    """In the place of an argument that is in memory, to be read at places that scalar code works out."""

    number: int


class Emitter(Protocol):
    """Where a lowering writes its scalar code. It speaks for one call of one operator."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the call's result, not widened."""

    @property
    def result(self) -> torch.dtype:
        """The dtype to compute the result in: that of the call's result, widened."""

    @property
    def common(self) -> torch.dtype:
        """The dtype PyTorch promotes the call's tensors and numbers to, not widened."""

    @property
    def shape(self) -> Shape:
        """The shape of the call's result."""

    def const(self, value: Number, dtype: torch.dtype) -> Scalar: ...

    def op(self, name: str, *args: Scalar) -> Scalar: ...

    def cast(self, value: Scalar, dtype: torch.dtype) -> Scalar: ...

    def position(self, dim: int) -> Scalar:
        """The index along `dim` of the result, as an int64."""

    def gather(self, memory: OperandMemory, by: "Sequence[tuple[Scalar, Size, Size]]") -> Scalar:
        """An element of what is in memory: `by` has (place, stride, extent) of each dim to be found in."""


EmitRule = Callable[..., Scalar]


@dataclass(frozen=True, slots=True)
class Pointwise:
    """Each element of the result from the elements at its (broadcast) index. `emit(emitter, *args, **kwargs)` gets
    the call's own arguments, tensors replaced by scalars. With `template`, the first tensor only lends its shape and
    dtype, and None stands in its place. A rule `by_position` asks where an element lies: it means something else of
    elements that were moved first."""

    emit: EmitRule
    template: bool = False
    by_position: bool = False

    @property
    def is_elementwise(self) -> bool:
        """Whether moved elements give the moved results."""
        return not self.template and not self.by_position


@dataclass(frozen=True, slots=True)
class FoldCall:
    """A reduction call, read: which dims go, whether they stay with extent one, and what is folded how."""

    fold: Fold
    dims: tuple[int, ...]
    keepdim: bool
    dtype: torch.dtype  # dtype folded in, widened
    divide: bool = False  # the fold is divided by the number of elements folded: mean


@dataclass(frozen=True, slots=True)
class Reduce:
    """A fold over dims of the first argument. `read(node)` interprets the call."""

    read: Callable[[fx.Node], FoldCall]


@dataclass(frozen=True, slots=True)
class OperandLayout:
    """Where the elements of a view are: positions count from the first element of what is viewed."""

    shape: Shape
    stride: Shape
    offset: Size = 0


@dataclass(frozen=True, slots=True)
class View:
    """The same memory, seen otherwise. `move(layout, *args, **kwargs)` gets the layout of the first argument and the
    other arguments, and returns the result's, or None where no strides describe it."""

    move: Callable[..., OperandLayout | None]


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """Left to ATen. `out` is the variant that writes into given memory, `into` the names of its out arguments; `why`
    says what speaks against a kernel, after "it". With `template`, the first tensor only lends its shape and dtype:
    `out` is called without it, with what follows by name."""

    out: torch._ops.OpOverload | None = None
    into: tuple[str, ...] = ()
    why: str = "is left to the library"
    template: bool = False


@dataclass(frozen=True, slots=True)
class PieceCall:
    """A call whose result is cut into `count` equal parts along `dim`; `parts` are the tensors that fill some of them,
    by number (`squeezed`: without that dim), the rest is as in `base`, or zero."""

    dim: int
    count: int
    parts: tuple[tuple[int, fx.Node], ...]
    squeezed: bool = False
    base: fx.Node | None = None


# Reads an element of what is looked up in, at one place for each dim that does not run along with the result.
Fetch = Callable[..., Scalar]


@dataclass(frozen=True, slots=True)
class Demand:
    """What an operator demands of an index, or else raises: every element counts from 0 to below `extent`, or from
    `-extent` on (`from_end`), or is `besides`."""

    index: fx.Node
    extent: Size
    from_end: bool = False
    besides: int | None = None


@dataclass(frozen=True, slots=True)
class LookupIndex:
    """Where an index stands in a lookup: the result's dim that its first dim is."""

    node: fx.Node
    dim: int


@dataclass(frozen=True, slots=True)
class LookupCall:
    """A call, read: `along` has for each dim of `source` the dim of the result that it runs along with, or None where
    the place is worked out; `emit(emitter, fetch, *indices)` does that, given the elements of the indices at a point.
    Tensors `beside` the source are read along with the same dims: `emit` gets a fetch for each.
    """

    source: fx.Node
    along: tuple[int | None, ...]
    emit: EmitRule
    indices: tuple[LookupIndex, ...] = ()
    demands: tuple[Demand, ...] = ()
    beside: "tuple[LookupBeside, ...]" = ()


@dataclass(frozen=True, slots=True)
class LookupBeside:
    """A tensor of the same rank as the source of a lookup, in which elements are looked up, too: `emit(emitter,
    element)` makes of each element what is kept of it, in `dtype`."""

    node: fx.Node
    dtype: torch.dtype
    emit: EmitRule


@dataclass(frozen=True, slots=True)
class CopyCall:
    """A call, read: a copy of a view. `move` is given the layout of the source and returns where the elements are."""

    source: fx.Node
    move: Callable[[OperandLayout], OperandLayout]


@dataclass(frozen=True, slots=True)
class ScanCall:
    """A call, read: each element is the fold of all up to it along `dim` of `source`, or of all from it on."""

    source: fx.Node
    fold: Running
    dim: int
    dtype: torch.dtype  # dtype folded in, widened
    backwards: bool = False


@dataclass(frozen=True, slots=True)
class Scan:
    """Folds up to each element. `read(node)` interprets the call, or gives the reason why it is left to the library."""

    read: Callable[[fx.Node], ScanCall | str]
    otherwise: LibraryCall = LibraryCall()


@dataclass(frozen=True, slots=True)
class Lookup:
    """Elements of a tensor in memory, from places that indices or positions say. `read(node)` interprets the call, or
    gives the reason why it is better left to the library. Indices are checked first; for one out of range the
    operator itself is called, which raises."""

    read: Callable[[fx.Node], LookupCall | CopyCall | ScanCall | str]
    otherwise: LibraryCall = LibraryCall()


@dataclass(frozen=True, slots=True)
class ScatterCall:
    """A call, read: its points have `shape`, and each puts the element of `source` there (a number: everywhere) at a
    place in a copy of `base` (None: in zeros).

    `along` has for each dim of the result the dim of the points that it runs along with, or None where the place is
    worked out: `emit(emitter, together, *indices)` calls `together` with one place for each, given the elements of the
    indices at a point. A point with a place out of range puts nothing. Points that meet are folded in order by `fold`;
    without one the last stays. With `wide`, 16-bit floats are folded in float32 and rounded when all is done. With
    `unordered`, eager folds them in any order, and so may a kernel.
    """

    base: fx.Node | None
    shape: Shape
    source: fx.Node | Number
    along: tuple[int | None, ...]
    emit: Callable[..., tuple[Scalar, ...]]
    indices: tuple[LookupIndex, ...]
    demands: tuple[Demand, ...] = ()
    fold: Fold | None = None
    scale: Number = 1  # what each element is multiplied with
    wide: bool = False
    unordered: bool = False


@dataclass(frozen=True, slots=True)
class Scatter:
    """Elements put at places that indices say, several perhaps at one. `read(node)` interprets the call, or gives the
    reason why it is better left to the library. Indices are checked as those of lookups."""

    read: Callable[[fx.Node], ScatterCall | str]
    otherwise: LibraryCall = LibraryCall()


@dataclass(frozen=True, slots=True)
class Pieces:
    """Tensors side by side, chosen from by position. `read(node)` gives the parts, or the reason why they are not of
    one size or not worth choosing from; `otherwise` is what is called then."""

    read: Callable[[fx.Node], PieceCall | str]
    otherwise: LibraryCall = LibraryCall()


Lowering = Pointwise | Reduce | Scan | View | Pieces | Lookup | Scatter | LibraryCall


@dataclass(frozen=True, slots=True)
class OpRecord:
    """One operator. `why_not(node)` gives the reason a particular call must stay a library call, or None.

    `demands(node)` says what a call raises for. If nobody uses its results it is there to raise, and is made only if
    what it demands does not hold, which a kernel finds out."""

    op: torch._ops.OpOverload
    lowering: Lowering
    cost: int
    why_not: Callable[[fx.Node], str | None] | None = None
    demands: Callable[[fx.Node], tuple[Demand, ...]] | None = None
