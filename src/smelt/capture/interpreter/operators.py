"""Operators on values: tensors become graph nodes, plain values are computed, containers are unpacked."""

import enum
import operator
import sys
import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import torch

from smelt.capture.interpreter.attributes import attribute_now, attribute_or_none
from smelt.capture.interpreter.deferred_scalars import (
    arithmetic,
    compared,
    compared_sizes,
    needed,
    supposed_truth,
    told,
)
from smelt.capture.interpreter.dict_keys import hashable, holds_nan, identical, is_nan, key_error, one_nan, sought_key
from smelt.capture.interpreter.dunder_dispatch import (
    COMPARISONS,
    REFLECTED,
    held_operands,
    index_of,
    operator_methods,
    overloaded_binary,
    overloaded_compare,
    overloaded_unary,
)
from smelt.capture.interpreter.enums import is_enum, member_named, members_of
from smelt.capture.interpreter.interpreter import Interpreter, is_plain_type
from smelt.capture.interpreter.iterators import advance, drain, iterator
from smelt.capture.interpreter.replaced_methods import rely_on_own, replaced_binary, replaced_compare
from smelt.capture.interpreter.sets import change, combined, items_of_view
from smelt.capture.interpreter.special_methods import (
    ask,
    checked_bool,
    checked_length,
    lacking,
    not_iterable,
    special,
)
from smelt.capture.interpreter.speculate import decided, speculate, speculate_truth
from smelt.capture.interpreter.symbolic_index import item_of, set_item
from smelt.capture.model.breaks import Raised, Unsupported
from smelt.capture.model.policy import decides_by_state, is_of_libraries
from smelt.capture.model.set_order import OPERATORS as SET_OPERATORS
from smelt.capture.model.static import ABSENT, is_a
from smelt.capture.model.values import (
    Array,
    Constant,
    DeferredScalar,
    Deque,
    DictView,
    Function,
    Generator,
    Instance,
    Iterator,
    Mapping,
    Method,
    Number,
    Object,
    OpenScalar,
    Partial,
    Proxy,
    Sequence,
    Set,
    Slice,
    Tensor,
    Value,
    Wrapper,
    ZippedIterator,
    behind,
    describe,
    of_number,
    python_type,
)
from smelt.symbolic.symnode import Formula, apply, meaning

BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "@": operator.matmul,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": operator.lshift,
    ">>": operator.rshift,
}
INPLACE: dict[str, Callable[[Any, Any], Any]] = {
    f"{symbol}=": getattr(operator, "i" + function.__name__.rstrip("_")) for symbol, function in BINARY.items()
}
COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
}
UNARY: dict[str, Callable[[Any], Any]] = {
    "UNARY_NEGATIVE": operator.neg,
    "UNARY_POSITIVE": operator.pos,
    "UNARY_INVERT": operator.invert,
}
_OF_SIZES = frozenset({"+", "-", "*", "/", "//", "%", "**"})
_IN_PLACE = {"|=": "__ior__", "&=": "__iand__", "-=": "__isub__", "^=": "__ixor__"}


