"""The operations a kernel may compute, one record each: arity, what dtype comes out, and a reference.

The reference works on whole tensors and defines the meaning: every target is held against it, whole kernels by an
interpreter (`tests/kernel_reference.py`). Operands have equal dtypes (`where` takes a bool first); the compiler inserts
casts. `bf16` and `f16` values exist only to be loaded, cast and stored: arithmetic on them is done in f32.
"""

from collections.abc import Callable
from typing import Literal

import torch

from smelt.base.fast_dataclass import dataclass

Result = Literal["same", "bool"]


@dataclass(frozen=True, slots=True)
class ScalarOp:
    """`kinds` are the operand dtypes it is defined on: "f"loat, "i"nteger, "b"ool."""

    name: str
    arity: int
    result: Result
    kinds: str
    reference: Callable[..., torch.Tensor]


def _divide(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.true_divide(a, b)


def _gelu_slope(x: torch.Tensor) -> torch.Tensor:
    slope: torch.Tensor = torch.ops.aten.gelu_backward.default(torch.ones_like(x), x)
    return slope


def _philox(*operands: torch.Tensor) -> torch.Tensor:
    """One word of four that Philox4x32-10 makes of a seed, a sequence and a counter, each of 64 bits: from 0 to
    2³² - 1, as far as the dtype holds it."""
    whole = [each.to(torch.int64) for each in operands]
    seed, sequence, counter, word = torch.broadcast_tensors(*whole)  # type: ignore[no-untyped-call]
    mask = 0xFFFFFFFF

    def halves(value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return value & mask, value >> 32 & mask

    def upper(value: torch.Tensor, factor: int) -> torch.Tensor:
        """Of the product of two words."""
        return (value * (factor >> 16) + (value * (factor & 0xFFFF) >> 16)) >> 16 & mask

    (low, high), (x, y), (z, w) = halves(seed), halves(counter), halves(sequence)
    for number in range(10):
        keys = low + number * 0x9E3779B9 & mask, high + number * 0xBB67AE85 & mask
        first, second = upper(x, 0xD2511F53), upper(z, 0xCD9E8D57)
        x, y, z, w = second ^ y ^ keys[0], z * 0xCD9E8D57 & mask, first ^ w ^ keys[1], x * 0xD2511F53 & mask
    all_words = torch.stack([x, y, z, w])
    return all_words.gather(0, (word & 3)[None])[0].to(operands[0].dtype)


SCALAR_OPS: dict[str, ScalarOp] = {}


def _define(name: str, arity: int, kinds: str, reference: Callable[..., torch.Tensor], result: Result = "same") -> None:
    SCALAR_OPS[name] = ScalarOp(name, arity, result, kinds, reference)


# arithmetic
_define("add", 2, "fi", torch.add)
_define("sub", 2, "fi", torch.sub)
_define("mul", 2, "fi", torch.mul)
_define("div", 2, "f", _divide)
_define("fma", 3, "f", lambda a, b, c: torch.addcmul(c, a, b))  # one rounding where the target has it
_define("floordiv", 2, "fi", lambda a, b: torch.div(a, b, rounding_mode="floor"))
_define("truncdiv", 2, "fi", lambda a, b: torch.div(a, b, rounding_mode="trunc"))
_define("remainder", 2, "fi", torch.remainder)  # sign of the divisor, as Python's %
_define("fmod", 2, "fi", torch.fmod)  # sign of the dividend, as C's
_define("neg", 1, "fi", torch.neg)
_define("abs", 1, "fi", torch.abs)
_define("sign", 1, "fi", torch.sign)
_define("maximum", 2, "fi", torch.maximum)  # a NaN on either side wins
_define("minimum", 2, "fi", torch.minimum)
# rounding
_define("floor", 1, "f", torch.floor)
_define("ceil", 1, "f", torch.ceil)
_define("round", 1, "f", torch.round)  # halves to even
_define("trunc", 1, "f", torch.trunc)
# roots, exponentials, trigonometry
_define("sqrt", 1, "f", torch.sqrt)
_define("rsqrt", 1, "f", torch.rsqrt)
_define("reciprocal", 1, "f", torch.reciprocal)
_define("exp", 1, "f", torch.exp)
_define("exp2", 1, "f", torch.exp2)
_define("expm1", 1, "f", torch.expm1)
_define("log", 1, "f", torch.log)
_define("log2", 1, "f", torch.log2)
_define("log1p", 1, "f", torch.log1p)
_define("sin", 1, "f", torch.sin)
_define("cos", 1, "f", torch.cos)
_define("tanh", 1, "f", torch.tanh)
_define("sigmoid", 1, "f", torch.sigmoid)
_define("erf", 1, "f", torch.erf)
_define("ndtr", 1, "f", torch.special.ndtr)  # the share of the normal distribution below x
_define("gelu_slope", 1, "f", _gelu_slope)  # of x · ndtr(x)
_define("pow", 2, "f", torch.pow)
# comparisons and choice
_define("eq", 2, "fib", torch.eq, "bool")
_define("ne", 2, "fib", torch.ne, "bool")
_define("lt", 2, "fi", torch.lt, "bool")
_define("le", 2, "fi", torch.le, "bool")
_define("gt", 2, "fi", torch.gt, "bool")
_define("ge", 2, "fi", torch.ge, "bool")
_define("isnan", 1, "f", torch.isnan, "bool")
_define("signbit", 1, "f", torch.signbit, "bool")  # of a zero and of a NaN too
_define("where", 3, "fib", torch.where)  # where(bool, a, b): a and b of one dtype, which comes out
# bits and logic
_define("and", 2, "ib", torch.bitwise_and)
_define("or", 2, "ib", torch.bitwise_or)
_define("xor", 2, "ib", torch.bitwise_xor)
_define("not", 1, "ib", torch.bitwise_not)
_define("shl", 2, "i", torch.bitwise_left_shift)
_define("shr", 2, "i", torch.bitwise_right_shift)
# random words: of a seed, a sequence and a counter, which of four
_define("philox", 4, "i", _philox)


def kind_of(dtype: torch.dtype) -> str:
    """`"f"`, `"i"` or `"b"`."""
    if dtype is torch.bool:
        return "b"
    return "f" if dtype.is_floating_point else "i"
