"""Kernels and products on processors that this machine is not, against the reference interpreter."""

import itertools
from functools import partial
from pathlib import Path

import pytest
import torch

from smelt.codegen.ahead_of_time import find_target
from smelt.codegen.cpu.products.plan import PRODUCTS
from smelt.ir.kernel import Kernel, Role
from smelt.ir.scalar import SCALAR_OPS, kind_of
from smelt.ir.tensorspec import short_name
from tests.codegen.cpu.products.bounds import differences
from tests.codegen.cpu.products.generated import product_of
from tests.codegen.cpu.products.running import filled as filled_for_product
from tests.codegen.cpu.test_kernels import filled
from tests.codegen.cpu.test_sizes import TEXTS, at
from tests.codegen.foreign import RUN_BY_QEMU, run_on
from tests.codegen.llvm.test_scalars import CASES, DTYPES, NARROW, agree, convertible, expected, kernel_of, operands
from tests.ir.kernels import COLUMN_SUM, LAYER_NORM, SOFTMAX, sized
from tests.kernel_reference import run_kernel
from tests.kernel_text import parse_kernel

NAMES = (*RUN_BY_QEMU, "wasm32")


def same_as_reference(name: str, kernels: list[Kernel], tmp_path: Path, threads: int) -> None:
    given = [[filled(buffer, seed) for seed, buffer in enumerate(kernel.parameters)] for kernel in kernels]
    want = [[tensor.clone() for tensor in each] for each in given]
    for kernel, tensors in zip(kernels, want, strict=True):
        run_kernel(kernel, tensors)
    assert run_on(name, kernels, given, tmp_path, threads) == []
    for kernel, mine, reference in zip(kernels, given, want, strict=True):
        allowed = 5e-7 * max(4, kernel.row_count * kernel.col_count) ** 0.5
        for buffer, one, other in zip(kernel.parameters, mine, reference, strict=True):
            if buffer.role is not Role.SCRATCH:
                where = partial("{}: {}".format, f"{kernel.name}, buffer {buffer.name}")
                torch.testing.assert_close(one, other, rtol=2e-6, atol=allowed, equal_nan=True, msg=where)


@pytest.mark.parametrize("name", NAMES)
def test_rows(name: str, tmp_path: Path) -> None:
    kernels = [
        parse_kernel(sized(text, rows, cols))
        for text in (SOFTMAX, LAYER_NORM, COLUMN_SUM)
        for rows, cols in ((1, 2), (3, 7), (5, 8), (70, 33), (3, 1000))
    ]
    same_as_reference(name, kernels, tmp_path, threads=3)


@pytest.mark.parametrize("kind", ["f", "i", "b"])
@pytest.mark.parametrize("name", NAMES)
def test_every_operation(name: str, kind: str, tmp_path: Path) -> None:
    """On numbers of each dtype, special ones too."""
    needs_pow = not find_target(name).has_fma and name != "wasm32"  # which is the C library's there
    kernels, inputs, outputs = [], [], []
    for op, dtype in CASES:
        if kind_of(dtype) != kind or (needs_pow and (op, dtype) == ("pow", torch.float64)):
            continue
        given = operands(SCALAR_OPS[op], dtype)
        output = torch.bool if SCALAR_OPS[op].result == "bool" else dtype
        size = given[0].numel()
        kernels.append(kernel_of(f"{op}_{short_name(dtype)}", op, [each.dtype for each in given], output, size))
        inputs.append(given)
        outputs.append(torch.zeros(size, dtype=output))
    given_all = [[*given, got] for given, got in zip(inputs, outputs, strict=True)]
    left_out = run_on(name, kernels, given_all, tmp_path)
    assert len(left_out) < len(kernels) / 10
    faults = []
    for place, (kernel, given, got) in enumerate(zip(kernels, inputs, outputs, strict=True)):
        if place in left_out:
            continue
        op = kernel.name.rpartition("_")[0]
        want = expected(op, kernel, given)
        faults += _faults(kernel.name, given, got, want, ~agree(op, got, want))
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("name", NAMES)
def test_every_conversion(name: str, tmp_path: Path) -> None:
    kinds = (*DTYPES, *NARROW)
    kernels, inputs, outputs = [], [], []
    for source, dtype in itertools.product(kinds, kinds):
        x = convertible(source)
        if source.is_floating_point and not dtype.is_floating_point and dtype is not torch.bool:
            x = torch.where(x.isfinite() & (x.abs() < 100), x, torch.ones_like(x))  # beyond is undefined in C++
            x = x.abs() if dtype is torch.uint8 else x
        kernels.append(kernel_of(f"{short_name(source)}_to_{short_name(dtype)}", "cast", [source], dtype, x.numel()))
        inputs.append([x])
        outputs.append(torch.zeros(x.numel(), dtype=dtype))
    given_all = [[*given, got] for given, got in zip(inputs, outputs, strict=True)]
    left_out = run_on(name, kernels, given_all, tmp_path)
    assert len(left_out) < len(kernels) / 10
    faults = []
    for place, (kernel, given, got) in enumerate(zip(kernels, inputs, outputs, strict=True)):
        if place in left_out:
            continue
        want = torch.zeros_like(got)
        run_kernel(kernel, [*given, want])
        faults += _faults(kernel.name, given, got, want, ~((got == want) | (got.isnan() & want.isnan())))
    assert not faults, "\n".join(faults)


def _faults(
    name: str, given: list[torch.Tensor], got: torch.Tensor, want: torch.Tensor, wrong: torch.Tensor
) -> list[str]:
    if not bool(wrong.any()):
        return []
    at = int(wrong.nonzero()[0])
    return [f"{name}({[each[at].item() for each in given]}) = {got[at].item()}, not {want[at].item()}"]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_products(name: str, threads: int, tmp_path: Path) -> None:
    """Random products and convolutions, those with a schedule for the target: other ones with more threads."""
    target = find_target(name)
    asked = range(20 * threads, 20 * threads + 16)
    seeds = [seed for seed in asked if PRODUCTS.why_not(product_of(seed), target) is None]
    kernels = [product_of(seed) for seed in seeds]
    before = [filled_for_product(kernel, seed) for kernel, seed in zip(kernels, seeds, strict=True)]
    after = [[tensor.clone() for tensor in each] for each in before]
    assert len(kernels) > 8
    left_out = run_on(name, kernels, after, tmp_path, threads)
    assert len(left_out) < 3
    faults = []
    for place, (seed, kernel, given, got) in enumerate(zip(seeds, kernels, before, after, strict=True)):
        if place in left_out:
            continue
        faults += [f"{seed}: {each}" for each in differences(kernel, given, got)]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sizes", [(2, 2), (70, 33)])
def test_sizes_given_at_launch(name: str, sizes: tuple[int, int], tmp_path: Path) -> None:
    known = {"s0": sizes[0], "s1": sizes[1]}
    kernels = [parse_kernel(text, known) for text in TEXTS.values()]
    plain = [at(kernel, known) for kernel in kernels]
    given = [[torch.randn(buffer.size) for buffer in kernel.parameters] for kernel in plain]
    want = [[tensor.clone() for tensor in each] for each in given]
    for kernel, tensors in zip(plain, want, strict=True):
        run_kernel(kernel, tensors)
    assert run_on(name, kernels, given, tmp_path, sizes=known) == []
    for kernel, mine, reference in zip(plain, given, want, strict=True):
        for buffer, one, other in zip(kernel.parameters, mine, reference, strict=True):
            if buffer.role is not Role.INPUT:
                torch.testing.assert_close(one, other, rtol=2e-6, atol=2e-5)