def binary(interp: Interpreter, symbol: str, left: Value, right: Value) -> Value:
    """`left symbol right`, in-place forms (`+=`) included."""
    function = BINARY.get(symbol) or INPLACE[symbol]
    if isinstance(left, DeferredScalar) or isinstance(right, DeferredScalar):
        return _on_held_numbers(interp, symbol, left, right)
    if isinstance(left, Number) or isinstance(right, Number):
        if _in_symbols(left, right) and symbol.rstrip("=") in _OF_SIZES:
            return _on_numbers(interp, BINARY[symbol.rstrip("=")], left, right)
        free = _free_number(symbol.rstrip("="), left, right)
        if free is not None:
            return free
    left = interp.number_of(interp, left) if isinstance(right, Tensor) else left  # NumPy lets PyTorch answer
    if isinstance(left, Tensor) or (isinstance(right, Tensor) and not isinstance(left, Object | Instance)):
        if not isinstance(left, Tensor):
            function = BINARY[symbol.rstrip("=")]  # `0 += x` makes a new tensor
        replaced = replaced_binary(interp, symbol, left, right)
        return _on_tensors(interp, function, left, right) if replaced is None else replaced
    if any(isinstance(value, Sequence) and value.kind is torch.Size for value in (left, right)):
        return _on_shapes(interp, BINARY[symbol.rstrip("=")], left, right)
    if isinstance(left, Sequence) and left.kind is list and symbol in ("+=", "*="):
        return _extend_list(interp, symbol, left, right)
    if symbol in ("+", "+=") and isinstance(left, Sequence) and isinstance(right, Sequence):
        return _concatenate(interp, left, right)
    if symbol in ("*", "*="):
        sequence, times = (left, right) if isinstance(left, Sequence) else (right, left)
        if isinstance(sequence, Sequence) and isinstance(times, Constant) and type(times.value) in (int, bool):
            return _of_items(sequence, interp.externals.items(sequence) * times.value)
    right, left = behind(right), behind(left) if symbol == "|" else left
    if isinstance(left, Mapping) and isinstance(right, Mapping) and symbol == "|":
        return _merge(interp, left, right)
    if isinstance(left, Mapping | Set) and symbol.endswith("="):
        changed = _change_in_place(interp, symbol, left, right)
        if changed is not None:
            return changed
    if symbol.rstrip("=") in SET_OPERATORS and _are_sets(left, right):
        return combined(interp, symbol.rstrip("="), left, right)
    if isinstance(left, DictView) or isinstance(right, DictView):
        raise Unsupported("B008", f"{symbol} of {describe(left)} and {describe(right)}")
    if interp.is_plain(left) and interp.is_plain(right):
        return interp.compute(function, *[interp.plain(each, symbol[0] not in SET_OPERATORS) for each in (left, right)])
    held = held_operands(interp, operator_methods(symbol), left, right)
    if held is not None:
        answer = binary(interp, symbol, *held)
        return left if answer is held[0] else answer
    return overloaded_binary(interp, symbol, left, right)


def _merge(interp: Interpreter, left: Mapping, right: Mapping) -> Value:
    """`left | right`: of the class, and with the factory, of the first of the two that is more than a dict."""
    if not {left.kind, right.kind} <= {dict, OrderedDict, defaultdict}:
        raise Unsupported("B008", f"| of {describe(left)} and {describe(right)}")
    interp.externals.complete(left)
    interp.externals.complete(right)
    leading = right if left.kind is dict else left
    return Mapping({**left.items, **right.items}, leading.kind, factory=leading.factory)


def _change_in_place(interp: Interpreter, symbol: str, left: Mapping | Set, right: Value) -> Value | None:
    """`left |= right` and the like for a dict or set; None if it has no such operator for them."""
    if isinstance(left, Mapping) and symbol == "|=" and left.kind in (dict, OrderedDict, defaultdict):
        interp.now(interp.call(interp.externals.fixed(dict.update), [left, right]))
        return left
    if isinstance(left, Set) and symbol[:-1] in SET_OPERATORS and _are_sets(left, right):
        if left.kind is frozenset or not isinstance(right, Set):
            return combined(interp, symbol[:-1], left, right)
        change(interp, _IN_PLACE[symbol], left, [right])
        return left
    return None


def _are_sets(left: Value, right: Value) -> bool:
    """Whether an operator of sets takes both: sets, the keys of dicts, and beside those any iterable."""
    views = [each for each in (left, right) if isinstance(each, DictView)]
    if not views:
        return isinstance(left, Set) and isinstance(right, Set)
    of_keys = all(each.part != "values" for each in views)
    return of_keys and not any(isinstance(each, Object | Instance | Tensor) for each in (left, right))


def _compare_sets(interp: Interpreter, symbol: str, left: Value, right: Value) -> Value:
    """Sets, keys and items of dicts, beside each other and beside anything else."""
    if (ours := items_of_view(interp, left)) is not None and (theirs := items_of_view(interp, right)) is not None:
        return interp.compute(COMPARE[symbol], ours, theirs)
    answer = overloaded_compare(interp, symbol, left, right)
    return Constant((left is right) == (symbol == "==")) if answer is None else answer


