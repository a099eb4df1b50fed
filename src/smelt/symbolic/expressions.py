"""Symbolic numbers: sizes and other integers that may differ from call to call, and the guards on them.

A `ShapeEnv` belongs to one compilation. Its symbols stand for integers that are at least two (0 and 1 behave unlike all
others, so code is compiled for them separately); integers computed from them are `Expression`s, polynomials in normal
form, so that equal ones are equal objects of Python. Whoever asks which way a comparison goes gets an answer: from the
bounds of the symbols if that is enough, else from the sizes of the example, and then the answer is kept as a
`SizeGuard` that compiled code may rely on and guards must check.

    s0 = shape_env.symbol("x.shape[0]", 7)     7 in the example
    (s0 + 1) * 2 - s0                          Expression s0 + 2
    shape_env.guard("<", s0, 1 + s0)           True, always
    shape_env.guard("==", s0, 7)               True, and the guard s0 - 7 == 0
"""

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Any

from smelt.base.fast_dataclass import dataclass

SMALLEST = 2
"""The least value of a symbol."""

LARGEST = 2**63 - 1
"""What guards compute with."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """An integer that is given at each call. `origin` is for whoever made it to find it again."""

    text: str
    example: int
    origin: Any = field(default=None, repr=False)
    shape_env: "ShapeEnv | None" = field(default=None, repr=False)

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _ATOMS) and self.text == other.text)


@dataclass(frozen=True, slots=True)
class DivModMinMax:
    """What no polynomial can say: a quotient, a remainder, the larger or the smaller of two."""

    function: str
    left: "Expression"
    right: "Expression"
    text: str

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _ATOMS) and self.text == other.text)


_ATOMS = (Symbol, DivModMinMax)  # a union would be made at every comparison
Atom = Symbol | DivModMinMax
Monomial = tuple[Atom, ...]

FUNCTIONS: dict[str, Callable[[int, int], int]] = {
    "//": operator.floordiv,
    "%": operator.mod,
    "max": max,
    "min": min,
}
RELATIONS: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Expression:
    """A polynomial over atoms with integer coefficients: no term is zero, each monomial is sorted."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        self.terms = terms
        self._hash = hash(frozenset(terms.items()))

    @classmethod
    def of(cls, value: "int | Symbol | DivModMinMax | Expression") -> "Expression":
        if isinstance(value, Expression):
            return value
        if isinstance(value, Symbol | DivModMinMax):
            return cls({(value,): 1})
        return cls({(): int(value)} if value else {})

    @property
    def constant(self) -> int | None:
        """The value if it is always the same."""
        if not self.terms:
            return 0
        return self.terms.get(()) if len(self.terms) == 1 else None

    @property
    def symbol(self) -> Symbol | None:
        """The symbol if it is nothing else."""
        if len(self.terms) == 1:
            ((monomial, factor),) = self.terms.items()
            if factor == 1 and len(monomial) == 1 and isinstance(monomial[0], Symbol):
                return monomial[0]
        return None

    def atoms(self) -> Iterable[Atom]:
        return {atom: None for monomial in self.terms for atom in monomial}

    def symbols(self) -> set[Symbol]:
        """Every symbol it depends on."""
        symbols: set[Symbol] = set()
        for atom in self.atoms():
            if isinstance(atom, Symbol):
                symbols.add(atom)
            else:
                symbols |= atom.left.symbols() | atom.right.symbols()
        return symbols

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and self._hash == other._hash and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    def __add__(self, other: "Expression") -> "Expression":
        terms = dict(self.terms)
        for monomial, factor in other.terms.items():
            total = terms.get(monomial, 0) + factor
            if total:
                terms[monomial] = total
            else:
                terms.pop(monomial, None)
        return Expression(terms)

    def __neg__(self) -> "Expression":
        return Expression({monomial: -factor for monomial, factor in self.terms.items()})

    def __sub__(self, other: "Expression") -> "Expression":
        return self + -other

    def __mul__(self, other: "Expression") -> "Expression":
        terms: dict[Monomial, int] = {}
        for left, factor in self.terms.items():
            for right, by in other.terms.items():
                monomial = tuple(sorted(left + right, key=lambda atom: atom.text))
                terms[monomial] = terms.get(monomial, 0) + factor * by
        return Expression({monomial: factor for monomial, factor in terms.items() if factor})

    def evaluate(self, values: Callable[[Symbol], int]) -> int:
        """The integer it is for these values of its symbols."""
        total = 0
        for monomial, factor in self.terms.items():
            for atom in monomial:
                if isinstance(atom, Symbol):
                    factor *= values(atom)
                else:
                    factor *= FUNCTIONS[atom.function](atom.left.evaluate(values), atom.right.evaluate(values))
            total += factor
        return total

    def __str__(self) -> str:
        words = []
        named = [([atom.text for atom in monomial], factor) for monomial, factor in self.terms.items()]
        for names, factor in sorted(named, key=lambda term: (-len(term[0]), term[0])):
            shown = [] if abs(factor) == 1 and names else [str(abs(factor))]
            words.append(("-" if factor < 0 else "") + "*".join(shown + names))
        return " + ".join(words).replace("+ -", "- ") or "0"

    __repr__ = __str__


