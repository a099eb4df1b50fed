"""Records of tensors put side by side, whole or among zeros: chosen by position, so that they fuse.

    cat([a, b], 1) of f32[4, 8] each  →  at [i, j]: where j // 8 == 0 then a[i, j % 8] else b[i, j % 8]

Only equal parts: every tensor is then read within its bounds at every point, and the choice costs a comparison. A join
that somebody wants in memory is left to the library, which copies each part once and compares nothing.
"""

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from smelt.ir.tensorspec import tensor_spec
from smelt.ops.record import LibraryCall, OpRecord, PieceCall, Pieces, Pointwise, Reduce, Scan, View
from smelt.ops.registry import argument, has_library, record_of, register, why_not_lower
from smelt.ops.views import bound
from smelt.symbolic.symsize import is_symsize, known_equal, same_sizes

aten = torch.ops.aten
_MOST = 4  # tensors to choose from: all of them are read at every point


def _why_not_worth(node: fx.Node) -> str | None:
    """Why the result is better left to the library: its sizes vary, and positions in its parts would be remainders of
    what is not known; or somebody who is no kernel wants it in memory."""
    if any(is_symsize(size) for size in tensor_spec(node).shape):
        return "has sizes that vary"
    return why_not_read_in_kernels(node)


def is_computed(node: fx.Node) -> bool:
    """Whether a node is computed point by point, whatever is looked at of it."""
    while node.op == "call_function" and node.target is not operator.getitem:
        lowering = record_of(node.target).lowering
        if not isinstance(lowering, View):
            return isinstance(lowering, Pointwise | Pieces) and why_not_lower(node) is None
        source = node.args[0]
        assert isinstance(source, fx.Node)
        node = source
    return False


def why_not_read_in_kernels(node: fx.Node) -> str | None:
    """Why a result has to be in memory, where the library puts it faster: somebody who is no kernel wants it."""
    if not has_library():
        return None
    for user in node.users:
        if user.op != "call_function":
            return "is wanted in memory"
        if user.target is not operator.getitem:
            lowering = record_of(user.target).lowering
            if isinstance(lowering, Pointwise | Reduce | Scan | Pieces):
                if why_not_lower(user) is not None:
                    return "is wanted in memory"
                continue
            if not isinstance(lowering, View):
                return "is wanted in memory"
        if (why := why_not_read_in_kernels(user)) is not None:
            return why
    return None


def _cat(node: fx.Node) -> PieceCall | str:
    tensors: Sequence[Any] = node.args[0]  # type: ignore[assignment]
    signed_dim = argument(node, 1, "dim", 0)
    assert isinstance(signed_dim, int)
    dim = signed_dim % len(tensor_spec(node).shape)
    shapes = [tensor_spec(tensor).shape for tensor in tensors]
    if len(tensors) > _MOST:
        return f"joins more than {_MOST} tensors"
    if any(not same_sizes(shape, shapes[0]) for shape in shapes):
        return "joins tensors of several sizes"
    return _why_not_worth(node) or PieceCall(dim, len(tensors), tuple(enumerate(tensors)))


def _sliced(node: fx.Node, base: Any, part: Any, dim: int, start: Any, end: Any, step: Any) -> PieceCall | str:
    """`part` in place of a slice of `base`, or of zeros."""
    assert isinstance(part, fx.Node)
    dim %= len(tensor_spec(node).shape)
    size, length = tensor_spec(node).shape[dim], tensor_spec(part).shape[dim]
    start, end = 0 if start is None else start, size if end is None else end
    if step != 1 or not all(isinstance(number, int) for number in (size, length, start, end)):
        return "spreads a tensor over every so many places"
    first = bound(start, 0, size)
    if not length or not known_equal(size % length, 0) or not known_equal(first % length, 0):
        return "puts a tensor across parts of one size"
    return _why_not_worth(node) or PieceCall(dim, size // length, ((first // length, part),), base=base)


def _slice_backward(node: fx.Node) -> PieceCall | str:
    gradient, _, dim, start, end, step = node.args
    assert isinstance(dim, int)
    return _sliced(node, None, gradient, dim, start, end, step)


def _slice_scatter(node: fx.Node) -> PieceCall | str:
    names = ("input", "src", "dim", "start", "end", "step")
    said = dict(zip(names, node.args, strict=False))
    arguments = {"dim": 0, "start": None, "end": None, "step": 1, **said, **node.kwargs}
    base, src, dim, start, end, step = (arguments[name] for name in names)
    assert isinstance(dim, int)
    return _sliced(node, base, src, dim, start, end, step)


def _selected(node: fx.Node, base: Any, part: Any, dim: Any, index: Any) -> PieceCall | str:
    """`part` at one place of `base`, or of zeros."""
    dim %= len(tensor_spec(node).shape)
    size = tensor_spec(node).shape[dim]
    if not isinstance(size, int) or not isinstance(index, int):
        return "puts a tensor at a place not known yet"
    return _why_not_worth(node) or PieceCall(dim, size, ((index % size, part),), squeezed=True, base=base)


def _select_backward(node: fx.Node) -> PieceCall | str:
    gradient, _, dim, index = node.args
    return _selected(node, None, gradient, dim, index)


def _select_scatter(node: fx.Node) -> PieceCall | str:
    base, src, dim, index = node.args
    return _selected(node, base, src, dim, index)


_COST = 3

register(OpRecord(aten.cat.default, Pieces(_cat, LibraryCall(aten.cat.out, ("out",))), _COST))
register(OpRecord(aten.slice_backward.default, Pieces(_slice_backward), _COST))
register(OpRecord(aten.select_backward.default, Pieces(_select_backward), _COST))
register(OpRecord(aten.slice_scatter.default, Pieces(_slice_scatter), _COST))
register(OpRecord(aten.select_scatter.default, Pieces(_select_scatter), _COST))
