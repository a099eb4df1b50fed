"""Operators whose results have as many elements as data say: the chip counts, one number is read, the chip fills.

    nonzero(x)              →   a running count of x ≠ 0 says where each goes; positions are scattered there
    x[mask], masked_select  →   index by nonzero(mask)
    unique(x)               →   sort, compare neighbours, nonzero

These run on the chip's tensors, an operator at a time, and read numbers out. A rule that raises leaves the call to the
host, which computes it or raises in PyTorch's words.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

Tensor = torch.Tensor
aten = torch.ops.aten
Function = TypeVar("Function", bound=Callable[..., Any])

RULES: dict[torch._ops.OpOverload, Callable[..., Any]] = {}


class DoesNotApply(NotImplementedError):
    """A rule is for other arguments than these: PyTorch's own is asked, or the host."""


def _computes(*ops: torch._ops.OpOverload) -> Callable[[Function], Function]:
    def enter(function: Function) -> Function:
        for op in ops:
            RULES[op] = function
        return function

    return enter


def _positions(mask: Tensor) -> Tensor:
    """The numbers of the elements of a flat mask that are set."""
    count = mask.numel()
    if not count:
        return torch.zeros([0], dtype=torch.int64, device=mask.device)
    running = mask.to(torch.int64).cumsum(0)
    set_count = int(running[-1].item())
    places = torch.where(mask, running - 1, set_count)
    positions = torch.zeros([set_count + 1], dtype=torch.int64, device=mask.device)
    return positions.scatter(0, places, torch.arange(count, device=mask.device))[:set_count].clone()