ZERO, ONE = Expression({}), Expression({(): 1})


@dataclass(frozen=True, slots=True)
class SizeGuard:
    """`expression relation 0`, which held of the example and is relied on."""

    relation: str
    expression: Expression

    def holds(self, values: Callable[[Symbol], int]) -> bool:
        """Whether it is so for these values of the symbols."""
        return RELATIONS[self.relation](self.expression.evaluate(values), 0)

    def __str__(self) -> str:
        return f"{self.expression} {self.relation} 0"


COMPUTED = "computed"
"""The origin of a float that a graph takes out of a tensor it has computed: nobody knows it before the graph runs."""


FROM_DATA = "from data"
"""The origin of a size that an operator of the graph decides by its data: known once the operator has run."""

AS_SIZE = "as a size"
"""The origin of an integer from outside that is known to be a size: of no use as a tensor of one element."""


class DataDependent(RuntimeError):
    """The answer depends on a number that only running the graph can tell."""


class ShapeEnv:
    """The symbols of one compilation and the guards on them. Closed once code to check the guards is made."""

    def __init__(self) -> None:
        self.symbols: list[Symbol] = []
        self.from_data = False  # whether some of them are sizes that only data tell
        self.guards: dict[SizeGuard, None] = {}
        self.fixed: dict[Any, None] = {}  # given floats that are relied on
        self.computed: dict[Any, None] = {}  # floats that some numbers have none of: 1 / 0, the logarithm of -1
        self.decisions: dict[Any, Any] = {}  # by predicates of guards: a function, its operands, what it must yield
        self.closed = False
        self._same: dict[Symbol, Expression] = {}  # symbols that turned out to be other expressions
        self._least: dict[Atom, int] = {}  # what guards say that atoms are at least
        self._texts: set[str] = set()
        self.quiet = False  # an operator is asked for its results: it will be asked again for sizes below the least
        self.taken: dict[SizeGuard, None] = {}  # what only the least value decided of sizes that data tell
        self.formulas: dict[Any, Any] = {}  # what was made of floats, by function and operands: each once

    def symbol(self, text: str, example: int, origin: Any = None) -> Symbol:
        """A new integer that may differ from call to call; `text` says what it is."""
        if example < SMALLEST:
            raise ValueError(f"{text} is {example}: a symbol stands for at least {SMALLEST}")
        new = self.reading(text, example, origin)
        self.symbols.append(new)
        self.from_data = self.from_data or origin is FROM_DATA
        return new

    def reading(self, text: str, example: int, origin: Any = None) -> Symbol:
        """An integer for guards alone, of which nothing is known. Two that are called the same are not the same."""
        unique, copies = text, 1
        while unique in self._texts:
            copies += 1
            unique = f"{text} ({copies})"
        self._texts.add(unique)
        return Symbol(unique, example, origin, self)

    def with_examples(self, values: Callable[[Symbol], int]) -> "ShapeEnv":
        """The same symbols with these values as the example, and the guards from here."""
        shape_env = ShapeEnv()
        for symbol in self.symbols:
            shape_env.symbol(symbol.text, values(symbol), symbol.origin)
        for guard in self.guards:
            if shape_env.guard(guard.relation, shape_env.own(guard.expression), ZERO) is False:
                raise ValueError(f"{guard} does not hold")
        return shape_env

    def own(self, expression: Expression) -> Expression:
        """An expression over symbols of another `ShapeEnv`, over those of the same names here."""
        return self._own(expression, {symbol.text: Expression.of(symbol) for symbol in self.symbols})

    def _own(self, expression: Expression, known: dict[str, Expression]) -> Expression:
        """`known`: what symbols and functions with these texts are here."""
        total = ZERO
        for monomial, factor in expression.terms.items():
            product = Expression.of(factor)
            for atom in monomial:
                if atom.text not in known:
                    assert isinstance(atom, DivModMinMax)
                    left, right = self._own(atom.left, known), self._own(atom.right, known)
                    known[atom.text] = self.apply(atom.function, left, right)
                product = product * known[atom.text]
            total = total + product
        return self.simplest(total)

    def example(self, expression: Expression) -> int:
        """The integer an expression is in the example."""
        return expression.evaluate(lambda symbol: symbol.example)

    def simplest(self, expression: Expression) -> Expression:
        """The expression with everything put in that is known by now."""
        if not self._same or self._same.keys().isdisjoint(expression.symbols()):
            return expression
        total = ZERO
        for monomial, factor in expression.terms.items():
            product = Expression.of(factor)
            for atom in monomial:
                product = product * self._put_in(atom)
            total = total + product
        return total

    def _put_in(self, atom: Atom) -> Expression:
        if isinstance(atom, Symbol):
            return self._same.get(atom) or Expression.of(atom)
        return self.apply(atom.function, atom.left, atom.right)

    def apply(self, function: str, left: Expression, right: Expression) -> Expression:
        """`left // right`, `left % right`, `max(left, right)`, `min(left, right)`."""
        left, right = self.simplest(left), self.simplest(right)
        if left.constant is not None and right.constant is not None:
            return Expression.of(FUNCTIONS[function](left.constant, right.constant))
        if function in ("max", "min"):
            if self.known("<=", left, right):
                return right if function == "max" else left
            if self.known("<=", right, left):
                return left if function == "max" else right
        else:
            parts = _divided(left, right)
            if parts is not None:
                return parts if function == "//" else ZERO
            if self.known(">=", left, ZERO) and self.known("<", left, right):
                return ZERO if function == "//" else left
        text = f"(({left}){function}({right}))" if function in ("//", "%") else f"{function}({left}, {right})"
        return Expression.of(DivModMinMax(function, left, right, text))

    def known(self, relation: str, left: Expression, right: Expression) -> bool | None:
        """Which way a comparison goes for all values the symbols may have; None if that depends on them."""
        difference = self.simplest(left - right)
        if difference.constant is not None:
            return RELATIONS[relation](difference.constant, 0)
        answer = self._known(relation, difference)
        notes = answer is not None and self.from_data and not self.quiet and not self.closed
        if notes and any(symbol.origin is FROM_DATA for symbol in difference.symbols()):
            self.taken[SizeGuard(relation if answer else _OPPOSITE[relation], difference)] = None
        return answer

    def _known(self, relation: str, difference: Expression) -> bool | None:
        low, high = self._bounds(difference)
        if relation not in ("==", "!="):
            holds = RELATIONS[relation]
            hardest, easiest = (low, high) if relation[0] == ">" else (high, low)
            if hardest is not None and holds(hardest, 0):
                return True
            return False if easiest is not None and not holds(easiest, 0) else None
        if (low is not None and low > 0) or (high is not None and high < 0):
            return relation == "!="
        for known in ("==", "!="):
            if SizeGuard(known, difference) in self.guards or SizeGuard(known, -difference) in self.guards:
                return relation == known
        return None

    def _bounds(self, difference: Expression) -> tuple[int | None, int | None]:
        """The least and the greatest value, as far as they are seen. Quotients are no more than what is divided, and
        hardly less."""
        low, high = _bounds(difference, self._least)
        if low is None and (below := _without_quotients(difference, self._least, up=False)) is not None:
            low = _bounds(below, self._least)[0]
        if high is None and (above := _without_quotients(difference, self._least, up=True)) is not None:
            high = _bounds(above, self._least)[1]
        return low, high

    def _keep_least(self, guard: SizeGuard) -> None:
        """From a guard on one atom: what it is at least."""
        atoms = [monomial for monomial in guard.expression.terms if monomial]
        if len(atoms) != 1 or len(atoms[0]) != 1 or abs(guard.expression.terms[atoms[0]]) != 1:
            return
        ((atom,),) = atoms
        sign, rest = guard.expression.terms[atoms[0]], guard.expression.terms.get((), 0)
        edge, known = -sign * rest, _least(atom, self._least)
        relation = guard.relation if sign == 1 else _MIRRORED[guard.relation]
        if relation == "!=" and edge == known:
            self._least[atom] = edge + 1
        elif relation in (">", ">="):
            edge += relation == ">"
            self._least[atom] = edge if known is None else max(edge, known)

    def guard(self, relation: str, left: Expression, right: Expression) -> bool:
        """Which way a comparison goes; if that depends on the symbols, it goes as in the example from now on."""
        answer = self.known(relation, left, right)
        if answer is not None:
            return answer
        difference = self.simplest(left - right)
        answer = RELATIONS[relation](self.example(difference), 0)
        if _extent(difference) > LARGEST:  # guards could not compute it
            for symbol in sorted(difference.symbols(), key=self.symbols.index):
                self.specialize(Expression.of(symbol))
            return answer
        new = SizeGuard(relation if answer else _OPPOSITE[relation], difference)
        if new in self.guards:
            return answer
        if self.closed:
            raise RuntimeError(f"{new} was guarded after the code for the guards was made")
        self.guards[new] = None
        self._keep_least(new)
        if new.relation == "==":
            self._put_equal(difference)
        return answer

    def specialize(self, expression: Expression) -> int:
        """The integer an expression is; it is relied on from now on."""
        value = self.example(expression)
        self.guard("==", expression, Expression.of(value))
        return value

    def specialize_leaf(self, leaf: Any) -> None:
        """A symbol, or a float that is given at each call, is what it is in the example from now on."""
        if isinstance(leaf, Symbol):
            self.specialize(Expression.of(leaf))
        elif leaf.origin is COMPUTED:
            raise DataDependent(leaf.text)
        elif leaf not in self.fixed:
            if self.closed:
                raise RuntimeError(f"{leaf.text} was specialized after the code for the guards was made")
            self.fixed[leaf] = None

    def _put_equal(self, difference: Expression) -> None:
        """From `difference == 0`: a symbol that stands alone in it is the rest."""
        symbols: list[Symbol] = []
        for monomial, factor in difference.terms.items():
            if len(monomial) == 1 and isinstance(monomial[0], Symbol) and abs(factor) == 1:
                symbols.append(monomial[0])
        for symbol in sorted(symbols, key=self.symbols.index, reverse=True):  # the older one stays
            itself = Expression.of(symbol)
            rest = difference - itself if difference.terms[(symbol,)] == 1 else difference + itself
            rest = -rest if difference.terms[(symbol,)] == 1 else rest
            if symbol in rest.symbols():
                continue
            self._same[symbol] = rest
            for other, meaning in self._same.items():
                self._same[other] = self.simplest(meaning)
            return


