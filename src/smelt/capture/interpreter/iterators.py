"""Iterators over known containers: made, advanced and drained without running Python.

for name, layer in zip(names, self.layers):   Joined(zip) over Iterator(names), Iterator(self.layers)
"""

import functools
import itertools
import types
from collections import OrderedDict
from collections.abc import Iterator as IteratorABC
from typing import Any

from smelt.capture.interpreter.dict_keys import key_value
from smelt.capture.interpreter.enums import is_enum, members_of
from smelt.capture.interpreter.exceptions import stop_iteration
from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.interpreter.replaced_methods import rely_on_own
from smelt.capture.interpreter.special_methods import ask, ask_length_hint, lacking, refused, special
from smelt.capture.model.breaks import Raised, Unsupported
from smelt.capture.model.bytecode import VERSION
from smelt.capture.model.container_changes import same_keys
from smelt.capture.model.open_numbers import OpenRange
from smelt.capture.model.paused_iterators import CHANGED, PausedIterator, PausedZip
from smelt.capture.model.set_order import GIVEN, Call, made_of_given, remade
from smelt.capture.model.source import predicate
from smelt.capture.model.static import ABSENT, is_a
from smelt.capture.model.values import (
    Constant,
    Deque,
    DictView,
    ExceptionValue,
    Generator,
    Instance,
    Iterator,
    Mapping,
    Object,
    Sequence,
    Set,
    Tensor,
    Value,
    ZippedIterator,
    behind,
    describe,
    python_type,
)
from smelt.capture.polyfills.library import by_place


def iterator(interp: Interpreter, value: Value) -> Value:
    """`iter(value)`."""
    value = behind(value)
    if isinstance(value, Iterator | ZippedIterator | Generator) or python_type(value) is OpenRange:
        return value
    if isinstance(value, Sequence):
        return Iterator(value, "forward")
    if isinstance(value, Deque):
        return Iterator(value, "forward", size=value.changes)
    if isinstance(value, Mapping):
        interp.externals.complete(value)
        return Iterator(value, "keys", size=len(value.items), removals=value.removals)
    if isinstance(value, DictView):
        mapping = value.mapping
        interp.externals.complete(mapping)
        return Iterator(mapping, value.part, size=len(mapping.items), removals=mapping.removals)
    if isinstance(value, Constant) and is_a(value.value, range | str | bytes):
        return Iterator(value, "forward")
    if isinstance(value, Set):
        keys = items_in_order(interp, value)
        return Iterator(value, "set", size=len(keys), keys=keys, calls=value.calls)
    if isinstance(value, Tensor):
        rely_on_own(interp, value, "__iter__")
        return Iterator(interp.tensor_call("call_method", "unbind", [value, Constant(0)]), "forward")
    if is_enum(value):
        return Iterator(Sequence(tuple, members_of(interp, value, "__iter__")), "forward")
    if isinstance(value, Object | Instance):
        return _own_iterator(interp, value)
    if isinstance(value, Constant):
        interp.compute(iter, value.value)  # raises as Python would
    raise lacking(value, "__iter__", Unsupported("B009", describe(value)))


def items_in_order(interp: Interpreter, value: Set) -> list[Any]:
    """The items of a set as it yields them, which is relied on of one from outside."""
    interp.tree.rely_on_order(value.items)
    if value.ordered or len(value.items) < 2:
        return list(value.items)
    if value.source is not None and value.calls.before is None and value.calls.name == "given":
        has_order = functools.partial(_yields, value.order)
        value.source.check(predicate(has_order, "yielding its items in the order it had"))
        return list(value.order)
    general = made_of_given(value.calls) if value.source is None and interp.is_plain(value) else None
    if general is None:
        raise Unsupported("B009", describe(value))
    calls, external = general
    order = tuple(remade(calls, {GIVEN: external.real}))
    makes_order = functools.partial(_makes, calls, order)
    external.source.check(predicate(makes_order, "making a set whose items are in the order they had"))
    interp.tree.why_not_persist = "the order of a set made of another"
    return list(order)


def _yields(order: tuple[Any, ...], real: Any) -> bool:
    base: Any = set if is_a(real, set) else frozenset
    return same_keys(tuple(base.__iter__(real)), order)


def _makes(call: Call, order: tuple[Any, ...], real: Any) -> bool:
    return same_keys(tuple(remade(call, {GIVEN: real})), order)


