"""Rows whose inputs are padded to whole vectors: the padding is read and left out, whatever it is."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from smelt.codegen.gpu.bodies.points_body import Points
from smelt.codegen.gpu.bodies.rows_body import Rows
from smelt.codegen.gpu.cuda_target import describe_cuda
from smelt.codegen.gpu.grid_plan import plan
from smelt.ir.kernel import Kernel
from tests.codegen.gpu.on_host import OnHost
from tests.codegen.gpu.test_ptx import assembled, assembled_here, ptx_of
from tests.kernel_text import parse_kernel

STATISTICS = """
kernel statistics rows(i:{rows}) cols(j:{cols})
  in x: {dtype}[{total}]
  out most: f32[{rows}]
  out total: f32[{rows}]
  loop:
    a = load x[{stride}*i + j]
    v = cast a : f32
    m = reduce max v
  row:
    store most[i] = m
  loop:
    b = load x[{stride}*i + j]
    w = cast b : f32
    d = sub w, m : f32
    e = exp d : f32
    s = reduce sum e
  row:
    store total[i] = s
"""
COPIED = """
kernel copied rows(i:{rows}) cols(j:{cols})
  in x: {dtype}[{total}]
  out y: {dtype}[{dense}]
  out most: f32[{rows}]
  out product: f32[{rows}]
  loop:
    a = load x[{stride}*i + j]
    v = cast a : f32
    m = reduce max v
    store y[{cols}*i + j] = a
    low = reduce min v
  row:
    p = mul m, low : f32
    store most[i] = m
    store product[i] = p
"""


def kernel_of(text: str, rows: int, cols: int, stride: int, dtype: str = "bf16") -> Kernel:
    total, dense = rows * stride, rows * cols
    return parse_kernel(
        text.format(rows=rows, cols=cols, stride=stride, total=total, dense=dense, dtype=dtype)
    )


def with_padding(rows: int, cols: int, stride: int, padding: float) -> torch.Tensor:
    x = torch.randn(rows, stride)
    x[:, cols:] = padding
    return x.reshape(-1)


@pytest.mark.parametrize("padding", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize(("cols", "stride"), [(300, 304), (1001, 1008), (5003, 5008), (4097, 4104)])
def test_padding_is_left_out(cols: int, stride: int, padding: float) -> None:
    made = OnHost(kernel_of(STATISTICS, 5, cols, stride))
    (phase,) = made.plan.phases
    assert isinstance(phase, Rows) and phase.padded and phase.width > 1
    made.check(given=[with_padding(5, cols, stride, padding).bfloat16()], atol=1e-6)


@pytest.mark.parametrize(("cols", "stride"), [(1001, 1008), (5003, 5008)])
def test_a_copy_without_padding_goes_apart(cols: int, stride: int) -> None:
    made = OnHost(kernel_of(COPIED, 5, cols, stride))
    first, second = made.plan.phases
    assert isinstance(first, Points) and isinstance(second, Rows) and second.padded
    made.check(given=[with_padding(5, cols, stride, math.nan).bfloat16()])


@pytest.mark.parametrize(
    ("cols", "stride", "total"),
    [(5003, 5003, 5 * 5003), (5003, 5005, 5 * 5005), (5003, 5008, 4 * 5008 + 5003)],
    ids=["no padding", "rows begin between vectors", "the last row ends the buffer"],
)
def test_rows_without_whole_vectors_are_read_point_by_point(cols: int, stride: int, total: int) -> None:
    kernel = kernel_of(STATISTICS, 5, cols, stride)
    kernel = replace(kernel, buffers=(replace(kernel.buffers[0], size=total), *kernel.buffers[1:]))
    made = OnHost(kernel)
    assert all(isinstance(phase, Rows) and not phase.padded and phase.width == 1 for phase in made.plan.phases)
    made.check(atol=1e-6)


@assembled_here
def test_padded_rows_fit_into_registers(tmp_path: Path) -> None:
    kernel = kernel_of(STATISTICS, 8192, 50257, 50264)
    (phase,) = plan(kernel, describe_cuda("sm_90")).phases
    assert isinstance(phase, Rows) and (phase.width, phase.padded) == (8, True)
    ((registers, spilled),) = assembled(ptx_of({"statistics": kernel}), "sm_90", tmp_path).values()
    assert registers <= 40 and spilled == 0  # three blocks of 512 threads
