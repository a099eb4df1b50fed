"""The record of max pooling's gradient on GPUs, where windows overlap: each element looks at the windows it belongs to.

    max_pool2d_with_indices_backward(grad, x, [3, 3], [2, 2], [1, 1], …, indices)
    →  at [i, j, h, w]: the sum of grad[i, j, r, c] over the windows r, c around h, w whose index is 112·h + w

Nothing is scattered, so sums have the same order in every run.
"""

from collections.abc import Sequence
from itertools import product as combinations
from typing import Any

import torch
from torch import fx

from smelt.device.host_library import on_host
from smelt.ir.tensorspec import tensor_spec
from smelt.ops.record import LONG, Emitter, Fetch, LibraryCall, Lookup, LookupCall, OpRecord, Scalar
from smelt.ops.registry import register
from smelt.symbolic.shapes import Size

aten = torch.ops.aten

_I64 = torch.int64
_MOST_WINDOWS = 9  # of an element
_WHY = "scatters to indices that depend on data, several to one"


def _pair(sizes: Any) -> tuple[int, int]:
    return (sizes[0], sizes[-1])


def _read(node: fx.Node) -> LookupCall | str:
    gradient, x, kernel, stride, padding, dilation, _, indices = node.args
    assert isinstance(gradient, fx.Node) and isinstance(x, fx.Node) and isinstance(indices, fx.Node)
    size, step, edges = _pair(kernel), _pair(stride or kernel), _pair(padding)
    spec = tensor_spec(x)
    if on_host(spec.device):
        return _WHY
    counts = [-(-k // s) for k, s in zip(size, step, strict=True)]
    if _pair(dilation) != (1, 1) or counts[0] * counts[1] > _MOST_WINDOWS:
        return "has windows of many elements, or with holes"
    rank = len(spec.shape)
    width = spec.shape[rank - 1]

    def emit(e: Emitter, of_gradient: Fetch, of_indices: Fetch) -> Scalar:
        dims = [e.position(rank - 2), e.position(rank - 1)]
        here = e.op("add", e.op("mul", dims[0], e.const(width, _I64)), dims[1])
        total: Scalar | None = None
        for numbers in combinations(*map(range, counts)):
            places = [_window(e, *each) for each in zip(dims, numbers, step, edges, strict=True)]
            exists = _exist(e, places, tensor_spec(gradient).shape[rank - 2 :])
            chosen = e.op("eq", of_indices(*places), e.op("where", exists, here, e.const(-1, _I64)))
            term = e.op("where", chosen, e.cast(of_gradient(*places), e.result), e.const(0, e.result))
            total = term if total is None else e.op("add", total, term)
        assert total is not None
        return total

    along = (*range(rank - 2), None, None)
    return LookupCall(gradient, along, emit, beside=(indices,))


def _window(e: Emitter, place: Scalar, number: int, step: int, edge: int) -> Scalar:
    """The last window but `number` that an element belongs to."""
    padded = e.op("add", place, e.const(edge, _I64))
    shift = step.bit_length() - 1
    if step == 1 << shift:
        last = e.op("shr", padded, e.const(shift, _I64)) if shift else padded
    else:
        last = e.op("floordiv", padded, e.const(step, _I64))
    return e.op("sub", last, e.const(number, _I64)) if number else last


def _exist(e: Emitter, places: Sequence[Scalar], counts: Sequence[Size]) -> Scalar:
    inside: Scalar | None = None
    for place, count in zip(places, counts, strict=True):
        not_before, not_behind = e.op("ge", place, e.const(0, _I64)), e.op("lt", place, e.const(count, _I64))
        both = e.op("and", not_before, not_behind)
        inside = both if inside is None else e.op("and", inside, both)
    assert inside is not None
    return inside


register(
    OpRecord(aten.max_pool2d_with_indices_backward.default, Lookup(_read, LibraryCall(why=_WHY)), LONG)
)
