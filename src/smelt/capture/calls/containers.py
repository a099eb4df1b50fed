"""Methods of lists, tuples, dicts, sets and strings, on values."""

import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from smelt.capture.calls.arity import ANY, Takes, acting, refusal, takes
from smelt.capture.calls.builtins import in_order, unpack_into
from smelt.capture.interpreter.dict_keys import hashable, holds_nan, key_error, key_value, sought_key
from smelt.capture.interpreter.dunder_dispatch import COMPARISONS, index_of
from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.interpreter.iterators import drain, iterator, length_hint
from smelt.capture.interpreter.operators import (
    binary,
    compare,
    contains,
    delete_subscript,
    is_same,
    length,
    store_subscript,
    subscript,
)
from smelt.capture.interpreter.sets import (
    change,
    change_item,
    derived,
    is_disjoint,
    is_subset,
    is_superset,
    items_of_view,
    own_set,
    pop_item,
)
from smelt.capture.interpreter.special_methods import lacking
from smelt.capture.interpreter.str_format import joined_text, text_of
from smelt.capture.model.breaks import Raised, Unsupported
from smelt.capture.model.bytecode import BINARY_METHODS
from smelt.capture.model.static import is_a
from smelt.capture.model.values import (
    Constant,
    DictView,
    ExceptionValue,
    Instance,
    Iterator,
    Mapping,
    Object,
    Sequence,
    Set,
    Value,
    describe,
    python_type,
)

Method = Callable[[Interpreter, Any, list[Value]], Value]
_NONE = Constant(None)


def container_method(
    interp: Interpreter, method: Any, receiver: Value, args: list[Value], kwargs: dict[str, Value]
) -> Value | None:
    """The answer of `receiver.method(*args)`, or None if it is not one of these."""
    name = method.__name__
    if isinstance(receiver, Sequence):
        handler = (LIST if receiver.kind is list else TUPLE).get(name)
    elif isinstance(receiver, Mapping):
        handler = DICT.get(name)
        if name in ("popitem", "move_to_end") and set(kwargs) == {"last"}:
            args, kwargs = [*args, kwargs["last"]], {}
        if name == "update" or (name == "__init__" and not (receiver.items and args)):
            if len(args) > 1:
                raise refusal(method, len(args), kwargs, method.__objclass__())
            return _update(interp, receiver, args, kwargs)
    elif isinstance(receiver, Set):
        handler = SET.get(name)
    elif isinstance(receiver, DictView):
        handler = VIEW.get(name)
    elif isinstance(receiver, Iterator):
        handler = ITERATOR.get(name)
    elif isinstance(receiver, Object) and is_a(receiver.value, dict) and name in ("__contains__", "get", "__len__"):
        return None
    else:
        handler = None
    if handler is not None and handler[0].why_not(args, kwargs) is None:
        return handler[1](interp, receiver, args)
    if handler is not None:
        raise refusal(method, len(args), kwargs, method.__objclass__())
    if name == "sort" and isinstance(receiver, Sequence) and receiver.kind is list:
        if args or not set(kwargs) <= {"key", "reverse"}:
            raise Unsupported("B019", "TypeError: list.sort() with other arguments")
        items = in_order(interp, interp.externals.items(receiver), kwargs)
        interp.before_mutation(receiver)
        receiver.items = items
        return _NONE
    if isinstance(receiver, Sequence | Set) and any(map(holds_nan, (receiver, *args))):
        return None  # by which object it is, Python knows
    everything = (receiver, *args, *kwargs.values())
    if (
        isinstance(receiver, Constant | Sequence | Set)
        and all(map(interp.is_plain, everything))
        and name not in _CHANGES
    ):
        if name == "__hash__":
            interp.tree.why_not_persist = "a hash"
        named = {key: interp.plain(value) for key, value in kwargs.items()}
        of_sets = isinstance(receiver, Set)  # comparisons, a hash: no matter in which order
        real = interp.plain(receiver, in_order=not of_sets)
        return interp.compute(method, real, *[interp.plain(value, in_order=not of_sets) for value in args], **named)
    if name == "join" and isinstance(receiver, Constant) and len(args) == 1:
        if isinstance(lacking(args[0], "__iter__"), Raised):
            raise Raised.of(TypeError("can only join an iterable"))
        return interp.compute(method, receiver.value, [interp.plain(item) for item in drain(interp, args[0])])
    return None


