"""Reductions: neutral elements, merging of two partial results, reduction of lanes to one number.

    sum of f32 over a row   →  a vector of partial sums, added lane to lane at the end
    the same over 100,000   →  the vector is emptied into a float64 every few hundred elements, or thousand
"""

import torch

from smelt.codegen.loops.builder import Builder
from smelt.codegen.loops.math import FLOAT64, OF_NEGATIVE
from smelt.codegen.loops.scalars import VALUE_KINDS, compute
from smelt.ir.kernel import Reduction, Running, neutral
from smelt.ir.loops import Value

COMBINE = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum", "any": "or", "all": "and"}


def start(b: Builder, op: Running, dtype: torch.dtype, lanes: int) -> Value:
    """The neutral element, in every lane."""
    return b.const(VALUE_KINDS[dtype], neutral(op, dtype), lanes)


def combine(b: Builder, op: Running, dtype: torch.dtype, left: Value, right: Value) -> Value:
    if op == "prod":
        return b.fmul(left, right) if dtype.is_floating_point else b.mul(left, right)
    if op == "logaddexp":
        nothing = b.const(left.kind, 0.0, left.lanes)
        return log_of_sum(b, *merge(b, left, nothing, right, nothing))
    return compute(b, COMBINE[op], [right, left], dtype)  # what a maximum finds out about its first does not wait


def run_on(b: Builder, op: Running, dtype: torch.dtype, left: Value, right: Value) -> Value:
    """Like `combine`, where `left` comes before `right`: of equal values, such as two zeros, the later one."""
    if op not in ("max", "min") or not dtype.is_floating_point:
        return combine(b, op, dtype, left, right)
    kept = b.fcmp("ogt" if op == "max" else "olt", left, right)
    return b.select(b.or_(kept, b.fcmp("uno", left, left)), left, right)


def fold_dtype(op: Running, dtype: torch.dtype) -> torch.dtype:
    """The dtype of the running value of a scan by `op`, so that its error does not grow with the number of elements."""
    return torch.float64 if op in ("sum", "prod", "logaddexp") and dtype is torch.float32 else dtype


def merge(
    b: Builder, left: Value, by_left: Value, right: Value, by_right: Value
) -> tuple[Value, Value]:
    """Merge two sums of exponentials, each a maximum exponent and the sum of the others relative to it: nothing
    overflows, and small terms are not lost. The distance of equal maxima, which may be infinite, is zero."""
    most, least = b.maximum(left, right), b.minimum(left, right)
    apart = b.select(b.fcmp("oeq", least, most), 0.0, b.fsub(least, most))
    first = b.fcmp("oge", left, right)
    big, small = b.select(first, by_left, by_right), b.select(first, by_right, by_left)
    return most, b.fma(b.fadd(small, 1.0), OF_NEGATIVE["exp"](b, apart), big)


def log_of_sum(b: Builder, most: Value, rest: Value) -> Value:
    return b.fadd(most, FLOAT64["log1p"](b, rest))


def reduce_lanes(b: Builder, op: Reduction, dtype: torch.dtype, value: Value) -> Value:
    """Reduce all lanes of `value` to one number."""
    if value.lanes == 1:
        return value
    if dtype.is_floating_point:
        match op:
            case "sum":  # reassociated: in halves, not one lane after the other
                return b.reduce_lanes("fadd", value, b.const(value.kind, -0.0), flags="reassoc")
            case "prod":
                return b.reduce_lanes("fmul", value, b.const(value.kind, 1.0), flags="reassoc")
            case _:
                return b.reduce_lanes("fmaximum" if op == "max" else "fminimum", value)
    sign = "u" if dtype is torch.uint8 else "s"
    names = {"sum": "add", "prod": "mul", "any": "or", "all": "and", "max": f"{sign}max", "min": f"{sign}min"}
    return b.reduce_lanes(names[op], value)
