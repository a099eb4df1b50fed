"""Sets on values: made, changed and combined as Python does, with the calls that made them written down.

s.update(names)     items of `s` changed, `Call("update", …)` put after the calls that made it
"""

from collections.abc import Callable
from typing import Any

from smelt.capture.interpreter.dict_keys import item_key, key_value, sought_key
from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.interpreter.iterators import drain, each_item
from smelt.capture.model.breaks import Raised, Unsupported
from smelt.capture.model.reachable_values import reachable
from smelt.capture.model.set_order import ITSELF, NOTHING, Call, Items, changed, formed, given_in, made, remade
from smelt.capture.model.static import is_a
from smelt.capture.model.values import (
    Constant,
    DictView,
    Generator,
    Instance,
    Mapping,
    Object,
    Set,
    Value,
    ZippedIterator,
    describe,
)

_NONE = Constant(None)


def new_set(interp: Interpreter, kind: type, argument: Value | None = None) -> Value:
    """`set(argument)` or `frozenset(argument)`."""
    if kind is frozenset and isinstance(argument, Set) and argument.kind is frozenset:
        return argument
    return own_set(interp, kind, argument)


def own_set(interp: Interpreter, kind: type, argument: Value | None) -> Set:
    """A set that is the contents of an object of a class of sets: never one that was there before."""
    if argument is None:
        return Set(set(), kind, NOTHING if kind is set else Call("frozenset", ()), ordered=True)
    return _new(interp, kind, kind.__name__, [argument])


def set_of(interp: Interpreter, items: list[Value]) -> Set:
    """`{*items}`."""
    keys = tuple(item_key(interp, item) for item in items)
    return Set(set(keys), set, Call("set", (Items("tuple", keys),)), ordered=True)


def combined(interp: Interpreter, symbol: str, left: Value, right: Value) -> Set:
    """`left | right` and the like, of sets and of the keys of dicts."""
    kind = left.kind if isinstance(left, Set) and isinstance(right, Set) else set
    return _new(interp, kind, symbol, [left, right])


def derived(interp: Interpreter, name: str, receiver: Set, args: list[Value]) -> Value:
    """`receiver.union(*args)` and other methods that make a set."""
    if name == "copy" and receiver.kind is frozenset and not args:
        return receiver
    return _new(interp, receiver.kind, name, [receiver, *args])


def change(interp: Interpreter, name: str, receiver: Set, args: list[Value]) -> Value:
    """`receiver.update(*args)` and other methods that change a set by others."""
    args = [_held_set(interp, value) for value in args]
    if not any(map(_may_look, args)):
        itself = (receiver.items, ITSELF, True)
        _changed(interp, receiver, name, [itself if value is receiver else _argument(interp, value) for value in args])
    elif name in ("update", "difference_update"):
        for value in args:
            if _may_look(value):
                for item in each_item(interp, value):
                    change_item(interp, "add" if name == "update" else "discard", receiver, item)
            else:
                change(interp, name, receiver, [value])
    elif len(args) == 1:
        calls = receiver.calls
        keys = [item_key(interp, item) for item in drain(interp, args[0])]
        if receiver.calls is not calls:
            raise Unsupported("B002", f"set.{name} of what changes the set")
        _changed(interp, receiver, name, [(keys, Items("tuple", tuple(keys)), True)])
    else:
        raise Unsupported("B002", f"set.{name} of what may look at the set")
    return _NONE


def _may_look(value: Value) -> bool:
    """Whether code of the program runs for each item of an iterable: it sees the set as it is by then."""
    return isinstance(value, Generator | ZippedIterator | Instance | Object)


def _held_set(interp: Interpreter, value: Value) -> Value:
    """An object of a class of sets as C takes it: by what it holds, whatever its methods say."""
    if isinstance(value, Object) and is_a(value.value, set | frozenset):
        return interp.externals.contents(value) or value
    return value.contents if isinstance(value, Instance) and isinstance(value.contents, Set) else value


def is_disjoint(interp: Interpreter, ours: set[Any], value: Value) -> bool:
    """`ours.isdisjoint(value)`: asked no further than to the first that both hold."""
    return not _any_item(interp, value, lambda key: key in ours)


def is_superset(interp: Interpreter, ours: set[Any], value: Value) -> bool:
    """`ours.issuperset(value)`, in the same way."""
    return not _any_item(interp, value, lambda key: key not in ours)


