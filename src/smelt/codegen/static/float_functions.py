"""Functions of floats in the expressions of a table, which the executor calls: in a static model they are generated, so
that it needs no C library.

    float_functions([Op.FEXP], target)   →   function @smelt.FEXP(f64 %left, f64 %right) -> f64, in the loop form
    dispatch_text([Op.FEXP])             →   double @smelt_math(i64 %op, double %left, double %right), as LLVM text
"""

from collections.abc import Iterable

import torch

from smelt.codegen.loops.builder import Builder, param
from smelt.codegen.loops.scalars import compute
from smelt.device import Target
from smelt.ir.loops import Function, Module
from smelt.symbolic.postfix import ARITY, Op

# Instructions that csrc/executor/expression.c leaves to `smelt_math`, as operations of kernels.
FLOAT_FUNCTIONS = {
    Op.FPOW: "pow", Op.FSQRT: "sqrt", Op.FEXP: "exp", Op.FLOG: "log", Op.FSIN: "sin", Op.FCOS: "cos",
    Op.FTANH: "tanh", Op.FFLOOR: "floor", Op.FCEIL: "ceil", Op.FMOD: "remainder",
}  # fmt: skip


def float_functions(ops: Iterable[Op], target: Target) -> Module:
    """A function of two floats for each instruction; those of one take the first."""
    functions, helpers = list[Function](), dict[str, Function]()
    for op in ops:
        b = Builder(target, op.name, helpers=helpers)
        params = [param("left", "f64"), param("right", "f64")]
        b.give(compute(b, FLOAT_FUNCTIONS[op], params[: ARITY[op]], torch.float64))
        functions.append(b.function(f"smelt.{op.name}", params, result="f64"))
    return Module(tuple(functions), tuple(helpers.values()))


def dispatch_text(ops: Iterable[Op]) -> str:
    """`smelt_math`, for a table that has these instructions alone."""
    cases = [(op, f"%result.{op.name} = call double @smelt.{op.name}(double %left, double %right)") for op in ops]
    labels = " ".join(f"i64 {op.value}, label %{op.name}" for op, _ in cases)
    blocks = "".join(f"{op.name}:\n  {call}\n  ret double %result.{op.name}\n" for op, call in cases)
    return f"""
define double @smelt_math(i64 %op, double %left, double %right) {{
  switch i64 %op, label %none [ {labels} ]
{blocks}none:
  unreachable
}}
"""
