"""Paths that differ in sizes alone, and what those sizes are in symbols.

    input f32[8, 20], view(v0, [160])     and     input f32[5, 20], view(v0, [100])     →     f32[s0, 20], view [20*s0]

A path is its skeleton and a row of integers: sizes and strides of inputs, and arguments that are sizes. Paths of one
skeleton are a family. What differs between the rows of two of them becomes symbols: a size of an input is one, other
integers are expressions over those that fit all rows seen, or symbols of their own. A guess that is wrong is found out:
the program of a family is taken for a path only if the expressions give exactly its row.
"""

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.lazy.steps import Fresh, Operand, Ref, Step, View
from smelt.symbolic.expressions import AS_SIZE, SMALLEST, Expression, ShapeEnv, Symbol

Row = tuple[int, ...]

_SIZE = object()
"""In the place of a size in a skeleton."""


@cache
def size_arguments(operator: torch._ops.OpOverload) -> frozenset[str]:
    """Arguments that are sizes: PyTorch says so by their types, and `arange` has numbers where it could have sizes."""
    schema = str(operator._schema)
    names = frozenset(re.findall(r"SymInt(?:\[\d*\])?\??(?:\[\d*\])? (\w+)", schema.partition(" -> ")[0]))
    if schema.startswith("aten::arange"):
        names |= {"start", "end", "step"}
    return names


class _Reading:
    """One walk along a path."""

    def __init__(self) -> None:
        self.row: list[int] = []

    def key(self, step: Step) -> tuple[Any, ...]:
        """What a step is but for its sizes, which are added to the row."""
        if step.operator is None:
            assert step.layout is not None
            shape, stride, offset, dtype = step.layout
            self.row += [*shape, *stride, offset]
            return (len(shape), dtype)
        sizes = size_arguments(step.operator)
        names = [argument.name for argument in step.operator._schema.arguments]
        key: list[Any] = [step.operator, step.form]
        key += [self._argument(name in sizes, value) for name, value in zip(names, step.args, strict=False)]
        for name, value in step.kwargs.items():
            key += [name, self._argument(name in sizes, value)]
        key += [(type(each), each.layout[3]) if isinstance(each, Fresh | View) else each for each in step.results]
        return tuple(key)

    def _argument(self, is_size: bool, value: Any) -> Any:
        if is_size and type(value) is int:
            self.row.append(value)
            return _SIZE
        if isinstance(value, tuple | list):
            return tuple([self._argument(is_size, item) for item in value])
        if isinstance(value, Ref):
            return (Ref, value.value)
        if isinstance(value, Operand):
            return (Operand, value.place)
        return (type(value), repr(value)) if isinstance(value, float | complex) else (type(value), value)


class Skeletons:
    """Numbers of the skeletons that were seen."""

    def __init__(self) -> None:
        self._known: dict[Any, int] = {}

    def read(self, path: Sequence[Step], numbers: Sequence[Any]) -> tuple[int, Row]:
        """The skeleton of a path, with the types of its numbers, and its sizes."""
        reading, number = _Reading(), -1
        for step in path:
            number = self._known.setdefault((number, reading.key(step)), len(self._known))
        types = tuple(map(type, numbers))
        return self._known.setdefault((number, types), len(self._known)), tuple(reading.row)


@dataclass(frozen=True, slots=True)
class SymbolicSizes:
    """A row in symbols: `expressions` has those that change, by their place. Those at `given` are inputs of a graph."""

    shape_env: ShapeEnv
    symbols: tuple[tuple[int, Symbol], ...]
    expressions: dict[int, Expression]
    argument_places: tuple[int, ...]
    row: Row

    def fits(self, row: Row) -> bool:
        """Whether this is another row of them: all else is as it was, and symbols may stand for its sizes."""
        values = {symbol: row[place] for place, symbol in self.symbols}
        if any(value < SMALLEST for value in values.values()):
            return False
        for place, (value, had) in enumerate(zip(row, self.row, strict=True)):
            known = self.expressions.get(place)
            if value != (had if known is None else known.evaluate(values.__getitem__)):
                return False
        return True