def _own_iterator(interp: Interpreter, value: Instance | Object) -> Value:
    """What `__iter__` of a class answers, which must be an iterator."""
    kind: Any = python_type(value)
    own = interp.tree.class_attribute(kind, "__next__"), interp.tree.class_attribute(kind, "__iter__")
    both = all(each is not ABSENT for each in own)
    if isinstance(value, Object) and both and not _is_python(interp, kind, "__iter__"):
        return value  # an iterator written in C, or `loops.PausedIterator`
    if special(interp, value, "__iter__") is None and special(interp, value, "__getitem__") is not None:
        return interp.now(interp.call(interp.externals.fixed(by_place), [value]))
    if special(interp, value, "__iter__") is None:
        raise lacking(value, "__iter__")
    answer = ask(interp, value, "__iter__")
    if isinstance(answer, Iterator | ZippedIterator | Generator):
        return answer
    kind = python_type(answer)
    if kind is None or interp.tree.class_attribute(kind, "__next__") is ABSENT:
        raise refused(value, "__iter__", answer)
    return answer


def _is_python(interp: Interpreter, kind: Any, name: str) -> bool:
    method = interp.tree.class_attribute(kind, name)
    return isinstance(method, types.FunctionType) and kind not in (PausedIterator, PausedZip)


def advance(interp: Interpreter, value: Value) -> Value | None:
    """The next item, or None when there is none left."""
    if isinstance(value, Iterator):
        item = None if value.done else _item_at(interp, value, value.position)
        if not value.done:
            interp.before_mutation(value)
            value.position += item is not None
            value.done = item is None and not isinstance(value.over, Deque)
        return item
    if isinstance(value, ZippedIterator):
        return _advance_joined(interp, value)
    if isinstance(value, Generator):
        return _advance_generator(interp, value)
    if python_type(value) is OpenRange:
        raise Unsupported("B009", "a range of open numbers, other than by a for loop")
    if isinstance(value, Instance | Object):
        return _advance_own(interp, value)
    raise Unsupported("B009", describe(value))


def _advance_own(interp: Interpreter, value: Instance | Object) -> Value | None:
    """The next item of an object whose class defines `__next__`."""
    kind = python_type(value)
    if kind in (PausedIterator, PausedZip):
        raise Unsupported("B023")
    method = interp.tree.class_attribute(kind, "__next__") if kind is not None else None
    if not isinstance(method, types.FunctionType):
        raise Unsupported("B009", describe(value))
    try:
        return interp.now(interp.call(interp.externals.fixed(method), [value]))
    except Raised as raised:
        if not issubclass(interp.failure_kind(raised), StopIteration):
            raise
        raised.bare()
        return None


def _item_at(interp: Interpreter, value: Iterator, position: int) -> Value | None:
    over = value.over
    if isinstance(over, Set):
        return _item_of_set(interp, value, over, position)
    if isinstance(over, Deque) and over.changes != value.size:
        raise Raised.of(RuntimeError("deque mutated during iteration"))
    if value.watched is not None:
        _check_unchanged(interp, value, value.watched)
    if isinstance(over, Sequence | Deque):
        if position >= len(over.items):
            return None
        at = position if value.part == "forward" else len(over.items) - 1 - position
        return interp.externals.force(over.items[at])
    if isinstance(over, Constant):
        if position >= len(over.value):
            return None
        return Constant(over.value[position if value.part == "forward" else len(over.value) - 1 - position])
    assert isinstance(over, Mapping)
    _check_unchanged(interp, value, over)
    if position >= len(over.items):
        return None
    key = _key_at(value, over, position)
    if value.part == "keys":
        return key_value(interp, key)
    item = interp.externals.force(over.items[key])
    return item if value.part == "values" else Sequence(tuple, [key_value(interp, key), item])


def _check_unchanged(interp: Interpreter, value: Iterator, over: Mapping) -> None:
    """Raise what Python raises where the keys of a dict have changed since the loop began."""
    ordered = over.kind is OrderedDict
    if value.size in (None, len(over.items)) and value.removals == over.removals:
        return
    if value.size == len(over.items) and not ordered:  # by where in its memory the keys are
        raise Unsupported("B009", "a dict whose keys changed since the loop began")
    interp.before_mutation(value)
    value.size = -1  # it stays in that state
    raise Raised.of(RuntimeError(CHANGED[OrderedDict if ordered else dict]))


def length_hint(interp: Interpreter, value: Iterator) -> int:
    """How many items an iterator has left, as it says itself."""
    over = value.over
    count = len(over.value) if isinstance(over, Constant) else len(over.items)  # type: ignore[attr-defined]
    changed = value.size not in (None, over.changes if isinstance(over, Deque) else count)
    return 0 if value.done or changed else max(0, count - value.position)


