"""State that grows from call to call, as a cache of keys and values does: which sizes differ at the next call.

    self.keys = torch.cat([self.keys, new], 2)    keys: [2, 4, 0, 8], new: [2, 4, 7, 8]   →   7, in the first call
                                                  keys: [2, 4, s0, 8] left behind         →   keys.shape[2], in the next

A capture that leaves grown state behind is repeated with symbols for the inputs' sizes that the state grew by. Sizes
and numbers that a capture leaves behind in symbols are symbols in the next capture. Buffers that inputs are written
into count as grown: the next prompt has another length, and the next buffer may have another.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import fx

from smelt.capture.guards.dynamic_sizes import Growth, Sizes
from smelt.capture.interpreter.externals import Externals
from smelt.capture.model.container_changes import unchanged
from smelt.capture.model.source import Source
from smelt.capture.model.values import Constant, Instance, LazyItem, Mapping, Number, Sequence, Slots, Tensor
from smelt.capture.tape.tape import Tape
from smelt.symbolic.expressions import Expression
from smelt.symbolic.symnode import is_symbolic, meaning

_CONCATENATIONS = (torch.cat, torch.concat, torch.concatenate)
_MAX_VIEWS = 8  # between a concatenation and the tensor that is stored


class GrownState(Exception):
    """The captured code grows outside state, or, without `growth`, breaks the graph if it is captured accordingly."""

    def __init__(self, growth: Growth | None) -> None:
        self.growth = growth


class _Stored(NamedTuple):
    """A value that captured code stores in an outside object, and the value that was there before."""

    source: Source
    before: Any
    after: Any


def growth_of(externals: Externals, tape: Tape) -> Growth:
    """How the captured code grew outside tensors, where sizes are plain numbers of at least 2, and what it counted."""
    by_node: dict[fx.Node, Tensor] | None = None
    places: dict[str, int] = {}
    sizes: set[int] = set()
    for source, before, after in _stored_values(externals):
        if isinstance(after, Constant):
            if isinstance(before, Number) and type(before.known) is int and before.known != _known(after):
                places[source.place] = 0
        elif isinstance(before, Tensor):
            growth = _difference(before, after)
            if growth is not None:
                dim, size = growth
                places[source.place] = dim
                sizes |= {size, before.fake.shape[dim], after.fake.shape[dim]}
        else:
            by_node = tape.values_by_node() if by_node is None else by_node
            appended = _appended_to_nothing(after.node, by_node)
            if type(appended) is int:
                sizes.add(appended)
    capacities = set()
    for written, capacity in _partial_writes(externals, tape):
        sizes |= {written, capacity}
        capacities.add(capacity)
    return Growth(places, frozenset(size for size in sizes if size > 1), frozenset(capacities))


def mark_open_state(externals: Externals, sizes: Sizes) -> None:
    """Sizes and numbers that are left behind in symbols will be others at the next call."""
    sizes.mark_grown()
    for source, before, after in _stored_values(externals):
        if isinstance(after, Tensor):
            if isinstance(before, Tensor):
                for dim in _different_sizes(before, after):
                    sizes.history.mark_state(source.place, dim)
            for dim, size in enumerate(after.fake.shape):
                if is_symbolic(size) and not _is_number(size):
                    sizes.history.mark_state(source.place, dim)
        elif isinstance(after, Number) and is_symbolic(after.symbolic):
            sizes.history.mark(source.place)


def _partial_writes(externals: Externals, tape: Tape) -> Iterator[tuple[int, int]]:
    """How many indices a buffer is written at that is left behind, and its size there, where both are plain numbers."""
    writes = [node for node in tape.graph.nodes if node.op == "call_method" and node.target == "index_copy_"]
    if not writes:
        return
    by_node = tape.values_by_node()
    kept = {after.node for _, _, after in _stored_values(externals) if isinstance(after, Tensor)}
    for node in writes:
        _, dim, indices = (*node.args, None, None)[:3]
        if type(dim) is int and node in kept and indices in by_node:
            capacity, written = by_node[node].fake.shape[dim], by_node[indices].fake.numel()
            if type(capacity) is int and type(written) is int and written > 1:
                yield written, capacity


def _is_number(size: Any) -> bool:
    """Whether a size is made of numbers of the program, not of sizes: it does not grow."""
    what = meaning(size)
    return isinstance(what, Expression) and all(
        isinstance(symbol.origin, tuple) and symbol.origin[1] == "number" for symbol in what.symbols()
    )


def _stored_values(externals: Externals) -> Iterator[_Stored]:
    for container in externals.written.values():
        if container.source is None or isinstance(container, Slots):
            continue
        if isinstance(container, Mapping):
            places, original = list(container.items.items()), container.original or {}
            befores = [original.get(key) for key, _ in places]
        elif isinstance(container, Sequence):
            places, items = list(enumerate(container.raw_items)), container.original or ()
            befores = [items[place] if place < len(items) else None for place, _ in places]
        else:
            continue
        for (key, after), before in zip(places, befores, strict=True):
            if after is not before and not (before is not None and unchanged(before, after)):
                source = before.source if isinstance(before, LazyItem) else _place_of(container, key)
                yield from _parts(source, _value_of(before), after)


def _place_of(container: Mapping | Sequence, key: Any) -> Source:
    assert container.source is not None
    return container.source.key(key) if isinstance(container, Mapping) else container.source.item(key)


def _value_of(before: Any) -> Any:
    return before.source.value if isinstance(before, LazyItem) else before


def _parts(source: Source, before: Any, after: Any) -> Iterator[_Stored]:
    """Tensors and numbers in a stored value: of a new object or sequence, those that it contains."""
    pending, seen = [_Stored(source, before, after)], set()
    while pending:
        stored = pending.pop()
        if id(stored.after) in seen:
            continue
        seen.add(id(stored.after))
        if isinstance(stored.after, Tensor | Constant):
            yield stored
        elif isinstance(stored.after, Sequence):
            items = stored.before.raw_items if isinstance(stored.before, Sequence) else ()
            for place, item in enumerate(stored.after.raw_items):
                earlier = _value_of(items[place]) if place < len(items) else None
                pending.append(_Stored(stored.source.item(place), earlier, item))
        elif type(stored.after) is Instance:
            members = stored.after.members.items.items()
            pending += [_Stored(stored.source.member(name), None, item) for name, item in members]


def _known(number: Constant) -> Any:
    """A number, without relying on it."""
    return number.known if isinstance(number, Number) else number.value


def _different_sizes(before: Tensor, after: Tensor) -> list[int]:
    """The dimensions in which sizes that are plain numbers differ."""
    old, new = before.fake.shape, after.fake.shape
    if len(old) != len(new) or not all(type(size) is int for size in (*old, *new)):
        return []
    return [dim for dim in range(len(old)) if old[dim] != new[dim]]


def _difference(before: Tensor, after: Tensor) -> tuple[int, int] | None:
    """The one dimension in which a tensor grew, and by how much."""
    old, new = before.fake.shape, after.fake.shape
    dims = _different_sizes(before, after)
    if len(dims) != 1 or not 1 < old[dims[0]] < new[dims[0]]:
        return None
    return dims[0], new[dims[0]] - old[dims[0]]


def _appended_to_nothing(node: fx.Node, by_node: dict[fx.Node, Tensor]) -> Any:
    """The size of what was concatenated with an empty tensor, if the node is that or a part of it; else None."""
    for _ in range(_MAX_VIEWS):
        if node.op not in ("call_function", "call_method") or not node.args:
            return None
        if node.target in _CONCATENATIONS:
            return _size_appended(node, by_node)
        if not isinstance(node.args[0], fx.Node):
            return None
        node = node.args[0]
    return None


def _size_appended(node: fx.Node, by_node: dict[fx.Node, Tensor]) -> Any:
    operands = node.args[0]
    dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0)
    if not isinstance(operands, tuple | list) or type(dim) is not int or node not in by_node:
        return None
    is_empty = [isinstance(each, fx.Node) and each in by_node and 0 in by_node[each].fake.shape for each in operands]
    return by_node[node].fake.shape[dim] if any(is_empty) else None
