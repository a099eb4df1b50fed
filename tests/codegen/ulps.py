"""How far the inline functions are from the truth, in units in the last place.

    python -m tests.codegen.ulps 13          the figures of docs/math.md, from every 13th float32 there is
    python -m tests.codegen.ulps 13 --write  and put into it, rounded up
    python -m tests.codegen.ulps 1 erf       erf at every float32

The truth of a float32 is the same function in float64 (numpy's for sin and cos, whose argument reduction is exact),
that of a float64 is numpy's in `longdouble`; float64 is sampled, a few hundred mantissas for each sign and exponent. A
wrong NaN, infinity or sign of zero counts as an endless error.
"""

import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import torch

from smelt.base.options import Options
from smelt.codegen import compile_kernels
from smelt.ir.kernel import Kernel
from tests.codegen.running import call
from tests.kernel_text import parse_kernel

Tensor = torch.Tensor
WRONG = float("inf")


def _by_numpy(name: str) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.from_numpy(getattr(np, name)(x.numpy()))


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "exp": torch.exp, "exp2": torch.exp2, "expm1": torch.expm1, "log": torch.log, "log2": torch.log2,
    "log1p": torch.log1p, "sin": _by_numpy("sin"), "cos": _by_numpy("cos"), "tanh": _by_numpy("tanh"),
    "sigmoid": torch.sigmoid, "erf": torch.erf, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal, "pow": torch.pow,
}  # fmt: skip


def _logistic(x: np.ndarray) -> np.ndarray:
    result: np.ndarray = 1 / (1 + np.exp(-x))
    return result


def _error_function(x: np.ndarray) -> np.ndarray:
    """By a series whose terms are all positive."""
    size = np.minimum(np.abs(x), 7)
    term = total = size
    for k in range(1, 250):
        term = term * 2 * size * size / (2 * k + 1)
        total = total + term
    pi = np.longdouble("3.14159265358979323846264338327950288")
    result: np.ndarray = np.copysign(2 / np.sqrt(pi) * np.exp(-size * size) * total, x)
    return result


WIDE: dict[str, Callable[..., np.ndarray]] = {
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2, "log1p": np.log1p,
    "sin": np.sin, "cos": np.cos, "tanh": np.tanh, "sigmoid": _logistic, "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x), "reciprocal": lambda x: 1 / x, "erf": _error_function, "pow": np.power,
}  # fmt: skip


def kernel_of(name: str, size: int, dtype: str = "f32") -> Kernel:
    second = f" in w: {dtype}[{size}]\n" if name == "pow" else ""
    load, args = (" b = load w[j]\n", "a, b") if name == "pow" else ("", "a")
    return parse_kernel(
        f"kernel {name} rows() cols(j:{size})\n in x: {dtype}[{size}]\n{second} out y: {dtype}[{size}]\n"
        f" loop:\n a = load x[j]\n{load} r = {name} {args} : {dtype}\n store y[j] = r"
    )


def errors(got: Tensor, truth: Tensor) -> Tensor:
    """The error of each element, in ulp of the truth."""
    rounded = truth.float()
    size = truth.abs().clamp(min=2.0**-126)
    found = (got.double() - truth).abs() / torch.exp2(torch.floor(torch.log2(size)) - 23)
    endless = torch.isinf(got) | torch.isinf(rounded)
    # The largest float and infinity are one ulp apart: either may stand for what lies between them.
    edge = (got.abs() >= torch.finfo(torch.float32).max) & (truth.abs() >= torch.finfo(torch.float32).max)
    right = (got == rounded) | (edge & (got.sign() == truth.sign()))
    found = torch.where(endless, torch.where(right, 0.0, WRONG), found)
    found = torch.where(truth.isnan() | got.isnan(), torch.where(truth.isnan() & got.isnan(), 0.0, WRONG), found)
    return torch.where((truth == 0) & (torch.signbit(got) != torch.signbit(rounded)), WRONG, found)


