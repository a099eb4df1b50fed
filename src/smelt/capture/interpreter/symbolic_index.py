"""`x[i]` of a tensor by a number that differs from call to call.

    x[:, i]    →    select(x, 1, i)[:]          x[i] = y    →    select(x, 0, i)[...] = y

PyTorch's own indexing makes a constant of such a number, and so a graph for each.
"""

import operator
from typing import Any

import torch

from smelt.capture.interpreter.deferred_scalars import in_symbols, with_told
from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.model.values import Constant, Number, Sequence, Slice, Tensor, Value, python_type
from smelt.symbolic.symnode import surely_equal


def item_of(interp: Interpreter, tensor: Tensor, key: Value) -> Value:
    """`tensor[key]`."""
    if interp.indexes_by_tensors:
        indices = _tensors_in(interp, tensor, key)
        if indices is not None:
            return interp.tensor_call("call_function", torch.ops.aten.index.Tensor, [tensor, indices])
    if interp.externals.explores:
        held = _held_index(interp, tensor, key)
        if held is not None:
            part = interp.tensor_call("call_function", operator.getitem, [tensor, held[0]])
            return interp.tensor_call("call_method", "select", [part, Constant(held[1]), Constant(0)])
    if interp.tape.data_sizes is not None:
        key = _masks_as_positions(interp, tensor, with_told(interp, key))
    chosen, rest = _selected(interp, tensor, key)
    if rest is None:
        return chosen
    return interp.tensor_call("call_function", operator.getitem, [chosen, rest])


def _tensors_in(interp: Interpreter, tensor: Tensor, key: Value) -> Value | None:
    """The tensors of a key, integers among them; None if there is anything else in it."""
    several = isinstance(key, Sequence) and key.kind in (tuple, list)
    items = [interp.externals.force(item) for item in key.items] if several else [key]  # type: ignore[attr-defined]
    tensors: list[Value] = []
    for item in items:
        if isinstance(item, Constant) and python_type(item) in (int, bool):
            settings: dict[str, Value] = {"dtype": Constant(torch.int64), "device": Constant(tensor.fake.device)}
            item = interp.tensor_call("call_function", torch.tensor, [item], settings)
        if not isinstance(item, Tensor):
            return None
        tensors.append(item)
    return Sequence(list, tensors)


def set_item(interp: Interpreter, tensor: Tensor, key: Value, value: Value) -> None:
    """`tensor[key] = value`."""
    held = _held_index(interp, tensor, key) if interp.externals.explores else None
    if held is not None and (held[1] == 0 or isinstance(value, Constant)):
        interp.tensor_call("call_function", operator.setitem, [tensor, held[0], value])
        return
    key = with_told(interp, key) if interp.tape.data_sizes is not None else key
    if interp.tape.data_sizes is not None and isinstance(value, Tensor) and value.fake.dim():
        key = _masks_as_positions(interp, tensor, key)
    chosen, rest = _selected(interp, tensor, key)
    interp.tensor_call("call_function", operator.setitem, [chosen, Constant(...) if rest is None else rest, value])


def _masks_as_positions(interp: Interpreter, tensor: Tensor, key: Value) -> Value:
    """A key with the positions where masks are true in their place, as PyTorch itself takes them: where the masks fit,
    and so many elements as there will be are taken by a kernel."""
    several = isinstance(key, Sequence) and key.kind is tuple
    items = [interp.externals.force(item) for item in key.items] if several else [key]  # type: ignore[attr-defined]
    if not any(_is_mask(item) for item in items):
        return key
    positions: list[Value] = []
    dim = 0
    for item in items:
        if isinstance(item, Tensor) and _is_mask(item):
            fake = item.fake
            fits = fake.dim() and tensor.fake.dim() >= dim + fake.dim()
            if not fits or not all(map(surely_equal, fake.shape, tensor.fake.shape[dim:])):
                return key  # PyTorch says what is wrong
            positions += _found_once(interp, item)[1]
            dim += fake.dim()
            continue
        extent = _extent(item)
        if extent is None or extent == -1:
            return key  # where the next one is about takes a closer look
        positions.append(item)
        dim += extent
    return Sequence(tuple, positions)


