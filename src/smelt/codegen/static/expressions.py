"""Size expressions of an artifact → LLVM text: `Text.size` computes what `csrc/executor/expression.c` would.

    symbol(0) * 4 + 1     →   %v1 = mul i64 %s0, 4    %v2 = add i64 %v1, 1
"""

from collections.abc import Callable, Sequence

import torch

from smelt.codegen.loops.builder import Builder, param
from smelt.codegen.loops.scalars import compute
from smelt.device import Target
from smelt.ir.loops import Function, Module
from smelt.symbolic.postfix import ARITY, Expression, Op

_INTEGER = {Op.ADD: "add", Op.SUB: "sub", Op.MUL: "mul"}
_COMPARE = {Op.EQ: "eq", Op.NE: "ne", Op.LT: "slt", Op.LE: "sle", Op.GT: "sgt", Op.GE: "sge"}
_FLOAT = {Op.FADD: "fadd", Op.FSUB: "fsub", Op.FMUL: "fmul", Op.FDIV: "fdiv"}
_FLOAT_COMPARE = {Op.FEQ: "oeq", Op.FLT: "olt", Op.FLE: "ole"}
# Our own, which `math_module` defines.
FUNCTIONS = {
    Op.FPOW: "pow", Op.FEXP: "exp", Op.FLOG: "log", Op.FSIN: "sin", Op.FCOS: "cos", Op.FTANH: "tanh",
    Op.FMOD: "remainder",
}  # fmt: skip
_ROUNDED = {Op.FSQRT: "sqrt", Op.FFLOOR: "floor", Op.FCEIL: "ceil", Op.FABS: "fabs"}


