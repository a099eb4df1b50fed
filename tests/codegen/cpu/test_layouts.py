"""Pointwise kernels over random axes, dtypes and layouts: permuted, flipped, expanded, stepped, offset, in place."""

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from smelt.codegen.cpu import schedule
from smelt.ir.kernel import Axis, Buffer, Cast, Compute, Index, Instruction, Kernel, Load, Role, Stage, Store
from smelt.symbolic.shapes import contiguous_stride, product
from tests.codegen.cpu.test_kernels import same_as_reference
from tests.kernel_text import parse_kernel

DTYPES = [
    torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
]  # fmt: skip
SIZES = [0, 1, 2, 3, 5, 7, 16, 17, 33, 40]


@st.composite
def read_indices(draw: st.DrawFn, axes: tuple[Axis, ...]) -> tuple[Index, int]:
    """A strided view that names each element in any order, and how many elements it reaches over."""
    order = draw(st.permutations(range(len(axes))))
    strides = [0] * len(axes)
    step = draw(st.sampled_from([1, 1, 1, 2]))
    for number in order:
        kind = draw(st.sampled_from(["plain", "plain", "plain", "flipped", "expanded"]))
        if kind != "expanded":
            strides[number] = -step if kind == "flipped" else step
            step *= max(1, axes[number].size)
    reach = [stride * max(0, axis.size - 1) for stride, axis in zip(strides, axes, strict=True)]
    low, high = sum(min(0, r) for r in reach), sum(max(0, r) for r in reach)
    offset = draw(st.integers(0, 3))
    terms = tuple((axis.name, stride) for axis, stride in zip(axes, strides, strict=True) if stride)
    return Index(terms, offset - low), high - low + offset + 1


@st.composite
def pointwise_kernels(draw: st.DrawFn) -> Kernel:
    """Up to three inputs of any dtype, cast to one, added up or multiplied, cast to the output's dtype."""
    axes = tuple(Axis(f"a{n}", size) for n, size in enumerate(draw(st.lists(st.sampled_from(SIZES), max_size=4))))
    if product(axis.size for axis in axes) > 40_000:
        axes = axes[:2]
    work = draw(st.sampled_from([torch.float32, torch.float32, torch.float64, torch.int64]))
    buffers: list[Buffer] = []
    body: list[Instruction] = []
    for number in range(draw(st.integers(1, 3))):
        index, size = draw(read_indices(axes))
        buffers.append(Buffer(f"in{number}", draw(st.sampled_from(DTYPES)), size, Role.INPUT))
        body += [Load(f"x{number}", f"in{number}", index), Cast(f"v{number}", f"x{number}", work)]
    total = "v0"
    for number in range(1, len(buffers)):
        op = draw(st.sampled_from(["add", "sub", "mul", "maximum"]))
        body.append(Compute(f"t{number}", op, (total, f"v{number}"), work))
        total = f"t{number}"
    order = draw(st.permutations(axes))
    shape = [axis.size for axis in order]
    strides = dict(zip((axis.name for axis in order), contiguous_stride(shape), strict=True))
    index = Index(tuple((axis.name, strides[axis.name]) for axis in axes))
    out = draw(st.sampled_from([torch.float32, work, torch.bfloat16, torch.bool]))
    if draw(st.booleans()):  # an update in place of what is also read
        body += [
            Load("old", "out", index), Cast("w", "old", work), Compute("u", "add", (total, "w"), work),
        ]  # fmt: skip
        total = "u"
    buffers.append(Buffer("out", out, product(shape), Role.INOUT if total == "u" else Role.OUTPUT))
    body += [Cast("result", total, out), Store("out", index, "result")]
    rows = draw(st.integers(0, len(axes)))
    return Kernel("layout", axes[:rows], axes[rows:], tuple(buffers), (Stage(True, tuple(body)),))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(pointwise_kernels(), st.sampled_from([1, 1 << 16]))
def test_random_layouts(kernel: Kernel, grain: int) -> None:
    before, schedule.GRAIN = schedule.GRAIN, grain
    try:
        same_as_reference(replace(kernel, name=f"layout_{grain}"), threads=(1, 2))
    finally:
        schedule.GRAIN = before


@pytest.mark.parametrize("cols", [2, 3, 16, 37, 200])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i8"])
def test_flipped_reads_and_writes(cols: int, dtype: str) -> None:
    last = cols - 1
    head = f"kernel k rows(i:3) cols(j:{cols})\n in x: {dtype}[{3 * cols}]\n out y: {dtype}[{3 * cols}]\n loop:\n"
    same_as_reference(parse_kernel(f"{head} a = load x[{cols}*i - j + {last}]\n store y[{cols}*i + j] = a"))
    same_as_reference(parse_kernel(f"{head} a = load x[{cols}*i + j]\n store y[{cols}*i - j + {last}] = a"))
    summed = parse_kernel(
        f"kernel k rows(i:3) cols(j:{cols})\n in x: f32[{3 * cols}]\n out y: f32[3]\n out z: f32[{cols}]\n loop:\n"
        f" a = load x[{cols}*i - j + {last}]\n s = reduce sum a\n accumulate max z[j] = a\n row:\n store y[i] = s"
    )
    same_as_reference(summed)
