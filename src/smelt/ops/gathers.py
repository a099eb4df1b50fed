"""Records of elements looked up by index: kernels read them where the indices say, among whatever else they compute.

    embedding(weight, tokens) of f32[100, 8], i64[5]  →  at [i, j]: weight[tokens[i], j]
    index(x, [None, rows]) of f32[4, 6], i64[3]       →  at [i, j]: x[i, rows[j]]

An index is looked at before anything relies on it: a fold over all of them says whether they are in range, and if not,
the operator itself is called and raises what it always does. A kernel never reads outside of the tensor meanwhile.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from smelt.base.fast_dataclass import dataclass
from smelt.ir.tensorspec import tensor_spec
from smelt.meta.rules.strides import broadcast
from smelt.ops.record import (
    ROOT,
    Demand,
    Emitter,
    Fetch,
    LibraryCall,
    Lookup,
    LookupCall,
    LookupIndex,
    OpRecord,
    Scalar,
)
from smelt.ops.registry import register
from smelt.symbolic.shapes import Shape, Size

aten = torch.ops.aten

INDICES = (torch.int64, torch.int32)


def as_given(e: Emitter, fetch: Fetch, *indices: Scalar) -> Any:
    """What is found at the places that indices say as they are."""
    return fetch(*(e.cast(index, torch.int64) for index in indices))


def from_either_end(extents: Sequence[Size]) -> Callable[..., Any]:
    """Indices below zero count from the end."""

    def emit(e: Emitter, fetch: Fetch, *indices: Scalar) -> Any:
        places = []
        for index, extent in zip(indices, extents, strict=True):
            place = e.cast(index, torch.int64)
            back = e.op("add", place, e.const(extent, torch.int64))
            places.append(e.op("where", e.op("lt", place, e.const(0, torch.int64)), back, place))
        return fetch(*places)

    return emit


def why_not_index(*nodes: object) -> str | None:
    """Why a tensor is no index: how many elements a mask selects depends on data."""
    for node in nodes:
        if not isinstance(node, fx.Node):
            return "has an index that is no tensor"
        if tensor_spec(node).dtype not in INDICES:
            return "is indexed by a mask"
    return None


def _embedding(node: fx.Node) -> LookupCall | str:
    weight, index = node.args[:2]
    if (why := why_not_index(index)) is not None:
        return why
    assert isinstance(weight, fx.Node) and isinstance(index, fx.Node)
    last, rows = len(tensor_spec(node).shape) - 1, tensor_spec(weight).shape[0]
    return LookupCall(weight, (None, last), as_given, (LookupIndex(index, 0),), (Demand(index, rows),))


def along_all_but(rank: int, dim: int) -> tuple[int | None, ...]:
    return tuple(None if each == dim else each for each in range(rank))


def _along_dim(*, of_slices: bool) -> Callable[[fx.Node], LookupCall | str]:
    """`index_select`: an index of one dimension counts slices (`of_slices`); `gather`: each element has its own."""

    def read(node: fx.Node) -> LookupCall | str:
        source, signed_dim, index = node.args[:3]
        if (why := why_not_index(index)) is not None:
            return why
        assert isinstance(source, fx.Node) and isinstance(signed_dim, int) and isinstance(index, fx.Node)
        shape = tensor_spec(source).shape
        if not shape or len(tensor_spec(index).shape) != (1 if of_slices else len(shape)):
            return f"{'selects' if of_slices else 'gathers'} from a tensor without dimensions"
        dim = signed_dim % len(shape)
        lookups, demands = (LookupIndex(index, dim if of_slices else 0),), (Demand(index, shape[dim]),)
        return LookupCall(source, along_all_but(len(shape), dim), as_given, lookups, demands)

    return read


@dataclass(frozen=True, slots=True)
class Indexed:
    """What a tensor of `shape` is indexed with, one index or None a dim, and the points that result."""

    shape: Shape
    points: Shape
    along: tuple[int | None, ...]
    indices: tuple[LookupIndex, ...]
    demands: tuple[Demand, ...]

    @property
    def from_either_end(self) -> Callable[..., Any]:
        return from_either_end([size for size, dim in zip(self.shape, self.along, strict=True) if dim is None])


def read_indices(shape: Shape, leading_indices: Sequence[Any]) -> Indexed | str:
    """Indices as PyTorch takes them, or why they are none that say one place each."""
    indices: list[Any] = [*leading_indices, *([None] * (len(shape) - len(leading_indices)))]
    indexed = [dim for dim, index in enumerate(indices) if index is not None]
    if (why := why_not_index(*(indices[dim] for dim in indexed))) is not None:
        return why
    if not indexed:
        return "has no index"
    # What the indices have in common stands where the first of them does; in front, if there is something between them.
    common = broadcast([tensor_spec(indices[dim]).shape for dim in indexed])
    assert common is not None
    rank = len(common)
    together = indexed == list(range(indexed[0], indexed[-1] + 1))
    first = indexed[0] if together else 0
    kept = [size for dim, size in enumerate(shape) if dim not in indexed]
    points = (*kept[:first], *common, *kept[first:])
    plain = iter([dim for dim in range(len(points)) if not first <= dim < first + rank])
    along = tuple(None if dim in indexed else next(plain) for dim in range(len(shape)))
    lookups = tuple(LookupIndex(indices[dim], first + rank - len(tensor_spec(indices[dim]).shape)) for dim in indexed)
    demands = tuple(Demand(indices[dim], shape[dim], from_end=True) for dim in indexed)
    return Indexed(shape, points, along, lookups, demands)


def _index(node: fx.Node) -> LookupCall | str:
    source, indices = node.args
    assert isinstance(source, fx.Node) and isinstance(indices, Sequence)
    indexed = read_indices(tensor_spec(source).shape, indices)
    if isinstance(indexed, str):
        return indexed
    if node.target is aten._unsafe_index.Tensor:
        return LookupCall(source, indexed.along, as_given, indexed.indices)
    return LookupCall(source, indexed.along, indexed.from_either_end, indexed.indices, indexed.demands)


register(OpRecord(aten.embedding.default, Lookup(_embedding), ROOT))
_gathered = Lookup(_along_dim(of_slices=False), LibraryCall(aten.gather.out, ("out",)))
register(OpRecord(aten.gather.default, _gathered, ROOT))
_selected = Lookup(_along_dim(of_slices=True), LibraryCall(aten.index_select.out, ("out",)))
register(OpRecord(aten.index_select.default, _selected, ROOT))
register(OpRecord(aten.index.Tensor, Lookup(_index), ROOT))
register(OpRecord(aten._unsafe_index.Tensor, Lookup(_index), ROOT))
