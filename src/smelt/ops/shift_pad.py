"""Records of elements moved along dimensions: flipped, rolled round, put among padding.

    flip(x, [1]) of f32[4, 6]         →  at [i, j]: x[i, 5 - j], read with a stride of -1
    constant_pad_nd(x, [2, 1], 7.0)   →  at [i, j]: where 0 <= j - 2 < 6 then x[i, j - 2] else 7.0
    roll(x, [2], [1])                 →  at [i, j]: where j < 2 then x[i, j + 4] else x[i, j - 2]

Places are sums of positions wherever lanes are contiguous, one read for each way of counting: code that
reads a vector at a time needs nothing else. Along other dimensions one place is chosen, which costs a number a row.
"""

from collections.abc import Callable, Sequence
from functools import partial, reduce
from itertools import product as combinations
from typing import Any

import torch
from torch import fx

from smelt.ir.tensorspec import tensor_spec
from smelt.ops.concat import is_computed, why_not_read_in_kernels
from smelt.ops.creation import why_not_hold
from smelt.ops.record import (
    ROOT,
    CopyCall,
    Emitter,
    Fetch,
    Lookup,
    LookupCall,
    OperandLayout,
    OpRecord,
    Scalar,
    ScanCall,
)
from smelt.ops.registry import argument, register, source_of
from smelt.ops.scans import from_the_end
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import hint

aten = torch.ops.aten
_I64 = torch.int64
_MOST = 9  # reads for one element
_SHORT = 128  # elements of a row: with fewer, going from row to row takes as long as copying it

# A way to count places along a dim, and where it holds (None: wherever none before it does).
Way = tuple[Scalar, Scalar | None]
Ways = Callable[[Emitter, Scalar], list[Way]]


def _add(e: Emitter, place: Scalar, number: Size) -> Scalar:
    return e.op("add", place, e.const(number, _I64))


def _back_from(e: Emitter, number: Size, place: Scalar) -> Scalar:
    return e.op("sub", e.const(number, _I64), place)


def _below(e: Emitter, place: Scalar, number: Size) -> Scalar:
    return e.op("lt", place, e.const(number, _I64))


def _from(e: Emitter, place: Scalar, number: Size) -> Scalar:
    return e.op("ge", place, e.const(number, _I64))


# Copies of views.


def _why_not_copied(node: fx.Node) -> str | None:
    """Why a copy of a view is better left to the library: nothing else is done on the way, and rows are short."""
    source = source_of(node)
    spec = tensor_spec(source)
    rows = [size for size, step in zip(spec.shape, spec.stride, strict=True) if step == 1]
    if not rows or hint(max(rows, key=hint)) >= _SHORT or is_computed(source):
        return None
    return why_not_read_in_kernels(node)


def _flip(node: fx.Node) -> CopyCall | ScanCall | str:
    if (scan := from_the_end(node)) is not None:
        return scan
    source, signed_dims = source_of(node), _listed(node.args[1])
    rank = len(tensor_spec(source).shape)
    flipped = {dim % rank for dim in signed_dims} if rank else set()

    if (why := _why_not_copied(node)) is not None:
        return why

    def move(layout: OperandLayout) -> OperandLayout:
        offset, stride = layout.offset, list(layout.stride)
        for dim in flipped:
            offset += (layout.shape[dim] - 1) * stride[dim]
            stride[dim] = -stride[dim]
        return OperandLayout(layout.shape, tuple(stride), offset)

    return CopyCall(source, move)


def _cropped(source: fx.Node, pads: Sequence[tuple[Size, Size]]) -> CopyCall:
    def move(layout: OperandLayout) -> OperandLayout:
        shape = tuple(size + low + high for size, (low, high) in zip(layout.shape, pads, strict=True))
        offset = sum((-low * step for step, (low, _) in zip(layout.stride, pads, strict=True)), layout.offset)
        return OperandLayout(shape, layout.stride, offset)

    return CopyCall(source, move)


