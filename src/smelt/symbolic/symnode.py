"""Expressions as PyTorch sees them: `torch.SymInt` and `torch.SymFloat` over a node of ours.

`torch.SymInt` takes any object as its node that answers a protocol of some sixty methods, and then flows through
tensors, the dispatcher, functionalization and the C++ autograd engine like an integer; where one of them has to know
which way to go, it asks the node, and the node asks its `ShapeEnv`.

    as_size(shape_env, s0)  →  torch.SymInt;  t.new_empty(that).shape[0] * 2  →  torch.SymInt over 2*s0

A float that differs from call to call is a `Formula`: nothing is known of it but how it is computed; comparing it
specializes every number it was computed from.
"""

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.symbolic.expressions import COMPUTED, FUNCTIONS, ONE, RELATIONS, ZERO, Expression, ShapeEnv, Symbol


@dataclass(frozen=True, slots=True, eq=False)
class Formula:
    """A float: one that is given at each call (`function` is None), or a function of other numbers.

    `origin` is for whoever made it to find it again; `example` is its value in the example, or any that may be.
    """

    function: Callable[..., Any] | None
    operands: tuple[Any, ...]
    example: float
    text: str
    origin: Any = None

    def evaluate(self, values: Callable[[Any], Any]) -> Any:
        """The float it is for these values of its symbols and given floats."""
        if self.function is None:
            return values(self)
        return self.function(
            *[each.evaluate(values) if isinstance(each, Expression | Formula) else each for each in self.operands]
        )

    def leaves(self) -> "set[Symbol | Formula]":
        """The symbols and given floats it depends on."""
        if self.function is None:
            return {self}
        leaves: set[Symbol | Formula] = set()
        for each in self.operands:
            if isinstance(each, Expression):
                leaves |= each.symbols()
            elif isinstance(each, Formula):
                leaves |= each.leaves()
        return leaves

    @property
    def is_computed(self) -> bool:
        """Whether it depends on what a graph computes."""
        return any(isinstance(leaf, Formula) and leaf.origin is COMPUTED for leaf in self.leaves())


@dataclass(frozen=True, slots=True)
class Comparison:
    """A truth value that nobody has asked for yet."""

    relation: str
    left: Expression
    right: Expression


What = Expression | Formula | Comparison | bool


Binary = Callable[["Node", "Node"], "Node"]


def _arithmetic(function: Callable[[Any, Any], Any]) -> Binary:
    return lambda one, other: one._either(other, function)


def _applied(name: str) -> Binary:
    return lambda one, other: one._apply(other, name)


def _told(function: Callable[[int, int], int]) -> Binary:
    """Of integers that are specialized."""
    return lambda one, other: one.wrap_int(function(one.int_(), other.int_()))


def _compared(relation: str) -> Binary:
    return lambda one, other: one._compare(other, relation)