def _item_of_set(interp: Interpreter, value: Iterator, over: Set, position: int) -> Value | None:
    if len(over.items) != value.size:
        interp.before_mutation(value)
        value.size = -1  # it stays in that state
        raise Raised.of(RuntimeError("Set changed size during iteration"))
    if over.calls is not value.calls:
        raise Unsupported("B009", "a set that changed since the loop began")
    return key_value(interp, value.keys[position]) if position < len(value.keys) else None


def _key_at(value: Iterator, over: Mapping, position: int) -> Any:
    """The key at a position. Those of a dict that does not change are listed once, not for every step of a loop."""
    keys = value.keys
    if len(keys) != len(over.items) or keys[position] not in over.items or next(reversed(over.items)) is not keys[-1]:
        keys = value.keys = list(over.items)
    return keys[position]


def _advance_joined(interp: Interpreter, value: ZippedIterator) -> Value | None:
    if not value.parts:
        return None  # `zip()`
    items: list[Value] = []
    for number, part in enumerate(value.parts):
        item = advance(interp, part)
        if item is None:
            if value.strict:
                _check_strict(interp, value, number)
            return None
        items.append(item)
    if value.kind is zip:
        return Sequence(tuple, list(items))
    if value.kind is enumerate:
        interp.before_mutation(value)
        value.position += 1
        return Sequence(tuple, [Constant(value.position - 1), items[0]])
    assert value.function is not None
    return interp.now(interp.call(value.function, items))


def _check_strict(interp: Interpreter, value: ZippedIterator, ended_at: int) -> None:
    """`zip(strict=True)`: the part at `ended_at` is at its end; the first may only be if all the others are too."""
    word, number = ("shorter", ended_at) if ended_at else ("longer", 1)
    if not ended_at:
        while number < len(value.parts) and advance(interp, value.parts[number]) is None:
            number += 1
        if number == len(value.parts):
            return
    others = "argument 1" if number == 1 else f"arguments 1-{number}"
    raise Raised.of(ValueError(f"zip() argument {number + 1} is {word} than {others}"))


def _advance_generator(interp: Interpreter, value: Generator, sent: Value | None = None) -> Value | None:
    if value.done:
        return None
    interp.before_mutation(value)
    if value.frame.index > 0:
        value.frame.stack.append(sent or Constant(None))  # what `next` sends in
    return interp.step_to_yield(value.frame)


def send(interp: Interpreter, sent: Value, value: Value) -> Value | None:
    """One step of `yield from value`; None at its end."""
    if isinstance(value, Generator):
        return _advance_generator(interp, value, sent)
    if not (isinstance(sent, Constant) and sent.value is None):
        raise Unsupported("B002", "generator.send through yield from")
    return advance(interp, value)


_ARGUMENTS = {"__iter__": 0, "__next__": 0, "send": 1, "close": 0}


def generator_method(interp: Interpreter, name: str, value: Generator, args: list[Value]) -> Value:
    """`next`, `send`, `throw` and `close` of a generator."""
    if len(args) != _ARGUMENTS.get(name, len(args)):
        raise Unsupported("B019", f"TypeError: generator.{name} with {len(args)} arguments")
    if name == "__iter__":
        return value
    if name == "throw" and args:
        return _result(_throw(interp, value, _thrown(interp, args)), value)
    if name == "close" and not args:
        return _close(interp, value)
    if name not in ("send", "__next__"):
        raise Unsupported("B002", f"generator.{name}")
    fresh = value.frame.index == 0
    if args and fresh and not (isinstance(args[0], Constant) and args[0].value is None):
        raise Raised.of(TypeError("can't send non-None value to a just-started generator"))
    return _result(_advance_generator(interp, value, args[0] if args else None), value)


def _result(item: Value | None, value: Generator) -> Value:
    if item is None:
        raise ended(value)
    return item


def ended(value: Value) -> Raised:
    """StopIteration with what a generator returned, the first time it is asked."""
    if not isinstance(value, Generator):
        return stop_iteration(None)
    result, value.result = value.result, None
    return stop_iteration(result)


def _thrown(interp: Interpreter, args: list[Value]) -> Raised:
    """`throw(error)`, or as it was once written: `throw(type, error, traceback)`."""
    error = args[0]
    if len(args) > 1 and isinstance(args[1], ExceptionValue):
        error = args[1]
    if isinstance(error, Object) and is_a(error.value, type) and len(args) == 1:
        error = interp.now(interp.call(error, []))
    if not isinstance(error, ExceptionValue):
        raise Unsupported("B002", f"generator.throw of {describe(error)}")
    return Raised(error, describe(error))