class Text:
    """A function in the making, line by line."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.declared: set[str] = set()
        self.functions: set[str] = set()
        self._count = 0

    def fresh(self, stem: str = "v") -> str:
        self._count += 1
        return f"%{stem}{self._count}"

    def op(self, text: str) -> str:
        """The name of an instruction's result."""
        name = self.fresh()
        self.lines.append(f"  {name} = {text}")
        return name

    def do(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")

    def block(self) -> str:
        """A new label; `label` begins it."""
        return self.fresh("b")[1:]

    def require(self, condition: str, fallback: str) -> None:
        """Go on where a condition holds, else at a label."""
        following = self.block()
        self.do(f"br i1 {condition}, label %{following}, label %{fallback}")
        self.label(following)

    # Size expressions.

    def size(self, code: Expression, symbols: Sequence[str]) -> str:
        """An i64, as text: a constant or the name of a value."""
        stack: list[str] = []
        for op, operand in code:
            if op == Op.PUSH:
                stack.append(str(operand))
            elif op == Op.SYMBOL:
                stack.append(symbols[operand])
            else:
                args = [stack.pop() for _ in range(ARITY[op])][::-1]
                stack.append(self._apply(Op(op), args))
        return stack.pop()

    def _apply(self, op: Op, args: list[str]) -> str:
        if op in _INTEGER:
            constant = _constant(op, args)
            return constant if constant is not None else self.op(f"{_INTEGER[op]} i64 {args[0]}, {args[1]}")
        if op in _COMPARE:
            return self._truth(self.op(f"icmp {_COMPARE[op]} i64 {args[0]}, {args[1]}"))
        if op in _OTHERS:
            return _OTHERS[op](self, *args)
        if op in _FLOAT:
            a, b = map(self._float, args)
            return self._bits(self.op(f"{_FLOAT[op]} double {a}, {b}"))
        if op in _FLOAT_COMPARE:
            a, b = map(self._float, args)
            return self._truth(self.op(f"fcmp {_FLOAT_COMPARE[op]} double {a}, {b}"))
        if op in _ROUNDED:
            return self._bits(self._intrinsic(_ROUNDED[op], self._float(args[0])))
        self.functions.add(FUNCTIONS[op])
        operands = ", ".join(f"double {self._float(each)}" for each in args)
        return self._bits(self.op(f"call double @smelt.{FUNCTIONS[op]}({operands})"))

    def _truth(self, name: str) -> str:
        return self.op(f"zext i1 {name} to i64")

    def _float(self, bits: str) -> str:
        return self.op(f"bitcast i64 {bits} to double")

    def _bits(self, name: str) -> str:
        return self.op(f"bitcast double {name} to i64")

    def _intrinsic(self, name: str, *args: str) -> str:
        self.declared.add(f"declare double @llvm.{name}.f64({', '.join(['double'] * len(args))})")
        return self.op(f"call double @llvm.{name}.f64({', '.join(f'double {each}' for each in args)})")

    def _divided(self, a: str, b: str) -> str:
        """Rounds down. Division by zero counts as division by one; no valid size uses it."""
        safe = self._not_zero(b)
        quotient, less = self.op(f"sdiv i64 {a}, {safe}"), self._is_below(a, safe)
        return self.op(f"sub i64 {quotient}, {self._truth(less)}")

    def _remainder(self, a: str, b: str) -> str:
        safe = self._not_zero(b)
        rest, less = self.op(f"srem i64 {a}, {safe}"), self._is_below(a, safe)
        return self.op(f"add i64 {rest}, {self.op(f'select i1 {less}, i64 {safe}, i64 0')}")

    def _not_zero(self, b: str) -> str:
        return b if b.lstrip("-").isdigit() and int(b) else self.op(
            f"select i1 {self.op(f'icmp eq i64 {b}, 0')}, i64 1, i64 {b}"
        )

    def _is_below(self, a: str, b: str) -> str:
        """Whether a quotient that is truncated is above the one that is rounded down."""
        rest = self.op(f"srem i64 {a}, {b}")
        differs = self.op(f"icmp slt i64 {self.op(f'xor i64 {rest}, {b}')}, 0")
        return self.op(f"and i1 {self.op(f'icmp ne i64 {rest}, 0')}, {differs}")

    def _extreme(self, how: str, a: str, b: str) -> str:
        return self.op(f"select i1 {self.op(f'icmp {how} i64 {a}, {b}')}, i64 {a}, i64 {b}")

    def _float_extreme(self, how: str, a: str, b: str) -> str:
        less = self.op(f"fcmp {how} double {self._float(a)}, {self._float(b)}")
        return self.op(f"select i1 {less}, i64 {a}, i64 {b}")

    def _logical(self, how: str, a: str, b: str) -> str:
        truths = [self.op(f"icmp ne i64 {each}, 0") for each in (a, b)]
        return self._truth(self.op(f"{how} i1 {truths[0]}, {truths[1]}"))


_OTHERS: dict[Op, Callable[..., str]] = {
    Op.DIV: Text._divided,
    Op.MOD: Text._remainder,
    Op.MIN: lambda text, a, b: text._extreme("slt", a, b),
    Op.MAX: lambda text, a, b: text._extreme("sgt", a, b),
    Op.NEG: lambda text, a: text.op(f"sub i64 0, {a}"),
    Op.AND: lambda text, a, b: text._logical("and", a, b),
    Op.OR: lambda text, a, b: text._logical("or", a, b),
    Op.NOT: lambda text, a: text._truth(text.op(f"icmp eq i64 {a}, 0")),
    Op.FLOAT: lambda text, a: text._bits(text.op(f"sitofp i64 {a} to double")),
    Op.INT: lambda text, a: text.op(f"fptosi double {text._float(a)} to i64"),
    Op.FNEG: lambda text, a: text._bits(text.op(f"fneg double {text._float(a)}")),
    Op.FMIN: lambda text, a, b: text._float_extreme("olt", a, b),
    Op.FMAX: lambda text, a, b: text._float_extreme("ogt", a, b),
}


def _constant(op: Op, args: list[str]) -> str | None:
    """Of two constants the result, while it fits."""
    if not all(each.lstrip("-").isdigit() for each in args):
        return None
    a, b = map(int, args)
    value = a + b if op == Op.ADD else a - b if op == Op.SUB else a * b
    return str(value) if -(2**63) <= value < 2**63 else None


def math_module(names: Sequence[str], target: Target) -> Module:
    """Functions of floats as our own code."""
    functions, helpers = list[Function](), dict[str, tuple[Function, ...]]()
    for name in sorted(names):
        b = Builder(target, f"smelt.{name}")
        args = [param(f"x{place}", "f64") for place in range(2 if name in ("pow", "remainder") else 1)]
        b.give(compute(b, name, args, torch.float64))
        functions.append(b.function(f"smelt.{name}", args, result="f64"))
        helpers |= b.helpers
    return Module(tuple(functions), tuple(each for group in helpers.values() for each in group))
