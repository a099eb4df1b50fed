"""Numbers that tensors hold: what is only kept of them breaks no graph.

    total += loss.item()    →    total = DeferredScalar(add, total, DeferredScalar(item, copy of loss)), computed after
    if loss.item() > 3:     →    B004, as `x * loss.item()` is: here somebody needs the number

A number is that of the moment: what it is taken from is copied in the graph, where the program takes it. Arithmetic is
Python's own, done when the graph has run, so only such is followed as raises for no number.

Exploring for export executes nothing (`smelt.capture.explore`): numbers stay open, each a tensor of the graph without
dimensions (i64, f64 or bool). Arithmetic and comparisons are part of the graph, and a branch is decided by it.

    n = int(x.sum())          sum · to(i64)                        OpenScalar(int, to)
    if n + 1 > limit:         add(to, 1) · gt(add, limit)          OpenScalar(bool, gt), and a state with two successors
"""

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch

from smelt.base.options import config
from smelt.base.torch_originals import BASE
from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.model.breaks import Unsupported
from smelt.capture.model.open_numbers import DTYPES, OpenNumber
from smelt.capture.model.policy import acts_as_in_eager, is_layer, is_of_libraries
from smelt.capture.model.values import (
    Constant,
    DeferredScalar,
    Number,
    OpenScalar,
    Sequence,
    Slice,
    Tensor,
    Value,
    of_number,
    python_type,
)
from smelt.symbolic.expressions import SMALLEST, Expression
from smelt.symbolic.symnode import Formula, meaning

_MAX_LISTED = 64
_NUMBERS = (bool, int, float)
_OF_ANY = frozenset({operator.add, operator.sub, operator.mul})
_OF_NONZERO = frozenset({operator.truediv, operator.floordiv, operator.mod})


def item_of_tensor(interp: Interpreter, tensor: Tensor, kind: type | None = None) -> Value:
    """`tensor.item()`, or `kind(tensor)`."""
    fake = tensor.fake
    if fake.dtype.is_floating_point:
        own: type = float
    else:
        own = bool if fake.dtype is torch.bool else int
    known = NotImplemented if interp.externals.explores else _known_item(interp, tensor, kind)
    if known is not NotImplemented:
        return Constant(known)
    if interp.externals.explores and not counts(interp, tensor, kind):
        return taken_out(interp, tensor, kind or own)
    one = all(type(size) is int and size == 1 for size in fake.shape)
    if one and own is float and kind is int and interp.tape.data_sizes is not None:
        held = item_of_tensor(interp, tensor)
        return _truncated(interp, held) if isinstance(held, DeferredScalar) else held
    if not one or fake.dtype.is_complex or (own is float and kind is int):
        raise needed("Tensor.item" if kind is None else f"{kind.__name__}()")  # it raises, or raises for some numbers
    if counts(interp, tensor, kind):
        wide = interp.tensor_call("call_method", "to", [tensor, Constant(torch.float64)]) if own is int else tensor
        assert isinstance(wide, Tensor)
        return interp.tape.item(wide, interp.externals.sizes.shape_env)
    if interp.externals.no_side_effects or interp.externals.runs_later or interp.tape.ambient.inference:
        raise needed("Tensor.item")  # it runs twice, or later; or its copy would be of another kind than other results
    bare = interp.tensor_call("call_method", "detach", [tensor])
    return DeferredScalar(kind or own, kind or BASE.item, [interp.tensor_call("call_method", "clone", [bare])])


def _known_item(interp: Interpreter, tensor: Tensor, kind: type | None) -> Any:
    """The number if the captured code made the tensor of constants; else NotImplemented."""
    known = interp.tape.known_item(tensor)
    if known is NotImplemented or kind is None:
        return known
    try:
        return kind(known)
    except (ValueError, OverflowError):  # of infinity: for the program's own line
        return NotImplemented


def counts(interp: Interpreter, tensor: Tensor, kind: type | None) -> bool:
    """Whether PyTorch's own code asks for a number: an optimizer, or a layer, which computes with it in the graph.
    Schedulers, which stand beside optimizers, ask for `float(loss)`, and compare it.

    Wherever the tensor is: kernels read the number from its memory, and the host need not wait for it."""
    fake, code = tensor.fake, interp.frames[-1].info.code
    if fake.numel() != 1:
        return False
    return acts_as_in_eager(code) and kind is None if fake.dtype.is_floating_point else is_layer(code)


