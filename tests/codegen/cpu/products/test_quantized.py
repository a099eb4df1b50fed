"""Products with quantized weights: every layout of integers, scales and zero points, for other registers, too."""

from collections.abc import Sequence
from dataclasses import replace
from unittest import mock

import pytest
import torch
from torch import Tensor

from smelt.codegen.cpu.products import streamed_blocks
from smelt.codegen.cpu.products.quantized_factors import many_rows
from smelt.codegen.cpu.products.tile_shape import Most
from smelt.codegen.cpu.target import describe_host
from smelt.ir.check_kernel import check_kernel, contraction_of
from smelt.ir.kernel import Kernel
from smelt.ir.loops import Function
from smelt.ir.text import format_kernel
from tests.codegen.cpu.products.running import OTHERS, guarded
from tests.codegen.cpu.products.written import compiled_by
from tests.codegen.running import call
from tests.kernel_reference import run_kernel
from tests.kernel_text import parse_kernel

# How a sum of 2 groups of 64 runs: its axes; positions in x; integers in w, of which two share a byte or none does.
SUMS = {
    "in order": ("g:2, k:64", "64*g + k", "64*g + k"),
    "halves first": ("g:2, h:2, k:32", "64*g + 32*h + k", "64*g + h + 2*k"),
    "upper half first": ("g:2, k:32, h:2", "64*g + 2*k + h", "64*g + 2*k - h + 1"),
    "one group": ("k:128", "k", "k"),
    "x across": ("g:2, k:64", "{group}*g + {m}*k", "64*g + k"),
}
DTYPES = {"i8": "i8", "u8": "u8", "i4": "u8", "u4": "u8"}


def written(
    m: int, n: int, kind: str = "u4", order: str = "in order", x: str = "f32", scale: str = "f32", zero: str = "",
    low: str = "", offset: int = 0, transposed: bool = False,
) -> Kernel:  # fmt: skip
    """x of m rows times n rows of quantized weights, plus a vector. With x "i8", each group of it has a scale."""
    axes, of_x, of_w = SUMS[order]
    groups = 1 if order == "one group" else 2
    grouped = " + g" if groups > 1 else ""
    row = "i" if order == "x across" else "128*i"
    less = f" {'-' if offset > 0 else '+'} {abs(offset)}" if offset else ""
    less += f" - z[{groups}*j{grouped}]" if zero else ""
    more = f" + l[{groups}*j{grouped}]" if low else ""
    weight = f"({kind} w[128*j + {of_w}]{less}) * s[{groups}*j{grouped}]{more}"
    left = f"x[{row} + {of_x.format(m=m, group=64 * m)}]"
    if x == "i8":
        left = f"(i8 {left}) * t[{groups}*i{grouped}]"
    packed = 2 if kind in ("i4", "u4") else 1
    rows, cols, at = ("j", "i", f"{m}*j + i") if transposed else ("i", "j", f"{n}*i + j")
    sizes = {"i": m, "j": n}
    text = [f"kernel product rows({rows}:{sizes[rows]}) cols({cols}:{sizes[cols]})"]
    text += [f"in x: {x}[{128 * m}]", f"in w: {DTYPES[kind]}[{128 * n // packed}]", f"in s: {scale}[{groups * n}]"]
    text += [f"in t: f32[{groups * m}]"] if x == "i8" else []
    text += [f"in z: {zero}[{groups * n}]"] if zero else []
    text += [f"in l: {low}[{groups * n}]"] if low else []
    text += [f"in b: f32[{n}]", f"out y: f32[{m * n}]", "loop:", f"p = contract ({axes}) {left}, {weight} : f32"]
    text += ["c = load b[j]", "d = add p, c : f32", f"store y[{at}] = d"]
    return parse_kernel("\n".join(text))


def filled(kernel: Kernel) -> list[Tensor]:
    torch.manual_seed(3)
    tensors = []
    for buffer in kernel.parameters:
        if buffer.dtype.is_floating_point:
            tensors.append(torch.randn(buffer.size).to(buffer.dtype))
        else:
            limits = torch.iinfo(buffer.dtype)
            tensors.append(torch.randint(limits.min, limits.max + 1, (buffer.size,)).to(buffer.dtype))
    return tensors


