"""Images at other sizes, each element a sum of weighted neighbours: one dimension after the other.

    upsample_bilinear2d(x, [h, w])  →  along columns, then along rows: x[…, p] · (1 - t) + x[…, p + 1] · t
    its gradient                    →  for each element of x the results it went into, by the same weights

Places and weights are tables, a kernel of their own: computed in float64, so that they are closer to the truth than
PyTorch's. One dimension at a time reads 2 + 2 neighbours instead of 2 · 2, and of rows whole vectors.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from smelt.base.fast_dataclass import dataclass
from smelt.ops.decompose.table import choose, decomposes, widen

if TYPE_CHECKING:
    import torch
else:
    from smelt.base.torch_originals import pristine as torch

Tensor = torch.Tensor
aten = torch.ops.aten

_MOST = 20  # results that one element goes into, along a dimension: each is a read of its own
_CUBIC = -0.75
# Of float64 the library's own order of rounding is all the truth there is.
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class _Resized:
    """One dimension, from `small` elements to `large` (which may be fewer), `step` of its own for one of the result."""

    small: int
    large: int
    corners: bool
    cubic: bool
    step: float

    @classmethod
    def of(cls, small: int, large: int, corners: bool, cubic: bool, scale: float | None) -> "_Resized":
        if corners:
            step = (small - 1) / (large - 1) if large > 1 else 0.0
        else:
            step = 1.0 / scale if scale is not None and scale > 0 else small / large
        return cls(small, large, corners, cubic, step)

    @property
    def is_same(self) -> bool:
        return self.small == self.large and self.step == 1.0

    @property
    def reach(self) -> int:
        return 2 if self.cubic else 1

    def taps(self, result: Any, floor: Callable[[Any], Any], clamp: Callable[..., Any]) -> list[tuple[Any, Any]]:
        """Where a result's neighbours stand and what they weigh. `result`: its number, or a tensor of those."""
        real = result * self.step if self.corners else (result + 0.5) * self.step - 0.5
        last = self.small - 1
        whole = floor(real)
        if not self.cubic:
            real = clamp(real, 0.0, None)
            whole = clamp(whole, 0.0, float(last))
        rest = clamp(real - whole, 0.0, 1.0)
        if not self.cubic:
            # Behind the last, halves of it, which make just it again; at the last, all and nothing of it, which of what
            # is infinite is nan, as in PyTorch.
            behind = clamp(whole - float(last - 1), 0.0, 1.0)
            rest = rest * (1.0 - behind) + behind * 0.5 * -floor(-rest)
        if self.cubic:
            weights = [_outer(rest + 1.0), _inner(rest), _inner(1.0 - rest), _outer(2.0 - rest)]
        else:
            weights = [1.0 - rest, rest]
        first = 1 - self.reach
        return [(clamp(whole + float(first + n), 0.0, float(last)), weight) for n, weight in enumerate(weights)]

    @property
    def window(self) -> int | None:
        """How many results from the first one on an element goes into at most; None where that is not certain, or a
        lot."""
        if not self.step:
            return None
        count = math.ceil(2 * self.reach / self.step) + 1
        if count > _MOST or count * self.small > 2**20:
            return None
        for result in range(self.large):
            for place, _ in self.taps(float(result), lambda real: float(math.floor(real)), _clamp):
                if not 0 <= result - self.first(place, math.floor, _clamp) < count:
                    return None
        return count

    def first(self, place: Any, floor: Callable[[Any], Any], clamp: Callable[..., Any]) -> Any:
        """The first result that the element at a place may go into."""
        edge = (place - float(self.reach)) / self.step
        if not self.corners:
            edge = (place - float(self.reach) + 0.5) / self.step - 0.5
        return clamp(floor(edge), 0.0, None)


def _clamp(number: float, low: float, high: float | None) -> float:
    return max(low, number if high is None else min(number, high))


def _inner(t: Any) -> Any:
    return ((_CUBIC + 2.0) * t - (_CUBIC + 3.0)) * t * t + 1.0


def _outer(t: Any) -> Any:
    return ((_CUBIC * t - 5.0 * _CUBIC) * t + 8.0 * _CUBIC) * t - 4.0 * _CUBIC


def _ramp(count: int, like: Tensor) -> Tensor:
    ramp: Tensor = aten.arange.default(count, dtype=torch.float64, device=like.device)
    return ramp