def _throw(interp: Interpreter, value: Generator, thrown: Raised) -> Value | None:
    frame = value.frame
    thrown.chained = value.done or frame.index == 0  # nothing is handled there
    if value.done:
        raise thrown
    if frame.index == 0:
        interp.before_mutation(value)
        value.done = True
        thrown.places.append((frame.function, frame.info, frame.info.instructions[0]))
        raise thrown
    if not is_delegating(value):
        return _throw_here(interp, value, thrown)
    inner = frame.stack[-1]
    if issubclass(interp.failure_kind(thrown), GeneratorExit):
        _close_inner(interp, inner)
    elif isinstance(inner, Generator):
        try:
            item = _throw(interp, inner, thrown)
        except Raised as raised:
            return _after_inner(interp, value, interp.passed_on(raised))
        return item if item is not None else _after_inner(interp, value, ended(inner))
    elif not isinstance(inner, Iterator | ZippedIterator):
        raise Unsupported("B002", "generator.throw inside yield from")
    return _throw_here(interp, value, thrown)


def _after_inner(interp: Interpreter, value: Generator, raised: Raised) -> Value | None:
    """Go on behind a `yield from` whose iterator raised when something was thrown into it: StopIteration is its end."""
    if VERSION >= (3, 12):  # where an instruction does so
        return _throw_here(interp, value, raised)
    interp.before_mutation(value)
    frame = value.frame
    frame.stack.pop()
    frame.jump(frame.info.instructions[frame.index - 2].target)
    if interp.failure_kind(raised) is not StopIteration:
        return _throw_here(interp, value, raised)
    error = interp.failure(raised)
    assert isinstance(error, ExceptionValue)
    frame.stack.append(error.details["value"])
    return interp.step_to_yield(frame)


def _close_inner(interp: Interpreter, inner: Value) -> None:
    """Before a generator ends inside `yield from`, what it takes its items from is closed."""
    if isinstance(inner, Generator):
        _close(interp, inner)
    elif not isinstance(inner, Iterator | ZippedIterator):
        raise Unsupported("B002", "generator.close inside yield from")


def is_delegating(value: Generator) -> bool:
    """Whether a generator stands inside `yield from`."""
    frame = value.frame
    return bool(frame.instruction.arg & 3 > 1 and frame.instruction.name == "NOP")


def _throw_here(interp: Interpreter, value: Generator, thrown: Raised) -> Value | None:
    frame = value.frame
    interp.before_mutation(value)
    frame.stack.append(Constant(None))
    return interp.step_to_yield(frame, thrown)


def finishes_without_effects(interp: Interpreter, value: Generator) -> bool:
    """Whether nobody could tell that Python closes a generator when the last reference to it goes."""
    return value.done or value.frame.index == 0 or interp.has_no_side_effects(lambda: _close(interp, value))


def _close(interp: Interpreter, value: Generator) -> Value:
    interp.before_mutation(value)
    if value.frame.index == 0:
        value.done = True
    if value.done:
        return Constant(None)
    if is_delegating(value):
        _close_inner(interp, value.frame.stack[-1])
    try:
        item = _throw_here(interp, value, Raised.of(GeneratorExit()))
    except Raised as raised:
        if not issubclass(interp.failure_kind(raised), GeneratorExit | StopIteration):
            raise
        raised.bare()
        return Constant(None)
    if item is not None:
        raise Raised.of(RuntimeError("generator ignored GeneratorExit"))
    return Constant(None)


def drain(interp: Interpreter, value: Value, into: list[Any] | None = None, *, hinted: bool = False) -> list[Value]:
    """Everything an iterable yields, put `into` a list as it comes: what came before an exception stays there.

    Where Python makes a list or tuple of it, it asks how long it will be (`hinted`)."""
    items: list[Value] = [] if into is None else into
    if isinstance(value, Sequence):
        items.extend(interp.externals.items(value))
        return items
    source = interp.now(iterator(interp, value))
    if hinted:
        ask_length_hint(interp, value)
    while (item := advance(interp, source)) is not None:
        items.append(item)
    return items


def taken(interp: Interpreter, value: Value, most: int) -> list[Value]:
    """The first items of an iterable, no more than `most`: whoever takes it apart looks no further."""
    if isinstance(value, Sequence):
        return interp.externals.items(value)
    return list(itertools.islice(each_item(interp, value), most))


def each_item(interp: Interpreter, value: Value) -> IteratorABC[Value]:
    """What an iterable yields, one after the other: who asks no further has asked it no further."""
    source = interp.now(iterator(interp, value))
    while (item := advance(interp, source)) is not None:
        yield item