def _free_number(symbol: str, left: Value, right: Value) -> Number | None:
    """What comes of a number that is not relied on yet, if it is certain to be a number of the same type."""
    kind = python_type(left)
    if symbol not in ("+", "-", "*") or kind not in (int, float) or kind is not python_type(right):
        return None
    known = [each.known if isinstance(each, Number) else each.value for each in (left, right)]  # type: ignore[attr-defined]
    if all(each.specialized for each in (left, right) if isinstance(each, Number)):
        return None
    return Number(BINARY[symbol](*known), (BINARY[symbol], left, right))


def _on_held_numbers(interp: Interpreter, symbol: str, left: Value, right: Value) -> Value:
    """An operator on a number that a tensor holds: what comes of it is a number, or beside a tensor, a tensor."""
    plain = BINARY[symbol.rstrip("=")]
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        numbers = told(interp, left), told(interp, right)
        if not any(isinstance(each, DeferredScalar) for each in numbers):
            return binary(interp, symbol, *numbers)
    if interp.externals.explores and (isinstance(left, Tensor) or isinstance(right, Tensor)):
        return _on_tensors(interp, INPLACE.get(symbol, plain) if isinstance(left, Tensor) else plain, left, right)
    return arithmetic(interp, plain, left, right)


def _in_symbols(*values: Value) -> bool:
    """Whether these are all numbers, one of which differs from call to call."""
    numbers = all(python_type(value) in (int, float) for value in values)
    return numbers and any(isinstance(value, Number) and value.symbolic is not None for value in values)


def _on_numbers(interp: Interpreter, function: Callable[..., Any], *values: Value) -> Value:
    """Arithmetic on numbers of which some differ from call to call, in terms of their symbols."""
    if function is operator.pow:
        return _power(interp, *values)
    numbers = [
        value.symbolic if isinstance(value, Number) and value.symbolic is not None else interp.plain(value)
        for value in values
    ]
    floats = function is operator.truediv or any(python_type(value) is float for value in values)
    if floats and function not in COMPARE.values():
        return float_of(interp, function, *values)
    try:
        result = function(*numbers)
    except Exception as error:
        raise Raised.of(error) from error
    return of_number(bool(result) if isinstance(result, torch.SymBool) else result)


def float_of(interp: Interpreter, function: Callable[..., Any], *values: Value) -> Value:
    """A function that returns a float, computed at each call. One that raises is specialized on the numbers."""
    numbers = [value.symbolic if holds_symbols(value) else interp.plain(value) for value in values]  # type: ignore[attr-defined]
    try:
        return of_number(apply(function, *numbers))
    except Exception as error:
        for value in values:
            interp.plain(value)
        raise Raised.of(error) from error


def _power(interp: Interpreter, base: Value, exponent: Value) -> Value:
    """`base ** exponent` where the type of the result is certain; else it is computed here, and relied on."""
    assert isinstance(base, Constant) and isinstance(exponent, Constant)
    counted = is_computed(base) or is_computed(exponent)  # by an optimizer, from what is not negative
    floating, whole = python_type(base) is float, python_type(exponent) is int
    if holds_symbols(exponent):
        certain = floating and (counted or (not holds_symbols(base) and base.value > 0))
        return float_of(interp, operator.pow, base, exponent) if certain else _power_here(interp, base, exponent)
    if isinstance(base, Number) and python_type(base) is int and whole and exponent.value >= 0:
        return of_number(base.symbolic**exponent.value)
    if python_type(base) is int and interp.plain(_on_numbers(interp, operator.gt, base, Constant(0))):
        return float_of(interp, operator.pow, base, exponent)  # by a fraction, or one over a power
    # A fraction of a negative number would be complex.
    if floating and (whole or counted or decided(interp, operator.ge, base, Constant(0)) is True):
        return float_of(interp, operator.pow, base, exponent)
    return _power_here(interp, base, exponent)


def _power_here(interp: Interpreter, base: Value, exponent: Value) -> Value:
    return interp.compute(operator.pow, interp.plain(base), interp.plain(exponent))


def is_computed(value: Value) -> bool:
    """Whether a number is one that the graph computes."""
    what = meaning(value.symbolic) if isinstance(value, Number) else None
    return isinstance(what, Formula) and what.is_computed


