"""Iterators over known containers: made, advanced and drained without running Python.

for name, layer in zip(names, self.layers):   Joined(zip) over Iterator(names), Iterator(self.layers)
"""

from smelt.capture.attributes import attribute_now
from smelt.capture.breaks import Unsupported
from smelt.capture.interpret import Interpreter
from smelt.capture.values import (
    Constant,
    DictView,
    Generator,
    Instance,
    Iterator,
    Joined,
    Mapping,
    Object,
    Sequence,
    Set,
    Tensor,
    Value,
    describe,
)


def iterator(interp: Interpreter, value: Value) -> Value:
    """`iter(value)`. May answer `PUSHED` for a class with its own `__iter__`."""
    if isinstance(value, Iterator | Joined | Generator):
        return value
    if isinstance(value, Sequence):
        return Iterator(value, "forward")
    if isinstance(value, Mapping):
        interp.outside.complete(value)
        return Iterator(value, "keys")
    if isinstance(value, DictView):
        interp.outside.complete(value.mapping)
        return Iterator(value.mapping, value.part)
    if isinstance(value, Constant) and isinstance(value.value, range | str | bytes):
        return Iterator(value, "forward")
    if isinstance(value, Set) and len(value.items) < 2:
        return Iterator(Sequence(tuple, [Constant(item) for item in value.items]), "forward")
    if isinstance(value, Tensor):
        return Iterator(interp.tensor_call("call_method", "unbind", [value, Constant(0)]), "forward")
    if isinstance(value, Object | Instance):
        if isinstance(value, Object) and hasattr(type(value.value), "__next__"):
            return value
        method = attribute_now(interp, value, "__iter__")
        return interp.call(method, [])
    raise Unsupported("B009", describe(value))


def advance(interp: Interpreter, value: Value) -> Value | None:
    """The next item, or None when there is none left."""
    if isinstance(value, Iterator):
        item = _item_at(interp, value, value.position)
        if item is not None:
            interp.touch(value)
            value.position += 1
        return item
    if isinstance(value, Joined):
        return _advance_joined(interp, value)
    if isinstance(value, Generator):
        return _advance_generator(interp, value)
    raise Unsupported("B009", describe(value))


def _item_at(interp: Interpreter, value: Iterator, position: int) -> Value | None:
    over = value.over
    if isinstance(over, Sequence):
        if position >= len(over.items):
            return None
        at = position if value.part == "forward" else len(over.items) - 1 - position
        return interp.outside.force(over.items[at])
    if isinstance(over, Constant):
        if position >= len(over.value):
            return None
        return Constant(over.value[position if value.part == "forward" else len(over.value) - 1 - position])
    assert isinstance(over, Mapping)
    if position >= len(over.items):
        return None
    key = list(over.items)[position]
    if value.part == "keys":
        return key_value(interp, key)
    item = interp.outside.force(over.items[key])
    return item if value.part == "values" else Sequence(tuple, [key_value(interp, key), item])


def key_value(interp: Interpreter, key: object) -> Value:
    """The value of a dict key."""
    if isinstance(key, tuple):
        return Sequence(tuple, [key_value(interp, item) for item in key])
    return interp.outside.fixed(key)


def _advance_joined(interp: Interpreter, value: Joined) -> Value | None:
    items: list[Value] = []
    for number, part in enumerate(value.parts):
        item = advance(interp, part)
        if item is None:
            if value.strict and (number or any(advance(interp, other) is not None for other in value.parts[1:])):
                raise Unsupported("B019", "ValueError: zip() arguments differ in length")
            return None
        items.append(item)
    if value.kind is zip:
        return Sequence(tuple, list(items))
    if value.kind is enumerate:
        interp.touch(value)
        value.position += 1
        return Sequence(tuple, [Constant(value.position - 1), items[0]])
    assert value.function is not None
    return interp.now(interp.call(value.function, items))


def _advance_generator(interp: Interpreter, value: Generator) -> Value | None:
    if value.done:
        return None
    interp.touch(value)
    if value.frame.index > 0:
        value.frame.stack.append(Constant(None))  # what `next` sends in
    return interp.step_to_yield(value.frame)


def drain(interp: Interpreter, value: Value) -> list[Value]:
    """Everything an iterable yields."""
    if isinstance(value, Sequence):
        return list(interp.outside.items(value))
    source = interp.now(iterator(interp, value))
    found: list[Value] = []
    while (item := advance(interp, source)) is not None:
        found.append(item)
    return found