_CHANGES = frozenset(
    {"sort", "remove", "discard", "difference_update", "intersection_update", "__setitem__", "__delitem__"}
    | {"pop", "symmetric_difference_update", "__ior__", "__iand__", "__isub__", "__ixor__", "__iadd__", "__imul__"}
)


def _append(interp: Interpreter, receiver: Sequence, args: list[Value]) -> Value:
    interp.before_append(receiver)
    receiver.raw_items.append(args[0])
    return _NONE


def _extend(interp: Interpreter, receiver: Sequence, args: list[Value]) -> Value:
    interp.before_append(receiver)
    drain(interp, args[0], receiver.raw_items, hinted=True)
    return _NONE


def _position(interp: Interpreter, value: Value) -> int:
    position = interp.plain(index_of(interp, value))
    if type(position) not in (int, bool) or not -sys.maxsize <= position <= sys.maxsize:
        raise Unsupported("B019", f"TypeError: {describe(value)} as an index")
    return int(position)


def _insert(interp: Interpreter, receiver: Sequence, args: list[Value]) -> Value:
    position = _position(interp, args[0])
    interp.before_mutation(receiver)
    receiver.items.insert(position, args[1])
    return _NONE


def _pop(interp: Interpreter, receiver: Sequence, args: list[Value]) -> Value:
    position = _position(interp, args[0]) if args else -1
    if not -len(receiver.items) <= position < len(receiver.items):
        raise Raised.of(IndexError("pop index out of range" if receiver.items else "pop from empty list"))
    if position in (-1, len(receiver.items) - 1):
        interp.before_pop(receiver)
    else:
        interp.before_mutation(receiver)
    return interp.externals.force(receiver.items.pop(position))


def _remove(interp: Interpreter, receiver: Sequence, args: list[Value]) -> Value:
    for place, item in enumerate(interp.externals.items(receiver)):
        if is_same(interp, item, args[0]):
            interp.before_mutation(receiver)
            del receiver.items[place]
            return _NONE
    raise Raised.of(ValueError("list.remove(x): x not in list"))


def _clear(interp: Interpreter, receiver: Any, args: list[Value]) -> Value:
    if isinstance(receiver, Mapping):
        interp.externals.complete(receiver)
        interp.before_removal(receiver)
    else:
        interp.before_mutation(receiver)
    receiver.items.clear()
    return _NONE


def _reverse(interp: Interpreter, receiver: Sequence, args: list[Value]) -> Value:
    interp.before_mutation(receiver)
    receiver.items.reverse()
    return _NONE


def _refill(interp: Interpreter, receiver: Sequence | Set, args: list[Value]) -> Value:
    """`list.__init__`, `set.__init__`, which empty the object first."""
    if isinstance(receiver, Sequence):
        _clear(interp, receiver, [])
        return _extend(interp, receiver, args) if args else _NONE
    if receiver.kind is set and (receiver.source is not None or receiver.items):
        change(interp, "clear", receiver, [])
        return change(interp, "update", receiver, args) if args else _NONE
    if args and receiver.kind is set:
        interp.before_set_mutation(receiver)
        contents = own_set(interp, set, args[0])
        receiver.items, receiver.calls, receiver.ordered = contents.items, contents.calls, contents.ordered
    return _NONE


def _count(interp: Interpreter, receiver: Sequence, args: list[Value]) -> Value:
    count = place = 0
    while place < len(receiver.items):  # which a comparison may change
        count += is_same(interp, interp.externals.force(receiver.items[place]), args[0])
        place += 1
    return Constant(count)