def measure(name: str, *inputs: Tensor, threads: int = 1) -> Tensor:
    """The errors of the compiled function at `inputs`."""
    kernel = kernel_of(name, inputs[0].numel())
    got = torch.empty_like(inputs[0])
    call(compile_kernels([kernel], Options())[name], [*inputs, got], threads)
    return errors(got, FUNCTIONS[name](*(each.double() for each in inputs)))


def errors_wide(got: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """As `errors`, of float64 against `longdouble`."""
    with np.errstate(all="ignore"):
        rounded = truth.astype(np.float64)
        size = np.maximum(np.abs(truth), np.longdouble(2) ** -1022)
        found = np.abs(got - truth) / np.exp2(np.floor(np.log2(size)) - 52)
    wrong = (got != rounded) & ~(np.isnan(got) & np.isnan(rounded))
    found = np.where(np.isfinite(got) & np.isfinite(rounded), found, np.where(wrong, WRONG, 0.0))
    return np.where((rounded == 0) & (np.signbit(got) != np.signbit(rounded)), WRONG, found).astype(np.float64)


def measure_wide(name: str, *inputs: np.ndarray) -> np.ndarray:
    """The errors of the compiled function at `inputs`, which are float64."""
    got = torch.empty(len(inputs[0]), dtype=torch.float64)
    kernel = kernel_of(name, len(got), "f64")
    call(compile_kernels([kernel], Options())[name], [*map(torch.from_numpy, inputs), got])
    with np.errstate(all="ignore"):
        return errors_wide(got.numpy(), WIDE[name](*(x.astype(np.longdouble) for x in inputs)))


def wide_inputs(name: str, each: int, seed: int) -> tuple[np.ndarray, ...]:
    return wide_pairs(200 * each, seed) if name == "pow" else (wide_sample(each, seed),)


def wide_pairs(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """As `pairs`, of float64."""
    draw = np.random.default_rng(seed)
    special = [0.0, -0.0, 1, -1, 2, -2, 3, -3, 0.5, -0.5, 5e-324, -5e-324, 1.7e308, -1.7e308, 2.0**53, 2.0**54, -7.5]
    edges = np.array([*special, 2.0**53 - 1, 1 + 2.0**-52, np.inf, -np.inf, np.nan])
    grid = np.array(np.meshgrid(edges, edges)).reshape(2, -1)
    bits = draw.integers(0, 1 << 64, (3, count), dtype=np.uint64).view(np.float64)
    near, whole = np.exp(draw.normal(size=count)), draw.integers(-40, 40, count).astype(np.float64)
    small, large = draw.normal(size=count), draw.normal(size=count) * 3e8
    bases = np.concatenate([grid[0], bits[0], near, near, np.abs(bits[2]), bits[1], 1 + near / 1e6])
    return bases, np.concatenate([grid[1], bits[1], whole, near * 200, small, whole, large])


def wide_sample(each: int, seed: int) -> np.ndarray:
    """`each` random mantissas for every sign and exponent, as many thousands of middling size, and special values."""
    generator = np.random.default_rng(seed)
    high = np.arange(4096, dtype=np.uint64).repeat(each) << np.uint64(52)
    low = generator.integers(0, 1 << 52, high.shape, dtype=np.uint64)
    middling = generator.normal(size=1000 * each) * np.exp(generator.uniform(-6, 6.6, 1000 * each))
    special = [
        0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 5e-324, -5e-324, 2.0**-1022, 709.782712893384, 709.79,
        -745.13, -745.14, -708.4, 1024.0, 1023.999, -1074.0, -1075.0, -1022.5, np.pi, np.pi / 2, 1e22, 2.0**20,
        1 - 2.0**-53, 1 + 2.0**-52, -1 + 2.0**-53,
    ]  # fmt: skip
    return np.concatenate([np.array(special), (high | low).view(np.float64), middling])


def from_bits(bits: Tensor) -> Tensor:
    """The float32 of each 32-bit pattern."""
    return torch.where(bits >= 2**31, bits - 2**32, bits).to(torch.int32).view(torch.float32)


def every(step: int, batch: int = 1 << 21) -> Iterator[Tensor]:
    """Every `step`-th float32 there is, in batches."""
    for start in range(0, 1 << 32, batch * step):
        yield from_bits((torch.arange(batch) * step + start) % 2**32)


def pairs(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Bases and exponents for pow: special ones with each other, then random bits, small numbers and whole ones."""
    generator = torch.Generator().manual_seed(seed)
    special = [0.0, -0.0, 1, -1, 2, -2, 3, -3, 0.5, -0.5, 1e-45, -1e-45, 3e38, -3e38, 2.0**24, 2.0**25, 1.0000001, -7.5]
    edges = torch.tensor([*special, float("inf"), float("-inf"), float("nan")])
    grid = torch.cartesian_prod(edges, edges)
    bits = from_bits(torch.randint(0, 2**32, (2, count), generator=generator))
    near = torch.exp(torch.randn(count, generator=generator))
    whole = torch.randint(-40, 40, (count,), generator=generator).float()
    large = torch.randn(count, generator=generator) * 30000
    bases = torch.cat([grid[:, 0], bits[0], near, near, bits[1], 1 + near / 10000])
    return bases, torch.cat([grid[:, 1], bits[1], whole, near * 20, whole, large])


TABLE = Path(__file__).parents[2] / "docs" / "math.md"


def bounds(column: int) -> dict[str, float]:
    """What docs/math.md states: the first column is float32, the second float64."""
    rows = re.findall(r"^\| `(\w+)` \| ([\d.]+|-) \| ([\d.]+|-) \|", TABLE.read_text(encoding="utf-8"), re.MULTILINE)
    return {row[0]: float(row[column]) for row in rows if row[column] != "-"}


def worst(found: Iterable[tuple[float, str]]) -> tuple[float, str]:
    return max(found, key=lambda pair: pair[0])


def worst_of_float32(name: str, step: int) -> tuple[float, str]:
    batches = [pairs(1 << 18, seed) for seed in range(16)] if name == "pow" else ((x,) for x in every(step))

    def of(inputs: tuple[Tensor, ...]) -> tuple[float, str]:
        found = measure(name, *inputs)
        place = int(found.argmax())
        return float(found[place]), ", ".join(f"{float(each[place]):.9g}" for each in inputs)

    return worst(map(of, batches))


def worst_of_float64(name: str) -> tuple[float, str]:
    def of(seed: int) -> tuple[float, str]:
        inputs = wide_inputs(name, 50, seed)
        found = measure_wide(name, *inputs)
        return float(found.max()), ", ".join(repr(float(x[int(found.argmax())])) for x in inputs)

    return worst(map(of, range(5)))


def write(name: str, figures: list[str]) -> None:
    """Put the figures of one function into its row of the table."""
    text = TABLE.read_text(encoding="utf-8")
    row = re.compile(rf"^\| `{name}` \| \S+ \| \S+ \|", re.MULTILINE)
    TABLE.write_text(row.sub(f"| `{name}` | {' | '.join(figures)} |", text), encoding="utf-8")


def main(step: int, names: list[str]) -> None:
    wanted = [name for name in names if not name.startswith("--")] or [*FUNCTIONS]
    for name in wanted:
        found = [worst_of_float32(name, step)]
        if name in WIDE:
            found.append(worst_of_float64(name))
        for dtype, (error, at) in zip(("float32", "float64"), found, strict=False):
            print(f"{name:11} {dtype} {error:.2f} ulp at {at}", flush=True)
        if "--write" in names:
            figures = [f"{math.ceil(error * 10) / 10:.1f}" for error, _ in found]
            write(name, figures if name in WIDE else [*figures, "-"])


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 101, sys.argv[2:])
