"""The record of max pooling's gradient on GPUs, where windows overlap: each element looks at the windows it belongs to.

    max_pool2d_with_indices_backward(grad, x, [3, 3], [2, 2], [1, 1], …, indices)
    →  at [i, j, h, w]: the sum of grad[i, j, r, c] over the windows r, c around h, w whose index is 112·h + w

Nothing is scattered, so sums have the same order in every run. In memory, an index counts from the first element of its
window, which takes two bytes.
"""

from collections.abc import Sequence
from itertools import product as combinations
from typing import Any

import torch
from torch import fx

from smelt.device.host_library import on_host
from smelt.ir.tensorspec import tensor_spec
from smelt.ops.record import LONG, Emitter, Fetch, LibraryCall, Lookup, LookupBeside, LookupCall, OpRecord, Scalar
from smelt.ops.registry import register
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import is_symsize

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
    if is_symsize(width):
        return "has windows of a varying width"
    rows, cols = (count * s for count, s in zip(counts, step, strict=True))  # in which an element looks for itself
    dtype = torch.int16 if (rows - 1) * width + cols - 1 <= torch.iinfo(torch.int16).max else torch.int64
    counts_of_windows = tensor_spec(gradient).shape[rank - 2 :]

    def begin(e: Emitter, places: Sequence[Scalar]) -> Scalar:
        """The number of a window's first element in the image."""
        row, col = (_shifted(e, place, each, -edge) for place, each, edge in zip(places, step, edges, strict=True))
        return e.op("add", e.op("mul", row, e.const(width, _I64)), col)

    def relative(e: Emitter, index: Scalar) -> Scalar:
        places = [e.position(rank - 2), e.position(rank - 1)]
        return e.cast(e.op("sub", e.cast(index, _I64), begin(e, places)), dtype)

    def emit(e: Emitter, of_gradient: Fetch, of_indices: Fetch) -> Scalar:
        dims = [e.position(rank - 2), e.position(rank - 1)]
        here = e.op("add", e.op("mul", dims[0], e.const(width, _I64)), dims[1])
        total: Scalar | None = None
        for numbers in combinations(*map(range, counts)):
            places = [_window(e, *each) for each in zip(dims, numbers, step, edges, strict=True)]
            place = e.op("sub", here, begin(e, places))
            chosen = e.op("where", _exist(e, places, counts_of_windows), place, e.const(-1, _I64))
            is_chosen = e.op("eq", of_indices(*places), e.cast(chosen, dtype))
            term = e.op("where", is_chosen, e.cast(of_gradient(*places), e.result), e.const(0, e.result))
            total = term if total is None else e.op("add", total, term)
        assert total is not None
        return total

    along = (*range(rank - 2), None, None)
    return LookupCall(gradient, along, emit, beside=(LookupBeside(indices, dtype, relative),))


def _shifted(e: Emitter, place: Scalar, factor: int, more: int) -> Scalar:
    scaled = e.op("mul", place, e.const(factor, _I64)) if factor != 1 else place
    return e.op("add", scaled, e.const(more, _I64)) if more else scaled


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