def _find(interp: Interpreter, receiver: Sequence, args: list[Value]) -> Value:
    """`list.index`, `tuple.index`."""
    start = _bound(interp, receiver, args[1]) if len(args) > 1 else 0
    stop = _bound(interp, receiver, args[2]) if len(args) > 2 else sys.maxsize
    place = start
    while place < min(stop, len(receiver.items)):  # which a comparison may change
        if is_same(interp, interp.externals.force(receiver.items[place]), args[0]):
            return Constant(place)
        place += 1
    if receiver.kind is not list:
        raise Raised.of(ValueError("tuple.index(x): x not in tuple"))
    words = joined_text(interp, [text_of(interp, args[0], "__repr__"), Constant(" is not in list")])
    raise Raised(ExceptionValue(ValueError, args=Sequence(tuple, [words])), "ValueError: an item is not in list")


def _bound(interp: Interpreter, receiver: Sequence, value: Value) -> int:
    position = interp.plain(index_of(interp, value))
    if type(position) not in (int, bool):
        text = "slice indices must be integers or have an __index__ method"
        raise Raised.of(TypeError(text))
    return max(0, position + len(receiver.items)) if position < 0 else int(position)


def _acting(action: Callable[..., None]) -> Method:
    rule = acting(action)
    return lambda interp, receiver, args: rule(interp, [receiver, *args], {})


def _elements(interp: Interpreter, receiver: Sequence, args: list[Value]) -> Value:
    """`torch.Size.numel`, of sizes that may vary."""
    total: Value = Constant(1)
    for size in interp.externals.items(receiver):
        total = binary(interp, "*", total, size)
    return total


def _get(interp: Interpreter, receiver: Mapping, args: list[Value]) -> Value:
    key = hashable(interp, args[0])
    if interp.externals.present(receiver, key):
        return interp.externals.force(receiver.items[key])
    return args[1] if len(args) > 1 else _NONE


def _pop_key(interp: Interpreter, receiver: Mapping, args: list[Value]) -> Value:
    key = hashable(interp, args[0])
    if not interp.externals.removable(receiver, key):
        if len(args) > 1:
            return args[1]
        raise key_error(interp, args[0])
    interp.before_removal(receiver)
    return interp.externals.force(receiver.items.pop(key))


def _setdefault(interp: Interpreter, receiver: Mapping, args: list[Value]) -> Value:
    key = hashable(interp, args[0])
    if interp.externals.present(receiver, key):
        return interp.externals.force(receiver.items[key])
    interp.before_setitem(receiver, key)
    receiver.items[key] = args[1] if len(args) > 1 else _NONE
    return interp.externals.force(receiver.items[key])


def _update(interp: Interpreter, receiver: Mapping, args: list[Value], kwargs: dict[str, Value]) -> Value:
    interp.before_mutation(receiver)
    unpack_into(interp, receiver.items, args, kwargs, receiver.kind)
    return _NONE


def _copy_dict(interp: Interpreter, receiver: Mapping, args: list[Value]) -> Value:
    if receiver.kind is OrderedDict and (receiver.owner is not None or receiver.inside):
        raise Unsupported("B002", "OrderedDict.copy of a subclass")  # which calls that class
    interp.externals.complete(receiver)
    return Mapping(dict(receiver.items), receiver.kind, factory=receiver.factory)


def _view(part: str) -> Method:
    return lambda interp, receiver, args: DictView(receiver, part)


def _by_set(does: Callable[..., Value], name: str) -> Method:
    return lambda interp, receiver, args: does(interp, name, receiver, args)


def _remove_item(interp: Interpreter, receiver: Set, args: list[Value]) -> Value:
    if sought_key(interp, args[0]) not in receiver.items:
        raise key_error(interp, args[0])
    return change_item(interp, "remove", receiver, args[0])


def _move_to_end(interp: Interpreter, receiver: Mapping, args: list[Value]) -> Value:
    key = hashable(interp, args[0])
    if receiver.kind is not OrderedDict:
        raise Unsupported("B002", "OrderedDict.move_to_end")
    if not interp.externals.removable(receiver, key):
        raise key_error(interp, args[0])
    last = len(args) < 2 or bool(interp.plain(args[1]))
    interp.before_removal(receiver)
    item = receiver.items.pop(key)
    receiver.items = {**receiver.items, key: item} if last else {key: item, **receiver.items}
    return _NONE


