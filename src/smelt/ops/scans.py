"""Records of folds up to each element: running sums, products, extremes and sums of exponentials, and from the end.

    cumsum(x, 1)                    →  ScanCall(fold="sum", dim=1)
    cummax(x, 1)[0]                 →  ScanCall(fold="max", dim=1); where they stand is another one (`decompose`)
    flip(cumsum(flip(x, 1), 1), 1)  →  ScanCall(fold="sum", dim=1, backwards=True): how PyTorch writes the gradient
"""

from typing import Any

import torch
from torch import fx

from smelt.ir.kernel import Running
from smelt.ir.tensorspec import tensor_spec
from smelt.ops.promote import widened
from smelt.ops.record import ROOT, OpRecord, Scan, ScanCall
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
    source, signed_dim = node.args[:2]
    assert isinstance(source, fx.Node) and isinstance(signed_dim, int)
    result = only_result(node)
    assert result is not None
    before, after = tensor_spec(source).dtype, result.dtype
    rank = len(tensor_spec(source).shape)
    if not rank:
        return "folds a single element"
    if after is torch.bool or (before.is_floating_point and not after.is_floating_point):
        return "folds into what it would have to be rounded to"
    return ScanCall(source, _FOLDS[node.target], signed_dim % rank, widened(after))


def from_the_end(node: fx.Node) -> ScanCall | None:
    """A flip of a fold of a flip, all along one dim: the same fold from the end. None for any other flip."""
    inner, dims = node.args[:2]
    if not isinstance(inner, fx.Node) or inner.target not in _FOLDS or len(dims) != 1:  # type: ignore[arg-type]
        return None
    scan = read_scan(inner)
    if isinstance(scan, str) or scan.source.target is not aten.flip.default:
        return None
    rank = len(tensor_spec(node).shape)
    flipped_dims = [list(each.args[1]) for each in (node, scan.source)]  # type: ignore[arg-type]
    if any([dim % rank for dim in each] != [scan.dim] for each in flipped_dims):
        return None
    source = scan.source.args[0]
    assert isinstance(source, fx.Node)
    return ScanCall(source, scan.fold, scan.dim, scan.dtype, backwards=True)


for _op in _FOLDS:
    register(OpRecord(_op, Scan(read_scan), ROOT))