def _found_once(interp: Interpreter, mask: Tensor) -> tuple[Value, list[Value]]:
    """`mask.nonzero()`, and its columns: a vector for each dimension of the mask. Once for all uses of it."""
    assert interp.tape.data_sizes is not None
    known = interp.tape.data_sizes.positions
    fake, version, entry = known.get(id(mask.fake), (None, 0, []))
    if fake is not mask.fake or version != mask.fake._version:
        places = interp.tensor_call("call_method", "nonzero", [mask])
        entry = places, _columns(interp, places, mask)
        known[id(mask.fake)] = mask.fake, mask.fake._version, entry
    return entry  # type: ignore[no-any-return]


def _columns(interp: Interpreter, places: Value, mask: Tensor) -> list[Value]:
    columns = map(Constant, range(mask.fake.dim()))
    return [interp.tensor_call("call_method", "select", [places, Constant(1), column]) for column in columns]


def where_true(interp: Interpreter, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """`torch.where(mask)` and `mask.nonzero()`, of as many rows as `x[mask]` has, where data tell how many; None of any
    other call."""
    mask = args[0] if len(args) == 1 and not kwargs else None
    if interp.tape.data_sizes is None or not isinstance(mask, Tensor) or not (_is_mask(mask) and mask.fake.dim()):
        return None
    if function not in (torch.where, torch.nonzero):
        return None
    places = interp.tensor_call("call_method", "clone", [_found_once(interp, mask)[0]])  # the program may write to it
    return Sequence(tuple, _columns(interp, places, mask)) if function is torch.where else places


def _is_mask(item: Value) -> bool:
    return isinstance(item, Tensor) and item.fake.dtype is torch.bool


def _selected(interp: Interpreter, tensor: Tensor, key: Value) -> tuple[Value, Value | None]:
    """The part of a tensor that varying indices name, and what is left of the key; None if that is nothing."""
    if interp.externals.explores:
        key = in_symbols(interp, key)
    several = isinstance(key, Sequence) and key.kind is tuple
    items = [interp.externals.force(item) for item in key.items] if several else [key]  # type: ignore[attr-defined]
    if not any(map(_varies, items)):
        return tensor, key
    extents = [_extent(item) for item in items]
    if None in extents or extents.count(-1) > 1:
        return tensor, key
    rest = tensor.fake.dim() - extents.count(1)  # what `...` stands for
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
        return 1 if item.fake.dtype in (torch.int64, torch.int32) else None
    if not isinstance(item, Constant) or isinstance(item.value, bool):
        return None
    return 0 if item.value is None else -1 if item.value is ... else 1 if isinstance(item.value, int) else None


def _held_index(interp: Interpreter, tensor: Tensor, key: Value) -> tuple[Value, int] | None:
    """A key of which one item is an integer in a tensor without dimensions, with that as a row of one integer, and the
    dimension of the result that it makes. PyTorch takes the integer out; export leaves it where it is."""
    several = isinstance(key, Sequence) and key.kind is tuple
    items = [interp.externals.force(item) for item in key.items] if several else [key]  # type: ignore[attr-defined]
    held = [place for place, item in enumerate(items) if isinstance(item, Tensor)]
    if len(held) != 1 or any(_extent(item) is None for item in items):
        return None
    index: Any = items[held[0]]
    if index.fake.dim() or not tensor.fake.dim():
        return None
    extents = [_extent(item) or 0 for item in items]
    rest = tensor.fake.dim() - extents.count(1)
    before = [_kept(item, rest) for item in items[: held[0]]]
    row = interp.tensor_call("call_method", "reshape", [index, Constant(1)])
    items[held[0]] = row
    return (Sequence(tuple, items) if several else row), sum(before)


def _kept(item: Value, rest: int) -> int:
    """How many dimensions an item of a key leaves in the result."""
    if isinstance(item, Slice) or (isinstance(item, Constant) and item.value is None):
        return 1
    return rest if _extent(item) == -1 else 0
