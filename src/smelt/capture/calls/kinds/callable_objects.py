"""Calls of objects: `functools.partial`, weak references, getters of `operator`, and what has a `__call__`."""

import functools
import operator
import types
import weakref

from smelt.capture.interpreter.attributes import attribute_now
from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.interpreter.operators import subscript
from smelt.capture.model.breaks import Unsupported
from smelt.capture.model.reachable_values import reachable
from smelt.capture.model.source import predicate
from smelt.capture.model.values import LazyItem, Mapping, Object, Sequence, Value, WeakReference, describe
from smelt.capture.polyfills.library import scripted

_SCRIPTED = "_torchdynamo_inline"  # where TorchScript keeps the function that was scripted


def call_instance(interp: Interpreter, function: Object, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """An object whose class defines `__call__`."""
    method = interp.tree.class_attribute(type(function.value), "__call__")
    if not isinstance(method, types.FunctionType):
        raise Unsupported("B002", describe(function))
    return interp.call(interp.externals.fixed(method), [function, *args], kwargs)


def call_scripted(interp: Interpreter, function: Object, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """What TorchScript made of a function: the function is called."""
    inner = getattr(function.value, _SCRIPTED, None)
    if not isinstance(inner, types.FunctionType):
        return None
    interp.externals.guard_identity(function)
    original = interp.externals.fixed(inner)
    if interp.tape.ambient.devices:
        return interp.call(interp.externals.fixed(scripted), [original, *args], kwargs)
    return interp.call(original, args, kwargs)


def call_partial(interp: Interpreter, function: Object, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """A `functools.partial` from outside."""
    real, source = function.value, function.source
    if source is None:
        return None
    inner = interp.externals.value(real.func, source.attribute("func"))
    before = interp.externals.value(real.args, source.attribute("args"))
    named = interp.externals.value(real.keywords, source.attribute("keywords"))
    assert isinstance(before, Sequence) and isinstance(named, Mapping)
    interp.externals.complete(named)
    merged = {name: interp.externals.force(item) for name, item in named.items.items()} | kwargs
    return interp.call(inner, [*interp.externals.items(before), *args], merged)


def target_of(interp: Interpreter, reference: WeakReference) -> Value:
    """What a weak reference that was made here leads to, as long as somebody holds that for certain."""
    target = reference.target
    slots = [item for frame in interp.frames for item in (*frame.slots, *frame.stack, *frame.closure)]
    frames = [item.source.value if isinstance(item, LazyItem) else item for item in slots]
    stays = target.source is not None and target.source.accessor[0] != "slot"
    if not stays and id(target) not in reachable((*frames, *interp.externals.written.values())):
        raise Unsupported("B002", "a weak reference to what nobody may hold any more")
    return target


def refer(interp: Interpreter, function: Object, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """What a weak reference leads to: an object that is known already, or one that stays."""
    if args or kwargs:
        return None
    target = function.value()
    referent = None if target is None else interp.externals.known(target)
    if referent is None or function.source is None:
        raise Unsupported("B002", "a weak reference to what is not known otherwise")
    reference = weakref.ref(target)
    function.source.check(predicate(lambda asked: asked() is reference(), "leading to the same object"))
    interp.externals.guard_identity(referent)
    return referent


def call_getter(interp: Interpreter, function: Object, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """What `operator.itemgetter`, `attrgetter` and `methodcaller` take from a value."""
    if len(args) != 1 or kwargs:
        return None
    getter, value = interp.externals.guard_identity(function), args[0]
    kind, asked = getter.__reduce__()[:2]
    if isinstance(getter, operator.itemgetter):
        return _one_or_all([interp.now(subscript(interp, value, interp.wrap_plain(key))) for key in asked])
    if isinstance(getter, operator.attrgetter):
        look_up = functools.partial(attribute_now, interp)
        return _one_or_all([functools.reduce(look_up, path.split("."), value) for path in asked])
    if kind is not operator.methodcaller:
        raise Unsupported("B002", "operator.methodcaller with keywords")
    method = attribute_now(interp, value, asked[0])
    return interp.call(method, [interp.wrap_plain(each) for each in asked[1:]], {})


def _one_or_all(items: list[Value]) -> Value:
    return items[0] if len(items) == 1 else Sequence(tuple, items)
