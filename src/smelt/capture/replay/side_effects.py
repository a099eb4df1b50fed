"""Writes of the captured code to objects from outside, as the last steps of a recipe: after the graph, before the rest.

While capture runs, a container from outside (a list, dict, set, cell, or an object's `__dict__`) is written to in its
value only. What the program did to it is the difference between that value and what was there at first; nobody can look
in between, so the difference is what is replayed, container by container in the order of their first writes.

    self.calls = self.calls + 1; seen.append(y)   →   self.__dict__.update(calls=4); seen.extend((output 0,))
"""

import functools
import itertools
import operator
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from smelt.capture.model.container_changes import keys_check, same_keys, unchanged
from smelt.capture.model.set_order import construction_of
from smelt.capture.model.values import Cell, Deque, LazyItem, Mapping, Sequence, Set, Slots, Value
from smelt.capture.replay.rebuild_functions import fill_cell
from smelt.capture.replay.reconstruct import Rebuilder, changed_set


def replay(
    build: Rebuilder, written: Iterable[Value], later: Iterable[tuple[Callable[..., None], Iterable[Value]]]
) -> None:
    """Add the steps that bring each written container to its final state, and calls that the program put off."""
    with build.replaying():
        for value in written:
            _WRITERS[type(value)](build, value)
        for function, args in later:
            build.step(function, *map(build.operand, args))


def cleared_grads(written: Iterable[Value]) -> list[Any]:
    """Leaves whose gradients the program dropped before it computed anything, and whose values nobody asked for: their
    memory is free while the graph runs, as it is in eager. Should the graph fail and Python take over, it finds them
    as the program had made them by then."""
    leaves = []
    for value in written:
        first = value.original.get("grad") if isinstance(value, Slots) and value.cleared and value.original else None
        if isinstance(first, LazyItem) and value.items["grad"] is not first and not first.source.collected:  # type: ignore[attr-defined]
            leaves.append(value.holder.value)  # type: ignore[attr-defined]
    return leaves


def _list(build: Rebuilder, value: Sequence | Deque) -> None:
    original, final = value.original or (), value.raw_items
    real = build.operand(value)
    kept = len(original)
    if len(final) >= kept and all(map(unchanged, original, final)):
        if len(final) > kept:
            build.step(_extend, real, *map(build.operand, final[kept:]))
        return
    assert value.length_guarded
    build.step(_refill_list if isinstance(value, Sequence) else _refill_deque, real, *map(build.operand, final))


_at_once: Callable[[Iterable[Any]], None] = deque[Any](maxlen=0).extend
"""Takes all of an iterator, whose parts are in C: an exception from outside comes before or after all of it."""


def _extend(real: Any, *items: Any) -> None:
    base: Any = list if isinstance(real, list) else deque  # a class of lists may have methods of its own
    base.extend(real, items)


def _refill_list(real: list[Any], *items: Any) -> None:
    list.__setitem__(real, slice(None), items)


def _refill_deque(real: Any, *items: Any) -> None:
    _at_once(map(operator.call, (real.clear, functools.partial(real.extend, items))))


def _mapping(build: Rebuilder, value: Mapping) -> None:
    original, final = value.original or {}, value.items
    real = build.operand(value)
    removed = tuple(key for key in original if key not in final)
    in_place = [key for key in original if key in final] + [key for key in final if key not in original]
    if any(key in final for key in value.taken):  # taken out and put back: it comes last, wherever it was
        assert value.source is not None
        value.source.checks["complete"] = keys_check(value, tuple(original))
    if not same_keys(in_place, list(final)):
        removed, changed = tuple(original), tuple(final)
    else:
        changed = tuple(key for key in final if key not in original or not unchanged(original[key], final[key]))

    if removed or changed:
        is_update = value.kind is dict and not removed  # as for objects whose attributes change
        write = _update_items if is_update else functools.partial(_write_items, value.kind, removed)
        build.by_keys(write, real, {key: final[key] for key in changed})


def _update_items(changed: tuple[Any, ...], real: Any, *items: Any) -> None:
    """`_write_items` into a dict, nothing removed: 4 times as fast."""
    dict.update(real, zip(changed, items, strict=True))


def _write_items(base: Any, removed: tuple[Any, ...], changed: tuple[Any, ...], real: Any, *items: Any) -> None:
    """By the methods of `base`: a class of dicts may have others."""
    taken_out = map(base.__delitem__, itertools.repeat(real), removed)
    _at_once(itertools.chain(taken_out, map(base.__setitem__, itertools.repeat(real), changed, items)))


def _slots(build: Rebuilder, value: Slots) -> None:
    original, final = value.original or {}, value.items
    removed = tuple(name for name in original if name not in final)
    changed = tuple(name for name in final if name not in original or not unchanged(original[name], final[name]))

    if removed or changed:
        write = functools.partial(_write_slots, removed, changed)
        build.step(write, build.operand(value.holder), *[build.operand(final[name]) for name in changed])


def _write_slots(removed: tuple[str, ...], changed: tuple[str, ...], real: Any, *items: Any) -> None:
    taken_out = map(object.__delattr__, itertools.repeat(real), removed)
    _at_once(itertools.chain(taken_out, map(object.__setattr__, itertools.repeat(real), changed, items)))


_WRITERS: dict[type, Callable[[Rebuilder, Any], object]] = {
    Sequence: _list,
    Deque: _list,
    Mapping: _mapping,
    Slots: _slots,
    Set: lambda build, value: changed_set(build, build.operand(value), construction_of(value.calls)[1]),
    Cell: lambda build, value: build.step(fill_cell, build.operand(value), build.operand(value.contents)),
}

WRITERS: frozenset[Callable[..., None]] = frozenset(
    {_extend, _refill_list, _refill_deque, _update_items, _write_items, _write_slots}
)
"""What changes an object from outside: the steps of recipes that do are these, or partials of them, and the object is
the first operand."""
