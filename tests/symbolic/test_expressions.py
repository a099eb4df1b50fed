"""Symbolic integers: normal form, bounds, facts, and PyTorch's view of them."""

import operator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.symbolic.expressions import FUNCTIONS, RELATIONS, Expression, ShapeEnv
from smelt.symbolic.symnode import as_number, example_of, is_symbolic, meaning, surely_equal


def numbers(shape_env: ShapeEnv, *examples: int) -> list[Any]:
    return [
        as_number(shape_env, Expression.of(shape_env.symbol(f"s{place}", each))) for place, each in enumerate(examples)
    ]


def test_equal_expressions_are_equal_objects() -> None:
    shape_env = ShapeEnv()
    a, b = numbers(shape_env, 7, 5)
    assert meaning((a + 1) * (b + 1)) == meaning(a * b + a + b + 1)
    assert meaning((a * b * 6) // (2 * b)) == meaning(a * 3)
    assert meaning((a * 6) % 3 + a) == meaning(a)
    assert (a - a) == 0 and type(a - a) is int
    assert not shape_env.guards


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (lambda a, b: a > 1, True),
        (lambda a, b: a == 1, False),
        (lambda a, b: a * b >= a, True),
        (lambda a, b: a * b - a > 1, True),
        (lambda a, b: a + b > 3, True),
        (lambda a, b: -a < -1, True),
        (lambda a, b: a // 2 >= 1, True),
        (lambda a, b: a % b >= 0, True),
        (lambda a, b: torch.sym_max(a, 4) >= 4, True),
        (lambda a, b: a + 1 != a, True),
    ],
)
def test_what_bounds_decide_is_no_fact(question: Any, answer: bool) -> None:
    shape_env = ShapeEnv()
    assert bool(question(*numbers(shape_env, 7, 5))) is answer
    assert not shape_env.guards


def test_what_the_example_decides_is_a_fact() -> None:
    shape_env = ShapeEnv()
    a, b = numbers(shape_env, 7, 5)
    assert a > b
    assert a != 9
    assert [str(fact) for fact in shape_env.guards] == ["s0 - s1 > 0", "s0 - 9 != 0"]
    assert a > b and a != 9
    assert len(shape_env.guards) == 2


def test_equal_symbols_become_one() -> None:
    shape_env = ShapeEnv()
    a, b = numbers(shape_env, 7, 7)
    c = a * b
    assert a == b
    assert meaning(c) == meaning(a * a)
    assert surely_equal(b + 1, a + 1)
    assert int(b) == 7
    assert meaning(a) == Expression.of(7)
    assert not is_symbolic(a + 0)


def test_after_the_guards_nothing_is_decided() -> None:
    shape_env = ShapeEnv()
    (a,) = numbers(shape_env, 7)
    shape_env.closed = True
    assert a >= 2
    with pytest.raises(RuntimeError, match="after the code for the guards was made"):
        int(a)


def test_division_by_zero_is_pythons() -> None:
    shape_env = ShapeEnv()
    a, b = numbers(shape_env, 7, 7)
    with pytest.raises(ZeroDivisionError):
        a // (a - b)


EXPRESSIONS = st.recursive(
    st.sampled_from(["a", "b", "c"]) | st.integers(-4, 9),
    lambda inner: st.tuples(st.sampled_from(["+", "-", "*", "//", "%", "max", "min"]), inner, inner),
    max_leaves=8,
)
PLAIN = {"+": operator.add, "-": operator.sub, "*": operator.mul, **FUNCTIONS}
IN_SYMBOLS = {**PLAIN, "max": torch.sym_max, "min": torch.sym_min}


def evaluate(tree: Any, names: dict[str, Any], functions: dict[str, Any]) -> Any:
    if isinstance(tree, tuple):
        return functions[tree[0]](*(evaluate(part, names, functions) for part in tree[1:]))
    return names[tree] if isinstance(tree, str) else tree