def needed(what: str = "Tensor.item") -> Unsupported:
    """The break where a number is needed that is not known yet."""
    return Unsupported("B004", what)


def arithmetic(interp: Interpreter, function: Any, *values: Value) -> Value:
    """A function of numbers some of which are deferred."""
    if interp.externals.explores:
        return arithmetic_in_graph(interp, function, *values)
    kinds = [python_type(value) for value in values]
    if not all(kind in _NUMBERS for kind in kinds):
        raise needed()
    result: type = float if function is operator.truediv or float in kinds else int
    divisor = values[-1]
    safe = type(divisor) is Constant and divisor.value != 0  # of another the next call may be with 0
    if function in _OF_ANY or (function in _OF_NONZERO and safe) or function in (operator.neg, operator.pos, abs):
        return DeferredScalar(result, function, list(values))
    raise needed()


def converted(interp: Interpreter, kind: Any, args: list[Value]) -> Value | None:
    """`float(…)` and `int(…)` of a deferred number; None of anything else."""
    value = args[0] if len(args) == 1 else None
    if isinstance(value, OpenScalar) and kind in _NUMBERS:
        return converted_in_graph(interp, kind, value)
    if not isinstance(value, DeferredScalar) or kind not in (int, float):
        return None
    if value.kind is float and kind is int:
        return _truncated(interp, value)
    return value if value.kind is kind else DeferredScalar(kind, kind, [value])


def _truncated(interp: Interpreter, value: DeferredScalar) -> Value:
    """`int(number)` of a float: it raises for infinity, and so does the graph, where sizes are told by it."""
    held = value.parts[0]
    if interp.tape.data_sizes is None or not isinstance(held, Tensor):
        raise needed()
    size = interp.tensor_call("call_method", "abs", [held])
    fits = interp.tensor_call("call_function", operator.lt, [size, Constant(2.0**62)])
    assert isinstance(fits, Tensor)
    interp.tape.require(fits, "int() of a float that no int64 holds")
    return DeferredScalar(int, int, [value])


# integers that are told between two parts of a graph


def told(interp: Interpreter, value: Any) -> Any:
    """An integer that was only kept so far, as a number that graphs compute with: a symbol, known when the graph comes
    to this place (`capture.tape.data_sizes`). Any other value as it is."""
    sizes = interp.tape.data_sizes
    if sizes is None or type(value) is not DeferredScalar or value.kind is not int:
        return value
    if id(value) not in sizes.numbers:
        number = _told(interp, value)
        if number is None:
            return value
        sizes.numbers[id(value)] = (value, number)
    return sizes.numbers[id(value)][1]


def _told(interp: Interpreter, value: DeferredScalar) -> Value | None:
    first = value.parts[0]
    if isinstance(first, Tensor):
        return interp.tape.tell(first) if not first.fake.dtype.is_floating_point else None
    if value.make is int and isinstance(first, DeferredScalar) and isinstance(first.parts[0], Tensor):
        held = first.parts[0]  # a float's: mostly an index that was drawn, and lists may be short
        whole = interp.tensor_call("call_method", "to", [held, Constant(torch.int64)])
        assert isinstance(whole, Tensor)
        return interp.tape.tell(whole, supposed=0)
    parts = [told(interp, part) for part in value.parts]
    if value.make not in _OF_ANY | _OF_NONZERO | {operator.neg, operator.pos}:
        return None
    if not all(isinstance(part, Constant) and python_type(part) is int for part in parts):
        return None
    numbers = [
        part.symbolic if isinstance(part, Number) and part.symbolic is not None else part.value for part in parts
    ]
    return of_number(value.make(*numbers))


