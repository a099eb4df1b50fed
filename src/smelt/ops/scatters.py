"""Records of elements put at places that indices say: kernels compute them and write them there, one after the other.

    index_add(x, 0, i, s) of f32[9, 8], i64[5], f32[5, 8]  →  y, a copy of x; at [n, j]: y[i[n], j] += s[n, j]
    embedding_dense_backward(g, i, 100, 0, False)          →  y, zeros; at [n, j]: y[i[n], j] += g[n, j], i[n] ≠ 0

Points that meet take turns in the order that eager takes on one thread, so that sums come out as they do there.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from smelt.ir.kernel import Reduction
from smelt.ir.tensorspec import tensor_spec
from smelt.ops.gathers import along_all_but, as_given, from_either_end, read_indices, why_not_index
from smelt.ops.record import ROOT, Demand, Emitter, Fetch, LookupIndex, OpRecord, Scalar, Scatter, ScatterCall
from smelt.ops.registry import argument, register

aten = torch.ops.aten

Read = Callable[[fx.Node], ScatterCall | str]


def _adds(dtype: torch.dtype) -> Reduction:
    return "any" if dtype is torch.bool else "sum"


def _why_not(x: fx.Node, index: object, source: object) -> str | None:
    if (why := why_not_index(index)) is not None:
        return why
    if not tensor_spec(x).shape:
        return "writes to a tensor without dimensions"
    dtype = tensor_spec(x).dtype
    same = tensor_spec(source).dtype is dtype if isinstance(source, fx.Node) else _is_of(source, dtype)
    return None if same else "converts what it writes"


def _is_of(number: object, dtype: torch.dtype) -> bool:
    """Whether a number is of a dtype's kind, or of a lesser one."""
    if isinstance(number, float):
        return dtype.is_floating_point
    return isinstance(number, int)


def _in_any_order(device: torch.device) -> bool:
    """Whether eager adds up numbers that meet by atomic operations: on GPUs, unless results are to be the same in every
    run. Gradients of embeddings, and `index_put`, it sorts even there."""
    return device.type == "cuda" and not torch.are_deterministic_algorithms_enabled()


def _by_rows(put: Reduction | str | None, *, from_end: bool = False) -> Read:
    """`index_…`: whole slices along a dim, which one index of one dimension counts."""

    def read(node: fx.Node) -> ScatterCall | str:
        x, signed_dim, index, source = node.args[:4]
        assert isinstance(x, fx.Node) and isinstance(signed_dim, int)
        if (why := _why_not(x, index, source)) is not None:
            return why
        assert isinstance(index, fx.Node)
        spec = tensor_spec(x)
        dim, count = signed_dim % len(spec.shape), tensor_spec(index).shape
        points = (*spec.shape[:dim], *count, *spec.shape[dim + 1 :])
        if len(count) != 1 or (isinstance(source, fx.Node) and tensor_spec(source).shape != points):
            return "has an index without dimensions"
        scale = argument(node, 4, "alpha", 1) if put == "sum" else 1
        if not _is_of(scale, spec.dtype) or (scale != 1 and spec.dtype is torch.bool):
            return "converts what it writes"
        return ScatterCall(
            x,
            points,
            source,  # type: ignore[arg-type]
            along_all_but(len(points), dim),
            from_either_end(spec.shape[dim : dim + 1]) if from_end else as_given,
            (LookupIndex(index, dim),),
            (Demand(index, spec.shape[dim], from_end=from_end),),
            _adds(spec.dtype) if put == "sum" else put,  # type: ignore[arg-type]
            scale,
            wide=put == "sum",
            unordered=put == "sum" and _in_any_order(spec.device),
        )

    return read


def _is_place(node: fx.Node) -> tuple[Demand, ...]:
    """Each index is a place along the dim."""
    x, dim, index = node.args[:3]
    assert isinstance(x, fx.Node) and isinstance(dim, int) and isinstance(index, fx.Node)
    return (Demand(index, tensor_spec(x).shape[dim]),)


_FOLDS: dict[str, Reduction] = {"sum": "sum", "prod": "prod", "amax": "max", "amin": "min"}


