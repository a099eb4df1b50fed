"""Images read at any places, and the gradients: weighted corners round each place, gathered or added up.

    grid_sampler_2d_backward   each corner is given its weight's share; the place, by how the corners differ
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from smelt.chips.decompose.table import DoesNotApply, computes, wide

Tensor = torch.Tensor
aten = torch.ops.aten

_BILINEAR, _NEAREST = 0, 1
_BORDER, _REFLECTION = 1, 2


def _reflected(at: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """Thrown back at both ends until it is between them, and its slope there."""
    span = high - low
    if span <= 0:
        return torch.zeros_like(at), torch.zeros_like(at)
    off = at - low
    sign = torch.where(off < 0.0, -1.0, 1.0)
    off = off.abs()
    turns = (off / span).floor()
    rest = off - turns * span
    even = turns.to(torch.int64) % 2 == 0
    return torch.where(even, rest + low, span - rest + low), torch.where(even, sign, -sign)


def _places(grid: Tensor, size: int, padding: int, corners: bool) -> tuple[Tensor, Tensor]:
    """Where -1 to 1 is in an image's dimension of that size, and the slope of that."""
    slope = (size - 1) / 2 if corners else size / 2
    at = (grid + 1.0) * slope if corners else ((grid + 1.0) * size - 1.0) / 2
    change = torch.full_like(at, slope)
    if padding == _REFLECTION:
        low, high = (0.0, float(size - 1)) if corners else (-0.5, size - 0.5)
        at, sign = _reflected(at, low, high)
        change = change * sign
    if padding in (_BORDER, _REFLECTION):
        inside = (at > 0.0) & (at < float(size - 1))
        change = torch.where(inside, change, 0.0)
        at = at.clamp(0.0, float(size - 1))
    return at, change


class _Corners:
    """The corners round each place: for each its number in the image, whether it is inside, and its weight by dim."""

    def __init__(self, x: Tensor, grid: Tensor, mode: int, padding: int, corners: bool) -> None:
        rank = grid.shape[-1]
        self.sizes = x.shape[2:]
        at = [_places(grid[..., rank - 1 - d], self.sizes[d], padding, corners) for d in range(rank)]
        self.slopes = [slope for _, slope in at]
        wholes = [p.round() if mode == _NEAREST else p.floor() for p, _ in at]
        self.rests = [p - whole for (p, _), whole in zip(at, wholes, strict=True)]
        reach = (0,) if mode == _NEAREST else (0, 1)
        self.chosen = list(itertools.product(reach, repeat=rank))
        self.numbers: list[Tensor] = []
        self.inside: list[Tensor] = []
        for corner in self.chosen:
            number = torch.zeros_like(wholes[0], dtype=torch.int64)
            inside = torch.ones_like(wholes[0], dtype=torch.bool)
            for size, whole, by in zip(self.sizes, wholes, corner, strict=True):
                place = whole + float(by)
                inside = inside & (place >= 0.0) & (place <= float(size - 1))
                number = number * size + place.nan_to_num(0.0).clamp(0.0, float(size - 1)).to(torch.int64)
            self.numbers.append(number.flatten(1))
            self.inside.append(inside.flatten(1))
        self.mode = mode

    def weight(self, corner: Sequence[int], besides: int | None = None) -> Any:
        """The product of the weights along the dims, but for one of them."""
        found: Any = 1.0
        for d, (by, rest) in enumerate(zip(corner, self.rests, strict=True)):
            if d != besides and self.mode != _NEAREST:
                found = found * (rest if by else 1.0 - rest)
        return found.flatten(1).unsqueeze(1) if isinstance(found, Tensor) else found

    def read(self, x: Tensor, n: int) -> Tensor:
        numbers = self.numbers[n].unsqueeze(1).expand(-1, x.shape[1], -1)
        return torch.where(self.inside[n].unsqueeze(1), x.flatten(2).gather(2, numbers), 0.0)


