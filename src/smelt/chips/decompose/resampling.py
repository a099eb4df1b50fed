"""Images at other sizes and with borders, and their gradients: sums along one dimension after the other.

    upsample_nearest2d_backward     each element's gradient is the sum of those of its copies
    replication_pad1d_backward      the first's is the sum of those before it and its own
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from smelt.chips.decompose.table import computes, wide
from smelt.chips.decompose.taps import Rows, summed, turned

Tensor = torch.Tensor
aten = torch.ops.aten

Plan = Callable[[int, int, float | None], Rows]


def _step(small: int, large: int, scale: float | None, corners: bool = False) -> float:
    if corners:
        return (small - 1) / (large - 1) if large > 1 else 0.0
    return 1 / scale if scale is not None and scale > 0 else small / large


def _nearest(offset: float) -> Plan:
    """Places in float32, as PyTorch computes them."""

    def rows(small: int, large: int, scale: float | None) -> Rows:
        given = scale is not None and scale > 0
        step = np.float32(_step(small, large, scale)) if given else np.float32(small) / np.float32(large)
        places = [int(np.floor((np.float32(n) + np.float32(offset)) * step)) for n in range(large)]
        return tuple(((min(place, small - 1), 1.0),) for place in places)

    return rows


def _linear(corners: bool) -> Plan:
    def rows(small: int, large: int, scale: float | None) -> Rows:
        step = _step(small, large, scale, corners)
        found = []
        for n in range(large):
            real = n * step if corners else max((n + 0.5) * step - 0.5, 0.0)
            low = min(int(real), small - 1)
            rest = min(max(real - low, 0.0), 1.0)
            found.append(((low, 1 - rest), (min(low + 1, small - 1), rest)))
        return tuple(found)

    return rows


def _triangle(x: float) -> float:
    return max(1 - abs(x), 0.0)


def _cubic(x: float) -> float:
    a, x = -0.5, abs(x)
    if x < 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * a if x < 2 else 0.0


def _smoothed(kernel: Callable[[float], float], reach: int) -> Callable[[bool], Plan]:
    """With all elements between two of the result taking part, where it is smaller."""

    def of(corners: bool) -> Plan:
        def rows(small: int, large: int, scale: float | None) -> Rows:
            step = _step(small, large, scale, corners)
            spread = max(step, 1.0)
            found = []
            for n in range(large):
                center = step * (n + 0.5)
                first = max(int(center - reach * spread + 0.5), 0)
                last = min(int(center + reach * spread + 0.5), small)
                weights = [kernel((at - center + 0.5) / spread) for at in range(first, last)]
                total = math.fsum(weights) or 1.0
                found.append(tuple((at, weight / total) for at, weight in enumerate(weights, first)))
            return tuple(found)

        return rows

    return of


def _resized(x: Tensor, size: Sequence[int], scales: Sequence[float | None], plan: Plan) -> Tensor:
    made = wide(x)
    for dim, (large, scale) in enumerate(zip(size, scales, strict=True), 2):
        made = summed(made, dim, plan(x.shape[dim], large, scale))
    return made.to(x.dtype)


def _returned(grad: Tensor, whole: Sequence[int], scales: Sequence[float | None], plan: Plan) -> Tensor:
    made = wide(grad)
    for dim, scale in enumerate(scales, 2):
        made = summed(made, dim, turned(plan(whole[dim], grad.shape[dim], scale), whole[dim]))
    return made.to(grad.dtype)


def _nearests() -> None:
    for rank in (1, 2, 3):
        for name, offset in (("upsample_nearest", 0.0), ("_upsample_nearest_exact", 0.5)):

            def back(
                grad: Tensor, size: Any, whole: Any, *scales: Any, rank: int = rank, offset: float = offset,
                **named: Any,
            ) -> Tensor:  # fmt: skip
                given = [*scales, *named.values()]
                return _returned(grad, whole, given + [None] * (rank - len(given)), _nearest(offset))

            computes(getattr(aten, f"{name}{rank}d_backward").default)(back)


def _by(rank: int, forward: Any, backward: Any, plan: Callable[[bool], Plan]) -> None:
    def resize(x: Tensor, size: Any, corners: bool, *scales: Any, **named: Any) -> Tensor:
        given = [*scales, *named.values()]
        return _resized(x, size, given + [None] * (rank - len(given)), plan(corners))

    def back(grad: Tensor, size: Any, whole: Any, corners: bool, *scales: Any, **named: Any) -> Tensor:
        given = [*scales, *named.values()]
        return _returned(grad, whole, given + [None] * (rank - len(given)), plan(corners))

    computes(forward)(resize)
    computes(backward)(back)


_nearests()
_by(1, aten.upsample_linear1d.default, aten.upsample_linear1d_backward.default, _linear)
_by(2, aten.upsample_bilinear2d.default, aten.upsample_bilinear2d_backward.default, _linear)
_by(3, aten.upsample_trilinear3d.default, aten.upsample_trilinear3d_backward.default, _linear)
_by(
    2, aten._upsample_bilinear2d_aa.default, aten._upsample_bilinear2d_aa_backward.default, _smoothed(_triangle, 1)
)
_by(2, aten._upsample_bicubic2d_aa.default, aten._upsample_bicubic2d_aa_backward.default, _smoothed(_cubic, 2))


# Borders.


def _replicated(size: int, before: int, after: int) -> Rows:
    return tuple(((min(max(at, 0), size - 1), 1.0),) for at in range(-before, size + after))


def _reflected(size: int, before: int, after: int) -> Rows:
    period = max(2 * (size - 1), 1)
    return tuple(
        ((min(at % period, period - at % period) if size > 1 else 0, 1.0),) for at in range(-before, size + after)
    )


def _padded(names: str, rows: Callable[[int, int, int], Rows]) -> None:
    def back(grad: Tensor, x: Tensor, padding: Sequence[int]) -> Tensor:
        made = wide(grad)
        for n in range(len(padding) // 2):
            dim = x.dim() - 1 - n
            made = summed(made, dim, turned(rows(x.shape[dim], padding[2 * n], padding[2 * n + 1]), x.shape[dim]))
        return made.to(grad.dtype)

    for rank in (1, 2, 3):
        computes(getattr(aten, f"{names}{rank}d_backward").default)(back)


_padded("replication_pad", _replicated)
_padded("reflection_pad", _reflected)