def _extent(expression: Expression) -> int:
    """No part of the computation of the expression in the example is larger."""
    total = 0
    for monomial, factor in expression.terms.items():
        product = abs(factor)
        for atom in monomial:
            product *= atom.example if isinstance(atom, Symbol) else max(_extent(atom.left), _extent(atom.right)) + 1
        total += product
    return total


_MIRRORED = {"==": "==", "!=": "!=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
_OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


Least = Mapping[Atom, int]


def _bounds(expression: Expression, known: Least) -> tuple[int | None, int | None]:
    """The least and the greatest value, None where there is none or it is not seen.

    Each atom is its least value and something that is not negative; where all terms with such a part have one sign, the
    constant that remains is a bound.
    """
    shifted = ZERO
    for monomial, factor in expression.terms.items():
        product = Expression.of(factor)
        for atom in monomial:
            least = _least(atom, known)
            if least is None:
                return None, None
            product = product * (Expression.of(atom) + Expression.of(least))
        shifted = shifted + product
    rest = shifted.terms.get((), 0)
    signs = {factor > 0 for monomial, factor in shifted.terms.items() if monomial}
    return (rest if signs <= {True} else None), (rest if signs <= {False} else None)


def _least(atom: Atom, known: Least) -> int | None:
    """The least value of an atom, None if it may be negative without end. `known`: of atoms of which more is known."""
    least = known.get(atom)
    if least is not None:
        return least
    if isinstance(atom, Symbol):
        return SMALLEST
    (left, _), (right, _) = _bounds(atom.left, known), _bounds(atom.right, known)
    if atom.function == "%":
        return 0 if right is not None and right > 0 else None
    if atom.function == "//":
        if left is None or left < 0 or right is None or right < 1:
            return None
        return left // atom.right.constant if atom.right.constant is not None else 0
    if left is None or right is None:
        return left if right is None and atom.function == "max" else right if atom.function == "max" else None
    return max(left, right) if atom.function == "max" else min(left, right)


def _is_natural(atom: Atom, known: Least) -> bool:
    least = _least(atom, known)
    return least is not None and least >= 0


def _without_quotients(expression: Expression, known: Least, *, up: bool) -> Expression | None:
    """Something no less (`up`) or no more, with `x` in the place of `2 * (x // 2)`, or one less; None without any."""
    total, changed = ZERO, False
    for monomial, factor in expression.terms.items():
        part = Expression({monomial: factor})
        for place, atom in enumerate(monomial):
            if not isinstance(atom, DivModMinMax) or atom.function != "//":
                continue
            by, others = atom.right.constant, monomial[:place] + monomial[place + 1 :]
            if by is None or by < 1 or factor % by or not all(_is_natural(each, known) for each in others):
                continue
            divided = atom.left if (factor > 0) is up else atom.left - Expression.of(by - 1)
            part, changed = Expression({others: factor // by}) * divided, True
            break
        total = total + part
    return total if changed else None


def _divided(left: Expression, right: Expression) -> Expression | None:
    """The quotient if it is a polynomial."""
    if len(right.terms) != 1:
        return _divided_by_sum(left, right)
    ((by, divisor),) = right.terms.items()
    terms: dict[Monomial, int] = {}
    for monomial, factor in left.terms.items():
        rest = list(monomial)
        for atom in by:
            if atom not in rest:
                return None
            rest.remove(atom)
        if factor % divisor:
            return None
        terms[tuple(rest)] = factor // divisor
    return Expression(terms)


def _divided_by_sum(left: Expression, right: Expression) -> Expression | None:
    """Long division by a polynomial of several terms; None if something is left."""
    lead = max(right.terms, key=_rank)
    quotient = ZERO
    while left.terms:
        first = max(left.terms, key=_rank)
        rest, factor = list(first), left.terms[first]
        for atom in lead:
            if atom not in rest:
                return None
            rest.remove(atom)
        if factor % right.terms[lead]:
            return None
        part = Expression({tuple(rest): factor // right.terms[lead]})
        quotient, left = quotient + part, left - part * right
    return quotient


def _rank(monomial: Monomial) -> tuple[int, tuple[str, ...]]:
    """An order of monomials that multiplication keeps: by degree, then by names."""
    return len(monomial), tuple(atom.text for atom in monomial)