class Node:
    """The object inside a `torch.SymInt`, `SymFloat` or `SymBool`, with the methods PyTorch calls on it."""

    __slots__ = ("_what", "env")  # no `shape_env`: PyTorch would take it for one of its own

    def __init__(self, shape_env: ShapeEnv, what: What) -> None:
        self.env = shape_env
        self._what = what

    @property
    def what(self) -> What:
        """What it stands for, in the simplest form known by now."""
        if isinstance(self._what, Expression):
            self._what = self.env.simplest(self._what)
        return self._what

    # --- what it is ---

    def is_int(self) -> bool:
        return isinstance(self._what, Expression)

    def is_float(self) -> bool:
        return isinstance(self._what, Formula)

    def is_bool(self) -> bool:
        return isinstance(self._what, Comparison | bool)

    def is_nested_int(self) -> bool:
        return False

    def nested_int(self) -> None:
        return None

    def has_hint(self) -> bool:
        return True

    def is_symbolic(self) -> bool:
        return True

    def is_constant(self) -> bool:
        return isinstance(self.what, bool) or self.maybe_as_int() is not None

    def maybe_as_int(self) -> int | None:
        return self.what.constant if isinstance(self.what, Expression) else None

    def maybe_as_float(self) -> float | None:
        return None

    def maybe_as_bool(self) -> bool | None:
        return self._what if isinstance(self._what, bool) else None

    def clone(self) -> "Node":
        return self

    def __str__(self) -> str:
        return self.what.text if isinstance(self.what, Formula) else f"{self.what}"

    __repr__ = _graph_repr = __str__

    def wrap_int(self, number: int) -> "Node":
        return Node(self.env, Expression.of(number))

    def wrap_float(self, number: float) -> "Node":
        return Node(self.env, Formula(float, (number,), number, repr(number)))

    def wrap_bool(self, truth: bool) -> "Node":
        return Node(self.env, truth)

    # --- questions that are answered now ---

    def int_(self) -> int:
        return self.guard_int("", 0)

    def bool_(self) -> bool:
        return self.guard_bool("", 0)

    def guard_int(self, file: Any, line: int) -> int:
        assert isinstance(self._what, Expression)
        return self.env.specialize(self._what)

    def guard_float(self, file: Any, line: int) -> float:
        assert isinstance(self._what, Formula)
        for leaf in self._what.leaves():
            self.env.specialize_leaf(leaf)
        return self._what.example

    def guard_bool(self, file: Any, line: int) -> bool:
        what = self._what
        if isinstance(what, Comparison):
            return self.env.guard(what.relation, what.left, what.right)
        if isinstance(what, bool):
            return what
        return self.guard_float(file, line) != 0 if isinstance(what, Formula) else self.guard_int(file, line) != 0

    def expect_true(self, file: Any, line: int) -> bool:
        return self.guard_bool(file, line)

    guard_size_oblivious = guard_or_false = guard_or_true = expect_size = expect_true

    def statically_known_true(self, file: Any, line: int) -> bool:
        what = self._what
        return bool(isinstance(what, Comparison) and self.env.known(what.relation, what.left, what.right))

    # --- arithmetic ---

    def _integer(self, other: "Node", function: Callable[[Expression, Expression], Expression]) -> "Node":
        assert isinstance(self._what, Expression) and isinstance(other._what, Expression)
        return Node(self.env, self.env.simplest(function(self._what, other._what)))

    def _float(self, function: Callable[..., Any], *others: "Node") -> "Node":
        operands = (self._what, *(other._what for other in others))
        return Node(self.env, _formula(self.env, function, operands))

    def _either(self, other: "Node", function: Callable[[Any, Any], Any]) -> "Node":
        if isinstance(self._what, Formula) or isinstance(other._what, Formula):
            return self._float(function, other)
        return self._integer(other, function)

    add, sub, mul = map(_arithmetic, (operator.add, operator.sub, operator.mul))

    def neg(self) -> "Node":
        return Node(self.env, -self._what) if isinstance(self._what, Expression) else self._float(operator.neg)

    def pos(self) -> "Node":
        return self

    def abs(self) -> "Node":
        if not isinstance(self._what, Expression):
            return self._float(operator.abs)
        return self if self.env.guard(">=", self._what, ZERO) else self.neg()

    def _apply(self, other: "Node", name: str) -> "Node":
        if isinstance(self._what, Formula) or isinstance(other._what, Formula):
            return self._float(FUNCTIONS[name], other)
        return self._integer(other, lambda left, right: self.env.apply(name, left, right))

    def _divide(self, other: "Node", name: str) -> "Node":
        if isinstance(other._what, Expression) and self.env.guard("==", other._what, ZERO):
            raise ZeroDivisionError("integer division or modulo by zero" if name == "//" else "integer modulo by zero")
        return self._apply(other, name)

    def floordiv(self, other: "Node") -> "Node":
        return self._divide(other, "//")

    int_floordiv = floordiv

    def mod(self, other: "Node") -> "Node":
        return self._divide(other, "%")

    sym_max, sym_min = map(_applied, ("max", "min"))

    def truediv(self, other: "Node") -> "Node":
        return self._float(operator.truediv, other)

    int_truediv = float_truediv = truediv

    def float_pow(self, other: "Node") -> "Node":
        return self._float(operator.pow, other)

    def pow_by_natural(self, other: "Node") -> "Node":
        assert isinstance(self._what, Expression) and isinstance(other._what, Expression)
        power = ONE
        for _ in range(self.env.specialize(other._what)):
            power = power * self._what
        return Node(self.env, self.env.simplest(power))

    def pow(self, other: "Node") -> "Node":
        """As C++ asks, which takes the square root of a float by it."""
        integers = isinstance(self._what, Expression) and isinstance(other._what, Expression)
        return self.pow_by_natural(other) if integers else self.float_pow(other)

    lshift, rshift, bitwise_and, bitwise_or, bitwise_xor = map(
        _told, (operator.lshift, operator.rshift, operator.and_, operator.or_, operator.xor)
    )

    def sym_float(self) -> "Node":
        return self if isinstance(self._what, Formula) else self._float(float)

    def _to_int(self, function: Callable[[float], int]) -> "Node":
        if isinstance(self._what, Expression):
            return self
        return self.wrap_int(function(self.guard_float("", 0)))

    def trunc(self) -> "Node":
        return self._to_int(math.trunc)

    sym_int = trunc

    def floor(self) -> "Node":
        return self._to_int(math.floor)

    def ceil(self) -> "Node":
        return self._to_int(math.ceil)

    def round(self, digits: int | None = None) -> "Node":
        return self._to_int(round) if digits is None else self.wrap_float(round(self.guard_float("", 0), digits))

    def is_integer(self) -> "Node":
        return Node(self.env, self.is_int() or self.guard_float("", 0).is_integer())

    # --- comparison ---

    def _compare(self, other: "Node", relation: str) -> "Node":
        left, right = self._what, other._what
        if isinstance(left, Expression) and isinstance(right, Expression):
            known = self.env.known(relation, left, right)
            return Node(self.env, Comparison(relation, left, right) if known is None else known)
        return Node(self.env, RELATIONS[relation](_specialized(self), _specialized(other)))

    eq, ne, lt, le, gt, ge = map(_compared, RELATIONS)

    def sym_not(self) -> "Node":
        return Node(self.env, not self.guard_bool("", 0))

    def sym_and(self, other: "Node") -> "Node":
        return self._joined(other, decisive=False)

    def sym_or(self, other: "Node") -> "Node":
        return self._joined(other, decisive=True)

    def _joined(self, other: "Node", decisive: bool) -> "Node":
        """The conjunction or disjunction of two conditions. An operand that is a constant adds no guard: it decides, or
        the result is the other operand, which may never be asked."""
        for one, another in ((self, other), (other, self)):
            if isinstance(one._what, bool):
                return one if one._what is decisive else another
        first = self.guard_bool("", 0)
        return Node(self.env, first if first is decisive else other.guard_bool("", 0))

    and_, or_ = sym_and, sym_or

    def sym_ite(self, then: "Node", otherwise: "Node") -> "Node":
        return then if self.guard_bool("", 0) else otherwise

    def sym_sum(self, nodes: "Sequence[Node]") -> "Node":
        total = self.wrap_int(0)
        for node in nodes:
            total = total.add(node)
        return total

    # --- layouts, asked for a whole tensor at once ---

    def _in_order(self, order: "Sequence[int]", sizes: "Sequence[Node]", strides: "Sequence[Node]") -> "Node":
        expected: Expression = ONE
        for dimension in order:
            size, stride = sizes[dimension]._what, strides[dimension]._what
            assert isinstance(size, Expression) and isinstance(stride, Expression)
            if self.env.guard("==", size, ONE):
                continue
            if not self.env.guard("==", stride, expected):
                return Node(self.env, False)
            expected = self.env.simplest(expected * size)
        return Node(self.env, True)

    def is_contiguous(self, sizes: "Sequence[Node]", strides: "Sequence[Node]") -> "Node":
        return self._in_order(range(len(sizes) - 1, -1, -1), sizes, strides)

    def is_channels_last_contiguous_2d(self, sizes: "Sequence[Node]", strides: "Sequence[Node]") -> "Node":
        return self._in_order((1, 3, 2, 0), sizes, strides) if len(sizes) == 4 else Node(self.env, False)

    def is_channels_last_contiguous_3d(self, sizes: "Sequence[Node]", strides: "Sequence[Node]") -> "Node":
        return self._in_order((1, 4, 3, 2, 0), sizes, strides) if len(sizes) == 5 else Node(self.env, False)

    def _channels_last(self, order: "Sequence[int]", sizes: "Sequence[Node]", strides: "Sequence[Node]") -> "Node":
        """Whether strides grow from the channels outwards; where either order fits, they do not."""
        least: Expression = ZERO
        for dimension in order:
            size, stride = sizes[dimension]._what, strides[dimension]._what
            assert isinstance(size, Expression) and isinstance(stride, Expression)
            if dimension == 1 and self.env.guard("==", stride, ZERO):
                return Node(self.env, False)
            if self.env.guard("==", size, ZERO) or self.env.guard("<", stride, least):
                return Node(self.env, False)
            channels = strides[1]._what
            assert isinstance(channels, Expression)
            if dimension == 0 and self.env.guard("==", least, channels):
                return Node(self.env, False)
            least = stride * size if self.env.guard(">", size, ONE) else stride
        return Node(self.env, True)

    def is_channels_last_strides_2d(self, sizes: "Sequence[Node]", strides: "Sequence[Node]") -> "Node":
        return self._channels_last((1, 3, 2, 0), sizes, strides) if len(sizes) == 4 else Node(self.env, False)

    def is_channels_last_strides_3d(self, sizes: "Sequence[Node]", strides: "Sequence[Node]") -> "Node":
        return self._channels_last((1, 4, 3, 2, 0), sizes, strides) if len(sizes) == 5 else Node(self.env, False)

    def is_non_overlapping_and_dense(self, sizes: "Sequence[Node]", strides: "Sequence[Node]") -> "Node":
        shape_env = self.env
        places = sorted(range(len(sizes)), key=lambda place: _example(shape_env, strides[place]._what))
        return self._in_order(places, sizes, strides)

    def is_non_overlapping_and_dense_indicator(self, sizes: "Sequence[Node]", strides: "Sequence[Node]") -> "Node":
        return self.wrap_int(int(self.is_non_overlapping_and_dense(sizes, strides).bool_()))


