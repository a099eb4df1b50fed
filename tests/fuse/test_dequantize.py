"""Products of weights that a program dequantizes: the kernel reads the integers, and is as exact as eager."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear

import smelt
from smelt.device import contraction_cycles
from smelt.ir.kernel import Contract, Factor, Kernel, Quantized
from smelt.ir.program import Launch, Program
from smelt.ir.text import format_kernel
from tests.fuse.running import assert_same, fused
from tests.kernel_reference import run_program

ROWS, DEPTH, GROUP = 24, 128, 32
GROUPS = DEPTH // GROUP
Weights = Callable[[Tensor, Tensor, Tensor, torch.dtype], Tensor]


def stacked(q: Tensor) -> Tensor:
    """Neighbours share a byte."""
    return torch.cat(((q & 15)[..., None], (q >> 4)[..., None]), -1).view(ROWS, GROUPS, GROUP)


def as_blocks(q: Tensor) -> Tensor:
    """A byte has elements that are half a group apart."""
    blocks = q.view(ROWS, GROUPS, GROUP // 2)
    return torch.cat((blocks & 15, blocks >> 4), -1)


def upper_first(q: Tensor) -> Tensor:
    return torch.cat(((q // 16)[..., None], (q % 16)[..., None]), -1).view(ROWS, GROUPS, GROUP)


def halves(order: Callable[[Tensor], Tensor], offset: int = 8) -> Weights:
    def weights(q: Tensor, s: Tensor, z: Tensor, dtype: torch.dtype) -> Tensor:
        return ((order(q).to(dtype) - offset) * s.to(dtype)).view(ROWS, DEPTH)

    return weights


def with_zeros(q: Tensor, s: Tensor, z: Tensor, dtype: torch.dtype) -> Tensor:
    return ((stacked(q).to(dtype) - z.to(dtype)) * s.to(dtype)).view(ROWS, DEPTH)


def with_minima(q: Tensor, s: Tensor, z: Tensor, dtype: torch.dtype) -> Tensor:
    return (stacked(q).to(dtype) * s.to(dtype) + z.to(dtype)).view(ROWS, DEPTH)


def fused_minima(q: Tensor, s: Tensor, z: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.addcmul(z.to(dtype), stacked(q).to(dtype), s.to(dtype)).view(ROWS, DEPTH)


def signed(q: Tensor, s: Tensor, z: Tensor, dtype: torch.dtype) -> Tensor:
    return (((stacked(q).to(torch.int32) ^ 8) - 8).to(dtype) * s.to(dtype)).view(ROWS, DEPTH)


PACKED: dict[str, tuple[Weights, str]] = {
    "neighbours": (halves(stacked), "u4"),
    "blocks": (halves(as_blocks), "u4"),
    "upper half first": (halves(upper_first), "u4"),
    "zeros": (with_zeros, "u4"),
    "minima": (with_minima, "u4"),
    "fused minima": (fused_minima, "u4"),
    "signed": (signed, "i4"),
}


def operands(dtype: torch.dtype, rows: int = 2) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    q = torch.randint(0, 256, (ROWS, DEPTH // 2), dtype=torch.uint8)
    z = torch.randint(0, 16, (ROWS, GROUPS, 1)).float()
    return torch.randn(rows, DEPTH).to(dtype), q, torch.rand(ROWS, GROUPS, 1) / 8, z


def as_exact(function: Callable[..., Tensor], *args: Tensor) -> Program:
    """A program with a kernel for the product, that is as far from the truth as eager at most twice."""
    program = fused(function, *args, products="own")
    (result,) = run_program(program, args)
    truth = function(*[arg.double() if arg.dtype.is_floating_point else arg for arg in args])
    eager = function(*args)
    assert isinstance(result, Tensor) and result.dtype is eager.dtype and result.stride() == eager.stride()
    unit = torch.finfo(eager.dtype).eps * truth.abs().max()
    assert (result - truth).abs().max() <= 2 * (eager - truth).abs().max() + unit
    return program


def quantized_factor(program: Program) -> tuple[Factor, Quantized]:
    kernels = [step.kernel for step in program.steps if isinstance(step, Launch)]
    contracts = [each for kernel in kernels for each in kernel.instructions() if isinstance(each, Contract)]
    (factor,) = [factor for each in contracts for factor in each.factors if factor.quantized is not None]
    assert factor.quantized is not None
    return factor, factor.quantized


def floats_of_weights(program: Program) -> list[str]:
    """Buffers that have an element for each weight, but are no integers."""
    return [
        each.name for each in program.buffers if each.spec.numel == ROWS * DEPTH and each.spec.dtype.is_floating_point
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", PACKED)
def test_reads_halves_of_bytes(name: str, dtype: torch.dtype) -> None:
    weights, kind = PACKED[name]

    def multiply(x: Tensor, q: Tensor, s: Tensor, z: Tensor) -> Tensor:
        return linear(x, weights(q, s, z, x.dtype))

    program = as_exact(multiply, *operands(dtype))
    assert quantized_factor(program)[1].kind == kind
    assert not floats_of_weights(program)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("integers", [torch.int8, torch.uint8])
def test_reads_bytes_with_scales_by_group(integers: torch.dtype, dtype: torch.dtype) -> None:
    def multiply(x: Tensor, q: Tensor, s: Tensor, b: Tensor) -> Tensor:
        w = (q.view(ROWS, GROUPS, GROUP).to(x.dtype) * s.to(x.dtype)).view(ROWS, DEPTH)
        return torch.relu(linear(x, w, b))

    limits = torch.iinfo(integers)
    q = torch.randint(limits.min, limits.max + 1, (ROWS, DEPTH), dtype=integers)
    x, _, s, _ = operands(dtype)
    program = as_exact(multiply, x, q, s, torch.randn(ROWS).to(dtype))
    assert quantized_factor(program)[1].kind == ("i8" if integers is torch.int8 else "u8")
    assert not floats_of_weights(program)


def unsupported(q: Tensor, s: Tensor, kind: str) -> Tensor:
    w = stacked(q)
    match kind:
        case "three bits":
            w = w & 7
        case "fraction":
            return ((w.float() - 0.5) * s).view(ROWS, DEPTH)
        case "nonlinear":
            return (w.float().sqrt() * s).view(ROWS, DEPTH)
        case "wraps":
            return ((q * 3).view(torch.int8).float().view(ROWS, -1, GROUP) * s[:, :2]).repeat(1, 2, 1).view(ROWS, DEPTH)
        case "two scales":
            return (w.float() * s * s.sqrt()).view(ROWS, DEPTH)
    return (w.float() * s).view(ROWS, DEPTH)


@pytest.mark.parametrize("kind", ["three bits", "fraction", "nonlinear", "wraps", "two scales"])
def test_other_code_stays_as_it_is(kind: str) -> None:
    x, q, s, _ = operands(torch.float32)
    assert_same(lambda x, q, s: linear(x, unsupported(q, s, kind)), x, q, s, products="own")


def bytes_of(q: Tensor) -> Tensor:
    return q.view(torch.int8).repeat(1, 2).view(ROWS, GROUPS, GROUP)


INEXACT: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "unsigned halves minus 8": lambda q, s, z: (stacked(q) - 8).float() * s,
    "unsigned halves minus zeros": lambda q, s, z: (stacked(q) - z.to(torch.uint8)).float() * s,
    "unsigned halves plus 250": lambda q, s, z: (stacked(q) + 250).float() * s,
    "signed halves, unsigned": lambda q, s, z: ((stacked(q) ^ 8) - 8).float() * s,
    "signed bytes plus 100": lambda q, s, z: (bytes_of(q) + 100).float() * s,
    "signed bytes minus zeros": lambda q, s, z: (bytes_of(q) - (z * 8).to(torch.int8)).float() * s,
    "whole numbers": lambda q, s, z: (stacked(q).float() - z / 3).to(torch.int32).float() * s,
    "whole scales": lambda q, s, z: stacked(q).float() * (s * 99).expand(-1, -1, GROUP).to(torch.int32).float(),
    "rounded": lambda q, s, z: (stacked(q).float() * s).to(torch.bfloat16).float(),
    "infinite": lambda q, s, z: (stacked(q).float() - float("inf")) * s,
}


@pytest.mark.parametrize("name", INEXACT)
def test_integers_that_wrap_and_roundings_are_kept(name: str) -> None:
    x, q, s, z = operands(torch.float32)

    def multiply(x: Tensor, q: Tensor, s: Tensor, z: Tensor) -> Tensor:
        return linear(x, INEXACT[name](q, s, z).view(ROWS, DEPTH))

    assert_same(multiply, x, q, s, z, products="own", rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("zero", [0, 8])
def test_unsigned_integers_as_signed_ones(zero: int) -> None:
    """Integers of 8 bits that wrap and are converted to each other are as they were meant."""
    x, q, s, _ = operands(torch.float32)
    as_exact(lambda x, q, s: linear(x, ((stacked(q) - zero).to(torch.int8).float() * s).view(ROWS, DEPTH)), x, q, s)


def test_many_rows_with_sizes_that_change() -> None:
    compiled = smelt.compile(lambda x, q, s: linear(x, halves(stacked)(q, s, s, x.dtype)), dynamic=True)
    for rows in (3, 5, 17, 90, 2):
        x, q, s, _ = operands(torch.float32, rows)
        wide = linear(x.double(), halves(stacked)(q, s.double(), s, torch.float64))
        eager = (linear(x, halves(stacked)(q, s, s, x.dtype)) - wide).abs().max()
        assert (compiled(x, q, s) - wide).abs().max() <= 2 * eager + 1e-6


def test_gradient_through_frozen_weights() -> None:
    """As of QLoRA: integers have no gradient, what is multiplied with them has one."""

    def loss(x: Tensor, q: Tensor, s: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return (linear(x, halves(stacked)(q, s, s, x.dtype)) + (x @ a) @ b).square().mean()

    gradients = []
    for function in (loss, smelt.compile(loss)):
        x, q, s, _ = operands(torch.float32, 8)
        a, b = (torch.nn.Parameter(torch.randn(shape) / 8) for shape in ((DEPTH, 4), (4, ROWS)))
        x.requires_grad_()
        function(x, q, s, a, b).backward()
        gradients.append((x.grad, a.grad, b.grad))
    for ours, eager in zip(*reversed(gradients), strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5)


def test_tiles_of_a_gpu_refuse_integers() -> None:
    """Then the program dequantizes in memory."""
    program = as_exact(lambda x, q, s, z: linear(x, halves(stacked)(q, s, z, x.dtype)), *operands(torch.float32))
    kernels = [step.kernel for step in program.steps if isinstance(step, Launch)]
    (kernel,) = [each for each in kernels if isinstance(each, Kernel) and "contract" in format_kernel(each)]
    assert contraction_cycles("simt-host", kernel) == "a factor is quantized"
