"""Python numbers of a captured call as numbers of an artifact: expressions and formulas over symbols that are bound.

    self.calls + 1                     →   Expression calls + 1, with calls bound to a register of state
    base * (1 + math.cos(...)) / 2     →   Formula over the learning rate and the epoch
"""

import operator
from collections.abc import Callable
from typing import Any

from smelt.capture.replay.described import Computed, Counted, Described, DescribedCall, FromOutside, Given, Known
from smelt.deploy.errors import ExportError
from smelt.ir.artifact.machine import NumberOf
from smelt.symbolic.expressions import Expression, Symbol
from smelt.symbolic.symnode import Formula

_OF_INTEGERS: dict[Any, Callable[[Expression, Expression], Expression]] = {
    operator.add: operator.add,
    operator.iadd: operator.add,
    operator.sub: operator.sub,
    operator.isub: operator.sub,
    operator.mul: operator.mul,
    operator.imul: operator.mul,
}
_PLAIN = {operator.iadd: operator.add, operator.isub: operator.sub, operator.imul: operator.mul}


def number_of(what: Described, where: str) -> NumberOf:
    """A described number; `where` says whose it is, for the error if there is none."""
    return NumberOf(_number(what, where))


def _number(what: Described, where: str) -> Any:
    if isinstance(what, Known) and type(what.value) in (int, float):
        return what.value
    if isinstance(what, Computed):
        return what.what
    if isinstance(what, FromOutside) and type(what.value.real) in (int, float):
        return leaf_of(what.value)
    if isinstance(what, Counted):
        operands = [_number(each, where) for each in what.operands]
        return _applied(what.function, operands, where)
    raise ExportError(f"{where} is no number that can be computed without Python")


def number_type(what: Described) -> type | None:
    """int or float; None for what is no number that can be computed without Python."""
    try:
        value = _number(what, "")
    except ExportError:
        return None
    return float if isinstance(value, float | Formula) else int


def leaf_of(origin: Given) -> Any:
    """A number from outside as a symbol, or as a float that is given."""
    if type(origin.real) is float:
        return Formula(None, (), origin.real, origin.text, origin)
    return Expression.of(Symbol(origin.text, origin.real, origin))


def _applied(function: Callable[..., Any], operands: list[Any], where: str) -> Any:
    integers = all(isinstance(each, int | Expression) for each in operands)
    if integers and function in _OF_INTEGERS and len(operands) == 2:
        left, right = map(Expression.of, operands)
        return _OF_INTEGERS[function](left, right)
    if function not in FUNCTIONS:
        raise ExportError(f"{where} is computed by {getattr(function, '__name__', function)}, which needs Python")
    examples = [_example(each) for each in operands]
    return Formula(_PLAIN.get(function, function), tuple(operands), function(*examples), "…")


def _example(number: Any) -> Any:
    if isinstance(number, Expression):
        return number.evaluate(lambda symbol: symbol.example)
    return number.example if isinstance(number, Formula) else number


def origin_of(call: DescribedCall, leaf: Symbol | Formula) -> tuple[Given, int | None]:
    """Where a symbol is read from, and which dimension of that; None for a number."""
    if isinstance(leaf.origin, Given):
        return leaf.origin, None
    origin, what, dim = call.origin_of(leaf)
    if what == "stride":
        raise ExportError(f"{leaf.text} differs from call to call", hint="arguments with dynamic sizes are contiguous")
    return origin, dim if what == "size" else None


FUNCTIONS: frozenset[Any] = frozenset(
    {operator.add, operator.sub, operator.mul, operator.iadd, operator.isub, operator.imul, operator.truediv,
     operator.neg, operator.pow}
)  # fmt: skip
"""Functions of Python's numbers that an artifact computes."""
