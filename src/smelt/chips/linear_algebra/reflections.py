"""QR by Householder's reflections, with LAPACK's signs: a column becomes -sign(its first) · its length.

    factored(a)  →  R on and above the diagonal, below it the vectors without their first 1; and the reflections' scales
"""

import torch

from smelt.chips.fused import fused, number

Tensor = torch.Tensor


@fused
def _reflect_column(a: Tensor, scales: Tensor, j: Tensor) -> tuple[Tensor, Tensor]:
    """Column j reflected onto its first, and the columns right of it by the same reflection."""
    rows = torch.arange(a.shape[1], device=a.device).unsqueeze(1)
    cols = torch.arange(a.shape[2], device=a.device)
    column = torch.where(cols == j, a, 0.0).sum(2, keepdim=True)
    first = torch.where(rows == j, column, 0.0).sum(1, keepdim=True)
    top = torch.where(rows > j, column.abs(), 0.0).amax(1, keepdim=True)
    safe = torch.where(top > 0, top, 1.0)
    part = torch.where(rows > j, column / safe, 0.0)
    below = (part * part).sum(1, keepdim=True) * safe * safe
    length = (first * first + below).sqrt()
    is_any = top > 0
    last = torch.where(is_any, torch.where(first < 0, length, -length), first)
    scale = torch.where(is_any, (last - first) / torch.where(is_any, last, 1.0), 0.0)
    vector = torch.where(rows > j, column / torch.where(is_any, first - last, 1.0), torch.where(rows == j, 1.0, 0.0))
    others = (vector * a).sum(1, keepdim=True)
    made = torch.where((cols > j) & (rows >= j), a - scale * vector * others, a)
    made = torch.where((cols == j) & (rows >= j), torch.where(rows == j, last, vector), made)
    places = torch.arange(scales.shape[2], device=a.device)
    return made, torch.where(places == j, scale, scales)


def factored(a: Tensor) -> tuple[Tensor, Tensor]:
    """R and the reflections in one matrix, and their scales [batch, 1, steps]."""
    steps = min(a.shape[1:])
    scales = torch.zeros(a.shape[0], 1, steps, dtype=a.dtype, device=a.device)
    for j in range(steps):
        a, scales = _reflect_column(a, scales, number(j))
    return a, scales


@fused
def _reflect(c: Tensor, vectors: Tensor, scales: Tensor, j: Tensor) -> Tensor:
    rows = torch.arange(c.shape[1], device=c.device).unsqueeze(1)
    cols = torch.arange(vectors.shape[2], device=c.device)
    places = torch.arange(scales.shape[2], device=c.device)
    column = torch.where(cols == j, vectors, 0.0).sum(2, keepdim=True)
    scale = torch.where(places == j, scales, 0.0).sum(2, keepdim=True)
    vector = torch.where(rows > j, column, torch.where(rows == j, 1.0, 0.0))
    return c - scale * vector * (vector * c).sum(1, keepdim=True)


def multiplied(vectors: Tensor, scales: Tensor, c: Tensor, transposed: bool = False) -> Tensor:
    """Q·c, or Qᵀ·c, by its reflections."""
    steps = range(scales.shape[2])
    for j in steps if transposed else reversed(steps):
        c = _reflect(c, vectors, scales, number(j))
    return c
