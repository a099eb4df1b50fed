"""Python's builtins on values: those that need more than plain arguments, and the list of those that do not.

isinstance(x, torch.Tensor)  →  Constant(True)        math.sqrt(4)  →  Constant(2.0), being PURE
"""

import abc
import builtins
import logging
import math
import operator
import sys
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from smelt.base.torch_internals import internal
from smelt.capture.calls.arity import ANY, Takes, acting, answering, fitting, takes
from smelt.capture.calls.class_checks import (
    by_bases,
    by_register,
    has_base,
    is_callable,
    is_instance,
    is_registered,
    is_subclass,
)
from smelt.capture.calls.class_statements import CLASS_CALLS, type_of_three
from smelt.capture.calls.inspect import FUNCTION_CALLS
from smelt.capture.calls.numbers import tensor_of
from smelt.capture.calls.python_library import OPERATOR_CALLS
from smelt.capture.interpreter.attributes import (
    attribute,
    attribute_or_none,
    delete_attribute,
    plain_attribute,
    plain_delete,
    plain_store,
    store_attribute,
)
from smelt.capture.interpreter.deferred_scalars import (
    arithmetic,
    is_open,
    is_open_size,
    lesser_or_greater,
    needed,
    open_truth,
    told,
)
from smelt.capture.interpreter.dict_keys import hashable, identical
from smelt.capture.interpreter.dunder_dispatch import held_operands
from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.interpreter.iterators import advance, drain, each_item, ended, iterator, taken
from smelt.capture.interpreter.operators import (
    BINARY,
    COMPARE,
    INPLACE,
    UNARY,
    binary,
    compare,
    contains,
    float_of,
    holds_symbols,
    is_computed,
    length,
    mapped,
    subscript,
    truth,
    unary,
)
from smelt.capture.interpreter.sets import new_set
from smelt.capture.interpreter.special_methods import lacking, special
from smelt.capture.interpreter.str_format import formatted, text_of
from smelt.capture.model.breaks import Raised, Unsupported
from smelt.capture.model.open_numbers import OpenRange
from smelt.capture.model.source import predicate
from smelt.capture.model.static import ABSENT, is_a
from smelt.capture.model.values import (
    Cell,
    Constant,
    DeferredScalar,
    Deque,
    DictView,
    Instance,
    Iterator,
    Mapping,
    Method,
    Object,
    OpenScalar,
    Proxy,
    Sequence,
    Set,
    Slice,
    Super,
    Tensor,
    Value,
    Wrapper,
    ZippedIterator,
    behind,
    describe,
    of_number,
    python_type,
)
from smelt.capture.polyfills.library import greatest, least, logs, reversed_, until

Builtin = Callable[[Interpreter, list[Value], dict[str, Value]], Value]

_PURE_BUILTINS = (
    "abs all any ascii bin bool bytes chr complex divmod float format frozenset hex int max min oct ord pow range repr "
    "round set slice sorted str sum"
)
PURE: dict[Any, bool] = dict.fromkeys(
    [
        *(getattr(builtins, name) for name in _PURE_BUILTINS.split()),
        *(value for value in vars(math).values() if isinstance(value, types.BuiltinFunctionType)),
        *(
            value
            for name, value in vars(operator).items()
            if isinstance(value, types.BuiltinFunctionType) and name[0] != "i"
        ),
        torch.Size,
        torch.device,
    ],
    True,
)


_MESSAGE = takes(2, ANY, names="exc_info stack_info stacklevel extra")