Node.str = Node.__str__  # type: ignore[attr-defined]  # the protocol's name, which inside the class would hide Python's


def _example(shape_env: ShapeEnv, what: Any) -> Any:
    if isinstance(what, Expression):
        return shape_env.example(what)
    return what.example if isinstance(what, Formula) else what


def _specialized(node: Node) -> Any:
    return node.int_() if node.is_int() else node.guard_float("", 0)


Number = int | float | torch.SymInt | torch.SymFloat


def as_number(shape_env: ShapeEnv, what: Expression | Formula) -> Any:
    """The Python number of what is always the same, else a `torch.SymInt` or `torch.SymFloat`."""
    if isinstance(what, Formula):
        return torch.SymFloat(Node(shape_env, what))  # type: ignore[no-untyped-call]
    what = shape_env.simplest(what)
    return what.constant if what.constant is not None else torch.SymInt(Node(shape_env, what))  # type: ignore[no-untyped-call]


def meaning(number: Any) -> Any:
    """The expression or formula inside a symbolic number; a plain number as it is."""
    return number.node.what if is_symbolic(number) else number


def apply(function: Callable[..., Any], *numbers: Any) -> Any:
    """A function that returns a float, of numbers one of which is symbolic: computed at each call."""
    shape_env = next(number.node.env for number in numbers if is_symbolic(number))
    formula = _formula(shape_env, function, tuple(map(meaning, numbers)))
    return torch.SymFloat(Node(shape_env, formula))  # type: ignore[no-untyped-call]


