"""Factors of matrices and triangular systems, by steps of a row or column in panels, and products between those.

    cholesky(a)            L with L·Lᵀ = a, and the number of the first minor that is not positive, or 0
    lu(a)                  L below and U on and above the diagonal, pivots, order of rows, which pivot is zero first
    solve_lower(l, b)      x with l·x = b

A step is one fused program over a panel of at most `PANEL` columns; which column it is for is an operand. What is right
of a panel gets its share by a product. Numbers of a matrix whose factorization fails are as far as it came.
"""

from typing import Any

import torch

from smelt.chips.fused import fused, number
from smelt.chips.linear_algebra.matrices import part

Tensor = torch.Tensor

PANEL = 32
"""Columns that are factored one after the other. More than these are halved."""


def _half(size: int) -> int:
    """Where a matrix of more than a panel is cut."""
    return (size // 2 + PANEL - 1) // PANEL * PANEL


# Triangular systems.


@fused
def _substitute(triangle: Tensor, x: Tensor, j: Tensor, is_unit: bool, from_below: bool) -> Tensor:
    """Row j of the solution, and what it adds to the rows that come after it."""
    rows = torch.arange(x.shape[1], device=x.device).unsqueeze(1)
    at = rows == j
    column = torch.where(rows.squeeze(1) == j, triangle, 0.0).sum(2, keepdim=True)
    row = torch.where(at, x, 0.0).sum(1, keepdim=True)
    if not is_unit:
        row = row / torch.where(at, column, 0.0).sum(1, keepdim=True)
    later = rows < j if from_below else rows > j
    return torch.where(at, row, torch.where(later, x - column * row, x))


def solve_lower(triangle: Tensor, b: Tensor, is_unit: bool = False) -> Tensor:
    """x with triangle·x = b. What is above the diagonal is not read."""
    size = triangle.shape[1]
    if size <= PANEL:
        for j in range(size):
            b = _substitute(triangle, b, number(j), is_unit, False)
        return b
    half, whole = _half(size), slice(None)
    first, second = slice(0, half), slice(half, size)
    top = solve_lower(part(triangle, first, first), part(b, first, whole), is_unit)
    rest = part(b, second, whole) - torch.bmm(part(triangle, second, first), top)
    return torch.cat([top, solve_lower(part(triangle, second, second), rest, is_unit)], 1)


def solve_upper(triangle: Tensor, b: Tensor, is_unit: bool = False) -> Tensor:
    """x with triangle·x = b. What is below the diagonal is not read."""
    size = triangle.shape[1]
    if size <= PANEL:
        for j in reversed(range(size)):
            b = _substitute(triangle, b, number(j), is_unit, True)
        return b
    half, whole = _half(size), slice(None)
    first, second = slice(0, half), slice(half, size)
    bottom = solve_upper(part(triangle, second, second), part(b, second, whole), is_unit)
    rest = part(b, first, whole) - torch.bmm(part(triangle, first, second), bottom)
    return torch.cat([solve_upper(part(triangle, first, first), rest, is_unit), bottom], 1)


# Cholesky.


@fused
def _cholesky_step(a: Tensor, failed: Tensor, j: Tensor) -> tuple[Tensor, Tensor]:
    """Column j of the factor, and what is right of it less its share. `failed` is 0 for as long as nothing has."""
    cols = torch.arange(a.shape[2], device=a.device)
    rows = cols.unsqueeze(1)
    column = torch.where(cols == j, a, 0.0).sum(2, keepdim=True)
    pivot = torch.where(rows == j, column, 0.0).sum(1, keepdim=True)
    failed = torch.where((failed == 0) & ~(pivot > 0), j + 1, failed)
    root = torch.where(pivot > 0, pivot, 1.0).sqrt()
    below = torch.where(rows > j, column / root, 0.0)
    made = torch.where((rows > j) & (cols > j), a - below * below.transpose(1, 2), a)
    made = torch.where(cols == j, torch.where(rows == j, root, torch.where(rows > j, below, a)), made)
    return torch.where(failed == 0, made, a), failed


def cholesky(a: Tensor) -> tuple[Tensor, Tensor]:
    """The lower factor, with what was above the diagonal still there, and for each matrix where it fails."""
    size = a.shape[1]
    failed = torch.zeros(a.shape[0], 1, 1, dtype=torch.int64, device=a.device)
    if size <= PANEL:
        for j in range(size):
            a, failed = _cholesky_step(a, failed, number(j))
        return a, failed
    half = _half(size)
    first, second = slice(0, half), slice(half, size)
    top, failed = cholesky(part(a, first, first))
    beside = solve_lower(top, part(a, second, first).transpose(1, 2).contiguous())  # its transpose
    left = beside.transpose(1, 2).contiguous()
    bottom, then = cholesky(part(a, second, second) - torch.bmm(left, beside))
    failed = torch.where((failed == 0) & (then != 0), then + half, failed)
    above = torch.cat([top, part(a, first, second)], 2)
    return torch.cat([above, torch.cat([left, bottom], 2)], 1), failed


# LU with partial pivoting.


@fused
def _lu_step(a: Tensor, pivots: Tensor, order: Tensor, failed: Tensor, j: Tensor) -> tuple[Tensor, ...]:
    """The largest of column j on or below the diagonal comes up, and what is below it is eliminated."""
    rows = torch.arange(a.shape[1], device=a.device).unsqueeze(1)
    cols = torch.arange(a.shape[2], device=a.device)
    column = torch.where(cols == j, a, 0.0).sum(2, keepdim=True)
    sizes = torch.where(rows >= j, column.abs(), -1.0)
    chosen = torch.where(sizes == sizes.amax(1, keepdim=True), rows, 1 << 40).amin(1, keepdim=True)
    chosen = torch.where(chosen == 1 << 40, j, chosen)  # NaN
    top = torch.where(rows == chosen, a, 0.0).sum(1, keepdim=True)
    replaced = torch.where(rows == j, a, 0.0).sum(1, keepdim=True)
    pivot = torch.where(rows == chosen, column, 0.0).sum(1, keepdim=True)
    moved = torch.where(rows == j, column, 0.0).sum(1, keepdim=True)
    share = torch.where(rows == chosen, moved, column) / torch.where(pivot == 0, 1.0, pivot)
    swapped = torch.where(rows == j, top, torch.where(rows == chosen, replaced, a))
    below = torch.where(cols == j, share, torch.where(cols > j, swapped - share * top, swapped))
    made = torch.where(rows > j, below, swapped)
    places = torch.arange(pivots.shape[2], device=a.device)
    pivots = torch.where(places == j, chosen + 1, pivots)
    return made, pivots, _swapped(order, j, chosen), torch.where((failed == 0) & (pivot == 0), j + 1, failed)


def lu(a: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Both factors in one matrix; pivots from 1 on [batch, 1, steps]; which row comes to each place by such swaps
    [batch, 1, rows]; for each matrix where a pivot is zero."""
    count, rows, cols = a.shape
    steps = min(rows, cols)
    failed = torch.zeros(count, 1, 1, dtype=torch.int64, device=a.device)
    pivots = torch.zeros(count, 1, steps, dtype=torch.int64, device=a.device)
    if cols <= PANEL or rows <= PANEL:
        order = _unpermuted(count, rows, a.device)
        for j in range(steps):
            a, pivots, order, failed = _lu_step(a, pivots, order, failed, number(j))
        return a, pivots, order, failed
    half = _half(steps)
    whole, first, second = slice(None), slice(0, half), slice(half, rows)
    left, pivots, order, failed = lu(part(a, whole, first))
    right = permuted(part(a, whole, slice(half, cols)), order)
    above = solve_lower(part(left, first, whole), part(right, first, whole), is_unit=True)
    below = part(left, second, whole)
    bottom, then, last, fails = lu(part(right, second, whole) - torch.bmm(below, above))
    below = permuted(below, last)
    order = torch.cat([order[:, :, :half], torch.gather(order[:, :, half:].contiguous(), 2, last)], 2)
    failed = torch.where((failed == 0) & (fails != 0), fails + half, failed)
    made = torch.cat([torch.cat([part(left, first, whole), above], 2), torch.cat([below, bottom], 2)], 1)
    return made, torch.cat([pivots, then + half], 2), order, failed


# Permutations.


@fused
def _places(like: Tensor) -> Tensor:
    return torch.zeros_like(like) + torch.arange(like.shape[2], device=like.device)


def _unpermuted(count: int, rows: int, device: torch.device) -> Tensor:
    found: Tensor = _places(torch.empty(count, 1, rows, dtype=torch.int64, device=device))
    return found


def _swapped(order: Any, one: Any, other: Any) -> Any:
    places = torch.arange(order.shape[2], device=order.device)
    here = torch.where(places == one, order, 0).sum(2, keepdim=True)
    there = torch.where(places == other, order, 0).sum(2, keepdim=True)
    return torch.where(places == one, there, torch.where(places == other, here, order))


@fused
def _swap(order: Tensor, pivots: Tensor, j: Tensor) -> Tensor:
    steps = torch.arange(pivots.shape[2], device=order.device)
    found: Tensor = _swapped(order, j, torch.where(steps == j, pivots, 0).sum(2, keepdim=True) - 1)
    return found


def permutation(pivots: Tensor, rows: int) -> Tensor:
    """Which row comes to each place, [batch, 1, rows], by swaps one after the other."""
    order = _unpermuted(pivots.shape[0], rows, pivots.device)
    for j in range(pivots.shape[2]):
        order = _swap(order, pivots, number(j))
    return order


@fused
def inverse(order: Tensor) -> Tensor:
    """The permutation that undoes one."""
    places = torch.arange(order.shape[2], device=order.device)
    return torch.where(order.transpose(1, 2) == places, places.unsqueeze(1), 0).sum(1, keepdim=True)


def permuted(a: Tensor, order: Tensor) -> Tensor:
    return a if not a.numel() else torch.gather(a, 1, order.transpose(1, 2).expand(a.shape))
