"""Records of folds over dimensions.

    mean.dim(x, [1], True)  →  FoldCall(fold="sum", dims=(1,), keepdim=True, dtype=f32, divide=True)

Dims come out normalised, sorted and non-negative; none given means all.
"""

from typing import Any

import torch
from torch import fx

from smelt.ir.kernel import Reduction
from smelt.ir.tensorspec import tensor_spec
from smelt.ops.promote import widened
from smelt.ops.record import FoldCall, OpRecord, Reduce
from smelt.ops.registry import argument, register, source_of

aten = torch.ops.aten


def _dims(rank: int, dims: Any) -> tuple[int, ...]:
    if dims is None or dims == []:
        return tuple(range(rank))
    listed = dims if isinstance(dims, tuple | list) else [dims]
    return tuple(sorted({dim % rank for dim in listed})) if rank else ()


def _reader(fold: Reduction, dim_name: str | None, *, divide: bool = False) -> Any:
    """How to read a call whose second argument is `dim_name` (None: folds everything) and third is `keepdim`."""

    def read(node: fx.Node) -> FoldCall:
        dims = None if dim_name is None else argument(node, 1, dim_name, None)
        keepdim = dim_name is not None and bool(argument(node, 2, "keepdim", False))
        rank = len(tensor_spec(source_of(node)).shape)
        dtype = widened(tensor_spec(node).dtype)
        if fold in ("any", "all"):
            dtype = torch.bool
        elif dtype is torch.bool and fold in ("max", "min"):
            return FoldCall("any" if fold == "max" else "all", _dims(rank, dims), keepdim, torch.bool)
        return FoldCall(fold, _dims(rank, dims), keepdim, dtype, divide)

    return read


def _why_not(node: fx.Node) -> str | None:
    """Where the dtype folded in is not the result's: PyTorch's affair."""
    source, result = tensor_spec(source_of(node)).dtype, tensor_spec(node).dtype
    fold = str(node.target).split(".")[1]
    if fold in ("any", "all"):
        return None if result is torch.bool else "returns numbers where a truth value is needed"
    if source.is_floating_point and not result.is_floating_point:
        return "folds floats into integers"
    if result is torch.bool and (fold in ("sum", "prod", "mean") or source is not torch.bool):
        return "folds into bool"
    return None


def _declare(op: torch._ops.OpOverload, fold: Reduction, dim_name: str | None, divide: bool = False) -> None:
    register(OpRecord(op, Reduce(_reader(fold, dim_name, divide=divide)), 1, _why_not))


_declare(aten.sum.default, "sum", None)
_declare(aten.sum.dim_IntList, "sum", "dim")
_declare(aten.mean.default, "sum", None, divide=True)
_declare(aten.mean.dim, "sum", "dim", divide=True)
_declare(aten.prod.default, "prod", None)
_declare(aten.prod.dim_int, "prod", "dim")
_declare(aten.amax.default, "max", "dim")
_declare(aten.amin.default, "min", "dim")
_declare(aten.max.default, "max", None)
_declare(aten.min.default, "min", None)
_declare(aten.any.default, "any", None)
_declare(aten.any.dim, "any", "dim")
_declare(aten.any.dims, "any", "dim")
_declare(aten.all.default, "all", None)
_declare(aten.all.dim, "all", "dim")
_declare(aten.all.dims, "all", "dim")