def _on_shapes(interp: Interpreter, function: Callable[..., Any], left: Value, right: Value) -> Value:
    """An operator on a `torch.Size`, which has rules of its own for what it yields."""
    sequences = isinstance(left, Sequence) and isinstance(right, Sequence)
    if sequences and function is operator.add and (holds_symbols(left) or holds_symbols(right)):
        kind = type(function(left.kind(), right.kind()))  # type: ignore[attr-defined]
        return Sequence(kind, [*interp.externals.items(left), *interp.externals.items(right)])  # type: ignore[arg-type]
    return interp.compute(function, interp.plain(left), interp.plain(right))


def _result_kind(value: Sequence) -> type:
    return list if value.kind is list else tuple


def _concatenate(interp: Interpreter, left: Sequence, right: Sequence) -> Value:
    kind = _result_kind(left)
    if kind is not _result_kind(right):
        text = f'can only concatenate {kind.__name__} (not "{right.kind.__name__}") to {kind.__name__}'
        raise Raised.of(TypeError(text))
    whole = left if interp.externals.items(left) else right
    return _of_items(whole, [*interp.externals.items(left), *interp.externals.items(right)])


def _of_items(whole: Sequence, items: list[Any]) -> Sequence:
    """A sequence of items of `whole`, in their order: a tuple with all of them is itself, as Python has it."""
    same = whole.kind is tuple and whole.owner is None and len(items) == len(whole.items)
    return whole if same else Sequence(_result_kind(whole), items)


def _on_tensors(interp: Interpreter, function: Callable[..., Any], left: Value, right: Value) -> Value:
    held = held_operands(interp, (), left, right)
    left, right = (interp.number_of(interp, value) for value in held or (left, right))
    for value in (left, right):
        if not isinstance(value, Tensor | Constant | OpenScalar | Wrapper):
            raise Unsupported("B008", f"{function.__name__} of {describe(left)} and {describe(right)}")
    return interp.tensor_call("call_function", function, [left, right])


def _extend_list(interp: Interpreter, symbol: str, left: Sequence, right: Value) -> Value:
    if symbol == "+=":
        interp.before_append(left)
        drain(interp, right, left.raw_items, hinted=True)
    else:
        interp.before_mutation(left)
        times = interp.plain(index_of(interp, right))
        if type(times) not in (int, bool):
            raise Unsupported("B019", f"TypeError: a list *= {describe(right)}")
        left.items *= times
    return left


def unary(interp: Interpreter, name: str, value: Value) -> Value:
    """`-value`, `+value`, `~value`."""
    if isinstance(value, DeferredScalar):
        return arithmetic(interp, UNARY[name], value)
    if isinstance(value, Tensor):
        rely_on_own(interp, value, f"__{UNARY[name].__name__}__")
        return interp.tensor_call("call_function", UNARY[name], [value])
    if isinstance(value, Object | Instance):
        held = held_operands(interp, (f"__{UNARY[name].__name__}__",), value)
        return overloaded_unary(interp, name, value) if held is None else unary(interp, name, *held)
    if _in_symbols(value) and name != "UNARY_INVERT":
        return _on_numbers(interp, UNARY[name], value)
    if name == "UNARY_INVERT" and python_type(value) is bool and sys.version_info >= (3, 12):
        raise Unsupported("B008", "~ of a bool, which warns each time")
    return interp.compute(UNARY[name], interp.plain(value))


