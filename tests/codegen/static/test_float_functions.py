"""Functions of floats that the executor calls in a static model: each computes what Python, and so C, would."""

import math
import operator
import struct
from collections.abc import Callable
from typing import Any

import pytest

from smelt.codegen.processors import host
from smelt.codegen.static.float_functions import FLOAT_FUNCTIONS, dispatch_text, float_functions
from smelt.symbolic.postfix import ARITY, Op
from tests.loop_reference import run

ARGUMENTS = [(2.5, 1.25), (0.5, 3.0), (3.0, 3.0), (7.75, 2.0), (7.75, -2.0)]
EXPECTED: dict[Op, Callable[..., Any]] = {
    Op.FPOW: pow, Op.FSQRT: math.sqrt, Op.FEXP: math.exp, Op.FLOG: math.log, Op.FSIN: math.sin, Op.FCOS: math.cos,
    Op.FTANH: math.tanh, Op.FFLOOR: lambda x: float(math.floor(x)), Op.FCEIL: lambda x: float(math.ceil(x)),
    Op.FMOD: operator.mod,
}  # fmt: skip


@pytest.mark.parametrize("op", FLOAT_FUNCTIONS, ids=lambda op: op.name)
def test_every_function_computes_what_python_would(op: Op) -> None:
    module = float_functions([op], host())
    for left, right in ARGUMENTS:
        found = run(module, f"smelt.{op.name}", left, right)
        value = struct.unpack("<d", struct.pack("<Q", found))[0] if isinstance(found, int) else found
        assert math.isclose(value, EXPECTED[op](*(left, right)[: ARITY[op]]), rel_tol=1e-15)


def test_only_functions_of_the_table_are_dispatched() -> None:
    text = dispatch_text([Op.FEXP])
    assert f"i64 {Op.FEXP.value}, label %FEXP" in text and "FLOG" not in text
