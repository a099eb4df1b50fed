"""Tensors without elements or dimensions, which kernels are not made for.

    sum of nothing  →  0        mm(f32[2, 0], f32[0, 3])  →  zeros        scatter into a number  →  into a row of one
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch

from smelt.chips.decompose.table import DoesNotApply, computes

Tensor = torch.Tensor
aten = torch.ops.aten


def _nothing(*tensors: Tensor) -> None:
    if all(each.numel() for each in tensors):
        raise DoesNotApply("there are elements")


@computes(aten.mm.default, aten.bmm.default)
def product(a: Tensor, b: Tensor) -> Tensor:
    _nothing(a, b)
    return torch.zeros([*a.shape[:-1], b.shape[-1]], dtype=a.dtype, device=a.device)


@computes(aten.mv.default)
def vector_product(a: Tensor, b: Tensor) -> Tensor:
    _nothing(a, b)
    return torch.zeros([a.shape[0]], dtype=a.dtype, device=a.device)


@computes(aten.dot.default, aten.vdot.default)
def dot(a: Tensor, b: Tensor) -> Tensor:
    _nothing(a, b)
    return torch.zeros([], dtype=a.dtype, device=a.device)


@computes(aten.addmm.default, aten.baddbmm.default)
def added_product(x: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    _nothing(a, b)
    shape = [*a.shape[:-1], b.shape[-1]]
    zeros = torch.zeros(shape, dtype=a.dtype, device=a.device)
    return zeros if beta == 0 else zeros + x.expand(shape) * beta


def _folds(ops: tuple[Any, ...], value: Any) -> None:
    def fold(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
        """Over dimensions without elements. What comes out has PyTorch's dtype."""
        _nothing(x)
        asked = range(x.dim()) if dim is None or dim == [] else [dim] if isinstance(dim, int) else dim
        gone = {each % x.dim() for each in asked} if x.dim() else set()
        shape = [1 if d in gone else n for d, n in enumerate(x.shape) if keepdim or d not in gone]
        is_bool = isinstance(value, bool)
        usual = torch.bool if is_bool else x.dtype if x.is_floating_point() or x.is_complex() else torch.int64
        return torch.full(shape, value, dtype=dtype or usual, device=x.device)

    computes(*ops)(fold)


_folds((aten.sum.default, aten.sum.dim_IntList, aten.nansum.default), 0)
_folds((aten.prod.default, aten.prod.dim_int), 1)
_folds((aten.all.default, aten.all.dim, aten.all.dims), True)
_folds((aten.any.default, aten.any.dim, aten.any.dims), False)
_folds((aten.mean.default, aten.mean.dim), float("nan"))


@computes(aten.cat.default)
def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Parts written one after the other into what they make together."""
    parts = [each for each in tensors if tuple(each.shape) != (0,)]
    dtype = functools.reduce(torch.promote_types, [each.dtype for each in tensors])
    if not parts:
        return torch.empty([0], dtype=dtype, device=tensors[0].device)
    at = dim % parts[0].dim()
    shape = [*parts[0].shape[:at], sum(each.shape[at] for each in parts), *parts[0].shape[at + 1 :]]
    made = torch.empty(shape, dtype=dtype, device=parts[0].device)
    start = 0
    for each in parts:
        made.narrow(at, start, each.shape[at]).copy_(each)
        start += each.shape[at]
    return made


# One number as a row of one.


def _row(x: Any) -> Any:
    return x.reshape(1) if isinstance(x, Tensor) and x.dim() == 0 else x


def _in_rows(op: Any) -> None:
    def rule(x: Tensor, dim: int, index: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if x.dim() and index.numel():
            raise DoesNotApply("there are elements and dimensions")
        if not index.numel():
            return x.clone()
        found: Tensor = op(_row(x), dim, _row(index), *map(_row, args), **kwargs)
        return found.reshape(x.shape)

    computes(op)(rule)


for _op in (
    aten.scatter.src, aten.scatter.value, aten.scatter_add.default, aten.scatter_reduce.two, aten.scatter.reduce,
    aten.scatter.value_reduce, aten.index_add.default, aten.index_copy.default, aten.index_fill.int_Scalar,
):  # fmt: skip
    _in_rows(_op)


@computes(aten.gather.default)
def gather(x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    if x.dim() and index.dim():
        raise DoesNotApply("there are dimensions")
    found: Tensor = _row(x).gather(0, _row(index)).reshape(index.shape)
    return found


@computes(aten.argmax.default, aten.argmin.default)
def place_of_one(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    if x.dim():
        raise DoesNotApply("there are dimensions")
    return torch.zeros([], dtype=torch.int64, device=x.device)


def _of_one(op: Any) -> None:
    """The greatest, or what else is found along a dimension, of one number: itself, at 0."""

    def rule(x: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if x.dim():
            raise DoesNotApply("there are dimensions")
        return x.clone(), torch.zeros([], dtype=torch.int64, device=x.device)

    computes(op)(rule)


for _op in (
    aten.max.dim, aten.min.dim, aten.sort.default, aten.sort.stable, aten.kthvalue.default, aten.median.dim,
    aten.cummax.default, aten.cummin.default, aten.topk.default,
):  # fmt: skip
    _of_one(_op)