def compare(interp: Interpreter, symbol: str, left: Value, right: Value) -> Value:
    """`left < right` and the like."""
    left, right = behind(left), behind(right)
    if isinstance(left, OpenScalar) or isinstance(right, OpenScalar):
        if isinstance(left, Tensor) or isinstance(right, Tensor):
            return _on_tensors(interp, COMPARE[symbol], left, right)
        return compared(interp, COMPARE[symbol], left, right)
    left, right = told(interp, left), told(interp, right)
    if isinstance(left, DeferredScalar) or isinstance(right, DeferredScalar):
        raise needed()
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        if symbol in ("==", "!=") and any(isinstance(v, Constant) and v.value is None for v in (left, right)):
            return Constant(symbol == "!=")
        replaced = replaced_compare(interp, symbol, left, right)
        return _on_tensors(interp, COMPARE[symbol], left, right) if replaced is None else replaced
    if _in_symbols(left, right):
        kept_open = compared_sizes(interp, COMPARE[symbol], left, right) if interp.externals.explores else None
        if kept_open is not None:
            return kept_open
        if is_computed(left) or is_computed(right):
            return Constant(speculate(interp, COMPARE[symbol], left, right))
        decision = decided(interp, COMPARE[symbol], left, right)
        if decision is not NotImplemented:
            return Constant(decision)
        return _on_numbers(interp, COMPARE[symbol], left, right)
    plain = interp.is_plain(left) and interp.is_plain(right)
    nans = holds_nan(left) or holds_nan(right)
    if plain and not nans and not (holds_symbols(left) or holds_symbols(right)):
        return interp.compute(COMPARE[symbol], interp.plain(left, False), interp.plain(right, False))
    if isinstance(left, Sequence) and isinstance(right, Sequence) and _alike(interp, left, right):
        return _compare_sequences(interp, symbol, left, right)
    if plain and not nans:
        return interp.compute(COMPARE[symbol], interp.plain(left, False), interp.plain(right, False))
    if isinstance(left, Mapping) and isinstance(right, Mapping) and symbol in ("==", "!="):
        return Constant(_equal_mappings(interp, left, right) == (symbol == "=="))
    if plain:
        raise Unsupported("B014", "a NaN in one container is one in another")
    held = held_operands(interp, (COMPARISONS[symbol], COMPARISONS[REFLECTED[symbol]]), left, right)
    if held is not None:
        return compare(interp, symbol, *held)
    if isinstance(left, DictView | Set) or isinstance(right, DictView | Set):
        return _compare_sets(interp, symbol, left, right)
    if isinstance(left, Deque) or isinstance(right, Deque):
        raise Unsupported("B008", f"{symbol} of a deque")
    answer = overloaded_compare(interp, symbol, left, right)
    if answer is not None:
        return answer
    return Constant(identical(interp, left, right) == (symbol == "=="))


def holds_symbols(value: Value) -> bool:
    """Whether a sequence holds numbers that differ from call to call: then it is compared item by item."""
    if isinstance(value, Sequence):
        return any(holds_symbols(item) for item in value.raw_items if isinstance(item, Value))
    return isinstance(value, Number) and value.symbolic is not None


def _alike(interp: Interpreter, left: Sequence, right: Sequence) -> bool:
    """Whether two sequences compare item by item: both lists or both tuples, by the builtin's own rule."""
    if _result_kind(left) is not _result_kind(right):
        return False
    builtin = _result_kind(left)
    return all(interp.tree.class_attribute(each.kind, "__eq__") is builtin.__eq__ for each in (left, right))


def _compare_sequences(interp: Interpreter, symbol: str, left: Sequence, right: Sequence) -> Value:
    ours, theirs = interp.externals.items(left), interp.externals.items(right)
    if symbol in ("==", "!=") and len(ours) != len(theirs):
        return Constant(symbol == "!=")
    for one, other in zip(ours, theirs, strict=False):
        if not is_same(interp, one, other):
            return Constant(symbol == "!=") if symbol in ("==", "!=") else compare(interp, symbol, one, other)
    return interp.compute(COMPARE[symbol], len(ours), len(theirs))


def _equal_mappings(interp: Interpreter, left: Mapping, right: Mapping) -> bool:
    interp.externals.complete(left)
    interp.externals.complete(right)
    in_order = left.kind is OrderedDict and right.kind is OrderedDict
    if left.items.keys() != right.items.keys() or (in_order and list(left.items) != list(right.items)):
        return False
    force = interp.externals.force
    return all(is_same(interp, force(item), force(right.items[key])) for key, item in left.items.items())


_FEW_KEYS = 32