def supposed_truth(interp: Interpreter, value: Tensor) -> bool | None:
    """Which way a tensor of one element decides a branch, as a graph supposes that is checked where the tensor is known
    (`smelt.config.capture_data`); None where it is not to."""
    sizes, fake = interp.tape.data_sizes, value.fake
    if sizes is None or not config.capture_data or fake.numel() != 1 or fake.dtype.is_complex:
        return None
    test = interp.tensor_call("call_function", torch.ne, [value, Constant(0)])
    whole = interp.tensor_call("call_method", "to", [test, Constant(torch.int64)])
    least = interp.tensor_call("call_function", operator.add, [whole, Constant(SMALLEST)])
    assert isinstance(least, Tensor)
    number = interp.tape.tell(least, supposed=SMALLEST)
    symbolic = number.symbolic if isinstance(number, Number) and number.symbolic is not None else number.value
    return bool(symbolic == SMALLEST + 1)


def told_operands(interp: Interpreter, target: Any, args: list[Value]) -> list[Value]:
    """The arguments of a call of PyTorch with integers that were only kept so far as numbers."""
    return [with_told(interp, each) for each in args]


def with_told(interp: Interpreter, value: Any) -> Any:
    return _with_numbers(value, DeferredScalar, lambda number: told(interp, number))


def _with_numbers(value: Any, kind: type[DeferredScalar], convert: Callable[[Any], Value]) -> Any:
    """A value with the deferred numbers in it, those in slices and sequences too, as `convert` has them."""
    if isinstance(value, kind):
        return convert(value)
    if isinstance(value, Slice):
        ends = (value.start, value.stop, value.step)
        parts = [_with_numbers(end, kind, convert) for end in ends]
        return value if all(map(operator.is_, parts, ends)) else Slice(*parts)
    if isinstance(value, Sequence) and any(isinstance(item, kind | Slice) for item in value.raw_items):
        return Sequence(value.kind, [_with_numbers(item, kind, convert) for item in value.items])
    return value


def listed(interp: Interpreter, tensor: Tensor) -> Value | None:
    """`tensor.tolist()` of constants, or of a few elements, each a number that is only kept; None if that is not to be
    known."""
    fake = tensor.fake
    known = NotImplemented if interp.externals.explores else interp.tape.known_item(tensor, listed=True)
    if known is not NotImplemented:
        return interp.wrap_plain(known)
    if interp.tape.data_sizes is None or not all(type(size) is int for size in fake.shape):
        return None
    if fake.numel() > _MAX_LISTED or fake.dtype.is_complex:
        return None
    if not fake.dim():
        return item_of_tensor(interp, tensor)
    rows = []
    for number in range(fake.shape[0]):
        row = interp.tensor_call("call_method", "select", [tensor, Constant(0), Constant(number)])
        assert isinstance(row, Tensor)
        rows.append(listed(interp, row))
    return Sequence(list, rows)


# numbers that export keeps open

_SAFE = frozenset({operator.add, operator.sub, operator.mul, operator.neg, operator.pos, operator.abs, abs})
_OF_SIZES = frozenset({operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.neg})
_ON_TENSORS = frozenset(
    getattr(operator, name)
    for name in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lt", "le", "gt", "ge", "eq", "ne"),
        *("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow"),
    )
)

MAKERS: dict[type, Callable[[torch.Tensor], OpenNumber]] = {
    kind: functools.partial(OpenNumber, kind) for kind in DTYPES
}


def open_scalar(kind: type, tensor: Value, example: Any = None) -> OpenScalar:
    """The number that a tensor without dimensions holds, which is of the dtype for it. `example`: of a size."""
    if type(example) is int and example >= SMALLEST:
        return OpenScalar(kind, functools.partial(OpenNumber, kind, example=example), [tensor], example)
    return OpenScalar(kind, MAKERS[kind], [tensor])


def taken_out(interp: Interpreter, tensor: Tensor, kind: type) -> OpenScalar:
    """The number that a tensor of one element holds now; later writes to the tensor do not change it."""
    if tensor.fake.dtype.is_complex or not all(type(size) is int and size == 1 for size in tensor.fake.shape):
        raise Unsupported("B004", f"{kind.__name__} of a tensor of several elements")
    bare: Value = interp.tensor_call("call_method", "detach", [tensor])
    if tensor.fake.dim():
        bare = interp.tensor_call("call_method", "reshape", [bare, Sequence(tuple, [])])
    converted = interp.tensor_call("call_method", "to", [bare, Constant(DTYPES[kind])], {"copy": Constant(True)})
    return open_scalar(kind, converted)