# Places chosen by position.


def _chosen(node: fx.Node, ways: dict[int, Ways]) -> LookupCall:
    """Each element from the first way that holds, along each dim of `ways`."""
    source = source_of(node)
    spec = tensor_spec(source)
    apart = min(ways, key=lambda dim: spec.stride[dim])
    dims = sorted(ways)

    def emit(e: Emitter, fetch: Fetch) -> Scalar:
        choices = {dim: ways[dim](e, e.position(dim)) for dim in dims}
        places = {dim: _first(e, each) for dim, each in choices.items() if dim != apart}
        reads = [(fetch(*({**places, apart: place}[dim] for dim in dims)), holds) for place, holds in choices[apart]]
        return _first(e, reads)

    return LookupCall(source, tuple(None if dim in ways else dim for dim in range(len(spec.shape))), emit)


def _first(e: Emitter, ways: Sequence[Way]) -> Scalar:
    *others, (first_place, _) = ways
    for value, holds in reversed(others):
        assert holds is not None
        first_place = e.op("where", holds, value, first_place)
    return first_place


def _pads(pads: Any, rank: int) -> list[tuple[Size, Size]]:
    """How many elements come before and after each dim: given from the last dim on."""
    pairs = [(pads[number], pads[number + 1]) for number in range(0, len(pads), 2)]
    return [(0, 0)] * (rank - len(pairs)) + pairs[::-1]


def _constant_pad(node: fx.Node) -> LookupCall | CopyCall | str:
    source = source_of(node)
    shape = tensor_spec(source).shape
    pads = _pads(node.args[1], len(shape))
    number = argument(node, 2, "value", 0)
    if (why := why_not_hold(number, tensor_spec(node).dtype)) is not None:
        return why
    if all(low <= 0 and high <= 0 for low, high in pads):
        return _why_not_copied(node) or _cropped(source, pads)
    moved = [dim for dim, pad in enumerate(pads) if pad != (0, 0)]

    def emit(e: Emitter, fetch: Fetch) -> Scalar:
        places = [_add(e, e.position(dim), -pads[dim][0]) for dim in moved]
        inside: list[Scalar] = []
        for dim, place in zip(moved, places, strict=True):
            low, high = pads[dim]
            inside += [_from(e, place, 0)] if low > 0 else []
            inside += [_below(e, place, shape[dim])] if high > 0 else []
        filled = e.cast(e.const(number, e.dtype), e.result)
        return e.op("where", reduce(partial(e.op, "and"), inside), fetch(*places), filled)

    return LookupCall(source, tuple(None if dim in moved else dim for dim in range(len(shape))), emit)


def _roll(node: fx.Node) -> LookupCall | CopyCall | str:
    source = source_of(node)
    shape = tensor_spec(source).shape
    shifts, dims = _listed(node.args[1]), _listed(argument(node, 2, "dims", []))
    if not dims and len(shape) == 1:
        dims = [0]
    if not dims:
        return "rolls over the ends of rows"
    total: dict[int, Size] = {}
    for shift, dim in zip(shifts, dims, strict=True):
        total[dim % len(shape)] = total.get(dim % len(shape), 0) + shift
    ways: dict[int, Ways] = {}
    for dim, shift in total.items():
        shift = shift if 0 <= shift < shape[dim] else shift % shape[dim]
        if shift != 0:
            ways[dim] = _rolled(shift, shape[dim])
    return _chosen(node, ways) if ways else _cropped(source, [(0, 0)] * len(shape))


def _listed(values: Any) -> list[Any]:
    return list(values) if isinstance(values, Sequence) else [values]


def _rolled(shift: Size, size: Size) -> Ways:
    def ways(e: Emitter, here: Scalar) -> list[Way]:
        return [(_add(e, here, size - shift), _below(e, here, shift)), (_add(e, here, -shift), None)]

    return ways