def truth(interp: Interpreter, value: Value) -> bool:
    """`bool(value)`."""
    value = told(interp, value.tensor if isinstance(value, Array) else value)
    if _in_symbols(value):
        return truth(interp, _on_numbers(interp, operator.ne, value, Constant(0)))
    if isinstance(value, OpenScalar):
        raise Unsupported("B003", "a number that a tensor holds decides the branch")
    if isinstance(value, DeferredScalar):
        raise needed()
    if isinstance(value, Constant):
        return bool(value.value)
    if isinstance(value, Tensor):
        rely_on_own(interp, value, "__bool__")
        answer = interp.tape.decided(value)
        if answer is None and decides_by_state(interp.frames[-1].info.code) and not interp.externals.explores:
            return speculate_truth(interp, value)
        answer = supposed_truth(interp, value) if answer is None else answer
        if answer is None:
            raise Unsupported("B003", "a tensor's value decides the branch")
        return answer
    if isinstance(value, Sequence | Deque | Mapping | Set | Proxy):
        return length(interp, value) > 0
    if isinstance(value, DictView):
        return length(interp, value.mapping) > 0
    if isinstance(value, Function | Method | Partial | Slice | Iterator | ZippedIterator):
        return True
    if isinstance(value, Object | Instance):
        return _object_truth(interp, value)
    raise Unsupported("B003", describe(value))


def _object_truth(interp: Interpreter, value: Object | Instance) -> bool:
    real = value.value if isinstance(value, Object) else None
    if is_a(real, type) and not is_plain_type(real):
        raise Unsupported("B003", f"{describe(value)}, whose metaclass can redefine it")
    interp.externals.rely_on_contents(real)
    if is_a(real, type | types.ModuleType | types.FunctionType | types.BuiltinFunctionType):
        return True
    kind = python_type(value)
    assert kind is not None
    for name in ("__bool__", "__len__"):
        member = interp.tree.class_attribute(kind, name)
        if isinstance(member, types.FunctionType):
            method = Method(interp.externals.fixed(member), value)
            if name == "__bool__":
                return checked_bool(interp, value, method)
            return checked_length(interp, value, method) > 0
        contents = value.contents if isinstance(value, Instance) else interp.externals.contents(value)
        if contents is not None and member is not ABSENT:
            return truth(interp, contents)
        if member is not ABSENT:
            if value.source is not None and name == "__len__" and isinstance(member, types.WrapperDescriptorType):
                value.source.check(("length", len(real)))  # type: ignore[arg-type]
                return len(real) > 0  # type: ignore[arg-type]
            raise Unsupported("B003", describe(value))
    return True


def length(interp: Interpreter, value: Value) -> int:
    """`len(value)` of anything whose length is known."""
    value = behind(value)
    if isinstance(value, Sequence | Deque | Set):
        return len(value.items)
    if isinstance(value, Mapping):
        interp.externals.complete(value)
        return len(value.items)
    if isinstance(value, DictView):
        return length(interp, value.mapping)
    if isinstance(value, Tensor):
        rely_on_own(interp, value, "__len__")
        if value.fake.dim() == 0:
            raise Unsupported("B019", "TypeError: len() of a 0-d tensor")
        return int(value.fake.shape[0])
    if isinstance(value, Constant) and is_a(value.value, str | bytes | range):
        return len(value.value)
    if is_enum(value):
        return len(members_of(interp, value, "__len__"))
    if isinstance(value, Object | Instance):
        method = special(interp, value, "__len__")
        if method is None:
            raise lacking(value, "__len__")
        return checked_length(interp, value, method)
    if isinstance(value, Constant):
        return int(interp.plain(interp.compute(len, value.value)))
    raise lacking(value, "__len__", Unsupported("B008", f"len of {describe(value)}"))


def contains(interp: Interpreter, container: Value, item: Value) -> bool:
    """`item in container`."""
    container = behind(container)
    if isinstance(container, DictView) and container.part == "keys":
        container = container.mapping
    if isinstance(container, Mapping | Set) and holds_symbols(item) and _can_be_compared(container):
        if isinstance(container, Mapping):
            interp.externals.complete(container)
        return any(is_same(interp, item, Constant(key)) for key in container.items if type(key) is int)
    if isinstance(container, Mapping):
        return interp.externals.present(container, hashable(interp, item))
    if isinstance(container, Set):
        return sought_key(interp, item) in container.items
    if isinstance(container, Constant) and is_a(container.value, str | range | bytes | enum.Flag):
        return bool(interp.plain(interp.compute(operator.contains, container.value, interp.plain(item))))
    if isinstance(container, Sequence | Deque | DictView):
        return any(is_same(interp, candidate, item) for candidate in drain(interp, container))
    if isinstance(container, Object | Instance):
        if special(interp, container, "__contains__") is not None:
            return truth(interp, ask(interp, container, "__contains__", item))
        if any(special(interp, container, name) is not None for name in ("__iter__", "__getitem__")):
            return _is_found(interp, container, item)
    if isinstance(container, Iterator | ZippedIterator | Generator):
        return _is_found(interp, container, item)
    raise lacking(container, "__contains__", Unsupported("B008", f"in {describe(container)}"))


