"""What lets one runner serve all sizes of a table: how it reads sizes of inputs, and computes what depends on them.

    holes for s0 and 4*s0, s0 the size of dimension 2 of input 1   →   readings ((1, False, 2),)
                                                                       numbers ((code of s0, places), (code of 4*s0, …))

A cache that grows has another length at every token: nothing is bound then, and no runner is kept for each length.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from smelt.ir.table.records import SECTIONS, TableHeader
from smelt.symbolic.expressions import SMALLEST, Atom, Expression, SizeGuard, Symbol
from smelt.symbolic.postfix import encode, guard_code, size_code


class Reading(NamedTuple):
    """Where the value of a symbol is: a size, or a stride, of an input."""

    symbol: Symbol
    input: int
    is_stride: bool
    dim: int


class Section(NamedTuple):
    """Where records of a kind are among the words of a table."""

    first: int
    records: int
    width: int


def section(words: Sequence[int], name: str) -> Section:
    begin = len(TableHeader._fields) + 3 * list(SECTIONS).index(name)
    return Section(*words[begin : begin + 3])


class SizesWriter:
    """Writes the `sizes` of a runner for one table."""

    def __init__(self, words: Sequence[int], readings: Sequence[Reading]) -> None:
        self._readings = readings
        self._symbols: dict[Atom, int] = {reading.symbol: place for place, reading in enumerate(readings)}
        self._numbers = section(words, "numbers")
        self._extra = 0
        self._facts = [self._fact(SizeGuard(">=", Expression.of(each.symbol) - Expression.of(SMALLEST)))
                       for each in readings]  # fmt: skip
        self._places: dict[Expression, list[int]] = {}
        self._constants: list[tuple[int, int]] = []

    def add_facts(self, facts: Iterable[SizeGuard]) -> None:
        self._facts += map(self._fact, facts)

    def add_limits(self, limits: Mapping[Expression, int]) -> None:
        """The most that expressions may be."""
        self.add_facts(SizeGuard("<=", size - Expression.of(most)) for size, most in limits.items())

    def add_hole(self, word: int, size: Expression) -> bool:
        """A word of the table is this number; False if it is of another section than the numbers."""
        place = word - self._numbers.first
        if not 0 <= place < self._numbers.records:
            return False
        self._places.setdefault(size, []).append(place)
        return True

    def add_constant(self, value: int, sizes: Sequence[Expression]) -> None:
        """A constant consists of these numbers."""
        first = self._numbers.records + self._extra
        self._constants.append((value, first))
        self._extra += len(sizes)
        for place, size in enumerate(sizes, first):
            self._places.setdefault(size, []).append(place)

    def complete(self, views: Sequence[int]) -> tuple[Any, ...]:
        """What a runner is given: readings of symbols (input, is a stride, dimension), facts, numbers (code, places),
        constants (value, first number), `views`, which are values in the arena whose layouts have holes, and how many
        numbers are behind those of the table."""
        return (
            tuple((each.input, each.is_stride, each.dim) for each in self._readings),
            tuple(dict.fromkeys(self._facts)),
            tuple((encode(size_code(size, self._symbols.get)), tuple(each)) for size, each in self._places.items()),
            tuple(self._constants),
            tuple(views),
            self._extra,
        )

    def _fact(self, fact: SizeGuard) -> bytes:
        return encode(guard_code(fact, self._symbols.get))
