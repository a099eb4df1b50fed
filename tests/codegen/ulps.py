"""How far the inline functions are from the truth, in units in the last place of a float32.

    python -m tests.codegen.ulps 13          the table of docs/math.md, from every 13th float32 there is
    python -m tests.codegen.ulps 1 erf       erf at every float32

The truth is the same function in float64 (numpy's for sin and cos, whose argument reduction is exact). A wrong NaN,
infinity or sign of zero counts as an endless error.
"""

import sys
from collections.abc import Callable, Iterator

import numpy as np
import torch

from smelt.base.options import Options
from smelt.codegen import compile_kernels
from smelt.ir.kernel import Kernel
from smelt.ir.text import parse_kernel
from tests.codegen.running import call

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


def kernel_of(name: str, size: int) -> Kernel:
    second = f" in w: f32[{size}]\n" if name == "pow" else ""
    load, args = (" b = load w[j]\n", "a, b") if name == "pow" else ("", "a")
    return parse_kernel(
        f"kernel {name} rows() cols(j:{size})\n in x: f32[{size}]\n{second} out y: f32[{size}]\n"
        f" loop:\n a = load x[j]\n{load} r = {name} {args} : f32\n store y[j] = r"
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


def main(step: int, names: list[str]) -> None:
    print("| function | largest error (ulp) | at |\n|---|---|---|")
    for name in names or FUNCTIONS:
        batches = [pairs(1 << 18, seed) for seed in range(16)] if name == "pow" else ((x,) for x in every(step))
        worst, at = 0.0, ""
        for inputs in batches:
            found = measure(name, *inputs)
            if float(found.max()) > worst:
                worst, place = float(found.max()), int(found.argmax())
                at = ", ".join(f"{float(each[place]):.9g}" for each in inputs)
        print(f"| {name} | {worst:.2f} | {at} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 101, sys.argv[2:])