def _read(x: Tensor, dim: int, places: Tensor, weights: Tensor) -> Tensor:
    """The elements at places along a dim, weighted."""
    picked = widen(aten._unsafe_index.Tensor(x, [*([None] * dim), places]))
    return picked * _across(weights.to(picked.dtype), x, dim)


def _across(table: Tensor, x: Tensor, dim: int) -> Tensor:
    """A table along a dim, beside whatever other dims there are behind it."""
    return table.view([-1, *([1] * (x.dim() - 1 - dim))])


def _enlarged(x: Tensor, dim: int, by: _Resized) -> Tensor:
    taps = by.taps(_ramp(by.large, x), torch.floor, torch.clamp)
    parts = [_read(x, dim, place.to(torch.int64), weight) for place, weight in taps]
    return sum(parts[1:], parts[0])


def _gathered(grad: Tensor, dim: int, by: _Resized, window: int) -> Tensor:
    """For each element what the results that it went into have come to, by its weight in each: those of a window."""
    here = _ramp(by.small, grad)
    results = by.first(here, torch.floor, torch.clamp) + _ramp(window, grad).view([-1, 1])
    taps = by.taps(results, torch.floor, torch.clamp)
    weights = sum((choose(place == here, weight, 0.0) for place, weight in taps), torch.zeros_like(results))
    weights = weights.to(widen(grad).dtype)
    # An element may be part of a result by nothing, as PyTorch has it: of what is infinite or nan that is nan.
    weighs = functools.reduce(torch.logical_or, [place == here for place, _ in taps])
    weighs = torch.logical_and(weighs, results < float(by.large))
    places = torch.clamp(results, 0.0, float(by.large - 1)).to(torch.int64)
    total: Tensor | None = None
    for n in range(window):
        # What a result came to that it did not go into may be infinite too, and is to leave no trace.
        part, counts = _read(grad, dim, places[n], weights[n]), _across(weighs[n], grad, dim)
        total = choose(counts, part, 0.0) if total is None else choose(counts, total + part, total)
    assert total is not None
    return total


def _dims(small: Sequence[int], large: Sequence[int], corners: bool, cubic: bool, scales: Any) -> Any:
    """dim → how it is resized; None where sizes vary."""
    if not all(type(each) is int for each in (*small, *large)):
        return None
    ways = zip(small, large, scales, strict=True)
    resized = [_Resized.of(a, b, corners, cubic, scale) for a, b, scale in ways]
    return {dim: by for dim, by in enumerate(resized, 2) if not by.is_same}


def _resizes(op: Any, backward: Any, rank: int, cubic: bool = False) -> None:
    def forward(x: Tensor, size: Sequence[int], corners: bool, *scales: float | None) -> Any:
        dims = _dims(x.shape[2:], size, corners, cubic, scales or [None] * rank)
        if not dims or x.dtype not in _FLOATS:
            return NotImplemented
        resized = x
        # What shrinks goes first; of what grows, the dimension whose elements are contiguous: they are fewer then.
        for dim in sorted(dims, key=lambda dim: (dims[dim].large > dims[dim].small, -dim)):
            resized = _enlarged(resized, dim, dims[dim])
        return resized.to(x.dtype)

    def back(grad: Tensor, size: Sequence[int], whole: Sequence[int], corners: bool, *scales: float | None) -> Any:
        dims = _dims(whole[2:], size, corners, cubic, scales or [None] * rank)
        if not dims or grad.dtype not in _FLOATS:
            return NotImplemented
        windows = {dim: by.window for dim, by in dims.items()}
        if None in windows.values():
            return NotImplemented
        gradient = grad
        for dim in sorted(dims, key=lambda dim: (dims[dim].small > dims[dim].large, dim)):
            gradient = _gathered(gradient, dim, dims[dim], windows[dim])
        return gradient.to(grad.dtype)

    decomposes(op)(forward)
    decomposes(backward)(back)


_resizes(aten.upsample_linear1d.default, aten.upsample_linear1d_backward.default, 1)
_resizes(aten.upsample_bilinear2d.default, aten.upsample_bilinear2d_backward.default, 2)
_resizes(aten.upsample_bicubic2d.default, aten.upsample_bicubic2d_backward.default, 2, cubic=True)
