"""Sizes that compute like integers: what is known is answered, what is not is answered as in the example and kept."""

import math

import pytest
import torch

from smelt.symbolic.expressions import Expression, ShapeEnv
from smelt.symbolic.symnode import as_number
from smelt.symbolic.symsize import (
    SymScalar,
    SymSize,
    from_symbolic,
    greater,
    hint,
    is_symsize,
    known_at_least,
    known_equal,
    lesser,
    same_sizes,
    sym_size,
    to_symbolic,
    varies,
)


@pytest.fixture
def shape_env() -> ShapeEnv:
    return ShapeEnv()


@pytest.fixture
def rows(shape_env: ShapeEnv) -> int:
    found: int = sym_size(shape_env, shape_env.symbol("s0", 7))
    return found


@pytest.fixture
def cols(shape_env: ShapeEnv, rows: int) -> int:
    found: int = sym_size(shape_env, shape_env.symbol("s1", 5))
    return found


def test_arithmetic_is_exact_and_relies_on_nothing(shape_env: ShapeEnv, rows: int, cols: int) -> None:
    assert str(rows * 4 + 1) == "4*s0 + 1" and str(2 - rows) == "-s0 + 2" and str(-rows) == "-s0"
    assert str((rows * cols + cols) // cols) == "s0 + 1"
    assert str((rows * rows - 1) // (rows + 1)) == "s0 - 1" and (rows * rows - 1) % (rows + 1) == 0
    assert (rows * 16) % 8 == 0 and type(rows - rows) is int and 1 % rows == 1 and 1 // rows == 0
    assert [size.evaluate(lambda symbol: 10) for size in (rows // 3, rows % 4, -(-rows // 4))] == [3, 2, 3]  # type: ignore[attr-defined]
    assert isinstance(rows, int) and not isinstance(rows, str) and is_symsize(rows) and not is_symsize(7)
    assert rows * 4 > rows and rows >= 2 and rows != 1 and rows and hash(rows + cols) == hash(cols + rows)
    assert rows <= 2**63 - 1 and rows > -(2**63)
    assert not shape_env.guards


def test_questions_that_depend_are_kept(shape_env: ShapeEnv, rows: int, cols: int) -> None:
    assert rows > cols and rows != cols and sorted([rows, 6, cols], key=lambda size: size) == [cols, 6, rows]
    texts = {str(fact) for fact in shape_env.guards}
    assert {"s0 - s1 > 0", "s0 - 6 > 0"} <= texts
    assert list(range(rows)) == list(range(7)) and "s0 - 7 == 0" in {str(fact) for fact in shape_env.guards}
    assert rows == 7 and type(sym_size(shape_env, Expression.of(shape_env.symbols[0]))) is int


def test_what_asks_nothing(shape_env: ShapeEnv, rows: int, cols: int) -> None:
    assert hint(rows * cols) == 35 and hint(3) == 3
    assert not known_equal(rows, 7) and known_equal(rows + 0, rows) and known_equal(3, 3)
    assert not same_sizes((rows, 7), (7, 7)) and not same_sizes((rows,), (rows, 1)) and same_sizes((rows, 1), (rows, 1))
    assert known_at_least(rows * 8, 16) and not known_at_least(rows, 7)
    assert greater(rows, 3).evaluate(lambda symbol: 2) == 3 and lesser(rows, 3).evaluate(lambda symbol: 9) == 3  # type: ignore[attr-defined]
    assert not shape_env.guards


def test_what_was_found_equal_is_known(shape_env: ShapeEnv, rows: int) -> None:
    assert (rows + 1) // 2 * 2 != rows
    other = shape_env.with_examples(lambda symbol: 9)
    again = rows.moved(other)  # type: ignore[attr-defined]
    assert [str(fact) for fact in other.guards] == [str(fact) for fact in shape_env.guards]
    assert not known_equal((again + 1) // 2 * 2, again) and hint(again) == 9
    with pytest.raises(ValueError, match="does not hold"):
        shape_env.with_examples(lambda symbol: 8)


def test_floats_are_kept_as_they_are_computed(shape_env: ShapeEnv, rows: int) -> None:
    number = from_symbolic(1 / to_symbolic(rows))
    assert type(number) is SymScalar and isinstance(number, float) and varies(number) and not shape_env.guards
    assert number.evaluate(lambda symbol: 4) == 0.25 and number == from_symbolic(1 / to_symbolic(rows))
    assert number != from_symbolic(2 / to_symbolic(rows)) and str(number) != str(from_symbolic(2 / to_symbolic(rows)))
    assert math.isclose(number * 7, 1.0) and [str(fact) for fact in shape_env.guards] == ["s0 - 7 == 0"]


def test_to_pytorch_and_back(shape_env: ShapeEnv, rows: int) -> None:
    symbolic = to_symbolic(rows * 2)
    assert isinstance(symbolic, torch.SymInt) and str(from_symbolic(symbolic)) == "2*s0"
    assert to_symbolic(3) == 3 and from_symbolic(3) == 3
    assert type(from_symbolic(as_number(shape_env, Expression.of(shape_env.symbols[0])))) is SymSize


def test_square_roots_that_libtorch_takes_by_pow(shape_env: ShapeEnv) -> None:
    size = to_symbolic(sym_size(shape_env, shape_env.symbol("s0", 6)))
    root = torch.sym_float(size).node.pow(torch.sym_float(size).node.wrap_float(0.5))
    assert root.is_float() and root.guard_float("", 0) == math.sqrt(6)
    assert hint(from_symbolic(torch.SymInt(size.node.pow(size.node.wrap_int(2))))) == 36