def arithmetic_in_graph(interp: Interpreter, function: Any, *values: Value) -> Value:
    """A function of numbers some of which are open."""
    kinds = [python_type(value) for value in values]
    if not all(kind in _NUMBERS for kind in kinds):
        raise Unsupported("B004", "arithmetic with a number that a tensor holds")
    result: type = float if function is operator.truediv or float in kinds else int
    divisor = values[-1]
    safe = type(divisor) is Constant and divisor.value != 0
    certain = function in _SAFE or (function in _OF_NONZERO and safe)
    if not certain and not (function is operator.pow and _is_certain_power(values[0], values[1])):
        raise Unsupported("B004", f"{function.__name__}, which raises for some numbers,")
    operands = [_operand(interp, value, result) for value in values]
    scalar = open_scalar(result, interp.tensor_call("call_function", function, operands))
    if result is int and function in _OF_SIZES:
        scalar.origin_call = (function, *values)
    return scalar


def _is_certain_power(base: Value, exponent: Value) -> bool:
    """Whether a power is a number of the type of its operands, whatever they are."""
    if type(base) is Constant and type(base.value) is float and base.value > 0:
        return True
    return type(exponent) is Constant and type(exponent.value) is int and exponent.value >= 0


def compared(interp: Interpreter, function: Callable[[Any, Any], Any], left: Value, right: Value) -> Value:
    """A comparison of numbers one of which is open: an open bool."""
    kinds = [python_type(value) for value in (left, right)]
    if not all(kind in _NUMBERS for kind in kinds):
        if function in (operator.eq, operator.ne):
            return Constant(function is operator.ne)
        raise Unsupported("B004", "a comparison with a number that a tensor holds")
    common: type = float if float in kinds else int
    operands = [_operand(interp, value, common) for value in (left, right)]
    return open_scalar(bool, interp.tensor_call("call_function", function, operands))


def converted_in_graph(interp: Interpreter, kind: type, value: OpenScalar) -> OpenScalar:
    """`int(value)`, `float(value)`, `bool(value)`."""
    return value if value.kind is kind else open_scalar(kind, _operand(interp, value, kind))


def is_open(interp: Interpreter, value: Value) -> bool:
    """Whether the truth of a value is for the artifact to find out."""
    if not interp.externals.explores:
        return False
    return isinstance(value, OpenScalar) or (isinstance(value, Tensor) and interp.tape.decided(value) is None)


def open_truth(interp: Interpreter, value: Value) -> OpenScalar:
    """`bool(value)` of a tensor or an open number."""
    if isinstance(value, OpenScalar):
        return converted_in_graph(interp, bool, value)
    assert isinstance(value, Tensor)
    return taken_out(interp, value, bool)


def negated(interp: Interpreter, value: Value) -> OpenScalar:
    """`not value`."""
    truth = open_truth(interp, value)
    return open_scalar(bool, interp.tensor_call("call_function", torch.logical_not, [truth.tensor]))


def lesser_or_greater(interp: Interpreter, function: Any, values: list[Value]) -> Value:
    """`min(…)` or `max(…)` of numbers of one type, some of them open."""
    kinds = {python_type(value) for value in values}
    if len(kinds) != 1 or not kinds <= {int, float}:
        raise Unsupported("B004", f"{function.__name__} of numbers of several types")
    (kind,) = kinds
    assert kind is not None
    extreme = _operand(interp, values[0], kind)
    for value in values[1:]:  # the first of equal ones, which are the same number
        other = _operand(interp, value, kind)
        function_of_tensors = torch.minimum if function is min else torch.maximum
        both = [_as_tensor(interp, each, kind) for each in (extreme, other)]
        extreme = interp.tensor_call("call_function", function_of_tensors, both)
    return open_scalar(kind, extreme) if isinstance(extreme, Tensor) else extreme


def _operand(interp: Interpreter, value: Value, kind: type) -> Value:
    """A number as an operand of tensors of the dtype for `kind`."""
    if isinstance(value, OpenScalar):
        if value.kind is kind:
            return value.tensor
        return interp.tensor_call("call_method", "to", [value.tensor, Constant(DTYPES[kind])])
    if isinstance(value, Number) and value.symbolic is not None:
        return _as_tensor(interp, value, kind)
    return Constant(kind(interp.plain(value)))