def _one_by_one(put: Reduction | None = None) -> Read:
    """`scatter…`: each element along a dim by an index of its own."""

    def read(node: fx.Node) -> ScatterCall | str:
        x, signed_dim, index, source = node.args[:4]
        assert isinstance(x, fx.Node) and isinstance(signed_dim, int)
        if (why := _why_not(x, index, source)) is not None:
            return why
        assert isinstance(index, fx.Node)
        spec, points = tensor_spec(x), tensor_spec(index).shape
        if len(points) != len(spec.shape):
            return "has an index without dimensions"
        fold = _adds(spec.dtype) if put == "sum" else put
        if node.target is aten.scatter_reduce.two:
            if not argument(node, 5, "include_self", True) or node.args[4] not in _FOLDS:
                return "leaves out what was there, or divides by how many came"
            fold = _FOLDS[str(node.args[4])]
            if spec.dtype is torch.bool:
                return "folds bools"
        dim = signed_dim % len(points)
        return ScatterCall(
            x,
            points,
            source,  # type: ignore[arg-type]
            along_all_but(len(points), dim),
            as_given,
            (LookupIndex(index, 0),),
            (Demand(index, spec.shape[dim]),),
            fold,
            wide=fold is not None,
            unordered=fold is not None and _in_any_order(spec.device),
        )

    return read


def _index_put(node: fx.Node) -> ScatterCall | str:
    x, indices, source = node.args[:3]
    assert isinstance(x, fx.Node) and isinstance(indices, Sequence) and isinstance(source, fx.Node)
    spec = tensor_spec(x)
    if tensor_spec(source).dtype is not spec.dtype:
        return "converts what it writes"
    indexed = read_indices(spec.shape, indices)
    if isinstance(indexed, str):
        return indexed
    fold = _adds(spec.dtype) if argument(node, 3, "accumulate", False) else None
    return ScatterCall(
        x, indexed.points, source, indexed.along, indexed.from_either_end, indexed.indices, indexed.demands, fold
    )


def _but(padding: int) -> Callable[..., Any]:
    """Places as indices say, but nowhere for one of them."""

    def emit(e: Emitter, together: Fetch, index: Scalar) -> Any:
        place = e.cast(index, torch.int64)
        nowhere = e.op("eq", place, e.const(padding, torch.int64))
        return together(e.op("where", nowhere, e.const(-1, torch.int64), place))

    return emit


def _embedding_backward(node: fx.Node) -> ScatterCall | str:
    grad, index, _, padding, by_frequency = node.args
    if (why := why_not_index(index)) is not None:
        return why
    assert isinstance(grad, fx.Node) and isinstance(index, fx.Node) and isinstance(padding, int)
    if by_frequency:
        return "divides by how often each index comes"
    if not tensor_spec(grad).dtype.is_floating_point:
        return "adds up other numbers than gradients are"
    points = tensor_spec(grad).shape
    emit = _but(padding) if padding >= 0 else as_given
    return ScatterCall(None, points, grad, (None, len(points) - 1), emit, (LookupIndex(index, 0),), fold="sum")


_READ: dict[torch._ops.OpOverload, Read] = {
    aten.index_add.default: _by_rows("sum"),
    aten.index_copy.default: _by_rows(None),
    aten.index_fill.int_Scalar: _by_rows(None, from_end=True),
    aten.scatter.src: _one_by_one(),
    aten.scatter.value: _one_by_one(),
    aten.scatter_add.default: _one_by_one("sum"),
    aten.scatter_reduce.two: _one_by_one(),
    aten.index_put.default: _index_put,
    aten._index_put_impl.default: _index_put,
    aten._unsafe_index_put.default: _index_put,
    aten.embedding_dense_backward.default: _embedding_backward,
}
_RAISES = (aten.scatter.src, aten.scatter.value, aten.scatter_add.default)  # left in the graph for that alone

for _op, _read in _READ.items():
    register(OpRecord(_op, Scatter(_read), ROOT, demands=_is_place if _op in _RAISES else None))