def magnitude(kernel: Kernel, tensors: Sequence[Tensor]) -> float:
    """A bound on the sum of the magnitudes that are added for a point."""
    contract = contraction_of(kernel)
    assert contract is not None
    memory = {each.name: tensor.double().abs() for each, tensor in zip(kernel.parameters, tensors, strict=True)}
    quantized = contract.right.quantized
    assert quantized is not None
    most = {"u4": 15, "i4": 8, "u8": 255, "i8": 128}[quantized.kind] + abs(quantized.offset)
    most += float(memory[quantized.zero.buffer].max()) if quantized.zero is not None else 0
    weight = most * float(memory[quantized.scale.buffer].max())
    weight += float(memory[quantized.low.buffer].max()) if quantized.low is not None else 0
    lines = memory["x"].reshape(-1, 128)
    weight *= float(memory["t"].max()) if "t" in memory else 1
    return weight * float(lines.sum(1).max() if lines.stride(0) else lines.sum())


def agrees(kernels: Sequence[Kernel], threads: Sequence[int] = (1, 3), **registers: object) -> None:
    """Each kernel gives what the reference does, and the same bits with every number of threads."""
    for kernel in kernels:
        check_kernel(kernel)
        assert parse_kernel(format_kernel(kernel)) == kernel
    target = replace(describe_host(), **registers)  # type: ignore[arg-type]
    for kernel, compiled in zip(kernels, compiled_by(kernels, ["quantized"] * len(kernels), target), strict=True):
        before, results = filled(kernel), []
        for count in threads:
            after = [guarded(len(each), each.dtype, at_start=count > 1).copy_(each) for each in before]
            call(compiled, after, count)
            results.append(after[-1].clone())
        run_kernel(kernel, before)
        error = float((results[0].double() - before[-1].double()).abs().max())
        assert error <= 1e-6 * magnitude(kernel, before), (format_kernel(kernel), error)
        assert all(torch.equal(results[0], each) for each in results[1:])


@pytest.fixture(autouse=True)
def busy() -> object:
    """Share out even the smallest product between threads."""
    with mock.patch.object(streamed_blocks, "_GRAIN", 1):
        yield


REGISTERS = [{}, *OTHERS]


@pytest.mark.parametrize("registers", REGISTERS, ids=str)
@pytest.mark.parametrize("order", SUMS)
@pytest.mark.parametrize("kind", ["u4", "i4"])
def test_halves_of_bytes_in_every_order(kind: str, order: str, registers: dict[str, object]) -> None:
    agrees([written(m, 13, kind, order, offset=8 if kind == "u4" else 0) for m in (1, 2, 3, 7)], **registers)


@pytest.mark.parametrize("registers", REGISTERS, ids=str)
@pytest.mark.parametrize("kind", ["i8", "u8"])
def test_bytes(kind: str, registers: dict[str, object]) -> None:
    orders = ("in order", "one group", "x across")
    agrees([written(m, 21, kind, order) for m in (1, 2, 5) for order in orders], **registers)


@pytest.mark.parametrize("m", [1, 2, 4, 9, 16, 70])
def test_zero_points_and_minima(m: int) -> None:
    kernels = [
        written(m, 37, kind, zero=zero, low=low, offset=offset)
        for kind in ("u4", "i4", "u8", "i8")
        for zero, low, offset in (("f32", "", 0), ("u8", "", 1), ("", "f32", 0), ("i8", "f32", 8), ("", "", -3))
    ]
    agrees(kernels)


@pytest.mark.parametrize("registers", REGISTERS, ids=str)
@pytest.mark.parametrize("kind", ["u4", "i4", "u8", "i8"])
def test_many_rows(kind: str, registers: dict[str, object]) -> None:
    """Panels of floats: several of a row block, parts of groups, and what is left over of tiles."""
    orders = [order for order in SUMS if kind in ("u4", "i4") or "hal" not in order]
    written_by, write = set[str](), many_rows.Panel.write

    def noted(panel: many_rows.Panel) -> Function:
        written_by.add(panel.name)
        return write(panel)

    kernels = [written(m, n, kind, order) for order in orders for m, n in ((42, 29), (65, 90))]
    kernels += [written(70, 61, kind, x="bf16", scale="f16", zero="u8", low="f32", offset=3)]
    with mock.patch.object(many_rows.Panel, "write", noted):
        agrees(kernels, **registers)
        with mock.patch.object(many_rows, "MOST", Most(28, 32)):
            agrees(kernels, **registers)
    assert written_by


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_narrow_floats(dtype: str) -> None:
    agrees([written(m, 19, x=dtype, scale=dtype, zero=dtype, low=dtype) for m in (1, 3)])


def test_every_rest_of_a_tile() -> None:
    agrees([written(m, n) for m, n in [(m, 9) for m in range(1, 20)] + [(1, n) for n in range(2, 80, 5)]], (1, 2, 5))


def test_weights_on_the_left() -> None:
    agrees([written(m, 11, transposed=True) for m in (1, 2, 6)])