def _popitem(interp: Interpreter, receiver: Mapping, args: list[Value]) -> Value:
    interp.externals.complete(receiver)
    if args and receiver.kind is not OrderedDict:
        raise Raised.of(TypeError(f"dict.popitem() takes no arguments ({len(args)} given)"))
    if not receiver.items:
        of_c = "popitem(): dictionary is empty"
        raise Raised.of(KeyError("dictionary is empty" if receiver.kind is OrderedDict else of_c))
    last = not args or bool(interp.plain(args[0]))
    if last:
        interp.before_pop(receiver)
    else:
        interp.before_removal(receiver)
    key = next(reversed(receiver.items) if last else iter(receiver.items))
    item = receiver.items.pop(key)
    return Sequence(tuple, [key_value(interp, key), interp.externals.force(item)])


def _asked(question: Callable[..., bool]) -> Method:
    """`isdisjoint`, `issubset` and `issuperset` of a set, or of the keys or items of a dict."""

    def answer(interp: Interpreter, receiver: Set | DictView, args: list[Value]) -> Value:
        ours = items_of_view(interp, receiver)
        if ours is None:
            raise Unsupported("B002", "isdisjoint of the values of a dict")
        return Constant(question(interp, ours, args[0]))

    return answer


def _default_factory(interp: Interpreter, receiver: Mapping, args: list[Value]) -> Value:
    """`defaultdict.__missing__`."""
    if receiver.factory is None:
        raise key_error(interp, args[0])
    default = interp.now(interp.call(receiver.factory, []))
    store_subscript(interp, receiver, args[0], default)
    return default


_SAME_KIND = {Set: (set, frozenset), Mapping: (dict,)}


def _takes_operand(receiver: Value, other: Value, *, compares: bool) -> bool:
    """Whether an operator of a builtin's class takes the other operand, and does not decline."""
    kind = python_type(other)
    if kind is None:
        raise Unsupported("B008", f"an operator's method with {describe(other)}")
    if isinstance(receiver, DictView) and receiver.part == "values":
        raise Unsupported("B008", "an operator's method of the values of a dict")
    if isinstance(receiver, DictView) and compares:
        return isinstance(other, Set) or (isinstance(other, DictView) and other.part != "values")
    if isinstance(receiver, DictView):
        return not isinstance(other, Object | Instance)
    if isinstance(receiver, Sequence):
        return issubclass(kind, list if receiver.kind is list else tuple)
    return issubclass(kind, _SAME_KIND[type(receiver)])


def _by_operator(operate: Callable[..., Value], symbol: str, *, reflected: bool = False) -> Method:
    """`set.__or__`, `dict.__eq__`, `list.__lt__` and the like, which decline operands of other classes."""

    def answer(interp: Interpreter, receiver: Value, args: list[Value]) -> Value:
        if not _takes_operand(receiver, args[0], compares=operate is compare):
            return Constant(NotImplemented)
        left, right = (args[0], receiver) if reflected else (receiver, args[0])
        return operate(interp, symbol, left, right)

    return answer


def _operators(symbols: str, *, in_place: bool = False) -> "_METHOD":
    """The methods of binary operators, by their names."""
    methods: _METHOD = {}
    for symbol in symbols.split():
        name = BINARY_METHODS[symbol]
        methods[f"__{name}__"] = (takes(1), _by_operator(binary, symbol))
        methods[f"__r{name}__"] = (takes(1), _by_operator(binary, symbol, reflected=True))
        if in_place:
            methods[f"__i{name}__"] = (takes(1), _by_operator(binary, f"{symbol}="))
    return methods


def _comparisons(symbols: str) -> "_METHOD":
    return {COMPARISONS[symbol]: (takes(1), _by_operator(compare, symbol)) for symbol in symbols.split()}


def _plain_operator(symbol: str) -> tuple[Takes, Method]:
    """`list.__add__`, `list.__iadd__`, `list.__mul__`: they decline nothing, and raise."""
    return takes(1), lambda interp, receiver, args: binary(interp, symbol, receiver, args[0])


_METHOD = dict[str, tuple[Takes, Method]]

