"""Methods of `collections.deque`, on values.

history.append(y)      →  the value has one item more; from outside, the real one is extended when the graph has run

A deque that is only appended to may have any length, as a list may: nobody looks at it, and the real one drops what is
over its `maxlen` itself.
"""

from collections.abc import Callable

from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.interpreter.iterators import drain, iterator
from smelt.capture.interpreter.operators import contains, subscript
from smelt.capture.model.breaks import Raised, Unsupported
from smelt.capture.model.values import Constant, Deque, Sequence, Value

Method = Callable[[Interpreter, Deque, list[Value]], Value]
_NONE = Constant(None)


def make_deque(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`deque(iterable, maxlen)`."""
    by_name = dict(zip(("iterable", "maxlen"), args, strict=False)) | kwargs
    if len(args) > 2 or len(by_name) != len(args) + len(kwargs) or set(by_name) - {"iterable", "maxlen"}:
        raise Unsupported("B019", "TypeError: deque() takes an iterable and a maxlen")
    maxlen = interp.plain(by_name["maxlen"]) if "maxlen" in by_name else None
    if maxlen is not None and (type(maxlen) is not int or maxlen < 0):
        raise Unsupported("B019", "ValueError: maxlen must be non-negative")
    return Deque(drain(interp, by_name["iterable"]) if "iterable" in by_name else [], maxlen)


def deque_method(interp: Interpreter, name: str, receiver: Deque, args: list[Value]) -> Value | None:
    """The answer of `receiver.name(*args)`, or None if it is not one of these."""
    handler, count = _METHODS.get(name, (None, 0))
    if handler is None or len(args) != count:
        if name != "rotate" or args:
            return None
        handler, args = _rotate, [Constant(1)]
    return handler(interp, receiver, args)


def _change(interp: Interpreter, receiver: Deque) -> None:
    interp.before_mutation(receiver)
    receiver.changes += 1


def _append(interp: Interpreter, receiver: Deque, args: list[Value]) -> Value:
    interp.before_append(receiver)
    receiver.changes += 1
    receiver.raw_items.append(args[0])
    return _NONE


def _append_left(interp: Interpreter, receiver: Deque, args: list[Value]) -> Value:
    _change(interp, receiver)
    receiver.items.insert(0, args[0])
    if receiver.maxlen is not None:
        del receiver.raw_items[receiver.maxlen :]
    return _NONE


def _extend(interp: Interpreter, receiver: Deque, args: list[Value]) -> Value:
    for item in _given(interp, receiver, args[0]):
        _append(interp, receiver, [item])
    return _NONE


def _extend_left(interp: Interpreter, receiver: Deque, args: list[Value]) -> Value:
    for item in _given(interp, receiver, args[0]):
        _append_left(interp, receiver, [item])
    return _NONE


def _given(interp: Interpreter, receiver: Deque, value: Value) -> list[Value]:
    if not isinstance(value, Sequence | Deque):
        raise Unsupported("B002", "deque.extend of anything but a list, tuple or deque")  # it may look at the deque
    return drain(interp, value)


def _pop(last: bool) -> Method:
    def pop(interp: Interpreter, receiver: Deque, args: list[Value]) -> Value:
        if not receiver.items:
            raise Raised.of(IndexError("pop from an empty deque"))
        _change(interp, receiver)
        return interp.externals.force(receiver.items.pop(-1 if last else 0))

    return pop


def _rotate(interp: Interpreter, receiver: Deque, args: list[Value]) -> Value:
    places = interp.plain(args[0])
    if type(places) is not int:
        raise Unsupported("B002", "deque.rotate by anything but an int")
    items = receiver.items
    if len(items) > 1:
        _change(interp, receiver)
        at = -places % len(items)
        receiver.raw_items = items[at:] + items[:at]
    return _NONE


def _clear(interp: Interpreter, receiver: Deque, args: list[Value]) -> Value:
    if receiver.items:
        _change(interp, receiver)
        receiver.items.clear()
    return _NONE


def _reverse(interp: Interpreter, receiver: Deque, args: list[Value]) -> Value:
    interp.before_mutation(receiver)
    receiver.items.reverse()
    return _NONE


_METHODS: dict[str, tuple[Method, int]] = {
    "append": (_append, 1),
    "appendleft": (_append_left, 1),
    "extend": (_extend, 1),
    "extendleft": (_extend_left, 1),
    "pop": (_pop(True), 0),
    "popleft": (_pop(False), 0),
    "rotate": (_rotate, 1),
    "clear": (_clear, 0),
    "reverse": (_reverse, 0),
    "copy": (lambda interp, receiver, args: Deque(drain(interp, receiver), receiver.maxlen), 0),
    "__getitem__": (lambda interp, receiver, args: subscript(interp, receiver, args[0]), 1),
    "__contains__": (lambda interp, receiver, args: Constant(contains(interp, receiver, args[0])), 1),
    "__len__": (lambda interp, receiver, args: Constant(len(receiver.items)), 0),
    "__iter__": (lambda interp, receiver, args: iterator(interp, receiver), 0),
}
