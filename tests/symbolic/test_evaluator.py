"""Many expressions by one call: the numbers that evaluating each gives."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.symbolic.evaluator import evaluator
from smelt.symbolic.expressions import FUNCTIONS, DivModMinMax, Expression, Symbol

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


def test_takes_equal_symbols_of_another_origin() -> None:
    (value,) = evaluator([Expression.of(SYMBOLS[0])])({Symbol("x.shape[0]", 9, "elsewhere"): 9})
    assert value == 9


def test_nested_deeper_than_the_parser_allows() -> None:
    deep = Expression.of(SYMBOLS[1])
    for _ in range(300):
        deep = computed("max", deep, deep) if deep.symbols() == set() else computed("//", deep, Expression.of(1))
    assert list(evaluator([deep])({SYMBOLS[1]: 17})) == [17]
