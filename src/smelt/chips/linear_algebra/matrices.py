"""Batches of matrices as the algorithms take them: three dimensions, contiguous, in the widest float of the chip.

    f32[2, 3, 5, 5]  →  f64[6, 5, 5]  →  …  →  f32[2, 3, 5, 5], rounded once
"""

from collections.abc import Sequence

import torch

from smelt.chips.fused import fused, widest

Tensor = torch.Tensor


def taken(matrices: Tensor) -> Tensor:
    """As a batch. Raises NotImplementedError for dtypes that the algorithms are not written for."""
    if not matrices.is_floating_point():
        raise NotImplementedError(f"there is no algorithm for matrices of {matrices.dtype}")
    rows, cols = matrices.shape[-2:]
    count = matrices.shape[:-2].numel()
    return matrices.to(widest(matrices.dtype)).contiguous().view(count, rows, cols)


def given_back(batch: Tensor, like: Tensor, shape: Sequence[int] | None = None) -> Tensor:
    """A batch in the shape and dtype of the caller's; `shape` is that of one result."""
    one = batch.shape[1:] if shape is None else shape
    return batch.to(like.dtype).view(*like.shape[:-2], *one)


def part(batch: Tensor, rows: slice, cols: slice) -> Tensor:
    """Some rows and columns, in memory of their own: code is compiled for tensors without gaps, whatever their size."""
    return batch[:, rows, cols].contiguous()


def identity(shape: Sequence[int], like: Tensor) -> Tensor:
    made: Tensor = _identity(torch.empty(shape, dtype=like.dtype, device=like.device))
    return made


@fused
def _identity(like: Tensor) -> Tensor:
    """Of sizes that are operands: `torch.eye` is compiled for each."""
    rows = torch.arange(like.shape[1], device=like.device).unsqueeze(1)
    cols = torch.arange(like.shape[2], device=like.device)
    return torch.where(rows == cols, torch.ones_like(like), 0.0)


def broadcast(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Two tensors of matrices with the same batch dimensions."""
    batch = torch.broadcast_shapes(one.shape[:-2], other.shape[:-2])  # type: ignore[no-untyped-call]
    return one.expand(*batch, *one.shape[-2:]), other.expand(*batch, *other.shape[-2:])


@fused
def lower(a: Tensor, first: int = 0, unit: bool = False) -> Tensor:
    """What is on the diagonal `first` and below it; with ones on it if it is `unit`."""
    rows = torch.arange(a.shape[1], device=a.device).unsqueeze(1)
    cols = torch.arange(a.shape[2], device=a.device)
    kept = torch.where(cols <= rows + first, a, 0.0)
    return torch.where(cols == rows, 1.0, kept) if unit else kept


@fused
def upper(a: Tensor) -> Tensor:
    rows = torch.arange(a.shape[1], device=a.device).unsqueeze(1)
    cols = torch.arange(a.shape[2], device=a.device)
    return torch.where(cols >= rows, a, 0.0)


@fused
def diagonal(a: Tensor) -> Tensor:
    """Of a batch of matrices: [batch, n]."""
    rows = torch.arange(a.shape[1], device=a.device).unsqueeze(1)
    cols = torch.arange(a.shape[2], device=a.device)
    return torch.where(cols == rows, a, 0.0).sum(1)
