"""Level `elementwise`: element-wise kernels of every dtype, with sizes that are not multiples of a vector."""

import math
from typing import Any

import torch

from smelt_conform.bench import Bench, compared, numbers
from smelt_conform.check import Check, Level, Measurement
from smelt_conform.programs.functions import pointwise

_SIZES = (1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 255, 257, 1000, 4099, 65_537)
_SPECIAL = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 1e-40, 3e38, 0.5, -2.5]
_DTYPES = (
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
)
_MATH = ("exp", "log", "sin", "cos", "tanh", "erf", "sqrt", "rsqrt", "sigmoid", "log1p", "expm1", "atan")


def _sizes(device: str) -> Any:
    return [numbers(device, size) * 2 + 1 for size in _SIZES]


def _matrices(device: str) -> Any:
    return [
        numbers(device, rows, cols) * numbers(device, rows, cols, seed=1) for rows, cols in ((1, 7), (33, 1), (17, 129))
    ]


def _broadcast(device: str) -> Any:
    x = numbers(device, 7, 1, 5)
    return x + numbers(device, 3, 1), x * numbers(device, 5, seed=1), x - numbers(device, 1).squeeze(), x / 4


def _scalars(device: str) -> Any:
    """Python numbers are arguments of a kernel: the second call reuses the kernel of the first."""
    x = numbers(device, 100)
    return x * 0.25, x * 0.75, x + 3, x + 4, torch.add(x, x, alpha=2.5), x.clamp(-0.5, 0.25), 1.5 - x, x.pow(3)


def _special(device: str) -> Any:
    x = torch.tensor(_SPECIAL).to(device)
    one, other = x.repeat(len(_SPECIAL)), x.repeat_interleave(len(_SPECIAL))
    return one + other, one * other, torch.maximum(one, other), torch.minimum(one, other), one.clamp(-1, 1), one.relu()


def _comparisons(device: str) -> Any:
    x = torch.tensor(_SPECIAL).to(device)
    one, other = x.repeat(len(_SPECIAL)), x.repeat_interleave(len(_SPECIAL))
    return one < other, one == other, one != other, one >= other, one.isnan(), torch.where(one > other, one, other)


def _signs(device: str) -> Any:
    x = torch.tensor(_SPECIAL).to(device)
    return x.signbit(), (-x).signbit(), x.abs(), x.sign(), torch.copysign(torch.ones_like(x), x)


def _math(device: str) -> Any:
    x = numbers(device, 2000)
    return [getattr(x.abs() if name in ("log", "sqrt", "rsqrt", "log1p") else x, name)() for name in _MATH]


def _rounding(device: str) -> Any:
    x = torch.tensor([-2.5, -1.5, -0.5, -0.2, 0.5, 0.7, 1.5, 2.5, 1e10]).to(device)
    return x.round(), x.floor(), x.ceil(), x.trunc(), x.frac(), x[:-1].to(torch.int32)


def _integers(device: str) -> Any:
    x = torch.tensor([-7, -6, -1, 0, 1, 5, 7, 127], device=device)
    y = torch.tensor([2, -3, 2, 5, -7, 5, 3, 10], device=device)
    divided = torch.div(x, y, rounding_mode="floor"), torch.div(x, y, rounding_mode="trunc")
    return *divided, x % y, torch.fmod(x, y), x & y, x ^ y, ~x, x << 2, x >> 1, x * y


def _fused(bench: Bench) -> None:
    """Several operators in one kernel."""

    def program(device: str) -> Any:
        called = bench.compiled_on(device, pointwise)
        return [called(numbers(device, size, 5), numbers(device, size, 5, seed=1)) for size in (3, 64, 101)]

    bench.agrees(program)


def _of_dtype(dtype: torch.dtype) -> Any:
    def program(device: str) -> Any:
        x, y = numbers(device, 77, dtype=dtype), numbers(device, 77, dtype=dtype, seed=1)
        if dtype is torch.bool:
            return x & y, x | y, ~x, x ^ y
        return x + y, x * y, x == y, torch.where(x == y, x, y - 1), x.float() if not dtype.is_complex else x.abs()

    return compared(program, dtype)


def _in_place(device: str) -> Any:
    x = numbers(device, 50)
    x.mul_(2).add_(numbers(device, 50, seed=1)).relu_()
    result = torch.empty(0, device=device)
    torch.exp(x, out=result)
    return x, result


def _timed(bench: Bench) -> tuple[Any, int]:
    x, y = torch.ones(4 << 20, device=bench.name), torch.ones(4 << 20, device=bench.name)
    return lambda: x + y, 3 * x.nbytes


def _timed_math(bench: Bench) -> tuple[Any, int]:
    x = torch.ones(4 << 20, device=bench.name)
    return lambda: torch.nn.functional.gelu(x), 2 * x.nbytes


_COMPILE = "compile(): does it run the module's code unchanged?"

LEVEL = Level(
    "elementwise",
    "Element-wise",
    (
        Check("sizes", "tensors of any size", "launch(): sizes, and the last block of a grid", compared(_sizes)),
        Check("matrices", "tensors of two dimensions", "launch(): the order of sizes", compared(_matrices)),
        Check("broadcast", "broadcast operands", "launch(): the order of buffers", compared(_broadcast)),
        Check("scalars", "Python numbers as operands", "launch(): Launch.numbers", compared(_scalars)),
        Check(
            "in_place",
            "results written in place",
            "launch(): the same buffer passed twice",
            compared(_in_place),
        ),
        Check("special", "NaN, infinities and zeros", f"{_COMPILE} No fast-math", compared(_special)),
        Check("comparisons", "comparisons with NaN", f"{_COMPILE} Ordered and unordered fcmp", compared(_comparisons)),
        Check("signs", "the sign of zero", f"{_COMPILE} No fast-math", compared(_signs)),
        Check("math", "functions, to some units in the last place", f"{_COMPILE} Fused multiply-add", compared(_math)),
        Check("rounding", "rounding to whole numbers", f"{_COMPILE} The rounding mode", compared(_rounding)),
        Check(
            "integers",
            "division, remainders and shifts of negative integers",
            _COMPILE,
            compared(_integers, torch.int64),
        ),
        Check("fused", "several operators in one kernel", _COMPILE, _fused),
        *[
            Check(
                str(dtype).removeprefix("torch."),
                f"tensors of {dtype}",
                f"{_COMPILE} Else name no {dtype} in Target.dtypes",
                _of_dtype(dtype),
            )
            for dtype in _DTYPES
        ],
    ),
    (Measurement("add", _timed), Measurement("gelu", _timed_math)),
)