def _padded(*, is_reflected: bool) -> Callable[[fx.Node], LookupCall | CopyCall | str]:
    def read(node: fx.Node) -> LookupCall | CopyCall | str:
        shape = tensor_spec(source_of(node)).shape
        pads = _pads(node.args[1], len(shape))
        if any(pad < 0 for pair in pads for pad in pair):
            return "takes away what it does not add"
        # Three reads an element, two of them nearly always for nothing: the library copies whole rows.
        if (why := why_not_read_in_kernels(node)) is not None:
            return why
        ways = {dim: _padded_ways(shape[dim], *pair, is_reflected) for dim, pair in enumerate(pads) if pair != (0, 0)}
        return _chosen(node, ways) if ways else _cropped(source_of(node), pads)

    return read


def _padded_ways(size: Size, low: Size, high: Size, is_reflected: bool) -> Ways:
    """Padding before and behind repeats the nearest element, or mirrors what is inside."""

    def ways(e: Emitter, here: Scalar) -> list[Way]:
        choices: list[Way] = [(_add(e, here, -low), None)]
        if low > 0:
            first = _back_from(e, low, here) if is_reflected else e.const(0, _I64)
            choices.insert(0, (first, _below(e, here, low)))
        if high > 0:
            last = _back_from(e, 2 * (size - 1) + low, here) if is_reflected else e.const(size - 1, _I64)
            choices.insert(0, (last, _from(e, here, size + low)))
        return choices

    return ways


# Sums of all that one element was read for.


def _reflected_backward(node: fx.Node) -> LookupCall | CopyCall | str:
    """A gradient for each way an element was read: in its own place, and mirrored at either end."""
    gradient, source = source_of(node), node.args[1]
    assert isinstance(source, fx.Node)
    shape = tensor_spec(source).shape
    pads = _pads(node.args[2], len(shape))
    moved = [dim for dim, pair in enumerate(pads) if pair != (0, 0)]
    if any(pad < 0 for pair in pads for pad in pair):
        return "adds what it takes away"
    if (why := why_not_read_in_kernels(node)) is not None:
        return why
    if 3 ** len(moved) > _MOST:
        return f"sums more than {_MOST} elements into one"
    if not moved:
        return _cropped(gradient, pads)

    def ways(e: Emitter, dim: int) -> list[Way]:
        here, size, (low, high) = e.position(dim), shape[dim], pads[dim]
        left = e.op("and", _from(e, here, 1), _below(e, here, low + 1))
        right = e.op("and", _from(e, here, size - 1 - high), _below(e, here, size - 1))
        mirrored: list[Way] = [
            (_back_from(e, low, here), left),
            (_back_from(e, 2 * (size - 1) + low, here), right),
        ]
        return [(_add(e, here, low), None), *(way for way, pad in zip(mirrored, (low, high), strict=True) if pad)]

    def emit(e: Emitter, fetch: Fetch) -> Scalar:
        total: Scalar | None = None
        for each in combinations(*(ways(e, dim) for dim in moved)):
            element = fetch(*(place for place, _ in each))
            for _, holds in each:
                element = e.op("where", holds, element, e.const(0, element.dtype)) if holds is not None else element
            total = element if total is None else e.op("add", total, element)
        assert total is not None
        return total

    return LookupCall(gradient, tuple(None if dim in moved else dim for dim in range(len(shape))), emit)


_READ: dict[str, Callable[[fx.Node], Any]] = {
    "flip": _flip,
    "constant_pad_nd": _constant_pad,
    "roll": _roll,
    **{f"reflection_pad{rank}d": _padded(is_reflected=True) for rank in (1, 2, 3)},
    **{f"replication_pad{rank}d": _padded(is_reflected=False) for rank in (1, 2, 3)},
    **{f"reflection_pad{rank}d_backward": _reflected_backward for rank in (1, 2, 3)},
}

for _name, _read in _READ.items():
    register(OpRecord(getattr(aten, _name).default, Lookup(_read), ROOT))
