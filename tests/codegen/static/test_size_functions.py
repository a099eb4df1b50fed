"""Size expressions as functions in the loop form: every instruction computes what Python, and so C, would."""

import math
import operator
import struct
from collections.abc import Callable
from typing import Any

import pytest

from smelt.codegen.processors import host
from smelt.codegen.static.expressions import size_module, symbols_of
from smelt.symbolic.postfix import ARITY, Op, apply, floating, number, symbol
from tests.loop_reference import run

INTEGERS = [(7, 2), (-7, 2), (7, -2), (-7, -2), (0, 3), (5, 5)]
FLOATS = [(2.5, 1.25), (0.5, 3.0), (3.0, 3.0), (7.75, 2.0)]
EXPECTED: dict[Op, Callable[..., Any]] = {
    Op.ADD: operator.add, Op.SUB: operator.sub, Op.MUL: operator.mul, Op.DIV: operator.floordiv, Op.MOD: operator.mod,
    Op.MIN: min, Op.MAX: max, Op.NEG: operator.neg, Op.EQ: operator.eq, Op.NE: operator.ne, Op.LT: operator.lt,
    Op.LE: operator.le, Op.GT: operator.gt, Op.GE: operator.ge, Op.AND: lambda a, b: bool(a and b),
    Op.OR: lambda a, b: bool(a or b), Op.NOT: operator.not_, Op.FLOAT: float, Op.INT: int,
    Op.FADD: operator.add, Op.FSUB: operator.sub, Op.FMUL: operator.mul, Op.FDIV: operator.truediv,
    Op.FNEG: operator.neg, Op.FABS: abs, Op.FPOW: pow, Op.FSQRT: math.sqrt, Op.FEXP: math.exp, Op.FLOG: math.log,
    Op.FSIN: math.sin, Op.FCOS: math.cos, Op.FTANH: math.tanh, Op.FFLOOR: lambda x: float(math.floor(x)),
    Op.FCEIL: lambda x: float(math.ceil(x)), Op.FMIN: min, Op.FMAX: max, Op.FEQ: operator.eq, Op.FLT: operator.lt,
    Op.FLE: operator.le, Op.FMOD: operator.mod,
}  # fmt: skip


def bits(value: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def computed(op: Op, *args: int) -> int:
    """By the function of an expression whose operands are symbols."""
    code = apply(op, *map(symbol, range(len(args))))
    found = run(size_module([(code, "size")], host()), "size", *args)
    return int(found) - (1 << 64) if int(found) >> 63 else int(found)


@pytest.mark.parametrize("op", [op for op in Op if ARITY[op]], ids=lambda op: op.name)
def test_every_instruction_computes_what_python_would(op: Op) -> None:
    is_float = op > Op.FLOAT
    for args in FLOATS if is_float else INTEGERS:
        given = args[: ARITY[op]]
        found = computed(op, *(map(bits, given) if is_float else map(int, given)))
        expected = EXPECTED[op](*given)
        if isinstance(expected, float):
            assert math.isclose(struct.unpack("<d", struct.pack("<q", found))[0], expected, rel_tol=1e-15)
        else:
            assert found == int(expected)


def test_a_zero_divisor_gives_zero() -> None:
    assert computed(Op.DIV, 7, 0) == computed(Op.MOD, 7, 0) == 0


def test_expressions_are_functions_of_the_symbols_they_read() -> None:
    code = apply(Op.ADD, apply(Op.MUL, symbol(3), number(4)), symbol(1))
    assert symbols_of(code) == [1, 3]
    assert run(size_module([(code, "size")], host()), "size", 5, 100) == 405
    constant = apply(Op.INT, apply(Op.FMUL, floating(2.5), floating(4.0)))
    assert run(size_module([(constant, "size")], host()), "size") == 10