def is_subset(interp: Interpreter, ours: set[Any], value: Value) -> bool:
    """`ours.issubset(value)`, for which Python makes a set of the value first."""
    value = _held_set(interp, value)
    items = value.items if isinstance(value, Set) else {item_key(interp, item) for item in drain(interp, value)}
    return ours <= items


def _any_item(interp: Interpreter, value: Value, holds: Callable[[Any], bool]) -> bool:
    value = _held_set(interp, value)
    if isinstance(value, Set):
        return any(map(holds, value.items))
    return any(holds(item_key(interp, item)) for item in each_item(interp, value))


def add_all(interp: Interpreter, receiver: Set, value: Value) -> None:
    """`{…, *value}`: into a set that nothing else sees yet."""
    _changed(interp, receiver, "update", [_argument(interp, value)])


def change_item(interp: Interpreter, name: str, receiver: Set, item: Value) -> Value:
    """`receiver.add(item)`, `discard`, `remove`."""
    key = item_key(interp, item) if name == "add" else sought_key(interp, item)
    if (key in receiver.items) is (name == "add"):
        return _NONE  # there already, or not there: nothing happens to the set
    _changed(interp, receiver, name, [(key, key, True)])
    return _NONE


def pop_item(interp: Interpreter, receiver: Set) -> Value:
    """`receiver.pop()`: the first that the set finds, as long as it was made as Python makes it."""
    if not receiver.items:
        raise Raised.of(KeyError("pop from an empty set"))
    if not receiver.ordered and len(receiver.items) > 1:
        raise Unsupported("B009", describe(receiver))
    interp.tree.rely_on_order(receiver.items)
    item = remade(receiver.calls).pop() if receiver.ordered else next(iter(receiver.items))
    _changed(interp, receiver, "pop", [])
    return key_value(interp, item)


def items_of_view(interp: Interpreter, value: Value) -> set[Any] | None:
    """What a set, or a view of a dict that acts as one, holds; None for anything else."""
    if isinstance(value, Set):
        return set(value.items)
    if isinstance(value, DictView) and value.part != "values":
        return {item_key(interp, item) for item in drain(interp, value)}
    return None


def _is_needed(interp: Interpreter, external: Set) -> bool:
    """Whether a set is there that was made of the given one: it is made after the graph, when that has changed."""
    slots = [item for frame in interp.frames for item in (*frame.slots, *frame.stack, *frame.closure)]
    held = reachable((*slots, *interp.externals.written.values())).values()
    return any(isinstance(each, Set) and each is not external and external in given_in(each.calls) for each in held)


_Taken = tuple[Any, Any, bool]
"""An argument as capture has it, as it is written down, and whether capture has its items in Python's order."""


def _changed(interp: Interpreter, receiver: Set, name: str, taken: list[_Taken]) -> None:
    if receiver.was_read and _is_needed(interp, receiver):
        raise Unsupported("B005", describe(receiver))
    interp.before_set_mutation(receiver)
    try:
        changed(name, receiver.items, *[live for live, _, _ in taken])
    except TypeError as error:
        raise Raised.of(error) from error
    receiver.calls = Call(name, tuple(written for _, written, _ in taken), receiver.calls)
    receiver.ordered = receiver.ordered and all(ordered for _, _, ordered in taken)


def _new(interp: Interpreter, kind: type, name: str, args: list[Value]) -> Set:
    taken = [_argument(interp, value) for value in args]
    try:
        items = made(name, *[live for live, _, _ in taken])
    except TypeError as error:
        raise Raised.of(error) from error
    calls = Call(name, tuple(written for _, written, _ in taken))
    return Set(items, kind, calls, ordered=all(ordered for _, _, ordered in taken))


def _argument(interp: Interpreter, value: Value) -> _Taken:
    value = _held_set(interp, value)
    if isinstance(value, Set):
        value.was_read = value.source is not None
        return value.items, value.calls, value.ordered
    is_dict = isinstance(value, Mapping) and value.kind is dict and value.owner is None
    form = value.part if isinstance(value, DictView) and value.part != "values" else "dict" if is_dict else "tuple"
    keys = tuple(item_key(interp, item) for item in drain(interp, value))
    items = Items(form, keys)
    return formed(items.form, keys), items, True
