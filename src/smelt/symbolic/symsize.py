"""`SymSize`: a size that differs from call to call, for stages that compute with sizes as if they were integers.

    rows = sym_size(shape_env, s0)             s0 is 7 in the example
    rows * 4 + 1                               SymSize 4*s0 + 1
    rows * 4 > rows                            True, always: no guard
    rows > 5                                   True as in the example, and the guard s0 - 5 > 0
    range(rows)                                range(0, 7), and the guard s0 - 7 == 0: specialized

So a stage written for integers is right for symbols too: whatever it learns of them is a guard of the `ShapeEnv`,
checked for every other size before what it made is used. A choice of speed alone asks `hint`, which keeps nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from smelt.symbolic.expressions import LARGEST, RELATIONS, ZERO, Expression, ShapeEnv, Symbol
from smelt.symbolic.symnode import Formula, as_number, is_symbolic, meaning, surely_equal

if TYPE_CHECKING:
    _Base = int  # stages say `int` and `float`, and mean these too
    _FloatBase = float
else:
    _Base = _FloatBase = object

Values = Callable[[Symbol], int]


def _question(relation: str) -> "Callable[[SymSize, object], bool]":
    return lambda size, other: _guarded(relation, size, other)


class SymSize(_Base):
    """An integer that is given at each call, or computed from such. `isinstance(it, int)` holds."""

    __slots__ = ("_expression", "shape_env")

    shape_env: ShapeEnv
    _expression: Expression

    if not TYPE_CHECKING:
        __class__ = property(lambda self: int)

    @property
    def expression(self) -> Expression:
        """In the simplest form known by now."""
        return self.shape_env.simplest(self._expression)

    # --- arithmetic ---

    def __add__(self, other: Any) -> Any:
        return _combined(self, other, lambda left, right: left + right)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return _combined(self, other, lambda left, right: left - right)

    def __rsub__(self, other: Any) -> Any:
        return _combined(self, other, lambda left, right: right - left)

    def __mul__(self, other: Any) -> Any:
        return _combined(self, other, lambda left, right: left * right)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        return _divided("//", self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return _divided("//", other, self)

    def __mod__(self, other: Any) -> Any:
        return _divided("%", self, other)

    def __rmod__(self, other: Any) -> Any:
        return _divided("%", other, self)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __neg__(self) -> Any:
        return sym_size(self.shape_env, -self._expression)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return self if self >= 0 else -self

    # --- questions, answered as in the example; the answer is relied on ---

    if not TYPE_CHECKING:  # which sees those of `int`
        __eq__, __ne__, __lt__, __le__, __gt__, __ge__ = map(_question, ("==", "!=", "<", "<=", ">", ">="))

    def __bool__(self) -> bool:
        return self.shape_env.guard("!=", self._expression, ZERO)

    def __index__(self) -> int:
        return self.shape_env.specialize(self._expression)

    __int__ = __index__

    def __float__(self) -> float:
        return float(self.__index__())

    def __truediv__(self, other: Any) -> Any:
        return self.__index__() / other

    def __rtruediv__(self, other: Any) -> Any:
        return other / self.__index__()

    def __hash__(self) -> int:
        return hash(self._expression)

    def __str__(self) -> str:
        return str(self.expression)

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    # --- elsewhere ---

    def evaluate(self, values: Values) -> int:
        """The integer it is for these values of the symbols."""
        return self.expression.evaluate(values)

    def moved(self, shape_env: ShapeEnv) -> Any:
        """The same over the symbols of another `ShapeEnv`."""
        return sym_size(shape_env, shape_env.own(self.expression))


def moving(shape_env: ShapeEnv) -> Callable[[Any], Any]:
    """What moves sizes and numbers to another `ShapeEnv`, each expression once: kernels have the same ones many times.
    To be used while nothing new is relied on there."""
    moved_sizes: dict[Expression | str, Any] = {}

    def moved(size: Any) -> Any:
        key = size.expression if type(size) is SymSize else size.text
        if key not in moved_sizes:
            moved_sizes[key] = size.moved(shape_env)
        return moved_sizes[key]

    return moved


class SymScalar(_FloatBase):
    """A float computed from sizes, which operators take as a number. `isinstance(it, float)` holds.

    Nothing is known of it but how it is computed: whoever asks for more relies on every size in it.
    """

    __slots__ = ("formula", "shape_env", "text")

    formula: Formula
    text: str
    shape_env: ShapeEnv

    if not TYPE_CHECKING:
        __class__ = property(lambda self: float)

        def __eq__(self, other: object) -> bool:
            return self.text == other.text if type(other) is SymScalar else float(self) == other

        def __getattr__(self, name: str) -> Any:
            return getattr(float(self), name)

    def __float__(self) -> float:
        for leaf in self.formula.leaves():
            self.shape_env.specialize_leaf(leaf)
        return self.formula.example

    def __hash__(self) -> int:
        return hash(self.text)

    def hex(self) -> str:
        """What tells it apart from other floats."""
        return self.text

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    def evaluate(self, values: Values) -> float:
        return float(self.formula.evaluate(values))

    def moved(self, shape_env: ShapeEnv) -> Any:
        return _sym_float(shape_env, _moved(self.formula, shape_env))


def _sym_float(shape_env: ShapeEnv, formula: Formula) -> Any:
    scalar = object.__new__(SymScalar)
    scalar.shape_env, scalar.formula, scalar.text = shape_env, formula, _text(formula)
    return scalar


def _text(what: Any) -> str:
    """How a number is computed, in full."""
    if isinstance(what, Formula):
        return f"{getattr(what.function, '__name__', what.text)}({', '.join(map(_text, what.operands))})"
    return repr(what)


def _moved(what: Any, shape_env: ShapeEnv) -> Any:
    if isinstance(what, Expression):
        return shape_env.own(what)
    if isinstance(what, Formula):
        return replace(what, operands=tuple(_moved(each, shape_env) for each in what.operands))
    return what


def _float_operator(name: str) -> Callable[..., Any]:
    return lambda self, *others: getattr(float(self), name)(*others)


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "pow", "rpow", "neg", "abs", "bool",
              "lt", "le", "gt", "ge", "int"):  # fmt: skip
    setattr(SymScalar, f"__{_name}__", _float_operator(f"__{_name}__"))


def sym_size(shape_env: ShapeEnv, what: Any) -> Any:
    """The size of an expression: a plain integer if it is always the same."""
    expression = shape_env.simplest(Expression.of(what))
    if expression.constant is not None:
        return expression.constant
    size = object.__new__(SymSize)
    size.shape_env, size._expression = shape_env, expression
    return size


def expression_of(size: int) -> Expression:
    """A size as an expression."""
    return size.expression if type(size) is SymSize else Expression.of(size)


def is_symsize(size: object) -> bool:
    return type(size) is SymSize


def varies(number: object) -> bool:
    """Whether a size, or a float computed from sizes, differs from call to call."""
    return type(number) is SymSize or type(number) is SymScalar


def hint(size: int) -> int:
    """The size in the example. For choices of speed alone: nothing may be wrong for other sizes because of them."""
    return size.shape_env.example(size.expression) if type(size) is SymSize else size


def known_equal(left: int, right: int) -> bool:
    """Whether two sizes are equal whatever their symbols are; relies on nothing."""
    if type(left) is int and type(right) is int:  # most are
        return left == right
    if is_symsize(left) or is_symsize(right):
        shape_env = _shape_env_of(left, right)
        return bool(shape_env.known("==", expression_of(left), expression_of(right)))
    return surely_equal(left, right)


def known_at_least(size: int, least: int) -> bool:
    """Whether a size is no less than another whatever their symbols are; relies on nothing."""
    if is_symsize(size) or is_symsize(least):
        return bool(_shape_env_of(size, least).known(">=", expression_of(size), expression_of(least)))
    return size >= least


def same_sizes(left: Sequence[int], right: Sequence[int]) -> bool:
    """Whether two shapes are equal whatever their symbols are; relies on nothing."""
    return len(left) == len(right) and all(map(known_equal, left, right))


def greater(left: int, right: int) -> int:
    """`max` of two sizes that asks nothing."""
    return _extreme("max", left, right)


def lesser(left: int, right: int) -> int:
    """`min` of two sizes that asks nothing."""
    return _extreme("min", left, right)


def _extreme(function: str, left: int, right: int) -> int:
    if is_symsize(left) or is_symsize(right):
        shape_env = _shape_env_of(left, right)
        extreme: int = sym_size(shape_env, shape_env.apply(function, expression_of(left), expression_of(right)))
        return extreme
    return max(left, right) if function == "max" else min(left, right)


def _shape_env_of(left: int, right: int) -> ShapeEnv:
    size = left if type(left) is SymSize else right
    assert type(size) is SymSize
    return size.shape_env


def _combined(size: SymSize, other: Any, function: Callable[[Expression, Expression], Expression]) -> Any:
    if isinstance(other, int):
        return sym_size(size.shape_env, function(size._expression, expression_of(other)))
    if isinstance(other, float):
        return function(size.__index__(), other)  # type: ignore[arg-type]
    return NotImplemented


def _divided(name: str, left: Any, right: Any) -> Any:
    if not (isinstance(left, int) and isinstance(right, int)):
        return NotImplemented
    if right == 0:
        raise ZeroDivisionError("integer division or modulo by zero")
    shape_env = _shape_env_of(left, right)
    return sym_size(shape_env, shape_env.apply(name, expression_of(left), expression_of(right)))


def _guarded(relation: str, size: SymSize, other: object) -> bool:
    if isinstance(other, float):
        return RELATIONS[relation](size.__index__(), other)  # type: ignore[arg-type]
    if not isinstance(other, int):
        return relation == "!=" if relation in ("==", "!=") else NotImplemented
    if not is_symsize(other) and abs(other) >= LARGEST:  # no size is as large
        return RELATIONS[relation](0, other)
    return size.shape_env.guard(relation, size._expression, expression_of(other))


def is_symbolic_size(number: object) -> bool:
    """Whether this is a size, or computed from sizes: something to decide about, unlike numbers given to a graph."""
    if not isinstance(number, torch.SymInt | torch.SymFloat) or not is_symbolic(number) or number.node.env.closed:
        return False
    what = meaning(number)
    return isinstance(what, Expression) or all(isinstance(leaf, Symbol) for leaf in what.leaves())


def from_symbolic(number: Any) -> Any:
    """The size in a `torch.SymInt` of ours, or float in a `torch.SymFloat`; anything else as it is."""
    if not is_symbolic_size(number):
        return number
    what, shape_env = meaning(number), number.node.env
    return sym_size(shape_env, what) if isinstance(what, Expression) else _sym_float(shape_env, what)


def to_symbolic(number: Any) -> Any:
    """A size as PyTorch takes it; anything else as it is."""
    if type(number) is SymSize:
        return as_number(number.shape_env, number.expression)
    return as_number(number.shape_env, number.formula) if type(number) is SymScalar else number