def _is_found(interp: Interpreter, container: Value, item: Value) -> bool:
    """Whether an iterable yields the item; it is asked no further than that."""
    try:
        source = interp.now(iterator(interp, container))
    except Raised as raised:
        if not issubclass(interp.failure_kind(raised), TypeError):
            raise
        raise not_iterable(container) from None
    while (candidate := advance(interp, source)) is not None:
        if is_same(interp, candidate, item):
            return True
    return False


def _can_be_compared(container: Mapping | Set) -> bool:
    """Whether its keys are few and plain, so that a number that differs from call to call is not compiled in."""
    return len(container.items) <= _FEW_KEYS and all(type(key) in (int, str) for key in container.items)


def is_same(interp: Interpreter, left: Value, right: Value) -> bool:
    """Whether containers take one for the other."""
    if left is right:
        return True
    if is_nan(left) and is_nan(right):
        return one_nan(left, right)  # type: ignore[arg-type]
    return truth(interp, compare(interp, "==", left, right))


def _is_taken_whole(interp: Interpreter, kind: type | None) -> bool:
    """Whether C takes the items out of objects of this class of dicts, whatever `keys` and `[]` say."""
    return (
        kind is not None
        and issubclass(kind, dict)
        and interp.tree.class_attribute(kind, "__iter__") is dict.__dict__["__iter__"]
    )


def mapped(interp: Interpreter, value: Value) -> dict[Any, Any]:
    """The items that `**value` passes on: those of a dict, or what `keys` and `[]` of another mapping say."""
    value = behind(value)
    if isinstance(value, Object | Instance) and _is_taken_whole(interp, python_type(value)):
        value = (interp.externals.contents(value) if isinstance(value, Object) else value.contents) or value
    if isinstance(value, Mapping):
        interp.externals.complete(value)
        return dict(value.items)
    if not isinstance(value, Object | Instance):
        raise Unsupported("B008", f"** of {describe(value)}")
    method = attribute_or_none(interp, value, "keys")
    if method is None:
        raise Unsupported("B019", f"TypeError: ** of {describe(value)}")
    keys = drain(interp, interp.now(interp.call(method, [])))
    return {hashable(interp, key): interp.now(subscript(interp, value, key)) for key in keys}


def subscript(interp: Interpreter, container: Value, key: Value) -> Value:
    """`container[key]`."""
    container = behind(container)
    if isinstance(container, Tensor):
        rely_on_own(interp, container, "__getitem__")
        return item_of(interp, container, key)
    if isinstance(container, Sequence):
        return _item(interp, container, key)
    if isinstance(container, Deque):
        return interp.externals.force(container.items[_place(interp, container, key)])
    if isinstance(container, Mapping):
        real = hashable(interp, key)
        if not interp.externals.present(container, real):
            if container.factory is None:
                raise key_error(interp, key)
            default = interp.now(interp.call(container.factory, []))
            interp.before_setitem(container, real)
            container.items[real] = default
        return interp.externals.force(container.items[real])
    if isinstance(container, Object) and is_a(container.value, type):
        return _of_class(interp, container, key)
    if interp.is_plain(container) and interp.is_plain(key):
        return interp.compute(operator.getitem, interp.plain(container), interp.plain(key))
    if isinstance(container, Object | Instance):
        method = special(interp, container, "__getitem__")
        if method is None:
            raise lacking(container, "__getitem__")
        return interp.call(method, [key])
    raise lacking(container, "__getitem__", Unsupported("B008", f"[] of {describe(container)}"))


