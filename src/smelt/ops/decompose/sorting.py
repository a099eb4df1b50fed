"""Sorting where no library may be called: each element's place is how many come before it, counted.

    sort([3, 1, 2])      →  1 and 2 come before 3, nothing before 1, 1 before 2: places [2, 0, 1]
    topk(x, 2)           →  the largest, then the largest of those that come behind it

Counting takes n² comparisons, which vectors do many of at once; the first few of many elements take a round each. Of
elements that are equal the first comes first, and what is not a number is larger than all numbers, as in PyTorch.
"""

import math
from functools import partial
from typing import Any

import torch

from smelt.ops.decompose.table import choose, decomposes
from smelt.ops.decompose.without_library import TABLE

Tensor = torch.Tensor
aten = torch.ops.aten

_takes_apart = partial(decomposes, table=TABLE)
_ROUNDS = 32  # of the largest elements one after the other
_FEW = 64  # elements that are rather sorted


def _comparable(x: Tensor) -> Tensor:
    return x.to(torch.uint8) if x.dtype is torch.bool else x


def _is_nan(x: Tensor) -> Tensor | None:
    return x != x if x.is_floating_point() else None


def _comes_before(one: Tensor, other: Tensor, descending: bool) -> tuple[Tensor, Tensor]:
    """Whether one element comes before another, and whether they are equal."""
    before = one > other if descending else one < other
    same = one == other
    nan, other_nan = _is_nan(one), _is_nan(other)
    if nan is None or other_nan is None:
        return before, same
    larger = (nan & ~other_nan) if descending else (other_nan & ~nan)
    return before | larger, same | (nan & other_nan)


def _order(x: Tensor, descending: bool) -> Tensor:
    """The numbers of the elements of the last dim, in order."""
    length = x.shape[-1]
    places = torch.arange(length, device=x.device)
    one, other = aten.unsqueeze.default(x, -2), aten.unsqueeze.default(x, -1)
    before, same = _comes_before(one, other, descending)
    earlier = places < aten.unsqueeze.default(places, -1)
    rank = (before | (same & earlier)).to(torch.int64).sum(-1)
    numbers = aten.expand.default(places, list(x.shape))
    order: Tensor = aten.scatter.src(torch.zeros_like(rank), -1, rank, numbers)
    return order


def _sorted(x: Tensor, dim: int, descending: bool) -> tuple[Tensor, Tensor]:
    """Values and numbers, with the dim last."""
    moved = aten.transpose.int(x, dim, -1)
    order = _order(_comparable(moved), descending)
    return aten.gather.default(moved, -1, order), order


def _moved_back(values_and_numbers: tuple[Tensor, Tensor], dim: int) -> tuple[Tensor, Tensor]:
    values, numbers = (aten.transpose.int(each, dim, -1) for each in values_and_numbers)
    return values, numbers


@_takes_apart(aten.sort.default)
def sort(x: Tensor, dim: int = -1, descending: bool = False) -> Any:
    if x.dim() == 0 or x.is_complex():
        return NotImplemented
    return _moved_back(_sorted(x, dim, descending), dim)


@_takes_apart(aten.sort.stable)
def sort_stable(x: Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False) -> Any:
    return sort(x, dim, descending)


def _largest(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest of the last dim one after the other: each the first of those that come behind the one before."""
    length = x.shape[-1]
    places = torch.arange(length, device=x.device)
    least = -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
    candidate, values, numbers = None, [], []
    for _ in range(count):
        value = aten.amax.default(x if candidate is None else choose(candidate, x, least), [-1], True)
        _, same = _comes_before(x, value, True)
        fits = same if candidate is None else same & candidate
        number = aten.amin.default(choose(fits, places, length), [-1], True)
        behind, _ = _comes_before(value, x, True)
        candidate = behind | (same & (places > number))
        values.append(value)
        numbers.append(number)
    return aten.cat.default(values, -1), aten.cat.default(numbers, -1)


@_takes_apart(aten.topk.default)
def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    if x.dim() == 0 or x.is_complex() or not isinstance(k, int) or k == 0:
        return NotImplemented
    moved = aten.transpose.int(x, dim, -1)
    length = moved.shape[-1]
    by_rounds = largest and k <= _ROUNDS and not (isinstance(length, int) and length <= _FEW)
    if by_rounds and x.dtype is not torch.bool:
        return _moved_back(_largest(moved, k), dim)
    values, numbers = _sorted(x, dim, largest)
    return _moved_back((aten.slice.Tensor(values, -1, 0, k), aten.slice.Tensor(numbers, -1, 0, k)), dim)
