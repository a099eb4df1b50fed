"""Expressions over sizes and numbers as postfix code, which artifacts contain and guards check.

    4*s0 + 1, s0 the first symbol   →   SYMBOL 0, PUSH 4, MUL, PUSH 1, ADD

csrc/executor/expression.c evaluates it.
"""

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from smelt.symbolic.expressions import Atom, DivModMinMax, SizeGuard
from smelt.symbolic.expressions import Expression as Polynomial

DEPTH = 32  # the most numbers on the stack of an expression


class Op(IntEnum):
    """Instructions of an expression: each takes its operands off the stack and puts its result there."""

    PUSH = 0  # operand: the number
    SYMBOL = 1  # operand: which of the variant's symbols
    ADD = 2
    SUB = 3
    MUL = 4
    DIV = 5  # rounds down, as Python does
    MOD = 6
    MIN = 7
    MAX = 8
    NEG = 9
    EQ = 10  # comparisons put 1 or 0
    NE = 11
    LT = 12
    LE = 13
    GT = 14
    GE = 15
    AND = 16  # of truth values
    OR = 17
    NOT = 18
    FLOAT = 19  # an integer as a float; the following work on floats, by their bits
    INT = 20  # truncates a float
    FADD = 21
    FSUB = 22
    FMUL = 23
    FDIV = 24
    FNEG = 25
    FABS = 26
    FPOW = 27
    FSQRT = 28
    FEXP = 29
    FLOG = 30
    FSIN = 31
    FCOS = 32
    FTANH = 33
    FFLOOR = 34
    FCEIL = 35
    FMIN = 36
    FMAX = 37
    FEQ = 38
    FLT = 39
    FLE = 40
    FMOD = 41  # with the sign of the divisor, as Python does


# How many numbers an instruction takes.
_UNARY = (
    Op.NEG, Op.NOT, Op.FLOAT, Op.INT, Op.FNEG, Op.FABS, Op.FSQRT, Op.FEXP, Op.FLOG, Op.FSIN, Op.FCOS, Op.FTANH,
    Op.FFLOOR, Op.FCEIL,
)  # fmt: skip
ARITY: dict[Op, int] = {op: 1 if op in _UNARY else 0 if op in (Op.PUSH, Op.SYMBOL) else 2 for op in Op}


class Instruction(NamedTuple):
    """One of an expression's."""

    op: Op
    operand: int = 0


Expression = tuple[Instruction, ...]


def number(value: int) -> Expression:
    """An expression that is always the same."""
    return (Instruction(Op.PUSH, value),)


def floating(value: float) -> Expression:
    """The same of a float: its bits."""
    return number(struct.unpack("<q", struct.pack("<d", value))[0])


def symbol(place: int) -> Expression:
    """The variant's symbol of this place."""
    return (Instruction(Op.SYMBOL, place),)


def apply(op: Op, *operands: Expression) -> Expression:
    """An operation on expressions: `apply(Op.MUL, symbol(0), number(4))`."""
    return (*(each for operand in operands for each in operand), Instruction(op))


_FUNCTIONS = {"//": Op.DIV, "%": Op.MOD, "max": Op.MAX, "min": Op.MIN}
_RELATIONS = {"==": Op.EQ, "!=": Op.NE, "<": Op.LT, "<=": Op.LE, ">": Op.GT, ">=": Op.GE}


def size_code(size: Polynomial, place: Callable[[Atom], int | None]) -> Expression:
    """A polynomial, term by term. `place`: of an atom, its number among the symbols; None: it is computed here."""
    total: Expression | None = None
    for monomial, factor in sorted(size.terms.items(), key=lambda term: -len(term[0])):
        product: Expression | None = None
        for atom in monomial:
            number_of = place(atom)
            code = symbol(number_of) if number_of is not None else definition_code(atom, place)
            product = code if product is None else apply(Op.MUL, product, code)
        if product is None:
            product = number(factor)
        elif factor != 1:
            product = apply(Op.MUL, product, number(factor))
        total = product if total is None else apply(Op.ADD, total, product)
    return number(0) if total is None else total


def definition_code(atom: Atom, place: Callable[[Atom], int | None]) -> Expression:
    """A quotient, remainder, maximum or minimum of polynomials."""
    assert isinstance(atom, DivModMinMax)
    return apply(_FUNCTIONS[atom.function], size_code(atom.left, place), size_code(atom.right, place))


def guard_code(guard: SizeGuard, place: Callable[[Atom], int | None]) -> Expression:
    """1 where it holds. Terms with a minus are on the right side, which is shorter: `a == b`, not `a + b * -1 == 0`."""
    left = Polynomial({monomial: factor for monomial, factor in guard.expression.terms.items() if factor > 0})
    right = left - guard.expression
    return apply(_RELATIONS[guard.relation], size_code(left, place), size_code(right, place))


def encode(code: Expression) -> bytes:
    """Two words for each instruction, as C reads them."""
    words = [word for instruction in code for word in instruction]
    return struct.pack(f"<{len(words)}q", *words)
