"""Chooses scales and zero points of groups, and rounds weights to the nearest integer.

    [0.1, -0.7, 0.4, 0.9] in 4 bits   →   scale 0.1067, zero 7: integers 8 0 11 15
"""

import torch
from torch import Tensor

from smelt.base.fast_dataclass import dataclass

_SHRINKS = tuple(1 - 0.04 * step for step in range(12))  # parts of the range of a group that are tried


@dataclass(frozen=True, slots=True)
class Grid:
    """What integers of a group stand for: `(integer - zero) · scale`, for integers from `least` to `most`. Without a
    zero point `zero` is 0."""

    scale: Tensor
    zero: Tensor
    least: int
    most: int

    def rounded(self, values: Tensor) -> Tensor:
        """The nearest integers of values, as floats. The last dim of values is that of a group."""
        return (values / self.scale[..., None]).round().add(self.zero[..., None]).clamp(self.least, self.most)

    def values(self, integers: Tensor) -> Tensor:
        return (integers - self.zero[..., None]) * self.scale[..., None]


def grid_of(groups: Tensor, bits: int, scale_dtype: torch.dtype, importance: Tensor | None = None) -> Grid:
    """The grids of groups along the last dim. With `importance`, a weight for each element, the range of a group may
    be smaller than that of its values, if the sum of weighted squared errors is."""
    if importance is None:
        return _grid(groups, bits, scale_dtype, 1.0)
    best = _grid(groups, bits, scale_dtype, 1.0)
    least = _error(groups, best, importance)
    for shrink in _SHRINKS[1:]:
        grid = _grid(groups, bits, scale_dtype, shrink)
        error = _error(groups, grid, importance)
        better = error < least
        scale, zero = (torch.where(better, *pair) for pair in ((grid.scale, best.scale), (grid.zero, best.zero)))
        best, least = Grid(scale, zero, grid.least, grid.most), torch.minimum(error, least)
    return best


def _grid(groups: Tensor, bits: int, scale_dtype: torch.dtype, shrink: float) -> Grid:
    """Bytes are symmetric; fewer bits have a zero point, so that all of them are used."""
    if bits == 8:
        scale = groups.abs().amax(-1) * shrink / 127
        return Grid(_stored(scale, scale_dtype), torch.zeros_like(scale), -127, 127)
    most = (1 << bits) - 1
    low, high = (groups.amin(-1) * shrink).clamp_max(0), (groups.amax(-1) * shrink).clamp_min(0)
    scale = _stored((high - low) / most, scale_dtype)
    return Grid(scale, (-low / scale).round().clamp(0, most), 0, most)


def _stored(scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Scales as they will be in memory; one where all values of a group are zero."""
    scale = scale.to(dtype).float()
    return torch.where(scale == 0, 1.0, scale)


def _error(groups: Tensor, grid: Grid, importance: Tensor) -> Tensor:
    return ((grid.values(grid.rounded(groups)) - groups).square() * importance).sum(-1)


def scale_dtype_of(weight: Tensor) -> torch.dtype:
    """float16, unless it has no normal numbers for some scales."""
    most = weight.abs().amax(-1)
    normal = (most == 0) | ((most > 1e-1 / 127) & (most < 1e4))
    return torch.float16 if bool(normal.all()) else torch.float32


def packed(integers: Tensor) -> Tensor:
    """Integers from 0 to 15, of which neighbours share a byte, the first one in its lower half."""
    pairs = integers.to(torch.uint8).view(integers.shape[0], -1, 2)
    return pairs[..., 0] | pairs[..., 1] << 4
