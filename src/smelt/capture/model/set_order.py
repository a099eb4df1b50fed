"""The order of sets: the calls that made a set, so that one made by them again yields its items in the same order.

A set yields its items by their hashes, by the size of its table and by what was in it before: two equal sets may yield
them in two orders. A `Set` therefore holds the calls that made it beside its items, and what is made of it after the
graph has run goes through the same calls.

    s = set(names)                Call("set", (Items(names),))
    s.add(7)                      Call("add", (7,), before=↑)
    t = s | {1}                   Call("|", (↑, Call("set", …)))
"""

import operator
from collections.abc import Callable
from typing import Any

from smelt.base.fast_dataclass import dataclass

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "|": operator.or_,
    "&": operator.and_,
    "-": operator.sub,
    "^": operator.xor,
}


@dataclass(frozen=True, slots=True)
class Items:
    """What is no set, as a call on sets takes it: Python fills a set from a dict otherwise than from a list."""

    form: str
    """ "tuple", "dict", "keys", or "items" of a dict. """
    keys: tuple[Any, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One call that made a set, or that changed the one that the calls `before` it made.

    Its arguments are items, `Items`, and other sets as they were then: their calls.
    """

    name: str
    args: tuple[Any, ...]
    before: "Call | None" = None


NOTHING = Call("set", ())
"""What makes an empty set. One from outside begins with `Call("given", (the Set,))`, one of the code's
constants with `Call("constant", (it,))`."""
ITSELF = Call("itself", ())
"""As an argument: the set that is changed, of which Python asks whether it is the same."""


def construction_of(call: Call) -> tuple[Call, list[Call]]:
    """The call that made a set, and those that changed it since, in order."""
    changes = []
    while call.before is not None:
        changes.append(call)
        call = call.before
    return call, changes[::-1]


def formed(form: str, keys: tuple[Any, ...]) -> Any:
    """The argument that `Items` stand for."""
    if form == "tuple":
        return keys
    if form == "items":
        return dict(keys).items()
    return dict.fromkeys(keys) if form == "dict" else dict.fromkeys(keys).keys()


def made(name: str, *args: Any) -> Any:
    """A new set: "set" or "frozenset" of an iterable, an operator, or a method of the first argument."""
    if name in ("set", "frozenset"):
        return (set if name == "set" else frozenset)(*args)
    if name in OPERATORS:
        return OPERATORS[name](*args)
    return getattr(set if isinstance(args[0], set) else frozenset, name)(*args)  # a class of sets may have others


GIVEN = Call("given", ())
"""In the calls of `made_of_given`: the set from outside, whichever it is."""


def given_in(call: Call) -> list[Any]:
    """The sets from outside that a set was made of."""
    first, changes = construction_of(call)
    if first.name == "given":
        return list(first.args)
    inside = [arg for each in (first, *changes) for arg in each.args if isinstance(arg, Call)]
    return [external for each in inside for external in given_in(each)]


def made_of_given(call: Call) -> "tuple[Call, Any] | None":
    """The calls that made a set out of a set from outside, with `GIVEN` for that, and the `Set` that it is; None if
    there are several, or if the calls change the set itself."""

    known: dict[Call, Call] = {ITSELF: ITSELF}

    def general(each: Call) -> Call:
        if each.name == "given":
            return GIVEN
        if each not in known:  # a set that is there twice is one: Python asks for that
            args = tuple(general(arg) if isinstance(arg, Call) else arg for arg in each.args)
            known[each] = Call(each.name, args, None if each.before is None else general(each.before))
        return known[each]

    sets = {id(external): external for external in given_in(call)}
    if len(sets) != 1 or _changes_given(call):
        return None
    return general(call), next(iter(sets.values()))


def _changes_given(call: Call) -> bool:
    first, changes = construction_of(call)
    if first.name == "given":
        return bool(changes)
    return any(_changes_given(arg) for each in (first, *changes) for arg in each.args if isinstance(arg, Call))


def changed(name: str, real: set[Any], *args: Any) -> set[Any]:
    """The set, after a call that changes it."""
    getattr(set, name)(real, *args)
    return real


def remade(call: Call, known: "dict[Call, Any] | None" = None) -> Any:
    """The set or frozenset of items that the calls up to `call` come to."""
    known = {} if known is None else known

    def argument(arg: Any) -> Any:
        if isinstance(arg, Items):
            return formed(arg.form, arg.keys)
        if not isinstance(arg, Call):
            return arg
        if arg not in known:  # never changed: each set that is changed is made for itself
            known[arg] = remade(arg, known)
        return known[arg]

    first, changes = construction_of(call)
    if first.name == "constant":
        items = first.args[0]
    elif first.name == "given":
        items = first.args[0].kind(first.args[0].original)
    else:
        items = made(first.name, *map(argument, first.args))
    for each in changes:
        changed(each.name, items, *[items if arg is ITSELF else argument(arg) for arg in each.args])
    return items
