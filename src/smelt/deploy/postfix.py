"""Sizes, guards and formulas over the symbols of a variant, as postfix code.

    4*s0 + 1, s0 the first symbol   →   SYMBOL 0, PUSH 4, MUL, PUSH 1, ADD
"""

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from smelt.deploy.errors import ExportError
from smelt.ir.artifact.machine import NumberCheck
from smelt.symbolic.expressions import Atom, DivModMinMax, Expression, SizeGuard
from smelt.symbolic.postfix import Expression as Code
from smelt.symbolic.postfix import Op, apply, floating, guard_code, number, size_code, symbol
from smelt.symbolic.symnode import Formula
from smelt.symbolic.symsize import SymScalar, expression_of, is_symsize

# Of Python's functions of floats.
FORMULAS: dict[Callable[..., Any], Op] = {
    operator.add: Op.FADD,
    operator.sub: Op.FSUB,
    operator.mul: Op.FMUL,
    operator.truediv: Op.FDIV,
    operator.mod: Op.FMOD,
    operator.pow: Op.FPOW,
    pow: Op.FPOW,
    math.pow: Op.FPOW,
    operator.neg: Op.FNEG,
    operator.abs: Op.FABS,
    abs: Op.FABS,
    math.fabs: Op.FABS,
    math.sqrt: Op.FSQRT,
    math.exp: Op.FEXP,
    math.log: Op.FLOG,
    math.sin: Op.FSIN,
    math.cos: Op.FCOS,
    math.tanh: Op.FTANH,
    min: Op.FMIN,
    max: Op.FMAX,
}


class Postfix:
    """Code over the symbols of one variant: by name, their places and whether they are floats."""

    def __init__(self, symbols: Mapping[str, tuple[int, bool]]) -> None:
        self._symbols = symbols

    def size(self, size: Any) -> Code:
        """A size: a number or a symbolic one."""
        if is_symsize(size):
            return self.expression(size.expression)
        return number(int(size))

    def operand(self, what: Any) -> Code:
        """A number that kernels or programs are given: an integer, or a float by its bits."""
        if isinstance(what, Expression):
            return self.expression(what)
        if isinstance(what, Formula) or type(what) is SymScalar:
            return self.floating(what.formula if type(what) is SymScalar else what)
        if type(what) is float:
            return floating(what)
        return self.expression(expression_of(what))

    def expression(self, expression: Expression) -> Code:
        """A polynomial."""
        return size_code(expression, self._place)

    def guard(self, guard: SizeGuard) -> Code:
        """1 where it holds."""
        return guard_code(guard, self._place)

    def _place(self, atom: Atom) -> int | None:
        return None if isinstance(atom, DivModMinMax) else self._symbols[atom.text][0]

    def comparison(self, check: NumberCheck) -> Code:
        """1 where it holds."""
        left, right = self.floating(check.left.what), self.floating(check.right.what)
        if check.relation in (">", ">="):
            left, right = right, left
        op = {"==": Op.FEQ, "!=": Op.FEQ, "<": Op.FLT, ">": Op.FLT, "<=": Op.FLE, ">=": Op.FLE}[check.relation]
        compared = apply(op, left, right)
        return compared if (check.relation != "!=") == check.holds else apply(Op.NOT, compared)

    def floating(self, what: Any) -> Code:
        """A number as a float, by its bits."""
        if isinstance(what, Expression):
            return apply(Op.FLOAT, self.expression(what))
        if not isinstance(what, Formula):
            return floating(float(what))
        if what.function is None:
            return symbol(self._symbols[str(what.text)][0])
        if what.function is float:
            return self.floating(what.operands[0])
        refuse_unknown(what)
        return apply(FORMULAS[what.function], *map(self.floating, what.operands))


def refuse_unknown(what: Any) -> None:
    """Raise `ExportError` for a number that is computed by a function that a file has no code for."""
    if not isinstance(what, Formula) or what.function is None:
        return
    if what.function is not float and what.function not in FORMULAS:
        name = getattr(what.function, "__name__", what.function)
        raise ExportError(f"a number is computed by {name}, which needs Python", hint="compute it with tensors")
    for each in what.operands:
        refuse_unknown(each)
