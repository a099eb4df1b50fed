"""`x[i]` of a tensor by a number that differs from call to call.

    x[:, i]    →    select(x, 1, i)[:]          x[i] = y    →    select(x, 0, i)[...] = y

PyTorch's own indexing makes a constant of such a number, and so a graph for each.
"""

import operator

import torch

from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.model.values import Constant, Number, Sequence, Slice, Tensor, Value, python_type


def item_of(interp: Interpreter, tensor: Tensor, key: Value) -> Value:
    """`tensor[key]`."""
    chosen, rest = _selected(interp, tensor, key)
    if rest is None:
        return chosen
    return interp.tensor_call("call_function", operator.getitem, [chosen, rest])


def set_item(interp: Interpreter, tensor: Tensor, key: Value, value: Value) -> None:
    """`tensor[key] = value`."""
    chosen, rest = _selected(interp, tensor, key)
    interp.tensor_call("call_function", operator.setitem, [chosen, Constant(...) if rest is None else rest, value])


def _selected(interp: Interpreter, tensor: Tensor, key: Value) -> tuple[Value, Value | None]:
    """The part of a tensor that varying indices name, and what is left of the key; None if that is nothing."""
    several = isinstance(key, Sequence) and key.kind is tuple
    items = [interp.externals.force(item) for item in key.items] if several else [key]  # type: ignore[attr-defined]
    if not any(map(_varies, items)):
        return tensor, key
    extents = [_extent(item) for item in items]
    if None in extents or extents.count(-1) > 1:
        return tensor, key
    rest = tensor.ghost.dim() - extents.count(1)  # what `...` stands for
    chosen: Value = tensor
    for place in reversed(range(len(items))):  # the last first: the others stay where they are
        if _varies(items[place]):
            dim = sum(rest if extent == -1 else extent or 0 for extent in extents[:place])
            chosen = interp.tensor_call("call_function", torch.select, [chosen, Constant(dim), items[place]])
    left = [item for item in items if not _varies(item)]
    return chosen, Sequence(tuple, left) if left else None


def _varies(item: Value) -> bool:
    return isinstance(item, Number) and item.symbolic is not None and python_type(item) is int


def _extent(item: Value) -> int | None:
    """How many dimensions an item of a key is about, -1 for those that are left; None if that takes a closer look."""
    if isinstance(item, Number | Slice):
        return 1
    if isinstance(item, Tensor):
        return 1 if item.ghost.dtype in (torch.int64, torch.int32) else None
    if not isinstance(item, Constant) or isinstance(item.value, bool):
        return None
    return 0 if item.value is None else -1 if item.value is ... else 1 if isinstance(item.value, int) else None