def in_symbols(path: Sequence[Step], row: Row, others: Sequence[Row]) -> SymbolicSizes | None:
    """What changes between a row and others of its family, in symbols; None where they cannot stand for it."""
    shapes, inputs = _places(path)
    rows = [each for each in others if all(size == row[place] or size >= SMALLEST for place, size in _at(each, shapes))]
    columns = list(zip(row, *rows, strict=True))
    changed = [place for place, column in enumerate(columns) if len(set(column)) > 1]
    if not changed or any(row[place] < SMALLEST for place in changed if place in shapes):
        return None
    shape_env = ShapeEnv()
    by_column: dict[Row, Expression] = {}
    symbols: list[tuple[int, Symbol]] = []
    expressions: dict[int, Expression] = {}
    argument_places: list[int] = []
    for place in sorted(changed, key=lambda each: (each not in shapes, each)):
        column = columns[place]
        expression = by_column.get(column)
        if expression is None and place not in shapes:
            expression = _fitting(column, by_column)
        if expression is None:
            if row[place] < SMALLEST:
                return None
            origin = None if place in inputs else AS_SIZE
            symbol = shape_env.symbol(f"size_{len(symbols)}", row[place], origin)
            symbols.append((place, symbol))
            expression = by_column[column] = Expression.of(symbol)
            argument_places += [] if place in inputs else [place]
        expressions[place] = expression
    return SymbolicSizes(shape_env, tuple(symbols), expressions, tuple(argument_places), row)


def _at(row: Row, places: set[int]) -> list[tuple[int, int]]:
    return [(place, row[place]) for place in places]


def _places(path: Sequence[Step]) -> tuple[set[int], set[int]]:
    """The places of a row that are sizes of inputs, and those that are anything of an input's layout."""
    shapes: set[int] = set()
    inputs: set[int] = set()
    reading = _Reading()
    for step in path:
        first = len(reading.row)
        reading.key(step)
        if step.layout is not None:
            shapes |= set(range(first, first + len(step.layout[0])))
            inputs |= set(range(first, len(reading.row) - 1))
    return shapes, inputs


def _fitting(column: Row, known: dict[Row, Expression]) -> Expression | None:
    """An expression over a few sizes that is each value of a column: a multiple, a multiple of a product, a sum."""
    several = list(known.items())
    products = [
        (tuple([a * b for a, b in zip(one, other, strict=True)]), left * right)
        for number, (one, left) in enumerate(several)
        for other, right in several[number:]
    ]
    for sizes, what in (*several, *products):
        if all(sizes) and all(value % size == 0 for value, size in zip(column, sizes, strict=True)):
            quotients = {value // size for value, size in zip(column, sizes, strict=True)}
            if len(quotients) == 1 and (factor := quotients.pop()):
                return what * Expression.of(factor)
    for sizes, what in several:
        differences = {value - size for value, size in zip(column, sizes, strict=True)}
        if len(differences) == 1:
            return what + Expression.of(differences.pop())
    for sizes, what in several:
        if (line := _line(column, sizes)) is not None:
            return what * Expression.of(line[0]) + Expression.of(line[1])
    return None


def _line(column: Row, sizes: Row) -> tuple[int, int] | None:
    """The factor and the constant of a line through all points."""
    other = next((place for place, size in enumerate(sizes) if size != sizes[0]), None)
    if other is None or (column[other] - column[0]) % (sizes[other] - sizes[0]):
        return None
    factor = (column[other] - column[0]) // (sizes[other] - sizes[0])
    constant = column[0] - factor * sizes[0]
    fits = all(factor * size + constant == value for value, size in zip(column, sizes, strict=True))
    return (factor, constant) if fits and factor else None