@settings(max_examples=400, deadline=None)
@given(EXPRESSIONS, EXPRESSIONS, st.tuples(*[st.integers(2, 9)] * 6), st.sampled_from(sorted(RELATIONS)))
def test_symbols_compute_as_numbers_do(left: Any, right: Any, values: tuple[int, ...], relation: str) -> None:
    """On the example always; on other values of the symbols wherever the facts hold."""
    shape_env = ShapeEnv()
    examples, others = dict(zip("abc", values[:3], strict=True)), dict(zip("abc", values[3:], strict=True))
    symbols = dict(zip("abc", numbers(shape_env, *values[:3]), strict=True))
    try:
        one, other = evaluate(left, symbols, IN_SYMBOLS), evaluate(right, symbols, IN_SYMBOLS)
    except ZeroDivisionError:
        with pytest.raises(ZeroDivisionError):
            evaluate(left, examples, PLAIN)
            evaluate(right, examples, PLAIN)
        return
    assert example_of(one) == evaluate(left, examples, PLAIN)
    answer = bool(RELATIONS[relation](one, other))
    assert answer == RELATIONS[relation](evaluate(left, examples, PLAIN), evaluate(right, examples, PLAIN))
    given_values = {symbol: others["abc"[place]] for place, symbol in enumerate(shape_env.symbols)}
    if all(guard.holds(given_values.__getitem__) for guard in shape_env.guards):
        assert answer == RELATIONS[relation](evaluate(left, others, PLAIN), evaluate(right, others, PLAIN))
        if is_symbolic(one):
            assert meaning(one).evaluate(given_values.__getitem__) == evaluate(left, others, PLAIN)


def test_quotients_are_no_more_than_what_is_divided() -> None:
    shape_env = ShapeEnv()
    a, b = numbers(shape_env, 7, 5)
    assert 2 * (a // 2) <= a and 2 * ((a - 1) // 2) < a
    assert 2 * (a // 2) >= a - 1
    assert 3 * (a // 3) * b <= a * b
    assert 4 * (a // 2) <= 2 * a
    assert not shape_env.guards
    assert 2 * (a // 3) < a - 1  # true of 7, not of 3
    assert len(shape_env.guards) == 1


def test_guards_on_one_number_say_what_it_is_at_least() -> None:
    shape_env = ShapeEnv()
    a, b = numbers(shape_env, 7, 5)
    half = (a - 1) // 2
    assert half != 0  # which it would be for 2
    assert half * b + half > half and (half + 1) * (b + 1) > b + 1
    assert b > 3
    assert a * b > 3 * a
    assert not 2 * a < 8
    assert [str(guard) for guard in shape_env.guards] == ["((s0 - 1)//(2)) != 0", "s1 - 3 > 0", "2*s0 - 8 >= 0"]


@settings(max_examples=200, deadline=None)
@given(st.integers(2, 9), st.integers(2, 9), st.integers(2, 9), st.integers(2, 9), st.data())
def test_what_is_known_holds_for_all_values(p: int, q: int, x: int, y: int, data: st.DataObject) -> None:
    """Random comparisons of quotients, after a random guard: what is known holds for other values that keep it."""
    shape_env = ShapeEnv()
    a, b = (Expression.of(shape_env.symbol(name, size)) for name, size in (("a", p), ("b", q)))
    small = st.integers(-3, 6)

    def made() -> Expression:
        of = a * Expression.of(data.draw(st.integers(1, 3))) + Expression.of(data.draw(st.integers(0, 4)))
        quotient = shape_env.apply("//", of, Expression.of(data.draw(st.integers(2, 4))))
        return quotient * Expression.of(data.draw(small)) + b * Expression.of(data.draw(small)) + a * quotient

    relations = st.sampled_from(sorted(RELATIONS))
    shape_env.guard(data.draw(relations), made(), Expression.of(data.draw(small)))
    shape_env.guard(data.draw(relations), a, Expression.of(data.draw(small)))
    values = {"a": x, "b": y}
    left, right, relation = made(), made(), data.draw(relations)
    answer = shape_env.known(relation, left, right)
    of = lambda symbol: values[symbol.text]  # noqa: E731
    if answer is not None and all(guard.holds(of) for guard in shape_env.guards):
        assert RELATIONS[relation](left.evaluate(of), right.evaluate(of)) is answer
