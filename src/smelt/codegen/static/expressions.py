"""Size expressions of an artifact as functions in the loop form, which compute what `csrc/executor/expression.c` would.

    symbol(0) * 4 + 1     →   function @smelt.size0(i64 %s0) -> i64
"""

from collections.abc import Iterable

import torch

from smelt.codegen.loops.builder import Builder, param
from smelt.codegen.loops.scalars import cast, compute
from smelt.device import Target
from smelt.ir.loops import Function, Module, Value
from smelt.symbolic.postfix import ARITY, Expression, Op

# Scalar operations of kernels. A zero divisor gives zero, where C refuses: no valid size uses it.
_INTEGERS = {
    Op.ADD: "add", Op.SUB: "sub", Op.MUL: "mul", Op.DIV: "floordiv", Op.MOD: "remainder", Op.MIN: "minimum",
    Op.MAX: "maximum", Op.NEG: "neg", Op.EQ: "eq", Op.NE: "ne", Op.LT: "lt", Op.LE: "le", Op.GT: "gt", Op.GE: "ge",
}  # fmt: skip
_FLOATS = {
    Op.FADD: "add", Op.FSUB: "sub", Op.FMUL: "mul", Op.FDIV: "div", Op.FMOD: "remainder", Op.FNEG: "neg",
    Op.FABS: "abs", Op.FPOW: "pow", Op.FSQRT: "sqrt", Op.FEXP: "exp", Op.FLOG: "log", Op.FSIN: "sin", Op.FCOS: "cos",
    Op.FTANH: "tanh", Op.FFLOOR: "floor", Op.FCEIL: "ceil", Op.FEQ: "eq", Op.FLT: "lt", Op.FLE: "le",
}  # fmt: skip


def symbols_of(code: Expression) -> list[int]:
    """The symbols that an expression reads: the parameters of its function."""
    return sorted({operand for op, operand in code if op == Op.SYMBOL})


def size_module(named: Iterable[tuple[Expression, str]], target: Target) -> Module:
    """A function of i64 for each expression, by name."""
    functions, helpers = list[Function](), dict[str, tuple[Function, ...]]()
    for code, name in named:
        b = Builder(target, name)
        params = {place: param(f"s{place}", "i64") for place in symbols_of(code)}
        b.give(_value(b, code, params))
        functions.append(b.function(name, list(params.values()), result="i64"))
        helpers |= b.helpers
    return Module(tuple(functions), tuple(each for group in helpers.values() for each in group))


def _value(b: Builder, code: Expression, symbols: dict[int, Value]) -> Value:
    stack: list[Value] = []
    for op, operand in code:
        if op == Op.PUSH:
            stack.append(b.const("i64", operand))
        elif op == Op.SYMBOL:
            stack.append(symbols[operand])
        else:
            args = [stack.pop() for _ in range(ARITY[op])][::-1]
            result = _apply(b, Op(op), args)
            wide = b.convert("zext", result, "i64") if result.kind == "i1" else result
            stack.append(b.bits(wide) if wide.kind == "f64" else wide)
    return stack.pop()


def _apply(b: Builder, op: Op, args: list[Value]) -> Value:
    if op in _INTEGERS:
        return compute(b, _INTEGERS[op], args, torch.int64)
    if op in (Op.AND, Op.OR):
        return b.binary(op.name.lower(), *(b.icmp("ne", each, 0) for each in args))
    if op == Op.NOT:
        return b.icmp("eq", args[0], 0)
    if op == Op.FLOAT:
        return cast(b, args[0], torch.int64, torch.float64)
    floats = [b.from_bits(each) for each in args]
    if op == Op.INT:
        return cast(b, floats[0], torch.float64, torch.int64)
    if op in (Op.FMIN, Op.FMAX):
        return b.select(b.fcmp("ole" if op == Op.FMIN else "oge", *floats), *args)
    return compute(b, _FLOATS[op], floats, torch.float64)