def _cubic(rest: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """The weights of four neighbours, and their slopes."""
    a = -0.75
    far, near = [], []
    for at in (rest + 1.0, 2.0 - rest):
        far.append((((at - 5.0) * at + 8.0) * at - 4.0) * a)
        far.append((at * (3.0 * at - 10.0) + 8.0) * a)
    for at in (rest, 1.0 - rest):
        near.append((at * (a + 2.0) - (a + 3.0)) * at * at + 1.0)
        near.append((at * (3.0 * (a + 2.0)) - 2.0 * (a + 3.0)) * at)
    return [far[0], near[0], near[2], far[2]], [far[1], near[1], -near[3], -far[3]]


class _Neighbours:
    """The sixteen elements round each place of a 2-dimensional image, of which each is put inside by itself."""

    def __init__(self, x: Tensor, grid: Tensor, padding: int, corners: bool) -> None:
        at = [_places(grid[..., 1 - d], x.shape[2 + d], 0, corners) for d in (0, 1)]
        self.slopes = [slope for _, slope in at]
        wholes = [place.floor() for place, _ in at]
        weights = [_cubic(place - whole) for (place, _), whole in zip(at, wholes, strict=True)]
        self.weights = [each for each, _ in weights]
        self.changes = [each for _, each in weights]
        self.numbers: list[list[Tensor]] = []
        self.inside: list[list[Tensor]] = []
        for d, whole in enumerate(wholes):
            size = x.shape[2 + d]
            places = [self._put(whole + float(by - 1), size, padding, corners) for by in range(4)]
            self.inside.append([(place >= 0.0) & (place <= float(size - 1)) for place in places])
            self.numbers.append([p.nan_to_num(0.0).clamp(0.0, float(size - 1)).to(torch.int64) for p in places])
        self.width = x.shape[3]

    @staticmethod
    def _put(place: Tensor, size: int, padding: int, corners: bool) -> Tensor:
        if padding == _REFLECTION:
            low, high = (0.0, float(size - 1)) if corners else (-0.5, size - 0.5)
            place = _reflected(place, low, high)[0]
        return place.clamp(0.0, float(size - 1)) if padding in (_BORDER, _REFLECTION) else place

    def each(self) -> Iterator[tuple[int, int, Tensor, Tensor]]:
        for i, j in itertools.product(range(4), range(4)):
            number = self.numbers[0][i] * self.width + self.numbers[1][j]
            yield i, j, number.flatten(1), (self.inside[0][i] & self.inside[1][j]).flatten(1).unsqueeze(1)


def _cubic_backward(
    grad: Tensor, x: Tensor, grid: Tensor, padding: int, corners: bool, mask: Sequence[bool]
) -> tuple[Tensor | None, Tensor]:
    image, given, found = wide(x), wide(grad).flatten(2), _Neighbours(x, wide(grid), padding, corners)
    of_image = torch.zeros([*x.shape[:2], math.prod(x.shape[2:])], dtype=image.dtype, device=x.device)
    of_place: list[Any] = [0.0, 0.0]
    for i, j, number, inside in found.each():
        numbers = number.unsqueeze(1).expand(-1, x.shape[1], -1)
        weight = (found.weights[0][i] * found.weights[1][j]).flatten(1).unsqueeze(1)
        of_image = of_image.scatter_add(2, numbers, torch.where(inside, given * weight, 0.0))
        value = (torch.where(inside, image.flatten(2).gather(2, numbers), 0.0) * given).sum(1)
        of_place[0] = of_place[0] + value * (found.changes[0][i] * found.weights[1][j]).flatten(1)
        of_place[1] = of_place[1] + value * (found.weights[0][i] * found.changes[1][j]).flatten(1)
    parts = [each * slope.flatten(1) for each, slope in zip(of_place, found.slopes, strict=True)]
    of_grid = torch.stack(parts[::-1], -1).view(grid.shape).to(grid.dtype)
    return of_image.view(x.shape).to(x.dtype) if mask[0] else None, of_grid


@computes(aten.grid_sampler_2d.default, aten.grid_sampler_3d.default)
def grid_sampler(x: Tensor, grid: Tensor, mode: int, padding: int, corners: bool) -> Tensor:
    if mode not in (_BILINEAR, _NEAREST):
        raise DoesNotApply("cubic")
    image, found = wide(x), _Corners(x, wide(grid), mode, padding, corners)
    made: Any = 0.0
    for n, corner in enumerate(found.chosen):
        made = made + found.read(image, n) * found.weight(corner)
    sampled: Tensor = made.view(*x.shape[:2], *grid.shape[1:-1]).to(x.dtype)
    return sampled


@computes(aten.grid_sampler_2d_backward.default, aten.grid_sampler_3d_backward.default)
def grid_sampler_backward(
    grad: Tensor, x: Tensor, grid: Tensor, mode: int, padding: int, corners: bool, mask: Sequence[bool]
) -> tuple[Tensor | None, Tensor]:
    """In float64: corners are far apart and the place's slope is small where they nearly cancel."""
    if mode not in (_BILINEAR, _NEAREST):
        return _cubic_backward(grad, x, grid, padding, corners, mask)
    image, given = wide(x), wide(grad).flatten(2)
    found = _Corners(x, wide(grid), mode, padding, corners)
    of_image = torch.zeros([*x.shape[:2], math.prod(x.shape[2:])], dtype=image.dtype, device=x.device)
    of_place: list[Any] = [0.0] * len(found.sizes)
    for n, corner in enumerate(found.chosen):
        if mask[0]:
            share = torch.where(found.inside[n].unsqueeze(1), given * found.weight(corner), 0.0)
            numbers = found.numbers[n].unsqueeze(1).expand(-1, x.shape[1], -1)
            of_image = of_image.scatter_add(2, numbers, share)
        value = found.read(image, n) * given
        for dim, by in enumerate(corner if mode != _NEAREST else ()):
            of_place[dim] = of_place[dim] + (value * found.weight(corner, dim)).sum(1) * (1.0 if by else -1.0)
    if mode == _NEAREST:
        of_grid = torch.zeros_like(grid)
    else:
        parts = [each * slope.flatten(1) for each, slope in zip(of_place, found.slopes, strict=True)]
        of_grid = torch.stack(parts[::-1], -1).view(grid.shape).to(grid.dtype)
    return of_image.view(x.shape).to(x.dtype) if mask[0] else None, of_grid
