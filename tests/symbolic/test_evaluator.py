"""Many expressions by one call, and postfix code of them in C: the numbers that evaluating each gives."""

import struct

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from smelt import _native
from smelt.symbolic.evaluator import evaluator
from smelt.symbolic.expressions import FUNCTIONS, DivModMinMax, Expression, Symbol
from smelt.symbolic.postfix import encode, size_code

SYMBOLS = [Symbol(name, 3) for name in ("x.shape[0]", "s1", "number")]


def computed(function: str, left: Expression, right: Expression) -> Expression:
    """A function of two expressions."""
    return Expression.of(DivModMinMax(function, left, right, f"({left}) {function} ({right})"))


EXPRESSIONS = st.recursive(
    st.sampled_from(SYMBOLS).map(Expression.of) | st.integers(-(2**40), 2**40).map(Expression.of),
    lambda inner: (
        st.tuples(inner, inner).map(lambda pair: pair[0] + pair[1])
        | st.tuples(inner, inner).map(lambda pair: pair[0] * pair[1])
        | inner.map(lambda one: -one)
        | st.tuples(st.sampled_from(sorted(FUNCTIONS)), inner, inner).map(lambda each: computed(*each))
    ),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(st.lists(EXPRESSIONS, max_size=4), st.lists(st.integers(2, 2**40), min_size=3, max_size=3))
def test_computes_what_each_expression_is(expressions: list[Expression], numbers: list[int]) -> None:
    values = dict(zip(SYMBOLS, numbers, strict=True))
    try:
        expected = [each.evaluate(values.__getitem__) for each in expressions]
    except ZeroDivisionError:
        with pytest.raises(ZeroDivisionError):
            evaluator(expressions)(values)
        return
    assert list(evaluator(expressions)(values)) == expected


@settings(max_examples=200, deadline=None)
@given(EXPRESSIONS, st.lists(st.integers(2, 2**40), min_size=3, max_size=3))
def test_postfix_code_gives_the_same(expression: Expression, numbers: list[int]) -> None:
    values = dict(zip(SYMBOLS, numbers, strict=True))
    assume(_largest(expression, values) < 2**63)
    code = encode(size_code(expression, lambda atom: SYMBOLS.index(atom) if isinstance(atom, Symbol) else None))
    value = _native.evaluate(code, struct.pack("<3q", *numbers))
    try:
        expected = expression.evaluate(values.__getitem__)
    except ZeroDivisionError:
        assert value is None
        return
    assert value == expected


def _largest(expression: Expression, values: dict[Symbol, int]) -> int:
    """A bound of the numbers that postfix code computes on the way."""
    total = 0
    for monomial, factor in expression.terms.items():
        part, inner = abs(factor), 0
        for atom in monomial:
            if isinstance(atom, Symbol):
                part *= values[atom]
            else:
                inner = max(inner, _largest(atom.left, values), _largest(atom.right, values))
                part *= max(1, _largest(atom.left, values), _largest(atom.right, values))
        total += max(part, inner)
    return total


def test_refuses_code_over_more_symbols() -> None:
    code = encode(size_code(Expression.of(SYMBOLS[2]), lambda atom: 2))
    with pytest.raises(ValueError, match="not an expression over so many symbols"):
        _native.evaluate(code, struct.pack("<2q", 1, 2))
    with pytest.raises(ValueError, match="not an expression over so many symbols"):
        _native.evaluate(b"", b"")


def test_takes_equal_symbols_of_another_origin() -> None:
    (value,) = evaluator([Expression.of(SYMBOLS[0])])({Symbol("x.shape[0]", 9, "elsewhere"): 9})
    assert value == 9


def test_nested_deeper_than_the_parser_allows() -> None:
    deep = Expression.of(SYMBOLS[1])
    for _ in range(300):
        deep = computed("max", deep, deep) if deep.symbols() == set() else computed("//", deep, Expression.of(1))
    assert list(evaluator([deep])({SYMBOLS[1]: 17})) == [17]
