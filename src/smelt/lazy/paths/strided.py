"""A view that is known by its strides alone, as slices, selections and permutations of what it is a view of.

    f32[4, 6], of which (2, 3) by strides (12, 1) from 7   →   rows 1 and 3, columns 1 to 3

A view that outlives a run is found by its layout in the next one. The stages behind understand slices, also where they
are written; `as_strided` of an input they leave to PyTorch."""

from collections.abc import Sequence
from typing import Any

import torch

aten = torch.ops.aten

Shape = Sequence[int]
Dim = tuple[int, int]
"""A size and a stride."""
Call = tuple[torch._ops.OpOverload, tuple[Any, ...]]
"""An operator and its arguments after the tensor."""


def calls_of(shape: Shape, stride: Shape, seen_shape: Shape, seen_stride: Shape, offset: int) -> list[Call] | None:
    """The calls that make the second layout of the first, which begins at 0; None if there are none of this kind."""
    if 0 in shape or 0 in seen_shape:
        return None
    whole, seen = _dims(shape, stride), _dims(seen_shape, seen_stride)
    calls = _cut(whole, [dim for dim in seen if dim[1]], offset)
    if calls is None:
        return None
    single = [1 if not step else size for size, step in zip(seen_shape, seen_stride, strict=True)]
    calls.append((aten.view.default, (single,)))
    if single != list(seen_shape):
        calls.append((aten.expand.default, (list(seen_shape),)))
    tensor = torch.empty_strided(tuple(shape), tuple(stride), device="meta")
    try:
        for operator, args in calls:
            tensor = operator(tensor, *args)
    except RuntimeError:  # dimensions that cannot be merged
        return None
    same = tensor.shape == torch.Size(seen_shape) and tensor.storage_offset() == offset
    return calls if same and _dims(tensor.shape, tensor.stride()) == seen else None


def _dims(shape: Shape, stride: Shape) -> list[Dim]:
    return [(size, step) for size, step in zip(shape, stride, strict=True) if size != 1]


def _cut(whole: list[Dim], seen: list[Dim], offset: int) -> list[Call] | None:
    """Calls after which there is one dimension for each part of those that are seen, in their order."""
    boundaries = sorted({step for _, step in (*whole, *seen)})
    whole = [part for dim in whole for part in _parts(dim, boundaries)]
    parts = [part for dim in seen for part in _parts(dim, boundaries)]
    places = _places(whole, parts)
    begins = _begins(whole, offset)
    if places is None or begins is None:
        return None
    calls: list[Call] = [(aten.view.default, ([size for size, _ in whole],))]
    for place in reversed(range(len(whole))):
        size, step = whole[place]
        if place not in places:
            calls.append((aten.select.int, (place, begins[place])))
            continue
        count, stride = parts[places.index(place)]
        end = begins[place] + (count - 1) * (stride // step) + 1
        if end > size:
            return None
        if (begins[place], end, stride) != (0, size, step):
            calls.append((aten.slice.Tensor, (place, begins[place], end, stride // step)))
    kept = sorted(places)
    return [*calls, (aten.permute.default, ([kept.index(place) for place in places],))]


def _parts(dim: Dim, boundaries: Sequence[int]) -> list[Dim]:
    """A dimension as several, one ending where another stride begins: (6, 1) at 3 is (2, 3), (3, 1)."""
    size, step = dim
    inner: list[Dim] = []
    for boundary in boundaries:
        if step < boundary < step * size and boundary % step == 0 and (step * size) % boundary == 0:
            inner.append((boundary // step, step))
            size, step = size * step // boundary, boundary
    return [(size, step), *reversed(inner)]


def _places(whole: list[Dim], parts: list[Dim]) -> list[int] | None:
    """Which dimension of the whole each part is, or is taken of in steps; each is taken once."""
    places: list[int] = []
    for _, stride in parts:
        fitting = [place for place, (_, step) in enumerate(whole) if stride % step == 0 and place not in places]
        if not fitting:
            return None
        places.append(max(fitting, key=lambda place: whole[place][1]))
    return places


def _begins(whole: list[Dim], offset: int) -> list[int] | None:
    """The index in each dimension of what is at `offset`."""
    indices = [0] * len(whole)
    for place in sorted(range(len(whole)), key=lambda place: -whole[place][1]):
        size, step = whole[place]
        indices[place] = min(offset // step, size - 1)
        offset -= indices[place] * step
    return indices if offset == 0 else None