def _unravelled(numbers: Tensor, shape: Sequence[int]) -> list[Tensor]:
    """The index in each dimension of elements that are counted in rows."""
    index_of_dim, step = [], math.prod(shape)
    for size in shape:
        step //= max(size, 1)
        index_of_dim.append((numbers // max(step, 1)) % max(size, 1))
    return index_of_dim


@_computes(aten.nonzero.default)
def nonzero(x: Tensor) -> Tensor:
    numbers = _positions((x != 0).reshape(-1))
    if x.dim() == 0:
        return torch.zeros([numbers.numel(), 0], dtype=torch.int64, device=x.device)
    return torch.stack(_unravelled(numbers, x.shape)).t()  # as PyTorch lays it out


@_computes(aten.masked_select.default)
def masked_select(x: Tensor, mask: Tensor) -> Tensor:
    if mask.dtype is not torch.bool:
        raise TypeError("the mask has no bools")
    shape = torch.broadcast_shapes(x.shape, mask.shape)  # type: ignore[no-untyped-call]
    numbers = _positions(mask.expand(shape).reshape(-1))
    return x.expand(shape).reshape(-1)[numbers]


def _without_masks(x: Tensor, indices: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Indices with each mask as the indices of where it is set."""
    unmasked: list[Tensor | None] = []
    for index in indices:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            unmasked.append(index)
            continue
        if tuple(index.shape) != tuple(x.shape[len(unmasked) : len(unmasked) + index.dim()]):
            raise IndexError("a mask has another shape than what it is for")
        numbers = _positions((index != 0).reshape(-1))
        unmasked += _unravelled(numbers, index.shape) if index.dim() else [numbers]
    if len(unmasked) == len(indices) and all(a is b for a, b in zip(unmasked, indices, strict=True)):
        raise DoesNotApply("there are no masks")
    return unmasked


@_computes(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    elements: Tensor = aten.index.Tensor(x, _without_masks(x, indices))
    return elements


@_computes(aten.index_put.default, aten._index_put_impl.default)
def index_put(
    x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False, unsafe: bool = False
) -> Tensor:
    written: Tensor = aten.index_put.default(x, _without_masks(x, indices), values, accumulate)
    return written


@_computes(aten.masked_scatter.default)
def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    if mask.dtype is not torch.bool or x.dtype != source.dtype:
        raise TypeError("the mask has no bools, or the source another dtype")
    shape = torch.broadcast_shapes(x.shape, mask.shape)  # type: ignore[no-untyped-call]
    numbers = _positions(mask.expand(shape).reshape(-1))
    if numbers.numel() > source.numel():
        raise RuntimeError("the source has too few elements")
    if not numbers.numel():
        return x.expand(shape).clone(memory_format=torch.contiguous_format)
    taken = source.reshape(-1)[: numbers.numel()]
    return x.expand(shape).reshape(-1).scatter(0, numbers, taken).view(shape)


@_computes(aten.masked_scatter_backward.default)
def masked_scatter_backward(grad: Tensor, mask: Tensor, sizes: Sequence[int]) -> Tensor:
    taken = masked_select(grad, mask)
    zeros = torch.zeros([math.prod(sizes)], dtype=grad.dtype, device=grad.device)
    count = taken.numel()
    return torch.cat([taken, zeros[count:]]).view(sizes) if count else zeros.view(sizes)


# Those without their likes.


def _parted(ordered: Tensor, differs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of what is in order: the first of each kind, the kind of each, and how many there are."""
    count = ordered.shape[0]
    first = torch.cat([torch.ones([1], dtype=torch.bool, device=ordered.device), differs])
    starts = _positions(first)
    ends = torch.cat([starts[1:], torch.full([1], count, dtype=torch.int64, device=ordered.device)])
    return starts, first.to(torch.int64).cumsum(0) - 1, ends - starts


def _nothing(x: Tensor) -> Tensor:
    return torch.zeros([0], dtype=torch.int64, device=x.device)


@_computes(aten._unique2.default)
def unique(x: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False) -> Any:
    if not x.numel():
        raise DoesNotApply("no elements")
    flat = x.reshape(-1)
    ordered, order = aten.sort.stable(flat, stable=True)
    starts, kind, counts = _parted(ordered, ordered[1:] != ordered[:-1])
    inverse = _nothing(x)
    if return_inverse or return_counts:
        inverse = torch.zeros_like(kind).scatter(0, order, kind).view(x.shape)
    return ordered[starts], inverse, counts if return_counts else _nothing(x)


@_computes(aten._unique.default)
def unique_without_counts(x: Tensor, sorted: bool = True, return_inverse: bool = False) -> Any:
    return unique(x, sorted, return_inverse)[:2]


@_computes(aten.unique_consecutive.default)
def unique_consecutive(
    x: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    if dim is not None:
        values, inverse, counts = unique_dim_consecutive(x, dim)
        return values, inverse if return_inverse else _nothing(x), counts if return_counts else _nothing(x)
    if not x.numel():
        raise DoesNotApply("no elements")
    flat = x.reshape(-1)
    starts, kind, counts = _parted(flat, flat[1:] != flat[:-1])
    inverse = kind.view(x.shape) if return_inverse else _nothing(x)
    return flat[starts], inverse, counts if return_counts else _nothing(x)


def _as_rows(x: Tensor, dim: int) -> Tensor:
    if not x.numel():
        raise DoesNotApply("no elements")
    return x.movedim(dim, 0).reshape(x.shape[dim], -1)


def _from_rows(rows: Tensor, x: Tensor, dim: int) -> Tensor:
    rest = [size for d, size in enumerate(x.shape) if d != dim % x.dim()]
    return rows.view(-1, *rest).movedim(0, dim)


@_computes(aten.unique_dim.default)
def unique_dim(
    x: Tensor, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Any:
    """Rows in order by their last element, then by the one before, …: sorting is stable."""
    rows = _as_rows(x, dim)
    order = torch.arange(rows.shape[0], device=x.device)
    for column in reversed(range(rows.shape[1])):
        order = order[aten.sort.stable(rows[:, column][order], stable=True)[1]]
    ordered = rows[order]
    starts, kind, counts = _parted(ordered, (ordered[1:] != ordered[:-1]).any(1))
    inverse = torch.zeros_like(kind).scatter(0, order, kind)
    return _from_rows(ordered[starts], x, dim), inverse, counts


@_computes(aten.unique_dim_consecutive.default)
def unique_dim_consecutive(
    x: Tensor, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> Any:
    rows = _as_rows(x, dim)
    starts, kind, counts = _parted(rows, (rows[1:] != rows[:-1]).any(1))
    return _from_rows(rows[starts], x, dim), kind, counts


# Counting.


@_computes(aten.bincount.default)
def bincount(x: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    if x.dim() != 1 or not x.numel() or x.is_floating_point() or int(x.min().item()) < 0:
        raise DoesNotApply("no elements, or some that count nothing")
    length = max(int(x.max().item()) + 1, minlength)
    dtype = torch.int64 if weights is None else weights.dtype if weights.dtype is torch.float32 else torch.float64
    each = torch.ones_like(x, dtype=dtype) if weights is None else weights.to(dtype)
    return torch.zeros([length], dtype=dtype, device=x.device).scatter_add(0, x.to(torch.int64), each)


@_computes(aten.repeat_interleave.Tensor)
def repeat_interleave(repeats: Tensor, *, output_size: int | None = None) -> Tensor:
    """Each number as often as it is said: at its first place 1 more than before, summed up."""
    if not repeats.numel() or int(repeats.min().item()) < 0:
        raise DoesNotApply("nothing is repeated, or less than that")
    ends = repeats.to(torch.int64).cumsum(0)
    length = int(ends[-1].item())
    if output_size is not None and output_size != length:
        raise RuntimeError("another size is asked for")
    if not length:
        return torch.zeros([0], dtype=repeats.dtype, device=repeats.device)
    places = torch.arange(length, device=repeats.device)
    numbers: Tensor = aten.searchsorted.Tensor(ends, places, right=True)
    return numbers.to(repeats.dtype)