_COMMON: _METHOD = {
    "__repr__": (takes(0), lambda interp, receiver, args: text_of(interp, receiver, "__repr__")),
    "__str__": (takes(0), lambda interp, receiver, args: text_of(interp, receiver, "__str__")),
    "__contains__": (takes(1), lambda interp, receiver, args: Constant(contains(interp, receiver, args[0]))),
    "__len__": (takes(0), lambda interp, receiver, args: Constant(length(interp, receiver))),
    "__iter__": (takes(0), lambda interp, receiver, args: iterator(interp, receiver)),
}
_GETITEM: _METHOD = {"__getitem__": (takes(1), lambda interp, receiver, args: subscript(interp, receiver, args[0]))}
_SETITEM: _METHOD = {
    "__setitem__": (takes(2), _acting(store_subscript)),
    "__delitem__": (takes(1), _acting(delete_subscript)),
}
TUPLE: _METHOD = {
    **_COMMON,
    **_GETITEM,
    **_comparisons("== != < <= > >="),
    "__add__": _plain_operator("+"),
    "__mul__": _plain_operator("*"),
    "__rmul__": _plain_operator("*"),
    "count": (takes(1), _count),
    "index": (takes(1, 3), _find),
    "numel": (takes(0), _elements),
}
LIST: _METHOD = {
    **TUPLE,
    **_SETITEM,
    "__iadd__": _plain_operator("+="),
    "__imul__": _plain_operator("*="),
    "append": (takes(1), _append),
    "extend": (takes(1), _extend),
    "insert": (takes(2), _insert),
    "pop": (takes(0, 1), _pop),
    "remove": (takes(1), _remove),
    "clear": (takes(0), _clear),
    "reverse": (takes(0), _reverse),
    "copy": (takes(0), lambda interp, receiver, args: Sequence(list, [*interp.externals.items(receiver)])),
    "__init__": (takes(0, 1), _refill),
}
DICT: _METHOD = {
    **_COMMON,
    **_GETITEM,
    **_SETITEM,
    **_comparisons("== !="),
    **_operators("|"),
    "__ior__": _plain_operator("|="),
    "__missing__": (takes(1), _default_factory),
    "get": (takes(1, 2), _get),
    "pop": (takes(1, 2), _pop_key),
    "setdefault": (takes(1, 2), _setdefault),
    "copy": (takes(0), _copy_dict),
    "clear": (takes(0), _clear),
    "popitem": (takes(0, 1), _popitem),
    "move_to_end": (takes(1, 2), _move_to_end),
    "keys": (takes(0), _view("keys")),
    "values": (takes(0), _view("values")),
    "items": (takes(0), _view("items")),
}
SET: _METHOD = {
    **_COMMON,
    **_comparisons("== != < <= > >="),
    **_operators("| & - ^", in_place=True),
    "isdisjoint": (takes(1), _asked(is_disjoint)),
    "issubset": (takes(1), _asked(is_subset)),
    "issuperset": (takes(1), _asked(is_superset)),
    "__init__": (takes(0, 1), _refill),
    "add": (takes(1), lambda interp, receiver, args: change_item(interp, "add", receiver, args[0])),
    "discard": (takes(1), lambda interp, receiver, args: change_item(interp, "discard", receiver, args[0])),
    "remove": (takes(1), _remove_item),
    "clear": (takes(0), _by_set(change, "clear")),
    "pop": (takes(0), lambda interp, receiver, args: pop_item(interp, receiver)),
    **{name: (takes(0, ANY), _by_set(change, name)) for name in ("update", "difference_update", "intersection_update")},
    "symmetric_difference_update": (takes(1), _by_set(change, "symmetric_difference_update")),
    "copy": (takes(0), _by_set(derived, "copy")),
    **{name: (takes(0, ANY), _by_set(derived, name)) for name in ("union", "intersection", "difference")},
    "symmetric_difference": (takes(1), _by_set(derived, "symmetric_difference")),
}
ITERATOR: _METHOD = {
    "__length_hint__": (takes(0), lambda interp, receiver, args: Constant(length_hint(interp, receiver))),
}
VIEW: _METHOD = {
    **_COMMON,
    **_comparisons("== != < <= > >="),
    **_operators("| & - ^"),
    "isdisjoint": (takes(1), _asked(is_disjoint)),
}