def _by_rule(rule: Callable[[Interpreter, Value, Object], bool]) -> Builtin:
    """A metaclass's own way to say what is an instance, which programs reach by `super()`."""

    def decide(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if len(args) != 2 or not isinstance(args[0], Object) or not is_a(args[0].value, type) or kwargs:
            raise Unsupported("B002", "__instancecheck__")
        return Constant(rule(interp, args[1], args[0]))

    return decide


def _type(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) == 3:
        return type_of_three(interp, args)
    kind = python_type(args[0]) if len(args) == 1 else None
    if kind is None:
        raise Unsupported("B002", "type")
    return interp.externals.fixed(kind)


def _subclasses(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The classes right below one, in the order in which they were made: the same ones are relied on."""
    (value,) = args
    if not isinstance(value, Object) or not is_a(value.value, type):
        raise Unsupported("B002", "type.__subclasses__")
    kind = interp.externals.guard_identity(value)
    below = type.__subclasses__(kind)
    known = tuple(map(weakref.ref, below))

    def has_same(asked: Any) -> bool:
        now = type.__subclasses__(asked)
        return len(now) == len(known) and all(map(operator.is_, now, [each() for each in known]))

    text = f"having the {len(below)} subclasses it had"
    interp.tree.fixed(kind, kind.__qualname__).check(predicate(has_same, text))
    interp.tree.why_not_persist = "the subclasses of a class"
    return Sequence(list, [interp.externals.fixed(each) for each in below])


def _getattr(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    name = _name(interp, args[1])
    if len(args) == 2:
        return attribute(interp, args[0], name)
    member = attribute_or_none(interp, args[0], name)
    return args[2] if member is None else member


def _has_attribute(interp: Interpreter, value: Value, name: Value) -> bool:
    return attribute_or_none(interp, value, _name(interp, name)) is not None


def _name(interp: Interpreter, value: Value) -> str:
    name = interp.plain(value)
    if type(name) is not str:
        raise Unsupported("B019", f"TypeError: {name!r} as the name of an attribute")
    return name


def _changes(change: Callable[..., object]) -> Builtin:
    """`setattr`, `delattr` and the like."""
    return acting(lambda interp, target, name, *args: change(interp, target, _name(interp, name), *args))


def _len(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = args[0]
    if isinstance(value, Tensor) and value.fake.dim() > 0:
        return of_number(value.fake.shape[0])
    if isinstance(value, Wrapper) and value.outer.dim() > 0:
        return Constant(value.outer.shape[0])
    return Constant(length(interp, value))


def _bool(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if args and is_open(interp, args[0]):
        return open_truth(interp, args[0])
    return Constant(truth(interp, args[0]) if args else False)


def _iter(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) == 2:
        if not is_callable(interp, args[0]):
            raise Unsupported("B019", "TypeError: iter(v, w): v must be callable")
        return interp.call(interp.externals.fixed(until), args)
    if isinstance(args[0], Wrapper):
        raise Unsupported("B009", describe(args[0]))
    return iterator(interp, args[0])


def _text(how: str, function: Any) -> Builtin:
    def make(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if len(args) == 1 and not kwargs:
            return text_of(interp, args[0], how)
        named = {name: interp.plain(value) for name, value in kwargs.items()}
        return interp.compute(function, *[interp.plain(value) for value in args], **named)

    return make


def _next(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) == 1 and isinstance(args[0], Instance):
        method = special(interp, args[0], "__next__")
        if method is None:
            raise lacking(args[0], "__next__")
        return interp.call(method, [])  # it words its own StopIteration
    item = advance(interp, args[0])
    if item is not None:
        return item
    if len(args) > 1:
        return args[1]
    raise ended(args[0])


def _make_sequence(kind: type) -> Builtin:
    def make(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if kind is tuple and args and isinstance(args[0], Sequence) and args[0].kind is tuple:
            return args[0]
        return Sequence(kind, drain(interp, args[0], hinted=True) if args else [])

    return make


def _has_keys(interp: Interpreter, value: Value) -> bool:
    return isinstance(value, Object | Instance) and attribute_or_none(interp, value, "keys") is not None


def unpacked(interp: Interpreter, args: list[Value], kwargs: dict[str, Value], kind: type = dict) -> dict[Any, Any]:
    """What `kind(*args, **kwargs)` holds."""
    items: dict[Any, Any] = {}
    unpack_into(interp, items, args, kwargs, kind)
    return items


def unpack_into(
    interp: Interpreter, items: dict[Any, Any], args: list[Value], kwargs: dict[str, Value], kind: type
) -> None:
    """`items.update(*args, **kwargs)`, item by item: who yields them may look at what is there already.

    `kind`: of a dict, by which errors are worded."""
    if len(args) > 1:
        raise Unsupported("B019", f"TypeError: a dict of {len(args)} arguments")
    if args and (isinstance(args[0], Mapping | Proxy) or _has_keys(interp, args[0])):
        items.update(mapped(interp, args[0]))
    elif args:
        for number, pair in enumerate(each_item(interp, args[0])):
            key, value = _ordered_pair(interp, pair) if kind is OrderedDict else _pair(interp, pair, number)
            items[hashable(interp, key)] = value
    items.update(kwargs)


def _ordered_pair(interp: Interpreter, value: Value) -> list[Value]:
    """A key and a value, for an OrderedDict."""
    pair = taken(interp, value, 3)
    if len(pair) < 2:
        raise Raised.of(ValueError(f"need more than {len(pair)} value{'s' * (len(pair) != 1)} to unpack"))
    if len(pair) > 2:
        raise Raised.of(ValueError("too many values to unpack (expected 2)"))
    return pair


def _pair(interp: Interpreter, value: Value, number: int) -> list[Value]:
    """A key and a value; `number`: which pair it is."""
    element = f"dictionary update sequence element #{number}"
    try:
        pair = drain(interp, value, hinted=True)
    except Raised as raised:
        if not issubclass(interp.failure_kind(raised), TypeError):
            raise
        if isinstance(value, Constant):
            raise Raised.of(TypeError(f"cannot convert {element} to a sequence")) from None
        raise Unsupported("B019", f"TypeError: {describe(value)} is no pair of a key and a value") from None
    if len(pair) != 2:
        raise Raised.of(ValueError(f"{element} has length {len(pair)}; 2 is required"))
    return pair


def _abs(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if isinstance(args[0], Tensor | Wrapper):
        return interp.tensor_call("call_function", operator.abs, args)
    if isinstance(args[0], DeferredScalar):
        return arithmetic(interp, abs, args[0])
    if holds_symbols(args[0]):
        if python_type(args[0]) is float:
            return float_of(interp, abs, args[0])
        negative = truth(interp, compare(interp, "<", args[0], Constant(0)))
        return unary(interp, "UNARY_NEGATIVE", args[0]) if negative else args[0]
    return interp.compute(abs, interp.plain(args[0]))


def _iterators(interp: Interpreter, values: list[Value]) -> list[Value]:
    return [interp.now(iterator(interp, value)) for value in values]


def _zip(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    strict = bool(interp.plain(kwargs["strict"])) if "strict" in kwargs else False
    return ZippedIterator(zip, _iterators(interp, args), strict=strict)


def _enumerate(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    start = interp.plain(_given_once(args, kwargs, "start", Constant(0)))
    if type(start) is not int:
        raise Unsupported("B002", "enumerate from anything but an int")
    return ZippedIterator(enumerate, _iterators(interp, args[:1]), position=start)


def _given_once(args: list[Value], kwargs: dict[str, Value], name: str, default: Value) -> Value:
    """The second argument, by place or by name."""
    if name in kwargs and len(args) > 1:
        raise Unsupported("B019", f"TypeError: {name} given twice")
    return kwargs.get(name, args[1] if len(args) > 1 else default)


def _reversed(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = args[0]
    if isinstance(value, Sequence) or (isinstance(value, Constant) and is_a(value.value, range | str)):
        return Iterator(value, "reversed")
    if isinstance(value, Deque):
        return Iterator(value, "reversed", size=value.changes)
    value = behind(value)
    if isinstance(value, Mapping | DictView):
        mapping = value if isinstance(value, Mapping) else value.mapping
        items, removals = Sequence(tuple, drain(interp, value)), mapping.removals
        return Iterator(items, "reversed", size=len(items.items), removals=removals, watched=mapping)
    held = held_operands(interp, ("__reversed__", "__iter__"), value)
    if held is not None and isinstance(held[0], Mapping | Sequence):
        return _reversed(interp, held, kwargs)
    kind = python_type(value)
    if not isinstance(value, Instance | Object) or kind is None:
        raise Unsupported("B009", f"reversed of {describe(value)}")
    method = interp.tree.class_attribute(kind, "__reversed__")
    if isinstance(method, types.FunctionType):
        return interp.call(interp.externals.fixed(method), [value])
    by_place = [interp.tree.class_attribute(kind, name) for name in ("__len__", "__getitem__")]
    if method is None or (method is ABSENT and by_place[1] is ABSENT):
        raise lacking(value, "__reversed__")
    if method is ABSENT and by_place[0] is ABSENT:
        raise lacking(value, "__len__")
    if method is not ABSENT or not all(isinstance(each, types.FunctionType) for each in by_place):
        raise Unsupported("B009", f"reversed of {describe(value)}")
    return interp.call(interp.externals.fixed(reversed_), [value])


def _log(function: Any, level: int) -> Builtin:
    """A message to a logger: nothing, if it takes none of that level; else Python's, which looks at who called it."""

    def rule(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
        kind = python_type(args[0]) if args else None
        if kind is not None and interp.tree.class_attribute(kind, "isEnabledFor") is logging.Logger.isEnabledFor:
            wanted = interp.now(interp.call(interp.externals.fixed(logs), [args[0], Constant(level)]))
            if isinstance(wanted, Constant) and wanted.value is False:
                return Constant(None)
        raise Unsupported("B002", f"logging.{function.__qualname__}")

    return rule


def _range(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if interp.externals.explores and any(isinstance(each, OpenScalar) or is_open_size(interp, each) for each in args):
        return _open_range(interp, args)
    return interp.compute(range, *[interp.plain(value) for value in args])


def _open_range(interp: Interpreter, args: list[Value]) -> Value:
    start, stop, step = (Constant(0), args[0], Constant(1)) if len(args) == 1 else (*args, Constant(1))[:3]
    whole = all(python_type(each) is int for each in (start, stop, step))
    if not whole or type(step) is not Constant or not step.value:
        raise Unsupported("B004", "range of such numbers")
    return Instance(OpenRange, Mapping({"start": start, "stop": stop, "step": step, "test": Constant(None)}))


def _super(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if args:
        if len(args) == 2 and isinstance(args[0], Object):
            return _seen_from(interp, args[0], args[1])
        raise Unsupported("B002", "super")
    frame = interp.frames[-1]
    if not frame.info.code.co_argcount:
        raise Raised.of(RuntimeError("super(): no arguments"))
    receiver = frame.slots[0] and interp.externals.force(frame.slots[0])
    names = frame.info.slot_names
    cell = frame.slots[names.index("__class__")] if "__class__" in names else None
    if isinstance(receiver, Cell):
        receiver = interp.externals.cell_contents(receiver)
    kind = interp.externals.cell_contents(cell) if isinstance(cell, Cell) else None
    if receiver is None:
        raise Raised.of(RuntimeError("super(): arg[0] deleted"))
    if cell is None:
        raise Raised.of(RuntimeError("super(): __class__ cell not found"))
    if not isinstance(kind, Object):
        raise Unsupported("B002", "super")
    return _seen_from(interp, kind, receiver)


def _seen_from(interp: Interpreter, kind: Object, receiver: Value) -> Value:
    """`super(kind, receiver)`, of a receiver that is an object of the class, or a class below it."""
    seen: Any = interp.externals.guard_identity(kind)
    real: Any = receiver.value if isinstance(receiver, Object) else None
    own = python_type(receiver)
    below = is_a(real, type) and seen in real.__mro__
    if not isinstance(seen, type) or not (below or (own is not None and seen in own.__mro__)):
        raise Unsupported("B019", f"TypeError: super() of {describe(receiver)}")
    return Super(seen, receiver)


COMPENSATED = sys.version_info >= (3, 12)
"""Whether `sum` of floats keeps what rounding takes from the running sum, and adds it at the end."""

_NUMBERS = (bool, int, float)


def _sum(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    total = _given_once(args, kwargs, "start", Constant(0))
    if python_type(total) in (str, bytes, bytearray):
        raise Unsupported("B019", "TypeError: sum() of strings")
    items = drain(interp, args[0])
    if COMPENSATED:
        total, items = _sum_of_floats(interp, total, items)
    for item in items:
        total = binary(interp, "+", total, item)
    return total


def _sum_of_floats(interp: Interpreter, start: Value, items: list[Value]) -> tuple[Value, list[Value]]:
    """What Python sums in C, the numbers before anything else: floats with what rounding took from them."""
    count = next((n for n, item in enumerate(items) if python_type(item) not in _NUMBERS), len(items))
    numbers = [start, *items[:count]]
    if python_type(start) not in _NUMBERS or not any(python_type(item) is float for item in numbers):
        return start, items
    first, *rest = [interp.plain(item) for item in numbers]
    return interp.compute(sum, rest, first), items[count:]


def _any_all(wanted: bool) -> Builtin:
    return answering(
        lambda interp, value: any(truth(interp, item) is wanted for item in each_item(interp, value)) is wanted
    )


def _min_max(function: Any, polyfill: Any) -> Builtin:
    def choose(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if len(args) > 1 and "default" in kwargs:
            raise Unsupported("B019", f"TypeError: a default for {function.__name__}() of several arguments")
        items: list[Value] = args if len(args) > 1 else [Sequence(tuple, drain(interp, args[0]))]
        if interp.externals.explores and len(items) > 1 and any(isinstance(item, OpenScalar) for item in items):
            return lesser_or_greater(interp, function, items)
        items = [told(interp, item) for item in items]
        if any(isinstance(item, DeferredScalar) for item in items):
            raise needed()
        if len(items) == 2 and not kwargs and any(map(is_computed, items)):
            return float_of(interp, function, *items)
        if kwargs or not all(map(interp.is_plain, items)) or any(map(holds_symbols, items)):
            return interp.call(interp.externals.fixed(polyfill), items, kwargs)
        return interp.compute(function, *[interp.plain(item) for item in items])

    return choose


def _sorted(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    held = (held_operands(interp, ("__iter__",), args[0]) or args)[0]
    if isinstance(held, Set) and not kwargs and interp.is_plain(held):
        return interp.compute(sorted, held.items)  # in whatever order it would be taken
    return Sequence(list, in_order(interp, drain(interp, args[0], hinted=True), kwargs))


def in_order(interp: Interpreter, items: list[Value], kwargs: dict[str, Value]) -> list[Value]:
    """`sorted(items, key=…, reverse=…)` by plain keys."""
    by = kwargs.get("key")
    named = by is None or (isinstance(by, Constant) and by.value is None)
    keys = [item if named else interp.now(interp.call(by, [item])) for item in items]  # type: ignore[arg-type]
    plain = [interp.plain(key) for key in keys]
    reverse = interp.plain(kwargs["reverse"]) if "reverse" in kwargs else False
    if type(reverse) not in (bool, int):
        raise Unsupported("B019", f"TypeError: reverse={reverse!r}")
    try:
        order = sorted(range(len(items)), key=plain.__getitem__, reverse=reverse)
    except TypeError as error:
        raise Raised.of(error) from error
    return [items[position] for position in order]


def _id(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The address of an object, which is known if the object itself is guarded: a module, a class, a parameter."""
    (value,) = args
    interp.tree.why_not_persist = "an object's address"
    if isinstance(value, Object):
        return Constant(id(interp.externals.guard_identity(value)))
    if isinstance(value, Tensor) and value.source is not None and value.source.accessor[0] != "slot":
        value.source.check(("is", value.real))
        return Constant(id(value.real))
    raise Unsupported("B002", "id")


def _operator(handler: Callable[..., Value], symbol: str) -> Builtin:
    return lambda interp, args, kwargs: handler(interp, symbol, *args)


def _vars(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) != 1:
        raise Unsupported("B002", "vars")
    return attribute(interp, args[0], "__dict__")


def _is_tensor(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    kind = python_type(args[0])
    return Constant(kind is not None and interp.tree.has_base(kind, torch.Tensor))


def _has_torch_function(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Whether a subclass or a mode is to see a call: a default device is such a mode.

    Most who ask then hand the call to the mode, which calls them again without itself: for them there is none. Others
    choose another way to compute (encoder layers do), and must choose as in eager.
    """
    values = [item for value in args for item in (drain(interp, value) if isinstance(value, Sequence) else [value])]
    if any(isinstance(value, Object) and is_a(value.value, torch.Tensor) for value in values):
        raise Unsupported("B006", "an argument")
    asking = interp.frames[-1].info.code.co_names
    return Constant(bool(interp.tape.ambient.devices) and "handle_torch_function" not in asking)


def _slice(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    none = Constant(None)
    if len(args) == 1:
        return Slice(none, args[0], none)
    return Slice(args[0], args[1], args[2] if len(args) > 2 else none)


def _object_getattribute(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    target = args[0]
    if isinstance(target, Instance) or (isinstance(target, Object) and not is_a(target.value, type | torch.Tensor)):
        return plain_attribute(interp, target, _name(interp, args[1]))
    raise Unsupported("B002", "object.__getattribute__")


def _object_init(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) == 1 and isinstance(args[0], Instance | Object) and not kwargs:
        return Constant(None)
    raise Unsupported("B002", "object.__init__")


def _bind_function(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`function.__get__(receiver, …)`."""
    if kwargs or len(args) < 2 or (isinstance(args[1], Constant) and args[1].value is None):
        raise Unsupported("B002", "function.__get__")
    return Method(args[0], args[1])


def _as_tensor(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`torch.as_tensor` of numbers, a new tensor, or of a tensor that is as it shall be."""
    kind = python_type(args[0]) if args else None
    if args and isinstance(args[0], Tensor) and len(args) == 1:
        named = {name: interp.plain(value) for name, value in kwargs.items()}
        if all(value in (None, getattr(args[0].fake, name)) for name, value in named.items()):
            return args[0]
    if kind in (list, tuple) and len(args) == 1 and interp.is_plain(args[0]) and not holds_symbols(args[0]):
        return interp.tensor_call("call_function", torch.tensor, args, kwargs)
    if kind not in (bool, int, float) or len(args) > 1:
        raise Unsupported("B002", "torch.as_tensor")
    if isinstance(args[0], OpenScalar) and (open_tensor := tensor_of(interp, torch.tensor, args, kwargs)) is not None:
        return open_tensor
    dtype = kwargs.get("dtype", Constant(None))
    if kind is not float and isinstance(dtype, Constant) and dtype.value is None:
        kwargs = {**kwargs, "dtype": Constant(torch.bool if kind is bool else torch.int64)}
    return interp.tensor_call("call_function", torch.scalar_tensor, args, kwargs)


_RULES: dict[Any, tuple[Takes, Builtin]] = {
    torch.as_tensor: (takes(0, ANY, names=None), _as_tensor),
    types.FunctionType.__get__: (takes(2, 3), _bind_function),
    isinstance: (takes(2), answering(is_instance)),
    issubclass: (takes(2), answering(is_subclass)),
    type.__instancecheck__: (takes(2), _by_rule(by_bases)),
    abc.ABCMeta.__instancecheck__: (takes(2), _by_rule(by_register)),
    type.__subclasscheck__: (takes(2), _by_rule(has_base)),
    abc.ABCMeta.__subclasscheck__: (takes(2), _by_rule(is_registered)),
    type: (takes(1, 3), _type),
    **{function: (takes(1, ANY, names=None), rule) for function, rule in CLASS_CALLS.items()},
    type.__subclasses__: (takes(1), _subclasses),
    getattr: (takes(2, 3), _getattr),
    hasattr: (takes(2), answering(_has_attribute)),
    setattr: (takes(3), _changes(store_attribute)),
    delattr: (takes(2), _changes(delete_attribute)),
    callable: (takes(1), answering(is_callable)),
    torch.Tensor.__iter__: (takes(1), _iter),
    torch.Tensor.__len__: (takes(1), _len),
    id: (takes(1), _id),
    len: (takes(1), _len),
    bool: (takes(0, 1), _bool),
    str: (takes(0, 3, names="object encoding errors"), _text("__str__", str)),
    repr: (takes(1), _text("__repr__", repr)),
    ascii: (takes(1), _text("__ascii__", ascii)),
    format: (takes(1, 2), lambda interp, args, kwargs: formatted(interp, args[0], *map(interp.plain, args[1:]))),
    iter: (takes(1, 2), _iter),
    next: (takes(1, 2), _next),
    tuple: (takes(0, 1), _make_sequence(tuple)),
    list: (takes(0, 1), _make_sequence(list)),
    dict: (takes(0, 1, names=None), lambda interp, args, kwargs: Mapping(unpacked(interp, args, kwargs))),
    set: (takes(0, 1), lambda interp, args, kwargs: new_set(interp, set, *args)),
    frozenset: (takes(0, 1), lambda interp, args, kwargs: new_set(interp, frozenset, *args)),
    zip: (takes(0, ANY, names="strict"), _zip),
    enumerate: (takes(1, 2, names="start"), _enumerate),
    map: (
        takes(2, ANY),
        lambda interp, args, kwargs: ZippedIterator(map, _iterators(interp, args[1:]), function=args[0]),
    ),
    reversed: (takes(1), _reversed),
    logging.Logger.debug: (_MESSAGE, _log(logging.Logger.debug, logging.DEBUG)),
    logging.Logger.info: (_MESSAGE, _log(logging.Logger.info, logging.INFO)),
    logging.Logger.warning: (_MESSAGE, _log(logging.Logger.warning, logging.WARNING)),
    range: (takes(1, 3), _range),
    slice: (takes(1, 3), _slice),
    super: (takes(0, 2), _super),
    sum: (takes(1, 2, names="start"), _sum),
    any: (takes(1), _any_all(True)),
    all: (takes(1), _any_all(False)),
    min: (takes(1, ANY, names="key default"), _min_max(min, least)),
    max: (takes(1, ANY, names="key default"), _min_max(max, greatest)),
    sorted: (takes(1, names="key reverse"), _sorted),
    abs: (takes(1), _abs),
    operator.abs: (takes(1), _abs),
    **{function: (takes(1, 2, names=None), rule) for function, rule in FUNCTION_CALLS.items()},
    **OPERATOR_CALLS,
    object.__init__: (takes(1, ANY, names=None), _object_init),
    object.__getattribute__: (takes(2), _object_getattribute),
    object.__setattr__: (takes(3), _changes(plain_store)),
    object.__delattr__: (takes(2), _changes(plain_delete)),
    vars: (takes(0, 1), _vars),
    torch.is_tensor: (takes(1), _is_tensor),
    internal("_C._has_torch_function"): (takes(1), _has_torch_function),
    internal("_C._has_torch_function_unary"): (takes(1), _has_torch_function),
    internal("_C._has_torch_function_variadic"): (takes(0, ANY), _has_torch_function),
    operator.getitem: (takes(2), lambda interp, args, kwargs: subscript(interp, *args)),
    operator.contains: (takes(2), answering(contains)),
    operator.is_: (takes(2), answering(identical)),
    operator.is_not: (takes(2), answering(lambda interp, *args: not identical(interp, *args))),
    operator.truth: (takes(1), _bool),
    **{function: (takes(1), _operator(unary, name)) for name, function in UNARY.items()},
    **{function: (takes(2), _operator(binary, symbol)) for symbol, function in (BINARY | INPLACE).items()},
    **{function: (takes(2), _operator(compare, symbol)) for symbol, function in COMPARE.items()},
}

BUILTIN_CALLS: dict[Any, Builtin] = {
    function: fitting(function, accepted, rule) for function, (accepted, rule) in _RULES.items()
}