def _of_class(interp: Interpreter, container: Object, key: Value) -> Value:
    """`Color["RED"]`, `Table[key]` by a metaclass's method, or `list[int]`, which means nothing to what runs."""
    kind = interp.externals.guard_identity(container)
    if is_enum(container):
        return member_named(interp, container, key)
    method = special(interp, container, "__getitem__")
    if method is not None:
        return interp.call(method, [key])
    member = interp.tree.class_attribute(kind, "__class_getitem__")
    function = getattr(member, "__func__", member)
    of_python = isinstance(function, types.FunctionType) and is_of_libraries(function.__code__)
    of_python |= isinstance(function, type) and issubclass(function, types.GenericAlias)
    if of_python or isinstance(member, types.ClassMethodDescriptorType | types.MethodDescriptorType):
        return interp.compute(operator.getitem, kind, interp.plain(key))
    if member is ABSENT:
        raise Unsupported("B008", f"{describe(container)}[…]")
    return interp.call(attribute_now(interp, container, "__class_getitem__"), [key])


def _item(interp: Interpreter, container: Sequence, key: Value) -> Value:
    if isinstance(key, Tensor):
        raise Unsupported("B004", "a tensor used as an index")
    real = interp.plain(index_of(interp, key))
    if is_a(real, slice):
        part = [interp.externals.force(item) for item in container.items[real]]
        if container.kind is torch.Size:
            return Sequence(torch.Size, part)
        return _of_items(container, part) if real.step in (None, 1) else Sequence(_result_kind(container), part)
    try:
        return interp.externals.force(container.items[real])
    except (IndexError, TypeError) as error:
        text = str(error) if container.kind is list else str(error).replace("list", "tuple", 1)
        raise Raised.of(type(error)(text)) from error


def _place(interp: Interpreter, container: Deque, key: Value) -> int:
    """Where in a deque an item is."""
    place = interp.plain(index_of(interp, key))
    if not isinstance(place, int):
        raise Unsupported("B019", f"TypeError: a deque with an index like {describe(key)}")
    if not -len(container.items) <= place < len(container.items):
        raise Raised.of(IndexError("deque index out of range"))
    return place


def store_subscript(interp: Interpreter, container: Value, key: Value, value: Value) -> None:
    """`container[key] = value`."""
    if isinstance(container, Tensor):
        rely_on_own(interp, container, "__setitem__")
        set_item(interp, container, key, value)
        return
    if isinstance(container, Mapping):
        real = hashable(interp, key)
        interp.before_setitem(container, real)
        container.items[real] = value
        return
    if isinstance(container, Deque):
        place = _place(interp, container, key)
        interp.before_mutation(container)
        container.items[place] = value
        return
    if isinstance(container, Sequence) and container.kind is list:
        position = interp.plain(key)
        if isinstance(position, int) and not -len(container.items) <= position < len(container.items):
            raise Raised.of(IndexError("list assignment index out of range"))
        if isinstance(position, slice):
            return _store_slice(interp, container, position, value)
        if not isinstance(position, int):
            raise Raised.of(TypeError(f"list indices must be integers or slices, not {type(position).__name__}"))
        interp.before_setitem(container, position)
        container.items[position] = value
        return
    if isinstance(container, Object | Instance):
        ask(interp, container, "__setitem__", key, value)
        return
    raise lacking(container, "__setitem__", Unsupported("B005", f"{describe(container)}[…] = …"))


def _store_slice(interp: Interpreter, container: Sequence, where: slice, value: Value) -> None:
    if isinstance(lacking(value, "__iter__"), Raised):
        whole = where.step in (None, 1)
        raise Raised.of(TypeError("can only assign an iterable" if whole else "must assign iterable to extended slice"))
    items = drain(interp, value)
    interp.before_mutation(container)
    try:
        container.items[where] = items
    except ValueError as error:
        raise Raised.of(error) from error


def delete_subscript(interp: Interpreter, container: Value, key: Value) -> None:
    """`del container[key]`."""
    if isinstance(container, Mapping):
        real = hashable(interp, key)
        if interp.externals.removable(container, real):
            interp.before_removal(container)
            del container.items[real]
            return
        raise key_error(interp, key)
    if isinstance(container, Sequence) and container.kind is list and isinstance(key, Constant | Slice):
        interp.before_mutation(container)
        try:
            del container.items[interp.plain(key)]
        except (IndexError, TypeError) as error:
            raise Raised.of(error) from error
        return
    if isinstance(container, Object | Instance):
        ask(interp, container, "__delitem__", key)
        return
    raise lacking(container, "__delitem__", Unsupported("B005", f"del {describe(container)}[…]"))
