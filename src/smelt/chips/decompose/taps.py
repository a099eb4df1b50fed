"""Sums along one dimension at a time, each element of the result from a few of the argument's: windows and images.

    average of pairs    rows ((0, ½), (1, ½)), ((2, ½), (3, ½))          element and weight, for each of the result
    its gradient        rows ((0, ½),), ((0, ½),), ((1, ½),), ((1, ½),)  the same, turned round

What does not belong to an element leaves no trace in it, be it infinite.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch

from smelt.device.host_library import HOST

Tensor = torch.Tensor
Rows = tuple[tuple[tuple[int, float], ...], ...]


def turned(rows: Rows, size: int) -> Rows:
    """For each of `size` elements of the argument the results that it goes into."""
    found: list[list[tuple[int, float]]] = [[] for _ in range(size)]
    for result, row in enumerate(rows):
        for place, weight in row:
            found[place].append((result, weight))
    return tuple(map(tuple, found))


@lru_cache(maxsize=256)
def _tables(rows: Rows) -> tuple[Tensor, Tensor, Tensor | None]:
    """Places, weights, and which of them count (None: all)."""
    width = max(1, *map(len, rows))
    full = [list(row) + [(0, 0.0)] * (width - len(row)) for row in rows]
    places = torch.tensor([[place for place, _ in row] for row in full], dtype=torch.int64, device=HOST)
    weights = torch.tensor([[weight for _, weight in row] for row in full], dtype=torch.float64, device=HOST)
    if all(len(row) == width for row in rows):
        return places, weights, None
    counts = torch.tensor([[n < len(row) for n in range(width)] for row in rows], device=HOST)
    return places, weights, counts


def _parted(x: Tensor, dim: int, rows: int, width: int) -> Tensor:
    """A dimension as two."""
    return x.view([*x.shape[:dim], rows, width, *x.shape[dim + 1 :]])


def summed(x: Tensor, dim: int, rows: Rows) -> Tensor:
    """Along a dimension of a float tensor: the weighted sum that each row says."""
    places, weights, counts = _tables(rows)
    count, width = places.shape
    picked = _parted(x.index_select(dim, places.reshape(-1).to(x.device)), dim, count, width)
    after = [1] * (x.dim() - 1 - dim)
    if bool((weights != 1).any()):
        picked = picked * weights.to(x.dtype).view(count, width, *after).to(x.device)
    if counts is not None:
        picked = torch.where(counts.view(count, width, *after).to(x.device), picked, 0.0)
    return picked.sum(dim + 1) if width > 1 else picked.squeeze(dim + 1)


def gathered(x: Tensor, first: int, windows: Sequence[Sequence[Sequence[int]]]) -> tuple[Tensor, Tensor]:
    """The elements of windows, in a last dimension, and their numbers in rows from dimension `first` on.

    A window that is shorter than others repeats its last element.
    """
    sizes = x.shape[first:]
    picked, numbers = x, torch.zeros([1] * (2 * len(windows)), dtype=torch.int64, device=HOST)
    for dim, each in enumerate(windows):
        width = max(map(len, each))
        places = torch.tensor([[*row] + [row[-1]] * (width - len(row)) for row in each], device=HOST)
        at = first + 2 * dim
        picked = _parted(picked.index_select(at, places.reshape(-1).to(x.device)), at, len(each), width)
        shape = [1] * (2 * len(windows))
        shape[2 * dim : 2 * dim + 2] = [len(each), width]
        numbers = numbers * sizes[dim] + places.view(shape)
    count = len(windows)
    order = [*range(0, 2 * count, 2), *range(1, 2 * count, 2)]
    outer = list(range(first))
    picked = picked.permute(*outer, *[first + each for each in order])
    return picked.flatten(first + count), numbers.permute(order).flatten(count).to(x.device)
