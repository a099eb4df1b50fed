"""Sets on values: made, changed and combined as Python does, with the calls that made them written down.

    s.update(names)     items of `s` changed, `Call("update", …)` put after the calls that made it
"""

from typing import Any

from smelt.capture.interpreter.dict_keys import item_key, key_value
from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.interpreter.iterators import drain
from smelt.capture.model.breaks import Raised, Unsupported
from smelt.capture.model.set_order import ITSELF, NOTHING, Call, Items, changed, formed, made, remade
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
    if argument is None:
        return Set(set(), kind, NOTHING if kind is set else Call("frozenset", ()), ordered=True)
    if kind is frozenset and isinstance(argument, Set) and argument.kind is frozenset:
        return argument
    return _new(interp, kind, kind.__name__, [argument])


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
    if any(isinstance(value, Generator | ZippedIterator | Instance | Object) for value in args):
        raise Unsupported("B002", f"set.{name} of what may look at the set")
    itself = (receiver.items, ITSELF, True)
    _changed(interp, receiver, name, [itself if value is receiver else _argument(interp, value) for value in args])
    return _NONE


def add_all(interp: Interpreter, receiver: Set, value: Value) -> None:
    """`{…, *value}`: into a set that nothing else sees yet."""
    _changed(interp, receiver, "update", [_argument(interp, value)])


def change_item(interp: Interpreter, name: str, receiver: Set, item: Value) -> Value:
    """`receiver.add(item)`, `discard`, `remove`."""
    key = item_key(interp, item)
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


_Taken = tuple[Any, Any, bool]
"""An argument as capture has it, as it is written down, and whether capture has its items in Python's order."""


def _changed(interp: Interpreter, receiver: Set, name: str, taken: list[_Taken]) -> None:
    if receiver.was_read:  # what was made of it is made after the graph, when it would hold something else
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
    if isinstance(value, Set):
        if value.source is not None and value.calls.before is not None:
            raise Unsupported("B005", describe(value))
        value.was_read = value.source is not None
        return value.items, value.calls, value.ordered
    is_dict = isinstance(value, Mapping) and value.kind is dict and value.owner is None
    form = value.part if isinstance(value, DictView) and value.part != "values" else "dict" if is_dict else "tuple"
    keys = tuple(item_key(interp, item) for item in drain(interp, value))
    items = Items(form, keys)
    return formed(items.form, keys), items, True
