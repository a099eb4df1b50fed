"""What stands on an order: the commonest element, the middle one of numbers, those at a given place."""

from typing import Any

import torch

from smelt.chips.decompose.table import DoesNotApply, computes

Tensor = torch.Tensor
aten = torch.ops.aten


def _rows(x: Tensor, dim: int) -> Tensor:
    return x.movedim(dim, -1) if x.dim() else x.reshape(1)


def _answer(found: tuple[Tensor, Tensor], x: Tensor, dim: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    """Of rows with one element each, in the place of the dimension, or without it."""
    if not x.dim():
        return found[0].reshape([]), found[1].reshape([])
    values, numbers = (each.movedim(-1, dim).contiguous() for each in found)
    return (values, numbers) if keepdim else (values.squeeze(dim), numbers.squeeze(dim))


@computes(aten.mode.default)
def mode(x: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Of those that are as common the least; of those that are equal the last."""
    rows = _rows(x, dim)
    ordered, order = aten.sort.stable(rows, stable=True, dim=-1)
    places = torch.arange(ordered.shape[-1], device=x.device)
    follows = ordered[..., 1:] != ordered[..., :-1]
    begins = torch.where(follows, places[1:], 0)
    begins = torch.cat([torch.zeros_like(begins[..., :1]), begins], -1) if begins.shape[-1] else torch.zeros_like(order)
    running = places - begins.cummax(-1).values
    best = running.max(-1, keepdim=True).indices
    return _answer((ordered.gather(-1, best), order.gather(-1, best)), x, dim, keepdim)


@computes(aten.nanmedian.dim)
def nanmedian(x: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The lower of two in the middle of what are numbers, which stand before all that are none."""
    ordered, order = aten.sort.stable(_rows(x, dim), stable=True, dim=-1)
    count = (ordered == ordered).to(torch.int64).sum(-1, keepdim=True)
    place = ((count - 1) // 2).clamp(min=0)
    return _answer((ordered.gather(-1, place), order.gather(-1, place)), x, dim, keepdim)


@computes(aten.nanmedian.default)
def nanmedian_of_all(x: Tensor) -> Tensor:
    return nanmedian(x.reshape(-1), 0)[0]


@computes(aten.median.default)
def median_of_all(x: Tensor) -> Tensor:
    if x.dim():
        raise DoesNotApply("a kernel does that")
    return x.clone()


@computes(aten.topk.default)
def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    if x.dim():
        values, numbers = aten.sort.stable(x, stable=True, dim=dim, descending=largest)
        return values.narrow(dim, 0, k).contiguous(), numbers.narrow(dim, 0, k).contiguous()
    if k != 1:
        raise DoesNotApply("more or less than the one")
    return x.clone(), torch.zeros([], dtype=torch.int64, device=x.device)