_DIVISIONS = frozenset({operator.truediv, operator.floordiv, operator.mod})
_OF_ALL_NUMBERS = frozenset(
    {operator.add, operator.sub, operator.mul, operator.neg, operator.abs, abs, float, max, min}
)


def _formula(shape_env: ShapeEnv, function: Callable[..., Any], operands: tuple[Any, ...]) -> Formula:
    """What a function returns; if it may raise for other numbers, that it does not is relied on."""
    key = (function, *[each.hex() if isinstance(each, float) else each for each in operands])
    known: Formula | None = shape_env.formulas.get(key)
    if known is not None:
        return known
    divisor = operands[1] if function in _DIVISIONS else None
    if isinstance(divisor, Expression) and not shape_env.closed:
        shape_env.guard("==", divisor, ZERO)  # by 0, the next line raises
    example = function(*[_example(shape_env, each) for each in operands])
    formula = shape_env.formulas[key] = Formula(function, operands, example, f"{function.__name__}(…)")
    certain = function in _OF_ALL_NUMBERS or (divisor is not None and not isinstance(divisor, Formula))
    if not certain and not shape_env.closed and not formula.is_computed:
        shape_env.computed[formula] = None
    return formula


_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)


def is_symbolic(number: object) -> bool:
    """Whether this is a number of ours that differs from call to call."""
    return isinstance(number, _NUMBERS) and isinstance(number.node, Node)


def example_of(number: Any) -> Any:
    """The value in the example, without relying on it."""
    return _example(number.node.env, number.node.what) if is_symbolic(number) else number


def surely_equal(left: Any, right: Any) -> bool:
    """Whether two sizes are equal whatever their symbols are; guards nothing."""
    if type(left) is int and type(right) is int:  # most are
        return left == right
    if not (is_symbolic(left) or is_symbolic(right)):
        return bool(left == right)
    shape_env: ShapeEnv = (left if is_symbolic(left) else right).node.env
    return bool(shape_env.known("==", _expression(left), _expression(right)))


def _expression(number: Any) -> Expression:
    what = meaning(number)
    return what if isinstance(what, Expression) else Expression.of(what)