def _as_tensor(interp: Interpreter, value: Value, kind: type) -> Value:
    if isinstance(value, Tensor):
        return value
    return interp.tensor_call(
        "call_function", torch.full, [Sequence(tuple, []), value], {"dtype": Constant(DTYPES[kind])}
    )


def compared_sizes(interp: Interpreter, function: Callable[[Any, Any], Any], left: Value, right: Value) -> Value | None:
    """A comparison of numbers in symbols of which some differ from state to state: a constant if it goes one way
    always, else an open bool. None where a check of the variant will do: PyTorch's own code asks, or sizes of inputs
    are all it is about, which are the same for a whole call."""
    sides = [meaning(each.symbolic) if isinstance(each, Number) else each.value for each in (left, right)]  # type: ignore[attr-defined]
    if any(isinstance(side, Formula) for side in sides):
        return compared(interp, function, left, right)
    expressions = [Expression.of(side) if not isinstance(side, float) else None for side in sides]
    one, other = expressions
    sizes = interp.externals.sizes
    if one is None or other is None or is_of_libraries(interp.frames[-1].info.code):
        return None
    known = sizes.shape_env.known(_RELATIONS[function], one, other)
    if known is not None:
        return Constant(known)
    if not sizes.open_symbols & (one.symbols() | other.symbols()):
        return None
    return compared(interp, function, left, right)


_RELATIONS: dict[Any, str] = {
    operator.eq: "==",
    operator.ne: "!=",
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
}


def operands_of_tensors(interp: Interpreter, target: Any, args: list[Value]) -> list[Value]:
    """The arguments of a call of PyTorch with open numbers as it can take them: beside a tensor, under an operator,
    an integer is a tensor; else it is a size, and a float is a number that kernels read from memory."""
    if len(args) == 2 and target in _ON_TENSORS:
        tensor = next((each for each in args if type(each) is Tensor), None)
        if tensor is not None:
            return [_beside(interp, tensor, each) for each in args]
    return [in_symbols(interp, each) for each in args]


def _beside(interp: Interpreter, tensor: Tensor, value: Value) -> Value:
    if not isinstance(value, OpenScalar):
        return value
    if value.kind is float:
        return _symbol(interp, value)
    dtype = tensor.fake.dtype
    whole = not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)
    if value.kind is bool or not whole:
        return _operand(interp, value, value.kind)
    return interp.tensor_call("call_method", "to", [value.tensor, Constant(dtype)])  # a number promotes no integers


def in_symbols(interp: Interpreter, value: Any) -> Any:
    """A value with the open numbers in it as symbols."""
    return _with_numbers(value, OpenScalar, lambda number: _symbol(interp, number))


def _symbol(interp: Interpreter, value: OpenScalar) -> Value:
    if value.kind is float:
        return interp.tape.item(value.tensor, interp.externals.sizes.shape_env)
    return of_number(_in_terms_of_leaves(interp, value))


def _in_terms_of_leaves(interp: Interpreter, value: Value) -> Any:
    """An integer as an expression over those that the state began with."""
    if isinstance(value, OpenScalar) and value.kind is int and value.source is not None:
        number = interp.externals.sizes.open_number(value.source, value.example)
        return -number if value.negative else number
    if isinstance(value, OpenScalar) and value.origin_call is not None:
        function, *operands = value.origin_call
        return function(*[_in_terms_of_leaves(interp, each) for each in operands])
    if isinstance(value, Number) and value.symbolic is not None and python_type(value) is int:
        return value.symbolic
    if isinstance(value, Constant) and type(value.value) is int:
        return value.value
    raise Unsupported("B004", "a number that a tensor holds")


def is_open_size(interp: Interpreter, value: Value) -> bool:
    """Whether a number is made of sizes or numbers that differ from state to state."""
    what = meaning(value.symbolic) if isinstance(value, Number) and value.symbolic is not None else None
    return isinstance(what, Expression) and bool(interp.externals.sizes.open_symbols & what.symbols())
