"""Records of folds up to each element: running sums, products, extremes and sums of exponentials, and from the end.

    cumsum(x, 1)                    →  ScanCall(fold="sum", dim=1)
    cummax(x, 1)[0]                 →  ScanCall(fold="max", dim=1); where they stand is another one (`decompose`)
    flip(cumsum(flip(x, 1), 1), 1)  →  ScanCall(fold="sum", dim=1, backwards=True): how PyTorch writes the gradient
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from smelt.ir.kernel import Running
from smelt.ir.tensorspec import tensor_spec
from smelt.ops import samples
from smelt.ops.promote import widened
from smelt.ops.record import ROOT, OpRecord, Sample, Scan, ScanCall
from smelt.ops.registry import only_result, register

aten = torch.ops.aten

_FOLDS: dict[Any, Running] = {
    aten.cumsum.default: "sum",
    aten.cumprod.default: "prod",
    aten.logcumsumexp.default: "logaddexp",
    aten.cummax.default: "max",
    aten.cummin.default: "min",
}


def read_scan(node: fx.Node) -> ScanCall | str:
    """What is folded up to each element."""
    source, given = node.args[:2]
    assert isinstance(source, fx.Node) and isinstance(given, int)
    result = only_result(node)
    assert result is not None
    before, after = tensor_spec(source).dtype, result.dtype
    rank = len(tensor_spec(source).shape)
    if not rank:
        return "folds a single element"
    if after is torch.bool or (before.is_floating_point and not after.is_floating_point):
        return "folds into what it would have to be rounded to"
    return ScanCall(source, _FOLDS[node.target], given % rank, widened(after))


def from_the_end(node: fx.Node) -> ScanCall | None:
    """A flip of a fold of a flip, all along one dim: the same fold from the end. None for any other flip."""
    inner, dims = node.args[:2]
    if not isinstance(inner, fx.Node) or inner.target not in _FOLDS or len(dims) != 1:  # type: ignore[arg-type]
        return None
    found = read_scan(inner)
    if isinstance(found, str) or found.source.target is not aten.flip.default:
        return None
    rank = len(tensor_spec(node).shape)
    given = [list(each.args[1]) for each in (node, found.source)]  # type: ignore[arg-type]
    if any([dim % rank for dim in each] != [found.dim] for each in given):
        return None
    source = found.source.args[0]
    assert isinstance(source, fx.Node)
    return ScanCall(source, found.fold, found.dim, found.dtype, backwards=True)


def _along(dtype: torch.dtype) -> Iterator[Sample]:
    for dim in (0, 1, -1):
        yield Sample((samples.finite(dtype, (3, 2, 20)), dim))
    yield Sample((samples.tensor(dtype, (3, 16)), 1))
    yield Sample((samples.finite(dtype, (3, 4)).t(), 0))
    yield Sample((samples.finite(dtype, (1, 6)).expand(5, 6), 0))
    yield Sample((samples.finite(dtype, (3, 1)), 1))


def _converted(dtype: torch.dtype) -> Iterator[Sample]:
    yield from _along(dtype)
    yield Sample((samples.finite(dtype, (3, 5)), 1), {"dtype": torch.float64})


for _op in _FOLDS:
    _takes_dtype = any(argument.name == "dtype" for argument in _op._schema.arguments)
    register(OpRecord(_op, Scan(read_scan), ROOT, _converted if _takes_dtype else _along))
